"""The columns of a snapshot, what a snapshot's schema has to decide once, and the hash over it.

Spec: snapshot format, sections 1, 2 and 4. The same schema as text: ``schemas/snapshot-arrow-schema.txt``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from hurray_arrow.arrow.page_class import PLAIN, PageClass
from hurray_arrow.arrow.types import BLOCK_TABLE_STORAGES, BlockTableType, PagePoolType
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.spec import IndexType
from hurray_arrow.tensor import BlockPagedTensor

FORMAT_VERSION = "1"
FORMAT_KEY = "hurray_arrow.format"
SNAPSHOT_KEY = "hurray_arrow.snapshot"

PAGE_POOL = "page_pool"
POOL_BYTES = "pool_bytes"
#: Checksum granularity of ``pool_bytes``.
POOL_BYTES_PIECE = 1 << 20

MAX_LIST_ITEMS = 2**31 - 1


def _not_null(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


MEDIA_TYPE = pa.list_(
    pa.field(
        "item",
        pa.struct(
            [pa.field("first_token", pa.uint64()), pa.field("num_tokens", pa.uint64()), pa.field("digest", pa.utf8())]
        ),
    )
)
SEQUENCES_TYPE = pa.list_(
    _not_null(
        "item",
        pa.struct(
            [
                pa.field("num_tokens", pa.uint64()),
                pa.field("id", pa.utf8()),
                pa.field("token_ids", pa.list_(pa.field("item", pa.uint32()))),
                pa.field("page_positions", pa.list_(pa.field("item", pa.uint64()))),
                pa.field("adapter", pa.utf8()),
                pa.field("tenant", pa.utf8()),
                pa.field("media", MEDIA_TYPE),
            ]
        ),
    )
)

#: The columns that every row has values for.
KEY_FIELDS = (
    _not_null("tensor_index", pa.uint32()),
    pa.field("layer_index", pa.uint32()),
    pa.field("layer_name", pa.utf8()),
    _not_null("kv_role", pa.utf8()),
    _not_null("component", pa.utf8()),
    _not_null("kv_group", pa.uint32()),
    _not_null("page_offset", pa.uint64()),
)


def table_storage_name(index_types: Iterable[IndexType], entries: Iterable[int]) -> str:
    """Choose the narrowest block-table storage that holds every table of a snapshot.

    Parameters
    ----------
    index_types
        The tensors' index types.
    entries
        The tables' total_logical_pages.
    """
    if any(index_type is IndexType.UINT64 for index_type in index_types):
        return "large_list<uint64>"
    return "list<uint32>" if all(count < 2**31 for count in entries) else "large_list<uint32>"


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What a snapshot's schema decides once, before its first row: the page columns and the tables' width.

    Parameters
    ----------
    page_classes
        One per page column, in order of first use. Classes that cannot be cut into pages are not listed: their pools
        go into ``pool_bytes``.
    table_storage
        A key of :data:`~hurray_arrow.arrow.types.BLOCK_TABLE_STORAGES`.
    encoding
        How pages are stored: ``"plain"``, or ``"byte_planes"`` for the element types that have planes.
    """

    page_classes: tuple[PageClass, ...] = ()
    table_storage: str = "list<uint32>"
    encoding: str = PLAIN

    @classmethod
    def of(cls, tensors: Iterable[BlockPagedTensor | BlockPagedDescriptor], *, encoding: str = PLAIN) -> SchemaPlan:
        """Return the plan that holds these tensors; their descriptors are enough.

        Parameters
        ----------
        tensors
            All that will be written, in any order.
        encoding
            ``"plain"``, or ``"byte_planes"`` for an archive.

        Returns
        -------
        SchemaPlan
            A column for each kind of page, and tables as wide as the widest.
        """
        descriptors = [item if isinstance(item, BlockPagedDescriptor) else item.descriptor for item in tensors]
        classes = dict.fromkeys(page_class_of(descriptor, encoding=encoding) for descriptor in descriptors)
        return cls(
            page_classes=tuple(page_class for page_class in classes if page_class.fits_a_column),
            table_storage=table_storage_name(
                (descriptor.index_type for descriptor in descriptors),
                (descriptor.total_logical_pages for descriptor in descriptors),
            ),
            encoding=encoding,
        )

    def page_class_of(self, descriptor: BlockPagedDescriptor) -> PageClass:
        """Return the page class of a tensor's pool in this snapshot."""
        return page_class_of(descriptor, encoding=self.encoding)

    def column_of(self, page_class: PageClass) -> str:
        """Return the column that a pool of this class goes into.

        Parameters
        ----------
        page_class
            As :meth:`page_class_of` gives it.

        Returns
        -------
        str
            ``page_pool``, ``page_pool_1``, …, or ``pool_bytes``.

        Raises
        ------
        UnsupportedError
            The class was not declared when the snapshot was opened for writing.
        """
        if not page_class.fits_a_column:
            return POOL_BYTES
        if page_class not in self.page_classes:
            raise UnsupportedError(
                f"{page_class} was not declared when the snapshot was opened, but {self.page_classes}: "
                "give SchemaPlan.of() all of its tensors or their descriptors"
            )
        return page_column_name(self.page_classes.index(page_class))

    def arrow_schema(self, metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
        """Return the Arrow schema; the page columns come last, so that everything small is one range."""
        block_table = BlockTableType(BLOCK_TABLE_STORAGES[self.table_storage])
        fields = [
            *KEY_FIELDS,
            pa.field("block_table", pa.list_(_not_null("item", block_table))),
            pa.field("sequences", SEQUENCES_TYPE),
            pa.field("quantization_buffers", pa.list_(_not_null("item", pa.large_binary()))),
            pa.field("descriptor", pa.large_binary()),
            pa.field("original_descriptor", pa.large_binary()),
            pa.field("page_checksums", pa.large_list(_not_null("item", pa.uint64()))),
        ]
        for number, page_class in enumerate(self.page_classes):
            item = _not_null("item", PagePoolType(page_class))
            fields.append(pa.field(page_column_name(number), pa.large_list(item)))
        fields.append(pa.field(POOL_BYTES, pa.large_binary()))
        return pa.schema(fields, metadata=metadata)


def page_class_of(descriptor: BlockPagedDescriptor, *, encoding: str = PLAIN) -> PageClass:
    """Return the page class of a tensor's pool; element types without planes are stored plain."""
    element = descriptor.element_type
    return PageClass(element.name, element.bits, descriptor.page_shape).encoded(encoding)


def page_column_name(number: int) -> str:
    """Return the name of the page column with this number: ``page_pool``, ``page_pool_1`` and so on."""
    return f"{PAGE_POOL}_{number}" if number else PAGE_POOL


def schema_xxh3(schema: pa.Schema) -> str:
    """Hash a schema: xxh3-64 of canonical JSON, 16 lower-case hex digits.

    The JSON is ``[schema metadata pairs sorted, fields]``, a field being ``[name, nullable, type name, list size or
    null, extension name, extension metadata, children]``. The same with the extension types registered or not.

    Spec: snapshot format, section 4.
    """
    pairs = sorted([_text(key), _text(value)] for key, value in (schema.metadata or {}).items())
    fields = [_canonical_field(field) for field in schema]
    canonical = json.dumps([pairs, fields], separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_64_hexdigest(canonical.encode())


def _canonical_field(field: pa.Field) -> list[Any]:
    data_type, name, extension_metadata = field.type, None, None
    if isinstance(data_type, pa.ExtensionType):
        name, extension_metadata = data_type.extension_name, _text(data_type.__arrow_ext_serialize__())
        data_type = data_type.storage_type
    elif field.metadata and b"ARROW:extension:name" in field.metadata:
        name = _text(field.metadata[b"ARROW:extension:name"])
        extension_metadata = _text(field.metadata.get(b"ARROW:extension:metadata", b""))
    children = [_canonical_field(data_type.field(i)) for i in range(data_type.num_fields)]
    list_size = data_type.list_size if data_type.id == pa.lib.Type_FIXED_SIZE_LIST else None
    type_name = _NESTED_NAMES.get(data_type.id) or str(data_type)
    return [field.name, field.nullable, type_name, list_size, name, extension_metadata, children]


#: Nested types by Arrow's number; the names of the others are pyarrow's own.
_NESTED_NAMES = {
    pa.lib.Type_FIXED_SIZE_LIST: "fixed_size_list",
    pa.lib.Type_LARGE_LIST: "large_list",
    pa.lib.Type_LIST: "list",
    pa.lib.Type_STRUCT: "struct",
}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
