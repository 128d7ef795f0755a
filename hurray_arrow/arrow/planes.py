"""Byte planes: byte k of every element beside each other, so that mantissas and exponents are compressed apart.

Spec: snapshot format, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
#: Elements that are taken apart or joined by one call of numpy. Longer than a cache, as numpy goes through it in pieces
#: of its own, and every call gives the interpreter's lock back and asks for it again, which is what threads wait for.
_BLOCK_ELEMS = 1 << 18
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
    words = raw.view(word)
    for start in range(0, len(words), _BLOCK_ELEMS):
        block = slice(start, start + _BLOCK_ELEMS)
        for number, plane in enumerate(planes):
            np.right_shift(words[block], 8 * number, out=plane[block], dtype=word, casting="unsafe")
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
    words = out.view(word)
    last, *others = reversed(planes)
    for start in range(0, len(words), _BLOCK_ELEMS):
        block = slice(start, start + _BLOCK_ELEMS)
        higher = last[block]
        for plane in others:
            np.left_shift(higher, 8, out=words[block], dtype=word)
            np.bitwise_or(words[block], plane[block], out=words[block], dtype=word)
            higher = words[block]
