"""A tensor out of its rows: the columns compared with its descriptor, its pages joined, its tables in their own width.

Spec: snapshot format, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.page_class import BYTE_PLANES, PLAIN
from hurray_arrow.arrow.rows import Row, Tables, refuse
from hurray_arrow.arrow.schema import PAGE_POOL, POOL_BYTES, page_class_of
from hurray_arrow.arrow.types import holds_the_same
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import CopyRequiredError, HurrayArrowError, Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.memory import copy_of
from hurray_arrow.spec import INDEX_TYPE_NAMES, KV_ROLE_NAMES, MIN_ALIGNMENT_BYTES
from hurray_arrow.tensor import BlockPagedTensor


def tables_of(row: Row, group: Tables | None) -> Tables:
    """Return the tables of a tensor's first row: its own, or those of the first tensor of its kv_group.

    Raises
    ------
    SnapshotCorruptError
        ``group_table_missing``: neither has any; ``column_mismatch``: both have tables or sequences, and they differ.
    """
    where, own = f"tensor {row.tensor_index}", row.tables
    if group is None:
        if own is None:
            message = f"null in the first tensor of kv_group {row.kv_group}"
            raise refuse(ProblemCode.GROUP_TABLE_MISSING, f"{where}.block_table", message)
        return own
    message = f"differs from the first tensor's of kv_group {row.kv_group}"
    if own is not None and not (
        np.array_equal(own.seq_ptr, group.seq_ptr) and np.array_equal(own.block_table, group.block_table)
    ):
        raise refuse(ProblemCode.COLUMN_MISMATCH, f"{where}.block_table", message)
    if row.sequences is not None and not row.sequences.equals(group.sequences):
        raise refuse(ProblemCode.COLUMN_MISMATCH, f"{where}.sequences", message)
    return group


def tensor_from_rows(
    rows: Sequence[Row], tables: Tables, *, copy: bool | None = None, align_small_buffers: bool = False
) -> BlockPagedTensor:
    """Return the tensor whose rows these are, in page order.

    Parameters
    ----------
    rows
        All rows of one tensor.
    tables
        What :func:`tables_of` gave for the first row.
    copy
        ``False`` refuses every copy.
    align_small_buffers
        Copy tables and quantization buffers that do not lie at a multiple of 64 bytes.

    Raises
    ------
    SnapshotCorruptError
        ``column_mismatch``, ``row_missing``, or the codes of the tensor's own broken invariants.
    CopyRequiredError
        ``copy=False`` and the pool lies in several rows, the tables are stored wider than the descriptor says, or
        Arrow's offsets have to be rebased.
    """
    first = rows[0]
    where = f"tensor {first.tensor_index}"
    if first.descriptor is None:
        raise refuse(ProblemCode.ROW_MISSING, where, "the first row has no descriptor")
    if any(row.descriptor is not None for row in rows[1:]):
        raise refuse(ProblemCode.ROW_MISSING, where, "two rows with a descriptor: they are of two tensors")
    try:
        descriptor = BlockPagedDescriptor.decode(first.descriptor)
        _check_columns(first, descriptor)
        if copy is False and tables.copied:
            raise CopyRequiredError(
                f"{where}.seq_ptr: Arrow's offsets do not begin at 0; pass copy=None to rebase them"
            )
        pool = _pool_of(rows, descriptor, copy=copy)
        small = [
            _narrow(tables.block_table, descriptor, f"{where}.block_table", copy=copy),
            _narrow(tables.seq_ptr, descriptor, f"{where}.seq_ptr", copy=copy),
            *first.quantization_buffers,
        ]
        if align_small_buffers:
            small = [aligned(buffer) for buffer in small]
        return BlockPagedTensor.from_buffers(
            descriptor,
            [pool, *small],
            sequences=tables.sequences,
            layer_name=first.layer_name,
            component=first.component,
            kv_group=first.kv_group,
            original_descriptor=first.original_descriptor,
        )
    except HurrayArrowError as error:
        problems = getattr(error, "problems", None)
        if problems is None or isinstance(error, SnapshotCorruptError):
            raise
        placed = [Problem(p.code, f"{where}.{p.where}", p.message, p.spec, p.offset_bytes, p.field) for p in problems]
        raise SnapshotCorruptError(placed) from error


def _check_columns(row: Row, descriptor: BlockPagedDescriptor) -> None:
    page_class = page_class_of(descriptor)
    stated: dict[str, tuple[Any, Any]] = {
        "kv_role": (row.kv_role, KV_ROLE_NAMES[descriptor.kv_role]),
        "layer_index": (row.layer_index, descriptor.layer_index),
    }
    if row.page_class is not None:
        stated[row.pool_column] = (row.page_class.encoded(PLAIN), page_class)
    if (row.pool_column == POOL_BYTES) == page_class.fits_a_column:
        kind = PAGE_POOL if page_class.fits_a_column else POOL_BYTES
        stated["pool"] = (row.pool_column or "no pool column", kind)
    for column, (found, expected) in stated.items():
        if found != expected:
            message = f"the column says {found}, the descriptor {expected}"
            raise refuse(ProblemCode.COLUMN_MISMATCH, f"tensor {row.tensor_index}.{column}", message)


def _check_storage(row: Row, descriptor: BlockPagedDescriptor) -> None:
    """Refuse stripped pages of another type: as many bytes of other numbers, as a tool's cast makes them."""
    if row.storage_type is None:
        return
    encoding = BYTE_PLANES if pa.types.is_struct(row.storage_type) else PLAIN
    expected = page_class_of(descriptor, encoding=encoding).storage_type()
    if not holds_the_same(expected, row.storage_type):
        message = f"pages are {row.storage_type}, the descriptor's are {expected}"
        raise refuse(ProblemCode.ARROW_SCHEMA, f"tensor {row.tensor_index}.{row.pool_column}", message)


def _pool_of(rows: Sequence[Row], descriptor: BlockPagedDescriptor, *, copy: bool | None) -> npt.NDArray[np.uint8]:
    page_bytes = page_class_of(descriptor).page_bytes
    expected = 0
    for row in rows:
        _check_storage(row, descriptor)
        where = f"tensor {row.tensor_index}.page_offset"
        if row.page_offset != expected:
            raise refuse(ProblemCode.ROW_MISSING, where, f"{row.page_offset}, expected {expected}")
        expected += len(row.pool) // page_bytes if page_bytes else 0
    if len(rows) == 1:
        return rows[0].pool
    if copy is False:
        raise CopyRequiredError(
            f"tensor {rows[0].tensor_index}: its pool lies in {len(rows)} rows; pass copy=None to join them"
        )
    return np.concatenate([row.pool for row in rows])


def _narrow(
    values: npt.NDArray[Any], descriptor: BlockPagedDescriptor, where: str, *, copy: bool | None
) -> npt.NDArray[Any]:
    dtype = descriptor.index_dtype
    if values.dtype == dtype:
        return values
    name = INDEX_TYPE_NAMES[descriptor.index_type]
    bound = int(np.iinfo(dtype).max)
    if len(values) and int(values.max()) > bound:
        message = f"value {int(values.max())} does not fit the descriptor's index type {name}"
        raise refuse(ProblemCode.COLUMN_MISMATCH, where, message)
    if copy is False:
        raise CopyRequiredError(f"{where}: stored as {values.dtype}, the descriptor says {name}; pass copy=None")
    return values.astype(dtype)


def aligned(buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same values at a multiple of 64 bytes: the array itself where it lies so, else a copy."""
    if buffer.ctypes.data % MIN_ALIGNMENT_BYTES == 0:
        return buffer
    return copy_of(buffer).view(buffer.dtype)
