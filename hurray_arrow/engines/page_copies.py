"""Copies between an engine's strided pages and dense ones.

Keys and values of a page lie side by side in most engines, so all parts of a layer are copied a few pages at a time,
while these are in the processor's cache; and what is dense on both sides is copied as one element. No index or product
is narrower than 64 bits: ids are int64 and places are numpy's own intp.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[Any]

#: Bytes that are copied of all parts together before the next pages: a part of any processor's second cache.
_CHUNK_BYTES = 1 << 19
#: Below this a thread costs more than it brings.
_THREADED_BYTES = 1 << 23
#: numpy keeps the size of an element in a C int.
_MAX_ELEMENT_BYTES = 2**31 - 1


def read_pages(pairs: Sequence[tuple[Words, Words]], *, page_ids: Int64Array | None = None) -> None:
    """Copy pages out of an engine's memory.

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

    _by_chunks(read, pairs[0][1].shape[0], pairs)


def write_pages(pairs: Sequence[tuple[Words, Words]], *, page_ids: Int64Array, source_ids: Int64Array) -> None:
    """Copy whole pages into an engine's memory, and nothing beside them.

    Parameters
    ----------
    pairs
        Of each part of a layer ``[num_pages, page_size, num_heads, words]``, strided and writable, and where from:
        ``[n, page_size, num_heads, words]`` of the same dtype, in other memory.
    page_ids, source_ids
        Where each page goes, and where it comes from; already checked, ``page_ids`` distinct.
    """
    merged = [_merged(pages, source) for pages, source in pairs]

    def write(start: int, stop: int) -> None:
        for first, last in runs(source_ids[start:stop]):
            into, page = page_ids[start + first : start + last], int(source_ids[start + first])
            for pages, source in merged:
                pages[into] = source[page : page + last - first]

    _by_chunks(write, page_ids.size, pairs)


def runs(ids: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each run of ids that follow each other."""
    if ids.size:
        cuts = np.flatnonzero(np.diff(ids) != 1) + 1
        bounds = [0, *cuts.tolist(), ids.size]
        yield from itertools.pairwise(bounds)


def _by_chunks(copy: Callable[[int, int], None], count: int, pairs: Sequence[tuple[Words, Words]]) -> None:
    """Copy a few pages at a time; much of it on two threads, for one does not fill the memory's bandwidth."""
    page_bytes = sum(int(np.prod(pages.shape[1:])) * pages.itemsize for pages, _ in pairs)
    step = max(1, _CHUNK_BYTES // max(1, page_bytes))

    def copy_range(bounds: range) -> None:
        for start in bounds:
            copy(start, min(start + step, count))

    if count * page_bytes < _THREADED_BYTES:
        copy_range(range(0, count, step))
        return
    # Both threads are done before an error is raised: nothing is written behind the caller's back.
    with ThreadPoolExecutor(2, "hurray-arrow-pages") as pool:
        middle = -(-count // step) // 2 * step
        list(pool.map(copy_range, (range(0, middle, step), range(middle, count, step))))


def _merged(one: Words, other: Words) -> tuple[Words, Words]:
    """See the innermost axes that are dense in both arrays as one element."""
    dense, axis = one.itemsize, one.ndim
    while axis > 1:
        size, fits = one.shape[axis - 1], one.strides[axis - 1] == other.strides[axis - 1] == dense
        if not (size == 1 or fits) or dense * size > _MAX_ELEMENT_BYTES:
            break
        dense, axis = dense * size, axis - 1
    if dense in (0, one.itemsize) or not one.size or not other.size:
        return one, other
    element = np.dtype((np.void, dense))
    shaped = (array.reshape(*array.shape[:axis], -1) for array in (one, other))
    first, second = (array.view(element)[..., 0] for array in shaped)
    return first, second
