"""The quantization schemes: their fields, their bytes, their parameters, and dequantizing as a pure function.

``x = scale × (q − zero_point)`` in float32. Schemes 0x01 to 0x03 are read and written; 0x04 (NF4) and 0x05 (MXFP) are
carried byte for byte, because the layout gives them no rule.

Storage types are not restricted: the reference implementation accepts each scheme with each element type, and
production caches keep float8 with one scale per tensor or per head.

Spec: wire format 3; Quantization Compatibility.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hurray_arrow._wire import Reader
from hurray_arrow.errors import Problem, ProblemCode, QuantizationError, UnsupportedError, WireFormatError
from hurray_arrow.spec import (
    BLOCK_PAGED_RANK,
    NO_BUFFER_INDEX,
    SCHEME_NAMES,
    UINT32_MAX,
    SchemeTag,
)

Float32s: TypeAlias = npt.NDArray[np.float32]
Int32s: TypeAlias = npt.NDArray[np.int32]

SCHEME_VERSION = 1
#: Buffers 0, 1 and 2 are the layout's own.
FIRST_PARAMETER_BUFFER = 3
_SYMMETRIC = 1
_SCALE_DTYPES: dict[int, np.dtype[Any]] = {
    0x01: np.dtype("<f2"),
    0x02: np.dtype(ml_dtypes.bfloat16).newbyteorder("<"),
    0x03: np.dtype("<f4"),
}
_FLOAT32_TAG = 0x03
_ZERO_POINT_DTYPE = np.dtype("<i4")
_SPEC = "wire format 3"
_PAGED_SPEC = "Quantization Compatibility"


def _problem(code: ProblemCode, name: str, message: str, spec: str = _SPEC) -> Problem:
    return Problem(code, f"descriptor.quantization.{name}", message, spec, field=f"quantization.{name}")


def _version_problems(scheme: Quantization) -> list[Problem]:
    if scheme.scheme_version == SCHEME_VERSION:
        return []
    message = f"version {scheme.scheme_version} of {scheme.scheme}, expected {SCHEME_VERSION}"
    return [_problem(ProblemCode.QUANTIZATION_VERSION_UNSUPPORTED, "scheme_version", message)]


def _index_problems(name: str, index: int, buffer_count: int) -> list[Problem]:
    if FIRST_PARAMETER_BUFFER <= index < buffer_count:
        return []
    message = f"buffer {index}, expected {FIRST_PARAMETER_BUFFER} ≤ index < buffer_count {buffer_count}"
    return [_problem(ProblemCode.QUANTIZATION_BUFFER_INDEX_INVALID, name, message)]


def _parameter_problems(scheme: PerChannel | PerBlock, buffer_count: int, scale_types: Sequence[int]) -> list[Problem]:
    """Check what 0x02 and 0x03 have in common: the two buffers, the SYMMETRIC flag and the scale type."""
    problems = _index_problems("scale_buffer_index", scheme.scale_buffer_index, buffer_count)
    index = scheme.zero_point_buffer_index
    if scheme.symmetric != (index is None):
        flag, found = ("set", f"buffer {index}") if scheme.symmetric else ("not set", "no buffer")
        message = f"SYMMETRIC is {flag} and zero points have {found}"
        problems.append(_problem(ProblemCode.QUANTIZATION_ZERO_POINT_INVALID, "zero_point_buffer_index", message))
    elif index is not None:
        problems += _index_problems("zero_point_buffer_index", index, buffer_count)
    if scheme.scale_type_tag not in scale_types:
        expected = " or ".join(f"0x{tag:02X}" for tag in scale_types)
        message = f"0x{scheme.scale_type_tag:02X}, expected {expected}"
        problems.append(_problem(ProblemCode.QUANTIZATION_SCALE_TYPE_INVALID, "scale_type_tag", message))
    return problems


def _set_symmetric(scheme: PerChannel | PerBlock) -> None:
    if scheme.symmetric is None:
        object.__setattr__(scheme, "symmetric", scheme.zero_point_buffer_index is None)


def _to_ints(scheme: Quantization, *names: str) -> None:
    # numpy integers would wrap in later arithmetic.
    for name in names:
        value = getattr(scheme, name)
        object.__setattr__(scheme, name, None if value is None else operator.index(value))


def _header(scheme: Quantization, flags: int) -> bytes:
    return struct.pack("<BBH", scheme.scheme_tag, scheme.scheme_version, flags)


def _zero_point_word(scheme: PerChannel | PerBlock) -> int:
    return NO_BUFFER_INDEX if scheme.zero_point_buffer_index is None else scheme.zero_point_buffer_index


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Scheme 0x01: one scale and one zero point for the whole tensor, written in the descriptor.

    Parameters
    ----------
    scale
        Finite and not 0; rounded to the float32 that the wire holds.
    zero_point
        int32.
    scheme_version
        1.
    extra
        Bytes of the section after the known fields, kept as they are.

    Notes
    -----
    Spec: wire format 3.
    """

    scale: float
    zero_point: int = 0
    scheme_version: int = field(default=SCHEME_VERSION, kw_only=True)
    extra: bytes = field(default=b"", kw_only=True)

    scheme_tag: ClassVar[int] = SchemeTag.PER_TENSOR
    size_bytes: ClassVar[int] = 16
    field_offsets: ClassVar[Mapping[str, int]] = {"scale": 4, "zero_point": 8, "_reserved": 12}

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            object.__setattr__(self, "scale", float(np.float32(self.scale)))
        _to_ints(self, "zero_point", "scheme_version")

    @property
    def scheme(self) -> str:
        """The scheme's name."""
        return SCHEME_NAMES[SchemeTag.PER_TENSOR]

    def validate(self, *, page_size: int, buffer_count: int) -> list[Problem]:
        """Return the rules that the fields break; see :func:`validate_quantization`."""
        del page_size, buffer_count  # A scheme without parameter buffers has no rule about them.
        problems = _version_problems(self)
        if not math.isfinite(self.scale) or self.scale == 0:
            message = f"scale {self.scale}, expected a finite value that is not 0"
            problems.append(_problem(ProblemCode.QUANTIZATION_SCALE_INVALID, "scale", message))
        if not -(2**31) <= self.zero_point < 2**31:
            message = f"{self.zero_point} is no int32"
            problems.append(_problem(ProblemCode.FIELD_OUT_OF_RANGE, "zero_point", message))
        return problems

    def encode(self) -> bytes:
        """Return the section's bytes, without its length."""
        return _header(self, 0) + struct.pack("<fi4x", self.scale, self.zero_point) + self.extra

    def parameter_sizes(self, shape: Sequence[int], num_pages: int, page_size: int) -> dict[int, int]:
        """Return an empty dict: there are no parameter buffers."""
        del shape, num_pages, page_size
        return {}


@dataclass(frozen=True, slots=True)
class PerChannel:
    """Scheme 0x02: one scale, and maybe one zero point, per head (axis 1) or per head dimension (axis 2).

    Parameters
    ----------
    axis
        1 or 2; the token axis 0 is not allowed.
    scale_buffer_index
        Buffer of ``shape[axis]`` float32 scales.
    zero_point_buffer_index
        Buffer of as many int32 zero points; ``None`` for none. May be the scales' buffer: [scales | zero_points].
    symmetric
        The SYMMETRIC flag; ``None`` derives it from ``zero_point_buffer_index``.
    scale_type_tag
        0x03 (float32).
    scheme_version
        1.
    extra
        Bytes of the section after the known fields, kept as they are.

    Notes
    -----
    Spec: wire format 3; Quantization Compatibility.
    """

    axis: int
    scale_buffer_index: int
    zero_point_buffer_index: int | None = None
    symmetric: bool | None = None
    scale_type_tag: int = _FLOAT32_TAG
    scheme_version: int = field(default=SCHEME_VERSION, kw_only=True)
    extra: bytes = field(default=b"", kw_only=True)

    scheme_tag: ClassVar[int] = SchemeTag.PER_CHANNEL
    size_bytes: ClassVar[int] = 20
    field_offsets: ClassVar[Mapping[str, int]] = {
        "axis": 4,
        "scale_buffer_index": 8,
        "zero_point_buffer_index": 12,
        "scale_type_tag": 16,
        "_reserved": 17,
    }

    def __post_init__(self) -> None:
        _to_ints(self, "axis", "scale_buffer_index", "zero_point_buffer_index", "scale_type_tag", "scheme_version")
        _set_symmetric(self)

    @property
    def scheme(self) -> str:
        """The scheme's name."""
        return SCHEME_NAMES[SchemeTag.PER_CHANNEL]

    def validate(self, *, page_size: int, buffer_count: int) -> list[Problem]:
        """Return the rules that the fields break; see :func:`validate_quantization`."""
        del page_size  # Channels do not follow pages.
        problems = _version_problems(self)
        if self.axis not in (1, 2):
            message = f"axis {self.axis}, expected 1 (num_heads) or 2 (head_dim)"
            problems.append(_problem(ProblemCode.QUANTIZATION_AXIS_INVALID, "axis", message, _PAGED_SPEC))
        return problems + _parameter_problems(self, buffer_count, (_FLOAT32_TAG,))

    def encode(self) -> bytes:
        """Return the section's bytes, without its length."""
        words = (self.axis, self.scale_buffer_index, _zero_point_word(self), self.scale_type_tag)
        return _header(self, _SYMMETRIC * bool(self.symmetric)) + struct.pack("<IIIB3x", *words) + self.extra

    def parameter_sizes(self, shape: Sequence[int], num_pages: int, page_size: int) -> dict[int, int]:
        """Return the exact size in bytes of each parameter buffer by its index."""
        del num_pages, page_size
        return _sizes(self, int(shape[self.axis]))


@dataclass(frozen=True, slots=True)
class PerBlock:
    """Scheme 0x03: one scale, and maybe one zero point, per page slot.

    Parameters
    ----------
    axis
        0, the token axis.
    block_size
        The descriptor's page_size; a power of two, at least 2.
    scale_buffer_index
        Buffer of ``num_pages × page_size`` scales.
    zero_point_buffer_index
        Buffer of as many int32 zero points; ``None`` for none. May be the scales' buffer: [scales | zero_points].
    scale_type_tag
        0x01 (float16), 0x02 (bfloat16) or 0x03 (float32).
    symmetric
        The SYMMETRIC flag; ``None`` derives it from ``zero_point_buffer_index``.
    scheme_version
        1.
    extra
        Bytes of the section after the known fields, kept as they are.

    Notes
    -----
    ``block_size ≤ shape[0]`` is not asked for: parameters follow pages and not tokens.

    Spec: wire format 3; Quantization Compatibility.
    """

    axis: int
    block_size: int
    scale_buffer_index: int
    zero_point_buffer_index: int | None = None
    scale_type_tag: int = _FLOAT32_TAG
    symmetric: bool | None = None
    scheme_version: int = field(default=SCHEME_VERSION, kw_only=True)
    extra: bytes = field(default=b"", kw_only=True)

    scheme_tag: ClassVar[int] = SchemeTag.PER_BLOCK
    size_bytes: ClassVar[int] = 24
    field_offsets: ClassVar[Mapping[str, int]] = {
        "axis": 4,
        "block_size": 8,
        "scale_buffer_index": 12,
        "zero_point_buffer_index": 16,
        "scale_type_tag": 20,
        "_reserved": 21,
    }

    def __post_init__(self) -> None:
        _to_ints(self, "axis", "block_size", "scale_buffer_index", "zero_point_buffer_index", "scale_type_tag")
        _to_ints(self, "scheme_version")
        _set_symmetric(self)

    @property
    def scheme(self) -> str:
        """The scheme's name."""
        return SCHEME_NAMES[SchemeTag.PER_BLOCK]

    def validate(self, *, page_size: int, buffer_count: int) -> list[Problem]:
        """Return the rules that the fields break; see :func:`validate_quantization`."""
        problems = _version_problems(self)
        if self.axis != 0:
            message = f"axis {self.axis}, expected 0 (tokens)"
            problems.append(_problem(ProblemCode.QUANTIZATION_AXIS_INVALID, "axis", message, _PAGED_SPEC))
        if self.block_size != page_size:
            message = f"{self.block_size}, expected page_size {page_size}"
            problems.append(_problem(ProblemCode.QUANTIZATION_BLOCK_SIZE_INVALID, "block_size", message, _PAGED_SPEC))
        elif not _is_power_of_two(self.block_size) or self.block_size < 2:
            message = f"{self.block_size}, expected a power of two, at least 2"
            problems.append(_problem(ProblemCode.QUANTIZATION_BLOCK_SIZE_INVALID, "block_size", message))
        return problems + _parameter_problems(self, buffer_count, tuple(_SCALE_DTYPES))

    def encode(self) -> bytes:
        """Return the section's bytes, without its length."""
        words = (self.axis, self.block_size, self.scale_buffer_index, _zero_point_word(self), self.scale_type_tag)
        return _header(self, _SYMMETRIC * bool(self.symmetric)) + struct.pack("<IIIIB3x", *words) + self.extra

    def parameter_sizes(self, shape: Sequence[int], num_pages: int, page_size: int) -> dict[int, int]:
        """Return the exact size in bytes of each parameter buffer by its index."""
        del shape
        return _sizes(self, int(num_pages) * int(page_size))


@dataclass(frozen=True, slots=True)
class OpaqueScheme:
    """Scheme 0x04 (NF4) or 0x05 (MXFP): carried and listed, never dequantized.

    Parameters
    ----------
    scheme_tag
        0x04 or 0x05.
    axis
        0, 1 or 2.
    block_size
        A power of two: at least 8 for NF4, 16 to 2048 for MXFP.
    scale_buffer_index
        Buffer of the scales; the layout gives no rule for its size.
    scheme_version
        1.
    extra
        Bytes of the section after the known fields, kept as they are.

    Notes
    -----
    Spec: wire format 3.
    """

    scheme_tag: int
    axis: int
    block_size: int
    scale_buffer_index: int
    scheme_version: int = field(default=SCHEME_VERSION, kw_only=True)
    extra: bytes = field(default=b"", kw_only=True)

    size_bytes: ClassVar[int] = 16
    field_offsets: ClassVar[Mapping[str, int]] = {"axis": 4, "block_size": 8, "scale_buffer_index": 12}

    def __post_init__(self) -> None:
        _to_ints(self, "scheme_tag", "axis", "block_size", "scale_buffer_index", "scheme_version")

    @property
    def scheme(self) -> str:
        """The scheme's name, or its tag in hex where it has none."""
        return _OPAQUE_NAMES.get(self.scheme_tag, f"0x{self.scheme_tag:02X}")

    def validate(self, *, page_size: int, buffer_count: int) -> list[Problem]:
        """Return the rules that the fields break; see :func:`validate_quantization`."""
        del page_size  # The layout ties no rule of these schemes to its pages.
        if self.scheme_tag not in _OPAQUE_BLOCK_SIZES:
            message = f"0x{self.scheme_tag:02X}, expected 0x04 (NF4) or 0x05 (MXFP)"
            return [_problem(ProblemCode.QUANTIZATION_SCHEME_INVALID, "scheme_tag", message)]
        problems = _version_problems(self)
        if not 0 <= self.axis < BLOCK_PAGED_RANK:
            message = f"axis {self.axis}, expected 0, 1 or 2"
            problems.append(_problem(ProblemCode.QUANTIZATION_AXIS_INVALID, "axis", message))
        low, high = _OPAQUE_BLOCK_SIZES[self.scheme_tag]
        if not _is_power_of_two(self.block_size) or not low <= self.block_size <= high:
            message = f"{self.block_size}, expected a power of two in {low}…{high}"
            problems.append(_problem(ProblemCode.QUANTIZATION_BLOCK_SIZE_INVALID, "block_size", message))
        return problems + _index_problems("scale_buffer_index", self.scale_buffer_index, buffer_count)

    def encode(self) -> bytes:
        """Return the section's bytes, without its length."""
        return _header(self, 0) + struct.pack("<III", self.axis, self.block_size, self.scale_buffer_index) + self.extra

    def parameter_sizes(self, shape: Sequence[int], num_pages: int, page_size: int) -> dict[int, int]:
        """Return an empty dict: no rule gives the size of the scale buffer."""
        del shape, num_pages, page_size
        return {}


Quantization: TypeAlias = PerTensor | PerChannel | PerBlock | OpaqueScheme

_OPAQUE_NAMES: dict[int, str] = {tag: SCHEME_NAMES[tag] for tag in (SchemeTag.NF4, SchemeTag.MXFP)}
_OPAQUE_BLOCK_SIZES: dict[int, tuple[int, int]] = {SchemeTag.NF4: (8, UINT32_MAX), SchemeTag.MXFP: (16, 2048)}
_SIZES_BYTES: dict[int, int] = {
    SchemeTag.PER_TENSOR: PerTensor.size_bytes,
    SchemeTag.PER_CHANNEL: PerChannel.size_bytes,
    SchemeTag.PER_BLOCK: PerBlock.size_bytes,
    SchemeTag.NF4: OpaqueScheme.size_bytes,
    SchemeTag.MXFP: OpaqueScheme.size_bytes,
}


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _sizes(scheme: PerChannel | PerBlock, count: int) -> dict[int, int]:
    sizes = {scheme.scale_buffer_index: count * _SCALE_DTYPES[scheme.scale_type_tag].itemsize}
    index = scheme.zero_point_buffer_index
    if index is not None:
        sizes[index] = sizes.get(index, 0) + count * _ZERO_POINT_DTYPE.itemsize
    return sizes


def read_quantization(reader: Reader, base: int) -> Quantization | None:
    """Read the section's payload, from offset ``base`` to the reader's end.

    Wire-only problems (reserved bits and bytes, an unknown scheme) are noted in ``reader``; the rules about the
    values are the scheme's ``validate``. Returns ``None`` where nothing can be read.
    """
    raw = reader.take(reader.end - base, "quantization")
    offsets = reader.offsets
    if len(raw) < 4:
        message = f"{len(raw)} bytes, expected at least the 4 of the header"
        reader.add(ProblemCode.QUANTIZATION_LENGTH_INVALID, "quantization_length", message, spec=_SPEC)
        return None
    tag, version, flags = struct.unpack_from("<BBH", raw)
    offsets["quantization.scheme_tag"], offsets["quantization.scheme_version"] = base, base + 1
    offsets["quantization.flags"] = base + 2
    if tag not in _SIZES_BYTES:
        message = f"0x{tag:02X} is no scheme of version 1.0"
        reader.add(ProblemCode.QUANTIZATION_SCHEME_INVALID, "quantization.scheme_tag", message, spec=_SPEC)
        return None
    size = _SIZES_BYTES[tag]
    if len(raw) < size:
        message = f"{len(raw)} bytes, expected at least {size} for scheme 0x{tag:02X}"
        reader.add(ProblemCode.QUANTIZATION_LENGTH_INVALID, "quantization_length", message, spec=_SPEC)
        return None
    allowed = _SYMMETRIC if tag in (SchemeTag.PER_CHANNEL, SchemeTag.PER_BLOCK) else 0
    if flags & ~allowed:
        message = f"0x{flags:04X}, allowed are the bits 0x{allowed:04X}"
        reader.add(ProblemCode.QUANTIZATION_FLAGS_RESERVED, "quantization.flags", message, spec=_SPEC)
    scheme = _scheme(tag, raw, version, symmetric=bool(flags & _SYMMETRIC))
    for name, offset in scheme.field_offsets.items():
        offsets[f"quantization.{name}"] = base + offset
    reserved = raw[scheme.field_offsets.get("_reserved", size) : size]
    if any(reserved):
        message = f"reserved bytes {reserved.hex()}, expected zeros"
        reader.add(ProblemCode.RESERVED_NOT_ZERO, "quantization._reserved", message, spec=_SPEC)
    return scheme


def _scheme(tag: int, raw: bytes, version: int, *, symmetric: bool) -> Quantization:
    extra = raw[_SIZES_BYTES[tag] :]
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

    Notes
    -----
    Spec: wire format 3.
    """
    reader = Reader(memoryview(data))
    reader.offsets["quantization_length"] = -4
    scheme = read_quantization(reader, 0)
    if scheme is None or reader.problems:
        raise WireFormatError(
            replace(problem, offset_bytes=base_offset + (problem.offset_bytes or 0)) for problem in reader.problems
        )
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

    Notes
    -----
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
    dtype = _SCALE_DTYPES[quantization.scale_type_tag]
    scales_bytes = count * dtype.itemsize
    scales = buffers[quantization.scale_buffer_index][:scales_bytes].view(dtype)
    zeros = quantization.zero_point_buffer_index
    if zeros is None:
        return scales, None
    start = scales_bytes if zeros == quantization.scale_buffer_index else 0
    return scales, buffers[zeros][start : start + count * 4].view(_ZERO_POINT_DTYPE)


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
