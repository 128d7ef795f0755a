"""Pools as tables of elements: cutting columns out, and joining columns side by side.

A row is a slot or a head of a slot, so that heads and head dimensions are columns.

Spec: block-paged layout, Page pool; wire-format page section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hurray_arrow.elements import ElementType
from hurray_arrow.memory import Bytes, new_bytes
from hurray_arrow.packing import pack_codes, unpack_codes

#: Elements of a packed pool that are unpacked at a time.
_UNPACKED_AT_ONCE_ELEMS = 2**22
#: So many rows of any width start on a byte, for 6-bit types on a group of three.
_ALIGNED_ROWS = 8


def cut_columns(raw: Bytes, element: ElementType, *, rows: int, width: int, columns: tuple[int, int]) -> Bytes:
    """Copy some columns of a pool.

    Parameters
    ----------
    raw
        uint8 ``[bytes]``: rows × width elements.
    element
        Their type.
    rows, width
        Rows, and elements of a row.
    columns
        Half-open range of columns.

    Returns
    -------
    numpy.ndarray
        New uint8 array: rows × the range's elements.
    """
    start, stop = columns
    out = new_bytes(element.size_bytes(rows * (stop - start)))
    if not out.size:
        return out
    bits = (width * element.bits, start * element.bits, stop * element.bits)
    if not any(count % 8 for count in bits):
        out.reshape(rows, -1)[:] = raw.reshape(rows, -1)[:, bits[1] // 8 : bits[2] // 8]
        return out
    at_once = max(1, _UNPACKED_AT_ONCE_ELEMS // width // _ALIGNED_ROWS) * _ALIGNED_ROWS
    for row in range(0, rows, at_once):
        count = min(at_once, rows - row)
        codes = _codes(raw, element, row=row, count=count, width=width)[:, start:stop]
        _lay(out, codes, element, row=row)
    return out


def join_columns(raws: Sequence[Bytes], element: ElementType, *, rows: int, widths: Sequence[int]) -> Bytes:
    """Lay the columns of several pools side by side.

    Parameters
    ----------
    raws
        uint8 ``[bytes]`` each: rows × its width elements.
    element
        Their type.
    rows
        Rows, the same of all.
    widths
        Elements of a row of each.

    Returns
    -------
    numpy.ndarray
        New uint8 array: rows × the widths' sum of elements.
    """
    out = new_bytes(element.size_bytes(rows * sum(widths)))
    if not out.size:
        return out
    if not any(width * element.bits % 8 for width in widths):
        table, first = out.reshape(rows, -1), 0
        for raw, width in zip(raws, widths, strict=True):
            last = first + width * element.bits // 8
            if width:
                table[:, first:last] = raw.reshape(rows, -1)
            first = last
        return out
    at_once = max(1, _UNPACKED_AT_ONCE_ELEMS // sum(widths) // _ALIGNED_ROWS) * _ALIGNED_ROWS
    for row in range(0, rows, at_once):
        count = min(at_once, rows - row)
        parts = [
            _codes(raw, element, row=row, count=count, width=width) for raw, width in zip(raws, widths, strict=True)
        ]
        _lay(out, np.concatenate(parts, axis=1), element, row=row)
    return out


def _codes(raw: Bytes, element: ElementType, *, row: int, count: int, width: int) -> Bytes:
    return unpack_codes(raw, element.bits, start=row * width, count=count * width).reshape(count, width)


def _lay(out: Bytes, codes: Bytes, element: ElementType, *, row: int) -> None:
    packed = pack_codes(np.ascontiguousarray(codes).reshape(-1), element.bits)
    offset = element.size_bytes(row * codes.shape[1])
    out[offset : offset + packed.size] = packed
