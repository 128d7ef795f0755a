"""The picture of docs/benchmarks: a panel for every work and place, a line for every peer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.peers.measuring import WORKS, Figures
from benchmarks.peers.results import Document, figures_of
from benchmarks.peers.tables import HEADINGS, PLACES, milliseconds

OURS, OTHERS = "#0b6e4f", "#7d8994"
#: The same bytes for the same document.
SVG: dict[Any, Any] = {
    "svg.hashsalt": "hurray-arrow",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
}


def draw(document: Document, path: Path) -> None:
    """Draw the times of both places and the sizes."""
    figures = figures_of(document)
    names = list(document["contenders"])
    with mpl.rc_context(SVG):
        figure = Figure(figsize=(11, 2.2 + 0.32 * len(names) * len(PLACES)), layout="constrained")
        axes = figure.subplots(len(PLACES), len(WORKS) + 1, squeeze=False)
        for row, (place, place_name) in zip(axes, PLACES.items(), strict=True):
            sizes = {
                name: figures[name, place, "write"].counts["size_bytes"]
                for name in names
                if (name, place, "write") in figures
            }
            size_panel(row[0], document, names, sizes)
            row[0].set_ylabel(place_name)
            for panel, work in zip(row[1:], WORKS, strict=True):
                time_panel(panel, document, {name: figures.get((name, place, work)) for name in names})
                panel.set_title(HEADINGS[work])
        what = f"{document['input']['pool_bytes'] >> 20} MiB of a paged cache ({document['date']})"
        figure.suptitle(f"{what}: milliseconds, each step ten times the last; median and range of all rounds")
        figure.savefig(path, format="svg", metadata={"Date": None})


def size_panel(panel: Any, document: Document, names: list[str], sizes: dict[str, int]) -> None:
    """Draw sizes, of the pools' bytes."""
    values = [sizes.get(name, 0) / document["input"]["pool_bytes"] for name in names]
    bars = panel.barh(range(len(names)), values, color=colors(document, names), height=0.6)
    panel.bar_label(bars, [f"{value:.2f}" for value in values], padding=2)
    panel.set_xlim(0, 1.4)
    panel.set_title("size, of the raw pools")
    frame(panel, names)


def time_panel(panel: Any, document: Document, found: dict[str, Figures | None]) -> None:
    """Draw medians as points and ranges as lines: a scale of powers has no zero for a bar to begin at."""
    names = list(found)
    measured = [(at, figures) for at, figures in enumerate(found.values()) if figures]
    for at, figures in measured:
        low, high = min(figures.seconds) * 1e3, max(figures.seconds) * 1e3
        [color] = colors(document, [figures.contender])
        panel.plot([low, high], [at, at], color=color, linewidth=3, solid_capstyle="butt")
        panel.plot(figures.median_s * 1e3, at, color=color, marker="o", markersize=5)
        panel.annotate(
            milliseconds(figures.median_s), (high, at), (6, 0), textcoords="offset points", verticalalignment="center"
        )
    if measured:
        low = min(min(figures.seconds) for _, figures in measured) * 1e3
        high = max(max(figures.seconds) for _, figures in measured) * 1e3
        panel.set_xscale("log")
        panel.set_xlim(10 ** math.floor(math.log10(low)), high * 12)
        panel.xaxis.set_minor_formatter(NullFormatter())
    frame(panel, names)
    panel.set_yticklabels([])


def colors(document: Document, names: list[str]) -> list[str]:
    """Return ours in a colour of their own."""
    return [OURS if document["contenders"][name]["ours"] else OTHERS for name in names]


def frame(panel: Any, names: list[str]) -> None:
    """Put the peers one below the other, the first on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.grid(visible=True, axis="both", color="#e3e7eb", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="x", labelsize=7)
