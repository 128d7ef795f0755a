"""LMCache's host chunks, **from documentation**: nothing here was run against LMCache.

LMCache cuts a sequence into chunks of tokens and keeps each as one dense array for all layers; ``T`` is the tokens of
a chunk and ``C`` is heads × head_dim in one axis:

========  ================  ===========================
name      shape             LMCache's name
========  ================  ===========================
``2LTC``  ``[2, L, T, C]``  ``KV_2LTD``
``T2C``   ``[T, 2, C]``     ``KV_T2D``, one layer
``2TC``   ``[2, T, C]``     ``KV_2TD``, one layer
``1LTC``  ``[1, L, T, C]``  ``KV_MLA_FMT``, latents
========  ================  ===========================

These are no pools: there is nothing to restore into, and the chunks of :func:`import_cache` are new. LMCache's view of
an engine's own pool is that engine's layout; use its adapter.

Read from LMCache 0.5.6 (``memory_management``, ``gpu_connector/kv_format``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType
from hurray_arrow.engines.arrays import Words, as_words
from hurray_arrow.engines.groups import CacheFacts, LayerFormat, PerLayer, layer_formats
from hurray_arrow.engines.layouts import Content, Layout, layout_of
from hurray_arrow.engines.restore_plan import check_belongs, sequence_numbers
from hurray_arrow.engines.stored_layers import StoredGroup, completed_format, layer_name, needed_tensors, stored_groups
from hurray_arrow.engines.tables import check_page_size
from hurray_arrow.engines.token_rows import TokenRows, page_rows
from hurray_arrow.errors import LayoutError
from hurray_arrow.schemes import PerTensor
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor

#: Every layout by name, which spells the axes of a chunk.
LAYOUTS: dict[str, Layout] = {
    name: Layout(name=name, shapes=(name,), content=Content.LATENT if "1" in name else Content.PAIR)
    for name in ("2LTC", "T2C", "2TC", "1LTC")
}
#: The order in which all layouts are handled: role, layer, token, content.
_ORDER = "2LTC"


def export_cache(
    chunks: Sequence[Sequence[Any]],
    *,
    layout: str,
    layer_names: Sequence[str],
    num_heads: int,
    page_size: int,
    element_type: Any = None,
    scales: PerLayer = None,
    **facts: Unpack[CacheFacts],
) -> list[BlockPagedTensor]:
    """Put the chunks of sequences into pages.

    Parameters
    ----------
    chunks
        For each sequence its chunks in order; only a sequence's last one may be shorter than the others.
    layout
        One of ``LAYOUTS``.
    layer_names
        The layers in the order of axis L; one for the layouts of one layer.
    num_heads
        Heads in C; 1 for latents.
    page_size
        Tokens of a page of the tensors; LMCache has none.
    element_type
        Type of the values; needed where the arrays hold integers.
    scales
        ``(k_scale, v_scale)`` of 8-bit values, one number for a latent, for all layers or by layer: the engine keeps
        them outside the chunks.
    **facts
        ``ids``, ``token_ids``, ``adapter``, ``tenant``, ``media`` of the sequences.

    Returns
    -------
    list of BlockPagedTensor
        New memory; pages in the order of the sequences, slots behind a sequence's end zero.

    Raises
    ------
    LayoutError
        Chunks that are not of this layout, or not of one size; values of 8 bits without scales.

    Examples
    --------
    >>> from hurray_arrow.engines import lmcache
    >>> chunks = [[np.zeros((2, 1, tokens, 6), np.float16) for tokens in (4, 3)]]  # [2, L, T, C] each
    >>> tensors = lmcache.export_cache(chunks, layout="2LTC", layer_names=["layers.0"], num_heads=2, page_size=4)
    >>> [(tensor.kv_role, tensor.page_pool.shape) for tensor in tensors]
    [('key', (2, 4, 2, 3)), ('value', (2, 4, 2, 3))]
    """
    check_page_size(page_size)
    layout_of(LAYOUTS, layout)
    rows, element = _alike(
        [_sequence(parts, layout, layer_names, f"chunks[{s}]", element_type) for s, parts in enumerate(chunks)]
    )
    roles, _, _, content = rows[0].shape
    if num_heads < 1 or content % num_heads:
        message = f"axis C has {content}, expected a multiple of num_heads {num_heads}"
        raise LayoutError(message, expected=num_heads, actual=content)
    formats = _formats(layer_names, layout, page_size=page_size, scales=scales)
    for form in formats.values():
        form.check_scales(element)
    lengths = [row.shape[2] for row in rows]
    names = ("fused",) if roles == 1 else ("key", "value")
    places = [(layer, role) for layer in range(len(layer_names)) for role in range(roles)]
    paged = page_rows(
        [_token_rows(rows, place, num_heads=num_heads) for place in places],
        lengths=lengths,
        first_positions=[0] * len(rows),
        page_size=page_size,
    )
    sequences = Sequences(seq_lens=lengths, **facts)
    tensors = []
    for (layer, role), pool in zip(places, paged.pools, strict=True):
        name = layer_names[layer]
        tensors.append(
            BlockPagedTensor.from_arrays(
                pool.view(element.pool_dtype),
                block_tables=paged.block_tables,
                kv_role=names[role],
                element_type=element,
                quantization=_scheme(formats[name], role),
                layer_index=layer,
                layer_name=name,
                kv_group=0,
                sequences=sequences,
            )
        )
    return tensors


def _alike(taken: Sequence[tuple[Words, ElementType | None]]) -> tuple[list[Words], ElementType]:
    """Give the arrays of sequences, which have one element type and size; one without chunks gets them from others."""
    first, element = next(((words, known) for words, known in taken if known is not None), (None, None))
    if first is None or element is None:
        raise LayoutError("chunks: none, so that no size is known", expected=1, actual=0)
    content = first.shape[3]
    for s, (words, known) in enumerate(taken):
        if known is not None and (known != element or words.shape[3] != content):
            message = f"chunks[{s}]: {known} of {words.shape[3]}, expected {element} of {content}"
            raise LayoutError(message, expected=[str(element), content], actual=[str(known), words.shape[3]])
    return [first[:, :, :0] if known is None else words for words, known in taken], element


def _scheme(form: LayerFormat, role: int) -> PerTensor | None:
    scale = (*form.scales, None, None)[role]
    return None if scale is None else PerTensor(scale)


def _token_rows(rows: Sequence[Words], place: tuple[int, int], *, num_heads: int) -> TokenRows:
    """Give the tokens of a sequence of one layer and role, ``[tokens, num_heads, head_dim]``."""
    layer, role = place

    def tokens_of(s: int) -> Words:
        tokens: Words = rows[s][role, layer]
        return tokens.reshape(len(tokens), num_heads, tokens.shape[1] // num_heads)

    return tokens_of


def import_cache(
    tensors: Iterable[BlockPagedTensor],
    *,
    layout: str,
    sequence: int | str,
    chunk_tokens: int,
    expect: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None = None,
    scales: PerLayer = None,
) -> list[npt.NDArray[Any]]:
    """Cut a stored sequence into chunks.

    Parameters
    ----------
    tensors
        All layers that are wanted, of one group; axis L is in the order of their layer_index.
    layout
        One of ``LAYOUTS``.
    sequence
        Number or id of the sequence.
    chunk_tokens
        Tokens of a chunk; the last one may be shorter.
    expect
        What the cache has to belong to; ``None`` only where that does not matter.
    metadata
        The snapshot's metadata.
    scales
        As of :func:`export_cache`: what is given has to be what is stored.

    Returns
    -------
    list of numpy.ndarray
        New arrays, dense in the layout's order.

    Raises
    ------
    SnapshotMismatchError
        Not what is expected.
    LayoutError
        Several groups, absent pages, roles and layers that the layout has no place for, keys and values of different
        types or sizes, other scales.
    UnsupportedError
        A scheme that no chunk has a place for; values narrower than a byte.
    UnknownSequenceLengthError
        Nobody recorded the length.
    """
    axes = layout_of(LAYOUTS, layout).name
    groups = stored_groups(tensors)
    if len(groups) != 1 or chunk_tokens < 1:
        message = f"{len(groups)} groups in chunks of {chunk_tokens}, expected one group and 1 token or more"
        raise LayoutError(message, expected=1, actual=len(groups))
    numbers = sequence_numbers(groups, sequence)
    check_belongs(groups, numbers, expect, metadata)
    group, seq = groups[0], numbers[groups[0].kv_group]
    absent = group.any_tensor.sequences.page_positions
    if absent is not None and absent[seq] is not None:
        raise LayoutError("pages are absent inside the sequence", expected=None, actual="page_positions")
    layers = sorted(group.layers.values(), key=lambda layer: next(iter(layer.values())).layer_index or 0)
    roles = sorted(needed_tensors(LAYOUTS[layout]))
    _check_alike(group, layout, scales)
    if "L" not in axes and len(layers) != 1:
        raise LayoutError(f"layout {layout} is of one layer, stored are {len(layers)}", expected=1, actual=len(layers))
    whole = np.stack([np.stack([_rows(layer[role].gather(seq)) for layer in layers]) for role in roles])
    order = [_ORDER.index(axis.replace("1", "2")) for axis in axes]
    chunks = []
    for start in range(0, whole.shape[2], chunk_tokens):
        part = whole[:, :, start : start + chunk_tokens]
        part = part if "L" in axes else part[:, 0]
        kept = [place if "L" in axes else place - (place > 1) for place in order]
        chunks.append(np.ascontiguousarray(part.transpose(kept)))
    return chunks


def _rows(values: Words) -> Words:
    """See tokens ``[tokens, heads, head_dim]`` as ``[tokens, C]``; there may be none."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _formats(names: Iterable[str], layout: str, *, page_size: int, scales: PerLayer) -> dict[str, LayerFormat]:
    """Put together what the caller says of each layer."""
    names = list(names)
    sizes = dict.fromkeys(names, page_size)
    return layer_formats(names, layouts=LAYOUTS, refused={}, layout=layout, page_sizes=sizes, scales=scales)


def _check_alike(group: StoredGroup, layout: str, scales: PerLayer) -> None:
    """Refuse tensors whose values no array holds side by side, or whose scales a chunk has no place for."""
    formats = _formats(group.layers, layout, page_size=group.any_tensor.page_size, scales=scales)
    first: BlockPagedTensor | None = None
    for name, layer in group.layers.items():
        completed_format(formats[name], layer, engine_scales=False)
        for tensor in layer.values():
            first = first or tensor
            for what in ("element_type", "num_heads", "head_dim"):
                expected, found = getattr(first, what), getattr(tensor, what)
                if found != expected:
                    message = f"{name}, {tensor.kv_role}: {what} {found}, {layer_name(first)} has {expected}"
                    raise LayoutError(message, expected=str(expected), actual=str(found))


def _sequence(
    parts: Sequence[Any], layout: str, layer_names: Sequence[str], where: str, element_type: Any
) -> tuple[Words, ElementType | None]:
    """Give a sequence's chunks as one array ``[roles, L, tokens, C]`` of words."""
    axes = layout
    sizes = {"2": 2, "1": 1, "L": len(layer_names)}
    rows: list[Words] = []
    element: ElementType | None = None
    if "L" not in axes and len(layer_names) != 1:
        message = f"layout {layout} is of one layer, {len(layer_names)} are named"
        raise LayoutError(message, expected=1, actual=len(layer_names))
    for place, part in enumerate(parts):
        name = f"{where}[{place}]"
        words, found = as_words(part, element_type=element_type, name=name)
        if words.ndim != len(axes):
            message = f"{name}: {words.ndim} axes {words.shape}, expected [{', '.join(axes)}]"
            raise LayoutError(message, expected=len(axes), actual=words.ndim)
        for at, axis in enumerate(axes):
            if axis in sizes and words.shape[at] != sizes[axis]:
                message = f"{name}: axis {at} ({axis}) has {words.shape[at]}, expected {sizes[axis]}"
                raise LayoutError(message, expected=sizes[axis], actual=words.shape[at])
        present = axes.replace("1", "2")
        row = words.transpose([present.index(axis) for axis in _ORDER if axis in present])
        row = row if "L" in axes else row[:, np.newaxis]
        if rows and (found != element or row.shape[3] != rows[0].shape[3]):
            message = f"{name}: {found} of {row.shape[3]}, the first chunk has {element} of {rows[0].shape[3]}"
            raise LayoutError(message, expected=[str(element), rows[0].shape[3]], actual=[str(found), row.shape[3]])
        tokens = [each.shape[2] for each in (*rows, row)]
        if len(set(tokens[:-1])) > 1 or tokens[-1] > tokens[0]:
            message = f"{name}: chunks of {tokens} tokens, expected equal ones but the last"
            raise LayoutError(message, expected=tokens[0], actual=tokens)
        rows.append(row)
        element = found
    return (np.concatenate(rows, axis=2) if rows else np.empty((2, len(layer_names), 0, 0), np.uint8)), element
