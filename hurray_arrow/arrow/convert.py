"""A tensor as a snapshot row in Arrow, and back.

Zero copy wherever Arrow's memory rules allow: the page pool always is, the tables are when their integers have the
width of the column. Slices, filtered and concatenated batches come back right, because every array is read through its
window.

Spec: snapshot format, sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from hurray_arrow.arrow.row_batches import row_batch
from hurray_arrow.arrow.rows import Row, Tables
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.arrow.tensor_rows import tables_of, tensor_from_rows
from hurray_arrow.errors import CopyRequiredError
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

    Examples
    --------
    >>> batch = ha.to_record_batch(keys)
    >>> ha.from_record_batch(batch).equals(keys)
    True
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
        rows = sorted(by_tensor[tensor_index], key=lambda row: row.order)
        own = tables_of(rows[0], tables.get(rows[0].kv_group))
        tables.setdefault(rows[0].kv_group, own)
        tensors.append(tensor_from_rows(rows, own, copy=copy))
    return tensors
