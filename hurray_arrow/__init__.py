"""Paged KV caches as Apache Arrow: self-describing, verifiable snapshots that any Arrow reader opens."""

import typing

from hurray_arrow import _later
from hurray_arrow.arrow import (
    BlockTableArray,
    BlockTableType,
    PageClass,
    PagePoolArray,
    PagePoolScalar,
    PagePoolType,
    SchemaPlan,
    from_arrow,
    from_record_batch,
    register,
    to_record_batch,
    unregister,
)
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import ELEMENT_TYPES, ElementType, PrivateType, element_type
from hurray_arrow.errors import (
    CatalogError,
    CopyRequiredError,
    ExtensionMetadataError,
    HurrayArrowError,
    InvalidDescriptorError,
    InvariantError,
    LayoutError,
    MissingDependencyError,
    Problem,
    ProblemCode,
    QuantizationError,
    SnapshotChangedError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotIncompleteError,
    SnapshotMismatchError,
    UnknownSequenceLengthError,
    UnsupportedError,
    WireFormatError,
)
from hurray_arrow.prefixes import PrefixMatch
from hurray_arrow.schemes import OpaqueScheme, PerBlock, PerChannel, PerTensor, Quantization
from hurray_arrow.sections import BufferHandle, Statistics
from hurray_arrow.sequences import MediaSpan, Sequences
from hurray_arrow.snapshot import Entry, Snapshot, SnapshotWriter, open_snapshot, write_snapshot
from hurray_arrow.spec import IndexType, KvRole
from hurray_arrow.tensor import BlockPagedTensor

if typing.TYPE_CHECKING:
    from hurray_arrow import ops, share
    from hurray_arrow.snapshot import (
        CopyReport,
        Fetched,
        PartialRead,
        SnapshotSet,
        StreamReader,
        VerifyReport,
        copy_snapshot,
        open_snapshot_set,
        read_stream,
        write_stream,
    )
else:
    __getattr__ = _later.names_later(
        __name__,
        {
            "ops": f"{__name__}.ops",
            "share": f"{__name__}.share",
            **dict.fromkeys(("CopyReport", "Fetched", "PartialRead", "SnapshotSet"), f"{__name__}.snapshot"),
            **dict.fromkeys(("StreamReader", "VerifyReport", "copy_snapshot"), f"{__name__}.snapshot"),
            **dict.fromkeys(("open_snapshot_set", "read_stream", "write_stream"), f"{__name__}.snapshot"),
        },
    )

__all__ = [
    "ELEMENT_TYPES",
    "BlockPagedDescriptor",
    "BlockPagedTensor",
    "BlockTableArray",
    "BlockTableType",
    "BufferHandle",
    "CatalogError",
    "CopyReport",
    "CopyRequiredError",
    "ElementType",
    "Entry",
    "ExtensionMetadataError",
    "Fetched",
    "HurrayArrowError",
    "IndexType",
    "InvalidDescriptorError",
    "InvariantError",
    "KvRole",
    "LayoutError",
    "MediaSpan",
    "MissingDependencyError",
    "OpaqueScheme",
    "PageClass",
    "PagePoolArray",
    "PagePoolScalar",
    "PagePoolType",
    "PartialRead",
    "PerBlock",
    "PerChannel",
    "PerTensor",
    "PrefixMatch",
    "PrivateType",
    "Problem",
    "ProblemCode",
    "Quantization",
    "QuantizationError",
    "SchemaPlan",
    "Sequences",
    "Snapshot",
    "SnapshotChangedError",
    "SnapshotCorruptError",
    "SnapshotError",
    "SnapshotIncompleteError",
    "SnapshotMismatchError",
    "SnapshotSet",
    "SnapshotWriter",
    "Statistics",
    "StreamReader",
    "UnknownSequenceLengthError",
    "UnsupportedError",
    "VerifyReport",
    "WireFormatError",
    "copy_snapshot",
    "element_type",
    "from_arrow",
    "from_record_batch",
    "open_snapshot",
    "open_snapshot_set",
    "ops",
    "read_stream",
    "register",
    "share",
    "to_record_batch",
    "unregister",
    "write_snapshot",
    "write_stream",
]


def __dir__() -> list[str]:
    """List every name, loaded or not."""
    return sorted({*globals(), *__all__})
