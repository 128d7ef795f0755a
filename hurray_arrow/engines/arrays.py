"""Engines' arrays as strided numpy views of their words, without a copy and without importing torch.

An engine's memory is taken as it is: numpy arrays, torch tensors on the CPU, whatever speaks DLPack, whatever has the
buffer protocol. Values are handled as unsigned words of their own width and never as numbers, so that every bit
pattern comes through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType
from hurray_arrow.elements import element_type as element_type_of
from hurray_arrow.errors import LayoutError, UnsupportedError

Words: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

#: DLPack's device types whose memory the CPU reads: kDLCPU and kDLCUDAHost.
_HOST_DEVICES = frozenset({1, 3})
#: torch dtypes that numpy has no dtype for: the one of ml_dtypes with the same bits.
_TORCH_ONLY = {
    "torch.bfloat16": ml_dtypes.bfloat16,
    "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "torch.float8_e5m2": ml_dtypes.float8_e5m2,
    "torch.float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}


def as_array(array: Any, *, name: str = "array") -> npt.NDArray[Any]:
    """Give a strided numpy view of an engine's array.

    Parameters
    ----------
    array
        numpy array, torch tensor on the CPU, an object with ``__dlpack__``, or one with the buffer protocol.
    name
        What the caller calls it, for messages.

    Returns
    -------
    numpy.ndarray
        A view that shares memory with ``array`` and keeps it alive; writable where ``array`` is. bfloat16 and float8
        tensors of torch come as ml_dtypes arrays.

    Raises
    ------
    LayoutError
        The memory is on a device, is no strided array, is masked or big-endian, or is no array at all.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise LayoutError(f"{name}: a masked array, expected a plain one", expected="ndarray", actual="MaskedArray")
    if isinstance(array, np.ndarray):
        view = array.view(np.ndarray)
    elif _is_torch(array):
        view = _from_torch(array, name)
    elif hasattr(array, "__dlpack__"):
        view = _from_dlpack(array, name)
    else:
        view = _from_buffer(array, name)
    if view.dtype != view.dtype.newbyteorder("<"):
        message = f"{name}: dtype {view.dtype.str} is big-endian, expected little-endian"
        raise LayoutError(message, expected=view.dtype.newbyteorder("<").str, actual=view.dtype.str)
    return view


def _is_torch(array: Any) -> bool:
    # Whoever has a tensor has torch loaded; importing it for everybody else would take seconds.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _from_torch(tensor: Any, name: str) -> npt.NDArray[Any]:
    if tensor.device.type != "cpu":
        message = f"{name}: a tensor on {tensor.device}, expected one on the CPU: {name}.cpu()"
        raise LayoutError(message, expected="cpu", actual=str(tensor.device))
    if str(tensor.layout) != "torch.strided":
        message = f"{name}: a tensor of layout {tensor.layout}, expected torch.strided"
        raise LayoutError(message, expected="torch.strided", actual=str(tensor.layout))
    tensor = tensor.detach()
    scalar = _TORCH_ONLY.get(str(tensor.dtype))
    if scalar is None:
        view: npt.NDArray[Any] = tensor.numpy()
        return view
    torch = sys.modules["torch"]
    word = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
    words: npt.NDArray[Any] = tensor.view(word).numpy()
    return words.view(scalar)


def _from_dlpack(array: Any, name: str) -> npt.NDArray[Any]:
    device, number = array.__dlpack_device__()
    if int(device) not in _HOST_DEVICES:
        message = f"{name}: DLPack device ({int(device)}, {number}), expected memory that the CPU reads"
        raise LayoutError(message, expected=sorted(_HOST_DEVICES), actual=int(device))
    try:
        return np.from_dlpack(array)
    except (BufferError, TypeError, ValueError, RuntimeError) as exc:
        message = f"{name}: {type(array).__name__} cannot be taken through DLPack ({exc}): view its bits as integers"
        raise LayoutError(message, expected="a numpy dtype", actual=str(getattr(array, "dtype", None))) from exc


def _from_buffer(array: Any, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(memoryview(array))
    except (TypeError, ValueError, NotImplementedError) as exc:
        message = f"{name}: {type(array).__name__}, expected an array, DLPack or the buffer protocol ({exc})"
        raise LayoutError(message, expected="an array", actual=type(array).__name__) from exc


def as_words(
    array: Any, *, element_type: ElementType | npt.DTypeLike | None = None, name: str = "array", writable: bool = False
) -> tuple[Words, ElementType]:
    """Give an engine's array as unsigned words of its element type's width.

    Parameters
    ----------
    array
        As :func:`as_array` takes it. Integers hold any bits: with ``element_type`` they are its bits; bytes may hold
        a wider type, and then the last axis counts bytes and is contiguous.
    element_type
        Name, tag or dtype of the values; needed for integers and bytes, because an engine also keeps float8 and
        bfloat16 in them.
    name
        What the caller calls it, for messages.
    writable
        The caller is going to write into it.

    Returns
    -------
    words : numpy.ndarray
        Strided view of the array's shape (last axis in elements) and of ``u1``, ``u2``, ``u4``, ``u8``, or ``V16``.
    element_type : ElementType

    Raises
    ------
    LayoutError
        What :func:`as_array` raises; integers without ``element_type``; another dtype than ``element_type``; a
        read-only array where ``writable``.
    UnsupportedError
        An element type narrower than a byte: pass such rows as bytes in a layout of records.
    """
    view = as_array(array, name=name)
    if writable and not view.flags.writeable:
        message = f"{name}: read-only, expected memory to write into"
        raise LayoutError(message, expected="writable", actual="read-only")
    holds_bits = view.dtype.kind in "iuV" and view.dtype.names is None and view.dtype.isbuiltin != 2
    if element_type is None:
        if holds_bits:
            message = f"{name}: {view.dtype} may hold any bits, expected element_type= to name the values"
            raise LayoutError(message, expected="element_type=", actual=str(view.dtype))
        element = element_type_of(view.dtype)
    else:
        element = element_type_of(element_type)
    if element.is_packed:
        message = f"{name}: {element} is narrower than a byte: pass its bytes in a layout of records"
        raise UnsupportedError(message)
    word = np.dtype(f"u{element.bits // 8}") if element.bits <= 64 else np.dtype((np.void, element.bits // 8))
    same = view.dtype == element.pool_dtype
    if not same and not (holds_bits and view.dtype.itemsize in (1, word.itemsize)):
        message = f"{name}: dtype {view.dtype}, expected {element}"
        raise LayoutError(message, expected=element.name, actual=str(view.dtype))
    return _view_words(view, word, name), element


def _view_words(view: npt.NDArray[Any], word: np.dtype[Any], name: str) -> Words:
    try:
        return view.view(word)
    except (ValueError, TypeError) as exc:
        message = f"{name}: shape {view.shape}, strides {view.strides}: bytes that do not give words of {word.itemsize}"
        raise LayoutError(f"{message}: {exc}", expected=word.itemsize, actual=view.strides) from exc


def as_integers(values: Any, *, name: str) -> Int64Array:
    """Take integers of any width by value.

    Returns
    -------
    numpy.ndarray
        New int64 ``[n]``.

    Raises
    ------
    LayoutError
        No integers, not in one dimension, or beyond int64.
    """
    array = as_array(values, name=name) if is_array(values) else _listed(values, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        message = f"{name}: {array.dtype} of {array.ndim} axes, expected integers in one"
        raise LayoutError(message, expected="integers [n]", actual=f"{array.dtype} {list(array.shape)}")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        message = f"{name}: {int(array.max())} is beyond int64"
        raise LayoutError(message, expected=int(np.iinfo(np.int64).max), actual=int(array.max()))
    return array.astype(np.int64)


def is_array(values: Any) -> bool:
    """Say whether :func:`as_array` may take it: a list is none."""
    return hasattr(values, "dtype") or hasattr(values, "__dlpack__")


def _listed(values: Iterable[Any], name: str) -> npt.NDArray[Any]:
    listed = [value.item() if hasattr(value, "item") else value for value in values]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in listed):
        message = f"{name}: expected integers in one list"
        raise LayoutError(message, expected="integers", actual=sorted({type(value).__name__ for value in listed}))
    try:
        return np.array(listed, np.int64)
    except OverflowError as exc:
        raise LayoutError(f"{name}: a number beyond int64", expected="int64", actual="larger") from exc
