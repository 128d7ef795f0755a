"""The specification's constants: tags, flags, sizes. No behaviour.

Spec: block-paged layout, Hurray descriptor (metadata, element types, buffer protocol, quantization).
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, unique

MAGIC = b"HRRY"
VERSION_MAJOR = 1
VERSION_MINOR = 0

HEADER_BYTES = 20
BLOCK_PAGED_RANK = 3

DYNAMIC_DIMENSION = 2**64 - 1
NOT_LAYER_SCOPED = 0xFFFFFFFF
NO_BUFFER_INDEX = 0xFFFFFFFF
MIN_ALIGNMENT_BYTES = 64

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1


@unique
class Flag(IntFlag):
    """The descriptor's flags; every other bit is reserved."""

    QUANTIZATION = 1
    SHARD = 2
    EXTENSION_TYPE = 4
    STATISTICS = 8
    COMPOSITE_MEMBER = 16


#: Every assigned flag bit.
KNOWN_FLAGS = 0x1F

BLOCK_PAGED_LAYOUT_TAG = 0x0A

#: Names of the layouts by tag, for the error that says which one a foreign descriptor has.
LAYOUT_NAMES = {
    0x01: "row-major",
    0x02: "column-major",
    0x03: "strided",
    0x04: "tiled",
    0x05: "Morton",
    0x06: "COO",
    0x07: "CSR",
    0x08: "CSC",
    0x09: "CSF",
    0x0A: "block-paged",
    0x0B: "composite",
    0x40: "Hilbert",
}


@unique
class KvRole(IntEnum):
    """Which half of the cache a tensor holds."""

    KEY = 0
    VALUE = 1
    FUSED = 2


#: The roles as users, columns and JSON write them.
KV_ROLE_NAMES = {KvRole.KEY: "key", KvRole.VALUE: "value", KvRole.FUSED: "fused"}
KV_ROLES = {name: role for role, name in KV_ROLE_NAMES.items()}


@unique
class IndexType(IntEnum):
    """Element type of block_table and seq_ptr."""

    UINT32 = 0
    UINT64 = 1


#: Names and widths in bytes of the index types.
INDEX_TYPE_NAMES = {IndexType.UINT32: "uint32", IndexType.UINT64: "uint64"}
INDEX_TYPES = {name: index_type for index_type, name in INDEX_TYPE_NAMES.items()}
INDEX_TYPE_BYTES = {IndexType.UINT32: 4, IndexType.UINT64: 8}

CPU_DEVICE_TAG = 0
DEVICE_NAMES = {
    0: "CPU",
    1: "CUDA",
    2: "ROCm",
    3: "Metal",
    4: "Vulkan",
    5: "WebGPU",
    6: "Hexagon",
    7: "Level Zero",
    8: "OpenCL",
}
SYNC_MODE_NAMES = {0: "producer-synced", 1: "event", 2: "consumer-stream"}
MEMORY_CLASS_NAMES = {0: "standard", 1: "host-pinned", 2: "unified", 3: "peer"}
PEER_MEMORY_CLASS = 3
PRIVATE_TAGS = range(0xF0, 0xFF)


@unique
class SchemeTag(IntEnum):
    """The quantization schemes."""

    PER_TENSOR = 0x01
    PER_CHANNEL = 0x02
    PER_BLOCK = 0x03
    NF4 = 0x04
    MXFP = 0x05


SCHEME_NAMES = {
    SchemeTag.PER_TENSOR: "per_tensor",
    SchemeTag.PER_CHANNEL: "per_channel",
    SchemeTag.PER_BLOCK: "per_block",
    SchemeTag.NF4: "nf4",
    SchemeTag.MXFP: "mxfp",
}
