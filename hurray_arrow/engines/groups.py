"""What the caller says of a cache: its groups of layers with their tables, and each layer's layout, types and sizes.

Spec: snapshot format section 3, ``groups``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import numpy as np

from hurray_arrow.elements import ELEMENT_TYPES, ElementType
from hurray_arrow.elements import element_type as element_type_of
from hurray_arrow.engines.arrays import Words, as_words
from hurray_arrow.engines.layouts import Content, Layout, PageDims, PagePart, layout_of, page_parts
from hurray_arrow.engines.tables import PageTables
from hurray_arrow.errors import LayoutError
from hurray_arrow.sequences import Integers, MediaSpan

#: One value for all layers, or one per layer by its name.
PerLayer: TypeAlias = Any


class CacheFacts(TypedDict, total=False):
    """What is known of the sequences beside their lengths; see :class:`hurray_arrow.sequences.Sequences`."""

    ids: Iterable[str | None] | None
    token_ids: Iterable[Integers | None] | None
    adapter: Iterable[str | None] | None
    tenant: Iterable[str | None] | None
    media: Iterable[Iterable[MediaSpan] | None] | None


class LayerTypes(TypedDict, total=False):
    """What arrays do not say of themselves, of all layers or by layer; see :meth:`.adapter.Adapter.export_groups`."""

    element_type: PerLayer
    num_heads: PerLayer
    head_dim: PerLayer
    head_dim_v: PerLayer
    scales: PerLayer


class ExportOptions(LayerTypes, CacheFacts, total=False):
    """What every engine's export takes beside its tables; see :meth:`.adapter.Adapter.export_groups`."""

    pages: str
    copy: bool | None
    layer_indices: Mapping[str, int] | None


#: Kinds of layers whose pages hold the tokens of a sequence.
PAGED_KINDS = ("full", "sliding_window", "chunked")
_BYTE_BITS = 8


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CacheGroup:
    """Layers with the same tables.

    Parameters
    ----------
    layer_names
        The layers.
    tables
        Their pages and lengths.
    kind
        ``full``, ``sliding_window`` or ``chunked``.
    window_tokens
        Tokens of a window or chunk.

    Raises
    ------
    LayoutError
        A kind whose pages are no tokens of a sequence: recurrent state, cross-attention.
    """

    layer_names: tuple[str, ...]
    tables: PageTables
    kind: str = "full"
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        if self.kind not in PAGED_KINDS:
            message = f"group kind {self.kind!r}: its pages are no tokens of a sequence, expected one of {PAGED_KINDS}"
            raise LayoutError(message, expected=PAGED_KINDS, actual=self.kind)

    @property
    def page_size(self) -> int:
        """Slots of a page of the arrays."""
        return self.tables.page_size


def check_by_layer(arrays: Any, *, name: str) -> None:
    """Refuse a cache without names; a tensor or a list of them would be taken for one further on.

    Raises
    ------
    LayoutError
        No mapping of layer names.
    """
    if not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise LayoutError(f"{name}: {kind}, expected {{layer_name: array}}", expected="Mapping", actual=kind)


def split_groups(layer_names: Iterable[str], groups: Sequence[CacheGroup]) -> list[CacheGroup]:
    """Check that every layer is in exactly one group, and every group's layers are there.

    Raises
    ------
    LayoutError
        With the layers of the cache and those of the groups.
    """
    layers = list(layer_names)
    grouped = [name for group in groups for name in group.layer_names]
    if sorted(layers) != sorted(grouped):
        twice = sorted({name for name in grouped if grouped.count(name) > 1})
        missing, unknown = sorted(set(layers) - set(grouped)), sorted(set(grouped) - set(layers))
        message = f"groups: layers in two groups {twice}, in none {missing}, not in the cache {unknown}"
        raise LayoutError(message, expected=sorted(layers), actual=sorted(grouped))
    return list(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFormat:
    """How one layer's arrays are to be read.

    Parameters
    ----------
    name
        The layer.
    layout
        Its named layout.
    element_type
        Of the values; ``None`` takes the arrays' own.
    dims
        Sizes of its pages.
    scales
        float32 scale of keys and of values, or of a latent; empty where values need none.
    """

    name: str
    layout: Layout
    element_type: ElementType | None
    dims: PageDims
    scales: tuple[float, ...] = ()

    def parts(self, array: Any, *, writable: bool = False) -> list[PagePart]:
        """See the layer's arrays as pages; see :func:`hurray_arrow.engines.layouts.page_parts`.

        Raises
        ------
        LayoutError
            The arrays are not what the format says.
        """
        arrays = list(array) if isinstance(array, tuple | list) else [array]
        words: list[Words] = []
        # Bytes that only the engine understands need no name for their bits.
        named = ELEMENT_TYPES["uint8"] if self.element_type is None and self.layout.is_opaque else self.element_type
        element = named
        for place, each in enumerate(arrays):
            name = self.name if len(arrays) == 1 else f"{self.name}[{place}]"
            taken, found = as_words(each, element_type=named, name=name, writable=writable)
            if element not in (None, found):
                message = f"{name}: {found}, the layer's first array has {element}"
                raise LayoutError(message, expected=str(element), actual=str(found))
            element = found
            words.append(taken)
        if element is None:
            raise LayoutError(f"{self.name}: no array", expected=self.layout.arrays, actual=0)
        self.check_scales(element)
        return page_parts(words, self.layout, self.dims, element_type=element, name=self.name)

    def scale_of(self, part: PagePart) -> float | None:
        """Give the scale of a part; ``None`` where its values need none."""
        if not self.scales or part.component != "values":
            return None
        return self.scales[1 if part.kv_role == "value" else 0]

    def check_scales(self, element: ElementType) -> None:
        """Refuse values of 8 bits without their scales, and scales for what has none.

        Raises
        ------
        LayoutError
            With the number of scales that is expected.
        """
        roles = 1 if self.layout.content is Content.LATENT else 2
        has_none = self.layout.is_opaque or self.layout.content is Content.TOKEN_SCALES
        expected = 0 if has_none else roles
        needed = element.bits == _BYTE_BITS and not has_none
        if len(self.scales) != expected and (needed or self.scales):
            what = "one scale" if roles == 1 else "(k_scale, v_scale)"
            message = (
                f"{self.name}: layout {self.layout.name} has no scalar scales, {len(self.scales)} were given"
                if has_none
                else f"{self.name}: {len(self.scales)} scales, expected scales={what} for values of 8 bits"
            )
            raise LayoutError(message, expected=expected, actual=len(self.scales))


def layer_formats(
    layer_names: Iterable[str],
    *,
    layouts: Mapping[str, Layout],
    refused: Mapping[str, str],
    layout: PerLayer,
    page_sizes: Mapping[str, int],
    element_type: PerLayer = None,
    num_heads: PerLayer = None,
    head_dim: PerLayer = None,
    head_dim_v: PerLayer = None,
    scales: PerLayer = None,
) -> dict[str, LayerFormat]:
    """Put together what the caller says of each layer.

    Parameters
    ----------
    layer_names
        The layers.
    layouts, refused
        The engine's layouts, and the reasons against those that are not handled.
    layout, element_type, num_heads, head_dim, head_dim_v, scales
        One value for all layers, or a mapping by layer name.
    page_sizes
        Slots of a page, by layer.

    Returns
    -------
    dict of LayerFormat

    Raises
    ------
    LayoutError
        A name that is no layout, or a layer without a value.
    """
    formats = {}
    for name in layer_names:
        given = _of_layer(element_type, name, "element_type")
        formats[name] = LayerFormat(
            name=name,
            layout=layout_of(layouts, _of_layer(layout, name, "layout"), refused=refused),
            element_type=None if given is None else element_type_of(given),
            dims=PageDims(
                page_size=page_sizes[name],
                num_heads=_of_layer(num_heads, name, "num_heads"),
                head_dim=_of_layer(head_dim, name, "head_dim"),
                head_dim_v=_of_layer(head_dim_v, name, "head_dim_v"),
            ),
            scales=_scales(_of_layer(scales, name, "scales")),
        )
    return formats


def _of_layer(value: PerLayer, name: str, what: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name not in value:
        raise LayoutError(f"{what}: nothing for layer {name!r}", expected=name, actual=sorted(value))
    return value[name]


def _scales(value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    entries = value if isinstance(value, tuple | list) else [value]
    # Each may be a number or an array of one, such as an engine's parameter.
    with np.errstate(over="ignore"):
        return tuple(float(np.float32(float(entry))) for entry in entries)
