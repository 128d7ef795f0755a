"""Run many cases in child processes, so that a crash, a hang or a huge allocation is a failure that names its case."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import resource
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: What a child may allocate above what it has after warming up.
FREE_BYTES = 64 << 20
_NOT_STARTED = 2**64 - 1


def limit_memory(file_bytes: int) -> None:
    """Refuse this process more than ``file_bytes`` + 64 MiB of new address space."""
    used = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + file_bytes + FREE_BYTES, resource.RLIM_INFINITY))


def run_cases(
    work: Callable[[Any, Sequence[Any], Callable[[int], None]], Any],
    argument: Any,
    cases: Sequence[Any],
    *,
    timeout_seconds: float,
    processes: int | None = None,
) -> list[Any]:
    """Return what ``work(argument, share, started)`` gives for each child's share of the cases.

    ``work`` calls ``started(n)`` before the n-th case of its share, and is importable by name.

    Raises
    ------
    AssertionError
        A child died or did not end in time; names the case.
    """
    processes = min(processes or min(os.cpu_count() or 1, 2), len(cases))
    context = multiprocessing.get_context("spawn")
    shares = [cases[child::processes] for child in range(processes)]
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(child)) for child in range(processes)]
        children = []
        for share, place in zip(shares, places, strict=True):
            place.write_bytes(struct.pack("<Q", _NOT_STARTED))
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(work, argument, share, place, sender))
            child.start()
            sender.close()
            children.append((child, receiver, share, place))
        return [_result(*each, timeout_seconds=timeout_seconds) for each in children]


def _result(child: Any, receiver: Any, share: Sequence[Any], place: Path, *, timeout_seconds: float) -> Any:
    try:
        if not receiver.poll(timeout_seconds):
            raise AssertionError(f"no end after {timeout_seconds} s, at case {_case(share, place)}")
        try:
            failure, value = receiver.recv()
        except EOFError:
            child.join()
            raise AssertionError(f"exit code {child.exitcode} at case {_case(share, place)}") from None
        assert failure is None, f"case {_case(share, place)}: {failure}"
        return value
    finally:
        child.kill()
        child.join()


def _case(share: Sequence[Any], place: Path) -> Any:
    (number,) = struct.unpack("<Q", place.read_bytes())
    return "none yet" if number == _NOT_STARTED else share[number]


def _child(work: Any, argument: Any, share: Sequence[Any], place: Path, sender: Any) -> None:
    with place.open("r+b") as file:
        number = mmap.mmap(file.fileno(), 8)

    def started(n: int) -> None:
        number[:] = struct.pack("<Q", n)

    try:
        sender.send((None, work(argument, share, started)))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reports it with the case
        sender.send((f"{type(error).__name__}: {error}", None))
