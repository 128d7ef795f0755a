"""New memory, at multiples of what the specification aligns buffers to.

Spec: block-paged layout, Alignment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hurray_arrow.spec import MIN_ALIGNMENT_BYTES

Bytes = npt.NDArray[np.uint8]


def new_bytes(size_bytes: int) -> Bytes:
    """Allocate memory that starts where the specification wants buffers to start.

    Returns
    -------
    numpy.ndarray
        New uint8 array ``[size_bytes]`` of undefined values, 64-byte aligned.
    """
    memory = np.empty(size_bytes + MIN_ALIGNMENT_BYTES - 1, np.uint8)
    start = -memory.ctypes.data % MIN_ALIGNMENT_BYTES
    return memory[start : start + size_bytes]


def copy_of(array: npt.NDArray[np.generic]) -> Bytes:
    """Copy an array's bytes in C order into new memory.

    Returns
    -------
    numpy.ndarray
        New uint8 array ``[bytes]``, 64-byte aligned.
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    out = new_bytes(raw.size)
    out[:] = raw
    return out
