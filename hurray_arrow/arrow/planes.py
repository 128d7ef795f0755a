"""Byte planes: byte k of every element beside each other, so that mantissas and exponents are compressed apart.

Spec: snapshot format, section 5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
#: Elements that are taken apart or joined at a time, so that both sides stay in the cache.
_BLOCK_ELEMS = 1 << 15


def to_planes(raw: Bytes, width_bytes: int) -> Bytes:
    """Take elements apart.

    Parameters
    ----------
    raw
        uint8 ``[elems * width_bytes]``.
    width_bytes
        Bytes of an element.

    Returns
    -------
    numpy.ndarray
        uint8 ``[width_bytes, elems]``, new: row k holds byte k of every element.
    """
    elements = raw.reshape(-1, width_bytes)
    planes = np.empty((width_bytes, len(elements)), np.uint8)
    for start in range(0, len(elements), _BLOCK_ELEMS):
        planes[:, start : start + _BLOCK_ELEMS] = elements[start : start + _BLOCK_ELEMS].T
    return planes


def from_planes(planes: list[Bytes], out: Bytes) -> None:
    """Join elements again.

    Parameters
    ----------
    planes
        uint8 ``[elems]`` each, one per byte of an element.
    out
        uint8 ``[elems * len(planes)]``: filled.
    """
    elements = out.reshape(-1, len(planes))
    for start in range(0, len(elements), _BLOCK_ELEMS):
        block = elements[start : start + _BLOCK_ELEMS]
        for number, plane in enumerate(planes):
            block[:, number] = plane[start : start + _BLOCK_ELEMS]
