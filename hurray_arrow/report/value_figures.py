"""Ranges and norms of keys and values: by layer, and by layer and head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from hurray_arrow.report.head_values import Float64Array, HeadValues, Values
from hurray_arrow.report.look import Look, sparse_ticks
from hurray_arrow.report.names import label, label_style
from hurray_arrow.report.numbers import NOTHING, Table, decimal, integer, span, spans

HEADS = {"key": "Keys", "value": "Values", "fused": "Keys and values, fused"}
#: Rows and columns of a heat map; more layers or heads than these share cells.
_MOST_LAYERS = 128
_MOST_HEADS = 64
_MOST_CELLS = 4096
_MOST_ROWS = 512

#: A number for each head of a tensor.
Say = Callable[[HeadValues], Float64Array]


def draw_ranges(values: Values, look: Look) -> Figure:
    """Draw for each layer the range of all heads' elements."""
    figure, axes = look.figure(1.9 * max(1, len(values.roles)) + 0.2, rows=max(1, len(values.roles)), sharex=True)
    for panel, role in zip(axes[:, 0], values.roles, strict=False):
        tensors = values.by_layer(role)
        lowest = _of_layers(tensors, lambda each: each.lowest, np.fmin)
        highest = _of_layers(tensors, lambda each: each.highest, np.fmax)
        look.bars(panel, lowest, highest, color=to_rgba(look.role_color(role), 0.45))
        panel.axhline(0, color=look.palette.line, linewidth=0.8, zorder=0)
        look.head(panel, HEADS[role])
        panel.set_ylabel("least to greatest")
    layer_axis(axes[-1, 0], values.labels, look)
    return figure


def draw_norms(values: Values, look: Look) -> Figure:
    """Draw for each layer the norms of a head's vector: the mean over heads, and from the least to the greatest."""
    figure, axes = look.figure(1.9 * max(1, len(values.roles)) + 0.2, rows=max(1, len(values.roles)), sharex=True)
    for panel, role in zip(axes[:, 0], values.roles, strict=False):
        tensors = values.by_layer(role)
        least = _of_layers(tensors, lambda each: each.mean_norm, np.fmin)
        most = _of_layers(tensors, lambda each: each.mean_norm, np.fmax)
        mean = np.array([_mean(each) for each in tensors])
        color = look.role_color(role)
        look.bars(panel, least, most, color=to_rgba(color, 0.4))
        marker = "o" if len(mean) <= 40 else ""
        panel.plot(range(len(mean)), mean, color=color, linewidth=1.4, marker=marker, markersize=2.5)
        look.head(panel, HEADS[role])
        panel.set_ylabel("mean norm")
        panel.set_ylim(bottom=0)
    layer_axis(axes[-1, 0], values.labels, look)
    return figure


def draw_magnitudes(values: Values, look: Look) -> Figure:
    """Draw the greatest absolute value of each head as a heat map: where the outliers are."""
    return _heat_maps(values, look, lambda each: each.largest_magnitude, "greatest absolute value")


def draw_head_norms(values: Values, look: Look) -> Figure:
    """Draw the mean norm of each head as a heat map."""
    return _heat_maps(values, look, lambda each: each.mean_norm, "mean norm")


def layer_table(values: Values) -> Table:
    """Return the numbers of each layer and role."""
    rows = []
    for role in values.roles:
        for text, each in zip(values.labels, values.by_layer(role), strict=True):
            if each is not None:
                numbers = (_reduced(np.fmin, each.lowest), _reduced(np.fmax, each.highest), _mean(each))
                largest = _reduced(np.fmax, each.largest_norm)
                rows.append((text, role, *map(decimal, (*numbers, largest)), integer(each.slots)))
    heads = ("layer", "kv_role", "least", "greatest", "mean norm", "greatest norm", "tokens × heads")
    note = "" if len(rows) <= _MOST_ROWS else f"The first {_MOST_ROWS} of {len(rows)} rows."
    return Table("By layer", heads, tuple(rows[:_MOST_ROWS]), note=note, num_names=2)


def magnitude_tables(values: Values) -> list[Table]:
    """Return the numbers of :func:`draw_magnitudes`."""
    return _head_tables(values, lambda each: each.largest_magnitude, "Greatest absolute value")


def head_norm_tables(values: Values) -> list[Table]:
    """Return the numbers of :func:`draw_head_norms`."""
    return _head_tables(values, lambda each: each.mean_norm, "Mean norm")


def _head_tables(values: Values, say: Say, what: str) -> list[Table]:
    tables = []
    for role in values.roles:
        cells, layers, heads = _cells(values, role, say)
        names = _span_labels(values.labels, layers)
        rows = [(name, *map(decimal, row)) for name, row in zip(names, cells.T, strict=True)]
        columns = ("layer", *(f"head {span(start, stop - 1)}" for start, stop in heads))
        note = "A cell of several layers or heads has the greatest of them." if _is_binned(layers, heads) else ""
        tables.append(Table(f"{what}: {HEADS[role].lower()}", columns, tuple(rows), note=note))
    return tables


def _heat_maps(values: Values, look: Look, say: Say, unit: str) -> Figure:
    roles = values.roles
    by_role = [_cells(values, role, say) for role in roles]
    # One beside the other where layers are few enough to be seen, else below each other.
    beside = not look.is_narrow and len(roles) > 1 and len(values.layers) <= 40
    rows, columns = (1, len(roles)) if beside else (max(1, len(roles)), 1)
    tallest = [min(3.2, max(0.6, 0.2 * len(heads))) for _, _, heads in by_role]
    height = (max(tallest, default=0.5) if beside else sum(tallest)) + 0.75 * rows
    ratios: dict[str, Any] = {} if beside or not roles else {"height_ratios": tallest}
    figure, axes = look.figure(height, rows=rows, columns=columns, **ratios)
    for panel, role, (cells, layers, heads) in zip(axes.flat, roles, by_role, strict=False):
        image = panel.imshow(
            cells, cmap=look.heat_map(), aspect="auto", interpolation="none", origin="lower", clim=_limits(cells)
        )
        look.head(panel, f"{HEADS[role]}: {unit}")
        panel.set_ylabel("head")
        names = [span(start, stop - 1) for start, stop in heads]
        panel.set_yticks(*sparse_ticks(names, 8))
        layer_axis(panel, _span_labels(values.labels, layers), look, beside=beside)
        look.cells(panel, cells.shape)
        look.color_bar(image, panel, width=0.04 if beside else 0.02)
    return figure


def _cells(values: Values, role: str, say: Say) -> tuple[Float64Array, list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the greatest number of each cell, float64 ``[heads, layers]``, and which layers and heads cells are."""
    tensors = values.by_layer(role)
    num_heads = max((each.entry.page_shape[1] for each in tensors if each is not None), default=0)
    whole = np.full((num_heads, len(tensors)), np.nan)
    for column, each in enumerate(tensors):
        if each is not None:
            numbers = say(each)
            whole[: len(numbers), column] = numbers
    layers = spans(len(tensors), _MOST_LAYERS)
    heads = spans(num_heads, min(_MOST_HEADS, max(1, _MOST_CELLS // max(1, len(layers)))))
    cells = np.array(
        [[np.fmax.reduce(whole[h0:h1, l0:l1], axis=None) for l0, l1 in layers] for h0, h1 in heads], np.float64
    )
    return cells.reshape(len(heads), len(layers)), layers, heads


def _is_binned(layers: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int]]) -> bool:
    return any(stop - start > 1 for start, stop in (*layers, *heads))


def _span_labels(labels: Sequence[str], cells: Sequence[tuple[int, int]]) -> list[str]:
    return [labels[a] if b - a == 1 else f"{labels[a]}–{labels[b - 1]}" for a, b in cells]


def _limits(cells: Float64Array) -> tuple[float, float]:
    """Begin colours at 0, unless that leaves all heads nearly the same colour."""
    least, most = (
        float(np.fmin.reduce(cells, axis=None, initial=np.inf)),
        float(np.fmax.reduce(cells, axis=None, initial=0)),
    )
    return (least if most > least > 0.6 * most else 0.0), most or 1.0


def _of_layers(tensors: Sequence[HeadValues | None], say: Say, reduce: np.ufunc) -> Float64Array:
    return np.array([np.nan if each is None else _reduced(reduce, say(each)) for each in tensors])


def _reduced(reduce: np.ufunc, numbers: Float64Array) -> float:
    return float(reduce.reduce(numbers)) if len(numbers) else float("nan")


def _mean(tensor: HeadValues | None) -> float:
    norms = 0 if tensor is None else int(tensor.norms.sum())
    return float(tensor.norm_sum.sum() / norms) if tensor is not None and norms else float("nan")


def layer_axis(axes: Axes, labels: Sequence[str], look: Look, *, beside: bool = False) -> None:
    """Name the layers below a panel, as many as there is room for."""
    if not labels:
        axes.set_axis_off()
        axes.text(0, 0.5, NOTHING, color=look.palette.muted)
        return
    longest = max(map(len, labels))
    most = (8 if look.is_narrow or beside else 18) if longest <= 4 else (6 if look.is_narrow or beside else 10)
    places, texts = sparse_ticks(list(labels), most)
    axes.set_xticks(
        places, [label(text, most=12) for text in texts], rotation=30 if longest > 6 else 0, **label_style()
    )
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("layer")
