"""The share profile: writing, opening, gathering, peak memory.

Run with ``python -m benchmarks share`` (``--quick`` for a sixteenth of the sizes).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate

GIB = 1 << 30
#: A RAM disk where there is one, so that the disk is not what is measured.
FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108, PTH112 - a RAM disk is the point


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield from write_results(Path(folder), scale, rounds)
        yield from open_results(Path(folder), scale, rounds)
        yield from memory_results(Path(folder), scale)
    yield from gather_results(scale, rounds)


def cache(total_bytes: int, page_bytes: int, *, tensors: int = 16) -> list[ha.BlockPagedTensor]:
    """Make bfloat16 tensors of random bits, one sequence over all pages."""
    num_pages = total_bytes // tensors // page_bytes
    head_dim = page_bytes // (16 * 2)
    rng = np.random.default_rng(1)
    made = []
    for layer in range(tensors):
        pool = rng.integers(0, 2**63, num_pages * page_bytes // 8, dtype=np.uint64).view(np.uint16)
        made.append(
            ha.BlockPagedTensor.from_arrays(
                pool.reshape(num_pages, 16, 1, head_dim),
                block_tables=[list(range(num_pages))],
                seq_lens=[num_pages * 16],
                element_type="bfloat16",
                kv_role="key",
                layer_index=layer,
            )
        )
    return made


def write_results(folder: Path, scale: int, rounds: int) -> Iterator[Measurement]:
    """Write 1 GiB with pages of 32 KiB and 2 KiB, against plain writes of the same buffers."""
    kinds = ((32 << 10, True, "≥ 0.8"), (2 << 10, True, "≥ 0.6"), (32 << 10, False, "≥ 0.95"))
    for page_bytes, checksums, target in kinds:
        for tensors in (16, 1):
            made = cache(GIB // scale, page_bytes, tensors=tensors)
            path, plain = folder / "ours.arrow", folder / "plain"

            def ours(made: list[ha.BlockPagedTensor] = made, path: Path = path, checksums: bool = checksums) -> None:  # noqa: FBT001
                path.unlink(missing_ok=True)
                ha.write_snapshot(path, made, checksums=checksums)

            def peer(made: list[ha.BlockPagedTensor] = made, plain: Path = plain) -> None:
                plain.unlink(missing_ok=True)
                with plain.open("wb", buffering=0) as file:
                    for tensor in made:
                        view = memoryview(tensor.buffers[0].data)
                        while view:
                            view = view[file.write(view) :]
                    os.fsync(file.fileno())

            ours_s, peer_s = alternate(ours, peer, rounds=rounds)
            what = f"write {GIB // scale >> 20} MiB, {tensors} tensors, pages {page_bytes >> 10} KiB"
            what = f"{what}, checksums {'on' if checksums else 'off'}"
            yield Measurement(what, "write() of the buffers", ours_s, peer_s, f"speed {target}")
            path.unlink()
            plain.unlink()


def open_results(folder: Path, scale: int, rounds: int) -> Iterator[Measurement]:
    """Open a snapshot of one tensor and read it, against pyarrow's bare mmap."""
    for total_bytes in (16 << 20, GIB // scale, 4 * GIB // scale):
        path = folder / "open.arrow"
        pool = np.zeros((total_bytes // (32 << 10), 16, 8, 128), np.uint16)
        num_pages = len(pool)
        tensor = ha.BlockPagedTensor.from_arrays(
            pool,
            block_tables=[list(range(num_pages))],
            seq_lens=[num_pages * 16],
            element_type="bfloat16",
            kv_role="key",
            layer_index=3,
        )
        ha.write_snapshot(path, [tensor], overwrite=True)

        def ours(path: Path = path) -> object:
            with ha.open_snapshot(path) as snapshot:
                return snapshot.read(layer_index=3, kv_role="key")

        def peer(path: Path = path) -> object:
            return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)

        ours_s, peer_s = alternate(ours, peer, rounds=rounds, repeat=50)
        what = f"open and read one tensor of {total_bytes >> 20} MiB"
        yield Measurement(what, "pyarrow open_file + get_batch", ours_s, peer_s, "time ≤ 10")
        path.unlink()


def gather_results(scale: int, rounds: int) -> Iterator[Measurement]:
    """Gather one sequence, pages of 32 KiB in no order, against numpy.take of the same pages."""
    num_pages = 8192 // scale
    rng = np.random.default_rng(2)
    pool = rng.integers(0, 2**16, (2 * num_pages, 16, 8, 128), dtype=np.uint16)
    pages = rng.permutation(2 * num_pages)[:num_pages].astype(np.uint32)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool,
        pages,
        np.array([0, num_pages], np.uint32),
        seq_lens=[num_pages * 16 - 5],
        element_type="bfloat16",
        kv_role="key",
        layer_index=0,
    )
    ours_s, peer_s = alternate(lambda: tensor.gather(0), lambda: np.take(pool, pages, axis=0), rounds=rounds)
    what = f"gather one sequence of {num_pages} pages of 32 KiB"
    yield Measurement(what, "numpy.take of the pages", ours_s, peer_s, "time ≤ 1.2")


_PEAK = """
import resource, sys
import numpy as np
import hurray_arrow as ha
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
path, total, write = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "write"
if write:
    pool = np.empty((total // 32768, 16, 8, 128), np.uint16)
    pool.reshape(-1)[:] = 7
    tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=[list(range(len(pool)))], seq_lens=[len(pool) * 16],
        element_type="bfloat16", kv_role="key", layer_index=0)
    before = peak()
    ha.write_snapshot(path, [tensor])
else:
    before = peak()
    with ha.open_snapshot(path) as snapshot:
        tensor = snapshot.read()
print(peak() - before)
"""


def memory_results(folder: Path, scale: int) -> Iterator[Count]:
    """Measure the peak of the resident set above what the input already takes, each in a process of its own."""
    total = 4 * GIB // scale
    path = folder / "peak.arrow"
    for what in ("write", "open"):
        command = [sys.executable, "-c", _PEAK, str(path), str(total), what]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        label = f"peak memory above the input: {what} {total >> 20} MiB"
        yield Count(label, f"{int(run.stdout) / 2**20:.1f} MiB", "< 200 MiB")
    path.unlink()
