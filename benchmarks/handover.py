"""Handing pages over: to another process, to another library.

Run with ``python -m benchmarks handover`` (``--quick`` for a sixteenth of the sizes).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from hurray_arrow import share

GIB = 1 << 30
PAGE_SHAPE = (16, 8, 128)
PAGE_BYTES = 16 * 8 * 128 * 2
#: Pages in the one sequence: all of the smallest tensor's, in a quick run.
TABLE_PAGES = 128

#: The other process: takes hand-overs, reads the first page of each and answers; or takes copies through a pipe.
PEER = """
import os, socket, sys
import numpy as np
from hurray_arrow import share
sock, pipe = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
kept = np.empty(0, np.uint8)
while order := sock.recv(9):
    if order[:1] == b"m":
        with share.receive(sock) as snapshot:
            page = snapshot.read().page_pool[0]
    else:
        size, done = int.from_bytes(order[1:], "little"), 0
        if kept.nbytes < size:
            del kept
            kept = np.zeros(size, np.uint8)
        while done < size:
            done += os.readv(pipe, [kept[done:size]])
        page = kept[:32768]
    sock.send(int(page.view(np.uint16).sum()).to_bytes(8, "little"))
    del page
"""


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    yield from process_results(scale, rounds)
    yield from fill_results(scale, rounds)
    yield from hurray_results(scale, rounds)
    yield from arrow_results(scale, rounds)


def spec(total_bytes: int) -> ha.BlockPagedTensor:
    """Describe a bfloat16 tensor; its table is the same at each size, so that pages are all that grows."""
    num_pages = total_bytes // PAGE_BYTES
    return share.tensor_spec(
        num_pages=num_pages,
        page_shape=PAGE_SHAPE,
        element_type="bfloat16",
        block_tables=[range(TABLE_PAGES)],
        seq_lens=[TABLE_PAGES * 16],
        kv_role="key",
        layer_index=3,
    )


def published(total_bytes: int) -> share.SealedSnapshot:
    """Return sealed memory with that many bytes of pages."""
    with share.allocate([spec(total_bytes)], checksums=False) as allocation:
        allocation.page_pool(0).view(np.uint16).reshape(-1)[:] = 0x3F80
        return allocation.seal()


# -- between processes -------------------------------------------------------------------------------------------------


class Peer:
    """A process that runs, and the two ways to it."""

    def __init__(self, *prefix: str) -> None:
        self.sock, theirs = socket.socketpair()
        read_end, self.pipe = os.pipe()
        command = [*prefix, sys.executable, "-c", PEER, str(theirs.fileno()), str(read_end)]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno(), read_end])
        theirs.close()
        os.close(read_end)

    def map(self, sealed: share.SealedSnapshot) -> None:
        """Hand sealed memory over, and wait until its first page was read."""
        self.sock.send(b"m" + bytes(8))
        sealed.send(self.sock)
        self.sock.recv(8)

    def copy(self, pages: memoryview) -> None:
        """Write pages through the pipe, and wait until the first was read."""
        self.sock.send(b"c" + len(pages).to_bytes(8, "little"))
        while pages:
            pages = pages[os.write(self.pipe, pages) :]
        self.sock.recv(8)

    def end(self) -> None:
        """Let the process end by itself."""
        self.sock.close()
        os.close(self.pipe)
        self.process.wait()


def process_results(scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Hand 16 MiB, 1 GiB and 4 GiB to a running process, against a copy through a pipe."""
    peer = Peer()
    for total_bytes in (16 << 20, GIB // scale, 4 * GIB // scale):
        with published(total_bytes) as sealed:
            pages = memoryview(sealed.open().read().buffers[0].data)

            def ours(sealed: share.SealedSnapshot = sealed) -> None:
                peer.map(sealed)

            def theirs(pages: memoryview = pages) -> None:
                peer.copy(pages)

            ours_s, peer_s = alternate(ours, theirs, rounds=rounds)
        what = f"hand {total_bytes >> 20} MiB to a running process, first page read"
        yield Measurement(what, "a copy through a pipe", ours_s, peer_s, "same time at each size")
    peer.end()
    if shutil.which("strace"):
        for total_bytes in (16 << 20, GIB // scale):
            found = f"{system_calls(total_bytes)} system calls in the receiver"
            yield Count(f"hand {total_bytes >> 20} MiB to a running process", found, "the same at each size")


def system_calls(total_bytes: int) -> int:
    """Count the receiver's system calls of one hand-over: what ten more take, divided by ten."""
    counts = []
    for hand_overs in (5, 15):
        with tempfile.TemporaryDirectory() as folder, published(total_bytes) as sealed:
            log = Path(folder) / "calls"
            peer = Peer("strace", "-f", "-qq", "-o", str(log))
            for _ in range(hand_overs):
                peer.map(sealed)
            peer.end()
            # Python's allocator and threads make some calls now and then; what is left is the hand-over's.
            ignored = ("futex", "brk", "madvise", "+++", "---", "resumed")
            lines = log.read_text().splitlines()
            counts.append(sum(not any(word in line for word in ignored) for line in lines))
    return round((counts[1] - counts[0]) / 10)


# -- fill in place -----------------------------------------------------------------------------------------------------


def fill_results(scale: int, rounds: int) -> Iterator[Measurement]:
    """Fill 1 GiB in place and seal it without checksums, against memcpy of the pages into plain shared memory."""
    wanted = spec(GIB // scale)
    source = np.full(wanted.buffers[0].nbytes, 7, np.uint8)

    def ours() -> None:
        with share.allocate([wanted], checksums=False) as allocation:
            np.copyto(allocation.page_pool(0).view(np.uint8).reshape(-1), source)
            allocation.seal().close()

    def peer() -> None:
        descriptor = os.memfd_create("peer")
        os.ftruncate(descriptor, source.nbytes)
        np.copyto(np.memmap(f"/proc/self/fd/{descriptor}", np.uint8, "r+"), source)
        os.close(descriptor)

    ours_s, peer_s = alternate(ours, peer, rounds=rounds)
    what = f"allocate, fill in place and seal {source.nbytes >> 20} MiB, no checksums"
    yield Measurement(what, "memcpy into new shared memory", ours_s, peer_s, "time ≤ 1.15")


# -- between libraries -------------------------------------------------------------------------------------------------


def hurray_results(scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Make ``hurray.Tensor`` of mapped pages, against pyhurray's own constructor from bytes."""
    import hurray

    for total_bytes in (16 << 20, GIB // scale):
        with published(total_bytes) as sealed:
            tensor = sealed.open().read()
        raw = [buffer.tobytes() for buffer in tensor.buffers]
        layout = hurray.BlockPagedLayout(
            page_size=tensor.page_size, num_pages=tensor.num_pages, paged_axis=0, num_seqs=1, layer_index=3
        )
        shape = list(tensor.descriptor.shape)

        def ours(tensor: ha.BlockPagedTensor = tensor) -> object:
            return hurray.from_hurray(tensor)

        def peer(raw: list[bytes] = raw, layout: Any = layout, shape: list[int] = shape) -> object:
            return hurray.Tensor(raw[0], hurray.bfloat16, shape, aux_buffers=raw[1:], layout=layout)

        ours_s, peer_s = alternate(ours, peer, rounds=rounds)
        what = f"our tensor of {total_bytes >> 20} MiB to hurray.Tensor"
        yield Measurement(what, "hurray.Tensor from bytes", ours_s, peer_s, "time independent of size")
        yield Count(what, f"{allocated(ours)} page bytes copied", "0")


def arrow_results(scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Send rows into other libraries and take them back, against a copy of the pages."""
    import arro3.core
    import duckdb
    import polars as pl

    with published(GIB // scale) as sealed:
        snapshot = sealed.open()
    pages = snapshot.read().buffers[0]
    duckdb.execute("set enable_progress_bar = false")
    tools: dict[str, Callable[[], object]] = {
        "Polars": lambda: pl.DataFrame(snapshot),
        "arro3": lambda: arro3.core.Table.from_arrow(snapshot),
        "DuckDB": lambda: duckdb.from_arrow(snapshot).to_arrow_table(),
    }
    for name, into in tools.items():

        def ours(into: Callable[[], object] = into) -> object:
            return ha.from_arrow(into())

        copies = name == "DuckDB"
        ours_s, peer_s = alternate(ours, pages.copy, rounds=1 if copies else rounds)
        what = f"rows of {pages.nbytes >> 20} MiB into {name} and back"
        yield Measurement(what, "a copy of the pages", ours_s, peer_s, "documented copy" if copies else "no copy")
        found = ha.from_arrow(into())[0].page_pool
        shared = np.shares_memory(found, pages)
        yield Count(what, f"pages {'are the mapped ones' if shared else 'were copied'}", "as documented")
        del found


def allocated(work: Callable[[], object]) -> int:
    """Return how many bytes of whole pages Python, Arrow and the process itself took for something."""
    kept = work()
    del kept
    arrow, anonymous = pa.total_allocated_bytes(), _anonymous_bytes()
    tracemalloc.start()
    kept = work()
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    taken: int = max(python, pa.total_allocated_bytes() - arrow, _anonymous_bytes() - anonymous)
    del kept
    return taken // (8 << 20) * (8 << 20)


def _anonymous_bytes() -> int:
    kibibytes: str = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]
    return int(kibibytes) * 1024
