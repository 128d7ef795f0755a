"""From tensors into an engine's memory: a whole cache anew, or one sequence into pages of a running pool.

Everything is verified before the first byte is written, and nothing beside the named pages is written.

Spec: block-paged layout, Element Lookup; snapshot format section 2, absent pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.components import means_whole_pages
from hurray_arrow.engines.arrays import Int64Array, Words
from hurray_arrow.engines.groups import LayerFormat
from hurray_arrow.engines.layouts import Content, PagePart, new_arrays
from hurray_arrow.engines.page_copies import Copies, reading_pages
from hurray_arrow.engines.page_moves import PageMoves
from hurray_arrow.engines.stored_layers import Layer, StoredGroup, completed_format, part_words
from hurray_arrow.errors import LayoutError


def new_cache(groups: Sequence[StoredGroup], *, formats: Mapping[str, LayerFormat]) -> dict[str, Any]:
    """Build each layer's arrays from its tensors.

    Parameters
    ----------
    groups
        The stored layers.
    formats
        How each layer is to be laid out.

    Returns
    -------
    dict
        By layer a new array, or a tuple of two; pages keep the tensors' numbers.

    Raises
    ------
    LayoutError, UnsupportedError
        Tensors that the layout has no place for.
    """
    completed = {
        name: completed_format(formats[name], layer, engine_scales=False)
        for group in groups
        for name, layer in group.layers.items()
    }
    return {name: _new_layer(completed[name], layer) for group in groups for name, layer in group.layers.items()}


def _new_layer(form: LayerFormat, layer: Layer) -> Any:
    dims, layout = form.dims, form.layout
    pools = {tensor.num_pages for tensor in layer.values()}
    if len(pools) > 1:
        raise LayoutError(f"{form.name}: tensors of {sorted(pools)} pages", expected=1, actual=sorted(pools))
    element = next(tensor for key, tensor in layer.items() if key[1] != "scales").element_type
    if layout.packs_both:
        scales = 8 if layout.content is Content.TOKEN_SCALES else 0
        widths = [(dims.head_dim or 0) + (dims.value_dim or 0) + scales]
    else:
        first, second = dims.head_dim or 0, dims.head_dim_v or 0
        if layout.content is Content.PAIR and layout.arrays == 1 and first != second:
            message = (
                f"{form.name}: layout {layout.name} has keys and values of one width, stored are {first} and {second}"
            )
            raise LayoutError(message, expected=first, actual=second)
        widths = [first, second][: layout.arrays]
    arrays = new_arrays(
        layout,
        num_pages=next(iter(pools)),
        page_size=dims.page_size,
        num_heads=dims.num_heads or 1,
        widths=widths,
        dtype=element.pool_dtype,
    )
    parts = form.parts(arrays, writable=True)
    reading_pages([(part_words(layer[part.kv_role, part.component], part), part.pages) for part in parts]).run()
    return arrays[0] if layout.arrays == 1 else arrays


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Restored:
    """What was written.

    Parameters
    ----------
    num_tokens
        Positions of the sequence from the first asked for to the last, whose pages the engine now has.
    page_ids
        By group, the pages of the engine that were written, int64.
    num_bytes
        Bytes written.
    """

    num_tokens: int
    page_ids: dict[int, npt.NDArray[np.int64]]
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """One layer's part of the pool and the tensor that goes there."""

    kv_group: int
    layer: str
    part: PagePart
    source: Words
    moves: PageMoves


def write_sequence(
    destination: Mapping[str, Any],
    groups: Sequence[StoredGroup],
    *,
    formats: Mapping[str, LayerFormat],
    moves: Mapping[int, PageMoves],
    num_tokens: int,
) -> Restored:
    """Write the pages of one sequence into an engine's pool.

    Parameters
    ----------
    destination
        Each layer's writable array, or tuple of arrays.
    groups
        The stored layers.
    formats
        How each layer is laid out.
    moves
        By group, which slots go where.
    num_tokens
        What is reported.

    Returns
    -------
    Restored

    Raises
    ------
    LayoutError
        Before the first write: an array is not what was said. Later: ``.actual`` gives, by layer, the pages that were
        written or begun.
    """
    targets = [
        target
        for group in groups
        for target in _targets(destination, group, formats=formats, moves=moves[group.kv_group])
    ]
    check_disjoint(targets)
    # All parts of a layer go together, because they lie side by side; they have the same moves.
    by_layer = {name: list(parts) for name, parts in itertools.groupby(targets, key=lambda target: target.layer)}
    pages = {name: parts[0].moves.page_ids.tolist() for name, parts in by_layer.items()}
    written: dict[str, list[int]] = {}

    def noted(name: str, step: Callable[[], None]) -> None:
        written[name] = pages[name]
        step()

    copies = {
        name: parts[0].moves.copies([(target.part.pages, target.source) for target in parts])
        for name, parts in by_layer.items()
    }
    steps = [partial(noted, name, step) for name, of_layer in copies.items() for step in of_layer.steps]
    num_bytes = sum(of_layer.num_bytes for of_layer in copies.values())
    try:
        Copies(steps, num_bytes).run()
    except Exception as exc:
        message = f"writing stopped ({exc!r}); pages written or begun: {written}"
        raise LayoutError(message, expected=pages, actual=written) from exc
    return Restored(
        num_tokens=num_tokens, page_ids={group: move.page_ids for group, move in moves.items()}, num_bytes=num_bytes
    )


def _targets(
    destination: Mapping[str, Any], group: StoredGroup, *, formats: Mapping[str, LayerFormat], moves: PageMoves
) -> Iterator[_Target]:
    for name, layer in group.layers.items():
        # The pool's own type, and not the stored one, so that bits nobody named are not taken for it.
        form = replace(completed_format(formats[name], layer), element_type=formats[name].element_type)
        for part in form.parts(destination[name], writable=True):
            tensor = layer[part.kv_role, part.component]
            if part.element_type != tensor.element_type:
                message = f"{name}: element type {part.element_type}, stored is {tensor.element_type}"
                raise LayoutError(message, expected=part.element_type.name, actual=tensor.element_type.name)
            source = part_words(tensor, part)
            moves.check_bounds(part.pages.shape[0], where=name)
            own = moves
            if means_whole_pages(part.component):
                same = source.shape[1] == part.pages.shape[1]
                own = moves.of_whole_pages(same_size=same, where=f"{name}, {part.component}")
            yield _Target(group.kv_group, name, part, source, own)


def check_disjoint(targets: Sequence[_Target]) -> None:
    """Refuse memory that two layers would write to.

    Layers of one group may lie between each other, page by page or head by head, but not on each other.

    Layers of two groups may share memory, because a block belongs to one group at a time, and layers of one group where
    they are to hold the same: models in which layers share their keys and values.

    Raises
    ------
    LayoutError
        With the ids of blocks that two groups get, or the names of the layers that differ.
    """
    seen: list[_Target] = []
    places: dict[int, _Target] = {}
    for target in targets:
        for other in seen:
            if target.kv_group == other.kv_group or not np.may_share_memory(target.part.pages, other.part.pages):
                continue
            both = np.intersect1d(target.moves.block_ids, other.moves.block_ids).tolist()
            if both:
                message = (
                    f"layers {other.layer} and {target.layer} of two groups share memory and both get blocks {both}"
                )
                raise LayoutError(message, expected=[], actual=both)
        seen.append(target)
        first = places.setdefault(target.part.pages.ctypes.data, target) if target.part.pages.size else target
        if first is not target and first.kv_group == target.kv_group and not _hold_the_same(first, target):
            names = [f"{each.layer} {each.part.kv_role} {each.part.component}" for each in (first, target)]
            message = f"{' and '.join(names)} are the same memory in destination, and what is stored differs"
            raise LayoutError(message, expected="memory of its own", actual=names)

    by_strides: dict[tuple[Any, ...], list[_Target]] = {}
    for target in targets:
        pages = target.part.pages
        if pages.size:
            by_strides.setdefault((target.kv_group, pages.strides, pages.itemsize), []).append(target)
    for alike in by_strides.values():
        _check_apart(alike)


def _check_apart(alike: Sequence[_Target]) -> None:
    """Refuse layers with equal strides whose memory overlaps without being the same."""
    views = [target.part.pages for target in alike]
    # Bytes of an element are an axis too. Where an axis has one place only, its stride says nothing.
    shapes = np.array([(*view.shape, view.itemsize) for view in views], np.int64)
    used = np.flatnonzero((shapes > 1).any(axis=0))
    strides = np.array((*views[0].strides, 1), np.int64)[used]
    order = np.argsort(-strides, kind="stable")
    shapes, strides = shapes[:, used[order]], strides[order]
    starts = np.array([view.ctypes.data for view in views], np.int64)
    one, other = np.triu_indices(len(views), 1)
    apart = starts[other] - starts[one]
    overlap = (apart != 0) & _reachable(apart, strides, low=1 - shapes[other], high=shapes[one] - 1)
    if overlap.any():
        first = int(overlap.argmax())
        names = [f"{each.layer} {each.part.kv_role}" for each in (alike[one[first]], alike[other[first]])]
        message = f"{' and '.join(names)} lie on each other in destination, {int(apart[first])} bytes apart"
        raise LayoutError(message, expected="memory of its own", actual=names)


def _reachable(apart: Int64Array, strides: Int64Array, *, low: Int64Array, high: Int64Array) -> npt.NDArray[np.bool_]:
    """Say which distances are a sum of strides, each taken ``low`` to ``high`` times.

    Each stride is longer than what all shorter ones reach together, so that it is taken one of two times.
    """
    if not strides.size:
        found: npt.NDArray[np.bool_] = apart == 0
        return found
    times, step = apart // strides[0], strides[0]
    reached = np.zeros(apart.shape, np.bool_)
    for taken in (times, times + 1):
        inside = (low[:, 0] <= taken) & (taken <= high[:, 0])
        reached |= inside & _reachable(apart - taken * step, strides[1:], low=low[:, 1:], high=high[:, 1:])
    return reached


def _hold_the_same(one: _Target, other: _Target) -> bool:
    used = np.union1d(one.moves.whole_sources, np.array([piece[2] for piece in one.moves.pieces], np.int64))
    return one.source.dtype == other.source.dtype and np.array_equal(one.source[used], other.source[used])
