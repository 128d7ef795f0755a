"""A tensor as a snapshot row in Arrow, and back.

Zero copy wherever Arrow's memory rules allow: the page pool always is, the tables are when their integers have the
width of the column. Slices, filtered and concatenated batches come back right, because every array is read through its
window.

Spec: snapshot format, sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.facts import sequences_array
from hurray_arrow.arrow.rows import Row, Tables, tables_of, tensor_from_rows
from hurray_arrow.arrow.schema import MAX_LIST_ITEMS, SchemaPlan, page_class_of
from hurray_arrow.arrow.types import BLOCK_TABLE_STORAGES, BlockTableType, PagePoolType
from hurray_arrow.errors import CopyRequiredError, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor


def to_record_batch(tensor: BlockPagedTensor, *, copy: bool | None = None) -> pa.RecordBatch:
    """Return a tensor as one row with the columns of a snapshot.

    Parameters
    ----------
    tensor
        The tensor; a permissive one with broken invariants is refused.
    copy
        ``None``: small buffers may be copied where Arrow needs it. ``False``: nothing may be.

    Returns
    -------
    pyarrow.RecordBatch
        One row whose page pool, tables and quantization buffers are the tensor's own memory and keep it alive.

    Raises
    ------
    InvariantError
        The tensor breaks the specification.
    CopyRequiredError
        ``copy=False`` and a buffer does not fit as it is: there are quantization buffers, which Arrow keeps in one
        piece.
    """
    tensor.check()
    if copy is False and tensor.quantization_buffers:
        count = len(tensor.quantization_buffers)
        raise CopyRequiredError(
            f"quantization_buffers: {count} buffers become one Arrow binary array, which copies them; pass copy=None"
        )
    plan = SchemaPlan.of([tensor])
    return row_batch(tensor, plan=plan, schema=plan.arrow_schema(), tensor_index=0, kv_group=tensor.kv_group or 0)


def from_record_batch(batch: pa.RecordBatch, *, copy: bool | None = None) -> BlockPagedTensor:
    """Return the one tensor that a batch of rows holds.

    Parameters
    ----------
    batch
        The rows of one tensor, as :func:`to_record_batch` or a snapshot has them; also after another library rewrote
        them (stripped extension types, list for large_list, views, slices).
    copy
        ``None``: a buffer is copied where it must be. ``False``: nothing may be.

    Returns
    -------
    BlockPagedTensor
        Its buffers are views that keep the batch's memory alive, except pools that lie in several rows, tables stored
        wider than the descriptor says, and the seq_ptr of a row behind others in one batch.

    Raises
    ------
    SnapshotCorruptError
        A column is missing or disagrees with the descriptor (``column_mismatch``), or holds nulls (``arrow_null``).
    ValueError
        No row, or rows of several tensors: use :func:`tensors_from_batches`.
    CopyRequiredError
        ``copy=False`` and a copy is needed.
    """
    tensors = tensors_from_batches([batch], copy=copy)
    if len(tensors) != 1:
        raise ValueError(f"the batch holds {len(tensors)} tensors, expected 1; tensors_from_batches() reads many")
    return tensors[0]


def tensors_from_batches(batches: Sequence[pa.RecordBatch], *, copy: bool | None = None) -> list[BlockPagedTensor]:
    """Return every tensor in a set of batches, in snapshot order; rows may come in any order.

    Parameters
    ----------
    batches
        Batches with the columns of a snapshot, such as ``table.to_batches()``.
    copy
        As in :func:`from_record_batch`.

    Raises
    ------
    SnapshotCorruptError, CopyRequiredError
        As :func:`from_record_batch`; also ``row_missing`` where pages of a tensor are missing or given twice.
    """
    by_tensor: dict[int, list[Row]] = {}
    for batch in batches:
        for number in range(batch.num_rows):
            row = Row.read(batch, number)
            by_tensor.setdefault(row.tensor_index, []).append(row)
    tables: dict[int, Tables] = {}
    tensors = []
    for tensor_index in sorted(by_tensor):
        rows = sorted(by_tensor[tensor_index], key=lambda row: row.page_offset)
        own = tables_of(rows[0], tables.get(rows[0].kv_group))
        tables.setdefault(rows[0].kv_group, own)
        tensors.append(tensor_from_rows(rows, own, copy=copy))
    return tensors


def row_batch(
    tensor: BlockPagedTensor,
    *,
    plan: SchemaPlan,
    schema: pa.Schema,
    tensor_index: int,
    kv_group: int,
    with_tables: bool = True,
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
    page_checksums
        uint64, one per page (``pool_bytes``: one per MiB).

    Raises
    ------
    UnsupportedError
        The page class or the table width was not declared, or the batch has 2^31 sequences or more.
    """
    descriptor = tensor.descriptor
    page_column = plan.column_of(page_class_of(descriptor))
    values: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "tensor_index": lambda kind: pa.array([tensor_index], kind),
        "layer_index": lambda kind: pa.array([descriptor.layer_index], kind),
        "layer_name": lambda kind: pa.array([tensor.layer_name], kind),
        "kv_role": lambda kind: pa.array([tensor.kv_role], kind),
        "component": lambda kind: pa.array([tensor.component], kind),
        "kv_group": lambda kind: pa.array([kv_group], kind),
        "page_offset": lambda kind: pa.array([0], kind),
        "descriptor": lambda kind: pa.array([descriptor.encode()], kind),
        "original_descriptor": lambda kind: pa.array([tensor.original_descriptor], kind),
        page_column: lambda kind: _pages(tensor, kind),
    }
    if with_tables:
        values["block_table"] = lambda kind: _block_table(tensor, kind)
        values["sequences"] = lambda kind: _one_list(sequences_array(tensor.sequences, tensor.num_seqs), kind)
    if tensor.quantization_buffers:
        values["quantization_buffers"] = lambda kind: pa.array(
            [[b.tobytes() for b in tensor.quantization_buffers]], kind
        )
    if page_checksums is not None:
        values["page_checksums"] = lambda kind: _one_list(_primitive(page_checksums, kind.value_type), kind)
    arrays = [values[field.name](field.type) if field.name in values else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pages(tensor: BlockPagedTensor, kind: pa.DataType) -> pa.Array:
    pool = tensor.buffers[0]
    if kind == pa.large_binary():
        offsets = pa.py_buffer(np.array([0, len(pool)], np.int64))
        return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(pool)])
    page_type: PagePoolType = kind.value_type
    storage = page_type.storage_type
    values = _primitive(pool, storage.value_type)
    pages = pa.FixedSizeListArray.from_arrays(values, type=storage)
    return _one_list(pa.ExtensionArray.from_storage(page_type, pages), kind)


def _block_table(tensor: BlockPagedTensor, kind: pa.DataType) -> pa.Array:
    if tensor.num_seqs > MAX_LIST_ITEMS:
        raise UnsupportedError(f"{tensor.num_seqs} sequences in one tensor, at most {MAX_LIST_ITEMS} are supported")
    table_type: BlockTableType = kind.value_type
    storage = table_type.storage_type
    large = pa.types.is_large_list(storage)
    offset_type, width = (np.int64, 8) if large else (np.int32, 4)
    if tensor.seq_ptr.itemsize > storage.value_type.bit_width // 8 or len(tensor.block_table) >= 2 ** (8 * width - 1):
        raise UnsupportedError(
            f"block table of {len(tensor.block_table)} {tensor.block_table.dtype} entries does not fit the declared "
            f"storage {storage}; declare one of {list(BLOCK_TABLE_STORAGES)} when the snapshot is opened"
        )
    seq_ptr = tensor.seq_ptr
    offsets = seq_ptr.view(offset_type) if seq_ptr.itemsize == width else seq_ptr.astype(offset_type)
    item_dtype = storage.value_type.to_pandas_dtype()
    values = _primitive(tensor.block_table.astype(item_dtype, copy=False), storage.value_type)
    table = pa.Array.from_buffers(storage, tensor.num_seqs, [None, pa.py_buffer(offsets)], children=[values])
    return _one_list(pa.ExtensionArray.from_storage(table_type, table), kind)


def _primitive(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    raw = values.reshape(-1).view(np.uint8)
    return pa.Array.from_buffers(kind, raw.nbytes * 8 // kind.bit_width, [None, pa.py_buffer(raw)])


def _one_list(items: pa.Array, kind: pa.DataType) -> pa.Array:
    offset_type = np.int64 if pa.types.is_large_list(kind) else np.int32
    offsets = pa.py_buffer(np.array([0, len(items)], offset_type))
    return pa.Array.from_buffers(kind, 1, [None, offsets], children=[items])


__all__ = ["from_record_batch", "row_batch", "tensors_from_batches", "to_record_batch"]
