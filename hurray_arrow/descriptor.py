"""What a block-paged tensor says of itself, and its HRRY bytes.

Decoding is strict; where it refuses what the reference implementation (pyhurray 0.1.0) accepts, the reason is in
``tests/conformance/differences.py``. Kept although no writer of version 1.0 writes it:

- a quantization section longer than its scheme (padding, or fields of a newer minor version) keeps its extra bytes;
- bytes after the last section are kept as ``trailing`` from minor version 1 on, and refused at minor version 0.

Spec: wire format 1; Additional Descriptor Fields; Quantization Compatibility; Alignment.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from hurray_arrow._wire import Reader
from hurray_arrow.codec import check_kinds, integer, member_or_value, read_body, read_header
from hurray_arrow.elements import ElementType, element_type, validate_element_type
from hurray_arrow.errors import InvalidDescriptorError, Problem, ProblemCode, QuantizationError, WireFormatError
from hurray_arrow.quantization import Quantization
from hurray_arrow.sections import BufferHandle, Statistics, validate_handles
from hurray_arrow.spec import (
    BLOCK_PAGED_LAYOUT_TAG,
    BLOCK_PAGED_RANK,
    DYNAMIC_DIMENSION,
    HEADER_BYTES,
    INDEX_TYPE_BYTES,
    INDEX_TYPES,
    KV_ROLES,
    MAGIC,
    NOT_LAYER_SCOPED,
    UINT32_MAX,
    UINT64_MAX,
    VERSION_MAJOR,
    VERSION_MINOR,
    Flag,
    IndexType,
    KvRole,
)

__all__ = ["BlockPagedDescriptor", "BufferHandle", "Statistics"]

BytesLike: TypeAlias = bytes | bytearray | memoryview

_SPEC = "wire format 1"
_PAGED_SPEC = "Additional Descriptor Fields"
_MAX_BUFFERS = 255
_LAYOUT_BUFFERS = 3
_HEADER = struct.Struct("<4sBBIIBBI")
_SHAPE = struct.Struct("<3QQ")
_PAGED = struct.Struct("<IQIIBIB6x")
#: Rules that the specification lets a permissive reader pass over (Storage Invariants 6).
_TOLERABLE = frozenset({ProblemCode.PAGED_AXIS_INVALID})


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPagedDescriptor:
    """The descriptor of a block-paged tensor: immutable, and valid from the moment it exists.

    Parameters
    ----------
    element_type
        The element type, or its name, tag or dtype.
    shape
        ``(total_tokens, num_heads, head_dim)``.
    page_size
        Tokens in a page.
    num_pages
        Pages in the pool.
    num_seqs
        Sequences.
    kv_role
        Key, value or fused; also as its name.
    layer_index
        The layer; ``None`` where the tensor belongs to no layer.
    index_type
        Element type of block_table and seq_ptr; also as its name.
    buffers
        page_pool, block_table, seq_ptr, then the quantization parameters.
    quantization
        The scheme, if any.
    statistics
        What the producer computed of the values, if anything.
    version_major, version_minor
        Version of the descriptor format.
    trailing
        Unknown bytes of a newer minor version.
    paged_axis
        0; another value is only let through by ``permissive``.
    permissive
        Let pass what the specification lets a permissive reader pass; :meth:`validate` still reports it.

    Raises
    ------
    InvalidDescriptorError
        Everything that :meth:`validate` finds. A :class:`QuantizationError` where only the scheme is wrong.

    Spec: wire format 1; Additional Descriptor Fields.
    """

    element_type: ElementType
    shape: tuple[int, int, int]
    page_size: int
    num_pages: int
    num_seqs: int
    kv_role: KvRole
    layer_index: int | None = None
    index_type: IndexType = IndexType.UINT32
    buffers: tuple[BufferHandle, ...]
    quantization: Quantization | None = None
    statistics: Statistics | None = None
    version_major: int = VERSION_MAJOR
    version_minor: int = VERSION_MINOR
    trailing: bytes = b""
    paged_axis: int = 0
    permissive: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # numpy integers would wrap in later arithmetic, so only Python integers stay.
        self._set("element_type", element_type(self.element_type))
        self._set("shape", tuple(operator.index(size) for size in self.shape))
        for name in ("page_size", "num_pages", "num_seqs", "version_major", "version_minor", "paged_axis"):
            self._set(name, integer(getattr(self, name), name))
        self._set("layer_index", None if self.layer_index is None else integer(self.layer_index, "layer_index"))
        check_kinds(quantization=self.quantization, statistics=self.statistics)
        self._set("kv_role", member_or_value(KvRole, self.kv_role, KV_ROLES))
        self._set("index_type", member_or_value(IndexType, self.index_type, INDEX_TYPES))
        self._set("buffers", tuple(self.buffers))
        self._set("trailing", bytes(self.trailing))
        self.check()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # -- what follows from the fields ------------------------------------------------------------------------------

    @property
    def total_tokens(self) -> int:
        """Tokens of all sequences."""
        return self.shape[0]

    @property
    def num_heads(self) -> int:
        """Heads."""
        return self.shape[1]

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.shape[2]

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """``(page_size, num_heads, head_dim)``."""
        return (self.page_size, self.num_heads, self.head_dim)

    @property
    def page_elems(self) -> int:
        """Elements in a page."""
        return self.page_size * self.num_heads * self.head_dim

    @property
    def pool_elems(self) -> int:
        """Elements in the page pool."""
        return self.num_pages * self.page_elems

    @property
    def pool_bytes(self) -> int:
        """Bytes that the page pool must have (Storage Invariants 4)."""
        return self.element_type.size_bytes(self.pool_elems)

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """The little-endian dtype of block_table and seq_ptr."""
        return np.dtype(f"<u{INDEX_TYPE_BYTES[self.index_type]}")

    @property
    def total_logical_pages(self) -> int:
        """Entries of block_table, from the size of its buffer."""
        return self.buffers[1].byte_size // INDEX_TYPE_BYTES[self.index_type]

    @property
    def flags(self) -> Flag:
        """The header's flags."""
        flags = Flag(0)
        if self.quantization is not None:
            flags |= Flag.QUANTIZATION
        if self.element_type.private is not None:
            flags |= Flag.EXTENSION_TYPE
        if self.statistics is not None:
            flags |= Flag.STATISTICS
        return flags

    # -- rules -----------------------------------------------------------------------------------------------------

    def validate(self) -> list[Problem]:
        """Return every rule that the fields break.

        The arrays are not looked at: see :mod:`hurray_arrow.invariants`.

        Returns
        -------
        list of Problem
            Empty for a valid descriptor. ``.field`` names the field in the specification's words.

        Spec: wire format 1 to 4; Additional Descriptor Fields; Quantization Compatibility; Alignment.
        """
        problems = [*self._broken_versions(), *validate_element_type(self.element_type), *self._broken_fields()]
        problems += validate_handles(self.buffers)
        if self.quantization is not None:
            problems += self.quantization.validate(page_size=self.page_size, buffer_count=len(self.buffers))
        if self.statistics is not None:
            problems += self.statistics.validate()
        return problems

    def check(self) -> None:
        """Raise what :meth:`validate` finds; what ``permissive`` tolerates does not count.

        Raises
        ------
        InvalidDescriptorError
            With all problems; a :class:`QuantizationError` where only the scheme is wrong.
        """
        problems = self.validate()
        if self.permissive:
            problems = [problem for problem in problems if problem.code not in _TOLERABLE]
        if not problems:
            return
        only_quantization = all((problem.field or "").startswith("quantization") for problem in problems)
        raise QuantizationError(problems) if only_quantization else InvalidDescriptorError(problems)

    def _broken_versions(self) -> Iterator[Problem]:
        if self.version_major != VERSION_MAJOR:
            message = f"{self.version_major}, expected {VERSION_MAJOR}"
            yield _problem(ProblemCode.VERSION_UNSUPPORTED, "version_major", message)
        if not 0 <= self.version_minor <= 255:
            yield _problem(ProblemCode.FIELD_OUT_OF_RANGE, "version_minor", f"{self.version_minor} is not in 0…255")
        if self.trailing and self.version_minor <= VERSION_MINOR:
            message = f"{len(self.trailing)} bytes after the last section, in version 1.{self.version_minor}"
            yield _problem(ProblemCode.TRAILING_DATA, "trailing", message)

    def _broken_fields(self) -> Iterator[Problem]:
        if len(self.shape) != BLOCK_PAGED_RANK:
            yield _problem(ProblemCode.RANK_INVALID, "rank", f"{len(self.shape)}, expected 3", "Description")
        for axis, size in enumerate(self.shape):
            if size == DYNAMIC_DIMENSION:
                message = "the dynamic dimension: no sizes can be computed"
                yield _problem(ProblemCode.DYNAMIC_DIMENSION, f"shape[{axis}]", message)
            elif not 0 <= size < DYNAMIC_DIMENSION:
                yield _problem(ProblemCode.FIELD_OUT_OF_RANGE, f"shape[{axis}]", f"{size} is no uint64")
        if not 1 <= self.page_size <= UINT32_MAX:
            message = f"{self.page_size}, expected 1…{UINT32_MAX}"
            yield _problem(ProblemCode.PAGE_SIZE_INVALID, "page_size", message, _PAGED_SPEC)
        limits = {"num_pages": UINT64_MAX, "num_seqs": UINT32_MAX, "layer_index": NOT_LAYER_SCOPED - 1}
        for name, largest in limits.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= largest:
                message = f"{value} is not in 0…{largest}"
                yield _problem(ProblemCode.FIELD_OUT_OF_RANGE, name, message, _PAGED_SPEC)
        if self.paged_axis != 0:
            message = f"{self.paged_axis}, expected 0"
            yield _problem(ProblemCode.PAGED_AXIS_INVALID, "paged_axis", message, "Storage Invariants 6")
        if self.kv_role not in tuple(KvRole):
            message = f"{self.kv_role!r}, expected one of {', '.join(KV_ROLES)}"
            yield _problem(ProblemCode.KV_ROLE_INVALID, "kv_role", message, _PAGED_SPEC)
        if self.index_type not in tuple(IndexType):
            message = f"{self.index_type!r}, expected one of {', '.join(INDEX_TYPES)}"
            yield _problem(ProblemCode.INDEX_TYPE_INVALID, "block_table_index_type", message, _PAGED_SPEC)
        if len(self.buffers) < _LAYOUT_BUFFERS:
            message = f"{len(self.buffers)}, expected at least 3"
            yield _problem(ProblemCode.BUFFER_COUNT_TOO_SMALL, "buffer_count", message, "Buffer Table")
        if len(self.buffers) > _MAX_BUFFERS:
            message = f"{len(self.buffers)} buffers, expected at most {_MAX_BUFFERS}"
            yield _problem(ProblemCode.FIELD_OUT_OF_RANGE, "buffer_count", message, "Buffer Table")

    # -- bytes -----------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the descriptor's HRRY bytes, the same that it was decoded from.

        Spec: wire format 1.
        """
        layer_index = NOT_LAYER_SCOPED if self.layer_index is None else self.layer_index
        paged = _PAGED.pack(
            self.page_size,
            self.num_pages,
            self.paged_axis,
            self.num_seqs,
            self.kv_role,
            layer_index,
            self.index_type,
        )
        parts = [_SHAPE.pack(*self.shape, 0), paged, bytes([len(self.buffers)])]
        parts += [handle.encode() for handle in self.buffers]
        if self.quantization is not None:
            section = self.quantization.encode()
            parts += [struct.pack("<I", len(section)), section]
        if self.statistics is not None:
            parts.append(self.statistics.encode())
        if self.element_type.private is not None:
            parts.append(self.element_type.private.encode())
        parts.append(self.trailing)
        body = b"".join(parts)
        header = _HEADER.pack(
            MAGIC,
            self.version_major,
            self.version_minor,
            HEADER_BYTES + len(body),
            self.flags,
            self.element_type.tag,
            BLOCK_PAGED_LAYOUT_TAG,
            BLOCK_PAGED_RANK,
        )
        return header + body

    @classmethod
    def decode(cls, data: BytesLike, *, permissive: bool = False) -> BlockPagedDescriptor:
        """Decode exactly one descriptor.

        Parameters
        ----------
        data
            The descriptor's bytes and no more; nothing of them is kept.
        permissive
            Let pass what the specification lets a permissive reader pass: a paged_axis that is not 0.

        Returns
        -------
        BlockPagedDescriptor

        Raises
        ------
        WireFormatError
            With every problem that was found, the first in the bytes first; ``trailing_data`` where bytes follow
            the descriptor.
        UnsupportedError
            The descriptor is of another layout, which the message names.

        Spec: wire format 1.
        """
        descriptor, length = cls.decode_prefix(data, permissive=permissive)
        size = memoryview(data).nbytes
        if size != length:
            message = f"{size - length} bytes follow the descriptor of {length} bytes"
            problem = Problem(ProblemCode.TRAILING_DATA, "descriptor", message, _SPEC, length, "trailing")
            raise WireFormatError(problem)
        return descriptor

    @classmethod
    def decode_prefix(cls, data: BytesLike, *, permissive: bool = False) -> tuple[BlockPagedDescriptor, int]:
        """Decode the descriptor that ``data`` begins with.

        Parameters
        ----------
        data
            A descriptor and whatever follows it, such as the rest of a stream; nothing of it is kept.
        permissive
            As for :meth:`decode`.

        Returns
        -------
        descriptor : BlockPagedDescriptor
        length : int
            Bytes of the descriptor.

        Raises
        ------
        WireFormatError, UnsupportedError
            As :meth:`decode`, except that bytes may follow.
        """
        reader = Reader(memoryview(data).cast("B"))
        minor, flags, tag = read_header(reader)
        values = read_body(reader, flags, tag)
        descriptor = cls._unchecked(version_minor=minor, permissive=permissive, **values)
        known = {(problem.code, problem.field) for problem in reader.problems}
        for problem in descriptor.validate():
            tolerated = permissive and problem.code in _TOLERABLE
            if not tolerated and (problem.code, problem.field) not in known:
                reader.problems.append(reader.place(problem))
        if reader.problems:
            raise reader.error()
        return descriptor, reader.end

    @classmethod
    def _unchecked(cls, **values: Any) -> BlockPagedDescriptor:
        """Return a descriptor whose rules nobody checked yet, so that all broken ones can be reported at once."""
        descriptor = object.__new__(cls)
        for each in fields(cls):
            descriptor._set(each.name, values.get(each.name, each.default))
        return descriptor


def _problem(code: ProblemCode, name: str, message: str, spec: str = _SPEC) -> Problem:
    return Problem(code, f"descriptor.{name}", message, spec, field=name)
