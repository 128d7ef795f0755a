"""How do I put together what the ranks of an engine wrote?"""

from __future__ import annotations

import sys
from pathlib import Path

import hurray_arrow as ha
from hurray_arrow.snapshot import member_name

folder = Path(sys.argv[1]).parent
with ha.open_snapshot(sys.argv[1]) as snapshot:
    keys = snapshot.read(layer_index=0, kv_role="key")
    # As if three ranks had one head each: every rank writes a file of its own and says which heads it has.
    for rank, part in enumerate(ha.ops.split_heads(keys, 3)):
        assert isinstance(part, ha.BlockPagedTensor)
        about = {
            "set": {"id": "step-1200", "member": rank, "members": 3},
            "topology": {"tp_rank": rank, "tp_size": 3, "head_range": [rank, rank + 1]},
        }
        ha.write_snapshot(folder / member_name("ranks", rank, 3), [part], metadata=about, overwrite=True)

with ha.open_snapshot_set(f"{folder}/ranks.m*of3.arrow") as ranks:
    merged = ranks.read(layer_index=0, kv_role="key")
    assert isinstance(merged, ha.BlockPagedTensor)
    print(f"{len(ranks.members)} files, heads in all: {merged.num_heads}")
    print("as before:", merged.page_pool.tobytes() == keys.page_pool.tobytes())

(folder / member_name("ranks", 1, 3)).unlink()
try:
    ha.open_snapshot_set(f"{folder}/ranks.m*of3.arrow")
except ha.SnapshotIncompleteError as error:
    print(error)
