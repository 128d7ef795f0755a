"""Values narrower than a byte in and out of bytes, as plain codes.

Element ``i`` of ``B`` bits lies at bits ``i*B`` to ``(i+1)*B`` of the bytes, least significant bit first. Four 6-bit
elements fill three bytes, and the last three are always whole.

Spec: wire format 4, packing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


def packed_size_bytes(count: int, bits: int) -> int:
    """Return the bytes of ``count`` elements of ``bits`` bits."""
    return -(-count // 4) * 3 if bits == 6 else -(-count * bits // 8)


def _group(bits: int) -> tuple[int, int]:
    """Return elements and bytes of the smallest group that starts and ends on a byte."""
    return (4, 3) if bits == 6 else (8 // bits, 1)


def pack_codes(codes: Bytes, bits: int) -> Bytes:
    """Pack the low bits of each code.

    Parameters
    ----------
    codes
        uint8 ``[n]``; bits above the lowest ``bits`` are ignored.
    bits
        1, 2, 4 or 6.

    Returns
    -------
    numpy.ndarray
        New uint8 array ``[packed_size_bytes(n, bits)]``; unused high bits are 0.
    """
    codes = codes & np.uint8((1 << bits) - 1)
    size_bytes = packed_size_bytes(codes.size, bits)
    if bits == 6:
        return _pack6(codes, size_bytes)
    out = np.zeros(size_bytes, np.uint8)
    per_byte = 8 // bits
    for place in range(per_byte):
        part = codes[place::per_byte]
        out[: part.size] |= part << np.uint8(place * bits)
    return out


def unpack_codes(raw: Bytes, bits: int, *, start: int, count: int) -> Bytes:
    """Unpack ``count`` codes from element ``start`` on.

    Parameters
    ----------
    raw
        uint8 ``[n]`` that holds these elements.
    bits
        1, 2, 4 or 6.
    start, count
        Elements.

    Returns
    -------
    numpy.ndarray
        New uint8 array ``[count]``.
    """
    elems, size_bytes = _group(bits)
    first, last = start // elems, -(-(start + count) // elems)
    groups = raw[first * size_bytes : last * size_bytes]
    if bits == 6:
        codes = _unpack6(groups, last - first)
    else:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = ((groups[:, np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)
    skipped = start - first * elems
    return codes[skipped : skipped + count]


def codes_at(raw: Bytes, bits: int, indices: npt.NDArray[np.int64]) -> Bytes:
    """Gather the codes at ``indices``.

    Parameters
    ----------
    raw
        uint8 ``[n]``.
    bits
        1, 2, 4 or 6.
    indices
        int64 element numbers of any shape, none of them negative.

    Returns
    -------
    numpy.ndarray
        New uint8 array of the shape of ``indices``.

    Raises
    ------
    IndexError
        An index is not in ``raw``.
    """
    # Not index × bits, which wraps where the bits of a very large pool pass 2⁶³.
    elems, size_bytes = _group(bits)
    group, rest = np.divmod(indices, np.int64(elems))
    bit = rest * np.int64(bits)
    place, shift = group * np.int64(size_bytes) + (bit >> 3), (bit & 7).astype(np.uint8)
    codes = np.asarray(raw[place] >> shift)
    if bits == 6:
        crossing = shift > 2
        codes[crossing] |= raw[place[crossing] + 1] << (np.uint8(8) - shift[crossing])
    return codes & np.uint8((1 << bits) - 1)


def _pack6(codes: Bytes, size_bytes: int) -> Bytes:
    groups = np.zeros((size_bytes // 3, 4), np.uint8)
    groups.reshape(-1)[: codes.size] = codes
    c0, c1, c2, c3 = groups.T
    out = np.empty((size_bytes // 3, 3), np.uint8)
    out[:, 0] = c0 | c1 << np.uint8(6)
    out[:, 1] = c1 >> np.uint8(2) | c2 << np.uint8(4)
    out[:, 2] = c2 >> np.uint8(4) | c3 << np.uint8(2)
    return out.reshape(-1)


def _unpack6(raw: Bytes, groups: int) -> Bytes:
    # The last group may be cut: its missing bytes belong to elements that nobody asked for.
    if raw.size < groups * 3:
        raw = np.concatenate([raw, np.zeros(groups * 3 - raw.size, np.uint8)])
    b0, b1, b2 = raw.reshape(-1, 3).T
    codes = np.empty((groups, 4), np.uint8)
    codes[:, 0] = b0
    codes[:, 1] = b0 >> np.uint8(6) | b1 << np.uint8(2)
    codes[:, 2] = b1 >> np.uint8(4) | b2 << np.uint8(4)
    codes[:, 3] = b2 >> np.uint8(2)
    return (codes & np.uint8(0x3F)).reshape(-1)
