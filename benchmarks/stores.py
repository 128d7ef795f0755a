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
from benchmarks.measure import Measurement, alternate
from benchmarks.share import FOLDER, cache
from tests.stores.servers import BUCKET, KEY, SECRET, weed

UPLOAD_BYTES = 512 << 20


def results(*, scale: int, rounds: int) -> Iterator[Measurement]:
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
