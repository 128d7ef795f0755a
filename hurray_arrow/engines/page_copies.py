"""Copies between an engine's strided pages and dense ones, a run of neighbours at a time.

No index or product is ever narrower than 64 bits: ids are int64 and places are numpy's own intp.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[Any]


def read_pages(pages: Words, out: Words, *, page_ids: Int64Array | None = None) -> None:
    """Copy pages out of an engine's memory.

    Parameters
    ----------
    pages
        ``[num_pages, page_size, num_heads, words]``, strided.
    out
        ``[n, page_size, num_heads, words]`` of the same dtype; may be strided too.
    page_ids
        ``[n]`` pages of the pool, already checked; ``None`` for all in order.
    """
    if page_ids is None:
        np.copyto(out, pages)
    elif pages.flags.c_contiguous and out.flags.c_contiguous:
        # Only with a mode other than "raise" does numpy write into `out` without a buffer of its size.
        np.take(pages, page_ids, axis=0, out=out, mode="clip")
    else:
        # numpy.take would copy the whole strided pool first.
        for start, stop in runs(page_ids):
            first = int(page_ids[start])
            np.copyto(out[start:stop], pages[first : first + stop - start])


def write_pages(pages: Words, source: Words, *, page_ids: Int64Array, source_ids: Int64Array) -> None:
    """Copy whole pages into an engine's memory, and nothing beside them.

    Parameters
    ----------
    pages
        ``[num_pages, page_size, num_heads, words]``, strided and writable.
    source
        ``[n, page_size, num_heads, words]`` of the same dtype, in other memory.
    page_ids, source_ids
        Where each page goes, and where it comes from; already checked, ``page_ids`` distinct.
    """
    for start, stop in runs(source_ids):
        first = int(source_ids[start])
        into, from_pages = page_ids[start:stop], source[first : first + stop - start]
        if stop - start > 1 and int(into[-1]) - int(into[0]) == stop - start - 1 and not (np.diff(into) != 1).any():
            np.copyto(pages[int(into[0]) : int(into[-1]) + 1], from_pages)
        else:
            pages[into] = from_pages


def runs(ids: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each run of ids that follow each other."""
    if ids.size:
        cuts = np.flatnonzero(np.diff(ids) != 1) + 1
        bounds = [0, *cuts.tolist(), ids.size]
        yield from itertools.pairwise(bounds)
