"""Small snapshots for catalogues: two layers, each in a kv_group of its own, and three sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hurray_arrow as ha

KEY = bytes(range(7, 39))
PAGE_SIZE = 5
PROMPT = np.random.default_rng(17).integers(1_000_000, 2_000_000, 97).astype(np.uint32)
#: What no catalogue may hold.
SECRETS = ("tenant-7c1", "adapter-9d2", "user-3e5", "request-5b8")


def write(path: Path, *, tokens: int = 23, seed: int = 0, **options: Any) -> None:
    """Write a snapshot whose first sequence begins with so many tokens of PROMPT; ``options`` go to the writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, tokens])
    token_ids = [PROMPT[:tokens], np.empty(0, np.uint32), rng.integers(0, 9, 7).astype(np.uint32)]
    lens = [len(ids) for ids in token_ids]
    pages = [-(-n // PAGE_SIZE) for n in lens]
    table = rng.permutation(sum(pages) + 3)
    ends = np.cumsum(pages)
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            rng.normal(size=(sum(pages) + 3, PAGE_SIZE, 2, 3)).astype(np.float32),
            block_tables=[table[end - n : end].tolist() for n, end in zip(pages, ends, strict=True)],
            seq_lens=lens,
            token_ids=token_ids,
            kv_role=role,
            layer_index=layer,
            kv_group=layer // 4,
            ids=[SECRETS[3], None, None],
        )
        for layer in (3, 7)
        for role in ("key", "value")
    ]
    options.setdefault("overwrite", True)
    ha.write_snapshot(path, tensors, **options)
