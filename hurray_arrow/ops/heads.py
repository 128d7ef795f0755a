"""Heads of tensor-parallel ranks: splitting a cache by heads, and merging ranks' caches.

Spec: block-paged layout, Sharding; snapshot format section 3, topology.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np

from hurray_arrow.components import follows_heads, means_whole_pages
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.intake import as_bytes
from hurray_arrow.ops.columns import cut_columns, join_columns
from hurray_arrow.ops.group import (
    Group,
    check_same_kind,
    check_same_tables,
    given_back,
    mismatch,
    take_group,
    take_groups,
)
from hurray_arrow.ops.page_bytes import PageBytes, pages_equal
from hurray_arrow.ops.page_table import ends_of, entry_fills, first_use, page_fills
from hurray_arrow.ops.parameters import (
    check_movable,
    check_same_scheme,
    lay_parameters,
    parameters_differ,
    read_parameters,
    same_buffers,
)
from hurray_arrow.ops.ranges import HalfOpen, half_open
from hurray_arrow.ops.results import Tables, rebuilt, tables_of
from hurray_arrow.schemes import PerChannel
from hurray_arrow.tensor import BlockPagedTensor

Range: TypeAlias = tuple[int, int]

_HEADS_AXIS = 1
_SAME = ("kv_role", "layer_index", "layer_name", "component", "element_type", "num_pages", "head_dim")


@overload
def split_heads(tensors: BlockPagedTensor, parts: SupportsIndex | Sequence[HalfOpen]) -> list[BlockPagedTensor]: ...
@overload
def split_heads(
    tensors: Sequence[BlockPagedTensor], parts: SupportsIndex | Sequence[HalfOpen]
) -> list[list[BlockPagedTensor]]: ...
def split_heads(
    tensors: BlockPagedTensor | Sequence[BlockPagedTensor], parts: SupportsIndex | Sequence[HalfOpen]
) -> list[BlockPagedTensor] | list[list[BlockPagedTensor]]:
    """Split a cache by heads, one part per tensor-parallel rank; tables and facts stay as they are.

    Companions with one value per head are split with their values. ``indexer`` and ``record.<name>``, and scales that
    all heads share, go to every part without a copy.

    Parameters
    ----------
    tensors
        One tensor, or several of one kv_group.
    parts
        How many parts: as many heads each, or, where there are fewer heads than parts, each head in as many parts. Or a
        half-open range of heads for each part, which together have to give every head; the same range may stand there
        more than once.

    Returns
    -------
    list of BlockPagedTensor, or of lists of them
        Per part as given. New pools; views where a part has all heads.

    Raises
    ------
    InvariantError
        ``head_range_invalid``: gaps, overlaps, a number of parts that heads cannot be shared out to.
        ``kv_group_mismatch``, and all codes of :meth:`BlockPagedTensor.validate`.
    UnsupportedError
        A component ``page.<name>``; parameters of which nobody says how they belong to heads.

    Examples
    --------
    >>> ranks = ha.ops.split_heads(keys, 2)
    >>> [rank.num_heads for rank in ranks], ha.ops.merge_heads(ranks).equals(keys)
    ([1, 1], True)

    Spec: snapshot format section 3, topology (head_range, head_replica).
    """
    group = take_group(tensors)
    tables = tables_of(group[0])
    split: list[list[BlockPagedTensor]] = []
    for place, tensor in enumerate(group):
        check_movable(tensor, operation="split_heads")
        ranges = _ranges(parts, tensor.num_heads if _follows_heads(tensor, group) else None, where=f"tensors[{place}]")
        split.append([_heads_of(tensor, each, tables) for each in ranges])
    by_part: list[Any] = [given_back(tensors, members) for members in zip(*split, strict=True)]
    return by_part


@overload
def merge_heads(
    parts: Sequence[BlockPagedTensor], *, head_ranges: Sequence[HalfOpen] | None = None
) -> BlockPagedTensor: ...
@overload
def merge_heads(
    parts: Sequence[Sequence[BlockPagedTensor]], *, head_ranges: Sequence[HalfOpen] | None = None
) -> list[BlockPagedTensor]: ...
def merge_heads(
    parts: Sequence[BlockPagedTensor] | Sequence[Sequence[BlockPagedTensor]],
    *,
    head_ranges: Sequence[HalfOpen] | None = None,
) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Merge the caches of tensor-parallel ranks into one with all heads.

    Ranks with the same range of heads are replicas: they have to hold the same bytes in every slot that a token fills,
    and are taken once. What every rank has whole is compared in the same way. Nothing is found out from bytes alone:
    without ``head_ranges`` the parts follow one another.

    Parameters
    ----------
    parts
        One tensor per rank; or per rank the tensors of a kv_group, in the same order.
    head_ranges
        Half-open range of heads of each part, in any order.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        A tensor, or as many as a rank has, with the first part's tables and facts; new pools.

    Raises
    ------
    InvariantError
        ``head_range_invalid``: gaps, overlaps, ranges of another size than their parts. ``replica_mismatch``: replicas
        differ. ``tensor_mismatch``, with both values. ``kv_group_mismatch``: tables, lengths or tokens differ between
        parts. All codes of :meth:`BlockPagedTensor.validate`.
    QuantizationError
        ``quantization_mismatch``: schemes, or parameters that do not belong to heads, differ.
    UnsupportedError
        A component ``page.<name>``; parameters of which nobody says how they belong to heads.
    TypeError, ValueError
        Tensors and groups are mixed; there are no parts.

    Spec: snapshot format section 3, topology (head_range, head_replica).
    """
    listed, groups = take_groups(parts, name="parts")
    for place, group in enumerate(groups[1:], 1):
        _check_alike(groups[0], group, where=f"parts[{place}]")
    ranges = None
    if head_ranges is not None:
        ranges = [half_open(each, where=f"head_ranges[{k}]") for k, each in enumerate(head_ranges)]
        if len(ranges) != len(groups):
            raise ValueError(f"head_ranges: {len(ranges)} ranges, expected one per part ({len(groups)})")
    tables = tables_of(groups[0][0])
    merged = []
    for place, tensor in enumerate(groups[0]):
        check_movable(tensor, operation="merge_heads")
        ranks = [group[place] for group in groups]
        if _follows_heads(tensor, groups[0]):
            ranks = _in_order(ranks, ranges)
            merged.append(_side_by_side(ranks, tables))
        else:
            for number, rank in enumerate(ranks[1:], 1):
                check_same_kind(tensor, rank, names=["num_heads"], where=f"parts[{number}]")
                _check_replica(tensor, rank, where=f"parts[{number}]")
            merged.append(rebuilt(tensor, tables))
    return given_back(listed[0], merged)


def _follows_heads(tensor: BlockPagedTensor, group: Group) -> bool:
    """Say whether a tensor's heads are those of the model, so that ranks share them out."""
    component = tensor.component
    if means_whole_pages(component):
        raise UnsupportedError(f"heads: only whole pages of component {component!r} have meaning")
    if (known := follows_heads(component)) is not None:
        return known
    key = (tensor.layer_index, tensor.layer_name, tensor.kv_role)
    heads = [
        each.num_heads
        for each in group
        if each.component == "values" and (each.layer_index, each.layer_name, each.kv_role) == key
    ]
    if not heads or tensor.num_heads == heads[0]:
        return True
    if tensor.num_heads == 1:
        return False
    raise mismatch(f"component {component!r}", "num_heads", tensor.num_heads, f"{heads[0]} as of its values, or 1")


def _per_head(tensor: BlockPagedTensor) -> bool:
    """Say whether the tensor has one scale per head."""
    return isinstance(tensor.quantization, PerChannel) and tensor.quantization.axis == _HEADS_AXIS


# -- splitting ---------------------------------------------------------------------------------------------------------


def _ranges(parts: SupportsIndex | Sequence[HalfOpen], num_heads: int | None, *, where: str) -> list[Range | None]:
    """Give the heads of each part, ``None`` for all of them."""
    if isinstance(parts, SupportsIndex):
        count = operator.index(parts)
        if count < 1:
            raise ValueError(f"parts: {count}, expected at least 1")
        if num_heads is None:
            return [None] * count
        if num_heads % count == 0:
            size = num_heads // count
            return [(part * size, (part + 1) * size) for part in range(count)]
        if count % num_heads:
            raise _range_error(where, f"{num_heads} heads cannot be shared out to {count} parts")
        copies = count // num_heads
        return [(part // copies, part // copies + 1) for part in range(count)]
    if not parts:
        raise ValueError("no parts")
    if num_heads is None:
        return [None] * len(parts)
    ranges = [half_open(each, where=f"parts[{k}]") for k, each in enumerate(parts)]
    closed = [(start, num_heads if stop is None else stop) for start, stop in ranges]
    _check_tiling(closed, total=num_heads, where=where)
    return [*closed]


def _heads_of(tensor: BlockPagedTensor, heads: Range | None, tables: Tables) -> BlockPagedTensor:
    if heads is None or heads == (0, tensor.num_heads):
        return rebuilt(tensor, tables)
    start, stop = heads
    dim = tensor.head_dim
    pool = cut_columns(
        as_bytes(tensor.page_pool),
        tensor.element_type,
        rows=tensor.num_pages * tensor.page_size,
        width=tensor.num_heads * dim,
        columns=(start * dim, stop * dim),
    )
    parameters = tensor.quantization_buffers
    if _per_head(tensor):
        parameters = lay_parameters(tensor, tuple(values[start:stop] for values in read_parameters(tensor)))
    shape = (tensor.page_size, stop - start, dim)
    return rebuilt(tensor, tables, page_pool=pool, parameters=parameters, page_shape=shape)


# -- merging -----------------------------------------------------------------------------------------------------------


def _check_alike(first: Group, other: Group, *, where: str) -> None:
    if len(other) != len(first):
        raise mismatch(where, "tensors", len(other), len(first))
    check_same_tables(first[0], other[0], where=where)
    for place, (expected, found) in enumerate(zip(first, other, strict=True)):
        at = f"{where}[{place}]" if len(first) > 1 else where
        check_same_kind(expected, found, names=_SAME, where=at)
        check_same_scheme(expected, found, where=at)
        if not _per_head(expected) and not same_buffers(expected, found):
            raise parameters_differ(at, "other parameters", "those of the first part")


def _in_order(ranks: list[BlockPagedTensor], ranges: list[tuple[int, int | None]] | None) -> list[BlockPagedTensor]:
    """Give one rank for each range of heads, in order of heads."""
    if ranges is None:
        return ranks
    closed = []
    for place, (rank, (start, stop)) in enumerate(zip(ranks, ranges, strict=True)):
        end = start + rank.num_heads if stop is None else stop
        if end - start != rank.num_heads:
            message = f"heads [{start}, {end}), expected {rank.num_heads} heads as the part has"
            raise _range_error(f"head_ranges[{place}]", message)
        closed.append((start, end))
    _check_tiling(closed, total=None, where="head_ranges")
    first: dict[Range, BlockPagedTensor] = {}
    for place, (rank, heads) in enumerate(zip(ranks, closed, strict=True)):
        if heads in first:
            _check_replica(first[heads], rank, where=f"parts[{place}]")
        first.setdefault(heads, rank)
    return [first[heads] for heads in sorted(first)]


def _side_by_side(ranks: list[BlockPagedTensor], tables: Tables) -> BlockPagedTensor:
    first = ranks[0]
    widths = [rank.num_heads * rank.head_dim for rank in ranks]
    pools = [as_bytes(rank.page_pool) for rank in ranks]
    rows = first.num_pages * first.page_size
    parameters = first.quantization_buffers
    if _per_head(first):
        columns = zip(*map(read_parameters, ranks), strict=True)
        parameters = lay_parameters(first, tuple(np.concatenate(column) for column in columns))
    return rebuilt(
        first,
        tables,
        page_pool=join_columns(pools, first.element_type, rows=rows, widths=widths),
        parameters=parameters,
        page_shape=(first.page_size, sum(rank.num_heads for rank in ranks), first.head_dim),
    )


def _check_replica(first: BlockPagedTensor, other: BlockPagedTensor, *, where: str) -> None:
    """Refuse a replica that holds other bytes than the first in a slot that a token fills."""
    page_ids, table = first_use(first.block_table)
    fills = entry_fills(first.seq_ptr, ends_of(first), page_size=first.page_size)
    fill = page_fills(table, fills, num_pages=page_ids.size)
    mine, theirs = [PageBytes(first)], [PageBytes(other)]
    same = not isinstance(first.quantization, PerChannel) or same_buffers(first, other)
    for page, slots in zip(page_ids.tolist(), fill.tolist(), strict=True):
        if not same or not pages_equal(mine, page, theirs, page, slots):
            message = f"page {page} or its parameters hold other bytes than the first replica of these heads"
            raise InvariantError(Problem(ProblemCode.REPLICA_MISMATCH, where, message, "snapshot format 3"))


def _check_tiling(ranges: list[Range], *, total: int | None, where: str) -> None:
    """Refuse ranges that, replicas taken once, leave a gap, overlap, or do not end with the last head."""
    end = 0
    for start, stop in sorted(set(ranges)):
        if start != end:
            kind = "a gap" if start > end else "an overlap"
            raise _range_error(where, f"{kind} at head {min(start, end)}: heads [{start}, {stop}) follow head {end}")
        end = stop
    if total is not None and end != total:
        raise _range_error(where, f"the ranges end at head {end}, expected {total} heads")


def _range_error(where: str, message: str) -> InvariantError:
    return InvariantError(Problem(ProblemCode.HEAD_RANGE_INVALID, where, message, "snapshot format 3"))
