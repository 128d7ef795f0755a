"""The call that turns a foreign array into what is taken, for the message that refuses it.

Whoever pastes the call gets the same values, or the bits where an array holds bits. Where no call keeps them, the value
that stands in the way is named and no call is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType

#: Larger foreign objects, which may be files, are not read for the sake of a message.
_READ_FOR_A_MESSAGE_BYTES = 2**26


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a dtype as numpy takes it back."""
    return dtype.str if _is_opaque(dtype) else dtype.name


def make_array(array: object, *, name: str, dtypes: Sequence[np.dtype[Any]]) -> str:
    """Give ``: call`` that makes a plain numpy array of something else, "" where none does.

    Parameters
    ----------
    array
        No numpy array, or a masked one.
    name
        What the caller calls it.
    dtypes
        What is taken, as :func:`convert_array`; empty for all.
    """
    if isinstance(array, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(array).sum())
        return f" without masked entries, it has {masked}: {name}.filled(…)" if masked else f": {name}.data"
    if isinstance(array, bytes | bytearray):
        return f": np.frombuffer({name}, {dtype_name(dtypes[0]) if dtypes else 'uint8'!r})"
    found = _as_array(array)
    if found is None:
        # torch's bfloat16 and whatever needs a gradient or lies on a device; as_array says which.
        return f": hurray_arrow.engines.arrays.as_array({name})" if hasattr(array, "__dlpack__") else ""
    if found.dtype.hasobject or found.dtype.kind in "SUMm" or isinstance(array, (int, float, complex)):
        return ""
    call = f"np.asarray({name})"
    return f": {call}" if not dtypes or found.dtype in dtypes else convert_array(found, name=call, dtypes=dtypes)


def convert_array(array: npt.NDArray[Any], *, name: str, dtypes: Sequence[np.dtype[Any]]) -> str:
    """Give ``: call`` for an array of another dtype, or what stands in the way of one.

    Parameters
    ----------
    array
        Of a dtype that is none of these, in either byte order.
    name
        What the caller calls it.
    dtypes
        What is taken, the best one first; behind a type that numpy does not have, unsigned integers for its bits.
    """
    found, wanted = array.dtype, dtypes[0]
    bits = _view_call(found, dtypes)
    both_numbers = _is_number(found) and _is_number(wanted)
    changed = _changed_value(array, wanted) if both_numbers else ""
    quoted = f"np.{wanted.name}" if wanted.kind in "iufcb" and wanted.isbuiltin != 2 else repr(wanted.name)
    numbers = f".astype({quoted})" if both_numbers and not changed else ""
    if bits and numbers and wanted.isbuiltin != 2:
        return f": {name}{bits} where these are its bits, {name}{numbers} where they are numbers"
    return f": {name}{bits or numbers}" if bits or numbers else changed


def view_bytes(array: npt.NDArray[Any], *, name: str) -> str:
    """Give ``: call`` for the bytes of an array, which no conversion of numbers gives."""
    return "" if array.dtype.hasobject or array.dtype.itemsize == 0 else f": {name}.reshape(-1).view(np.uint8)"


def pack_array(array: object, element: ElementType) -> str:
    """Give ``: call`` for the packed bytes of unpacked values, with the arguments that the bytes then need."""
    if not isinstance(array, np.ndarray):
        return ", expected a numpy array"
    wanted, private = element.dtype, "" if element.private is None else ", private=private"
    arguments = "page_shape=(page_size, num_heads, head_dim), num_pages=num_pages"
    if array.dtype == np.uint8 and wanted is not None:
        return f": give their shape with {arguments}"
    if array.ndim == 4:
        arguments = f"page_shape={array.shape[1:]}, num_pages={array.shape[0]}"
    wanted = np.dtype(np.uint8) if wanted is None else wanted
    values = "page_pool" if array.dtype == wanted else f"page_pool.astype({wanted.name!r})"
    if array.dtype != wanted and not _survives(array, wanted):
        return f", and these values are none of {element.name}"
    call = f"element_type({element.name!r}{private}).pack({values})"
    return f": {call}, element_type={element.name!r}{private}, {arguments}"


def _survives(array: npt.NDArray[Any], wanted: np.dtype[Any]) -> bool:
    if not _is_number(array.dtype) or array.dtype.kind == "c":
        return False
    with np.errstate(all="ignore"):
        return np.array_equal(array.astype(wanted).astype(np.float64), array.astype(np.float64))


def exceeds_uint32(table: object) -> bool:
    """Say whether a table of any kind holds a page id or an offset for which only uint64 is wide enough."""
    array = _as_array(table)
    if array is None or array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return False
    return array.size > 0 and int(array.max()) >= 2**32


def _as_array(array: object) -> npt.NDArray[Any] | None:
    if not isinstance(array, np.ndarray) and getattr(array, "nbytes", 0) > _READ_FOR_A_MESSAGE_BYTES:
        return None
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError, OverflowError, UserWarning):
        # numpy before 1.24 only warns of lists of different lengths, and warnings may be errors.
        return None


def _is_opaque(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "V" and dtype.names is None and dtype.isbuiltin != 2


def _is_number(dtype: np.dtype[Any]) -> bool:
    # ml_dtypes registers its types with numpy, most of them as kind V.
    return dtype.kind in "biufc" or dtype.isbuiltin == 2


def _view_call(found: np.dtype[Any], dtypes: Sequence[np.dtype[Any]]) -> str:
    wanted = dtypes[0]
    holds_bits = _is_opaque(found) or (found.kind in "iu" and wanted.kind not in "iu")
    if not holds_bits or found.itemsize != wanted.itemsize:
        return ""
    # view() takes the bytes in the order in which they are, astype() turns them first.
    native = found.newbyteorder("<")
    turned = "" if found == native else f".astype({native.str!r})"
    return f"{turned}.view({dtype_name(dtypes[-1])!r})"


def _changed_value(array: npt.NDArray[Any], wanted: np.dtype[Any]) -> str:
    """Name a value that a conversion would make another one of; the rounding of floats is not meant."""
    if array.dtype.kind == "c" and wanted.kind != "c":
        return ", and no part of a complex number alone"
    if wanted.kind not in "iu" or array.size == 0:
        return ""
    bounds = np.iinfo(wanted)
    expected = f" from {bounds.min} to {bounds.max}"
    with np.errstate(all="ignore"):
        numbers = array if array.dtype.kind in "iu" else array.astype(np.float64)
        whole = numbers == np.trunc(numbers)
    if not whole.all():
        return f"{expected}, and it has the value {numbers[~whole][0]}"
    lowest, highest = numbers.min().item(), numbers.max().item()
    if bounds.min <= lowest and highest <= bounds.max:
        return ""
    return f"{expected}, and it has the value {lowest if lowest < bounds.min else highest}"
