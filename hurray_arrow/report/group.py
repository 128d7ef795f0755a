"""What the tables of a kv_group say, counted for pictures: who names which page, and how often.

Spec: block-paged layout, Prefix Sharing and Partial trailing page.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hurray_arrow.errors import UnsupportedError
from hurray_arrow.report.numbers import NOTHING, Table, integer
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.texts import count, printable
from hurray_arrow.views.group_facts import UNKNOWN, GroupFacts, Int64Array
from hurray_arrow.views.selection import Selection

#: Pages of a pool beyond which counting each takes more memory than a report may; far above any pool of an engine's.
MOST_PAGES = 1 << 24
#: Sequences that a table lists by themselves.
LISTED_SEQUENCES = 24


class Group:
    """Tables and sequences of a kv_group; no page is read.

    Parameters
    ----------
    kv_group
        Its number.
    facts
        What the tables say.
    """

    def __init__(self, kv_group: int, facts: GroupFacts) -> None:
        self.kv_group = kv_group
        self.facts = facts

    @classmethod
    def of(cls, snapshot: Snapshot, kv_group: int) -> Group:
        """Read the tables of a group.

        Raises
        ------
        LookupError
            No tensor is of this group.
        UnsupportedError
            More pages than 2²⁴: pages without bytes can be claimed without end.
        SnapshotCorruptError
            As :meth:`Snapshot.open_tensors`.
        """
        selection = Selection.of(snapshot, kv_group=kv_group)
        if not selection.entries:
            raise LookupError(f"no tensor is of kv_group {kv_group}")
        entry = selection.first_of(kv_group)
        if entry.num_pages > MOST_PAGES:
            raise UnsupportedError(f"kv_group {kv_group}: {entry.num_pages} pages, at most {MOST_PAGES} are drawn")
        return cls(kv_group, selection.facts(entry))

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.facts.num_pages

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.facts.page_size

    @property
    def num_seqs(self) -> int:
        """Sequences."""
        return self.facts.num_seqs

    @cached_property
    def kinds(self) -> Int64Array:
        """int64 ``[num_pages]``: 0 for a page that no sequence names, 1 for one, 2 for several."""
        return np.minimum(self.facts.sequences_per_page, 2)

    @cached_property
    def kind_counts(self) -> tuple[int, int, int]:
        """Pages in no sequence, in one, in several."""
        free, single, shared = np.bincount(self.kinds, minlength=3).tolist()
        return free, single, shared

    @cached_property
    def pairs(self) -> tuple[Int64Array, Int64Array]:
        """Sequence and page of each pair that belongs together, each pair once, by sequence."""
        pages = max(self.num_pages, 1)
        found = np.unique(self.facts.owners * pages + self.facts.table)
        return found // pages, found % pages

    @cached_property
    def pages_of(self) -> Int64Array:
        """int64 ``[num_seqs]``: different pages of each sequence."""
        return np.bincount(self.pairs[0], minlength=self.num_seqs)

    @cached_property
    def shared_pages_of(self) -> Int64Array:
        """int64 ``[num_seqs]``: pages of each sequence that others name too."""
        sequences, pages = self.pairs
        return np.bincount(sequences[self.kinds[pages] == 2], minlength=self.num_seqs)

    @cached_property
    def known_tokens(self) -> int:
        """Stored tokens of the sequences whose length was recorded."""
        return int(self.facts.num_tokens[self.facts.num_tokens != UNKNOWN].sum())

    @cached_property
    def num_unknown(self) -> int:
        """Sequences whose length nobody recorded."""
        return int(np.count_nonzero(self.facts.num_tokens == UNKNOWN))

    def largest(self, sizes: Int64Array, most: int) -> Int64Array:
        """Return the sequences with the largest sizes, at most so many and none of size 0, the largest first."""
        order = np.argsort(-sizes, kind="stable")[:most]
        return order[sizes[order] > 0]

    def name_of(self, sequence: int) -> str:
        """Return the id of a sequence, or nothing where it has none; on one line, and still data."""
        ids = self.facts.sequences.ids
        return printable((ids[sequence] if ids else None) or "")

    def label_of(self, sequence: int) -> str:
        """Return a sequence's place, and its id where it has one."""
        return f"{sequence} · {name}" if (name := self.name_of(sequence)) else str(sequence)

    def table(self) -> Table:
        """List the largest sequences, and sum up the others."""
        listed = self.largest(self.pages_of, LISTED_SEQUENCES)
        rows = [
            (
                str(sequence),
                self.name_of(sequence) or NOTHING,
                NOTHING if (tokens := self.facts.num_tokens[sequence]) == UNKNOWN else integer(tokens),
                integer(self.pages_of[sequence]),
                integer(self.shared_pages_of[sequence]),
            )
            for sequence in listed.tolist()
        ]
        others = np.ones(self.num_seqs, np.bool_)
        others[listed] = False
        if num_others := int(others.sum()):
            tokens = self.facts.num_tokens[others]
            known = NOTHING if (tokens == UNKNOWN).any() else integer(tokens.sum())
            sums = (integer(self.pages_of[others].sum()), integer(self.shared_pages_of[others].sum()))
            rows.append((count(num_others, "other"), NOTHING, known, *sums))
        return Table(
            "Sequences, those with the most pages first",
            ("sequence", "id", "tokens", "pages", "of them shared"),
            tuple(rows),
            note="A page counts for every sequence that names it." if self.kind_counts[2] else "",
            num_names=2,
        )
