"""How do I write a stored sequence into the pool of a running engine?"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np

import hurray_arrow as ha
from hurray_arrow.engines import vllm

# The engine's memory: [pages, heads, slots, keys then values], its own page size, most of its pages in use by others.
LAYERS = [f"model.layers.{layer}" for layer in (0, 7, 14, 22, 29)]
pool = {name: np.ones((12, 3, 32, 128), ml_dtypes.bfloat16) for name in LAYERS}

expect = {"model.name": "SmolLM2-135M-Instruct"}
with ha.open_snapshot(sys.argv[1], expect=expect) as snapshot:
    stored = snapshot.read_sequences(3).tensors
    restored = vllm.restore_into(
        pool,
        stored,
        layout="BHNC",
        head_dim=64,
        sequence=0,
        block_ids=[9, 4],  # what the engine's scheduler allocated: two pages of 32 slots for 37 tokens
        page_size=32,
        expect=expect,
        metadata=snapshot.metadata,
    )
print(f"{restored.num_tokens} tokens in {len(pool)} layers")
keys = stored[0].gather(0)
in_pool = np.concatenate([pool["model.layers.0"][page, :, :, :64].transpose(1, 0, 2) for page in (9, 4)])
print("keys are where the engine looks for them:", np.array_equal(in_pool[: len(keys)], keys))
others = [page for page in range(12) if page not in (9, 4)]
print("pages of others are untouched:", all((pool[name][others] == 1).all() for name in pool))
