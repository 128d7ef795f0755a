"""Reading the bytes of a descriptor, in their order, up to the values of its fields.

What is wrong on the wire only (reserved bits, a section that must not be there) is noted here; the rules about the
values are :meth:`hurray_arrow.descriptor.BlockPagedDescriptor.validate`'s.

Spec: wire format 1.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from hurray_arrow._wire import Reader
from hurray_arrow.elements import ElementType, PrivateType, element_type
from hurray_arrow.errors import InvalidDescriptorError, ProblemCode, UnsupportedError
from hurray_arrow.quantization import Quantization, read_quantization
from hurray_arrow.sections import read_handle, read_private_type, read_statistics
from hurray_arrow.spec import (
    BLOCK_PAGED_LAYOUT_TAG,
    BLOCK_PAGED_RANK,
    HEADER_BYTES,
    INDEX_TYPES,
    KNOWN_FLAGS,
    KV_ROLES,
    LAYOUT_NAMES,
    MAGIC,
    NOT_LAYER_SCOPED,
    PRIVATE_TAGS,
    VERSION_MAJOR,
    Flag,
    IndexType,
    KvRole,
)

_PAGED_SPEC = "Additional Descriptor Fields"


def member_or_value(kind: type[KvRole | IndexType], value: Any, names: dict[str, Any]) -> Any:
    """Return the enum's member, or the value itself for :meth:`BlockPagedDescriptor.validate` to report."""
    value = names.get(value, value) if isinstance(value, str) else value
    return kind(value) if value in tuple(kind) else value


def integer(value: Any, name: str) -> int:
    """Return a field as a Python integer; refuse with its name what is none."""
    if not isinstance(value, SupportsIndex):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    return operator.index(value)


def check_kinds(**sections: Any) -> None:
    """Refuse what is no section of a descriptor, such as the name of a scheme."""
    expected = {"quantization": "a scheme such as PerTensor", "statistics": "Statistics"}
    for name, value in sections.items():
        if value is not None and not hasattr(value, "validate"):
            raise TypeError(f"{name}: expected {expected[name]}, got {type(value).__name__}")


def read_header(reader: Reader) -> tuple[int, int, int]:
    """Read the fixed header; return version_minor, flags and type_tag. Raises at once where the rest cannot be read."""
    magic = reader.take(4, "magic")
    if magic != MAGIC:
        reader.add(ProblemCode.BAD_MAGIC, "magic", f"{magic.hex()}, expected {MAGIC.hex()} (HRRY)")
        raise reader.error()
    major = reader.scalar("u8", "version_major")
    if major != VERSION_MAJOR:
        reader.add(ProblemCode.VERSION_UNSUPPORTED, "version_major", f"{major}, expected {VERSION_MAJOR}")
        raise reader.error()
    minor: int = reader.scalar("u8", "version_minor")
    length = reader.scalar("u32", "descriptor_length")
    if length < HEADER_BYTES:
        reader.add(ProblemCode.DESCRIPTOR_LENGTH_INVALID, "descriptor_length", f"{length}, expected at least 20")
        raise reader.error()
    if length > reader.end:
        message = f"{length} bytes, there are {reader.end}"
        reader.add(ProblemCode.TRUNCATED, "descriptor_length", message)
        raise reader.error()
    reader.end = length
    flags: int = reader.scalar("u32", "flags")
    tag: int = reader.scalar("u8", "type_tag")
    if flags & ~KNOWN_FLAGS:
        reader.add(ProblemCode.FLAGS_RESERVED, "flags", f"0x{flags:08X} has reserved bits")
    _check_layout(reader, reader.scalar("u8", "layout_tag"))
    return minor, flags, tag


def _check_layout(reader: Reader, tag: int) -> None:
    if tag == BLOCK_PAGED_LAYOUT_TAG:
        return
    if tag in LAYOUT_NAMES or tag in PRIVATE_TAGS:
        name = LAYOUT_NAMES.get(tag, "private")
        raise UnsupportedError(f"a descriptor of the {name} layout (0x{tag:02X}), only block-paged (0x0A) is read")
    reader.add(ProblemCode.LAYOUT_TAG_INVALID, "layout_tag", f"0x{tag:02X} is no layout of version 1.0")
    raise reader.error()


def read_body(reader: Reader, flags: int, tag: int) -> dict[str, Any]:
    """Read everything after layout_tag; note what is wrong on the wire and return the values of the fields."""
    if flags & Flag.SHARD:
        reader.add(ProblemCode.SHARD_PRESENT, "flags", "a shard section, not allowed for block-paged", spec="Sharding")
    if flags & Flag.COMPOSITE_MEMBER:
        reader.add(ProblemCode.COMPOSITE_MEMBER_PRESENT, "flags", "a composite-member section", spec="wire format 2")
    if (tag in PRIVATE_TAGS) != bool(flags & Flag.EXTENSION_TYPE):
        state = "set" if flags & Flag.EXTENSION_TYPE else "not set"
        message = f"the extension-type flag is {state} for type tag 0x{tag:02X}"
        reader.add(ProblemCode.EXTENSION_FLAG_MISMATCH, "flags", message, spec="wire format 4")
    rank = reader.scalar("u32", "rank")
    if rank != BLOCK_PAGED_RANK:
        reader.add(ProblemCode.RANK_INVALID, "rank", f"{rank}, expected 3", spec="Description")
    if reader.problems:
        # Where the sections lie is unknown from here on.
        raise reader.error()
    values: dict[str, Any] = {"shape": tuple(reader.scalar("u64", f"shape[{axis}]") for axis in range(rank))}
    byte_offset = reader.scalar("u64", "byte_offset")
    if byte_offset:
        reader.add(ProblemCode.BYTE_OFFSET_NOT_ZERO, "byte_offset", f"{byte_offset}, expected 0", spec="byte_offset")
    values |= _read_paged_fields(reader)
    count = reader.scalar("u8", "buffer_count")
    values["buffers"] = tuple(read_handle(reader, index) for index in range(count))
    if flags & Flag.QUANTIZATION:
        values["quantization"] = _read_quantization_section(reader)
    if flags & Flag.STATISTICS:
        values["statistics"] = read_statistics(reader)
    private = read_private_type(reader) if flags & Flag.EXTENSION_TYPE else None
    values["element_type"] = _read_element_type(reader, tag, private)
    values["trailing"] = reader.take(reader.end - reader.position, "trailing")
    return values


def _read_paged_fields(reader: Reader) -> dict[str, Any]:
    values = {
        "page_size": reader.scalar("u32", "page_size"),
        "num_pages": reader.scalar("u64", "num_pages"),
        "paged_axis": reader.scalar("u32", "paged_axis"),
        "num_seqs": reader.scalar("u32", "num_seqs"),
        "kv_role": member_or_value(KvRole, reader.scalar("u8", "kv_role"), KV_ROLES),
    }
    layer_index = reader.scalar("u32", "layer_index")
    values["layer_index"] = None if layer_index == NOT_LAYER_SCOPED else layer_index
    index_type = reader.scalar("u8", "block_table_index_type")
    values["index_type"] = member_or_value(IndexType, index_type, INDEX_TYPES)
    reader.zeros(6, "_reserved", spec=_PAGED_SPEC)
    return values


def _read_quantization_section(reader: Reader) -> Quantization | None:
    length = reader.scalar("u32", "quantization_length")
    start, end = reader.position, reader.end
    if length > end - start:
        message = f"{length} bytes, the descriptor ends after {end - start}"
        reader.add(ProblemCode.QUANTIZATION_LENGTH_INVALID, "quantization_length", message, spec="wire format 3")
        raise reader.error()
    reader.end = start + length
    scheme = read_quantization(reader, start)
    reader.end = end
    return scheme


def _read_element_type(reader: Reader, tag: int, private: PrivateType | None) -> ElementType:
    """Return the element type; uint8 where there is none, so that the other fields can still be checked."""
    if private is not None:
        return ElementType(tag, f"private_0x{tag:02X}", private.bit_width, private)
    try:
        return element_type(tag)
    except InvalidDescriptorError as error:
        reader.add(ProblemCode.ELEMENT_TYPE_INVALID, "type_tag", error.problems[0].message, spec="wire format 4")
        return element_type("uint8")
