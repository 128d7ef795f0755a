"""A snapshot of a few KiB that has one of everything, for tests that damage every part of it.

Companions, absent pages, quantization buffers, two kv_groups, two page columns and a pool that is not cut into pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hurray_arrow import BlockPagedTensor, write_snapshot
from tests.sample import make_tensor

PAGE_ALIGN_BYTES = 64
#: The number of tensors, one row each.
NUM_TENSORS = 4
METADATA: dict[str, Any] = {
    "id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11",
    "created": "2025-01-02T03:04:05Z",
    "groups": [{"kind": "sliding_window", "components": ["values", "scales"]}, {"kind": "full"}],
    "model": {"name": "m", "revision": "9f2c"},
}


def small_tensors() -> list[BlockPagedTensor]:
    """Return the tensors: 5 pages of 2 slots, 3 sequences, one empty, page 1 shared, pages 0 and 2 named by nobody."""
    facts: dict[str, Any] = {
        "block_tables": [[3, 1], [], [1, 4]],
        "seq_lens": [3, None, 4],
        "total_tokens": 7,
        "ids": ["a", None, "ß"],
        "token_ids": [[7, 11, 13], None, [1, 2, 3, 5]],
        "page_positions": [[0, 4], None, None],
        "layer_name": "l.0",
        "layer_index": 0,
        "num_pages": 5,
        "page_size": 2,
        "num_heads": 1,
    }
    return [
        make_tensor(element_type="bfloat16", head_dim=3, kv_role="key", **facts),
        make_tensor(element_type="float32", head_dim=1, kv_role="key", component="scales", seed=5, **facts),
        make_tensor(
            element_type="bfloat16",
            head_dim=3,
            num_heads=1,
            page_size=2,
            num_pages=3,
            block_tables=[[2], [0, 2]],
            seq_lens=[1, 3],
            quantization="none",
            kv_role="value",
            seed=7,
        ),
        # 3 elements of 4 bits are no whole bytes: this pool goes into pool_bytes.
        make_tensor(
            element_type="int4",
            quantization="per_channel_dims",
            head_dim=3,
            num_heads=1,
            page_size=1,
            num_pages=3,
            block_tables=[[2], [0, 2]],
            seq_lens=[1, 2],
            kv_role="fused",
            layer_index=None,
        ),
    ]


def write_small(path: Path) -> None:
    """Write the snapshot, always with the same bytes."""
    write_snapshot(path, small_tensors(), metadata=METADATA, page_align_bytes=PAGE_ALIGN_BYTES, overwrite=True)
