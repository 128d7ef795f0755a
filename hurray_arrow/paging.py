"""Reading values out of pages: pure functions of arrays.

A run is what one sequence contributes: its page ids and its number of tokens. The callers have checked that the ids
name pages of the pool and that there are enough of them; nothing here checks again.

Spec: block-paged layout, Element Lookup and Partial trailing page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType

IndexArray: TypeAlias = npt.NDArray[Any]
Run: TypeAlias = tuple[IndexArray, int]

#: Elements of an unaligned packed pool that are unpacked at a time: each takes some 30 bytes while it is.
_UNPACKED_AT_ONCE_ELEMS = 2**20


def gather_tokens(page_pool: npt.NDArray[Any], runs: Sequence[Run]) -> npt.NDArray[Any]:
    """Copy the tokens of the runs, one after the other, a page at a time.

    Parameters
    ----------
    page_pool
        ``[num_pages, page_size, …]`` of any dtype, C-contiguous.
    runs
        Page ids and tokens of each sequence; ids beyond the last token are not looked at.

    Returns
    -------
    numpy.ndarray
        New array ``[tokens, …]`` of the pool's dtype. Slots behind a sequence's last token are not read.

    Spec: block-paged layout, Element Lookup and Partial trailing page.
    """
    num_pages, page_size, *slot_shape = page_pool.shape
    out = np.empty((sum(tokens for _, tokens in runs), *slot_shape), page_pool.dtype)
    if not out.size:
        return out
    # As bytes, because numpy.take copies a whole pool first whose elements are not aligned.
    pages = page_pool.reshape(-1).view(np.uint8).reshape(num_pages, -1)
    slots = out.reshape(-1).view(np.uint8).reshape(len(out), -1)
    start = 0
    for page_ids, tokens in runs:
        whole, rest = divmod(tokens, page_size)
        middle = start + whole * page_size
        if whole:
            into = slots[start:middle].reshape(whole, -1)
            # Only with a mode other than "raise" does numpy write into `out` without a buffer of its size.
            np.take(pages, page_ids[:whole].astype(np.intp), axis=0, out=into, mode="clip")
        if rest:
            slots[middle : middle + rest].reshape(-1)[:] = pages[int(page_ids[whole]), : rest * slots.shape[1]]
        start = middle + rest
    return out


def gather_packed(
    pool_bytes: npt.NDArray[np.uint8],
    runs: Sequence[Run],
    *,
    element_type: ElementType,
    page_shape: tuple[int, int, int],
) -> npt.NDArray[Any]:
    """Unpack the tokens of the runs out of a pool of elements narrower than a byte.

    Parameters
    ----------
    pool_bytes
        uint8 ``[bytes]``: the pool, packed from its first to its last element.
    runs
        Page ids and tokens of each sequence.
    element_type
        A packed type.
    page_shape
        ``(page_size, num_heads, head_dim)``.

    Returns
    -------
    numpy.ndarray
        New array ``[tokens, num_heads, head_dim]`` of the type's unpacked dtype, uint8 codes for private types.

    Spec: block-paged layout, Element Lookup; wire-format page section 4.
    """
    page_size, num_heads, head_dim = page_shape
    slot_elems = num_heads * head_dim
    out = np.empty((sum(tokens for _, tokens in runs), num_heads, head_dim), element_type.dtype or np.uint8)
    if not out.size:
        return out
    flat = out.reshape(-1)
    start = 0
    for page_ids, tokens in runs:
        stop = start + tokens * slot_elems
        used = page_ids[: -(-tokens // page_size)].astype(np.int64)
        _unpack_pages(
            pool_bytes, used, element_type=element_type, page_elems=page_size * slot_elems, out=flat[start:stop]
        )
        start = stop
    return out


def _unpack_pages(
    pool_bytes: npt.NDArray[np.uint8],
    page_ids: npt.NDArray[np.int64],
    *,
    element_type: ElementType,
    page_elems: int,
    out: npt.NDArray[Any],
) -> None:
    """Fill ``out`` with the first elements of the pages."""
    page_bytes = element_type.page_bytes(page_elems)
    at_once = max(1, _UNPACKED_AT_ONCE_ELEMS // page_elems)
    for first in range(0, len(page_ids), at_once):
        some = page_ids[first : first + at_once]
        part = out[first * page_elems : (first + at_once) * page_elems]
        if page_bytes is None:
            # A page does not start on a byte: every element has its own place and shift.
            places = (some[:, np.newaxis] * page_elems + np.arange(page_elems)).reshape(-1)[: part.size]
            part[:] = element_type.unpack_at(pool_bytes, places)
        else:
            starts = pool_bytes[: pool_bytes.size // page_bytes * page_bytes].reshape(-1, page_bytes)
            part[:] = element_type.unpack(starts[some].reshape(-1), part.size)
