"""A row per tensor, sequence and token, or one for each of its heads.

Spec: block-paged layout, Element Lookup; snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hurray_arrow.components import means_whole_pages
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.views.group_facts import GroupFacts
from hurray_arrow.views.pages import BATCH_BYTES, TENSORS_AT_ONCE, WINDOW_BYTES
from hurray_arrow.views.selection import Selection
from hurray_arrow.views.values import (
    STATISTICS,
    Int64Array,
    Scratch,
    check_mode,
    check_numbers,
    float32_pages,
    slot_statistics,
    tensor_array,
    tensor_type,
)
from hurray_arrow.views.view import KEY_FIELDS, View, key_makers, with_nulls

_ROWS_AT_ONCE = 1 << 16
#: However small pages are: an array with a number for each of them is 4 MiB.
_WINDOW_PAGES = 1 << 19

_FIELDS = (
    pa.field("sequence", pa.uint32()),
    pa.field("sequence_id", pa.utf8()),
    pa.field("token", pa.uint64()),
    pa.field("position", pa.uint64()),
    pa.field("token_id", pa.uint32()),
    pa.field("page_id", pa.uint64()),
    pa.field("slot", pa.uint32()),
)


class TokensView(View):
    """A row per tensor, sequence and stored token, in this order; with ``per_head`` one for each head of the token.

    ``token`` counts the stored tokens of the sequence from 0, ``position`` is its position, which differs where pages
    are absent. ``token_id`` is null where nobody recorded it.

    Parameters
    ----------
    selection, columns
        As of :class:`View`.
    per_head
        A row for each head, with column ``head``.
    values
        ``"float32"``: the token's numbers, dequantized where the tensor has a scheme, as ``arrow.fixed_shape_tensor``
        ``[num_heads, head_dim]`` (``[head_dim]`` per head). ``"stats"``: float32 columns ``norm``, ``min``, ``max``,
        ``mean`` over all elements of the row; only those asked for are worked out.

    Raises
    ------
    UnsupportedError
        Values of which there are no numbers, or of several shapes for ``"float32"``; values of a component
        ``page.<name>``, which has meaning as whole pages only; ``values="float16"`` or ``"fixed_size_binary"``.

    Spec: block-paged layout, Element Lookup.
    """

    NAME = "tokens"

    def __init__(
        self,
        selection: Selection,
        *,
        columns: Iterable[str] | None = None,
        per_head: bool = False,
        values: Literal["float32", "stats"] | None = None,
    ) -> None:
        check_mode(self.NAME, values, ("float32", "stats"))
        self.values, self.per_head = values, per_head
        self._type = _values_type(selection, values, per_head=per_head)
        super().__init__(selection, columns=columns)

    @property
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""
        fields = [*KEY_FIELDS, *_FIELDS]
        if self.per_head:
            fields.append(pa.field("head", pa.uint32()))
        if self.values == "stats":
            fields += [pa.field(name, pa.float32()) for name in STATISTICS]
        if self._type is not None:
            fields.append(pa.field("values", self._type))
        return pa.schema(fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make batches of about 8 MiB of values or 65,536 rows.

        Raises
        ------
        UnknownSequenceLengthError
            Nobody recorded the length of a sequence.
        """
        if not self._wants([*STATISTICS, "values"]):
            for entry in self.selection.entries:
                facts = self.selection.facts(entry)
                heads = entry.page_shape[1] if self.per_head else 1
                listing = TokenListing(facts, self.selection.places_of(entry, facts))
                for run in listing.runs(0, listing.num_tokens, max(1, _ROWS_AT_ONCE // max(1, heads))):
                    if some := run.within(self.page_range):
                        yield self._batch(self._makers(entry, some))
            return
        for entry, pages, facts in self.selection.opened(at_once=TENSORS_AT_ONCE):
            yield from self._valued(entry, pages, facts)

    def _valued(self, entry: Entry, pages: TensorPages, facts: GroupFacts) -> Iterator[pa.RecordBatch]:
        _, num_heads, head_dim = entry.page_shape
        listing = TokenListing(facts, self.selection.places_of(entry, facts))
        elems = num_heads * head_dim
        most = _ROWS_AT_ONCE // (num_heads if self.per_head else 1)
        if self._wants(["values"]):
            most = min(most, BATCH_BYTES // (4 * elems))
        for start, stop, page_ids in self._windows(listing, pages.tensor):
            tensor = pages.read(page_ids)
            for run in listing.runs(start, stop, max(1, most)):
                if some := run.within(self.page_range):
                    yield self._batch({**self._makers(entry, some), **self._numbers(tensor, some)})

    def _windows(self, listing: TokenListing, tensor: BlockPagedTensor) -> Iterator[tuple[int, int, Int64Array]]:
        """Cut the tokens by the pages that are in memory at once, and say which those are."""
        if self.page_range is not None:
            # All tokens of so many pages, however often sequences share them: each page is read once.
            yield 0, listing.num_tokens, listing.pages_within(self.page_range)
            return
        page_bytes = tensor.element_type.size_bytes(tensor.descriptor.page_elems)
        for start, stop in listing.windows(max(1, min(_WINDOW_PAGES, WINDOW_BYTES // max(1, page_bytes)))):
            yield start, stop, listing.page_ids(start, stop)

    def _makers(self, entry: Entry, run: TokenRun) -> dict[str, Callable[[], Any]]:
        heads = entry.page_shape[1] if self.per_head else 1

        def each(values: Any) -> Any:
            if heads == 1:
                return values
            places = np.repeat(np.arange(len(run)), heads)
            return values.take(pa.array(places)) if isinstance(values, pa.Array) else values[places]

        return {
            **key_makers(entry, len(run) * heads),
            "sequence": lambda: each(run.sequence),
            "sequence_id": lambda: each(run.sequence_id()),
            "token": lambda: each(run.token),
            "position": lambda: each(run.position),
            "token_id": lambda: each(run.token_id()),
            "page_id": lambda: each(run.page_id),
            "slot": lambda: each(run.slot),
            "head": lambda: np.tile(np.arange(heads), len(run)),
        }

    def _numbers(self, tensor: BlockPagedTensor, run: TokenRun) -> dict[str, Callable[[], Any]]:
        page_ids, slots = run.pages
        names = [name for name in STATISTICS if name in self.columns and self.values == "stats"]
        found = slot_statistics(tensor, page_ids, names, per_head=self.per_head) if names else {}

        def values() -> pa.Array:
            by_slot = float32_pages(tensor, page_ids, Scratch()).reshape(-1, tensor.num_heads, tensor.head_dim)
            rows = by_slot[slots]
            return tensor_array(rows.reshape(-1, tensor.head_dim) if self.per_head else rows, self._type)

        statistics = {name: lambda name=name: found[name][slots].reshape(-1) for name in found}
        return {**statistics, "values": values}


class TokenListing:
    """The stored tokens of some sequences, one after the other, numbered from 0.

    Parameters
    ----------
    facts
        The group.
    sequences
        int64 places.

    Raises
    ------
    UnknownSequenceLengthError
        Nobody recorded the length of one of them.
    """

    def __init__(self, facts: GroupFacts, sequences: Int64Array) -> None:
        self.facts = facts
        self.sequences = sequences
        lengths = facts.check_lengths(sequences)
        self.starts = _sums(lengths)
        self.page_starts = _sums(-(-lengths // facts.page_size))

    @property
    def num_tokens(self) -> int:
        """All tokens."""
        return int(self.starts[-1])

    def windows(self, pages: int) -> Iterator[tuple[int, int]]:
        """Cut the tokens so that each part lies in no more than so many table entries."""
        ends = np.append(np.arange(pages, self.page_starts[-1], pages), self.page_starts[-1])
        owner = np.searchsorted(self.page_starts, ends, side="left") - 1
        owner = np.maximum(owner, 0)
        stops = self.starts[owner] + (ends - self.page_starts[owner]) * self.facts.page_size
        stops = np.minimum(stops, self.starts[owner + 1]) if len(self.sequences) else stops[:0]
        start = 0
        for stop in stops.tolist():
            if stop > start:
                yield start, stop
                start = stop

    def runs(self, start: int, stop: int, tokens: int) -> Iterator[TokenRun]:
        """Cut a range of the tokens into runs of so many."""
        for first in range(start, stop, tokens):
            yield self.run(first, min(first + tokens, stop))

    def run(self, start: int, stop: int) -> TokenRun:
        """Look up a range of the tokens, all at once."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        bounds = np.clip(self.starts[first : last + 1], start, stop)
        owner = np.repeat(np.arange(first, last), np.diff(bounds))
        token = np.arange(start, stop) - self.starts[owner]
        page_size = self.facts.page_size
        sequence = self.sequences[owner]
        entry = self.facts.seq_ptr[sequence] + token // page_size
        return TokenRun(self.facts, sequence, token, entry, token % page_size)

    def page_ids(self, start: int, stop: int) -> Int64Array:
        """Return the pages that hold a range of the tokens, ascending, each once."""
        if stop <= start:
            return self.facts.table[:0]
        # Counted in pages: small ones hold so many tokens that an array of these would be larger than the pages are.
        first, last = np.searchsorted(self.starts, [start, stop - 1], side="right") - 1
        begin = self.page_starts[first] + (start - self.starts[first]) // self.facts.page_size
        end = self.page_starts[last] + (stop - 1 - self.starts[last]) // self.facts.page_size + 1
        number = np.arange(begin, end)
        owner = np.searchsorted(self.page_starts, number, side="right") - 1
        entry = self.facts.seq_ptr[self.sequences[owner]] + number - self.page_starts[owner]
        return np.unique(self.facts.table[entry])

    def pages_within(self, page_range: tuple[int, int]) -> Int64Array:
        """Return which pages of a range hold tokens, ascending."""
        held = np.zeros(self.facts.num_pages, np.bool_)
        for run in self.runs(0, self.num_tokens, _ROWS_AT_ONCE):
            held[run.page_id] = True
        start, stop = page_range
        return np.flatnonzero(held[start:stop]) + start


@dataclass(frozen=True)
class TokenRun:
    """Some tokens in a row, int64 ``[tokens]``: the sequence of each, its number there, its table entry, its slot."""

    facts: GroupFacts
    sequence: Int64Array
    token: Int64Array
    entry: Int64Array
    slot: Int64Array

    def __len__(self) -> int:
        return len(self.token)

    def within(self, page_range: tuple[int, int] | None) -> TokenRun:
        """Return those of the tokens that lie in a range of pages; ``None`` for all."""
        if page_range is None:
            return self
        start, stop = page_range
        some = (self.page_id >= start) & (self.page_id < stop)
        return TokenRun(self.facts, self.sequence[some], self.token[some], self.entry[some], self.slot[some])

    @property
    def page_id(self) -> Int64Array:
        """The page of each token."""
        return self.facts.table[self.entry]

    @property
    def position(self) -> Any:
        """The position of each token in its sequence, uint64."""
        return self.facts.first_positions[self.entry] + self.slot.astype(np.uint64)

    @cached_property
    def pages(self) -> tuple[Int64Array, Int64Array]:
        """The pages of all tokens, ascending and each once, and where in them each token's slot is."""
        new = np.ones(len(self), np.bool_)
        new[1:] = self.entry[1:] != self.entry[:-1]
        page_ids, places = np.unique(self.facts.table[self.entry[new]], return_inverse=True)
        page_size = self.facts.page_size
        return page_ids, (places * page_size)[np.cumsum(new) - 1] + self.slot

    def sequence_id(self) -> pa.Array:
        """Return the id of each token's sequence."""
        ids = self.facts.ids
        return pa.nulls(len(self), pa.utf8()) if ids is None else ids.take(pa.array(self.sequence))

    def token_id(self) -> pa.Array:
        """Return each token's id; token ids are listed by position, because absent pages have tokens too."""
        ids, starts = self.facts.token_ids
        position = self.position
        count = (starts[self.sequence + 1] - starts[self.sequence]).astype(np.uint64)
        missing = position >= count
        where = starts[self.sequence] + np.where(missing, 0, position).astype(np.int64)
        return with_nulls(ids[where], missing, pa.uint32())


def _sums(sizes: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _values_type(selection: Selection, values: str | None, *, per_head: bool) -> pa.DataType | None:
    if values is None:
        return None
    check_numbers("tokens", selection.entries)
    for entry in selection.entries:
        if means_whole_pages(entry.component):
            raise UnsupportedError(f"tokens: {entry}: only whole pages have meaning in a component page.<name>")
        if not entry.page_shape[1] * entry.page_shape[2]:
            raise UnsupportedError(f"tokens: {entry}: its tokens have no values (page_shape {list(entry.page_shape)})")
    if values == "stats":
        return None
    shapes = [entry.page_shape[2:] if per_head else entry.page_shape[1:] for entry in selection.entries]
    return tensor_type("tokens", np.dtype(np.float32), shapes)
