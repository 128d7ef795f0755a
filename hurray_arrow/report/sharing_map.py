"""Which sequences have pages in common, and how many.

Spec: block-paged layout, Prefix Sharing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hurray_arrow.report.group import Group
from hurray_arrow.report.look import Look
from hurray_arrow.report.names import label, label_style
from hurray_arrow.report.numbers import NOTHING, Table, integer, sentence
from hurray_arrow.texts import count
from hurray_arrow.views.group_facts import Int64Array

Float64Array = npt.NDArray[np.float64]

#: Sequences that have a row of their own.
MOST_SEQUENCES = 24
#: Pages that are counted at a time; below 2²⁴ sums of float32 ones are exact.
_PAGES_AT_ONCE = 1 << 16


class SharingMap:
    """Pages that pairs of sequences have in common, of the sequences that share the most.

    Parameters
    ----------
    group
        The group.

    Attributes
    ----------
    sequences
        int64: those with a row, in their order.
    pages
        int64 ``[sequences, sequences]``: pages in common; the diagonal has the pages shared with anybody.
    with_others
        int64 ``[sequences]``: pages that sequences without a row name too.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.num_sharing = int(np.count_nonzero(group.shared_pages_of))
        self.sequences = np.sort(group.largest(group.shared_pages_of, MOST_SEQUENCES))
        self.pages, self.with_others = _counted(group, self.sequences)

    def draw(self, look: Look) -> Figure:
        """Draw the pages in common as a heat map; without shared pages it says so."""
        number = len(self.sequences)
        if not number:
            return _nothing(look)
        labels = [
            label(self.group.label_of(sequence), most=10 if look.is_narrow else 18) for sequence in self.sequences
        ]
        with_others = self.num_sharing > number
        cells = np.where(np.eye(number, dtype=bool), np.nan, self.pages)
        if with_others:
            cells = np.column_stack([cells, self.with_others])
        cell_inches = min(0.42, (look.width_inches - 1.9) / cells.shape[1])
        width_inches = cells.shape[1] * cell_inches + 0.075 * max(map(len, labels)) + 1.3
        figure, [[axes]] = look.figure(number * cell_inches + 0.75, width_inches=width_inches)
        image = axes.imshow(cells, cmap=look.heat_map(), vmin=0, interpolation="none")
        axes.set_yticks(range(number), labels, **label_style())
        below = [str(sequence) for sequence in self.sequences] + ["others"] * with_others
        axes.set_xticks(range(len(below)), below, rotation=90 if number > 9 else 0)
        axes.set_xlabel("sequence")
        look.cells(axes, cells.shape)
        if number <= (7 if look.is_narrow else 12):
            self._annotate(axes, cells, look)
        look.color_bar(image, axes, width=0.12 / (cells.shape[1] * cell_inches), whole=True).set_label(
            "pages in common", color=look.palette.muted, fontsize=look.text_points
        )
        return figure

    @property
    def caption(self) -> str:
        """Who is shown."""
        _, _, shared = self.group.kind_counts
        if not shared:
            return "No page is in more than one sequence."
        who = f"{count(shared, 'page')} shared by {count(self.num_sharing, 'sequence')}."
        diagonal = "The diagonal, a sequence with itself, is left blank."
        left_out = self.num_sharing - len(self.sequences)
        rest = f"The {len(self.sequences)} that share the most have a row; pages that they share with the other "
        return sentence([who, diagonal, f"{rest}{left_out:,} are in the last column." if left_out else ""])

    def table(self) -> Table:
        """Return the same numbers."""
        heads = ("sequence", "id", *(f"with {sequence}" for sequence in self.sequences), "with others", "with anybody")
        rows = []
        for place, sequence in enumerate(self.sequences.tolist()):
            row = [integer(pages) for pages in self.pages[place]]
            row[place] = NOTHING
            sums = (integer(self.with_others[place]), integer(self.pages[place, place]))
            rows.append((str(sequence), self.group.name_of(sequence) or NOTHING, *row, *sums))
        return Table("Pages in common", heads, tuple(rows), num_names=2)

    def _annotate(self, axes: Axes, cells: Float64Array, look: Look) -> None:
        most = float(np.nanmax(cells)) if np.isfinite(cells).any() else 0.0
        for (row, column), pages in np.ndenumerate(cells):
            if np.isfinite(pages):
                color = look.palette.ground if pages > 0.55 * most else look.palette.ink
                text = axes.text(column, row, integer(pages), ha="center", va="center", color=color)
                text.set_fontsize(look.text_points)


def _counted(group: Group, sequences: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Count pages in common: int64 ``[sequences, sequences]``, and with sequences that are not listed."""
    owners, pages = group.pairs
    shared = group.kinds[pages] == 2
    owners, pages = owners[shared], pages[shared]
    ranks = np.full(group.num_seqs, -1)
    ranks[sequences] = np.arange(len(sequences))
    columns = np.unique(pages[ranks[owners] >= 0])
    common = np.zeros((len(sequences), len(sequences)), np.int64)
    with_others = np.zeros(len(sequences), np.int64)
    for start in range(0, len(columns), _PAGES_AT_ONCE):
        some = columns[start : start + _PAGES_AT_ONCE]
        here = (ranks[owners] >= 0) & (pages >= some[0]) & (pages <= some[-1])
        named = np.zeros((len(sequences), len(some)), np.float32)
        named[ranks[owners[here]], np.searchsorted(some, pages[here])] = 1
        common += (named @ named.T).astype(np.int64)
        more = group.facts.sequences_per_page[some] > named.sum(axis=0)
        with_others += (named @ more.astype(np.float32)).astype(np.int64)
    return common, with_others


def _nothing(look: Look) -> Figure:
    figure, [[axes]] = look.figure(0.7)
    axes.set_axis_off()
    axes.text(0, 0.5, "No page is shared.", va="center", color=look.palette.muted, fontsize=look.text_points + 1)
    return figure
