"""The quantization schemes: what a descriptor says of each, its rules and its bytes.

Schemes 0x01 to 0x03 are understood; 0x04 (NF4) and 0x05 (MXFP) are carried byte for byte, because the layout gives
them no rule. Storage types are not restricted: the reference implementation accepts each scheme with each element
type, and production caches keep float8 with one scale per tensor or per head.

Spec: wire format 3; Quantization Compatibility.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from hurray_arrow.errors import Problem, ProblemCode
from hurray_arrow.spec import BLOCK_PAGED_RANK, NO_BUFFER_INDEX, SCHEME_NAMES, UINT32_MAX, SchemeTag

SCHEME_VERSION = 1
#: Buffers 0, 1 and 2 are the layout's own.
FIRST_PARAMETER_BUFFER = 3
SYMMETRIC = 1
SCALE_DTYPES: dict[int, np.dtype[Any]] = {
    0x01: np.dtype("<f2"),
    0x02: np.dtype(ml_dtypes.bfloat16).newbyteorder("<"),
    0x03: np.dtype("<f4"),
}
_FLOAT32_TAG = 0x03
ZERO_POINT_DTYPE = np.dtype("<i4")
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


def _normalize(scheme: Quantization, *names: str) -> None:
    # numpy integers would wrap in later arithmetic.
    for name in names:
        value = getattr(scheme, name)
        object.__setattr__(scheme, name, None if value is None else operator.index(value))
    object.__setattr__(scheme, "extra", bytes(scheme.extra))


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
        _normalize(self, "zero_point", "scheme_version")

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
        _normalize(self, "axis", "scale_buffer_index", "zero_point_buffer_index", "scale_type_tag", "scheme_version")
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
        return _header(self, SYMMETRIC * bool(self.symmetric)) + struct.pack("<IIIB3x", *words) + self.extra

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
        _normalize(self, "axis", "block_size", "scale_buffer_index", "zero_point_buffer_index", "scale_type_tag")
        _normalize(self, "scheme_version")
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
        elif self.block_size < 2 or self.block_size.bit_count() != 1:
            message = f"{self.block_size}, expected a power of two, at least 2"
            problems.append(_problem(ProblemCode.QUANTIZATION_BLOCK_SIZE_INVALID, "block_size", message))
        return problems + _parameter_problems(self, buffer_count, tuple(SCALE_DTYPES))

    def encode(self) -> bytes:
        """Return the section's bytes, without its length."""
        words = (self.axis, self.block_size, self.scale_buffer_index, _zero_point_word(self), self.scale_type_tag)
        return _header(self, SYMMETRIC * bool(self.symmetric)) + struct.pack("<IIIIB3x", *words) + self.extra

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
        _normalize(self, "scheme_tag", "axis", "block_size", "scale_buffer_index", "scheme_version")

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
        if not low <= self.block_size <= high or self.block_size.bit_count() != 1:
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
SIZES_BYTES: dict[int, int] = {
    SchemeTag.PER_TENSOR: PerTensor.size_bytes,
    SchemeTag.PER_CHANNEL: PerChannel.size_bytes,
    SchemeTag.PER_BLOCK: PerBlock.size_bytes,
    SchemeTag.NF4: OpaqueScheme.size_bytes,
    SchemeTag.MXFP: OpaqueScheme.size_bytes,
}


def _sizes(scheme: PerChannel | PerBlock, count: int) -> dict[int, int]:
    sizes = {scheme.scale_buffer_index: count * SCALE_DTYPES[scheme.scale_type_tag].itemsize}
    index = scheme.zero_point_buffer_index
    if index is not None:
        sizes[index] = sizes.get(index, 0) + count * ZERO_POINT_DTYPE.itemsize
    return sizes
