"""Select: some sequences of a batch, or a range of their positions.

Spec: block-paged layout, Buffer Table; snapshot format section 2, absent pages.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np

from hurray_arrow.errors import InvariantError, Problem, ProblemCode, UnknownSequenceLengthError
from hurray_arrow.ops.facts import Facts, UInt64Array, cut_facts, facts_of, join_facts, regrouped_positions
from hurray_arrow.ops.group import Group, given_back, refuse_whole_pages, take_group
from hurray_arrow.ops.page_table import IndexArray, Int64Array, first_use, regroup
from hurray_arrow.ops.parameters import check_movable
from hurray_arrow.ops.ranges import HalfOpen, half_open, is_half_open
from hurray_arrow.ops.results import Tables, moved, rebuilt
from hurray_arrow.spec import UINT64_MAX
from hurray_arrow.tensor import BlockPagedTensor

#: A sequence by its place or by its id.
Which: TypeAlias = SupportsIndex | str
Positions: TypeAlias = HalfOpen | Sequence[HalfOpen | None] | None


@dataclass(frozen=True, slots=True)
class _Cut:
    """The slots ``[start, end)`` of a sequence in its own order, and what is then known of it."""

    seq: int
    start: int
    end: int
    facts: Facts


@overload
def select(
    tensors: BlockPagedTensor, sequences: Which | Sequence[Which] | None = None, *, tokens: Positions = None
) -> BlockPagedTensor: ...
@overload
def select(
    tensors: Sequence[BlockPagedTensor], sequences: Which | Sequence[Which] | None = None, *, tokens: Positions = None
) -> list[BlockPagedTensor]: ...
def select(
    tensors: BlockPagedTensor | Sequence[BlockPagedTensor],
    sequences: Which | Sequence[Which] | None = None,
    *,
    tokens: Positions = None,
) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Take some sequences, in the order given, and of each the tokens at a range of positions.

    What comes out has, for every sequence, the values at exactly the stored positions in its range. Pages without such
    a position leave the block table. Where each range begins at a page's first slot, **no page is copied**: the result
    is a view of the same pool, with all its pages, and :func:`compact` drops those that are not needed. Where a range
    begins inside a page, that page's first slots cannot be hidden, and all pages needed are laid into a new pool so
    that the sequence begins with the first position wanted.

    Token ids and media before the range stay, because later values depend on them; those behind it go.

    Parameters
    ----------
    tensors
        One tensor, or several of one kv_group.
    sequences
        Places from 0 or ids, one or several; ``None`` for all. A sequence may be taken more than once.
    tokens
        Half-open range of positions: ``(start, stop)``, a slice or a range, one for all sequences; or one for each,
        where ``None`` keeps the whole sequence as it is. A range may go beyond what is stored.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        As given: views that keep the pools alive, or new memory, as said above.

    Raises
    ------
    IndexError, KeyError, ValueError
        No sequence has this place; this id; or several have the id.
    UnknownSequenceLengthError
        A range of a sequence whose length nobody recorded, or a choice of sequences whose tokens cannot be counted.
    InvariantError
        ``page_positions_invalid``: a range that begins inside a page and goes across a hole that a new page would hold.
        ``kv_group_mismatch``, and all codes of :meth:`BlockPagedTensor.validate`.
    UnsupportedError
        New pages for a component ``page.<name>``, or for parameters of which nobody says how they belong to pages.

    Examples
    --------
    >>> [chosen] = ha.ops.select([keys], "b", tokens=(0, 8))
    >>> chosen.page_ids(0).tolist(), np.shares_memory(chosen.page_pool, pool)
    ([4, 2], True)

    Spec: snapshot format section 2, absent pages.
    """
    group = take_group(tensors)
    first = group[0]
    places = _places(first, sequences)
    cuts = _cuts(first, places, _ranges(tokens, len(places)))
    facts = [cut.facts for cut in cuts]
    total_tokens = _total_tokens(first, places, facts)
    if any(cut.start % first.page_size for cut in cuts):
        return given_back(tensors, _in_new_pages(group, cuts, total_tokens))
    pages, seq_ptr = _pages_of(first, cuts)
    tables = Tables(pages, seq_ptr, join_facts(facts), total_tokens)
    # With every sequence once and whole, the values are still those that the producer described.
    everything = tokens is None and sorted(places) == list(range(first.num_seqs))
    return given_back(
        tensors,
        [rebuilt(each, tables, statistics=each.descriptor.statistics if everything else None) for each in group],
    )


def needed_pages(
    tensor: BlockPagedTensor, sequences: Which | Sequence[Which] | None = None, *, tokens: Positions = None
) -> Int64Array:
    """Say which pages hold what :func:`select` would take; no page is looked at.

    Parameters
    ----------
    tensor, sequences, tokens
        As of :func:`select`.

    Returns
    -------
    numpy.ndarray
        int64 ``[pages]``: page ids, ascending, each once; a new array.

    Raises
    ------
    IndexError, KeyError, ValueError, UnknownSequenceLengthError, InvariantError
        As :func:`select`.

    Spec: block-paged layout, Element Lookup.
    """
    places = _places(tensor, sequences)
    pages, _ = _pages_of(tensor, _cuts(tensor, places, _ranges(tokens, len(places))))
    return np.sort(first_use(pages)[0]).astype(np.int64)


def _in_new_pages(group: Group, cuts: list[_Cut], total_tokens: int) -> list[BlockPagedTensor]:
    refuse_whole_pages(group, operation="select (a range begins inside a page)")
    for tensor in group:
        check_movable(tensor, operation="select (a range begins inside a page)")
    first = group[0]
    rows = [first.page_ids(cut.seq) for cut in cuts]
    made = regroup(
        np.concatenate(rows),
        _pointers([row.size for row in rows]),
        page_size=first.page_size,
        starts=np.array([cut.start for cut in cuts], np.int64),
        ends=np.array([cut.end for cut in cuts], np.int64),
        new_page_size=first.page_size,
    )
    tables = Tables(made.block_table, made.seq_ptr, join_facts(cut.facts for cut in cuts), total_tokens)
    return [moved((tensor,), made.move, tables) for tensor in group]


def _pages_of(tensor: BlockPagedTensor, cuts: list[_Cut]) -> tuple[IndexArray, Int64Array]:
    size = tensor.page_size
    rows = [tensor.page_ids(cut.seq)[cut.start // size : -(-cut.end // size)] for cut in cuts]
    return np.concatenate([*rows, tensor.block_table[:0]]), _pointers([row.size for row in rows])


def _pointers(sizes: list[int]) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _places(tensor: BlockPagedTensor, sequences: Which | Sequence[Which] | None) -> list[int]:
    if sequences is None:
        return list(range(tensor.num_seqs))
    if isinstance(sequences, str) or not isinstance(sequences, Sequence | np.ndarray):
        sequences = [sequences]
    names: dict[str, list[int]] = {}
    if any(isinstance(which, str) for which in sequences):
        for place, name in enumerate(tensor.sequences.ids or ()):
            if name is not None:
                names.setdefault(name, []).append(place)
    return [_place(which, names, num_seqs=tensor.num_seqs) for which in sequences]


def _place(which: Which, names: Mapping[str, Sequence[int]], *, num_seqs: int) -> int:
    if isinstance(which, str):
        found = names.get(which, ())
        if not found:
            raise KeyError(f"no sequence has the id {which!r}")
        if len(found) > 1:
            raise ValueError(f"{len(found)} sequences have the id {which!r}: name one by its place, {found}")
        return found[0]
    place = operator.index(which)
    if not 0 <= place < num_seqs:
        raise IndexError(f"sequence {place}, expected 0 <= sequence < {num_seqs}")
    return place


def _ranges(tokens: Any, count: int) -> list[tuple[int, int | None] | None]:
    if tokens is None:
        return [None] * count
    if is_half_open(tokens):
        return [half_open(tokens, where="tokens")] * count
    if not isinstance(tokens, Iterable):
        raise TypeError(f"tokens: {tokens!r}, expected (start, stop), a slice or a range, or one for each sequence")
    listed = list(tokens)
    if len(listed) != count:
        raise ValueError(f"tokens: {len(listed)} ranges, expected one per sequence ({count})")
    return [None if each is None else half_open(each, where=f"tokens[{k}]") for k, each in enumerate(listed)]


def _cuts(tensor: BlockPagedTensor, places: list[int], ranges: list[tuple[int, int | None] | None]) -> list[_Cut]:
    cuts: list[_Cut] = []
    problems: list[Problem] = []
    for seq, facts, wanted in zip(places, facts_of(tensor, places), ranges, strict=True):
        if wanted is None:
            cuts.append(_Cut(seq, 0, tensor.page_ids(seq).size * tensor.page_size, facts))
            continue
        tokens, positions, size = tensor.token_count(seq), facts.page_positions, tensor.page_size
        start = _stored_before(wanted[0], positions, tokens=tokens, page_size=size)
        end = tokens if wanted[1] is None else _stored_before(wanted[1], positions, tokens=tokens, page_size=size)
        start, end = (start, end) if start < end else (0, 0)
        begins, broken = regrouped_positions(positions, page_size=size, start=start, end=end, new_page_size=size)
        if broken is not None:
            message = (
                f"a range from {wanted[0]} begins inside a page, so that its page {broken} would hold a hole: "
                f"begin at a page's first position, or repage to a smaller page_size"
            )
            code = ProblemCode.PAGE_POSITIONS_INVALID
            problems.append(Problem(code, f"page_positions[{seq}]", message, "snapshot format 2"))
        behind = _position(end - 1, positions, page_size=size) + 1 if end else 0
        cut = cut_facts(facts, seq_len=end - start, page_positions=begins, end=behind)
        cuts.append(_Cut(seq, start, end, cut))
    if problems:
        raise InvariantError(problems)
    return cuts


def _stored_before(position: int, positions: UInt64Array | None, *, tokens: int, page_size: int) -> int:
    """Count the stored tokens of a sequence at positions before ``position``."""
    if positions is None:
        return min(position, tokens)
    # Python's own comparison: a position may be larger than uint64 holds.
    page = np.searchsorted(positions, np.uint64(min(position, UINT64_MAX)), side="right") - 1
    if page < 0:
        return 0
    return min(int(page) * page_size + min(position - int(positions[page]), page_size), tokens)


def _position(token: int, positions: UInt64Array | None, *, page_size: int) -> int:
    return token if positions is None else int(positions[token // page_size]) + token % page_size


def _total_tokens(tensor: BlockPagedTensor, places: list[int], facts: list[Facts]) -> int:
    """Count the tokens of the chosen sequences, also where single lengths are not known but their sum is."""
    total = sum(each.seq_len or 0 for each in facts)
    unknown = sorted(place for place, each in zip(places, facts, strict=True) if each.seq_len is None)
    if not unknown:
        return total
    everything = facts_of(tensor)
    if unknown != [s for s, each in enumerate(everything) if each.seq_len is None]:
        raise UnknownSequenceLengthError(
            f"the tokens of sequences {unknown} cannot be counted, their lengths were not recorded: pass seq_lens="
        )
    return total + tensor.total_tokens - sum(each.seq_len or 0 for each in everything)
