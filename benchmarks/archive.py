"""The archive profile: size, speed of writing and reading, peak memory.

Run with ``python -m benchmarks archive``; ``HURRAY_BENCH_CACHE`` names another cache than the one the repository ships.
ZipNN is measured in its environment where there is one: ``make bench-peers`` makes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from benchmarks.peers import environments

MIB = 1 << 20
FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108, PTH112 - a RAM disk is the point
SAMPLE = Path(__file__).parent.parent / "examples" / "data" / "smollm2_small.npz"
ZIPNN_PYTHON = environments.FOLDER / "zipnn" / "bin" / "python"
ROW_BYTES = 8 << 20


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    with np.load(os.environ.get("HURRAY_BENCH_CACHE", SAMPLE)) as cache:
        arrays = {name: cache[name] for name in cache.files}
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield from size_results(Path(folder), arrays)
        yield from speed_results(Path(folder), arrays, scale, rounds)
        yield from memory_results(Path(folder), scale)


def tensors_of(arrays: dict[str, Any], *, element_type: str = "bfloat16") -> list[ha.BlockPagedTensor]:
    """Make the cache's tensors: every layer's keys and values over one set of tables."""
    return [
        ha.BlockPagedTensor.from_arrays(
            pool[layer],
            arrays["block_table"],
            arrays["seq_ptr"],
            seq_lens=arrays["seq_lens"],
            element_type=element_type,
            kv_role=role,
            layer_index=layer,
        )
        for layer in range(len(arrays["key_pool"]))
        for role, pool in (("key", arrays["key_pool"]), ("value", arrays["value_pool"]))
    ]


def size_results(folder: Path, arrays: dict[str, Any]) -> Iterator[Count]:
    """Compare the archive's size with the raw pages and with ZipNN's, sanitized and as they are."""
    from hurray_arrow import ops

    tensors = tensors_of(arrays)
    path = folder / "size.arrow"
    for what, made in (
        ("sanitized", [ops.sanitize(tensor) for tensor in tensors]),
        ("referenced pages as they are", [ops.compact(tensor) for tensor in tensors]),
    ):
        raw = sum(tensor.buffers[0].nbytes for tensor in made)
        ha.write_snapshot(path, made, profile="archive", overwrite=True)
        pages = np.concatenate([tensor.buffers[0] for tensor in made])
        zipnn = ZipNN(folder, pages) if ZIPNN_PYTHON.exists() else None
        peer = f", ZipNN {zipnn.size() / raw:.4f}" if zipnn else ""
        yield Count(
            f"archive of {raw / MIB:.1f} MiB, {what}", f"{path.stat().st_size / raw:.4f} of raw{peer}", "≤ 0.68, ≤ 0.70"
        )
        if zipnn:
            zipnn.close()
    path.unlink()
    yield float8_result(folder, arrays)


def float8_result(folder: Path, arrays: dict[str, Any]) -> Count:
    """State the size of the same cache in float8, as engines keep it: its numbers, rounded, sanitized."""
    from hurray_arrow import ops

    as_float8 = arrays | {name: rounded(arrays[name]) for name in ("key_pool", "value_pool")}
    made = [ops.sanitize(tensor) for tensor in tensors_of(as_float8, element_type="float8_e4m3")]
    path, raw = folder / "float8.arrow", sum(tensor.buffers[0].nbytes for tensor in made)
    ha.write_snapshot(path, made, profile="archive")
    found = f"{path.stat().st_size / raw:.4f} of raw"
    path.unlink()
    return Count(f"… the same as float8_e4m3, {raw / MIB:.1f} MiB, sanitized", found, "—")


def rounded(pool: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bfloat16 numbers as float8_e4m3, those beyond its range as the last within."""
    kind, most = ml_dtypes.float8_e4m3fn, 448.0
    # Slots behind the last token may hold anything, such as NaN.
    with np.errstate(invalid="ignore"):
        numbers: npt.NDArray[Any] = np.clip(pool.view(ml_dtypes.bfloat16).astype(np.float32), -most, most).astype(kind)
    return numbers


def speed_results(folder: Path, arrays: dict[str, Any], scale: int, rounds: int) -> Iterator[Measurement]:
    """Write and read 512 MiB, against pyarrow's own zstd and ZipNN."""
    tensors = large_tensors(arrays, 512 * MIB // scale)
    path = folder / "speed.arrow"
    pages = np.concatenate([tensor.buffers[0] for tensor in tensors])
    size = f"{pages.nbytes // MIB} MiB of bfloat16"

    def write() -> None:
        ha.write_snapshot(InMemory(), tensors, profile="archive")

    ha.write_snapshot(path, tensors, profile="archive", overwrite=True)

    def read() -> None:
        with ha.open_snapshot(path) as snapshot:
            for _ in snapshot.iter_tensors():
                pass

    encoded = interleaved(pages)
    ours_s, peer_s = alternate(write, lambda: interleaved(pages), rounds=rounds)
    yield Measurement(
        f"archive write, {size}, into memory", "pyarrow IPC zstd 1, interleaved", ours_s, peer_s, "speed ≥ 1.0"
    )
    ours_s, peer_s = alternate(read, lambda: joined(encoded, pages.nbytes), rounds=rounds)
    yield Measurement(
        f"archive read, {size}, into the pools", "pyarrow IPC zstd 1, interleaved", ours_s, peer_s, "speed ≥ 1.0"
    )
    if ZIPNN_PYTHON.exists():
        zipnn = ZipNN(folder, pages)
        ours_s, peer_s = alternate(write, zipnn.compress, rounds=rounds)
        yield Measurement(f"archive write, {size}", "ZipNN, as many threads", ours_s, peer_s, "speed ≥ 0.8")
        ours_s, peer_s = alternate(read, zipnn.decompress, rounds=rounds)
        yield Measurement(f"archive read, {size}", "ZipNN, as many threads", ours_s, peer_s, "speed ≥ 0.5")
        zipnn.close()
    path.unlink()


class InMemory:
    """An output in memory, the same as pyarrow's writer gets."""

    path = "memory"

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self.position = 0

    def write(self, data: Any) -> int:
        """Take all of the bytes."""
        self._sink.write(data)
        self.position += len(data)
        return len(data)

    def publish(self) -> None:
        """Make one buffer of it."""
        self._sink.getvalue()

    def discard(self) -> None:
        """Let it go."""


def large_tensors(arrays: dict[str, Any], total_bytes: int, *, tensors: int = 4) -> list[ha.BlockPagedTensor]:
    """Make tensors of many pages out of the cache's referenced pages, repeated far apart."""
    referenced = np.unique(arrays["block_table"])
    pages = np.concatenate([arrays["key_pool"][:, referenced], arrays["value_pool"][:, referenced]])
    pages = pages.reshape(-1, *pages.shape[2:])
    num_pages = total_bytes // tensors // pages[0].nbytes
    pool = pages[np.arange(num_pages) % len(pages)]
    return [
        ha.BlockPagedTensor.from_arrays(
            pool,
            block_tables=[list(range(num_pages))],
            seq_lens=[num_pages * pool.shape[1]],
            element_type="bfloat16",
            kv_role="key",
            layer_index=layer,
        )
        for layer in range(tensors)
    ]


def interleaved(pages: npt.NDArray[np.uint8]) -> pa.Buffer:
    """Write the same bytes as plain uint16 rows of 8 MiB with Arrow's zstd level 1 and its threads."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("pages", pa.uint16())])
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=True)
    values = pages.view(np.uint16)
    step = ROW_BYTES // 2
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start in range(0, len(values), step):
            writer.write_batch(pa.record_batch([pa.array(values[start : start + step])], schema=schema))
    return sink.getvalue()


def joined(encoded: pa.Buffer, total_bytes: int) -> npt.NDArray[np.uint8]:
    """Read those rows into one pool."""
    pool = np.empty(total_bytes // 2, np.uint16)
    reader = pa.ipc.open_file(encoded)
    end = 0
    for number in range(reader.num_record_batches):
        values = reader.get_batch(number).column(0).to_numpy()
        pool[end : end + len(values)] = values
        end += len(values)
    return pool.view(np.uint8)


_ZIPNN = """
import os, sys
import numpy as np
from zipnn import ZipNN
data = np.fromfile(sys.argv[1], np.uint8).tobytes()
codec = ZipNN(method="huffman", bytearray_dtype="bfloat16", input_format="byte", threads=os.cpu_count())
encoded = codec.compress(bytearray(data))
for line in sys.stdin:
    if line.strip() == "compress":
        codec.compress(bytearray(data))
    elif line.strip() == "decompress":
        codec.decompress(encoded)
    print(len(encoded), flush=True)
"""


class ZipNN:
    """ZipNN in a process of its own; a call returns when its work is done."""

    def __init__(self, folder: Path, pages: npt.NDArray[np.uint8]) -> None:
        self._data = folder / "zipnn.bin"
        pages.tofile(self._data)
        self._process = subprocess.Popen(
            [ZIPNN_PYTHON, "-W", "ignore", "-c", _ZIPNN, self._data],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, what: str) -> int:
        print(what, file=self._process.stdin, flush=True)
        return int(next(iter(self._process.stdout or ())))

    def size(self) -> int:
        """Return the bytes that ZipNN makes of the pages."""
        return self._ask("size")

    def compress(self) -> int:
        """Compress the pages once."""
        return self._ask("compress")

    def decompress(self) -> int:
        """Decompress them once."""
        return self._ask("decompress")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._data.unlink()


_PEAK = """
import resource, sys
import numpy as np
import hurray_arrow as ha
path, total = sys.argv[1], int(sys.argv[2])
pool = np.random.default_rng(1).integers(0, 2**63, total // 8, dtype=np.uint64).view(np.uint16).reshape(-1, 16, 8, 128)
tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=[list(range(len(pool)))], seq_lens=[len(pool) * 16],
    element_type="bfloat16", kv_role="key", layer_index=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ha.write_snapshot(path, [tensor], profile="archive")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def memory_results(folder: Path, scale: int) -> Iterator[Count]:
    """Measure the peak of the resident set above the input while 4 GiB are archived."""
    total = 4096 * MIB // scale
    command = [sys.executable, "-c", _PEAK, str(folder / "peak.arrow"), str(total)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    yield Count(
        f"peak memory above the input: archive {total // MIB} MiB", f"{int(run.stdout) / MIB:.1f} MiB", "< 512 MiB"
    )
