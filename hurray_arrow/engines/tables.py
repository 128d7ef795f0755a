"""Engines' tables of pages, each in its own form, as one list of page ids per sequence.

Padding is cut off by length and never by value: null blocks, trash pages and stale columns look like pages. Ids inside
the length that are no page of the pool are refused. Pages that the engine has dropped inside a sequence (sliding
window, chunked attention) are only known from the caller, and become positions.

Spec: block-paged layout, Buffer Table; snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hurray_arrow.engines.arrays import Int64Array, as_array, as_integers, is_array
from hurray_arrow.errors import LayoutError
from hurray_arrow.spec import UINT32_MAX


@dataclass(frozen=True, slots=True, eq=False)
class PageTables:
    """Which pages each sequence has, and how many tokens.

    Parameters
    ----------
    pages
        int64 ``[pages]`` per sequence: page ids.
    seq_lens
        int64 ``[num_seqs]``: tokens in these pages.
    page_size
        Slots of a page.
    positions
        int64 ``[pages]`` per sequence: position of slot 0 of each page; ``None`` where no page is absent.
    """

    pages: tuple[Int64Array, ...]
    seq_lens: Int64Array
    page_size: int
    positions: tuple[Int64Array | None, ...]

    @property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return len(self.pages)

    def check_ids(self, num_pages: int, *, where: str = "block_tables") -> None:
        """Refuse ids that are no page of the pool, and pages that a sequence has twice.

        No page holds two ranges of positions: a block that stands for none (null, padding, trash) was taken for a page,
        or the table is that of a ring.

        Raises
        ------
        LayoutError
            With the bound and the first id that breaks it; with the places of an id that is there twice.
        """
        for s, ids in enumerate(self.pages):
            wrong = np.flatnonzero((ids < 0) | (ids >= num_pages))
            if wrong.size:
                place, value = int(wrong[0]), int(ids[wrong[0]])
                message = f"{where}: sequence {s}, page {place}: id {value}, expected 0 <= id < {num_pages} pages"
                raise LayoutError(message, expected=num_pages, actual=value)
            values, counts = np.unique(ids, return_counts=True)
            if (counts > 1).any():
                value = int(values[counts > 1][0])
                places = np.flatnonzero(ids == value)[:2].tolist()
                message = f"{where}: sequence {s}, pages {places}: id {value} each time, expected distinct pages"
                hint = "what stands for no page is none (vLLM: null_block= of a group with a window)"
                raise LayoutError(f"{message}; {hint}", expected="distinct", actual=value)

    def split(self, ratio: int, *, block_stride: int | None = None) -> PageTables:
        """Give the tables of pages of which ``ratio`` make one of these.

        Parameters
        ----------
        ratio
            Smaller pages in one of these.
        block_stride
            Smaller pages from one of these to the next, where the engine's view spans other memory; ``ratio`` unless
            said.

        Returns
        -------
        PageTables

        Raises
        ------
        LayoutError
            Blocks that overlap, or an id that is no page of any memory.
        """
        size, stride = self.page_size // ratio, ratio if block_stride is None else block_stride
        if stride < ratio:
            message = f"block_stride {stride}, expected {ratio} pages of a block or more"
            raise LayoutError(message, expected=ratio, actual=stride)
        pages, positions = [], []
        for ids, starts, tokens in zip(self.pages, self.positions, self.seq_lens.tolist(), strict=True):
            used = -(-tokens // size)
            steps = np.arange(ratio, dtype=np.int64)
            pages.append(pages_of_blocks(ids, ratio=ratio, block_stride=stride).reshape(-1)[:used])
            # Only the last stored page may be partial, so what is cut off here holds no token.
            positions.append(None if starts is None else (starts[:, np.newaxis] + steps * size).reshape(-1)[:used])
        return PageTables(tuple(pages), self.seq_lens, size, tuple(positions))


def pages_of_blocks(block_ids: Int64Array, *, ratio: int, block_stride: int) -> Int64Array:
    """Give the pages that blocks are made of.

    Parameters
    ----------
    block_ids
        int64 ``[blocks]``.
    ratio, block_stride
        Pages in a block; pages from a block to the next.

    Returns
    -------
    numpy.ndarray
        New int64 ``[blocks, ratio]``.

    Raises
    ------
    LayoutError
        An id so large that its pages would come round to others.
    """
    largest = (np.iinfo(np.int64).max - ratio) // block_stride
    wrong = np.flatnonzero((block_ids > largest) | (block_ids < -largest))
    if wrong.size:
        value = int(block_ids[wrong[0]])
        raise LayoutError(f"block id {value}, expected at most {largest}", expected=largest, actual=value)
    return block_ids[:, np.newaxis] * block_stride + np.arange(ratio, dtype=np.int64)


def of_block_tables(block_tables: Any, seq_lens: Any, *, page_size: int, absent: int | None = None) -> PageTables:
    """Take one row of page ids per sequence, as vLLM, TensorRT-LLM and most others have it.

    Parameters
    ----------
    block_tables
        Rectangular ``[num_seqs or more, columns]`` integers, or one list per sequence. Only the first
        ``ceil(seq_len / page_size)`` entries of a row are read.
    seq_lens
        ``[num_seqs]`` tokens whose keys and values are in the cache.
    page_size
        Tokens of a page.
    absent
        The id that stands for a page that the engine has dropped *inside* a sequence, such as vLLM's null block 0
        with sliding windows; ``None`` where every entry is a page.

    Returns
    -------
    PageTables
        New arrays.

    Raises
    ------
    LayoutError
        A page_size below 1, lengths or ids that are no integers, negative lengths, fewer rows than sequences, fewer
        entries than a sequence needs.
    """
    lens = _lengths(seq_lens, page_size)
    rows = list(as_array(block_tables, name="block_tables") if is_array(block_tables) else block_tables)
    if len(rows) < lens.size:
        message = f"block_tables: {len(rows)} rows, expected one per sequence ({lens.size})"
        raise LayoutError(message, expected=int(lens.size), actual=len(rows))
    pages = []
    for s, (row, tokens) in enumerate(zip(rows, lens.tolist(), strict=False)):
        used = -(-tokens // page_size)
        ids = as_integers(row[:used], name=f"block_tables[{s}]")
        if ids.size < used:
            message = f"block_tables[{s}]: {ids.size} pages, expected {used} for {tokens} tokens"
            raise LayoutError(message, expected=used, actual=int(ids.size))
        pages.append(ids)
    tables = PageTables(tuple(pages), lens, page_size, (None,) * lens.size)
    return tables if absent is None else _without_absent(tables, absent)


def _without_absent(tables: PageTables, absent: int) -> PageTables:
    """Leave the dropped pages out and say where the others stand."""
    size = tables.page_size
    pages, positions, lens = [], [], []
    for ids, tokens in zip(tables.pages, tables.seq_lens.tolist(), strict=True):
        kept = np.flatnonzero(ids != absent)
        filled = np.minimum(tokens - kept * size, size)
        pages.append(ids[kept])
        positions.append(kept * size if kept.size < ids.size else None)
        lens.append(int(filled.sum()))
    return PageTables(tuple(pages), np.array(lens, np.int64), size, tuple(positions))


def of_slot_mapping(slot_mapping: Any, seq_lens: Any, *, page_size: int) -> PageTables:
    """Take one token slot per token, sequence after sequence, as vLLM's ``slot_mapping``.

    Parameters
    ----------
    slot_mapping
        ``[tokens or more]`` integers: page id × page_size + slot. What lies behind the last token is padding.
    seq_lens
        ``[num_seqs]`` tokens. The mapping holds all of them from the first on; one of a chunk only does not do.
    page_size
        Tokens of a page.

    Returns
    -------
    PageTables
        New arrays.

    Raises
    ------
    LayoutError
        Fewer slots than tokens (a chunk of the prompt is not the prompt); slots of a page that do not follow each
        other; what :func:`of_block_tables` raises.
    """
    slots, lens = as_integers(slot_mapping, name="slot_mapping"), _lengths(seq_lens, page_size)
    total = sum(lens.tolist())
    if slots.size < total:
        message = f"slot_mapping: {slots.size} slots, expected one per token ({total}): of all tokens, not of one chunk"
        raise LayoutError(message, expected=total, actual=int(slots.size))
    ends = np.cumsum(lens)
    rows = [slots[end - tokens : end] for end, tokens in zip(ends.tolist(), lens.tolist(), strict=True)]
    return _of_slots(rows, lens, page_size=page_size, name="slot_mapping")


def of_req_to_token(req_to_token: Any, seq_lens: Any, *, page_size: int, rows: Any = None) -> PageTables:
    """Take SGLang's table of token slots per request.

    Parameters
    ----------
    req_to_token
        Integers ``[requests, max_context]``: the token slot of each position.
    seq_lens
        ``[num_seqs]`` tokens.
    page_size
        Tokens of a page; with 1 every token has a page of its own.
    rows
        ``req_pool_indices``: the row of each sequence; ``None`` for the first rows in order.

    Returns
    -------
    PageTables
        New arrays.

    Raises
    ------
    LayoutError
        A row outside the table; slots of a page that do not follow each other; what :func:`of_block_tables` raises.
    """
    table, lens = as_array(req_to_token, name="req_to_token"), _lengths(seq_lens, page_size)
    if table.ndim != 2 or table.dtype.kind not in "iu":
        message = f"req_to_token: {table.dtype} of {table.ndim} axes, expected integers [requests, max_context]"
        raise LayoutError(message, expected=2, actual=table.ndim)
    which = np.arange(lens.size) if rows is None else as_integers(rows, name="req_pool_indices")
    if which.size != lens.size:
        message = f"req_pool_indices: {which.size} rows, expected one per sequence ({lens.size})"
        raise LayoutError(message, expected=int(lens.size), actual=int(which.size))
    taken = []
    for s, (row, tokens) in enumerate(zip(which.tolist(), lens.tolist(), strict=True)):
        if not 0 <= row < len(table):
            message = f"req_pool_indices[{s}]: row {row}, expected 0 <= row < {len(table)}"
            raise LayoutError(message, expected=len(table), actual=row)
        if tokens > table.shape[1]:
            message = f"req_to_token[{row}]: {table.shape[1]} slots, expected {tokens}"
            raise LayoutError(message, expected=tokens, actual=table.shape[1])
        taken.append(as_integers(table[row, :tokens], name=f"req_to_token[{row}]"))
    return _of_slots(taken, lens, page_size=page_size, name="req_to_token")


def _of_slots(rows: Sequence[Int64Array], lens: Int64Array, *, page_size: int, name: str) -> PageTables:
    pages = []
    for s, slots in enumerate(rows):
        first = slots[::page_size]
        offsets = np.arange(slots.size, dtype=np.int64)
        expected = np.repeat(first, page_size)[: slots.size] + offsets % page_size
        wrong = np.flatnonzero(
            (slots != expected) | (slots < 0) | (np.repeat(first, page_size)[: slots.size] % page_size != 0)
        )
        if wrong.size:
            place = int(wrong[0])
            bound = f"slot {place % page_size} of a page of {page_size}, the one after the token before"
            message = f"{name}: sequence {s}, token {place}: slot {int(slots[place])}, expected {bound}"
            raise LayoutError(message, expected=int(expected[place]), actual=int(slots[place]))
        pages.append(first // page_size)
    return PageTables(tuple(pages), lens, page_size, (None,) * lens.size)


def of_indptr(kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, *, page_size: int) -> PageTables:
    """Take FlashInfer's compressed rows.

    Parameters
    ----------
    kv_indptr
        int32 ``[num_seqs + 1]``: where each sequence's page ids begin.
    kv_indices
        int32 ``[kv_indptr[-1] or more]``: page ids; what lies behind is stale.
    kv_last_page_len
        int32 ``[num_seqs]``: tokens in each sequence's last page, 1 … page_size. Without pages it is 0 or page_size.
    page_size
        Tokens of a page.

    Returns
    -------
    PageTables
        New arrays.

    Raises
    ------
    LayoutError
        Another dtype than int32 (an int64 array of lengths gives FlashInfer's kernels zeros); offsets that do not
        begin at 0, fall, or pass the ids; a last page that is too short or too long; a page_size below 1.
    """
    check_page_size(page_size)
    parts = {"kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_last_page_len": kv_last_page_len}
    arrays = {}
    for name, part in parts.items():
        if is_array(part) and as_array(part, name=name).dtype != np.int32:
            found = as_array(part, name=name).dtype
            raise LayoutError(f"{name}: dtype {found}, expected int32", expected="int32", actual=str(found))
        arrays[name] = as_integers(part, name=name)
    indptr, indices, last = arrays.values()
    if indptr.size != last.size + 1:
        message = f"kv_indptr: {indptr.size} offsets, expected one more than kv_last_page_len has ({last.size})"
        raise LayoutError(message, expected=int(last.size) + 1, actual=int(indptr.size))
    falls = np.flatnonzero(np.diff(indptr, prepend=0) < 0)
    if indptr[0] != 0 or falls.size:
        place = int(falls[0]) if indptr[0] == 0 else 0
        lowest = int(indptr[place - 1]) if place else 0
        message = f"kv_indptr[{place}]: {int(indptr[place])}, expected {'0' if not place else f'{lowest} or more'}"
        raise LayoutError(message, expected=lowest, actual=int(indptr[place]))
    if indptr[-1] > indices.size:
        message = f"kv_indices: {indices.size} ids, expected kv_indptr[-1] = {int(indptr[-1])} or more"
        raise LayoutError(message, expected=int(indptr[-1]), actual=int(indices.size))
    counts = np.diff(indptr)
    _check_last_pages(last, counts, page_size)
    lens = np.where(counts > 0, (counts - 1) * page_size + last, 0)
    pages = [indices[start:end].copy() for start, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)]
    return PageTables(tuple(pages), lens, page_size, (None,) * len(pages))


def _check_last_pages(last: Int64Array, counts: Int64Array, page_size: int) -> None:
    # An empty sequence has no last page: engines leave 0 there, or what length % page_size gives.
    empty = (counts == 0) & ((last == 0) | (last == page_size))
    wrong = np.flatnonzero(((last < 1) | (last > page_size)) & ~empty | (counts == 0) & ~empty)
    if wrong.size:
        s = int(wrong[0])
        bound = f"1 to page_size {page_size}" if counts[s] else f"0 or page_size {page_size}, as there are no pages"
        message = f"kv_last_page_len[{s}]: {int(last[s])}, expected {bound}"
        raise LayoutError(message, expected=page_size, actual=int(last[s]))


def _lengths(seq_lens: Any, page_size: int) -> Int64Array:
    check_page_size(page_size)
    lens = as_integers(seq_lens, name="seq_lens")
    wrong = np.flatnonzero(lens < 0)
    if wrong.size:
        s = int(wrong[0])
        raise LayoutError(f"seq_lens[{s}]: {int(lens[s])}, expected 0 or more", expected=0, actual=int(lens[s]))
    return lens


def check_page_size(page_size: Any) -> None:
    """Refuse what is no number of slots.

    Raises
    ------
    LayoutError
        No integer, or none that a page can have.
    """
    if not isinstance(page_size, int | np.integer) or not 1 <= page_size <= UINT32_MAX:
        message = f"page_size {page_size!r}, expected an integer from 1 to {UINT32_MAX}"
        raise LayoutError(message, expected=1, actual=page_size)
