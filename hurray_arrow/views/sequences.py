"""A row per kv_group and sequence: its tokens, its pages, and with whom it shares them.

Spec: snapshot format section 2; block-paged layout, Prefix Sharing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from hurray_arrow.views.group_facts import UNKNOWN, GroupFacts
from hurray_arrow.views.view import View, weighed

#: Pages, tokens and sharing sequences in a batch.
_WEIGHT = 1 << 20

_MEDIA = pa.struct([("first_token", pa.uint64()), ("num_tokens", pa.uint64()), ("digest", pa.utf8())])
_SHARED_WITH = pa.struct([("sequence", pa.uint32()), ("num_pages", pa.uint64())])
_SCHEMA = pa.schema(
    [
        ("kv_group", pa.uint32()),
        ("sequence", pa.uint32()),
        ("sequence_id", pa.utf8()),
        ("num_tokens", pa.uint64()),
        ("num_pages", pa.uint64()),
        ("page_ids", pa.list_(pa.uint64())),
        ("shared_pages", pa.uint64()),
        ("shared_with", pa.list_(_SHARED_WITH)),
        ("page_positions", pa.list_(pa.uint64())),
        ("token_ids", pa.list_(pa.uint32())),
        ("adapter", pa.utf8()),
        ("tenant", pa.utf8()),
        ("media", pa.list_(_MEDIA)),
    ]
)


class SequencesView(View):
    """A row per kv_group and sequence, of the groups that the tensors selected belong to.

    ``sequence`` is the place in the group, from 0. ``page_ids`` is its slice of block_table, ``page_positions`` the
    position of each page's slot 0. ``shared_pages`` counts its pages that others name too. ``shared_with`` says who:
    each other sequence, and the pages in common; n sequences behind one prefix are n² pairs, so that it is made only
    where ``columns=`` or a query names it. ``num_tokens`` is null where nobody recorded it.

    Spec: snapshot format section 2.
    """

    NAME = "sequences"
    ON_DEMAND = frozenset({"shared_with"})

    @property
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""
        return _SCHEMA

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make batches of about a million pages, tokens and sharing sequences; pages are not read."""
        for kv_group, entry in self.selection.kv_groups.items():
            facts = self.selection.facts(entry)
            sizes = np.diff(facts.seq_ptr) + np.maximum(facts.num_tokens, 0) + 1
            if "shared_with" in self.schema.names:
                # Thousands of sequences behind one prefix are millions of pairs.
                sharing = np.concatenate([[0], np.cumsum(facts.sequences_per_page[facts.table])])
                sizes += np.minimum(np.diff(sharing[facts.seq_ptr]), facts.num_seqs)
            places = self.selection.places_of(entry, facts).tolist()
            for run in weighed(places, lambda sequence, sizes=sizes: int(sizes[sequence]), _WEIGHT):  # type: ignore[misc]
                yield self._batch(_makers(kv_group, facts, run))


def _makers(kv_group: int, facts: GroupFacts, run: list[int]) -> dict[str, Callable[[], Any]]:
    known, tokens = facts.sequences, facts.num_tokens
    return {
        "kv_group": lambda: [kv_group] * len(run),
        "sequence": lambda: run,
        "sequence_id": lambda: _known(known.ids, run),
        "num_tokens": lambda: [None if tokens[s] == UNKNOWN else int(tokens[s]) for s in run],
        "num_pages": lambda: [facts.page_ids(s).size for s in run],
        "page_ids": lambda: _lists(facts.table, facts, run),
        "shared_pages": lambda: [_shared_pages(facts, s).size for s in run],
        "shared_with": lambda: _pairs([_shared_with(facts, s) for s in run]),
        "page_positions": lambda: _lists(facts.first_positions, facts, run),
        "token_ids": lambda: _known(known.token_ids, run),
        "adapter": lambda: _known(known.adapter, run),
        "tenant": lambda: _known(known.tenant, run),
        "media": lambda: [None if spans is None else [asdict(s) for s in spans] for spans in _known(known.media, run)],
    }


def _lists(values: Any, facts: GroupFacts, run: list[int]) -> pa.Array:
    """Return what belongs to the table entries of each sequence as a list of uint64."""
    first, last = run[0], run[-1]
    if last - first + 1 == len(run):
        bounds = facts.seq_ptr[first : last + 2]
        items = values[bounds[0] : bounds[-1]]
    else:
        items = np.concatenate([values[facts.seq_ptr[s] : facts.seq_ptr[s + 1]] for s in run])
        bounds = np.cumsum([0, *(facts.page_ids(s).size for s in run)])
    return pa.ListArray.from_arrays(pa.array((bounds - bounds[0]).astype(np.int32)), pa.array(items.astype(np.uint64)))


def _known(facts: tuple[Any, ...] | None, run: list[int]) -> list[Any]:
    return [None if facts is None else facts[s] for s in run]


def _shared_pages(facts: GroupFacts, sequence: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    pages = facts.page_ids(sequence)
    return np.unique(pages[facts.sequences_per_page[pages] > 1])


def _shared_with(facts: GroupFacts, sequence: int) -> tuple[Any, Any]:
    """Return the other sequences that have pages in common with this one, and how many each."""
    which, sets = facts.sharers
    # The pages of one prefix are all shared by the same sequences.
    alike, num_pages = np.unique(which[_shared_pages(facts, sequence)], return_counts=True)
    named = [sets[place] for place in alike]
    others, places = np.unique(np.concatenate([*named, np.empty(0, np.int64)]), return_inverse=True)
    counts = np.bincount(places, np.repeat(num_pages, [each.size for each in named])).astype(np.int64)
    is_other = others != sequence
    return others[is_other], counts[is_other]


def _pairs(shared: list[tuple[Any, Any]]) -> pa.Array:
    bounds = np.cumsum([0, *(others.size for others, _ in shared)])
    others, counts = (np.concatenate(part) for part in zip(*shared, strict=True))
    items = [pa.array(others.astype(np.uint32)), pa.array(counts.astype(np.uint64))]
    structs = pa.StructArray.from_arrays(items, fields=list(_SHARED_WITH))
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), structs)
