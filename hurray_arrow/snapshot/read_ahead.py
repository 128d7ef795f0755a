"""Read several tensors at the same time, in order, in bounded memory: a store answers many requests as fast as one.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.tensor import BlockPagedTensor

#: Tensors that are read at the same time, and the bytes of all that nobody has taken yet; one may be larger.
MOST_TENSORS = 6
MOST_BYTES = 256 << 20


def read_ahead(entries: Sequence[Entry], read: Callable[[Entry], BlockPagedTensor]) -> Iterator[BlockPagedTensor]:
    """Yield the tensors of these entries in order, while those that follow are being read.

    Parameters
    ----------
    entries
        What is wanted.
    read
        Reads one tensor; called from several threads.

    Returns
    -------
    iterator of BlockPagedTensor
        An error of a tensor is raised in its turn. Leaving off ends what was begun and begins nothing more.
    """
    remaining = deque(entries)
    under_way: deque[tuple[int, Future[BlockPagedTensor]]] = deque()
    pool = ThreadPoolExecutor(MOST_TENSORS, "hurray-arrow-ahead")
    try:
        while remaining or under_way:
            while remaining and _has_room(under_way, remaining[0]):
                entry = remaining.popleft()
                under_way.append((_held_bytes(entry), pool.submit(read, entry)))
            yield under_way.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _has_room(under_way: deque[tuple[int, Future[BlockPagedTensor]]], entry: Entry) -> bool:
    held = sum(held_bytes for held_bytes, _ in under_way)
    return not under_way or (len(under_way) < MOST_TENSORS and held + _held_bytes(entry) <= MOST_BYTES)


def _held_bytes(entry: Entry) -> int:
    """Return what a tensor takes: an archive of zeros is nothing in the file, and as large as any in memory."""
    element = ELEMENT_TYPES.get(entry.element_type)
    # How wide a private type is only the descriptor says.
    decoded = 0 if element is None else element.size_bytes(entry.num_pages * math.prod(entry.page_shape))
    return max(entry.stored_bytes, decoded)
