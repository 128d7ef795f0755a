"""Snapshots of a few MiB, and how to compare what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hurray_arrow import BlockPagedTensor, Snapshot, write_snapshot
from tests.sample import make_tensor

#: What every object class uses as its smallest part in these tests: S3 takes no smaller one.
PART_BYTES = 5 << 20
PAGES = 397


def tensors(*, layers: int = 3, seed: int = 0, num_pages: int = PAGES) -> list[BlockPagedTensor]:
    """Keys and values of a few layers, 2.1 MiB each: one layer fits a part, three take three of them."""
    return [
        make_tensor(
            kv_role=role,
            layer_index=layer,
            head_dim=67,
            num_pages=num_pages,
            page_size=14,
            num_heads=3,
            seed=seed + layer,
        )
        for layer in range(layers)
        for role in ("key", "value")
    ]


def as_bytes(folder: Path, some: list[BlockPagedTensor], **options: Any) -> bytes:
    """Return the snapshot as a file has it."""
    path = folder / "sample.arrow"
    write_snapshot(path, some, overwrite=True, **options)
    return path.read_bytes()


def check_same(snapshot: Snapshot, some: list[BlockPagedTensor]) -> None:
    """Read and verify everything, and compare it with what was written."""
    found = list(snapshot.iter_tensors(verify=True))
    assert len(found) == len(some)
    for one, other in zip(found, some, strict=True):
        assert one.equals(other)
    assert snapshot.verify().num_tensors == len(some)
