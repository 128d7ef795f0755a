"""Snapshots in a store: upload against the backend's own, restore of one tensor against fetching the object.

Run with ``python -m benchmarks stores`` (``--quick`` for a sixteenth of the sizes). Starts SeaweedFS on loopback:
server and client share the machine's cores, so only ratios say something.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from benchmarks.share import FOLDER, cache
from tests.stores.servers import BUCKET, KEY, SECRET, weed

UPLOAD_BYTES = 512 << 20


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with weed() as (port, _), tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        options = {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": f"http://127.0.0.1:{port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        filesystem = fsspec.filesystem("s3", **options)
        filesystem.mkdir(BUCKET)
        made = cache(UPLOAD_BYTES // scale, 32 << 10)
        path = Path(folder) / "plain"
        ha.write_snapshot(path, made)
        yield from upload_results(filesystem, options, made, path, rounds)
        yield from read_results(filesystem, options, made, rounds)
        yield from sequence_results(filesystem, options, made, rounds)
        yield from exact_results(Path(folder), UPLOAD_BYTES // scale)


def upload_results(
    filesystem: fsspec.AbstractFileSystem,
    options: Mapping[str, object],
    made: list[ha.BlockPagedTensor],
    path: Path,
    rounds: int,
) -> Iterator[Measurement]:
    """Write a snapshot into S3, against both ways in which s3fs sends the same bytes in parallel."""
    data = path.read_bytes()
    url = f"s3://{BUCKET}/ours.arrow"

    def ours() -> None:
        ha.write_snapshot(url, made, storage_options=options, overwrite=True)

    def pipe() -> None:
        filesystem.pipe_file(f"{BUCKET}/peer", data)

    def put() -> None:
        filesystem.put_file(str(path), f"{BUCKET}/peer")

    what = f"upload {len(data) >> 20} MiB, hashed and indexed, to local S3"
    for peer, name in ((pipe, "s3fs pipe_file of the bytes"), (put, "s3fs put_file of the file")):
        ours_s, peer_s = alternate(ours, peer, rounds=rounds)
        yield Measurement(what, name, ours_s, peer_s, "speed ≥ 0.9")


def read_results(
    filesystem: fsspec.AbstractFileSystem, options: Mapping[str, object], made: list[ha.BlockPagedTensor], rounds: int
) -> Iterator[Measurement]:
    """Open it and read one of sixteen tensors, against fetching the whole object."""
    url = f"s3://{BUCKET}/ours.arrow"

    def ours() -> object:
        with ha.open_snapshot(url, storage_options=options) as snapshot:
            return snapshot.read(layer_index=len(made) - 1)

    def peer() -> object:
        return filesystem.cat_file(url)

    ours_s, peer_s = alternate(ours, peer, rounds=rounds)
    yield Measurement("open, list and read one of 16 tensors from local S3", "s3fs cat_file", ours_s, peer_s, "—")


def in_sequences(made: list[ha.BlockPagedTensor]) -> list[ha.BlockPagedTensor]:
    """Return the tensors with their pages dealt out to about a hundred sequences."""
    num_pages = made[0].num_pages
    pages = max(num_pages // 100, 1)
    tables = [list(range(start, min(start + pages, num_pages))) for start in range(0, num_pages, pages)]
    lengths = [len(table) * made[0].page_size for table in tables]
    return [
        ha.BlockPagedTensor.from_arrays(
            tensor.page_pool, block_tables=tables, seq_lens=lengths, kv_role="key", layer_index=tensor.layer_index
        )
        for tensor in made
    ]


def sequence_results(
    filesystem: fsspec.AbstractFileSystem, options: Mapping[str, object], made: list[ha.BlockPagedTensor], rounds: int
) -> Iterator[Measurement | Count]:
    """Restore one sequence in a hundred, its pages in sequence order, against reading the whole object."""
    url = f"s3://{BUCKET}/sequences.arrow"
    tensors = in_sequences(made)
    sequence = tensors[0].num_seqs // 2
    ha.write_snapshot(url, tensors, storage_options=options)

    def ours() -> ha.PartialRead:
        with ha.open_snapshot(url, storage_options=options) as snapshot:
            return snapshot.read_sequences(sequence)

    def peer() -> object:
        return filesystem.cat_file(url)

    ours_s, peer_s = alternate(ours, peer, rounds=rounds)
    fetched, total = ours().fetched, filesystem.size(url)
    what = f"restore one of {tensors[0].num_seqs} sequences of {total >> 20} MiB from local S3"
    yield Measurement(what, "s3fs cat_file of the object", ours_s, peer_s, "time ≤ 0.1")
    found = f"{fetched.requests} requests, {fetched.fetched_bytes / total:.4f} of its bytes"
    yield Count("… and what it fetched, all tensors", found, "≤ 0.02 of the bytes")


def exact_results(folder: Path, total_bytes: int) -> Iterator[Count]:
    """Fetch one sequence in a hundred with no gaps: its bytes, and what comes along with them."""
    for page_kib in (4, 32):
        path = folder / "exact.arrow"
        ha.write_snapshot(path, in_sequences(cache(total_bytes, page_kib << 10, tensors=4)), overwrite=True)
        with ha.open_snapshot(path, mapped=False) as snapshot:
            fetched = snapshot.read_sequences(50, gap_bytes=0).fetched
        what = f"one sequence, gap_bytes=0, 4 tensors, pages {page_kib} KiB: bytes"
        found = f"{fetched.fetched_bytes / fetched.needed_bytes:.3f} of its own, {fetched.requests} requests"
        yield Count(what, found, "≤ 1.05 of its own")
