"""How do I write a cache layer by layer, as an engine produces it?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import hurray_arrow as ha

source = Path(__file__).parents[1] / "data" / "smollm2_small.npz"
target = Path(sys.argv[1] if len(sys.argv) > 1 else "smollm2_small.arrow").with_name("layer_by_layer.arrow")

cache = np.load(source)
pools = {"key": cache["key_pool"], "value": cache["value_pool"]}
buffer = np.empty_like(pools["key"][0])  # the one place that every layer passes through


def produced() -> Iterator[ha.BlockPagedTensor]:
    """Compute a layer, hand it out, and use its memory for the next one."""
    for place, layer_index in enumerate(cache["layer_index"]):
        for kv_role, pool in pools.items():
            buffer[...] = pool[place]
            yield ha.BlockPagedTensor.from_arrays(
                buffer,
                cache["block_table"],
                cache["seq_ptr"],
                seq_lens=cache["seq_lens"],
                element_type="bfloat16",
                kv_role=kv_role,
                layer_index=int(layer_index),
            )


tensors = produced()
first = next(tensors)
# A file's schema stands before its pages, and says what kinds of pages come and how large the tables are. Here all
# tensors are alike; list one of each kind where keys and values, or layers, differ.
plan = ha.SchemaPlan.of([first])
with ha.SnapshotWriter(target, plan=plan, overwrite=True) as writer:
    writer.write(first)
    for tensor in tensors:
        writer.write(tensor)  # when it returns, the buffer is the engine's again

with ha.open_snapshot(target) as snapshot:
    snapshot.verify()
    for entry in snapshot.entries:
        place = cache["layer_index"].tolist().index(entry.layer_index)
        stored = snapshot.read(layer_index=entry.layer_index, kv_role=entry.kv_role).page_pool
        assert np.array_equal(stored.view(np.uint16), pools[entry.kv_role][place])
    print(f"{len(snapshot.entries)} tensors of {buffer.nbytes} bytes went through one buffer of {buffer.nbytes} bytes")
