"""Quantization of a block-paged tensor: the section's bytes, the parameter buffers, and dequantizing.

``x = scale × (q − zero_point)`` in float32, as a pure function of arrays. The schemes themselves are in
:mod:`hurray_arrow.schemes` and are exported from here.

Spec: wire format 3; Quantization Compatibility.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow._wire import Reader
from hurray_arrow.errors import Problem, ProblemCode, QuantizationError, UnsupportedError
from hurray_arrow.schemes import (
    SCALE_DTYPES,
    SIZES_BYTES,
    SYMMETRIC,
    ZERO_POINT_DTYPE,
    OpaqueScheme,
    PerBlock,
    PerChannel,
    PerTensor,
    Quantization,
)
from hurray_arrow.spec import NO_BUFFER_INDEX, SchemeTag

__all__ = [
    "OpaqueScheme",
    "PerBlock",
    "PerChannel",
    "PerTensor",
    "Quantization",
    "decode_quantization",
    "dequantize",
    "read_quantization",
    "split_parameters",
]

Float32s: TypeAlias = npt.NDArray[np.float32]
Int32s: TypeAlias = npt.NDArray[np.int32]

_SPEC = "wire format 3"
_PAGED_SPEC = "Quantization Compatibility"


def read_quantization(reader: Reader, base: int) -> Quantization | None:
    """Read the section's payload, from offset ``base`` to the reader's end.

    Wire-only problems (reserved bits and bytes, an unknown scheme) are noted in ``reader``; the rules about the
    values are the scheme's ``validate``. Returns ``None`` for an unknown scheme; raises at once where the length is
    wrong, because nothing says where the next section begins.
    """
    raw = reader.take(reader.end - base, "quantization")
    offsets = reader.offsets
    if len(raw) < 4:
        message = f"{len(raw)} bytes, expected at least the 4 of the header"
        reader.add(ProblemCode.QUANTIZATION_LENGTH_INVALID, "quantization_length", message, spec=_SPEC)
        raise reader.error()
    tag, version, flags = struct.unpack_from("<BBH", raw)
    offsets["quantization.scheme_tag"], offsets["quantization.scheme_version"] = base, base + 1
    offsets["quantization.flags"] = base + 2
    if tag not in SIZES_BYTES:
        message = f"0x{tag:02X} is no scheme of version 1.0"
        reader.add(ProblemCode.QUANTIZATION_SCHEME_INVALID, "quantization.scheme_tag", message, spec=_SPEC)
        return None
    size = SIZES_BYTES[tag]
    if len(raw) < size:
        message = f"{len(raw)} bytes, expected at least {size} for scheme 0x{tag:02X}"
        reader.add(ProblemCode.QUANTIZATION_LENGTH_INVALID, "quantization_length", message, spec=_SPEC)
        raise reader.error()
    allowed = SYMMETRIC if tag in (SchemeTag.PER_CHANNEL, SchemeTag.PER_BLOCK) else 0
    if flags & ~allowed:
        message = f"0x{flags:04X}, allowed are the bits 0x{allowed:04X}"
        reader.add(ProblemCode.QUANTIZATION_FLAGS_RESERVED, "quantization.flags", message, spec=_SPEC)
    scheme = _scheme(tag, raw, version, symmetric=bool(flags & SYMMETRIC))
    for name, offset in scheme.field_offsets.items():
        offsets[f"quantization.{name}"] = base + offset
    reserved = raw[scheme.field_offsets.get("_reserved", size) : size]
    if any(reserved):
        message = f"reserved bytes {reserved.hex()}, expected zeros"
        reader.add(ProblemCode.RESERVED_NOT_ZERO, "quantization._reserved", message, spec=_SPEC)
    return scheme


def _scheme(tag: int, raw: bytes, version: int, *, symmetric: bool) -> Quantization:
    extra = raw[SIZES_BYTES[tag] :]
    if tag == SchemeTag.PER_TENSOR:
        scale, zero_point = struct.unpack_from("<fi", raw, 4)
        return PerTensor(scale, zero_point, scheme_version=version, extra=extra)
    if tag == SchemeTag.PER_CHANNEL:
        axis, scales, zeros, scale_type = struct.unpack_from("<IIIB", raw, 4)
        index = None if zeros == NO_BUFFER_INDEX else zeros
        return PerChannel(axis, scales, index, symmetric, scale_type, scheme_version=version, extra=extra)
    if tag == SchemeTag.PER_BLOCK:
        axis, block_size, scales, zeros, scale_type = struct.unpack_from("<IIIIB", raw, 4)
        index = None if zeros == NO_BUFFER_INDEX else zeros
        return PerBlock(axis, block_size, scales, index, scale_type, symmetric, scheme_version=version, extra=extra)
    return OpaqueScheme(tag, *struct.unpack_from("<III", raw, 4), scheme_version=version, extra=extra)


def decode_quantization(data: bytes, base_offset: int = 0) -> Quantization:
    """Decode the payload of a quantization section.

    Bytes after the scheme's own fields are kept as ``extra``. Rules that need the tensor (buffer indices, block
    size) are not checked here but by the scheme's ``validate``.

    Parameters
    ----------
    data
        The section without its u32 length.
    base_offset
        Where the payload begins in its descriptor; only moves the offsets in errors.

    Returns
    -------
    PerTensor, PerChannel, PerBlock or OpaqueScheme
        New object.

    Raises
    ------
    WireFormatError
        ``quantization_length_invalid``, ``quantization_scheme_invalid``, ``quantization_flags_reserved``,
        ``reserved_not_zero``.

    Spec: wire format 3.
    """
    reader = Reader(memoryview(data), base=base_offset)
    reader.offsets["quantization_length"] = -4
    scheme = read_quantization(reader, 0)
    if scheme is None or reader.problems:
        raise reader.error()
    return scheme


def split_parameters(
    quantization: Quantization,
    buffers: Mapping[int, npt.NDArray[np.uint8]],
    *,
    shape: Sequence[int],
    num_pages: int,
    page_size: int,
) -> tuple[npt.NDArray[Any], Int32s | None]:
    """Return the scales and zero points that the parameter buffers hold.

    Parameters
    ----------
    quantization
        The scheme.
    buffers
        uint8 ``[size in bytes]`` by buffer index.
    shape, num_pages, page_size
        The descriptor's.

    Returns
    -------
    scales : numpy.ndarray
        float32 ``[]`` (0x01), float32 ``[shape[axis]]`` (0x02), or float16, bfloat16 or float32
        ``[num_pages × page_size]`` (0x03). A view of its buffer, except for 0x01.
    zero_points : numpy.ndarray or None
        int32 of the same shape; ``None`` for a symmetric scheme. A view, except for 0x01.

    Raises
    ------
    QuantizationError
        ``buffer_missing``: a buffer is not there. ``quantization_buffer_size``: it is too short.
    UnsupportedError
        NF4 and MXFP have no rule for their parameters.

    Spec: wire format 3; Per-page-slot parameters.
    """
    if isinstance(quantization, OpaqueScheme):
        raise _unsupported(quantization)
    if isinstance(quantization, PerTensor):
        return np.asarray(quantization.scale, np.float32), np.asarray(quantization.zero_point, np.int32)
    sizes = quantization.parameter_sizes(shape, num_pages, page_size)
    for index, size in sizes.items():
        _require_buffer(buffers, index, size)
    count = int(shape[quantization.axis]) if isinstance(quantization, PerChannel) else int(num_pages) * int(page_size)
    dtype = SCALE_DTYPES[quantization.scale_type_tag]
    scales_bytes = count * dtype.itemsize
    scales = buffers[quantization.scale_buffer_index][:scales_bytes].view(dtype)
    zeros = quantization.zero_point_buffer_index
    if zeros is None:
        return scales, None
    start = scales_bytes if zeros == quantization.scale_buffer_index else 0
    return scales, buffers[zeros][start : start + count * 4].view(ZERO_POINT_DTYPE)


def _require_buffer(buffers: Mapping[int, npt.NDArray[np.uint8]], index: int, size_bytes: int) -> None:
    where = f"buffers[{index}]"
    if index not in buffers:
        message = f"there is no buffer {index}, the scheme's parameters are in it"
        raise QuantizationError(Problem(ProblemCode.BUFFER_MISSING, where, message, _PAGED_SPEC))
    if buffers[index].size < size_bytes:
        message = f"{buffers[index].size} bytes, expected {size_bytes}"
        raise QuantizationError(Problem(ProblemCode.QUANTIZATION_BUFFER_SIZE, where, message, _PAGED_SPEC))


def _unsupported(scheme: OpaqueScheme) -> UnsupportedError:
    return UnsupportedError(f"{scheme.scheme} (scheme 0x{scheme.scheme_tag:02X}) is carried but not dequantized")


def dequantize(
    values: npt.NDArray[Any],
    quantization: Quantization,
    *,
    scales: npt.NDArray[Any],
    zero_points: npt.NDArray[Any] | None = None,
) -> Float32s:
    """Compute ``scale × (q − zero_point)`` in float32.

    Parameters
    ----------
    values
        Unpacked values ``[…, num_heads, head_dim]`` of a numpy or ml_dtypes dtype.
    quantization
        The scheme.
    scales
        One (0x01); ``[num_heads]`` or ``[head_dim]`` (0x02); for 0x03 one per page slot of ``values``, so of shape
        ``values.shape[:-2]``. Widened to float32.
    zero_points
        As ``scales``; ``None`` means zeros.

    Returns
    -------
    numpy.ndarray
        New float32 array of the shape of ``values``.

    Raises
    ------
    UnsupportedError
        NF4 and MXFP; values that are complex or opaque (float128, private types).

    Notes
    -----
    An integer difference is exact and rounded once, to float32; 64-bit storage is subtracted in float64.

    Spec: wire format 3; Element Lookup.
    """
    if isinstance(quantization, OpaqueScheme):
        raise _unsupported(quantization)
    if values.dtype.kind == "c" or values.dtype.type is np.void:
        raise UnsupportedError(f"values of dtype {values.dtype} cannot be dequantized to float32")
    shift = zero_points is not None and bool(np.any(zero_points))
    # Infinities and NaN are what IEEE arithmetic answers here, and no reason to warn.
    with np.errstate(over="ignore", invalid="ignore"):
        out = _difference(values, _aligned(zero_points, quantization)) if shift else values.astype(np.float32)
        out *= _aligned(scales, quantization).astype(np.float32)
    return out


def _aligned(parameters: npt.NDArray[Any] | None, quantization: Quantization) -> npt.NDArray[Any]:
    """Return the parameters with the axes that make them broadcast over ``[…, num_heads, head_dim]``."""
    array = np.asarray(parameters)
    if isinstance(quantization, PerBlock):
        return array[..., np.newaxis, np.newaxis]
    if isinstance(quantization, PerChannel) and quantization.axis == 1:
        return array[..., np.newaxis]
    return array


def _difference(values: npt.NDArray[Any], zero_points: npt.NDArray[Any]) -> Float32s:
    kind, width = values.dtype.kind, values.dtype.itemsize
    # Up to 16 bits both terms and their difference are exact in float32, as long as the zero point is below 2²³.
    small = width <= 2 and int(np.abs(zero_points.astype(np.int64)).max(initial=0)) < 2**23
    if small or kind == "f":
        return values.astype(np.float32) - zero_points.astype(np.float32)
    if kind == "V" and not _is_integer(values.dtype):
        return values.astype(np.float32) - zero_points.astype(np.float32)
    wide = np.dtype(np.float64 if kind in "iu" and width == 8 else np.int64)
    return (values.astype(wide) - zero_points.astype(wide)).astype(np.float32)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.name in ("int4", "uint4", "int2", "uint2")
