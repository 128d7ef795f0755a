"""The page map: every page of a pool as a cell, by use or by sequence.

Spec: block-paged layout, Prefix Sharing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hurray_arrow.report.group import Group
from hurray_arrow.report.look import Look, rgb
from hurray_arrow.report.names import label, label_style
from hurray_arrow.report.numbers import Table, integer, percent, sentence, span, spans
from hurray_arrow.texts import count
from hurray_arrow.views.group_facts import Int64Array

#: Cells of a map: where there are more pages, a cell is several.
MOST_CELLS = 2048
#: Sequences with a colour of their own.
COLORED_SEQUENCES = 8
_TABLE_ROWS = 64
_KINDS = ("in no sequence", "in one sequence", "shared")


class PageMap:
    """A pool's pages in cells of ``cell_pages`` pages each, the last perhaps of fewer.

    Parameters
    ----------
    group
        The group whose pool it is.

    Attributes
    ----------
    kinds
        int64 ``[cells, 3]``: pages in no sequence, in one, in several.
    sequences
        int64: the sequences with a colour of their own.
    ranks
        int64 ``[cells]``: which of :attr:`sequences` has the most pages of a cell that belong to one; their number for
        all others, -1 where no page belongs to any.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.cell_pages = max(1, -(-group.num_pages // MOST_CELLS))
        self.num_cells = -(-group.num_pages // self.cell_pages)
        self._cells = np.arange(group.num_pages) // self.cell_pages
        self.kinds = self._counted(group.kinds, 3)
        first = group.facts.first_sequence
        owned = np.bincount(first[first >= 0], minlength=group.num_seqs)
        self.sequences = np.sort(group.largest(owned, COLORED_SEQUENCES))
        self.owned_pages: Int64Array = owned
        rank_of = np.full(group.num_seqs + 1, len(self.sequences))
        rank_of[self.sequences] = np.arange(len(self.sequences))
        rank_of[-1] = len(self.sequences) + 1
        by_rank = self._counted(rank_of[first], len(self.sequences) + 2)[:, :-1]
        self.ranks = np.where(by_rank.any(axis=1), by_rank.argmax(axis=1), -1)

    def by_use(self, look: Look) -> Figure:
        """Draw which pages are in no sequence, in one, or shared; a cell of several pages has the mixed colour."""
        palette = look.palette
        colors = rgb([palette.free, palette.single, palette.shared])
        shares = self.kinds / np.maximum(self.kinds.sum(axis=1, keepdims=True), 1)
        figure, axes = self._draw(shares @ colors, look, legend_rows=3 if look.is_narrow else 1)
        handles = [
            Patch(color=color, label=f"{kind}: {integer(pages)} ({percent(pages, self.group.num_pages)})")
            for color, kind, pages in zip(
                (palette.free, palette.single, palette.shared), _KINDS, self.group.kind_counts, strict=True
            )
        ]
        look.legend(axes, handles, columns=1 if look.is_narrow else 3)
        return figure

    def by_sequence(self, look: Look) -> Figure:
        """Draw which sequence is the first to name each page."""
        palette = look.palette
        names = [*palette.sequences[: len(self.sequences)], palette.rest, palette.free]
        has_others = bool((self.ranks == len(self.sequences)).any())
        columns = 2 if look.is_narrow else 4
        legend_rows = -(-(len(self.sequences) + has_others + 1) // columns)
        figure, axes = self._draw(rgb(names)[self.ranks], look, legend_rows=legend_rows)
        handles = [
            Patch(color=color, label=self._label(sequence))
            for color, sequence in zip(names, self.sequences.tolist(), strict=False)
        ]
        if has_others:
            handles.append(Patch(color=palette.rest, label="other sequences"))
        handles.append(Patch(color=palette.free, label=_KINDS[0]))
        legend = look.legend(axes, handles, columns=columns)
        for text in legend.get_texts():
            text.set(**label_style())
        return figure

    @property
    def caption(self) -> str:
        """What a cell is."""
        pages = count(self.group.num_pages, "page") + f" of {count(self.group.page_size, 'token')}"
        cell = "a cell is one page" if self.cell_pages == 1 else f"a cell is {integer(self.cell_pages)} pages"
        return f"{pages}, row by row from page 0; {cell}."

    @property
    def caption_by_sequence(self) -> str:
        """How pages of several sequences, and cells of several pages, are coloured."""
        dominant = "A cell has the colour of the sequence with the most of its pages." if self.cell_pages > 1 else ""
        others = int(np.count_nonzero(self.owned_pages)) - len(self.sequences)
        rest = f"Grey is for {count(others, 'sequence')} with fewer such pages." if others else ""
        return sentence([self.caption, "A shared page belongs to the first sequence that names it.", dominant, rest])

    def table(self) -> Table:
        """Return the pages of each kind by ranges of page ids."""
        free, single, shared = map(integer, self.group.kind_counts)
        rows: list[tuple[str, ...]] = [("all", free, single, shared)]
        for start, stop in spans(self.num_cells, _TABLE_ROWS):
            ids = span(start * self.cell_pages, min(stop * self.cell_pages, self.group.num_pages) - 1)
            rows.append((ids, *map(integer, self.kinds[start:stop].sum(axis=0))))
        return Table("Pages by use", ("page ids", *_KINDS), tuple(rows))

    def _label(self, sequence: int) -> str:
        named = self.group.label_of(sequence)
        return label(named if self.group.name_of(sequence) else f"sequence {named}")

    def _counted(self, values: Int64Array, kinds: int) -> Int64Array:
        """Count the pages of each cell by value: int64 ``[cells, kinds]``."""
        found = np.bincount(self._cells * kinds + values, minlength=self.num_cells * kinds)
        return found.reshape(self.num_cells, kinds)

    def _draw(self, colors: npt.NDArray[np.float64], look: Look, *, legend_rows: int) -> tuple[Figure, Axes]:
        most_columns = 40 if look.is_narrow else 64
        columns = int(np.clip(math.ceil(math.sqrt(4 * max(self.num_cells, 1))), 8, most_columns))
        rows = max(1, -(-self.num_cells // columns))
        cell_inches = min(0.3, (look.width_inches - 0.9) / columns)
        figure, [[axes]] = look.figure(rows * cell_inches + 0.2 * legend_rows + 0.3)
        grid = np.tile(rgb([look.palette.ground]), (rows * columns, 1))
        grid[: self.num_cells] = colors
        axes.imshow(grid.reshape(rows, columns, 3), interpolation="none", extent=(0, columns, rows, 0))
        self._rule(axes, look, rows=rows, columns=columns)
        return figure, axes

    def _rule(self, axes: Axes, look: Look, *, rows: int, columns: int) -> None:
        """Draw lines between cells, and the first page id of some rows."""
        line: dict[str, Any] = {"color": look.palette.ground, "linewidth": 0.8}
        axes.hlines(np.arange(rows + 1), 0, columns, **line)
        axes.vlines(np.arange(columns + 1), 0, rows, **line)
        axes.set_anchor("NW")
        axes.set_xticks([])
        step = max(1, -(-rows // 8))
        places = np.arange(0, rows, step)
        axes.set_yticks(places + 0.5, [integer(row * columns * self.cell_pages) for row in places])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
