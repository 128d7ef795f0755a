"""Copies between an engine's strided pages and dense ones.

Keys and values of a page lie side by side in most engines, so all parts of a layer are copied a few pages at a time,
while these are in the processor's cache; and what is dense on both sides is copied as one element. No index or product
is narrower than 64 bits: ids are int64 and places are numpy's own intp.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from hurray_arrow.engines.arrays import Int64Array, Words

#: Bytes that are copied of all parts together before the next pages: a part of any processor's second cache.
_CHUNK_BYTES = 1 << 20
#: Below this a thread costs more than it brings.
_THREADED_BYTES = 1 << 23
#: numpy keeps the size of an element in a C int.
_MAX_ELEMENT_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies that are still to be made, in any order, a few pages each, and the bytes of all together."""

    steps: Sequence[Callable[[], None]]
    num_bytes: int

    def run(self) -> None:
        """Make them; much of it on two threads, for one does not fill the memory's bandwidth."""
        # Both threads take from it in turn; an iterator over a list is safe to share.
        steps = iter(self.steps)

        def copy() -> None:
            for step in steps:
                step()

        if self.num_bytes < _THREADED_BYTES:
            copy()
            return
        # Both threads are done before an error is raised: nothing is written behind the caller's back.
        with ThreadPoolExecutor(1, "hurray-arrow-pages") as pool:
            other = pool.submit(copy)
            copy()
            other.result()


def reading_pages(pairs: Sequence[tuple[Words, Words]], *, page_ids: Int64Array | None = None) -> Copies:
    """Give the copies of pages out of an engine's memory.

    Parameters
    ----------
    pairs
        Of each part of a layer ``[num_pages, page_size, num_heads, words]``, strided, and where to:
        ``[n, page_size, num_heads, words]`` of the same dtype, which may be strided too.
    page_ids
        ``[n]`` pages of the pool, already checked; ``None`` for all in order.
    """
    merged = [_merged(pages, out) for pages, out in pairs]

    def read(start: int, stop: int) -> None:
        for pages, out in merged:
            into = out[start:stop]
            if page_ids is None:
                np.copyto(into, pages[start:stop])
            elif pages.flags.c_contiguous and out.flags.c_contiguous:
                # Only with a mode other than "raise" does numpy write into `out` without a buffer of its size.
                np.take(pages, page_ids[start:stop], axis=0, out=into, mode="clip")
            else:
                # numpy.take would copy the whole strided pool first.
                for first, last in runs(page_ids[start:stop]):
                    page = int(page_ids[start + first])
                    np.copyto(into[first:last], pages[page : page + last - first])

    return _by_chunks(read, pairs[0][1].shape[0], pairs)


def writing_pages(pairs: Sequence[tuple[Words, Words]], *, page_ids: Int64Array, source_ids: Int64Array) -> Copies:
    """Give the copies of whole pages into an engine's memory, and of nothing beside them.

    Parameters
    ----------
    pairs
        Of each part of a layer ``[num_pages, page_size, num_heads, words]``, strided and writable, and where from:
        ``[n, page_size, num_heads, words]`` of the same dtype, in other memory.
    page_ids, source_ids
        Where each page goes, and where it comes from; already checked, ``page_ids`` distinct.
    """
    merged = [_merged(*_in_order(pages, source)) for pages, source in pairs]
    bounds = list(runs(source_ids))

    def write(start: int, stop: int) -> None:
        # numpy.take of the source would copy it first.
        place = bisect.bisect_right(bounds, start, key=operator.itemgetter(0)) - 1
        while start < stop:
            last = min(bounds[place][1], stop)
            page = int(source_ids[start])
            for pages, source in merged:
                pages[page_ids[start:last]] = source[page : page + last - start]
            start, place = last, place + 1

    return _by_chunks(write, page_ids.size, pairs)


def runs(ids: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each run of ids that follow each other."""
    if ids.size:
        cuts = np.flatnonzero(np.diff(ids) != 1) + 1
        bounds = [0, *cuts.tolist(), ids.size]
        yield from itertools.pairwise(bounds)


def _by_chunks(copy: Callable[[int, int], None], count: int, pairs: Sequence[tuple[Words, Words]]) -> Copies:
    page_bytes = sum(int(np.prod(pages.shape[1:])) * pages.itemsize for pages, _ in pairs)
    step = max(1, _CHUNK_BYTES // max(1, page_bytes))
    starts = range(0, count, step)
    return Copies([partial(copy, start, min(start + step, count)) for start in starts], count * page_bytes)


def _in_order(into: Words, source: Words) -> tuple[Words, Words]:
    """Turn the axes behind the first so that memory is written in its order; numpy would write in that of the axes."""
    axes = (0, *sorted(range(1, into.ndim), key=lambda axis: -into.strides[axis]))
    return into.transpose(axes), source.transpose(axes)


def _merged(one: Words, other: Words) -> tuple[Words, Words]:
    """See the innermost axes that are dense in both arrays, and as long, as one element."""
    dense, axis = one.itemsize, one.ndim
    while axis > 1:
        size, fits = one.shape[axis - 1], one.strides[axis - 1] == other.strides[axis - 1] == dense
        # Stored pages may be longer or shorter than the engine's.
        if size != other.shape[axis - 1] or not (size == 1 or fits) or dense * size > _MAX_ELEMENT_BYTES:
            break
        dense, axis = dense * size, axis - 1
    if dense in (0, one.itemsize) or not one.size or not other.size:
        return one, other
    element = np.dtype((np.void, dense))
    shaped = (array.reshape(*array.shape[:axis], -1) for array in (one, other))
    first, second = (array.view(element)[..., 0] for array in shaped)
    return first, second
