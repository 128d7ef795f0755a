"""One row of a snapshot as plain values, whoever wrote the batch it lies in.

Other libraries strip the extension types, write list for large_list or views for strings, rename child fields and
reorder or slice rows. Every array here is read through its window, and what is not null in the format is checked to
have no nulls.

Spec: snapshot format, sections 2 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.facts import sequences_from_array
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.planes import from_planes
from hurray_arrow.arrow.schema import PAGE_POOL, POOL_BYTES
from hurray_arrow.arrow.types import BlockTableType, PagePoolType
from hurray_arrow.arrow.windows import fixed_size_list_bytes, list_window, primitive_values
from hurray_arrow.errors import (
    ExtensionMetadataError,
    HurrayArrowError,
    Problem,
    ProblemCode,
    SnapshotCorruptError,
)
from hurray_arrow.sequences import Sequences

SPEC = "snapshot format 2"
#: What other tools may make of a column of integers, texts or bytes, by Arrow's number.
_TYPES: Mapping[type, frozenset[int]] = {
    int: frozenset(
        {
            *(pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64, pa.lib.Type_UINT8),
            *(pa.lib.Type_UINT16, pa.lib.Type_UINT32, pa.lib.Type_UINT64, pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE),
        }
    ),
    str: frozenset({pa.lib.Type_STRING, pa.lib.Type_LARGE_STRING, pa.lib.Type_STRING_VIEW, pa.lib.Type_DICTIONARY}),
    bytes: frozenset({pa.lib.Type_BINARY, pa.lib.Type_LARGE_BINARY, pa.lib.Type_BINARY_VIEW}),
}
_POOL_COLUMN = re.compile(rf"{PAGE_POOL}(_[1-9][0-9]*)?|{POOL_BYTES}")


@dataclass(frozen=True, slots=True)
class Tables:
    """Block table and sequences of a kv_group, as stored: the integers may be wider than a descriptor says.

    ``copied`` says that seq_ptr is no view: Arrow's offsets began elsewhere than at 0, or were not those of a list.
    """

    seq_ptr: npt.NDArray[Any]
    block_table: npt.NDArray[Any]
    sequences: Sequences
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one row; arrays are views that keep the batch's memory alive.

    ``storage_type`` is Arrow's type of a page whose extension type was stripped: all that still says what it holds.
    """

    tensor_index: int
    layer_index: int | None
    layer_name: str | None
    kv_role: str
    component: str
    kv_group: int
    page_offset: int
    tables: Tables | None
    sequences: Sequences | None
    quantization_buffers: tuple[npt.NDArray[np.uint8], ...]
    descriptor: bytes | None
    original_descriptor: bytes | None
    page_checksums: npt.NDArray[np.uint64] | None
    pool_column: str
    pool: npt.NDArray[np.uint8]
    page_class: PageClass | None
    storage_type: pa.DataType | None = None

    @property
    def order(self) -> tuple[int, bool]:
        """Sort key within a tensor: an archive's first row has no pages, and the second starts at page 0 too."""
        return self.page_offset, self.descriptor is None

    @classmethod
    def read(cls, batch: pa.RecordBatch, number: int, *, destination: npt.NDArray[np.uint8] | None = None) -> Row:
        """Read row ``number`` of a batch.

        Parameters
        ----------
        batch, number
            The row.
        destination
            uint8, exactly as long as the row's pages: they are decoded into it. Without it pages in byte planes come in
            new memory, and plain ones are a view.

        Raises
        ------
        SnapshotCorruptError
            ``arrow_schema``: a column is missing or has a type that cannot hold its values; ``arrow_null``: a null
            where the format has none; ``column_mismatch``: more than one page column is filled.
        ExtensionMetadataError, UnsupportedError
            The extension types of the tables or pages cannot be used.
        """
        try:
            return cls._read(_Reader(batch, number, destination))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, LookupError) as error:
            if isinstance(error, HurrayArrowError):
                raise
            message = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise refuse(ProblemCode.ARROW_SCHEMA, f"row {number}", message) from error

    @classmethod
    def _read(cls, reader: _Reader) -> Row:
        pool_column, pool, page_class, storage_type = reader.pool()
        sequences = reader.sequences()
        return cls(
            tensor_index=reader.required("tensor_index", int),
            layer_index=reader.value("layer_index", int),
            layer_name=reader.value("layer_name", str),
            kv_role=reader.required("kv_role", str),
            component=reader.required("component", str),
            kv_group=reader.required("kv_group", int),
            page_offset=reader.required("page_offset", int),
            tables=reader.tables(sequences or Sequences()),
            sequences=sequences,
            quantization_buffers=reader.binaries("quantization_buffers"),
            descriptor=reader.value("descriptor", bytes),
            original_descriptor=reader.value("original_descriptor", bytes),
            page_checksums=reader.checksums(),
            pool_column=pool_column,
            pool=pool,
            page_class=page_class,
            storage_type=storage_type,
        )


class _Reader:
    """The columns of one row by name."""

    def __init__(self, batch: pa.RecordBatch, number: int, destination: npt.NDArray[np.uint8] | None = None) -> None:
        names = batch.schema.names
        if len(set(names)) != len(names):
            raise refuse(ProblemCode.ARROW_SCHEMA, "schema", "two columns have one name")
        self.columns = dict(zip(names, batch.columns, strict=True))
        self.number = number
        self.destination = destination

    def value(self, name: str, kind: type[int | str | bytes]) -> Any:
        column = self.columns.get(name)
        if column is None:
            return None
        if column.type.id not in _TYPES[kind] | {pa.lib.Type_NA}:
            raise refuse(ProblemCode.ARROW_SCHEMA, name, f"the column is {column.type}")
        value = column[self.number].as_py()
        if kind is int and isinstance(value, float) and value.is_integer():
            # pandas makes floats of integers as soon as one is null.
            value = int(value)
        fits = value is None or isinstance(value, kind)
        if not fits or (kind is int and value is not None and value < 0):
            what = "an integer of 0 or more" if kind is int else kind.__name__
            raise refuse(ProblemCode.ARROW_SCHEMA, name, f"{value!r:.40}, expected {what}")
        return value

    def required(self, name: str, kind: type[int | str]) -> Any:
        if name not in self.columns:
            raise refuse(ProblemCode.ARROW_SCHEMA, name, "the column is missing")
        value = self.value(name, kind)
        if value is None:
            raise refuse(ProblemCode.ARROW_NULL, name, "null in a column that has none")
        return value

    def items(self, name: str) -> pa.Array | None:
        """Return the items of a list column in this row, ``None`` where the row or the column is not there."""
        column = self.columns.get(name)
        if column is None:
            return None
        row = _as_list(column.slice(self.number, 1))
        return None if row.null_count else list_window(row)[1]

    def tables(self, sequences: Sequences) -> Tables | None:
        items = self.items("block_table")
        if items is None:
            return None
        if isinstance(items.type, BlockTableType) and items.type.problem is not None:
            raise ExtensionMetadataError(items.type.problem)
        _no_nulls(items, "block_table")
        stored = _storage(items)
        lists = _as_list(stored)
        seq_ptr, page_ids = list_window(lists)
        _no_nulls(page_ids, "block_table.item")
        if page_ids.type not in (pa.uint32(), pa.uint64()):
            raise refuse(
                ProblemCode.ARROW_SCHEMA, "block_table", f"page ids are {page_ids.type}, expected uint32 or uint64"
            )
        copied = lists is not stored or (len(lists) > 0 and lists.offsets[0].as_py() != 0)
        return Tables(seq_ptr, primitive_values(page_ids), sequences, copied)

    def sequences(self) -> Sequences | None:
        items = self.items("sequences")
        if items is None:
            return None
        _no_nulls(items, "sequences")
        tables = self.items("block_table")
        if tables is not None and len(tables) != len(items):
            # Facts that are all unknown have no length of their own that anybody would look at later.
            message = f"{len(items)} sequences, the block table has {len(tables)}"
            raise refuse(ProblemCode.SEQUENCE_FACTS_SIZE, "sequences", message)
        return sequences_from_array(items)

    def binaries(self, name: str) -> tuple[npt.NDArray[np.uint8], ...]:
        items = self.items(name)
        if items is None:
            return ()
        _no_nulls(items, name)
        return tuple(_binary_at(items, number) for number in range(len(items)))

    def checksums(self) -> npt.NDArray[np.uint64] | None:
        items = self.items("page_checksums")
        if items is None:
            return None
        _no_nulls(items, "page_checksums")
        return primitive_values(items if items.type == pa.uint64() else items.cast(pa.uint64()))

    def pool(self) -> tuple[str, npt.NDArray[np.uint8], PageClass | None, pa.DataType | None]:
        """Return the filled pool column, its bytes, and what its extension type, or else its storage, says of pages."""
        filled = [
            name for name, column in self.columns.items() if is_pool_column(name) and column[self.number].is_valid
        ]
        if len(filled) > 1:
            raise refuse(ProblemCode.COLUMN_MISMATCH, filled[1], f"filled beside {filled[0]}; a tensor has one pool")
        if not filled:
            return "", self._placed([], PAGE_POOL), None, None
        name = filled[0]
        if name == POOL_BYTES:
            return name, self._placed([_binary_at(self.columns[name], self.number)], name, can_be_cut=False), None, None
        pages = list_window(_as_list(self.columns[name].slice(self.number, 1)))[1]
        _no_nulls(pages, name)
        page_class = pages.type.page_class if isinstance(pages.type, PagePoolType) else None
        storage = _storage(pages)
        stripped = None if page_class else storage.type
        if not pa.types.is_struct(storage.type):
            return name, self._placed([_page_values(storage, name)], name), page_class, stripped
        planes = [_page_values(storage.field(number), name) for number in range(storage.type.num_fields)]
        if not planes or len({plane.nbytes for plane in planes}) != 1:
            raise refuse(ProblemCode.ARROW_SCHEMA, name, f"pages are {storage.type}, expected byte planes")
        return name, self._placed(planes, name), page_class, stripped

    def _placed(
        self, planes: list[npt.NDArray[np.uint8]], name: str, *, can_be_cut: bool = True
    ) -> npt.NDArray[np.uint8]:
        """Join planes in new memory or in the destination; one plane by itself is left where it is."""
        size = sum(plane.nbytes for plane in planes)
        if self.destination is None:
            if len(planes) < 2:
                return planes[0] if planes else np.empty(0, np.uint8)
            pool = np.empty(size, np.uint8)
        else:
            # numpy would spread too few bytes over all of it, and what is not written is whatever was there before.
            pool = self.destination
            if size != len(pool) or not can_be_cut:
                message = f"{size} bytes in a row that is to hold {len(pool)} bytes of pages"
                raise refuse(ProblemCode.ROW_MISSING, name, message)
        from_planes(planes, pool)
        return pool


def is_pool_column(name: str) -> bool:
    """Say whether a column holds pages."""
    return _POOL_COLUMN.fullmatch(name) is not None


def refuse(code: ProblemCode, where: str, message: str, *, url: str = "") -> SnapshotCorruptError:
    """Return the error for one problem of a row."""
    return SnapshotCorruptError(Problem(code, where, message, SPEC), url=url)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _as_list(array: pa.Array) -> pa.ListArray | pa.LargeListArray:
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        # Not cast(): pyarrow 26 forgets the last offset when it casts views to lists.
        offsets = np.concatenate([[0], np.cumsum(primitive_values(array.sizes))]).astype(np.int64)
        kind = pa.large_list(array.type.value_field)
        mask = array.is_null() if array.null_count else None
        return pa.LargeListArray.from_arrays(pa.array(offsets), array.flatten(), type=kind, mask=mask)
    raise TypeError(f"expected a list, found {array.type}")


def _page_values(pages: pa.Array, name: str) -> npt.NDArray[np.uint8]:
    if not pa.types.is_fixed_size_list(pages.type):
        raise refuse(ProblemCode.ARROW_SCHEMA, name, f"pages are {pages.type}, expected a fixed-size list")
    _no_nulls(pages, name)
    size = pages.type.list_size
    _no_nulls(pages.values.slice(pages.offset * size, len(pages) * size), name)
    return fixed_size_list_bytes(pages)


def _no_nulls(array: pa.Array, where: str) -> None:
    if array.null_count:
        raise refuse(ProblemCode.ARROW_NULL, where, f"{array.null_count} nulls where there are none")


def _binary_at(array: pa.Array, number: int) -> npt.NDArray[np.uint8]:
    """Return one value of a binary array as a view; where Arrow keeps it in pieces (binary views), as a copy."""
    if not (pa.types.is_large_binary(array.type) or pa.types.is_binary(array.type)):
        if not pa.types.is_binary_view(array.type):
            raise TypeError(f"expected binary, found {array.type}")
        copied = array[number].as_buffer()
        return np.frombuffer(copied, np.uint8) if copied.size else np.empty(0, np.uint8)
    # A pyarrow scalar would copy the value out of the array, and a pool may be large.
    _, offsets, data = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    first, last = np.frombuffer(offsets, width)[array.offset + number :][:2].tolist()
    return np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
