"""What a view is asked about: which tensors, and which of their sequences.

Spec: snapshot format section 2; house rules, "Selectors".
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.group_facts import GroupFacts

#: Sequences by place or id, one or several; ``None`` for all.
SequenceSelector: TypeAlias = SupportsIndex | str | Sequence[SupportsIndex | str] | npt.NDArray[Any] | None
Places: TypeAlias = Mapping[int, npt.NDArray[np.int64]]
_FactsKey: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors and sequences that a view's rows are about.

    Parameters
    ----------
    snapshot
        Where they lie.
    entries
        The tensors, in snapshot order.
    places
        By kv_group the places of the sequences wanted, int64 ascending; ``None`` for all.
    """

    snapshot: Snapshot
    entries: tuple[Entry, ...]
    places: Places | None = None
    _facts: dict[_FactsKey, GroupFacts] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        *,
        sequence: SequenceSelector = None,
        every: bool = True,
        tensors: Collection[int] | None = None,
        **selectors: Any,
    ) -> Selection:
        """Return what the selectors of :meth:`Snapshot.select` and ``sequence`` admit.

        ``every=False`` takes no offence at sequences that are not there: among many snapshots, most lack most.
        ``tensors`` leaves those of this ``tensor_index`` only; ``None`` all.

        Raises
        ------
        KeyError, IndexError
            No group of the tensors selected has a sequence of this id, or at this place. Where no tensor is selected
            there is nothing to ask, and no offence is taken.
        TypeError
            The path of a snapshot, which nobody has opened.
        """
        if isinstance(snapshot, str | os.PathLike):
            raise TypeError(f"snapshot: a path, expected an open snapshot: open_snapshot({os.fspath(snapshot)!r})")
        chosen = snapshot.select(**selectors)
        entries = tuple(entry for entry in chosen if tensors is None or entry.tensor_index in tensors)
        if sequence is None:
            return cls(snapshot, entries)
        return cls(snapshot, entries, _places(snapshot, entries, sequence, every=every))

    @property
    def kv_groups(self) -> dict[int, Entry]:
        """The groups of the tensors, ascending, and the first tensor of each."""
        first = {entry.kv_group: entry for entry in reversed(self.entries)}
        return dict(sorted(first.items()))

    def first_of(self, kv_group: int) -> Entry:
        """Return the first tensor of a group."""
        return self.kv_groups[kv_group]

    def narrowed(self, *, entries: Iterable[int] | None = None, places: Places | None = None) -> Selection:
        """Return what also lies among these tensors, by tensor_index, and these sequences."""
        kept, wanted = self.entries, self.places
        if entries is not None:
            admitted = set(entries)
            kept = tuple(entry for entry in kept if entry.tensor_index in admitted)
        if places is not None:
            wanted = places if wanted is None else {g: np.intersect1d(wanted[g], places[g]) for g in wanted}
        return replace(self, entries=kept, places=wanted)

    def places_of(self, entry: Entry, facts: GroupFacts) -> npt.NDArray[np.int64]:
        """Return the places of the sequences wanted of a tensor."""
        return np.arange(facts.num_seqs) if self.places is None else self.places[entry.kv_group]

    def opened(self, *, at_once: int) -> Iterator[tuple[Entry, TensorPages, GroupFacts]]:
        """Open the tensors one after the other, each with what is known of its group."""
        for entry, pages in zip(self.entries, self.snapshot.open_tensors(self.entries, at_once=at_once), strict=True):
            key = _key(entry)
            if key not in self._facts:
                self._facts[key] = GroupFacts(pages.tensor)
            yield entry, pages, self._facts[key]

    def facts(self, entry: Entry) -> GroupFacts:
        """Return what the tables of a tensor say; only the first of the tensors that agree in them is opened."""
        key = _key(entry)
        if key not in self._facts:
            [pages] = self.snapshot.open_tensors([entry])
            self._facts[key] = GroupFacts(pages.tensor)
        return self._facts[key]


def _key(entry: Entry) -> _FactsKey:
    return entry.kv_group, entry.page_shape[0], entry.num_pages


def wanted_sequences(sequence: SequenceSelector) -> list[int | str]:
    """Return the places and ids that a selector of sequences, not ``None``, names."""
    one = isinstance(sequence, str) or not isinstance(sequence, Collection)
    given: list[Any] = [sequence] if one else list(sequence)  # type: ignore[arg-type]  # what is not one is several
    return [each if isinstance(each, str) else operator.index(each) for each in given]


def _places(snapshot: Snapshot, entries: Iterable[Entry], sequence: SequenceSelector, *, every: bool) -> Places:
    wanted = wanted_sequences(sequence)
    asked = set(wanted)
    missing = set(wanted)
    places: dict[int, npt.NDArray[np.int64]] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for kv_group in sorted({entry.kv_group for entry in entries}):
        tables = snapshot.group_tables(kv_group)
        num_seqs, ids = tables.seq_ptr.size - 1, tables.sequences.ids or ()
        found = {each for each in wanted if isinstance(each, int) and 0 <= each < num_seqs}
        named = {place for place, name in enumerate(ids) if name in asked}
        missing -= {*found, *(ids[place] for place in named)}
        places[kv_group] = np.array(sorted(found | named), np.int64)
        sizes[kv_group] = (num_seqs, sum(name is not None for name in ids))
    for each in wanted if every and places else ():
        if each in missing:
            raise _no_sequence(each, sizes)
    return places


def _no_sequence(which: int | str, sizes: Mapping[int, tuple[int, int]]) -> LookupError:
    some = list(sizes.items())[:4]
    there = [f"kv_group {kv_group} has {num_seqs}, {named} of them with an id" for kv_group, (num_seqs, named) in some]
    more = f"; … ({len(sizes)} kv_groups)" if len(sizes) > 4 else ""
    if isinstance(which, str):
        return KeyError(f"no sequence has the id {which!r}: {'; '.join(there)}{more}")
    return IndexError(f"no sequence {which}, they are numbered from 0: {'; '.join(there)}{more}")
