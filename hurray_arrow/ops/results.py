"""Building the tensor that an operation gives back: our own descriptor over old and new memory.

Spec: block-paged layout, Additional Descriptor Fields; snapshot format section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle, Statistics
from hurray_arrow.intake import INDEX_DTYPES, as_bytes, shape_pool
from hurray_arrow.memory import Bytes, copy_of
from hurray_arrow.ops.page_table import PageMove
from hurray_arrow.ops.pages import move_pool, move_slots
from hurray_arrow.ops.parameters import lay_parameters, read_parameters
from hurray_arrow.quantization import Quantization
from hurray_arrow.schemes import PerBlock
from hurray_arrow.sequences import Sequences
from hurray_arrow.spec import MIN_ALIGNMENT_BYTES, UINT32_MAX, IndexType, KvRole
from hurray_arrow.tensor import BlockPagedTensor

IndexArray: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """What the tensors of a group have in common, laid down once for all of them.

    Parameters
    ----------
    block_table, seq_ptr
        Integers ``[total_logical_pages]`` and ``[num_seqs + 1]``.
    sequences
        What is known of the sequences.
    total_tokens
        Stored tokens.
    """

    block_table: IndexArray
    seq_ptr: IndexArray
    sequences: Sequences
    total_tokens: int
    _made: dict[IndexType, tuple[IndexType, IndexArray, IndexArray]] = field(default_factory=dict)

    def of_type(self, index_type: IndexType) -> tuple[IndexType, IndexArray, IndexArray]:
        """Give the tables in an index type, or in the wider one that they need."""
        if index_type not in self._made:
            highest = max(int(array.max()) if array.size else 0 for array in (self.block_table, self.seq_ptr))
            wide = IndexType.UINT64 if highest > UINT32_MAX else index_type
            dtype = INDEX_DTYPES[wide]
            arrays = [_as_index(array, dtype) for array in (self.block_table, self.seq_ptr)]
            self._made[index_type] = (wide, arrays[0], arrays[1])
        return self._made[index_type]


def _as_index(array: IndexArray, dtype: np.dtype[Any]) -> IndexArray:
    return array if array.dtype == dtype else copy_of(array.astype(dtype)).view(dtype)


def tables_of(tensor: BlockPagedTensor) -> Tables:
    """Give the tables of a tensor, for a result that keeps them."""
    return Tables(tensor.block_table, tensor.seq_ptr, tensor.sequences, tensor.total_tokens)


def rebuilt(
    tensor: BlockPagedTensor,
    tables: Tables,
    *,
    page_pool: Bytes | None = None,
    parameters: tuple[Bytes, ...] | None = None,
    num_pages: int | None = None,
    page_shape: tuple[int, int, int] | None = None,
    quantization: Quantization | None = None,
    statistics: Statistics | None = None,
    kv_role: KvRole | None = None,
) -> BlockPagedTensor:
    """Build a tensor that is as ``tensor`` but for what is given; it becomes ours, so that no trace of bytes is kept.

    ``original_descriptor`` and bytes of a newer minor version are dropped, because they say nothing of the result.

    Parameters
    ----------
    tensor
        What everything comes from that is not given.
    tables
        Of the result.
    page_pool, parameters
        uint8 bytes of buffers 0 and 3, 4, …; ``None`` shares the tensor's own.
    num_pages, page_shape, quantization, kv_role
        Of the result, ``None`` for the tensor's own.
    statistics
        Of the result's values.

    Returns
    -------
    BlockPagedTensor
        Views of what was given and of the tensor's memory.

    Raises
    ------
    InvalidDescriptorError, InvariantError, QuantizationError
        The result breaks a rule.
    """
    old = tensor.descriptor
    num_pages = old.num_pages if num_pages is None else num_pages
    page_shape = old.page_shape if page_shape is None else page_shape
    index_type, block_table, seq_ptr = tables.of_type(old.index_type)
    pool = tensor.page_pool
    if page_pool is not None:
        pool = shape_pool(page_pool, old.element_type, num_pages=num_pages, page_shape=page_shape)
    buffers = (pool, block_table, seq_ptr, *(tensor.quantization_buffers if parameters is None else parameters))
    descriptor = BlockPagedDescriptor(
        element_type=old.element_type,
        shape=(tables.total_tokens, *page_shape[1:]),
        page_size=page_shape[0],
        num_pages=num_pages,
        num_seqs=seq_ptr.size - 1,
        kv_role=old.kv_role if kv_role is None else kv_role,
        layer_index=old.layer_index,
        index_type=index_type,
        buffers=_handles(tensor, buffers),
        quantization=old.quantization if quantization is None else quantization,
        statistics=statistics,
    )
    return BlockPagedTensor(
        descriptor,
        pool,
        block_table,
        seq_ptr,
        tuple(map(as_bytes, buffers[3:])),
        sequences=tables.sequences,
        layer_name=tensor.layer_name,
        component=tensor.component,
        kv_group=tensor.kv_group,
    )


def _handles(tensor: BlockPagedTensor, buffers: tuple[npt.NDArray[Any], ...]) -> tuple[BufferHandle, ...]:
    """Give the handles of a result's buffers: the alignment describes memory, so it stays with the tensor's own."""
    own = (tensor.page_pool, tensor.block_table, tensor.seq_ptr, *tensor.quantization_buffers)
    return tuple(
        BufferHandle(byte_size=array.nbytes, alignment=handle.alignment if array is mine else MIN_ALIGNMENT_BYTES)
        for array, mine, handle in zip(buffers, own, tensor.descriptor.buffers, strict=True)
    )


def moved(tensors: tuple[BlockPagedTensor, ...], move: PageMove, tables: Tables) -> BlockPagedTensor:
    """Build a tensor out of the pages of one tensor, or of several that differ in nothing but pages.

    Parameters
    ----------
    tensors
        One per pool that the move names.
    move
        Where the slots of the new pages come from.
    tables
        Over the new pages.

    Returns
    -------
    BlockPagedTensor
        New memory. Statistics stay where every slot of the one pool is in the result once, and no other.

    Spec: block-paged layout, Per-page-slot parameters.
    """
    first = tensors[0]
    quantization, parameters = scheme_of_size(first, move.page_size), first.quantization_buffers
    if isinstance(first.quantization, PerBlock):
        columns = zip(*map(read_parameters, tensors), strict=True)
        parameters = lay_parameters(first, tuple(move_slots(column, move) for column in columns))
    return rebuilt(
        first,
        tables,
        page_pool=move_pool(tensors, move),
        parameters=parameters,
        num_pages=move.num_pages,
        page_shape=(move.page_size, first.num_heads, first.head_dim),
        quantization=quantization,
        statistics=first.descriptor.statistics if _keeps_all(tensors, move) else None,
    )


def scheme_of_size(tensor: BlockPagedTensor, page_size: int) -> Quantization | None:
    """Give the tensor's scheme for pages of another size: per-slot parameters are blocks of a page.

    Spec: block-paged layout, Per-scheme composition.
    """
    quantization = tensor.quantization
    return replace(quantization, block_size=page_size) if isinstance(quantization, PerBlock) else quantization


def _keeps_all(tensors: tuple[BlockPagedTensor, ...], move: PageMove) -> bool:
    first = tensors[0]
    if first.descriptor.statistics is None or len(tensors) > 1:
        return False
    complete = move.fill is None or bool(np.all(move.fill == move.page_size))
    every = np.arange(first.num_pages * first.page_size // move.unit_slots)
    return complete and np.array_equal(np.sort(move.units, axis=None), every)
