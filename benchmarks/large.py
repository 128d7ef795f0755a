"""A hundred gigabytes: written into a sink that counts, and read in part from a server that makes the bytes up.

Run with ``python -m benchmarks large`` (``make test-big``; ``--quick`` for a sixteenth of the sizes). Each line is one
process of its own, and says what its memory was at most. ``tests/large/test_large.py`` runs the same with 4 GB.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hurray_arrow as ha
from benchmarks.measure import Count
from hurray_arrow.snapshot.row_source import sparse_memory

GB = 10**9
#: bfloat16 pages of 64 KiB.
PAGE_SHAPE = (16, 16, 128)
PAGE_BYTES = 64 << 10
POOL_PAGES = 1024
#: Every so manieth page belongs to a sequence that is read by itself.
EVERY = 97
LIMIT_BYTES = 1 << 30

Bytes = npt.NDArray[np.uint8]
#: Gives the bytes of a range of the pages that were written: tensor, first byte, number of bytes.
MakeUp = Callable[[int, int, int], Bytes]


class CountingSink:
    """An output that keeps what is small, and of pages only where they would lie.

    Parameters
    ----------
    pool
        The memory of the pages; what comes from there is counted and not looked at.
    """

    path = "counted"

    def __init__(self, pool: Bytes) -> None:
        self.position = 0
        self.page_bytes = 0
        #: Start of every part; the bytes, or the tensor and the place in its pages.
        self.starts: list[int] = []
        self.parts: list[bytes | tuple[int, int]] = []
        self.published = False
        self._first, self._end = pool.ctypes.data, pool.ctypes.data + pool.nbytes
        self._tensor, self._in_tensor = -1, 0

    def write(self, data: Any, /) -> int:
        """Take all of the bytes."""
        view = memoryview(data).cast("B")
        address = np.frombuffer(view, np.uint8).ctypes.data if len(view) else 0
        self.starts.append(self.position)
        if self._first <= address < self._end:
            if address == self._first:
                self._tensor, self._in_tensor = self._tensor + 1, 0
            self.parts.append((self._tensor, self._in_tensor))
            self._in_tensor += len(view)
            self.page_bytes += len(view)
        else:
            self.parts.append(bytes(view))
        self.position += len(view)
        return len(view)

    def publish(self) -> None:
        """Note that the snapshot is complete."""
        self.published = True

    def discard(self) -> None:
        """Do nothing."""

    def read(self, start: int, stop: int, make_up: MakeUp) -> bytearray:
        """Return a range: what is small as it was written, pages made up anew."""
        found = bytearray()
        number = bisect.bisect_right(self.starts, start) - 1
        while start < stop:
            part, first = self.parts[number], self.starts[number]
            end = self.starts[number + 1] if number + 1 < len(self.starts) else self.position
            upto = min(stop, end)
            if isinstance(part, bytes):
                found += part[start - first : upto - first]
            else:
                found += make_up(part[0], part[1] + start - first, upto - start).data
            start, number = upto, number + 1
        return found


@contextlib.contextmanager
def serving(sink: CountingSink, make_up: MakeUp) -> Iterator[tuple[str, list[int]]]:
    """Serve what a sink took over HTTP on loopback; gives the URL, and the bytes of every answer."""
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"])
            first, last = match.groups() if match else ("", "")
            start = int(first) if first else max(0, sink.position - int(last))
            stop = min(sink.position, int(last) + 1) if first else sink.position
            body = sink.read(start, stop, make_up)
            answers.append(len(body))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{sink.position}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"made-up"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the signature is http.server's
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/large.arrow", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stamped(pool: Bytes, tensor: int, start: int, size: int) -> Bytes:
    """Return a range of a tensor's pages: the pool's, the first eight bytes of each page being the tensor's number."""
    first, last = start // PAGE_BYTES, -(-(start + size) // PAGE_BYTES)
    pages = pool.reshape(-1, PAGE_BYTES)[first:last].copy()
    pages[:, :8] = np.frombuffer(tensor.to_bytes(8, "little"), np.uint8)
    found: Bytes = pages.reshape(-1)[start - first * PAGE_BYTES :][:size]
    return found


def write_layers(total_bytes: int) -> tuple[CountingSink, Bytes]:
    """Write many layers whose pages lie in the same memory one after the other, as an engine that reuses a buffer."""
    return _write_layers(total_bytes, np.random.default_rng(1).integers(0, 256, POOL_PAGES * PAGE_BYTES, np.uint8))


def write_archive(total_bytes: int) -> tuple[CountingSink, Bytes]:
    """Write layers as an archive, of pages that compress a thousand times: what is compressed is kept."""
    pool = np.repeat(np.arange(2 * POOL_PAGES).astype(np.uint8), PAGE_BYTES // 2)
    return _write_layers(total_bytes, pool, profile="archive", encoding="byte_planes")


def _write_layers(
    total_bytes: int, pool: Bytes, *, profile: str = "share", encoding: str = "plain"
) -> tuple[CountingSink, Bytes]:
    sink = CountingSink(pool)
    layers = -(-total_bytes // pool.nbytes)
    ours = np.arange(5, POOL_PAGES, EVERY)
    others = np.setdiff1d(np.arange(POOL_PAGES), ours)
    tensor = _tensor(pool, [others, ours], layer_index=0)
    with ha.SnapshotWriter(sink, plan=ha.SchemaPlan.of([tensor], encoding=encoding), profile=profile) as writer:
        for layer in range(layers):
            pool.reshape(-1, PAGE_BYTES)[:, :8] = np.frombuffer(layer.to_bytes(8, "little"), np.uint8)
            writer.write(_tensor(pool, [others, ours], layer_index=layer))
    return sink, pool


def write_one(total_bytes: int) -> tuple[CountingSink, Bytes]:
    """Write one tensor over memory that takes no room: its pages are zeros that nobody has written."""
    num_pages = -(-total_bytes // PAGE_BYTES)
    pool = sparse_memory(num_pages * PAGE_BYTES)
    ours = np.arange(5, num_pages, num_pages // 11)
    others = np.setdiff1d(np.arange(num_pages), ours)
    sink = CountingSink(pool)
    ha.write_snapshot(sink, [_tensor(pool, [others, ours], layer_index=0)])
    return sink, pool


def _tensor(pool: Bytes, tables: list[npt.NDArray[Any]], *, layer_index: int) -> ha.BlockPagedTensor:
    return ha.BlockPagedTensor.from_arrays(
        pool,
        block_tables=tables,
        seq_lens=[len(table) * PAGE_SHAPE[0] for table in tables],
        num_pages=pool.nbytes // PAGE_BYTES,
        page_shape=PAGE_SHAPE,
        element_type="bfloat16",
        kv_role="key",
        layer_index=layer_index,
    )


def write(total_bytes: int, kind: str) -> dict[str, Any]:
    """Write, and say what was written."""
    sink, _ = _WRITERS[kind](total_bytes)
    return {"file_bytes": sink.position, "published": sink.published}


def read(total_bytes: int, kind: str) -> dict[str, Any]:
    """Write, then read a sequence of the last tensor from a server; say what was asked for and whether it is right."""
    sink, pool = _WRITERS[kind](total_bytes)

    def make_up(tensor: int, start: int, size: int) -> Bytes:
        return np.zeros(size, np.uint8) if kind == "one" else stamped(pool, tensor, start, size)

    with serving(sink, make_up) as (url, answers), ha.open_snapshot(url) as snapshot:
        last = snapshot.entries[-1]
        part = snapshot.read_sequences(1, layer_index=last.layer_index)
        [tensor] = part.tensors
        pages = np.arange(5, last.num_pages, last.num_pages // 11 if kind == "one" else EVERY)
        wanted = [make_up(last.tensor_index, page * PAGE_BYTES, PAGE_BYTES) for page in pages.tolist()]
        right = np.array_equal(tensor.buffers[0], np.concatenate(wanted))
    counts = {"requests": len(answers), "fetched_bytes": sum(answers), "needed_bytes": part.fetched.needed_bytes}
    return {**counts, "file_bytes": sink.position, "tensors": len(snapshot.entries), "right": right}


_WRITERS = {"layers": write_layers, "one": write_one, "archive": write_archive}
_WORKS = {"write": write, "read": read}


def peak_bytes() -> int:
    """Return the most memory that this process has had: resident, the interpreter and all libraries included."""
    status = Path("/proc/self/status")
    if status.exists():
        # Of this program only; what getrusage says may be of the process that started it.
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) << 10
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_a_process(work: str, kind: str, total_bytes: int) -> dict[str, Any]:
    """Run one of the works in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.large", work, kind, str(total_bytes)]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def results(*, scale: int, rounds: int) -> Iterator[Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    del rounds
    kinds = (("layers", "layers of 64 MiB", 100), ("one", "one tensor", 100), ("archive", "layers as an archive", 10))
    for kind, name, gigabytes in kinds:
        for work in _WORKS:
            found = in_a_process(work, kind, gigabytes * GB // scale)
            verb = {"write": "write into a counting sink", "read": "write, read one sequence by HTTP"}[work]
            what = f"{verb}: {gigabytes / scale:.1f} GB, {name}"
            line = f"{found['peak_bytes'] >> 20} MiB at most, {found['seconds']:.0f} s"
            if work == "read":
                line += f", {found['requests']} requests, {found['fetched_bytes'] / 1e6:.1f} MB"
            yield Count(what, line, f"memory < {LIMIT_BYTES >> 20} MiB")


if __name__ == "__main__":
    start = time.perf_counter()
    report = _WORKS[sys.argv[1]](int(sys.argv[3]), sys.argv[2])
    print(json.dumps({**report, "seconds": time.perf_counter() - start, "peak_bytes": peak_bytes()}))
