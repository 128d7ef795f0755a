"""Intact snapshots and streams that scripts change: golden files, which never change, and a few written here."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

import hurray_arrow as ha
from hurray_arrow import BlockPagedTensor
from hurray_arrow.snapshot import archive_rows
from tests.faults import hostile_archives
from tests.faults.small import METADATA, small_tensors, write_small
from tests.sample import make_tensor, sample_facts, seq_lens_of

GOLDEN = Path(__file__).parents[1] / "compat" / "golden"
#: Between them every column, every kind of index and every element type that is stored in a way of its own.
SHARE = (
    *("companions", "pool_bytes", "private", "empty", "long_index", "facts", "original_descriptors", "no_checksums"),
    *("partial", "index_types", "nothing", "metadata", "many_pages"),
)
ARCHIVES = ("archive", "archive_floats", "archive_plain")


@cache
def file_path() -> Path:
    """Return where targets put one file after another: memory, which goes with this process however it ends."""
    return Path(f"/proc/self/fd/{os.memfd_create('fuzz')}")


@cache
def share_files() -> tuple[bytes, ...]:
    """Return snapshots of the share profile: one tensor, which is quick; one of everything; golden ones."""
    return (_written(_write_tiny), _written(write_small), *((GOLDEN / f"{name}.arrow").read_bytes() for name in SHARE))


@cache
def archives() -> tuple[bytes, ...]:
    """Return archives: one tensor in several rows; everything in several rows; whole and plain; golden ones."""
    own = (_written(_archive_tiny), _written(hostile_archives.write_cut), _written(hostile_archives.write_whole))
    return (*own, *((GOLDEN / f"{name}.arrow").read_bytes() for name in ARCHIVES))


@cache
def streams() -> tuple[bytes, ...]:
    """Return streams: small tensors, every fact, odd pools, nothing at all."""
    facts = [
        make_tensor(kv_role="key", layer_name="model.layers.0", **sample_facts()),
        make_tensor(element_type="int4", layer_index=None, seq_lens=None, total_tokens=19, kv_role="fused"),
        make_tensor(index_type="uint64", layer_index=3, element_type="float32"),
    ]
    known = [make_tensor(token_ids=[range(n) for n in seq_lens_of(5)], page_positions=[[0, 5, 10], [], [0, 5], [0]])]
    return (small_stream(), _stream([*facts, *known]), _stream([]), _stream(facts, checksums=False))


@cache
def small_stream() -> bytes:
    """Return the stream of the small tensors with their metadata."""
    sink = io.BytesIO()
    ha.write_stream(sink, small_tensors(), metadata=METADATA)
    return sink.getvalue()


def _stream(tensors: list[BlockPagedTensor], *, checksums: bool = True) -> bytes:
    sink = io.BytesIO()
    ha.write_stream(sink, tensors, metadata={"id": METADATA["id"], "created": METADATA["created"]}, checksums=checksums)
    return sink.getvalue()


def _write_tiny(path: Path) -> None:
    ha.write_snapshot(path, small_tensors()[2:3], metadata={**METADATA, "groups": []}, page_align_bytes=64)


def _archive_tiny(path: Path) -> None:
    with mock.patch.multiple(archive_rows, ONE_ROW_BYTES=0, MAX_ROW_BYTES=24):
        ha.write_snapshot(path, small_tensors()[2:3], metadata={**METADATA, "groups": []}, profile="archive")


def _written(write: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.arrow"
        write(path)
        return path.read_bytes()
