"""How full the last pages are: the slots that paging leaves unused.

Spec: block-paged layout, Partial trailing page.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hurray_arrow.report.group import Group
from hurray_arrow.report.look import Look, sparse_ticks
from hurray_arrow.report.numbers import Table, integer, percent, sentence, span, spans
from hurray_arrow.texts import count
from hurray_arrow.views.group_facts import UNKNOWN, Int64Array

_MOST_BARS = 32


class LastPages:
    """Sequences by the filled slots of their last page that holds a token.

    Parameters
    ----------
    group
        The group.

    Attributes
    ----------
    bars
        Half-open ranges of filled slots, from 1.
    sequences
        int64 ``[bars]``: sequences of each.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        tokens = group.facts.num_tokens
        lengths = tokens[tokens > 0]
        fill = (lengths - 1) % group.page_size + 1
        self.bars = [(start + 1, stop + 1) for start, stop in spans(group.page_size, _MOST_BARS)]
        step = self.bars[0][1] - self.bars[0][0]
        self.sequences: Int64Array = np.bincount((fill - 1) // step, minlength=len(self.bars))
        self.num_filled = len(lengths)
        self.unused_slots = int((group.page_size - fill).sum())
        used = -(-tokens // group.page_size)
        self.reserved_pages = int((np.diff(group.facts.seq_ptr) - used)[tokens != UNKNOWN].sum())

    @property
    def labels(self) -> list[str]:
        """What stands below each bar."""
        return [span(start, stop - 1) for start, stop in self.bars]

    def draw(self, look: Look) -> Figure:
        """Draw a bar for each fill, the full page in another colour."""
        figure, [[axes]] = look.figure(2.3)
        tops = self.sequences.astype(np.float64)
        is_full = np.arange(len(tops)) == len(tops) - 1
        for which, color in ((~is_full, look.palette.single), (is_full, look.palette.shared)):
            look.bars(axes, np.zeros(len(tops)), np.where(which, tops, np.nan), color=color)
        places, texts = sparse_ticks(self.labels, 8 if look.is_narrow else 16)
        axes.set_xticks(places, texts)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_xlabel(f"filled slots of the last page, of {integer(self.group.page_size)}")
        axes.set_ylabel("sequences")
        axes.set_ylim(0, 1.05 * max(1.0, float(tops.max())))
        axes.set_xlim(-0.7, len(self.bars) - 0.3)
        axes.grid(axis="y", color=look.palette.line, linewidth=0.6)
        axes.set_axisbelow(True)
        return figure

    @property
    def caption(self) -> str:
        """What the slots add up to."""
        slots = self.num_filled * self.group.page_size
        unused = f"{count(self.unused_slots, 'slot')} unused in {count(self.num_filled, 'last page')}"
        unknown, reserved = self.group.num_unknown, self.reserved_pages
        return sentence(
            [
                f"{unused} ({percent(self.unused_slots, slots)})." if slots else "No sequence holds a token.",
                f"{count(reserved, 'page')} behind them without a token." if reserved else "",
                f"{count(unknown, 'sequence')} left out, of unknown length." if unknown else "",
            ]
        )

    def table(self) -> Table:
        """Return the same numbers."""
        rows = [(text, integer(number)) for text, number in zip(self.labels, self.sequences, strict=True)]
        return Table("Last pages", ("filled slots", "sequences"), tuple(rows))
