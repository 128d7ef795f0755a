"""How do I keep a paged cache, and get it back?"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import hurray_arrow as ha

source = Path(__file__).parents[1] / "data" / "smollm2_small.npz"
target = Path(sys.argv[1] if len(sys.argv) > 1 else "smollm2_small.arrow")

cache = np.load(source)
tensors = [
    ha.BlockPagedTensor.from_arrays(
        cache[f"{kv_role}_pool"][layer],  # [num_pages, page_size, num_heads, head_dim], bfloat16 bits in uint16
        cache["block_table"],
        cache["seq_ptr"],
        seq_lens=cache["seq_lens"],
        element_type="bfloat16",
        kv_role=kv_role,
        layer_index=int(layer_index),
        layer_name=f"model.layers.{layer_index}",  # what an engine calls it; adapters find its array by this name
    )
    for layer, layer_index in enumerate(cache["layer_index"])
    for kv_role in ("key", "value")
]
ha.write_snapshot(target, tensors, metadata={"model": {"name": "SmolLM2-135M-Instruct"}}, overwrite=True)

with ha.open_snapshot(target, expect={"model.name": "SmolLM2-135M-Instruct"}) as snapshot:
    for ours, theirs in zip(tensors, snapshot.iter_tensors(), strict=True):
        assert ours.equals(theirs)
    print(f"{len(snapshot.entries)} tensors came back as they went in")
