"""Concat: several batches in one, over one pool.

Spec: block-paged layout, Buffer Table and Prefix Sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from hurray_arrow.ops.facts import facts_of, join_facts
from hurray_arrow.ops.group import Group, check_same_kind, given_back, mismatch, take_groups
from hurray_arrow.ops.page_bytes import PageBytes, equal_pages
from hurray_arrow.ops.page_table import (
    IndexArray,
    Int64Array,
    PageMove,
    ends_of,
    entry_fills,
    first_use,
    page_counts,
    page_fills,
)
from hurray_arrow.ops.parameters import check_movable, check_same_scheme, parameters_differ, same_buffers
from hurray_arrow.ops.results import Tables, moved, rebuilt
from hurray_arrow.schemes import PerBlock
from hurray_arrow.tensor import BlockPagedTensor

#: What tensors of two batches have to have in common.
_SAME = ("kv_role", "layer_index", "layer_name", "component", "element_type", "page_size", "num_heads", "head_dim")


@overload
def concat(batches: Sequence[BlockPagedTensor], *, share_equal_pages: bool = False) -> BlockPagedTensor: ...
@overload
def concat(
    batches: Sequence[Sequence[BlockPagedTensor]], *, share_equal_pages: bool = False
) -> list[BlockPagedTensor]: ...
def concat(
    batches: Sequence[BlockPagedTensor] | Sequence[Sequence[BlockPagedTensor]], *, share_equal_pages: bool = False
) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Put the sequences of several batches one after the other into one.

    Batches over the same memory share its pages; where all are, **no page is copied** and the result is a view of that
    pool. Otherwise the pages that sequences name are copied into a new pool, one old pool after the other, each in
    order of first use. The result is called and numbered as the first batch.

    Parameters
    ----------
    batches
        One tensor per batch; or per batch the tensors of a kv_group, in the same order.
    share_equal_pages
        Store pages once that hold the same bytes in every tensor of the group, parameters included. Pages that are
        partly filled are equal when they are filled to the same slot and equal up to there; where nobody knows how
        long a sequence is, its pages count as full. Found by xxh3-64 and then compared byte for byte.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        A tensor, or as many as a batch has: views or new memory, as said above.

    Raises
    ------
    InvariantError
        ``tensor_mismatch``, with both values. ``kv_group_mismatch``, and all codes of
        :meth:`BlockPagedTensor.validate`.
    QuantizationError
        ``quantization_mismatch``: schemes or parameters that belong to no page differ; nothing is requantized.
    UnsupportedError
        Pages are to be copied, and nobody says how parameters belong to them.
    TypeError, ValueError
        Tensors and groups are mixed; there are no batches.

    Examples
    --------
    >>> both = ha.ops.concat([ha.ops.select(keys, "a"), ha.ops.select(keys, "b")])
    >>> both.num_seqs, both.num_pages  # one pool, so that no page is copied
    (2, 5)

    Spec: block-paged layout, Prefix Sharing.
    """
    listed, groups = take_groups(batches, name="batches")
    for place, group in enumerate(groups[1:], 1):
        _check_alike(groups[0], group, where=f"batches[{place}]")
    counts = np.concatenate([page_counts(group[0].seq_ptr) for group in groups])
    seq_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    sequences = join_facts(facts for group in groups for facts in facts_of(group[0]))
    total_tokens = sum(group[0].total_tokens for group in groups)
    owners, pools = _pools(groups)
    page_ids, table = _used_pages(groups, pools)
    merged = False
    if share_equal_pages:
        ends = np.concatenate([ends_of(group[0]) for group in groups])
        fills = entry_fills(seq_ptr, ends, page_size=groups[0][0].page_size)
        total = sum(ids.size for ids in page_ids)
        same_as = _equal(owners, page_ids, page_fills(table, fills, num_pages=total))
        merged = not np.array_equal(same_as, np.arange(total))
        page_ids, table = _without(page_ids, table, same_as)
    if len(owners) == 1 and not merged:
        whole = np.concatenate([group[0].block_table for group in groups])
        tables = Tables(whole, seq_ptr, sequences, total_tokens)
        return given_back(listed[0], [rebuilt(tensor, tables) for tensor in owners[0]])
    tables = Tables(table, seq_ptr, sequences, total_tokens)
    return given_back(listed[0], _copied(owners, page_ids, tables))


def _copied(owners: list[Group], page_ids: list[IndexArray], tables: Tables) -> list[BlockPagedTensor]:
    page_size = owners[0][0].page_size
    units = np.concatenate([ids.astype(np.int64) for ids in page_ids])[:, np.newaxis]
    move = PageMove(page_size, page_size, units, tuple(ids.size for ids in page_ids))
    for tensor in owners[0]:
        check_movable(tensor, operation="concat over several pools")
    return [moved(tensors, move, tables) for tensors in zip(*owners, strict=True)]


def _check_alike(first: Group, other: Group, *, where: str) -> None:
    """Refuse batches whose tensors differ in more than pages and sequences."""
    if len(other) != len(first):
        raise mismatch(where, "tensors", len(other), len(first))
    for place, (expected, found) in enumerate(zip(first, other, strict=True)):
        at = f"{where}[{place}]" if len(first) > 1 else where
        check_same_kind(expected, found, names=_SAME, where=at)
        check_same_scheme(expected, found, where=at)
        # Per-slot parameters move with their slots; all others belong to the batch as a whole.
        if not isinstance(expected.quantization, PerBlock) and not same_buffers(expected, found):
            raise parameters_differ(at, "other parameters", f"those of {_first_name(len(first), place)}")


def _first_name(size: int, place: int) -> str:
    return f"batches[0][{place}]" if size > 1 else "batches[0]"


def _memory(group: Group) -> tuple[tuple[int, int, int], ...]:
    """Name the memory of a group's pages, so that the same memory has the same name."""
    return tuple(
        (tensor.num_pages, buffer.ctypes.data, buffer.nbytes)
        for tensor in group
        for buffer in (tensor.buffers[0], *tensor.quantization_buffers)
    )


def _pools(groups: list[Group]) -> tuple[list[Group], list[int]]:
    """Give the first group over each pool, and the pool of each group."""
    numbers: dict[tuple[tuple[int, int, int], ...], int] = {}
    owners: list[Group] = []
    pools = []
    for group in groups:
        number = numbers.setdefault(_memory(group), len(owners))
        if number == len(owners):
            owners.append(group)
        pools.append(number)
    return owners, pools


def _used_pages(groups: list[Group], pools: list[int]) -> tuple[list[IndexArray], Int64Array]:
    """Give numbers to the pages that sequences name, one pool after the other.

    Returns
    -------
    page_ids : list of numpy.ndarray
        Per pool its pages in use, in order of first use.
    block_table : numpy.ndarray
        New int64 array: all batches' tables in the new numbers.
    """
    page_ids: list[IndexArray] = []
    parts: list[Int64Array] = [np.empty(0, np.int64)] * len(groups)
    offset = 0
    for pool in range(max(pools) + 1):
        mine = [batch for batch, number in enumerate(pools) if number == pool]
        tables = [groups[batch][0].block_table for batch in mine]
        ids, numbers = first_use(np.concatenate(tables))
        ends = np.cumsum([table.size for table in tables])[:-1]
        for batch, part in zip(mine, np.split(numbers + offset, ends), strict=True):
            parts[batch] = part
        page_ids.append(ids)
        offset += ids.size
    return page_ids, np.concatenate(parts)


def _equal(owners: list[Group], page_ids: list[IndexArray], fill: Int64Array) -> Int64Array:
    pages: list[tuple[list[PageBytes], int]] = []
    for group, ids in zip(owners, page_ids, strict=True):
        readers = [PageBytes(tensor) for tensor in group]
        pages += [(readers, page) for page in ids.tolist()]
    return equal_pages(pages, fill)


def _without(page_ids: list[IndexArray], table: Int64Array, same_as: Int64Array) -> tuple[list[IndexArray], Int64Array]:
    """Leave the pages out that are equal to an earlier one."""
    keep = same_as == np.arange(same_as.size)
    numbers = np.cumsum(keep) - 1
    kept = np.split(keep, np.cumsum([ids.size for ids in page_ids])[:-1])
    return [ids[mask] for ids, mask in zip(page_ids, kept, strict=True)], numbers[same_as[table]]
