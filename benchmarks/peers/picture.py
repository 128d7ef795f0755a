"""The picture of docs/benchmarks: a panel for every work, a bar for every peer and place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.peers.measuring import WORKS, Figures
from benchmarks.peers.results import Document, figures_of
from benchmarks.peers.tables import HEADINGS, PLACES, milliseconds

OURS, OTHERS = "#0b6e4f", "#9aa5b1"
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
    bars(panel, document, names, values)
    panel.bar_label(panel.containers[0], [f"{value:.2f}" for value in values], padding=2)
    panel.set_xlim(0, 1.35)
    panel.set_title("size, of the raw pools")
    panel.set_yticks(range(len(names)), names)


def time_panel(panel: Any, document: Document, found: dict[str, Figures | None]) -> None:
    """Draw medians, and the ranges of all rounds."""
    names = [name for name, figures in found.items() if figures]
    measured = [figures for figures in found.values() if figures]
    values = [figures.median_s * 1e3 for figures in measured]
    bars(panel, document, names, values)
    panel.set_yticks([])
    if not measured:
        return
    panel.set_xscale("log")
    panel.set_xlim(min(values) / 3, max(values) * 12)
    panel.bar_label(panel.containers[0], [milliseconds(figures.median_s) for figures in measured], padding=4)
    for at, figures in enumerate(measured):
        panel.plot([min(figures.seconds) * 1e3, max(figures.seconds) * 1e3], [at, at], color="black", linewidth=1)


def bars(panel: Any, document: Document, names: list[str], values: list[float]) -> None:
    """Draw a bar for each, ours in a colour of their own, the first on top."""
    colors = [OURS if document["contenders"][name]["ours"] else OTHERS for name in names]
    panel.barh(range(len(names)), values, color=colors)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="x", labelsize=7)
