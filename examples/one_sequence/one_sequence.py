"""How do I get the keys of one sequence as ordinary numbers?"""

from __future__ import annotations

import sys

import numpy as np

import hurray_arrow as ha

with ha.open_snapshot(sys.argv[1]) as snapshot:
    tensor = snapshot.read(layer_index=14, kv_role="key")
    keys = tensor.gather(3)  # [tokens, num_heads, head_dim], bfloat16; unused slots of the last page are left out
    print(keys.dtype, keys.shape)
    norms = np.linalg.norm(keys.astype(np.float32), axis=-1)
    print("mean length of a key, by head:", *(f"{norm:.1f}" for norm in norms.mean(axis=0)))
