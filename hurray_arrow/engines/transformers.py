"""Hugging Face transformers: ``DynamicCache``, ``StaticCache`` and the continuous-batching ``PagedAttentionCache``.

A transformers cache is a rectangle ``[batch, heads, columns, head_dim]`` per layer: not paged, with padding columns that
only the attention mask knows, stale columns behind the length of a static layer, and only the last window of a sliding
layer. Exporting lays the tokens out in pages, importing builds the rectangle again, padded on the left.

Spec: block-paged layout, Buffer Table; snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from hurray_arrow.elements import ElementType
from hurray_arrow.engines.arrays import as_array, as_words
from hurray_arrow.engines.groups import CacheFacts
from hurray_arrow.engines.tables import as_integers
from hurray_arrow.engines.token_rows import TokenRows, Words, page_rows
from hurray_arrow.errors import LayoutError, MissingDependencyError, UnsupportedError
from hurray_arrow.identity import check_expected, model_metadata, tensor_facts
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor

Int64Array: TypeAlias = npt.NDArray[np.int64]

#: What importing takes and gives: a floating point type that torch has under the same name.
_TORCH_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_ROLES = ("key", "value")


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A layer that holds something: its rectangle, and which columns of the whole cache that is."""

    index: int
    arrays: tuple[Any, Any]
    window: int | None
    first_column: int
    num_columns: int


def export_cache(
    cache: Any,
    *,
    page_size: int,
    attention_mask: Any = None,
    seq_lens: Any = None,
    share_pages: bool = False,
    **facts: Unpack[CacheFacts],
) -> list[BlockPagedTensor]:
    """Give the tensors of a ``DynamicCache`` or ``StaticCache``.

    Parameters
    ----------
    cache
        The cache, on the CPU. Nobody may write to it meanwhile.
    page_size
        Slots of a page of the tensors.
    attention_mask
        ``[batch, columns]`` of 0 and 1, one column per column of the cache; where it is 0 a column is padding and is
        left out. After ``generate`` that is the mask without the last token, whose keys are not in the cache yet.
    seq_lens
        ``[batch]`` tokens, for a batch that is padded on the right. ``None`` with no mask: nothing is padded.
    share_pages
        Store equal full pages at the beginning of sequences once, found by a digest of their bytes in all layers: for
        batches whose common prefix was computed once.
    **facts
        ``ids``, ``token_ids``, ``adapter``, ``tenant``, ``media`` of the sequences. ``token_ids`` may also be the
        rectangle ``[batch, columns or more]`` that the model was given: it is cut by the same mask.

    Returns
    -------
    list of BlockPagedTensor
        Key and value of each layer, in new memory. Layers of one window are one ``kv_group``; what a window has dropped
        is absent (``page_positions``).

    Raises
    ------
    UnsupportedError
        A layer of another class, by its name: quantized, recurrent, indexed, …; another kind of cache.
    LayoutError
        Layers that disagree, a mask or lengths that do not fit the cache, memory on a device, an empty cache.
    InvariantError
        Facts that do not fit the sequences.

    Spec: block-paged layout, Buffer Table; snapshot format section 2.
    """
    layers = _layers(cache)
    batch, columns = _extent(layers)
    tokens = _token_columns(attention_mask, seq_lens, batch=batch, columns=columns)
    facts = _cut_token_ids(facts, tokens, columns=columns)
    tensors: dict[int, list[BlockPagedTensor]] = {}
    for kv_group, members in enumerate(_groups(layers)):
        start, stop = members[0].first_column, columns
        kept = [cols[cols >= start] - start for cols in tokens]
        words = [as_words(array, name=_name(layer, role)) for layer in members for array, role in _named(layer)]
        paged = page_rows(
            [_column_rows(array[:, :, : stop - start], kept) for array, _ in words],
            lengths=[cols.size for cols in kept],
            first_positions=[int((cols < start).sum()) for cols in tokens],
            page_size=page_size,
            share_pages=share_pages,
        )
        sequences = Sequences(
            **facts, seq_lens=[cols.size for cols in kept], page_positions=paged.page_positions
        )
        elements = [element for _, element in words]
        tensors |= _tensors([layer.index for layer in members], paged, elements, sequences, kv_group)
    return [tensor for index in sorted(tensors) for tensor in tensors[index]]


def export_paged_cache(
    cache: Any, *, seq_lens: Mapping[str, int], **facts: Unpack[CacheFacts]
) -> list[BlockPagedTensor]:
    """Give the tensors of the cache of continuous batching.

    Parameters
    ----------
    cache
        ``PagedAttentionCache`` (``manager.batch_processor.cache``), on the CPU, inside ``manager.pause()``.
    seq_lens
        Tokens in the cache of each request, by its id (``RequestState.current_len()``). Other requests are left out.
    **facts
        As of :func:`export_cache`, in the order of ``seq_lens``; ``ids`` are the requests' unless given.

    Returns
    -------
    list of BlockPagedTensor
        Key and value of each layer, in new memory and in the cache's page size. Pages that requests share stay shared.
        A sliding layer's ring is laid out in the order of positions.

    Raises
    ------
    LayoutError
        A request that the cache does not know, or more tokens than its blocks hold.
    InvariantError
        Facts that do not fit the sequences.

    Notes
    -----
    The engine's own block table counts pages of one flat tensor, so its entries are multiplied by the pages from one
    block to the next, and the first two sectors belong to padding. Tables are therefore taken from the allocators.

    Spec: block-paged layout, Buffer Table; snapshot format section 2.
    """
    lengths = as_integers(list(seq_lens.values()), name="seq_lens").tolist()
    facts = {"ids": list(seq_lens), **facts}
    tensors: dict[int, list[BlockPagedTensor]] = {}
    for kv_group, allocator in enumerate(cache.cache_allocators.values()):
        size, window = int(allocator.tokens_per_page), getattr(allocator, "sliding_window", None)
        stored = [tokens if window is None else min(tokens, window) for tokens in lengths]
        slots = [
            _slots(allocator, request, total - kept, kept, ring=window)
            for request, total, kept in zip(seq_lens, lengths, stored, strict=True)
        ]
        views = [view for index in allocator.layer_indices for view in allocator.get_cache_for_block_table(index)]
        words = [as_words(view, name=f"{allocator.layer_type} pages") for view in views]
        paged = page_rows(
            [_slot_rows(array, slots, size) for array, _ in words],
            lengths=stored,
            first_positions=[total - kept for total, kept in zip(lengths, stored, strict=True)],
            page_size=size,
            share_pages=window is None and bool(allocator.use_block_sharing),
        )
        sequences = Sequences(**facts, seq_lens=stored, page_positions=paged.page_positions)
        elements = [element for _, element in words]
        tensors |= _tensors(list(allocator.layer_indices), paged, elements, sequences, kv_group)
    return [tensor for index in sorted(tensors) for tensor in tensors[index]]


def cache_metadata(
    cache: Any, *, config: Any, name: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Give the snapshot metadata of a cache: ``model``, ``engine``, ``groups``.

    Parameters
    ----------
    cache
        As of :func:`export_cache` or :func:`export_paged_cache`.
    config
        The model's config.
    name, revision
        As of :func:`hurray_arrow.identity.model_metadata`.

    Returns
    -------
    dict
        For ``write_snapshot(metadata=…)``; ``groups`` in the order of the tensors' ``kv_group``. Add ``adapter`` and
        ``tenant`` where they are one for all.

    Spec: snapshot format section 3.
    """
    paged = hasattr(cache, "cache_allocators")
    if paged:
        windows = [getattr(each, "sliding_window", None) for each in cache.cache_allocators.values()]
        dtype = cache.dtype
    else:
        groups = _groups(_layers(cache))
        windows = [members[0].window for members in groups]
        dtype = groups[0][0].arrays[0].dtype
    text = config.get_text_config(decoder=True)
    chunk = getattr(text, "attention_chunk_size", None)
    kinds = ["full" if window is None else "chunked" if window == chunk else "sliding_window" for window in windows]
    return {
        "model": model_metadata(config, name=name, revision=revision),
        "engine": {
            "name": "transformers",
            "version": str(_transformers().__version__),
            "source_layout": "BNHD" if paged else "BHSD",
            "kv_cache_dtype": str(dtype).removeprefix("torch."),
        },
        "groups": [
            {"kind": kind} if window is None else {"kind": kind, "window_tokens": int(window)}
            for kind, window in zip(kinds, windows, strict=True)
        ],
    }


class ImportedCache(NamedTuple):
    """A cache rebuilt.

    Parameters
    ----------
    cache
        ``DynamicCache`` or ``StaticCache``.
    attention_mask
        torch int64 ``[batch, columns]``: 0 for the padding on the left. Append a 1 for each new token.
    seq_lens
        Tokens of each sequence: the position of its next token.
    """

    cache: Any
    attention_mask: Any
    seq_lens: tuple[int, ...]


def import_cache(
    tensors: Iterable[BlockPagedTensor],
    *,
    expect: Mapping[str, Any] | None,
    config: Any = None,
    metadata: Mapping[str, Any] | None = None,
    sequences: int | Sequence[int] | None = None,
    tokens: int | Sequence[int] | None = None,
    max_cache_len: int | None = None,
    device: Any = "cpu",
) -> ImportedCache:
    """Build a ``DynamicCache`` or ``StaticCache`` that goes on where the stored sequences end.

    Parameters
    ----------
    tensors
        Key and value of every layer.
    expect
        What the cache has to belong to, by dotted name in ``metadata`` or among the tensors' own facts; ``None`` only
        where that does not matter.
    config
        The model's config, which says what each layer keeps; needed for a ``StaticCache`` and for windows.
    metadata
        The snapshot's metadata.
    sequences
        The sequences that become the batch, in this order; one may stand in it several times. ``None`` for all.
    tokens
        Take only the first tokens of every sequence, or of each: what :meth:`Snapshot.match_prefix` counts.
    max_cache_len
        Columns of a ``StaticCache``; ``None`` makes a ``DynamicCache``.
    device
        The torch device of the cache.

    Returns
    -------
    ImportedCache
        New memory; values are the stored ones bit for bit, padding is zero.

    Raises
    ------
    MissingDependencyError
        transformers or torch is not installed.
    SnapshotMismatchError
        Not what is expected.
    LayoutError
        Layers are missing or too many, positions that the model looks at are not stored, more tokens than stored or
        than ``max_cache_len``.
    UnsupportedError
        Companions, quantized or fused values, an element type or a layer that transformers has no plain cache for.
    UnknownSequenceLengthError
        Nobody recorded a length.

    Spec: snapshot format sections 2 and 3.
    """
    torch, transformers = _torch(), _transformers()
    tensors = list(tensors)
    by_layer = _by_layer(tensors)
    first = next(iter(by_layer.values()))[0]
    batch = _batch(sequences, first.num_seqs)
    check_expected(metadata or {}, expect, facts=tensor_facts(tensors, metadata, sequences=batch))
    lengths = _lengths([pair[0] for pair in by_layer.values()], batch, tokens)
    columns = max(lengths)
    if max_cache_len is None:
        cache = transformers.DynamicCache(config=config)
    elif config is None:
        raise TypeError("a StaticCache needs config=")
    else:
        cache = transformers.StaticCache(config=config, max_cache_len=max_cache_len)
    _check_layers(cache, by_layer, columns, max_cache_len)
    for index, pair in by_layer.items():
        window = None if index >= len(cache.layers) else _window(cache.layers[index])
        # The oldest column of a full static window is the next to go: nobody looks at it, so it may be absent.
        kept, needed = (columns, columns) if window is None else (min(columns, window[0]), window[1])
        rows = [_rectangle(torch, tensor, batch, lengths, kept=kept, needed=needed) for tensor in pair]
        cache.update(*(row.to(device) for row in rows), index)
        _set_length(cache.layers[index], columns)
    mask = torch.zeros((len(batch), columns), dtype=torch.int64, device=device)
    for row, length in enumerate(lengths):
        mask[row, columns - length :] = 1
    return ImportedCache(cache, mask, tuple(lengths))


# -- the cache as it is ------------------------------------------------------------------------------------------------


def _layers(cache: Any) -> list[_Layer]:
    """Give the layers that hold something, after refusing those that hold anything else than keys and values."""
    classes = _transformers().cache_utils
    if not isinstance(cache, classes.DynamicCache | classes.StaticCache):
        raise UnsupportedError(f"{type(cache).__name__}: only DynamicCache and StaticCache are rectangles")
    layers = []
    for index, layer in enumerate(cache.layers):
        kind = type(layer)
        if kind is classes.DummyLayer or (kind is classes.DynamicLayer and not layer.is_initialized):
            continue
        if kind not in _plain_layers(classes):
            raise UnsupportedError(f"layer {index}: {kind.__name__} holds more than plain keys and values")
        length = int(layer.get_seq_length())
        window = layer.sliding_window if kind is classes.DynamicSlidingWindowLayer else None
        stored = 0 if layer.keys is None else int(layer.keys.shape[2])
        if kind is classes.StaticSlidingWindowLayer:
            window = layer.max_cache_len
        if kind in (classes.StaticLayer, classes.StaticSlidingWindowLayer):
            stored = min(stored, length)
        if window is None and stored != length:
            message = f"layer {index}: {length} tokens in a cache of {stored} columns"
            raise LayoutError(message, expected=length, actual=stored)
        layers.append(_Layer(index, (layer.keys, layer.values), window, length - stored, length))
    if not layers or not layers[0].num_columns:
        raise LayoutError("the cache is empty", expected="1 column or more", actual=0)
    return layers
