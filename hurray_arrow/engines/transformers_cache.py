"""The cache classes of transformers: what their layers hold, how long they are, where a block's pages lie.

Written against transformers 5.24. A layer of a class that is not named here is refused, because it may hold more than
keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hurray_arrow.engines.arrays import Int64Array
from hurray_arrow.errors import LayoutError, MissingDependencyError, UnsupportedError

#: Layers of plain keys and values.
_PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer")
#: Layers that use another layer's cache, or none.
_EMPTY = "DummyLayer"


@dataclass(frozen=True, slots=True, eq=False)
class CacheLayer:
    """A layer that holds something: its rectangles, and which columns of the whole cache these are.

    Parameters
    ----------
    index
        Number of the layer in the model.
    arrays
        Keys and values, torch ``[batch, heads, columns or more, head_dim]``.
    window
        How many columns it looks at; ``None`` for all.
    first_column, num_columns
        The columns ``[first_column, num_columns)`` of the cache are stored, from the rectangle's first one on.
    """

    index: int
    arrays: tuple[Any, Any]
    window: int | None
    first_column: int
    num_columns: int


def import_transformers() -> tuple[Any, Any]:
    """Import torch and transformers.

    Raises
    ------
    MissingDependencyError
        One of them is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingDependencyError(error.name or "transformers", extra="transformers") from error
    return torch, transformers


def cache_layers(cache: Any) -> list[CacheLayer]:
    """Give the layers of a cache that hold something.

    Raises
    ------
    UnsupportedError
        A layer, or the cache, is of a class that holds anything else than plain keys and values; by its name.
    LayoutError
        Layers of different lengths or batches, or nothing at all.
    """
    layers = []
    for index, layer in enumerate(_all_layers(cache)):
        kind = type(layer).__name__
        if kind == _EMPTY or not layer.is_initialized:
            continue
        length, stored = int(layer.get_seq_length()), int(layer.keys.shape[2])
        if kind.startswith("Static"):
            # What lies behind the length is stale.
            stored = min(stored, length)
        layers.append(CacheLayer(index, (layer.keys, layer.values), _window(layer), length - stored, length))
    if not layers or not layers[0].num_columns:
        raise LayoutError("the cache is empty", expected="1 column or more", actual=0)
    for name, values in (
        ("columns", [layer.num_columns for layer in layers]),
        ("sequences", [int(array.shape[0]) for layer in layers for array in layer.arrays]),
    ):
        if len(set(values)) > 1:
            message = f"layers have different numbers of {name}: {sorted(set(values))}"
            raise LayoutError(message, expected=values[0], actual=sorted(set(values)))
    return layers


def layer_groups(layers: Iterable[CacheLayer]) -> list[list[CacheLayer]]:
    """Sort layers by what they keep: those that keep the same columns for the same window are one kv_group."""
    groups: dict[tuple[int | None, int], list[CacheLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.window, layer.first_column), []).append(layer)
    return list(groups.values())


def new_cache(transformers: Any, *, config: Any, max_cache_len: int | None, layers: Iterable[int]) -> Any:
    """Make an empty cache for exactly the given layers.

    Raises
    ------
    UnsupportedError
        The model has layers that hold anything else than plain keys and values.
    LayoutError
        The model's layers are not the given ones.
    """
    if max_cache_len is None:
        cache = transformers.DynamicCache(config=config)
    elif config is None:
        raise TypeError("a StaticCache needs config=")
    else:
        cache = transformers.StaticCache(config=config, max_cache_len=max_cache_len)
    stored = sorted(layers)
    wanted = [index for index, layer in enumerate(_all_layers(cache)) if type(layer).__name__ != _EMPTY]
    if config is None:
        wanted = list(range(len(stored)))
    if stored != wanted:
        message = f"layers {stored} are stored, the cache has {wanted}"
        raise LayoutError(message, expected=wanted, actual=stored)
    return cache


def kept_columns(cache: Any, index: int, columns: int) -> tuple[int, int]:
    """Give how many of the last columns a layer keeps, and how many of these it will look at again."""
    layer = cache.layers[index] if index < len(cache.layers) else None
    window = _window(layer)
    if window is None:
        return columns, columns
    # The newest column needs window - 1 before it. A static layer has room for one more, which is the next to go.
    room = window if type(layer).__name__.startswith("Static") else window - 1
    return min(columns, room), min(columns, window - 1) if columns >= window else columns


def set_length(cache: Any, index: int, columns: int) -> None:
    """Say how many columns a windowed layer has seen, of which it was only given the last ones."""
    layer = cache.layers[index]
    kind = type(layer).__name__
    if kind == "DynamicSlidingWindowLayer":
        layer.cumulative_length = columns
    elif kind == "StaticSlidingWindowLayer":
        layer.cumulative_length_int = columns
    found = int(layer.get_seq_length())
    if found != columns:
        message = f"layer {index}: {kind} has {found} columns, expected {columns}"
        raise UnsupportedError(f"{message}: another transformers than this was written against")


def group_metadata(config: Any, *, index: int, window: int | None) -> dict[str, Any]:
    """Give the snapshot's description of a group by one of its layers.

    Spec: snapshot format section 3, ``groups``.
    """
    if window is None:
        return {"kind": "full"}
    text = config.get_text_config(decoder=True)
    types = getattr(text, "layer_types", None)
    sliding, chunk = getattr(text, "sliding_window", None), getattr(text, "attention_chunk_size", None)
    chunked = types[index] == "chunked_attention" if types else sliding is None and chunk is not None
    # A static layer only knows the smaller of its window and its room.
    stated = chunk if chunked else sliding
    return {"kind": "chunked" if chunked else "sliding_window", "window_tokens": int(stated or window)}


def flat_pages(allocator: Any) -> Any:
    """Give the flat tensor of a continuous-batching allocator, trash sectors and all, as its pages.

    Returns
    -------
    torch.Tensor
        ``[pages, page_size, heads, head_dim]``, a view; the pages of a block follow each other,
        ``[L0 keys | L0 values | L1 keys | …]`` over the allocator's layers.
    """
    heads, head_dim = allocator.cache_tensor.shape[2:]
    return allocator.cache_tensor.view(-1, int(allocator.tokens_per_page), heads, head_dim)


def request_slots(
    allocator: Any, requests: Mapping[str, int]
) -> tuple[list[tuple[Int64Array, Int64Array]], list[int], list[list[int]]]:
    """Find the tokens of requests in the pages of a continuous-batching allocator.

    Parameters
    ----------
    allocator
        Of one kind of layers.
    requests
        Tokens in the cache by request.

    Returns
    -------
    slots
        Per request, for each stored token in the order of positions, the first page of its block and its slot in a
        page, int64 ``[tokens]`` each. Pages count as in :func:`flat_pages`.
    first_positions
        Position of the first of them.
    blocks
        Per request the blocks of its full pages, equal where they are shared; empty for a ring.

    Raises
    ------
    LayoutError
        An unknown request, or more tokens than its blocks hold.
    """
    size, ring = int(allocator.tokens_per_page), getattr(allocator, "sliding_window", None)
    # A block holds, for each layer of the kind in turn, a page of keys and one of values.
    stride = int(allocator.block_physical_stride) // size
    slots, first_positions, blocks = [], [], []
    for request, tokens in requests.items():
        stored = tokens if ring is None else min(tokens, ring)
        positions = np.arange(tokens - stored, tokens, dtype=np.int64)
        places = positions if ring is None else positions % ring
        table = np.asarray(allocator.block_table.get(request, ()), np.int64)
        used = -(-(int(places.max()) + 1) // size) if stored else 0
        if table.size < used:
            message = f"a request of {tokens} tokens has {table.size} blocks of {size}, expected {used}"
            raise LayoutError(f"{allocator.layer_type}: {message}", expected=used, actual=int(table.size))
        slots.append((table[places // size] * stride, places % size))
        first_positions.append(tokens - stored)
        blocks.append([] if ring is not None else table[: stored // size].tolist())
    return slots, first_positions, blocks


def _all_layers(cache: Any) -> Sequence[Any]:
    layers: Sequence[Any] | None = getattr(cache, "layers", None)
    if layers is None or type(cache).__name__ == "EncoderDecoderCache":
        raise UnsupportedError(f"{type(cache).__name__} is no cache of plain keys and values")
    for index, layer in enumerate(layers):
        if type(layer).__name__ not in (*_PLAIN, _EMPTY):
            raise UnsupportedError(f"layer {index}: {type(layer).__name__} holds more than plain keys and values")
    return layers


def _window(layer: Any) -> int | None:
    kind = type(layer).__name__
    if kind == "StaticSlidingWindowLayer":
        return int(layer.max_cache_len)
    return int(layer.sliding_window) if kind == "DynamicSlidingWindowLayer" else None
