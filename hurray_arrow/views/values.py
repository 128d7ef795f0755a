"""Pages as arrays that tools understand: raw bits, float32 numbers, statistics of heads.

Spec: block-paged layout, Element Lookup; wire format 3 and 4.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.elements import ELEMENT_TYPES, ElementType
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.tensor import BlockPagedTensor

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

#: Statistics over the elements of a head, or of a token.
STATISTICS = ("norm", "min", "max", "mean")
#: What Arrow's 32-bit readers count in one row, and far below where DuckDB gives wrong pages.
_MOST_VALUES = 2**31 - 1
#: float32 elements that are decoded at a time, so that they stay in the processor's cache.
_AT_ONCE_ELEMS = 1 << 17
_MISHANDLED = {
    "float16": "DuckDB refuses every query on a table with a float16 column",
    "fixed_size_binary": "pandas and Ray break on fixed_size_binary",
}


def check_mode(view: str, values: str | None, allowed: Sequence[str]) -> None:
    """Refuse a kind of values that the view does not have.

    Raises
    ------
    UnsupportedError
        One that a tool is known to mishandle; the message says which.
    ValueError
        Another.
    """
    if values is None or values in allowed:
        return
    if values in _MISHANDLED:
        raise UnsupportedError(f"{view}: values={values!r}: {_MISHANDLED[values]}; ask for one of {list(allowed)}")
    raise ValueError(f"{view}: values={values!r}, expected None or one of {list(allowed)}")


def raw_layout(element: ElementType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype of stored values as integers or floats that every tool has, and how many make an element.

    Returns
    -------
    dtype : numpy.dtype
        The element's own; for float16, bfloat16 and float8 unsigned integers of its width; uint8 codes for types
        narrower than a byte; uint8 bytes for opaque types; the floats of a complex number.
    tail : tuple of int
        ``()``, ``(2,)`` for complex and ``(bytes,)`` for opaque types.
    """
    dtype = element.dtype
    if element.is_packed:
        return np.dtype(np.uint8), ()
    if dtype is None:
        return np.dtype(np.uint8), (element.bits // 8,)
    if dtype.kind == "c":
        return np.dtype(f"<f{dtype.itemsize // 2}"), (2,)
    if dtype.kind in "iu" or dtype.name in ("float32", "float64"):
        return dtype, ()
    return np.dtype(f"<u{dtype.itemsize}"), ()


def has_numbers(element_type: str) -> bool:
    """Say whether values of a type can be given as float32."""
    found = ELEMENT_TYPES.get(element_type)
    return found is not None and found.dtype is not None and found.dtype.kind != "c"


def check_numbers(view: str, entries: Iterable[Entry]) -> None:
    """Refuse tensors whose values are no real numbers.

    Raises
    ------
    UnsupportedError
        With the first of them.
    """
    for entry in entries:
        if not has_numbers(entry.element_type):
            raise UnsupportedError(f"{view}: {entry}: values of type {entry.element_type} have no float32 numbers")


def tensor_type(view: str, dtype: np.dtype[Any], shapes: Iterable[tuple[int, ...]]) -> pa.DataType:
    """Return the column type for values that all have one shape.

    Raises
    ------
    UnsupportedError
        They have several shapes, a value has no elements, or more than 2³¹ − 1: Arrow's type has one shape, and tools
        give wrong numbers without an error for rows larger than that.
    """
    different = sorted(set(shapes)) or [(1,)]
    if len(different) > 1:
        listed = ", ".join(str(list(shape)) for shape in different)
        raise UnsupportedError(
            f"{view}: the tensors selected have values of shapes {listed}, and a column has one: select some with "
            f"component=, kv_group=, layer_index= or kv_role="
        )
    [shape] = different
    if not 1 <= math.prod(shape) <= _MOST_VALUES:
        raise UnsupportedError(
            f"{view}: {math.prod(shape)} values in a row (shape {list(shape)}), expected 1 to {_MOST_VALUES}"
        )
    return pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), list(shape))


def tensor_array(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values ``[rows, …]`` as a column; nothing is copied."""
    flat = values.reshape(-1)
    items = pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), flat.size, [None, pa.py_buffer(flat)])
    # from_buffers: a constructor of extension arrays would look for the list's length in the values.
    storage = pa.Array.from_buffers(kind.storage_type, len(values), [None], children=[items])
    return pa.ExtensionArray.from_storage(kind, storage)


class Scratch:
    """Memory for decoded values that is used again as soon as nobody holds the batch any more that it was given to.

    Fresh memory costs more than decoding does: the system clears every page of it first.
    """

    _KEPT = 4

    def __init__(self) -> None:
        # The first is never given out, so that it counts the references of a block that nobody holds.
        self._blocks: list[Float32Array] = [np.empty(0, np.float32)]

    def take(self, size_elems: int) -> Float32Array:
        """Return float32 ``[size_elems]``, not initialised."""
        for place in range(1, len(self._blocks)):
            # Pythons differ in what the question itself adds, 3.14 borrows: any more than the first has is a batch's.
            unused = sys.getrefcount(self._blocks[place]) == sys.getrefcount(self._blocks[0])
            if unused and self._blocks[place].size >= size_elems:
                return self._blocks[place][:size_elems]
        block = np.empty(size_elems, np.float32)
        self._blocks[1:] = [block, *self._blocks[1 : self._KEPT]]
        return block[:]


def raw_pages(tensor: BlockPagedTensor, page_ids: Int64Array) -> npt.NDArray[Any]:
    """Return stored values ``[pages, page_size, num_heads, head_dim, …]``, as of :func:`raw_layout`.

    A view of the pool where the pages are neighbours, else new memory.
    """
    dtype, tail = raw_layout(tensor.element_type)
    shape = (len(page_ids), *tensor.descriptor.page_shape, *tail)
    if tensor.element_type.is_packed:
        return np.ascontiguousarray(tensor.values_of_pages(page_ids)).view(np.uint8).reshape(shape)
    return _some(tensor.page_pool, page_ids).reshape(-1).view(dtype).reshape(shape)


def float32_pages(tensor: BlockPagedTensor, page_ids: Int64Array, scratch: Scratch) -> Float32Array:
    """Return pages as the numbers they stand for: float32 ``[pages, page_size, num_heads, head_dim]``.

    New memory, or the scratch's, which is the caller's until the array is let go; float32 pages that are neighbours
    are a view.

    Raises
    ------
    UnsupportedError
        As :meth:`BlockPagedTensor.dequantize`.
    """
    if tensor.quantization is not None:
        return tensor.dequantize_pages(page_ids)
    name = tensor.element_type.name
    if name == "float32":
        return _some(tensor.page_pool, page_ids)
    dtype = tensor.element_type.dtype
    if dtype is None or dtype.kind == "c" or tensor.element_type.is_packed:
        return tensor.dequantize_pages(page_ids)
    stored = _some(tensor.page_pool, page_ids).reshape(-1)
    out = scratch.take(stored.size)
    # float64 may pass the range of float32; infinity is what IEEE arithmetic answers.
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, stored, casting="unsafe")
    return out.reshape(len(page_ids), *tensor.descriptor.page_shape)


def slot_statistics(
    tensor: BlockPagedTensor, page_ids: Int64Array, names: Sequence[str], *, per_head: bool
) -> dict[str, Float32Array]:
    """Return statistics of every slot of some pages.

    Parameters
    ----------
    tensor, page_ids
        Which pages.
    names
        Some of STATISTICS.
    per_head
        Over the elements of a head, or over all heads of a token.

    Returns
    -------
    dict
        New float32 ``[pages × page_size, num_heads]`` each, or ``[pages × page_size, 1]``.
    """
    page_size, num_heads, head_dim = tensor.descriptor.page_shape
    groups, width = (num_heads, head_dim) if per_head else (1, num_heads * head_dim)
    slots = len(page_ids) * page_size
    out = {name: np.empty((slots, groups), np.float32) for name in names}
    scratch = Scratch()
    step = max(1, _AT_ONCE_ELEMS // max(1, tensor.descriptor.page_elems))
    for start in range(0, len(page_ids), step):
        numbers = float32_pages(tensor, page_ids[start : start + step], scratch).reshape(-1, groups, width)
        rows = slice(start * page_size, start * page_size + len(numbers))
        for name in names:
            _statistic(name, numbers, out[name][rows])
    return out


def _statistic(name: Literal["norm", "min", "max", "mean"] | str, numbers: Float32Array, out: Float32Array) -> None:  # noqa: PYI051
    # Infinities and NaN are what IEEE arithmetic answers here, and no reason to warn.
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "norm":
            np.sqrt(np.einsum("...d,...d->...", numbers, numbers), out=out)
        elif name == "mean":
            np.mean(numbers, axis=-1, out=out)
        else:
            (np.min if name == "min" else np.max)(numbers, axis=-1, out=out)


def _some(pool: npt.NDArray[Any], page_ids: Int64Array) -> npt.NDArray[Any]:
    """Return some pages: a view where they are neighbours, else new memory."""
    if not len(page_ids):
        return pool[:0]
    first, last = int(page_ids[0]), int(page_ids[-1])
    if last - first + 1 == len(page_ids) and (len(page_ids) < 3 or bool((np.diff(page_ids) == 1).all())):
        return pool[first : last + 1]
    # As bytes, because numpy.take copies a whole pool first whose elements are not aligned.
    raw = pool.reshape(-1).view(np.uint8).reshape(len(pool), -1)
    return raw[page_ids].reshape(-1).view(pool.dtype).reshape(len(page_ids), *pool.shape[1:])
