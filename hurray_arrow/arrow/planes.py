"""Byte planes: byte k of every element beside each other, so that mantissas and exponents are compressed apart.

Spec: snapshot format, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
#: Elements that are taken apart or joined at a time, so that both sides stay in the cache.
_BLOCK_ELEMS = 1 << 15
#: Elements of these widths are shifted as integers, which is up to twice as fast as picking bytes.
_WORDS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


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
    planes = np.empty((width_bytes, len(raw) // width_bytes), np.uint8)
    word = _WORDS.get(width_bytes)
    if word is None:
        planes[...] = raw.reshape(-1, width_bytes).T
        return planes
    words, shifted = raw.view(word), np.empty(_BLOCK_ELEMS, word)
    for start in range(0, len(words), _BLOCK_ELEMS):
        block = words[start : start + _BLOCK_ELEMS]
        for number, plane in enumerate(planes):
            np.right_shift(block, 8 * number, out=shifted[: len(block)])
            np.copyto(plane[start : start + len(block)], shifted[: len(block)], casting="unsafe")
    return planes


def from_planes(planes: Sequence[Bytes], out: Bytes) -> None:
    """Join elements again.

    Parameters
    ----------
    planes
        uint8 ``[elems]`` each, one per byte of an element.
    out
        uint8 ``[elems * len(planes)]``: filled.
    """
    word = _WORDS.get(len(planes))
    if word is None:
        for number, plane in enumerate(planes):
            out.reshape(-1, len(planes))[:, number] = plane
        return
    words, shifted = out.view(word), np.empty(_BLOCK_ELEMS, word)
    for start in range(0, len(words), _BLOCK_ELEMS):
        block = words[start : start + _BLOCK_ELEMS]
        block[...] = planes[0][start : start + len(block)]
        for number, plane in enumerate(planes[1:], 1):
            np.copyto(shifted[: len(block)], plane[start : start + len(block)])
            np.left_shift(shifted[: len(block)], 8 * number, out=shifted[: len(block)])
            np.bitwise_or(block, shifted[: len(block)], out=block)
