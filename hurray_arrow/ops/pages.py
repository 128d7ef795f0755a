"""Moving the bytes of pages: page pools and per-slot parameters, in whole units of slots.

Spec: block-paged layout, Per-page-slot parameters; wire-format page section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType
from hurray_arrow.intake import as_bytes
from hurray_arrow.memory import Bytes, new_bytes
from hurray_arrow.ops.page_table import NOTHING, PageMove
from hurray_arrow.packing import codes_at, pack_codes
from hurray_arrow.tensor import BlockPagedTensor

#: Elements of an unaligned packed pool that are worked on at a time: each takes some 30 bytes while it is.
_UNPACKED_AT_ONCE_ELEMS = 2**20
#: So many elements of any width start on a byte, for 6-bit types on a group of three.
_ALIGNED_ELEMS = 8


def move_pool(tensors: Sequence[BlockPagedTensor], move: PageMove) -> Bytes:
    """Build a page pool out of units of old ones.

    Parameters
    ----------
    tensors
        One per pool that the move names, of one element type, num_heads and head_dim.
    move
        What comes from where; its units name slots of these pools.

    Returns
    -------
    numpy.ndarray
        New uint8 array: the new pool's bytes. Slots that nothing fills are 0.

    Spec: block-paged layout, Page pool; wire-format page section 4, packing.
    """
    element = tensors[0].element_type
    slot_elems = tensors[0].num_heads * tensors[0].head_dim
    raws = [as_bytes(tensor.page_pool) for tensor in tensors]
    if not slot_elems or not move.num_pages:
        return new_bytes(0)
    unit_bytes = element.page_bytes(move.unit_slots * slot_elems)
    slot_bytes = element.page_bytes(slot_elems)
    if unit_bytes is None or (slot_bytes is None and move.fill is not None):
        return _move_codes(raws, move, element=element, slot_elems=slot_elems)
    return _move_bytes(raws, move, unit_bytes=unit_bytes)


def move_slots(arrays: Sequence[npt.NDArray[Any]], move: PageMove) -> npt.NDArray[Any]:
    """Move one value per page slot along with the slots.

    Parameters
    ----------
    arrays
        ``[num_pages × page_size]`` per pool, of one dtype.
    move
        What comes from where.

    Returns
    -------
    numpy.ndarray
        New array ``[new pages × new page_size]`` of that dtype; 0 where nothing fills a slot.

    Spec: block-paged layout, Per-page-slot parameters.
    """
    dtype = arrays[0].dtype
    if not move.num_pages:
        return np.empty(0, dtype)
    raws = [as_bytes(array) for array in arrays]
    return _move_bytes(raws, move, unit_bytes=move.unit_slots * dtype.itemsize).view(dtype)


def pool_ranges(move: PageMove, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Cut the new pages ``[start, stop)`` by the pool that they come from; yield pool, first and end page."""
    stop = move.num_pages if stop is None else stop
    first = 0
    for pool, count in enumerate(move.pages_per_pool):
        low, high = max(first, start), min(first + count, stop)
        if low < high:
            yield pool, low, high
        first += count


def _move_bytes(raws: Sequence[Bytes], move: PageMove, *, unit_bytes: int) -> Bytes:
    units = move.units.reshape(-1)
    out = new_bytes(units.size * unit_bytes)
    cells = out.reshape(-1, unit_bytes)
    per_page = move.units.shape[1]
    for pool, first, end in pool_ranges(move):
        some = slice(first * per_page, end * per_page)
        source = raws[pool].reshape(-1, unit_bytes)
        # Only with a mode other than "raise" does numpy write into `out` without a buffer of its size.
        np.take(source, units[some], axis=0, out=cells[some], mode="clip")
    cells[units == NOTHING] = 0
    if move.fill is not None:
        slots = out.reshape(move.num_pages, move.page_size, -1)
        for page in np.flatnonzero(move.fill < move.page_size).tolist():
            slots[page, move.fill[page] :] = 0
    return out


def _move_codes(raws: Sequence[Bytes], move: PageMove, *, element: ElementType, slot_elems: int) -> Bytes:
    """Move units that do not start on a byte, element by element."""
    bits, page_elems, unit_elems = element.bits, move.page_size * slot_elems, move.unit_slots * slot_elems
    out = new_bytes(element.size_bytes(move.num_pages * page_elems))
    at_once = max(1, _UNPACKED_AT_ONCE_ELEMS // page_elems // _ALIGNED_ELEMS) * _ALIGNED_ELEMS
    for start in range(0, move.num_pages, at_once):
        stop = min(start + at_once, move.num_pages)
        codes = np.empty((stop - start, page_elems), np.uint8)
        for pool, first, end in pool_ranges(move, start, stop):
            units = move.units[first:end]
            places = np.maximum(units, 0)[:, :, np.newaxis] * unit_elems + np.arange(unit_elems)
            some = codes_at(raws[pool], bits, places)
            some[units == NOTHING] = 0
            codes[first - start : end - start] = some.reshape(end - first, page_elems)
        if move.fill is not None:
            slots = codes.reshape(stop - start, move.page_size, slot_elems)
            slots[np.arange(move.page_size) >= move.fill[start:stop, np.newaxis]] = 0
        packed = pack_codes(codes.reshape(-1), bits)
        offset = element.size_bytes(start * page_elems)
        out[offset : offset + packed.size] = packed
    return out
