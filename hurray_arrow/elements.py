"""Element types: tag, width, numpy dtype, and the packing of values narrower than a byte.

Packing runs over the whole page pool and not page by page: element ``i`` of a type of ``B`` bits lies at bits
``i*B`` to ``i*B + B`` of the pool, least significant bit first. So a page of an odd number of 4-bit elements does
not start on a byte.

Spec: wire format 4.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import InvalidDescriptorError, InvariantError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.packing import codes_at, pack_codes, packed_size_bytes, unpack_codes
from hurray_arrow.private_types import PrivateType
from hurray_arrow.spec import PRIVATE_TAGS

__all__ = ["ELEMENT_TYPES", "ElementType", "PrivateType", "element_type", "validate_element_type"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Values: TypeAlias = npt.NDArray[Any]

_SPEC = "wire format 4"


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of the specification. Get one with :func:`element_type`.

    Parameters
    ----------
    tag
        The wire's type tag.
    name
        The specification's name, or ``private_0xF0``… for a private type.
    bits
        Width of one element.
    private
        The extension-type section of a private type.

    Spec: wire format 4.
    """

    tag: int
    name: str
    bits: int
    private: PrivateType | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy or ml_dtypes dtype of one unpacked value; ``None`` for float128 and private types."""
        return _DTYPES.get(self.tag)

    @property
    def pool_dtype(self) -> np.dtype[Any]:
        """The dtype of a page pool array: uint8 for packed types, ``V16`` and the like for opaque ones."""
        if self.is_packed:
            return np.dtype(np.uint8)
        return self.dtype or np.dtype((np.void, self.bits // 8))

    @property
    def is_packed(self) -> bool:
        """Whether an element is narrower than a byte."""
        return self.bits < 8

    def size_bytes(self, count: int) -> int:
        """Return the bytes that ``count`` elements take, in Python integers that never wrap.

        Parameters
        ----------
        count
            Elements, packed without gaps.

        Returns
        -------
        int
            Bytes, the last one filled up.

        Spec: wire format 4, packing; Storage Invariants 4.
        """
        return packed_size_bytes(operator.index(count), self.bits)

    def page_bytes(self, page_elems: int) -> int | None:
        """Return the bytes of a page of ``page_elems`` elements; ``None`` where that is no whole number of bytes."""
        whole, rest = divmod(operator.index(page_elems) * self.bits, 8)
        return None if rest else whole

    def pack(self, values: Values) -> Bytes:
        """Pack values into bytes, least significant bit first.

        Parameters
        ----------
        values
            Array of any shape, of :attr:`dtype`, or uint8 codes for a private type; taken in C order.

        Returns
        -------
        numpy.ndarray
            New uint8 array ``[size_bytes(values.size)]``; unused high bits are 0.

        Raises
        ------
        UnsupportedError
            The type is not packed.
        InvariantError
            ``buffer_dtype``: the values are of another dtype.

        Spec: wire format 4, packing.
        """
        self._require_packed()
        expected = self.dtype or np.dtype(np.uint8)
        if values.dtype != expected:
            message = f"dtype {values.dtype}, expected {expected}: convert with values.astype({expected.name!r})"
            raise InvariantError(Problem(ProblemCode.BUFFER_DTYPE, "values", message, _SPEC))
        return pack_codes(np.ascontiguousarray(values).reshape(-1).view(np.uint8), self.bits)

    def unpack(self, raw: Bytes, count: int, *, start: int = 0) -> Values:
        """Unpack ``count`` elements from element ``start`` on.

        Parameters
        ----------
        raw
            The pool's bytes, uint8 ``[n]``.
        count, start
            Elements.

        Returns
        -------
        numpy.ndarray
            New array ``[count]`` of :attr:`dtype`, or of uint8 codes for a private type.

        Raises
        ------
        UnsupportedError
            The type is not packed.
        IndexError
            ``raw`` does not hold these elements.

        Spec: wire format 4, packing.
        """
        self._require_packed()
        count, start = operator.index(count), operator.index(start)
        if count < 0 or start < 0 or -(-(start + count) * self.bits // 8) > raw.size:
            raise IndexError(f"elements {start} to {start + count} of {self.name} are not in {raw.size} bytes")
        return self._values(unpack_codes(raw, self.bits, start=start, count=count))

    def unpack_at(self, raw: Bytes, indices: npt.NDArray[np.int64]) -> Values:
        """Gather elements out of a packed pool.

        Parameters
        ----------
        raw
            The pool's bytes, uint8 ``[n]``.
        indices
            int64 element numbers, of any shape; numpy checks that they lie in ``raw``.

        Returns
        -------
        numpy.ndarray
            New array of the shape of ``indices`` and of :attr:`dtype` (uint8 codes for a private type).

        Raises
        ------
        UnsupportedError
            The type is not packed.
        IndexError
            An index is negative or not in ``raw``.

        Spec: wire format 4, packing.
        """
        self._require_packed()
        if indices.size and int(indices.min()) < 0:
            raise IndexError(f"element {int(indices.min())} of {self.name}: negative")
        return self._values(codes_at(raw, self.bits, indices))

    def _require_packed(self) -> None:
        if not self.is_packed:
            raise UnsupportedError(f"{self.name} has whole bytes and is not packed: use array.view(pool_dtype)")

    def _values(self, codes: Bytes) -> Values:
        # ml_dtypes keeps a narrow value in the low bits of its byte and extends the sign itself.
        return codes if self.dtype is None else codes.view(self.dtype)


_BUILT_IN: tuple[tuple[int, str, int, Any], ...] = (
    (0x01, "float16", 16, np.float16),
    (0x02, "bfloat16", 16, ml_dtypes.bfloat16),
    (0x03, "float32", 32, np.float32),
    (0x04, "float64", 64, np.float64),
    (0x10, "int8", 8, np.int8),
    (0x11, "uint8", 8, np.uint8),
    (0x12, "int16", 16, np.int16),
    (0x13, "uint16", 16, np.uint16),
    (0x14, "int32", 32, np.int32),
    (0x15, "uint32", 32, np.uint32),
    (0x16, "int64", 64, np.int64),
    (0x17, "uint64", 64, np.uint64),
    (0x20, "bool", 1, np.bool_),
    (0x40, "float8_e4m3", 8, ml_dtypes.float8_e4m3fn),
    (0x41, "float8_e5m2", 8, ml_dtypes.float8_e5m2),
    (0x42, "float8_e8m0", 8, ml_dtypes.float8_e8m0fnu),
    (0x43, "float4_e2m1", 4, ml_dtypes.float4_e2m1fn),
    (0x44, "float6_e2m3", 6, ml_dtypes.float6_e2m3fn),
    (0x45, "float6_e3m2", 6, ml_dtypes.float6_e3m2fn),
    (0x46, "float128", 128, None),
    (0x48, "int4", 4, ml_dtypes.int4),
    (0x49, "uint4", 4, ml_dtypes.uint4),
    (0x4A, "int2", 2, ml_dtypes.int2),
    (0x4B, "uint2", 2, ml_dtypes.uint2),
    (0x50, "complex64", 64, np.complex64),
    (0x51, "complex128", 128, np.complex128),
)
# The wire is little-endian, so on a big-endian host the pool's dtype is the swapped one.
_DTYPES = {tag: np.dtype(scalar).newbyteorder("<") for tag, _, _, scalar in _BUILT_IN if scalar is not None}
_BY_TAG = {tag: ElementType(tag, name, bits) for tag, name, bits, _ in _BUILT_IN}
_BY_DTYPE = {dtype: _BY_TAG[tag] for tag, dtype in _DTYPES.items()}

#: Every built-in element type by name.
ELEMENT_TYPES: dict[str, ElementType] = {each.name: each for each in _BY_TAG.values()}


def _names() -> Iterator[str]:
    yield from ELEMENT_TYPES
    yield "private_0xF0…private_0xFE"


def element_type(
    which: ElementType | SupportsIndex | npt.DTypeLike, *, private: PrivateType | None = None
) -> ElementType:
    """Return the element type that a tag, a name or a dtype names.

    Parameters
    ----------
    which
        Wire tag, name such as ``"bfloat16"`` or ``"private_0xF3"``, numpy or ml_dtypes dtype, or an element type.
    private
        What the extension-type section says: needed for private types, refused for all others.

    Returns
    -------
    ElementType

    Raises
    ------
    InvalidDescriptorError
        ``element_type_invalid``: no such type. ``extension_flag_mismatch``: ``private`` is missing or too much.
        ``extension_type_invalid``, ``field_out_of_range``: ``private`` breaks the section's rules.
    UnsupportedError
        A dtype that no element type has: big-endian, ``numpy.longdouble``, structured, …

    Examples
    --------
    >>> ha.element_type("int4").pack(np.array([1, 2, 3], "int4")).tolist()  # least significant bits first
    [33, 3]

    Spec: wire format 4.
    """
    if isinstance(which, ElementType):
        if private not in (None, which.private):
            raise _mismatch(f"{which.name} has another extension-type section than private=")
        return which
    tag = _tag(which)
    if tag in PRIVATE_TAGS:
        if private is None:
            raise _mismatch(f"private type 0x{tag:02X} needs private=PrivateType(bit_width, …)")
        if problems := private.validate():
            raise InvalidDescriptorError(problems)
        return ElementType(tag, f"private_0x{tag:02X}", private.bit_width, private)
    found = _BY_TAG.get(tag)
    if found is None:
        message = f"no element type 0x{tag:02X}, expected one of {', '.join(_names())}"
        raise InvalidDescriptorError(_element_problem(ProblemCode.ELEMENT_TYPE_INVALID, message))
    if private is not None:
        raise _mismatch(f"{found.name} is no private type and has no extension-type section")
    return found


def _tag(which: SupportsIndex | npt.DTypeLike) -> int:
    if isinstance(which, str):
        if which in ELEMENT_TYPES:
            return ELEMENT_TYPES[which].tag
        prefix, _, digits = which.partition("private_0x")
        if not prefix and len(digits) == 2 and digits.upper() in (f"{tag:02X}" for tag in PRIVATE_TAGS):
            return int(digits, 16)
        from difflib import get_close_matches

        meant = "".join(f" (did you mean {name}?)" for name in get_close_matches(which, ELEMENT_TYPES, 1, 0.5))
        message = f"no element type {which!r}{meant}, expected one of {', '.join(_names())}"
        raise InvalidDescriptorError(_element_problem(ProblemCode.ELEMENT_TYPE_INVALID, message))
    # numpy's integer classes have __index__ too, and name dtypes.
    if isinstance(which, SupportsIndex) and not isinstance(which, type):
        return operator.index(which)
    if which is None:
        # numpy takes None for float64.
        raise InvalidDescriptorError(_element_problem(ProblemCode.ELEMENT_TYPE_INVALID, "None is no element type"))
    dtype = np.dtype(which)
    if dtype in _BY_DTYPE:
        return _BY_DTYPE[dtype].tag
    if dtype.newbyteorder("<") in _BY_DTYPE:
        raise UnsupportedError(f"dtype {dtype} is big-endian: convert with array.astype(array.dtype.newbyteorder('<'))")
    raise UnsupportedError(f"dtype {dtype} is no element type, expected one of {', '.join(_names())}")


def _element_problem(code: ProblemCode, message: str) -> Problem:
    return Problem(code, "descriptor.element_type", message, _SPEC, field="element_type")


def _mismatch(message: str) -> InvalidDescriptorError:
    return InvalidDescriptorError(_element_problem(ProblemCode.EXTENSION_FLAG_MISMATCH, message))


def validate_element_type(which: ElementType) -> list[Problem]:
    """Return what is wrong with an element type that did not come from :func:`element_type`.

    Returns
    -------
    list of Problem
        Codes as those of :func:`element_type`; ``.field`` is ``element_type`` or ``extension_type.<name>``.
    """
    try:
        expected = element_type(which.tag, private=which.private)
    except InvalidDescriptorError as error:
        return list(error.problems)
    if which != expected:
        return [_element_problem(ProblemCode.ELEMENT_TYPE_INVALID, f"{which!r}, expected {expected!r}")]
    return []
