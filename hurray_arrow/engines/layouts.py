"""Named memory layouts of engines' caches, and an array seen as the pages of key and value that lie in it.

A layout is always said and never guessed: with 2 heads, or with as many heads as slots, two layouts have equal shapes,
and equal byte counts hide a mismatch. A name spells the axes in **memory order**, outermost first:

======  ==============================================================
letter  axis
======  ==============================================================
``B``   pages ("blocks")
``N``   slots of a page, one token each
``H``   key-value heads
``D``   elements of a head
``C``   content of a slot and head: keys and values packed, a latent, a record
``2``   key, value
``L``   layers; a layer's own array does not have this axis
``S``   token slots, ``B`` and ``N`` in one axis (in shapes only)
``1``   an axis of size 1 (in shapes only)
======  ==============================================================

A suffix, as in ``BHNC-cpu``, names other bytes under the same axes. The order of an array's *shape* is the engine's
habit and stands beside the name in each engine's table; memory order is read from the strides, where axes of size 1
tie, and has to be the named one. Nothing here copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ELEMENT_TYPES, ElementType
from hurray_arrow.engines.arrays import Words
from hurray_arrow.engines.axes import NamedAxes
from hurray_arrow.errors import LayoutError

#: Bytes of one float32 scale, of which a slot and head has one for its keys and one for its values.
_SCALE_BYTES = 4
_BYTE_BITS = 8
_VALUES = "values"


class Content(StrEnum):
    """What lies under an array's last axes."""

    PAIR = "pair"  # keys and values under axis 2, or in two arrays
    PACKED = "packed"  # each row of C: keys, then values
    CPU = "cpu"  # each head of a page: keys as [D, N], then values as [N, D]
    CPU_ROWS = "cpu_rows"  # each head of a page: keys as [N, D], then values as [N, D]
    TOKEN_SCALES = "token_scales"  # noqa: S105 - each row of C: keys, their float32 scale, values, their scale
    LATENT = "latent"  # one fused row without heads; two arrays are its two parts
    RECORD = "record"  # bytes of a slot that only the engine understands
    PAGE = "page"  # bytes of a page that only the engine understands


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One named layout of an engine.

    Parameters
    ----------
    name
        The axes in memory order, and a suffix where the bytes differ.
    shapes
        The axes of the array's shape as the engine shows it; several where it shows the same memory with other axes.
    content
        What lies under the axes.
    arrays
        1, or 2 for engines that keep a pair of arrays per layer.
    component
        The component that records and pages are stored under.
    record_bytes
        Bytes of a slot of a record or page; ``None`` for any.
    """

    name: str
    shapes: tuple[str, ...]
    content: Content = Content.PAIR
    arrays: int = 1
    component: str = _VALUES
    record_bytes: int | None = None

    @property
    def memory(self) -> str:
        """The axes of one layer's array in memory order, without the suffix and without layers."""
        return self.name.partition("-")[0].replace("L", "")

    @property
    def is_opaque(self) -> bool:
        """Whether the bytes are carried without being understood."""
        return self.content in (Content.RECORD, Content.PAGE)

    @property
    def packs_both(self) -> bool:
        """Whether keys and values share C."""
        return self.content in (Content.PACKED, Content.CPU, Content.CPU_ROWS, Content.TOKEN_SCALES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDims:
    """What the caller says of a layer's pages; each is checked against the arrays.

    Parameters
    ----------
    page_size
        Slots of a page.
    num_heads
        Key-value heads of this rank; ``None`` takes the axis as it is.
    head_dim, head_dim_v
        Elements of a key head and of a value head. A layout that packs both in C needs ``head_dim``; ``head_dim_v``
        is ``head_dim`` unless said. For a latent, ``head_dim`` is its first part and ``head_dim_v`` its second, or
        ``None`` where it is one array.
    """

    page_size: int
    num_heads: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None

    @property
    def value_dim(self) -> int | None:
        """Elements of a value head."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PagePart:
    """A part of a layer's array that belongs to one tensor.

    Parameters
    ----------
    kv_role
        ``key``, ``value`` or ``fused``.
    component
        ``values``, ``scales``, ``record.<name>`` or ``page.<name>``.
    element_type
        Of the tensor.
    pages
        ``[num_pages, page_size, num_heads, words]``: strided view of the engine's memory, unsigned words.
    first_word, num_words
        Where the part lies in the tensor's last axis, and how long that is, in words.
    """

    kv_role: str
    component: str
    element_type: ElementType
    pages: Words
    first_word: int
    num_words: int


def layout_of(layouts: Mapping[str, Layout], name: str, *, refused: Mapping[str, str] | None = None) -> Layout:
    """Give an engine's layout by its name.

    Raises
    ------
    LayoutError
        The engine has no such layout, or has it and it is not handled; ``.expected`` lists the names.
    """
    if name in layouts:
        return layouts[name]
    reason = (refused or {}).get(name, "no such layout")
    message = f"layout {name!r}: {reason}, expected one of {', '.join(layouts)}"
    raise LayoutError(message, expected=list(layouts), actual=name)


def page_parts(
    arrays: Sequence[Words], layout: Layout, dims: PageDims, *, element_type: ElementType, name: str
) -> list[PagePart]:
    """See a layer's arrays as pages, after every axis and the memory order were checked.

    Parameters
    ----------
    arrays
        One strided array of words, or two where the layout has pairs.
    layout
        The named layout.
    dims
        What the caller says of the pages.
    element_type
        Of the values; uint8 for opaque layouts.
    name
        The layer, for messages.

    Returns
    -------
    list of PagePart
        Views of the arrays' memory, writable where these are. A latent in two arrays gives two parts of one tensor.

    Raises
    ------
    LayoutError
        With the expected and the actual size of an axis, order, or number.
    """
    if len(arrays) != layout.arrays:
        message = f"{name}: {len(arrays)} arrays, layout {layout.name} has {layout.arrays}"
        raise LayoutError(message, expected=layout.arrays, actual=len(arrays))
    _check_content(layout, dims, element_type, name)
    where = f"{name}, layout {layout.name}"
    views = [
        NamedAxes.of(
            array,
            shapes=layout.shapes,
            memory=layout.memory,
            sizes=_sizes(layout, dims, place),
            where=where,
        )
        for place, array in enumerate(arrays)
    ]
    for axis in "BH":
        sizes = [view.size(axis) for view in views]
        if sizes[0] != sizes[-1]:
            message = f"{where}: axis {axis} has {sizes[0]} in the first array and {sizes[-1]} in the second"
            raise LayoutError(message, expected=sizes[0], actual=sizes[-1])
    return _CONTENTS[layout.content](views, layout, dims, element_type)


def new_arrays(
    layout: Layout, *, num_pages: int, page_size: int, num_heads: int, widths: Sequence[int], dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], ...]:
    """Make a layer's arrays in memory of their own, zeroed.

    Parameters
    ----------
    layout
        The named layout; of its shapes the first is made.
    num_pages, page_size, num_heads
        Sizes of the axes.
    widths
        Size of the innermost axis (D or C) of each array.
    dtype
        Of the arrays.

    Returns
    -------
    tuple of numpy.ndarray
        New arrays, shaped as the engine shows them, their memory in the order of the name.
    """
    arrays = []
    for width in widths:
        sizes = {"B": num_pages, "N": page_size, "H": num_heads, "D": width, "C": width, "2": 2, "1": 1}
        axes = layout.shapes[0].replace("S", "BN")
        memory = np.zeros([sizes[axis] for axis in layout.memory], dtype)
        array = memory.transpose([layout.memory.index(axis) for axis in axes if axis != "1"])
        array = array[tuple(np.newaxis if axis == "1" else slice(None) for axis in axes)]
        if "S" in layout.shapes[0]:
            at = layout.shapes[0].index("S")
            array = array.reshape(*array.shape[:at], num_pages * page_size, *array.shape[at + 2 :])
        arrays.append(array)
    return tuple(arrays)


def _sizes(layout: Layout, dims: PageDims, place: int) -> dict[str, int | None]:
    """Give the size that each axis has to have; ``None`` where the caller did not say."""
    width = dims.head_dim if place == 0 else dims.value_dim
    content = dims.head_dim if place == 0 else dims.head_dim_v
    if layout.packs_both:
        content = (dims.head_dim or 0) + (dims.value_dim or 0)
    if layout.content is Content.TOKEN_SCALES:
        content = (content or 0) + 2 * _SCALE_BYTES
    if layout.is_opaque:
        content = layout.record_bytes
    return {"N": dims.page_size, "H": dims.num_heads, "D": width, "C": content, "2": 2, "1": 1}


def _check_content(layout: Layout, dims: PageDims, element_type: ElementType, name: str) -> None:
    where = f"{name}, layout {layout.name}"
    if dims.page_size < 1:
        raise LayoutError(f"{where}: page_size {dims.page_size}, expected 1 or more", expected=1, actual=dims.page_size)
    if layout.packs_both and dims.head_dim is None:
        message = f"{where}: keys and values are packed in C, expected head_dim= to part them"
        raise LayoutError(message, expected="head_dim=", actual=None)
    if layout.packs_both and dims.head_dim_v == 0:
        message = f"{where}: head_dim_v 0 is a latent without heads, expected layout BNC"
        raise LayoutError(message, expected="BNC", actual=layout.name)
    if layout.content is Content.LATENT and dims.num_heads not in (None, 1):
        message = f"{where}: a latent has no heads, expected num_heads 1"
        raise LayoutError(message, expected=1, actual=dims.num_heads)
    if layout.content is Content.LATENT and element_type.bits == _BYTE_BITS and dims.head_dim is None:
        message = f"{where}: bytes may be records with scales inside, expected head_dim= of a plain latent"
        raise LayoutError(message, expected="head_dim=", actual=None)
    if layout.content is Content.TOKEN_SCALES and element_type.bits != _BYTE_BITS:
        message = f"{where}: bytes and their scales, expected an element type of 8 bits"
        raise LayoutError(message, expected=_BYTE_BITS, actual=element_type.bits)
    if layout.is_opaque and element_type.name != "uint8":
        message = f"{where}: bytes that only the engine understands, expected uint8"
        raise LayoutError(message, expected="uint8", actual=element_type.name)


# -- contents ----------------------------------------------------------------------------------------------------------

Views = Sequence[NamedAxes]


def _part(kv_role: str, pages: Words, element_type: ElementType, component: str = _VALUES) -> PagePart:
    return PagePart(
        kv_role=kv_role,
        component=component,
        element_type=element_type,
        pages=pages,
        first_word=0,
        num_words=pages.shape[-1],
    )


def _pair(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    del dims
    pages = [view.pages() for view in views] if layout.arrays > 1 else [views[0].pages(role=role) for role in (0, 1)]
    return [_part(role, view, element_type) for role, view in zip(("key", "value"), pages, strict=True)]


def _packed(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    del layout
    width = dims.head_dim or 0
    return [
        _part("key", views[0].pages(C=slice(0, width)), element_type),
        _part("value", views[0].pages(C=slice(width, None)), element_type),
    ]


def _token_scales(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    del layout
    views[0].check_dense("C")
    parts, at = [], 0
    for role, width in (("key", dims.head_dim or 0), ("value", dims.value_dim or 0)):
        end = at + width
        parts.append(_part(role, views[0].pages(C=slice(at, end)), element_type))
        scales = views[0].pages(C=slice(end, end + _SCALE_BYTES))
        parts.append(_part(role, scales, ELEMENT_TYPES["float32"], component="scales"))
        at = end + _SCALE_BYTES
    return parts


def _cpu(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    view = views[0]
    view.check_dense("C", "N")
    keys, values, slots = dims.head_dim or 0, dims.value_dim or 0, dims.page_size
    slot_words, step_words = (1, slots) if layout.content is Content.CPU else (keys, 1)
    key = view.inside_heads(first_word=0, words=keys, slot_words=slot_words, step_words=step_words)
    value = view.inside_heads(first_word=slots * keys, words=values, slot_words=values, step_words=1)
    return [_part("key", key, element_type), _part("value", value, element_type)]


def _latent(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    del layout, dims
    total = sum(view.size("C") for view in views)
    parts, first = [], 0
    for view in views:
        part = _part("fused", view.pages(), element_type)
        parts.append(replace(part, first_word=first, num_words=total))
        first += view.size("C")
    return parts


def _opaque(views: Views, layout: Layout, dims: PageDims, element_type: ElementType) -> list[PagePart]:
    del dims
    views[0].check_dense("C")
    return [_part("fused", views[0].pages(), element_type, component=layout.component)]


_CONTENTS: dict[Content, Callable[[Views, Layout, PageDims, ElementType], list[PagePart]]] = {
    Content.PAIR: _pair,
    Content.PACKED: _packed,
    Content.CPU: _cpu,
    Content.CPU_ROWS: _cpu,
    Content.TOKEN_SCALES: _token_scales,
    Content.LATENT: _latent,
    Content.RECORD: _opaque,
    Content.PAGE: _opaque,
}
