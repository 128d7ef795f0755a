"""What restoring one sequence into an engine's pool means: which positions, which blocks, whose cache.

Spec: snapshot format sections 2 and 3.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from hurray_arrow.engines.arrays import Int64Array
from hurray_arrow.engines.page_moves import NO_PAGE, PageMoves, filled_slots, plan_moves, take_blocks
from hurray_arrow.engines.stored_layers import StoredGroup
from hurray_arrow.errors import LayoutError
from hurray_arrow.identity import check_expected, tensor_facts

#: One value for all groups, or one per kv_group.
PerGroup: TypeAlias = int | Mapping[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePaging:
    """How an engine pages one group.

    Parameters
    ----------
    page_size
        Slots of a page of its arrays.
    ratio, block_stride
        Pages of the arrays in a block of its tables, and from one block to the next.
    null_block
        The block id that means none.
    """

    page_size: int
    ratio: int
    block_stride: int
    null_block: int | None

    @classmethod
    def of(
        cls, kv_group: int, page_size: PerGroup, block_size: PerGroup, block_stride: PerGroup, null_block: int | None
    ) -> EnginePaging:
        """Put together what the caller says of a group.

        Raises
        ------
        LayoutError
            Nothing for this group, or a block that is not a number of pages.
        """
        size = _of_group(page_size, kv_group, "page_size", 0)
        block = _of_group(block_size, kv_group, "block_size", size)
        if size < 1 or block < 1 or block % size:
            message = f"kv_group {kv_group}: block_size {block}, expected a multiple of page_size {size}"
            raise LayoutError(message, expected=size, actual=block)
        ratio = block // size
        stride = _of_group(block_stride, kv_group, "block_stride", ratio)
        if stride < ratio:
            message = f"kv_group {kv_group}: block_stride {stride}, expected {ratio} pages of a block or more"
            raise LayoutError(message, expected=ratio, actual=stride)
        return cls(page_size=size, ratio=ratio, block_stride=stride, null_block=null_block)


def _of_group(value: PerGroup, kv_group: int, what: str, default: int) -> int:
    if isinstance(value, Mapping):
        if kv_group not in value:
            raise LayoutError(f"{what}: nothing for kv_group {kv_group}", expected=kv_group, actual=sorted(value))
        return int(value[kv_group])
    return default if value is None else int(value)


def sequence_numbers(groups: Sequence[StoredGroup], sequence: int | str) -> dict[int, int]:
    """Find a sequence in every group.

    Raises
    ------
    LayoutError
        A group has no such sequence, or several with this id.
    """
    return {group.kv_group: _sequence_number(group, sequence) for group in groups}


def _sequence_number(group: StoredGroup, sequence: int | str) -> int:
    tensor = group.any_tensor
    if isinstance(sequence, str):
        found = [s for s, name in enumerate(tensor.sequences.ids or ()) if name == sequence]
        if len(found) != 1:
            # The ids themselves may be secrets, and this goes into logs.
            message = f"kv_group {group.kv_group}: {len(found)} sequences have this id, expected 1"
            raise LayoutError(message, expected=1, actual=len(found))
        return found[0]
    sequence = operator.index(sequence)
    if not 0 <= sequence < tensor.num_seqs:
        message = f"kv_group {group.kv_group}: sequence {sequence}, expected 0 <= sequence < {tensor.num_seqs}"
        raise LayoutError(message, expected=tensor.num_seqs, actual=sequence)
    return sequence


def check_belongs(
    groups: Sequence[StoredGroup],
    numbers: Mapping[int, int],
    expect: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    """Compare with what is expected; adapter and tenant are those of this sequence.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent.
    """
    metadata = metadata or {}
    tensors = [tensor for group in groups for layer in group.layers.values() for tensor in layer.values()]
    facts = tensor_facts(tensors, metadata)
    for name in ("adapter", "tenant"):
        facts.pop(name, None)
        own = set()
        for group in groups:
            entries = getattr(group.any_tensor.sequences, name)
            own.add(None if entries is None else entries[numbers[group.kv_group]])
        named = sorted(value for value in own if value is not None)
        if named:
            facts[name] = named[0] if len(named) == 1 else named
    check_expected(metadata, expect, facts=facts)


def wanted_positions(groups: Sequence[StoredGroup], numbers: Mapping[int, int], tokens: int | range | None) -> range:
    """Give the positions that are wanted, all of them stored somewhere.

    Raises
    ------
    LayoutError
        Positions behind the last stored one, or not in order.
    UnknownSequenceLengthError
        Nobody recorded the sequence's length.
    """
    ends = [0]
    for group in groups:
        positions = group.any_tensor.positions(numbers[group.kv_group])
        ends.append(int(positions[-1]) + 1 if positions.size else 0)
    end = max(ends)
    number: object = end if tokens is None else tokens
    wanted = number if isinstance(number, range) else range(number) if isinstance(number, SupportsIndex) else None
    if wanted is None or wanted.step != 1 or wanted.start < 0 or wanted.stop < 0:
        message = f"tokens {tokens}, expected a number of positions, or range(start, stop)"
        raise LayoutError(message, expected="range(start, stop)", actual=tokens)
    if len(wanted) and wanted.stop > end:
        message = f"tokens: positions up to {wanted.stop} are wanted, {end} are stored"
        raise LayoutError(message, expected=wanted.stop, actual=end)
    return wanted


def blocks_by_group(groups: Sequence[StoredGroup], block_ids: Any) -> Mapping[int, Any]:
    """Give each group's blocks.

    Raises
    ------
    LayoutError
        Several groups and one list, or a mapping without a group.
    """
    numbers = [group.kv_group for group in groups]
    blocks = block_ids if isinstance(block_ids, Mapping) else dict.fromkeys(numbers[:1], block_ids)
    if set(blocks) != set(numbers):
        message = f"block_ids: blocks of kv_groups {sorted(blocks)}, expected a mapping with those of each of {numbers}"
        raise LayoutError(message, expected=numbers, actual=sorted(blocks))
    return blocks


def group_kind(metadata: Mapping[str, Any] | None, kv_group: int) -> str | None:
    """Give the kind of a group that the snapshot's metadata states; ``None`` where it states none.

    Spec: snapshot format section 3, ``groups``.
    """
    groups = (metadata or {}).get("groups") or []
    return groups[kv_group].get("kind") if kv_group < len(groups) else None


def group_moves(
    group: StoredGroup, seq: int, *, block_ids: Any, wanted: range, paging: EnginePaging, kind: str | None
) -> PageMoves:
    """Work out what goes where in one group; ``kind`` is what :func:`group_kind` gives.

    Raises
    ------
    LayoutError
        Blocks that do not fit the positions, positions that are not stored, or stored ones without a block that the
        layers look at.
    """
    tensor, where = group.any_tensor, f"kv_group {group.kv_group}"
    block_tokens = paging.page_size * paging.ratio
    if wanted.start % block_tokens:
        message = f"{where}: tokens begin at {wanted.start}, expected the beginning of a block of {block_tokens}"
        raise LayoutError(message, expected=block_tokens, actual=wanted.start)
    tokens, count = tensor.token_count(seq), -(-len(wanted) // block_tokens)
    ids = tensor.page_ids(seq)[: -(-tokens // tensor.page_size)].astype(np.int64)
    if ids.size and int(ids.max()) >= tensor.num_pages:
        message = f"{where}: stored page id {int(ids.max())}, expected < {tensor.num_pages}"
        raise LayoutError(message, expected=tensor.num_pages, actual=int(ids.max()))
    starts = tensor.positions(seq)[:: tensor.page_size].astype(np.int64)
    blocks = take_blocks(block_ids, count=count, null_block=paging.null_block, where=where)
    positions = tensor.sequences.page_positions
    if kind is None and (positions is None or positions[seq] is None):
        kind = "full"
    moves = plan_moves(
        stored_ids=ids,
        starts=starts,
        stored_tokens=tokens,
        stored_page_size=tensor.page_size,
        blocks=blocks,
        page_size=paging.page_size,
        ratio=paging.ratio,
        block_stride=paging.block_stride,
        first=wanted.start,
        stop=wanted.stop,
        where=where,
    )
    stored = _Stored(starts, filled_slots(starts, tokens, tensor.page_size))
    _check_left_out(blocks, stored, wanted=wanted, block_tokens=block_tokens, kind=kind, where=where)
    return moves


class _Stored(NamedTuple):
    """The positions that pages hold: where each page begins, and how many tokens it has."""

    starts: Int64Array
    lengths: Int64Array

    def below(self, positions: Int64Array) -> Int64Array:
        """Count the stored positions below each of these."""
        place = np.searchsorted(self.starts, positions) - 1
        before = np.concatenate([[0], np.cumsum(self.lengths)])
        inside = np.minimum(positions - self.starts[place], self.lengths[place]) if self.starts.size else positions
        return np.where(place < 0, 0, before[place] + inside)


def _check_left_out(
    blocks: Int64Array, stored: _Stored, *, wanted: range, block_tokens: int, kind: str | None, where: str
) -> None:
    """Refuse positions that could be restored and get no block, except those that a window has passed."""
    begins = wanted.start + np.arange(blocks.size, dtype=np.int64) * block_tokens
    stops = np.minimum(begins + block_tokens, wanted.stop)
    whole = stored.below(stops) - stored.below(begins) == stops - begins
    given = np.flatnonzero(blocks != NO_PAGE)
    # A window moves on from the first position, so that all that it has passed lies before all that it has.
    first = 0 if kind == "full" else int(given[0]) if given.size else blocks.size
    left_out = np.flatnonzero((blocks == NO_PAGE) & whole & (np.arange(blocks.size) >= first))
    if left_out.size:
        place = int(left_out[0])
        span = f"{int(begins[place])} … {int(stops[place]) - 1}"
        message = f"{where}: block_ids[{place}] names no page, positions {span} are stored and wanted"
        hint = "only what a window has passed may be left out, and metadata= says which groups have one"
        raise LayoutError(f"{message}: {hint}", expected="a page id", actual=None)
