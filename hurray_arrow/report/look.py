"""How figures look: their width, their ground, and one palette for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

#: Below this width a figure is for a phone: panels stand below each other, grids have fewer columns.
_NARROW_INCHES = 5.0
#: Half the width of a bar; bars stand at distances of 1.
_HALF_BAR = 0.37

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one ground; hues that people with any colour vision tell apart.

    Parameters
    ----------
    ground, ink, muted, line
        Behind everything; for words and data; for words of less weight; for axes and grids.
    free, single, shared
        Pages in no sequence, in one, in several.
    key, value, fused
        The roles.
    sequences
        Sequences of which a figure shows several, in order.
    rest
        All that has no colour of its own.
    low, high
        The ends of a heat map.
    """

    ground: str
    ink: str
    muted: str
    line: str
    free: str
    single: str
    shared: str
    key: str
    value: str
    fused: str
    sequences: tuple[str, ...]
    rest: str
    low: str
    middle: str
    high: str


LIGHT = Palette(
    ground="#ffffff",
    ink="#1c2733",
    muted="#5b6875",
    line="#d5dce3",
    free="#e3e8ed",
    single="#6fa3cf",
    shared="#1f4e79",
    key="#1b6ca8",
    value="#c2571a",
    fused="#5e4fa2",
    sequences=("#1b6ca8", "#d9772b", "#2f8f6b", "#b5468b", "#8c6d1f", "#5e4fa2", "#c0392b", "#3aa6b9"),
    rest="#9aa7b4",
    low="#f1f5f9",
    middle="#6fa3cf",
    high="#0d3257",
)
DARK = Palette(
    ground="#161d26",
    ink="#e4eaf0",
    muted="#9fadba",
    line="#344250",
    free="#2a3541",
    single="#3f7cae",
    shared="#a9d1f2",
    key="#5fb0e8",
    value="#f0935a",
    fused="#a99be8",
    sequences=("#5fb0e8", "#f0a05a", "#5cc49c", "#e07fbb", "#d1b050", "#a99be8", "#ef7d70", "#6fd3e3"),
    rest="#6c7a88",
    low="#1e2833",
    middle="#3f7cae",
    high="#d3ebff",
)


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a figure.

    Parameters
    ----------
    width_inches
        Its width; below 5 inches it is laid out for a phone.
    dark
        On a dark ground.
    """

    width_inches: float = 7.5
    dark: bool = False

    @property
    def palette(self) -> Palette:
        """The colours."""
        return DARK if self.dark else LIGHT

    @property
    def is_narrow(self) -> bool:
        """Whether there is room for one panel only."""
        return self.width_inches < _NARROW_INCHES

    @property
    def text_points(self) -> float:
        """Size of ordinary text, in points."""
        return 7.5 if self.is_narrow else 8.5

    def role_color(self, kv_role: str) -> str:
        """Return a role's colour."""
        return {"key": self.palette.key, "value": self.palette.value}.get(kv_role, self.palette.fused)

    def tints(self, kv_role: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return what tints of a role's colour lie between: the ground and the colour, as RGB."""
        return to_rgb(self.palette.ground), to_rgb(self.role_color(kv_role))

    def heat_map(self) -> Colormap:
        """Return the colours of a heat map, from little to much; what is missing looks like the ground."""
        palette = self.palette
        colors = LinearSegmentedColormap.from_list("hurray", [palette.low, palette.middle, palette.high])
        return colors.with_extremes(bad=palette.ground)

    def figure(
        self,
        height_inches: float,
        *,
        width_inches: float | None = None,
        rows: int = 1,
        columns: int = 1,
        **options: Any,
    ) -> tuple[Figure, Axes2D]:
        """Return a new figure, not wider than the look's, and its axes ``[rows, columns]`` in the look's colours."""
        width = min(self.width_inches, width_inches or self.width_inches)
        figure = Figure(figsize=(width, height_inches), layout="constrained", facecolor=self.palette.ground)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        for each in axes.flat:
            self.dress(each)
        return figure, axes

    def dress(self, axes: Axes) -> None:
        """Give axes the look's colours and sizes."""
        palette = self.palette
        axes.set_facecolor(palette.ground)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(palette.line)
        axes.tick_params(colors=palette.muted, labelsize=self.text_points, length=3)
        axes.xaxis.label.set(color=palette.muted, fontsize=self.text_points)
        axes.yaxis.label.set(color=palette.muted, fontsize=self.text_points)

    def head(self, axes: Axes, text: str) -> None:
        """Write a panel's head above its left edge."""
        axes.set_title(text, loc="left", color=self.palette.ink, fontsize=self.text_points + 1, fontweight="bold")

    def bars(self, axes: Axes, bottoms: FloatArray, tops: FloatArray, *, color: Any, label: str = "") -> None:
        """Draw a bar from bottom to top at 0, 1, …, float64 ``[bars]`` each; all of them are one path, so it is quick.

        Where either is NaN there is no bar.
        """
        places = np.flatnonzero(np.isfinite(bottoms) & np.isfinite(tops))
        if not len(places):
            return
        left, right, bottom, top = places - _HALF_BAR, places + _HALF_BAR, bottoms[places], tops[places]
        corners = np.array([[left, bottom], [left, top], [right, top], [right, bottom]]).transpose(2, 0, 1)
        path = Path.make_compound_path_from_polys(corners)
        axes.add_patch(PathPatch(path, facecolor=color, linewidth=0, label=label))
        axes.autoscale_view()

    def cells(self, axes: Axes, shape: tuple[int, int]) -> None:
        """Make a grid ``[rows, columns]`` of an image's pixels: lines between cells where those are few, no frame."""
        rows, columns = shape
        if max(rows, columns) <= (24 if self.is_narrow else 48):
            line: dict[str, Any] = {"color": self.palette.ground, "linewidth": 0.8}
            axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, **line)
            axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, **line)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)

    def color_bar(self, image: Any, axes: Axes, *, width: float, whole: bool = False) -> Any:
        """Put a colour bar beside the axes, ``width`` of theirs wide; with whole numbers for counts."""
        # Inside the axes' own frame it is as high as the image, whatever the layout makes of that.
        beside = axes.inset_axes((1 + width / 2, 0, width, 1))
        bar = axes.figure.colorbar(image, cax=beside, ticks=MaxNLocator(nbins=4, integer=whole))
        self.dress(beside)
        for spine in beside.spines.values():
            spine.set_visible(False)
        return bar

    def legend(self, axes: Axes, handles: list[Any], *, columns: int, **options: Any) -> Any:
        """Put a legend below the axes."""
        return axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, -0.02),
            ncols=columns,
            frameon=False,
            labelcolor=self.palette.ink,
            fontsize=self.text_points,
            handlelength=1.1,
            handleheight=1.0,
            columnspacing=1.4,
            borderaxespad=0.4,
            **options,
        )


#: Axes ``[rows, columns]``; what numpy holds as objects has no type that a checker knows.
Axes2D: TypeAlias = Any


def rgb(colors: list[str]) -> npt.NDArray[np.float64]:
    """Return colours as float64 ``[colors, 3]``."""
    return np.array([to_rgb(color) for color in colors])


def sparse_ticks(labels: list[str], most: int) -> tuple[list[int], list[str]]:
    """Return at most ``most`` places, at equal distances, and what stands there."""
    step = max(1, -(-len(labels) // most))
    places = list(range(0, len(labels), step))
    return places, [labels[place] for place in places]
