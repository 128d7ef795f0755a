"""Which stored slots go into which slots of an engine's pages, by their position in the sequence.

Page sizes may differ: a run of tokens that lies in one stored page and in one page of the engine is moved at once.

Spec: block-paged layout, Element Lookup; snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from hurray_arrow.engines.arrays import Int64Array, Words
from hurray_arrow.engines.page_copies import Copies, writing_pages
from hurray_arrow.engines.tables import pages_of_blocks
from hurray_arrow.errors import LayoutError

#: ``(page id, first slot, stored page, first slot, slots)`` of what is moved in a piece.
Piece: TypeAlias = tuple[int, int, int, int, int]
#: An entry of ``block_ids`` that names no page.
NO_PAGE = -1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PageMoves:
    """What goes where in one group, checked.

    Parameters
    ----------
    page_ids
        int64: pages of the engine's arrays that are written, distinct.
    block_ids
        int64: entries of the engine's table that they belong to.
    whole_ids, whole_sources
        int64: pages that are moved whole, and the stored pages that they come from.
    pieces
        What is moved in pieces.
    """

    page_ids: Int64Array
    block_ids: Int64Array
    whole_ids: Int64Array
    whole_sources: Int64Array
    pieces: tuple[Piece, ...]

    def check_bounds(self, num_pages: int, *, where: str) -> None:
        """Refuse pages that the pool does not have.

        Raises
        ------
        LayoutError
            With the bound and the first id that breaks it.
        """
        wrong = np.flatnonzero((self.page_ids < 0) | (self.page_ids >= num_pages))
        if wrong.size:
            value = int(self.page_ids[wrong[0]])
            message = f"{where}: block_ids name page {value}, expected 0 <= page < {num_pages}"
            raise LayoutError(message, expected=num_pages, actual=value)

    def of_whole_pages(self, *, same_size: bool, where: str) -> PageMoves:
        """Give the moves for bytes that only mean something as a whole page: also a last page that is partly filled.

        Parameters
        ----------
        same_size
            Stored pages are as long as the engine's.
        where
            For messages.

        Returns
        -------
        PageMoves
            Without pieces.

        Raises
        ------
        LayoutError
            A page would have to be put together from parts.
        """
        parts = {page for page, slot, _, stored_slot, _ in self.pieces if slot or stored_slot}
        if parts or (self.pieces and not same_size):
            message = f"{where}: only whole pages have meaning, and stored pages are not the engine's"
            raise LayoutError(message, expected=[], actual=sorted(parts) or [page for page, *_ in self.pieces])
        last_ids, last_sources = [piece[0] for piece in self.pieces], [piece[2] for piece in self.pieces]
        return PageMoves(
            page_ids=self.page_ids,
            block_ids=self.block_ids,
            whole_ids=np.append(self.whole_ids, np.array(last_ids, np.int64)),
            whole_sources=np.append(self.whole_sources, np.array(last_sources, np.int64)),
            pieces=(),
        )

    def copies(self, pairs: Sequence[tuple[Words, Words]]) -> Copies:
        """Give the copies that move everything.

        Parameters
        ----------
        pairs
            Of each part of a layer ``[num_pages, page_size, num_heads, words]`` of the engine, writable, and
            ``[stored pages, stored page_size, num_heads, words]``.
        """
        if any(np.may_share_memory(pages, source) for pages, source in pairs):
            return self._apart(pairs)
        whole = writing_pages(pairs, page_ids=self.whole_ids, source_ids=self.whole_sources)
        if not self.pieces:
            return whole
        in_pieces = sum(count for *_, count in self.pieces)
        slot_bytes = sum(pages.shape[2] * pages.shape[3] * pages.itemsize for pages, _ in pairs)
        steps = [*whole.steps, lambda: self._write_pieces(pairs)]
        return Copies(steps, whole.num_bytes + in_pieces * slot_bytes)

    def _apart(self, pairs: Sequence[tuple[Words, Words]]) -> Copies:
        """Copy the stored pages first: the pool may be the one that the tensors were taken from without a copy."""
        pieces = np.array(self.pieces, np.int64).reshape(-1, 5)
        used = np.unique(np.concatenate([self.whole_sources, pieces[:, 2]]))
        pieces[:, 2] = np.searchsorted(used, pieces[:, 2])
        moves = replace(
            self,
            whole_sources=np.searchsorted(used, self.whole_sources),
            pieces=tuple((page, slot, stored, first, count) for page, slot, stored, first, count in pieces.tolist()),
        )
        return moves.copies([(pages, source[used]) for pages, source in pairs])

    def _write_pieces(self, pairs: Sequence[tuple[Words, Words]]) -> None:
        for page, slot, stored_page, stored_slot, count in self.pieces:
            for pages, source in pairs:
                pages[page, slot : slot + count] = source[stored_page, stored_slot : stored_slot + count]


def plan_moves(
    *,
    stored_ids: Int64Array,
    starts: Int64Array,
    stored_tokens: int,
    stored_page_size: int,
    blocks: Int64Array,
    page_size: int,
    ratio: int,
    block_stride: int,
    first: int,
    stop: int,
    where: str,
) -> PageMoves:
    """Work out which slots go where.

    Parameters
    ----------
    stored_ids, starts
        int64: the sequence's stored pages, and the position of slot 0 of each, increasing.
    stored_tokens, stored_page_size
        Tokens in these pages; slots of each.
    blocks
        int64: the engine's block for each block's worth of positions from ``first`` on; ``NO_PAGE`` for none.
    page_size, ratio, block_stride
        Slots of a page of the engine; pages in a block; pages from a block to the next.
    first, stop
        Positions that are wanted; ``first`` begins a block.
    where
        For messages.

    Returns
    -------
    PageMoves

    Raises
    ------
    LayoutError
        A wanted position that is not stored, a block named twice, or one that is no page of any memory.
    """
    pages, begins = _engine_pages(blocks, page_size=page_size, ratio=ratio, block_stride=block_stride, first=first)
    wanted = (pages != NO_PAGE) & (begins < stop)
    pages, begins = pages[wanted], begins[wanted]
    _check_distinct(blocks[blocks != NO_PAGE], where)
    ends = np.minimum(begins + page_size, stop)
    lengths = filled_slots(starts, stored_tokens, stored_page_size)
    whole = np.zeros(pages.size, np.bool_)
    at = np.searchsorted(starts, begins, side="right") - 1
    if page_size == stored_page_size and starts.size:
        whole = (at >= 0) & (starts[at] == begins) & (ends - begins == page_size) & (lengths[at] == page_size)
    pieces: list[Piece] = []
    for place in np.flatnonzero(~whole).tolist():
        begin, end = int(begins[place]), int(ends[place])
        for position, stored, inside, count in _stored_runs(begin, end, int(at[place]), starts=starts, lengths=lengths):
            if count <= 0:
                message = f"{where}: position {position} is not stored (page {position // page_size} of the sequence)"
                raise LayoutError(message, expected=position, actual=None)
            pieces.append((int(pages[place]), position - begin, int(stored_ids[stored]), inside, count))
    return PageMoves(
        page_ids=pages,
        block_ids=_blocks_used(pages, ratio=ratio, block_stride=block_stride),
        whole_ids=pages[whole],
        whole_sources=stored_ids[at[whole]] if starts.size else stored_ids[:0],
        pieces=tuple(pieces),
    )


def _stored_runs(
    begin: int, end: int, stored: int, *, starts: Int64Array, lengths: Int64Array
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the runs of positions ``[begin, end)`` that lie in one stored page each, from page ``stored`` on.

    A run is ``(position, stored page, first slot, slots)``; one of no slots stands for a position that is not stored.
    """
    position = begin
    while position < end:
        inside = position - int(starts[stored]) if 0 <= stored < starts.size else -1
        count = min(int(lengths[stored]) - inside, end - position) if inside >= 0 else 0
        yield position, stored, inside, count
        position += count
        stored += 1


def _engine_pages(
    blocks: Int64Array, *, page_size: int, ratio: int, block_stride: int, first: int
) -> tuple[Int64Array, Int64Array]:
    """Give the pages of the blocks, and the position at which each begins."""
    pages = pages_of_blocks(blocks, ratio=ratio, block_stride=block_stride)
    pages[blocks == NO_PAGE] = NO_PAGE
    begins = first + np.arange(blocks.size * ratio, dtype=np.int64) * page_size
    return pages.reshape(-1), begins


def _blocks_used(pages: Int64Array, *, ratio: int, block_stride: int) -> Int64Array:
    return np.unique(pages // (ratio if block_stride == ratio else block_stride))


def filled_slots(starts: Int64Array, tokens: int, page_size: int) -> Int64Array:
    """Give the tokens in each stored page, int64 of the shape of ``starts``; only the last may be partial."""
    places = np.arange(starts.size, dtype=np.int64)
    return np.clip(tokens - places * page_size, 0, page_size)


def _check_distinct(blocks: Int64Array, where: str) -> None:
    values, counts = np.unique(blocks, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1].tolist()
        message = f"{where}: block_ids names {twice} more than once, expected distinct blocks"
        raise LayoutError(message, expected="distinct", actual=twice)


def take_blocks(block_ids: Any, *, count: int, null_block: int | None, where: str) -> Int64Array:
    """Take the engine's blocks by value.

    Parameters
    ----------
    block_ids
        Integers, or ``None`` where the engine has no page.
    count
        Blocks that the wanted positions need.
    null_block
        The id that also means no page.
    where
        For messages.

    Returns
    -------
    numpy.ndarray
        int64 ``[count]``, ``NO_PAGE`` for none.

    Raises
    ------
    LayoutError
        Another number of blocks, something that is no integer, a negative id.
    """
    if not isinstance(block_ids, Iterable):
        raise LayoutError(f"{where}: block_ids {block_ids!r}, expected a list", expected="a list", actual=block_ids)
    taken = []
    for place, block in enumerate(block_ids):
        if type(block) is int and 0 <= block < 2**63 and block != null_block:
            taken.append(block)
            continue
        value = block.item() if hasattr(block, "item") and getattr(block, "ndim", 0) == 0 else block
        if value is None or (null_block is not None and value == null_block):
            taken.append(NO_PAGE)
        elif not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            message = f"{where}: block_ids[{place}] is {value!r}, expected a page id of 0 or more"
            raise LayoutError(message, expected=0, actual=value)
        else:
            taken.append(value)
    if len(taken) != count:
        message = f"{where}: {len(taken)} block_ids, expected {count}: one for each block of the wanted positions"
        raise LayoutError(message, expected=count, actual=len(taken))
    return np.array(taken, np.int64)
