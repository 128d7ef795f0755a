"""Arithmetic of block tables: which page comes first, what lies in a page, how slots fall into pages of another size.

Page ids are renumbered densely before anything is multiplied with them, so that nothing wraps: a pool without heads
may have 2⁶⁴ pages and no byte.

Spec: block-paged layout, Buffer Table, Partial trailing page, Prefix Sharing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import UnknownSequenceLengthError
from hurray_arrow.sequences import effective_lengths
from hurray_arrow.tensor import BlockPagedTensor

IndexArray: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

#: Stands in a page for slots that no source fills.
NOTHING = -1
#: Page ids below this are numbered in an array of their size.
_SMALL_IDS = 2**16


@dataclass(frozen=True, slots=True)
class PageMove:
    """Where the slots of new pages come from, in units of consecutive slots that stay together.

    Parameters
    ----------
    page_size
        Slots of a new page.
    unit_slots
        Slots of a unit; divides the new and the old page_size.
    units
        int64 ``[new pages, page_size / unit_slots]``: number of each unit in the old pool, ``NOTHING`` for none.
    pages_per_pool
        How many of the new pages come from each old pool, in this order.
    fill
        int64 ``[new pages]``: slots from here on become 0; ``None`` leaves all as they are.
    """

    page_size: int
    unit_slots: int
    units: Int64Array
    pages_per_pool: tuple[int, ...]
    fill: Int64Array | None = None

    @property
    def num_pages(self) -> int:
        """New pages."""
        return len(self.units)


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Tables over new pages, and where these come from."""

    move: PageMove
    block_table: Int64Array
    seq_ptr: Int64Array


def stored_lengths(tensor: BlockPagedTensor) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Give the tokens of every sequence and which of these lengths are known; with one it is total_tokens.

    Returns
    -------
    lengths : numpy.ndarray
        New int64 array ``[num_seqs]``, 0 where not known.
    known : numpy.ndarray
        New bool array ``[num_seqs]``.
    """
    lengths, known = effective_lengths(tensor.sequences, num_seqs=tensor.num_seqs, total_tokens=tensor.total_tokens)
    return lengths.astype(np.int64), known.copy()


def check_lengths_known(tensor: BlockPagedTensor, *, why: str) -> Int64Array:
    """Give the tokens of every sequence.

    Returns
    -------
    numpy.ndarray
        New int64 array ``[num_seqs]``.

    Raises
    ------
    UnknownSequenceLengthError
        Nobody recorded one of them.
    """
    lengths, known = stored_lengths(tensor)
    if not known.all():
        missing = np.flatnonzero(~known)
        raise UnknownSequenceLengthError(
            f"{why}: the lengths of {missing.size} sequences were not recorded, the first is sequence {missing[0]}: "
            f"pass seq_lens="
        )
    return lengths


def ends_of(tensor: BlockPagedTensor) -> Int64Array:
    """Give the slots of every sequence that may hold tokens: its tokens, all its slots where nobody knows.

    Returns
    -------
    numpy.ndarray
        New int64 array ``[num_seqs]``.
    """
    lengths, known = stored_lengths(tensor)
    return np.where(known, lengths, page_counts(tensor.seq_ptr) * tensor.page_size)


def page_counts(seq_ptr: IndexArray) -> Int64Array:
    """Give the pages of every sequence, as a new int64 array ``[num_seqs]``."""
    starts, ends = seq_ptr[:-1].astype(np.int64), seq_ptr[1:].astype(np.int64)
    return ends - starts


def entry_fills(seq_ptr: IndexArray, ends: Int64Array, *, page_size: int) -> Int64Array:
    """Give the slots that tokens fill in the page of each entry of block_table.

    Parameters
    ----------
    seq_ptr
        ``[num_seqs + 1]``.
    ends
        int64 ``[num_seqs]``: slots in use of each sequence.
    page_size
        Slots of a page.

    Returns
    -------
    numpy.ndarray
        New int64 array ``[total_logical_pages]``, each 0 to page_size.
    """
    counts = page_counts(seq_ptr)
    place = np.arange(int(seq_ptr[-1])) - np.repeat(seq_ptr[:-1].astype(np.int64), counts)
    fills: Int64Array = np.clip(np.repeat(ends, counts) - place * page_size, 0, page_size)
    return fills


def page_fills(entries: Int64Array, fills: Int64Array, *, num_pages: int) -> Int64Array:
    """Give the slots of each page that tokens of any sequence fill; sharing sequences keep the largest fill.

    Parameters
    ----------
    entries
        int64 ``[n]``: page ids.
    fills
        int64 ``[n]``: slots filled as each entry sees it.
    num_pages
        Pages.

    Returns
    -------
    numpy.ndarray
        New int64 array ``[num_pages]``.
    """
    largest = np.zeros(num_pages, np.int64)
    np.maximum.at(largest, entries, fills)
    return largest


def first_use(entries: IndexArray) -> tuple[IndexArray, Int64Array]:
    """Give the distinct values of a table numbers in the order of their first use.

    Parameters
    ----------
    entries
        Integers ``[n]``.

    Returns
    -------
    values : numpy.ndarray
        The distinct values in that order, of the dtype of ``entries``.
    numbers : numpy.ndarray
        int64 ``[n]``: the place in ``values`` of each entry.
    """
    highest = int(entries.max()) if entries.size else 0
    if highest < 4 * entries.size + _SMALL_IDS:
        # Sorting takes ten times as long, but needs no memory for ids that only a hostile table has.
        first_place = np.full(highest + 1, entries.size)
        np.minimum.at(first_place, entries, np.arange(entries.size))
        distinct = entries[first_place[entries] == np.arange(entries.size)]
        first_place[distinct] = np.arange(distinct.size)
        return distinct, first_place[entries]
    values, first, inverse = np.unique(entries, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return values[order], rank[inverse.reshape(-1)]


def whole_pages(page_ids: IndexArray, *, page_size: int) -> PageMove:
    """Take whole pages of one pool.

    Parameters
    ----------
    page_ids
        Integers ``[new pages]``.
    page_size
        Slots of a page.

    Returns
    -------
    PageMove
    """
    return PageMove(page_size, page_size, page_ids.astype(np.int64)[:, np.newaxis], (page_ids.size,))


def regroup(
    block_table: IndexArray,
    seq_ptr: IndexArray,
    *,
    page_size: int,
    starts: Int64Array,
    ends: Int64Array,
    new_page_size: int,
) -> Regrouped:
    """Lay the slots ``[start, end)`` of every sequence into pages of another size, from the first slot on.

    Two sequences share a new page where it would hold the same slots, also where one of them ends earlier in it.

    Parameters
    ----------
    block_table, seq_ptr
        Of the tensor.
    page_size
        Slots of an old page.
    starts, ends
        int64 ``[num_seqs]``: slots of each sequence in its own order.
    new_page_size
        Slots of a new page.

    Returns
    -------
    Regrouped
        Pages in order of first use.

    Spec: block-paged layout, Prefix Sharing.
    """
    ids, dense = first_use(block_table)
    counts = -((starts - ends) // new_page_size)
    pages_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    unit = math.gcd(page_size, new_page_size, int(np.gcd.reduce(starts[counts > 0])))
    units_per_page, old_units_per_page = new_page_size // unit, page_size // unit
    owners = np.repeat(np.arange(counts.size), counts)
    place = np.arange(owners.size) - pages_ptr[owners]
    units = (starts[owners] // unit + place * units_per_page)[:, np.newaxis] + np.arange(units_per_page)
    empty = units * unit >= ends[owners][:, np.newaxis]
    page, rest = np.divmod(units, old_units_per_page)
    entry = np.where(empty, 0, page + seq_ptr.astype(np.int64)[owners][:, np.newaxis])
    rows = np.where(empty, NOTHING, dense[entry] * old_units_per_page + rest) if dense.size else units
    distinct, table = _distinct_rows(rows)
    # A pool without bytes may have ids that wrap here, and then nothing is ever read by them.
    old_page, rest = np.divmod(distinct, old_units_per_page)
    numbers = ids.astype(np.int64)[old_page] * old_units_per_page + rest if ids.size else distinct
    numbers[distinct == NOTHING] = NOTHING
    return Regrouped(PageMove(new_page_size, unit, numbers, (len(numbers),)), table, pages_ptr)


def _distinct_rows(rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Give the distinct rows in order of first use, and which of them each row is.

    A row that ends in ``NOTHING`` is the first longer row that begins with it.
    """
    # Units are numbered densely. Where all rows begin with another one, nothing has to be sorted.
    if np.bincount(rows[:, 0]).max(initial=0) <= 1:
        return rows, np.arange(len(rows))
    # The first column is the primary key. NOTHING sorts first, so that a row is followed by those that continue it.
    order = np.lexsort(rows.T[::-1])
    in_order = rows[order]
    covered = np.all((in_order[:-1] == in_order[1:]) | (in_order[:-1] == NOTHING), axis=1)
    last = np.flatnonzero(np.append(~covered, True))
    chain = np.searchsorted(last, np.arange(len(rows)))
    chain_of_row = np.empty(len(rows), np.int64)
    chain_of_row[order] = chain
    chains, numbers = first_use(chain_of_row)
    return in_order[last[chains]], numbers
