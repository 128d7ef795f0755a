"""Arrow arrays as numpy views, each through its window: offsets of slices are where data gets corrupted.

Spec: snapshot format, section 1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def fixed_size_list_bytes(array: pa.FixedSizeListArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of a fixed-size list's values, its window only.

    Returns
    -------
    numpy.ndarray
        uint8 ``[len(array) * list_size * width]``; a read-only view that keeps the Arrow buffer alive.
    """
    size = array.type.list_size
    return primitive_bytes(array.values.slice(array.offset * size, len(array) * size))


def primitive_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a primitive array's window; a read-only view that keeps the buffer alive."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8, len(array) * width, array.offset * width)


def primitive_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return a primitive array's values in their own dtype; a read-only view that keeps the buffer alive."""
    values: npt.NDArray[Any] = primitive_bytes(array).view(numpy_dtype(array.type))
    return values


#: Arrow's names of the types that numpy calls otherwise.
_NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


@cache
def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy dtype of a number's or a boolean's values.

    ``to_pandas_dtype`` says the same, but asks pandas for its version in pyarrow before 20; ``to_numpy`` imports
    pandas, which takes more time and memory than reading a snapshot.
    """
    name = str(kind)
    return np.dtype(_NUMPY_NAMES.get(name, name))


def list_window(array: pa.ListArray | pa.LargeListArray) -> tuple[npt.NDArray[Any], pa.Array]:
    """Return a list array's offsets rebased to 0, unsigned, and the window of its values.

    Arrow may leave the offsets of an empty array out; then ``[0]`` is given back.
    """
    unsigned = np.uint64 if pa.types.is_large_list(array.type) else np.uint32
    if not len(array):
        return np.zeros(1, unsigned), array.values.slice(0, 0)
    offsets = primitive_values(array.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    rebased = offsets.view(unsigned) if first == 0 else (offsets - first).view(unsigned)
    return rebased, array.values.slice(first, last - first)


def validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which elements are not null, ``None`` where all are.

    pyarrow's own ``is_valid`` loads its compute module, which takes longer than opening a snapshot.
    """
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return None
    first = array.offset // 8
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8)[first:], bitorder="little")
    start = array.offset - 8 * first
    return unpacked[start : start + len(array)].view(np.bool_)
