"""Paged KV caches as Apache Arrow: self-describing, verifiable snapshots that any Arrow reader opens."""

import importlib
import typing

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
from hurray_arrow.snapshot import (
    CopyReport,
    Entry,
    Fetched,
    PartialRead,
    Snapshot,
    SnapshotSet,
    SnapshotWriter,
    StreamReader,
    VerifyReport,
    copy_snapshot,
    open_snapshot,
    open_snapshot_set,
    read_stream,
    write_snapshot,
    write_stream,
)
from hurray_arrow.spec import IndexType, KvRole
from hurray_arrow.tensor import BlockPagedTensor

if typing.TYPE_CHECKING:
    from hurray_arrow import share

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
    "read_stream",
    "register",
    "share",
    "to_record_batch",
    "unregister",
    "write_snapshot",
    "write_stream",
]


if not typing.TYPE_CHECKING:  # where a checker sees it, every name that does not exist has the type Any

    def __getattr__(name: str) -> object:
        """Load ``share`` when it is first asked for: few need it, and everybody waits for an import."""
        if name != "share":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module("hurray_arrow.share")


def __dir__() -> list[str]:
    """List ``share`` too, loaded or not."""
    return sorted({*globals(), *__all__})
