"""Stored tensors, sorted by layer and group, as what an engine's layout needs of them.

Spec: snapshot format section 2, tensor key and companions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hurray_arrow.elements import ElementType
from hurray_arrow.engines.arrays import Words
from hurray_arrow.engines.groups import LayerFormat
from hurray_arrow.engines.layouts import Content, Layout, PageDims, PagePart
from hurray_arrow.errors import LayoutError, UnsupportedError
from hurray_arrow.schemes import PerTensor
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import unlike_tables

_VALUES = "values"
#: Tensors of one layer by role and component.
Layer = dict[tuple[str, str], BlockPagedTensor]


@dataclass(frozen=True, slots=True, eq=False)
class StoredGroup:
    """The layers of one kv_group.

    Parameters
    ----------
    kv_group
        Its number.
    layers
        Tensors of each layer by role and component.
    """

    kv_group: int
    layers: dict[str, Layer]

    @property
    def any_tensor(self) -> BlockPagedTensor:
        """A tensor of the group; all have the same tables and sequences."""
        return next(iter(next(iter(self.layers.values())).values()))


def stored_groups(tensors: Iterable[BlockPagedTensor]) -> list[StoredGroup]:
    """Sort tensors by group and layer.

    Parameters
    ----------
    tensors
        In any order. A tensor without ``kv_group`` goes to the group with its tables; one without ``layer_name`` is
        called by its ``layer_index``.

    Returns
    -------
    list of StoredGroup
        By group number.

    Raises
    ------
    LayoutError
        Two tensors with one key, or tensors of one group with different tables.
    """
    groups: dict[int, StoredGroup] = {}
    for tensor in tensors:
        number = tensor.kv_group
        if number is None:
            alike = (group.kv_group for group in groups.values() if not any(unlike_tables(group.any_tensor, tensor)))
            number = next(alike, max(groups, default=-1) + 1)
        group = groups.setdefault(number, StoredGroup(number, {}))
        # Other lengths or positions: slots that one of them does not store would be written from its stale bytes.
        if group.layers and any(unlike_tables(group.any_tensor, tensor)):
            message = f"{tensor!r}: tables or sequences differ from those of kv_group {number}"
            raise LayoutError(message, expected=number, actual=number)
        name = layer_name(tensor)
        key = (tensor.kv_role, tensor.component)
        if key in group.layers.setdefault(name, {}):
            raise LayoutError(f"layer {name!r} has two tensors {key}", expected=1, actual=2)
        group.layers[name][key] = tensor
    named = [name for group in groups.values() for name in group.layers]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise LayoutError(f"layers in two groups: {twice}", expected=1, actual=twice)
    return [groups[number] for number in sorted(groups)]


def layer_name(tensor: BlockPagedTensor) -> str:
    """Give the name that a tensor's layer goes by."""
    return f"{tensor.layer_index}" if tensor.layer_name is None else tensor.layer_name


def completed_format(form: LayerFormat, layer: Layer, *, engine_scales: bool = True) -> LayerFormat:
    """Fill in what the stored tensors say of a layer, and check what the caller says against them.

    Parameters
    ----------
    form
        What the caller says; sizes and types that are not said are taken from the tensors.
    layer
        The layer's tensors.
    engine_scales
        An engine with scales of its own is going to read the values: those in ``form`` have to be the stored ones.
        Otherwise the stored ones are taken where ``form`` has none.

    Returns
    -------
    LayerFormat
        With element type and dims of the tensors.

    Raises
    ------
    LayoutError
        Another element type, size or scale; a tensor that the layout needs or has no place for.
    UnsupportedError
        A quantization that no engine keeps in its pages.
    """
    layout, name = form.layout, form.name
    expected = needed_tensors(layout)
    if set(layer) != expected:
        message = f"{name}: layout {layout.name} needs {sorted(expected)}, stored are {sorted(layer)}"
        raise LayoutError(message, expected=sorted(expected), actual=sorted(layer))
    first = layer[min(expected, key=lambda key: (key[1] != _VALUES, key[0]))]
    element = _element_type(form, layer, first.element_type)
    heads = {tensor.num_heads for tensor in layer.values()}
    if len(heads) > 1:
        raise LayoutError(f"{name}: tensors with {sorted(heads)} heads", expected=1, actual=sorted(heads))
    stored = _stored_dims(layout, layer, form.dims)
    for what in ("num_heads", "head_dim", "head_dim_v"):
        said, found = getattr(form.dims, what), getattr(stored, what)
        if said is not None and found is not None and said != found:
            message = f"{name}: {what} {said}, stored are {found}"
            raise LayoutError(message, expected=said, actual=found)
    scales = _stored_scales(form, layer)
    if scales != form.scales and (engine_scales or form.scales):
        message = f"{name}: scales {form.scales or None}, stored are {scales or None}"
        raise LayoutError(message, expected=form.scales, actual=scales)
    return replace(form, element_type=element, dims=stored, scales=scales)


def needed_tensors(layout: Layout) -> set[tuple[str, str]]:
    """Give role and component of each tensor that a layer of this layout is made of."""
    if layout.is_opaque:
        return {("fused", layout.component)}
    if layout.content is Content.LATENT:
        return {("fused", _VALUES)}
    pair = {("key", _VALUES), ("value", _VALUES)}
    if layout.content is Content.TOKEN_SCALES:
        pair |= {("key", "scales"), ("value", "scales")}
    return pair


def part_words(tensor: BlockPagedTensor, part: PagePart) -> Words:
    """See a stored tensor's pages as what belongs into a part of an engine's array.

    Returns
    -------
    numpy.ndarray
        ``[num_pages, page_size, num_heads, words]``, a view of the tensor's pool.
    """
    words = tensor.page_pool.view(part.pages.dtype)
    return words[..., part.first_word : part.first_word + part.pages.shape[-1]]


def _element_type(form: LayerFormat, layer: Layer, stored: ElementType) -> ElementType:
    for (_, component), tensor in layer.items():
        if tensor.element_type.is_packed:
            raise UnsupportedError(f"{form.name}: {tensor.element_type} pages are packed below a byte")
        if component == _VALUES and tensor.element_type != stored:
            message = f"{form.name}: keys and values of {stored} and {tensor.element_type}"
            raise LayoutError(message, expected=stored.name, actual=tensor.element_type.name)
        if component == "scales" and (tensor.element_type.name, tensor.head_dim) != ("float32", 1):
            message = f"{form.name}: scales {tensor.element_type} of {tensor.head_dim}, expected one float32"
            raise LayoutError(message, expected="float32", actual=tensor.element_type.name)
    if form.element_type not in (None, stored):
        message = f"{form.name}: element type {form.element_type}, stored is {stored}"
        raise LayoutError(message, expected=str(form.element_type), actual=stored.name)
    return stored


def _stored_dims(layout: Layout, layer: Layer, said: PageDims) -> PageDims:
    tensor = next(iter(layer.values()))
    dims = PageDims(page_size=said.page_size, num_heads=tensor.num_heads)
    if ("key", _VALUES) in layer:
        widths = layer["key", _VALUES].head_dim, layer["value", _VALUES].head_dim
        return replace(dims, head_dim=widths[0], head_dim_v=widths[1])
    if layout.arrays == 1:
        return replace(dims, head_dim=tensor.head_dim)
    if said.head_dim is None or not 0 < said.head_dim < tensor.head_dim:
        message = (
            f"layout {layout.name} keeps a latent of {tensor.head_dim} in two arrays, expected head_dim= of the first"
        )
        raise LayoutError(message, expected=tensor.head_dim, actual=said.head_dim)
    return replace(dims, head_dim=said.head_dim, head_dim_v=tensor.head_dim - said.head_dim)


def _stored_scales(form: LayerFormat, layer: Layer) -> tuple[float, ...]:
    """Give the scalar scales of the stored values; every other scheme has no place in an engine's pages."""
    scales = []
    for (role, component), tensor in sorted(layer.items()):
        quantization = tensor.quantization
        if quantization is None:
            continue
        has_place = component == _VALUES and form.layout.content is not Content.TOKEN_SCALES
        if not (has_place and isinstance(quantization, PerTensor) and quantization.zero_point == 0):
            message = (
                f"{form.name}: {quantization.scheme} of {role} {component} has no place in layout {form.layout.name}"
            )
            raise UnsupportedError(message)
        scales.append(quantization.scale)
    return tuple(scales)
