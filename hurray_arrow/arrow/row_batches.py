"""A tensor's rows as record batches: the row that has everything, and the rows that carry more of its pages.

Spec: snapshot format, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.facts import sequences_array
from hurray_arrow.arrow.page_class import BYTE_PLANES, PageClass
from hurray_arrow.arrow.planes import to_planes
from hurray_arrow.arrow.schema import MAX_LIST_ITEMS, SchemaPlan
from hurray_arrow.arrow.types import BLOCK_TABLE_STORAGES
from hurray_arrow.arrow.windows import numpy_dtype
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor

_Columns = dict[str, Callable[[pa.DataType], pa.Array]]


def row_batch(
    tensor: BlockPagedTensor,
    *,
    plan: SchemaPlan,
    schema: pa.Schema,
    tensor_index: int,
    kv_group: int,
    with_tables: bool = True,
    with_pages: bool = True,
    page_checksums: npt.NDArray[np.uint64] | None = None,
) -> pa.RecordBatch:
    """Return a tensor as one row of a snapshot with this schema.

    Parameters
    ----------
    tensor
        A checked tensor.
    plan, schema
        The snapshot's plan and the Arrow schema made from it.
    tensor_index, kv_group
        The tensor's place in the snapshot and its group.
    with_tables
        Whether the row carries block table and sequences; False for the later tensors of a kv_group.
    with_pages
        Whether the row carries the pages; False where :func:`page_row_batch` carries them.
    page_checksums
        uint64, one per page (``pool_bytes``: one per MiB).

    Raises
    ------
    UnsupportedError
        The page class or the table width was not declared, or the batch has 2^31 sequences or more.
    """
    descriptor = tensor.descriptor
    page_class = plan.page_class_of(descriptor)
    pool = tensor.buffers[0] if with_pages else tensor.buffers[0][:0]
    values: _Columns = {
        "tensor_index": lambda kind: pa.array([tensor_index], kind),
        "layer_index": lambda kind: pa.array([descriptor.layer_index], kind),
        "layer_name": lambda kind: pa.array([tensor.layer_name], kind),
        "kv_role": lambda kind: pa.array([tensor.kv_role], kind),
        "component": lambda kind: pa.array([tensor.component], kind),
        "kv_group": lambda kind: pa.array([kv_group], kind),
        "page_offset": lambda kind: pa.array([0], kind),
        "descriptor": lambda kind: pa.array([descriptor.encode()], kind),
        "original_descriptor": lambda kind: pa.array([tensor.original_descriptor], kind),
        plan.column_of(page_class): lambda kind: _pages(pool, page_class, kind),
    }
    if with_tables:
        check_table_storage(tensor, plan.table_storage)
        values["block_table"] = lambda kind: _block_table(tensor, kind)
        values["sequences"] = lambda kind: _one_list(sequences_array(tensor.sequences, tensor.num_seqs), kind)
    if tensor.quantization_buffers:
        values["quantization_buffers"] = lambda kind: pa.array(
            [[b.tobytes() for b in tensor.quantization_buffers]], kind
        )
    if page_checksums is not None:
        values["page_checksums"] = lambda kind: _one_list(_primitive(page_checksums, kind.value_type), kind)
    return _batch(values, schema)


def page_row_batch(
    tensor: BlockPagedTensor,
    *,
    plan: SchemaPlan,
    schema: pa.Schema,
    tensor_index: int,
    kv_group: int,
    page_offset: int,
    pages: npt.NDArray[np.uint8],
    page_checksums: npt.NDArray[np.uint64] | None = None,
) -> pa.RecordBatch:
    """Return some pages of a tensor as one continuation row.

    Parameters
    ----------
    tensor, plan, schema, tensor_index, kv_group
        As in :func:`row_batch`.
    page_offset
        The first page.
    pages
        uint8 ``[pages * page_bytes]``: their bytes.
    page_checksums
        uint64, one per page.
    """
    page_class = plan.page_class_of(tensor.descriptor)
    values: _Columns = {
        "tensor_index": lambda kind: pa.array([tensor_index], kind),
        "kv_role": lambda kind: pa.array([tensor.kv_role], kind),
        "component": lambda kind: pa.array([tensor.component], kind),
        "kv_group": lambda kind: pa.array([kv_group], kind),
        "page_offset": lambda kind: pa.array([page_offset], kind),
        plan.column_of(page_class): lambda kind: _pages(pages, page_class, kind),
    }
    if page_checksums is not None:
        values["page_checksums"] = lambda kind: _one_list(_primitive(page_checksums, kind.value_type), kind)
    return _batch(values, schema)


def _batch(values: _Columns, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [values[field.name](field.type) if field.name in values else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pages(pool: npt.NDArray[np.uint8], page_class: PageClass, kind: pa.DataType) -> pa.Array:
    if kind == pa.large_binary():
        offsets = pa.py_buffer(np.array([0, len(pool)], np.int64))
        return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(pool)])
    storage = kind.value_type.storage_type
    if page_class.encoding == BYTE_PLANES:
        planes = to_planes(pool, page_class.num_planes)
        fields = [storage.field(number) for number in range(len(planes))]
        lists = [_fixed_size_lists(plane, field.type) for plane, field in zip(planes, fields, strict=True)]
        pages = pa.StructArray.from_arrays(lists, fields=fields)
    else:
        pages = _fixed_size_lists(pool, storage)
    return _one_list(pa.ExtensionArray.from_storage(kind.value_type, pages), kind)


def _fixed_size_lists(raw: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(_primitive(raw, kind.value_type), type=kind)


def check_table_storage(tensor: BlockPagedTensor, table_storage: str) -> None:
    """Refuse a tensor whose tables do not fit a snapshot's storage of block tables.

    Raises
    ------
    UnsupportedError
        Indices wider or tables longer than declared, or 2^31 sequences or more.
    """
    storage = BLOCK_TABLE_STORAGES[table_storage]
    offset_bits = 64 if pa.types.is_large_list(storage) else 32
    if tensor.num_seqs > MAX_LIST_ITEMS:
        raise UnsupportedError(f"{tensor.num_seqs} sequences in one tensor, at most {MAX_LIST_ITEMS} are supported")
    too_long = len(tensor.block_table) >= 2 ** (offset_bits - 1)
    if too_long or tensor.seq_ptr.itemsize > storage.value_type.bit_width // 8:
        raise UnsupportedError(
            f"block table of {len(tensor.block_table)} {tensor.block_table.dtype} entries does not fit the declared "
            f"storage {table_storage}; declare one of {list(BLOCK_TABLE_STORAGES)} when the snapshot is opened"
        )


def _block_table(tensor: BlockPagedTensor, kind: pa.DataType) -> pa.Array:
    storage = kind.value_type.storage_type
    offset_type = np.int64 if pa.types.is_large_list(storage) else np.int32
    seq_ptr = tensor.seq_ptr
    same_width = seq_ptr.itemsize == np.dtype(offset_type).itemsize
    offsets = seq_ptr.view(offset_type) if same_width else seq_ptr.astype(offset_type)
    item_dtype = numpy_dtype(storage.value_type)
    values = _primitive(tensor.block_table.astype(item_dtype, copy=False), storage.value_type)
    table = pa.Array.from_buffers(storage, tensor.num_seqs, [None, pa.py_buffer(offsets)], children=[values])
    return _one_list(pa.ExtensionArray.from_storage(kind.value_type, table), kind)


def _primitive(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    raw = values.reshape(-1).view(np.uint8)
    return pa.Array.from_buffers(kind, raw.nbytes * 8 // kind.bit_width, [None, pa.py_buffer(raw)])


def _one_list(items: pa.Array, kind: pa.DataType) -> pa.Array:
    offset_type = np.int64 if pa.types.is_large_list(kind) else np.int32
    offsets = pa.py_buffer(np.array([0, len(items)], offset_type))
    return pa.Array.from_buffers(kind, 1, [None, offsets], children=[items])
