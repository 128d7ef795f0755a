"""What every target holds the library to: errors of its own only, little memory, little time.

Memory is what the process really takes (Linux keeps its peak, and resets it when asked) and what Arrow was asked for;
an input may cost its own size and 64 MiB. Time is the processor's, so that a busy machine fails nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from hurray_arrow import BlockPagedTensor, HurrayArrowError
from hurray_arrow.errors import ProblemCode

T = TypeVar("T")

FREE_BYTES = 64 << 20
#: Inputs are a few KiB; the slowest takes a tenth of a second.
SECONDS = 5.0
#: A message is read by people.
MAX_MESSAGE_CHARACTERS = 50_000
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class BrokenPromiseError(AssertionError):
    """The library did what it must not do."""


@contextmanager
def bounded(size_bytes: int) -> Iterator[None]:
    """Hold what is done inside to memory and time; ``size_bytes`` is the input's own size."""
    allowed = size_bytes + FREE_BYTES
    pool = pa.default_memory_pool()
    _CLEAR.write_bytes(b"5")
    before, arrow_before, asked_before = _peak_bytes(), pool.bytes_allocated(), pool.max_memory()
    started = time.process_time()
    try:
        yield
    finally:
        seconds, taken = time.process_time() - started, _peak_bytes() - before
        asked = pool.max_memory() - arrow_before if pool.max_memory() > asked_before else 0
        if seconds > SECONDS:
            raise BrokenPromiseError(f"{seconds:.1f} s for an input of {size_bytes} bytes")
        if max(taken, asked) > allowed:
            message = f"{taken} bytes taken, {asked} asked of Arrow, for an input of {size_bytes}"
            raise BrokenPromiseError(message)


def _peak_bytes() -> int:
    status = _STATUS.read_bytes()
    start = status.index(b"VmHWM:") + 6
    return int(status[start : status.index(b"kB", start)]) << 10


def refused(call: Callable[[], T], *also: type[Exception]) -> T | None:
    """Return what a call gives; ``None`` where it raises one of the library's own errors, or of ``also``."""
    try:
        return call()
    except HurrayArrowError as error:
        check_error(error)
    except also:
        pass
    return None


def check_error(error: HurrayArrowError) -> None:
    """Hold an error to be of use: a message that can be read, codes of the closed set."""
    message = str(error)
    if not message or len(message) > MAX_MESSAGE_CHARACTERS:
        raise BrokenPromiseError(f"a message of {len(message)} characters: {message[:200]!r}")
    for problem in getattr(error, "problems", ()):
        ProblemCode(problem.code)


def promise(holds: object, what: str) -> None:
    """Fail where a promise is broken."""
    if not holds:
        raise BrokenPromiseError(what)


def look_at_values(tensor: BlockPagedTensor) -> None:
    """Gather and dequantize: as many rows as tokens, of whatever is in the pool and in the scheme's buffers."""
    for seq in range(min(tensor.num_seqs, 5)):
        tokens = refused(lambda seq=seq: tensor.token_count(seq))
        for call in (tensor.gather, tensor.dequantize):
            values = refused(lambda call=call, seq=seq: call(seq))
            promise(values is None or tokens in (None, len(values)), "as many rows as tokens")
    promise(refused(lambda: tensor.values_of_pages([tensor.num_pages])) is None, "a page behind the last")
    element, pool = tensor.element_type, tensor.buffers[0]
    promise(refused(lambda: element.unpack(pool, 2**40), IndexError) is None, "elements behind the pool")
    refused(lambda: element.unpack_at(pool, np.array([-1])), IndexError)
    pages = refused(lambda: tensor.values_of_pages([0] if tensor.num_pages else []))
    numbers = refused(lambda: tensor.dequantize_pages([0] if tensor.num_pages else []))
    promise(pages is None or numbers is None or pages.shape == numbers.shape, "a page of other numbers")
