"""Hugging Face transformers: ``DynamicCache``, ``StaticCache`` and the continuous-batching ``PagedAttentionCache``.

A transformers cache is a rectangle ``[batch, heads, columns, head_dim]`` per layer: not paged, with padding columns
that only the attention mask knows, stale columns behind the length of a static layer, and only the last window of a
sliding layer. Exporting lays the tokens out in pages; importing builds the rectangle again, padded on the left.

Spec: block-paged layout, Buffer Table; snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from hurray_arrow.elements import ElementType
from hurray_arrow.engines import transformers_cache as classes
from hurray_arrow.engines.arrays import Int64Array, Words, as_integers, as_words
from hurray_arrow.engines.groups import CacheFacts
from hurray_arrow.engines.padded_batch import batch_lengths, column_rows, cut_token_ids, fill_columns, token_columns
from hurray_arrow.engines.tables import check_page_size
from hurray_arrow.engines.token_rows import PagedRows, TokenRows, page_digests, page_rows
from hurray_arrow.errors import LayoutError, UnsupportedError
from hurray_arrow.identity import check_expected, model_metadata, tensor_facts
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors

#: What a cache is rebuilt in: floating point types that torch has under the same names.
_TORCH_TYPES = ("float16", "bfloat16", "float32", "float64")
_ROLES = ("key", "value")


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
        ``[batch, columns]`` of 0 and 1, a column for each column of the cache; where it is 0 a column is padding and is
        left out. After ``generate`` that is the mask without the last token, whose keys are not in the cache yet.
    seq_lens
        ``[batch]`` tokens, for a batch that is padded on the right. ``None`` and no mask: nothing is padding.
    share_pages
        Store equal full pages at the beginning of sequences once, found by a digest of their bytes in all layers: for
        batches whose common prefix was computed once.
    **facts
        ``ids``, ``token_ids``, ``adapter``, ``tenant``, ``media`` of the sequences. ``token_ids`` may also be the
        rectangle ``[batch, columns or more]`` that the model was given: it is cut as the cache is.

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
    check_page_size(page_size)
    layers = classes.cache_layers(cache)
    columns = layers[0].num_columns
    tokens = token_columns(attention_mask, seq_lens, batch=int(layers[0].arrays[0].shape[0]), columns=columns)
    facts = cut_token_ids(facts, tokens, columns=columns)
    tensors: dict[int, list[BlockPagedTensor]] = {}
    for kv_group, members in enumerate(classes.layer_groups(layers)):
        start = members[0].first_column
        kept = [cols[cols >= start] - start for cols in tokens]
        first_positions = [cols.size - left.size for cols, left in zip(tokens, kept, strict=True)]
        arrays = {layer.index: layer.arrays for layer in members}
        words = _words(arrays)
        sources = [column_rows(array, kept) for array, _ in words]
        keys = [
            page_digests(sources, s, tokens=cols.size, first_position=first_positions[s], page_size=page_size)
            for s, cols in enumerate(kept)
            if share_pages
        ]
        lengths = [cols.size for cols in kept]
        paged = page_rows(
            sources, lengths=lengths, first_positions=first_positions, page_size=page_size, page_keys=keys or None
        )
        elements = [element for _, element in words]
        tensors |= _tensors(arrays, paged, elements, facts=facts, lengths=lengths, kv_group=kv_group)
    return [tensor for index in sorted(tensors) for tensor in tensors[index]]


def export_paged_cache(
    cache: Any, *, seq_lens: Mapping[str, int], **facts: Unpack[CacheFacts]
) -> list[BlockPagedTensor]:
    """Give the tensors of the cache of continuous batching.

    Parameters
    ----------
    cache
        ``PagedAttentionCache`` (``manager.batch_processor.cache``) on the CPU, inside ``manager.pause()``.
    seq_lens
        Tokens in the cache of each request, by its id (``RequestState.current_len()``). Other requests are left out.
    **facts
        As of :func:`export_cache`, in the order of ``seq_lens``; ``ids`` are the requests' unless given.

    Returns
    -------
    list of BlockPagedTensor
        Key and value of each layer, in new memory and in the cache's page size. Pages that requests share stay shared.
        The ring of a sliding layer is laid out in the order of positions.

    Raises
    ------
    LayoutError
        A request that the cache does not know, or more tokens than its blocks hold.
    InvariantError
        Facts that do not fit the sequences.

    Notes
    -----
    The block table that the engine hands to its kernels counts pages of one flat tensor, so its entries are multiplied
    by the pages of a block, and two leading sectors belong to padding. The tables here are the allocators' own.

    Spec: block-paged layout, Buffer Table; snapshot format section 2.
    """
    requests = dict(zip(seq_lens, as_integers(list(seq_lens.values()), name="seq_lens").tolist(), strict=True))
    known: CacheFacts = {"ids": list(requests), **facts}
    tensors: dict[int, list[BlockPagedTensor]] = {}
    for kv_group, allocator in enumerate(cache.cache_allocators.values()):
        slots, first_positions, blocks = classes.request_slots(allocator, requests)
        pages, element = as_words(classes.flat_pages(allocator), name=f"{allocator.layer_type} pages")
        layers = list(allocator.layer_indices)
        lengths = [of_tokens.size for of_tokens, _ in slots]
        paged = page_rows(
            [_slot_rows(pages, slots, page) for page in range(len(_ROLES) * len(layers))],
            lengths=lengths,
            first_positions=first_positions,
            page_size=int(allocator.tokens_per_page),
            page_keys=blocks,
        )
        elements = [element] * len(paged.pools)
        tensors |= _tensors(layers, paged, elements, facts=known, lengths=lengths, kv_group=kv_group)
    return [tensor for index in sorted(tensors) for tensor in tensors[index]]


def cache_metadata(cache: Any, *, config: Any, name: str | None = None, revision: str | None = None) -> dict[str, Any]:
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
        For ``write_snapshot(metadata=…)``; ``groups`` in the order of ``kv_group``. Add ``adapter`` and ``tenant``
        where they are one for all.

    Raises
    ------
    MissingDependencyError, UnsupportedError, LayoutError
        As :func:`export_cache`.

    Spec: snapshot format section 3.
    """
    _, transformers = classes.import_transformers()
    paged = hasattr(cache, "cache_allocators")
    if paged:
        groups = [
            (allocator.layer_indices[0], getattr(allocator, "sliding_window", None))
            for allocator in cache.cache_allocators.values()
        ]
        dtype = cache.dtype
    else:
        layers = classes.cache_layers(cache)
        groups = [(members[0].index, members[0].window) for members in classes.layer_groups(layers)]
        dtype = layers[0].arrays[0].dtype
    return {
        "model": model_metadata(config, name=name, revision=revision),
        "engine": {
            "name": "transformers",
            "version": str(transformers.__version__),
            "source_layout": "BNHD" if paged else "BHSD",
            "kv_cache_dtype": str(dtype).removeprefix("torch."),
        },
        "groups": [classes.group_metadata(config, index=index, window=window) for index, window in groups],
    }


class ImportedCache(NamedTuple):
    """A cache rebuilt; see :func:`import_cache`.

    Parameters
    ----------
    cache
        ``DynamicCache`` or ``StaticCache``.
    attention_mask
        torch int64 ``[batch, columns]``: 0 for the padding on the left. Append a 1 for each new token.
    seq_lens
        Tokens of each sequence, which is the position of its next token.
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
    tokens: int | None = None,
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
        The sequences that become the batch, in this order; one may stand there several times. ``None`` for all.
    tokens
        Take only the first tokens of each sequence, such as ``Snapshot.match_prefix`` counts; ``None`` for all.
    max_cache_len
        Columns of a ``StaticCache``; ``None`` makes a ``DynamicCache``.
    device
        The torch device of the cache.

    Returns
    -------
    ImportedCache
        New memory. Values are the stored ones bit for bit, padding is zero.

    Raises
    ------
    MissingDependencyError
        transformers or torch is not installed.
    SnapshotMismatchError
        Not what is expected.
    LayoutError
        Layers are missing or too many; positions that a layer looks at are not stored; more tokens than stored, or than
        ``max_cache_len``.
    UnsupportedError
        Companions, quantized or fused values, an element type or a layer that transformers has no plain cache for.
    UnknownSequenceLengthError
        Nobody recorded a length.

    Spec: snapshot format sections 2 and 3.
    """
    torch, transformers = classes.import_transformers()
    tensors = listed_tensors(tensors)
    layers = _by_layer(tensors)
    num_seqs = min(tensor.num_seqs for tensor in tensors)
    batch = list(range(num_seqs)) if sequences is None else [sequences] if isinstance(sequences, int) else [*sequences]
    if not batch or not all(0 <= s < num_seqs for s in batch):
        raise LayoutError(f"sequences {batch}, expected some of 0 … {num_seqs - 1}", expected=num_seqs, actual=batch)
    check_expected(metadata or {}, expect, facts=tensor_facts(tensors, metadata, sequences=batch))
    lengths = batch_lengths(tensors, batch, tokens)
    columns = max(lengths)
    if max_cache_len is not None and columns > max_cache_len:
        message = f"{columns} tokens, expected at most max_cache_len {max_cache_len}"
        raise LayoutError(message, expected=max_cache_len, actual=columns)
    cache = classes.new_cache(transformers, config=config, max_cache_len=max_cache_len, layers=layers)
    for index, pair in layers.items():
        kept, needed = classes.kept_columns(cache, index, columns)
        rectangles = []
        for tensor in pair:
            shape, dtype = (len(batch), tensor.num_heads, kept, tensor.head_dim), tensor.element_type.name
            rectangle = torch.zeros(shape, dtype=getattr(torch, dtype))
            words, _ = as_words(rectangle, writable=True)
            fill_columns(words, tensor, batch, lengths=lengths, needed=needed)
            rectangles.append(rectangle.to(device))
        cache.update(*rectangles, index)
        classes.set_length(cache, index, columns)
    mask = torch.zeros((len(batch), columns), dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, columns - length :] = 1
    return ImportedCache(cache, mask.to(device), tuple(lengths))


# -- out of the rectangle ----------------------------------------------------------------------------------------------


def _words(arrays: Mapping[int, Sequence[Any]]) -> list[tuple[Words, ElementType]]:
    return [
        as_words(array, name=f"layer {index} {role}")
        for index, pair in arrays.items()
        for role, array in zip(_ROLES, pair, strict=True)
    ]


def _slot_rows(pages: Words, slots: Sequence[tuple[Int64Array, Int64Array]], page: int) -> TokenRows:
    """Give the tokens of a request out of one page of each of its blocks."""

    def rows(s: int) -> Words:
        first_pages, places = slots[s]
        taken: Words = pages[first_pages + page, places]
        return taken

    return rows


def _tensors(
    layers: Iterable[int],
    paged: PagedRows,
    elements: Sequence[ElementType],
    *,
    facts: CacheFacts,
    lengths: Sequence[int],
    kv_group: int,
) -> dict[int, list[BlockPagedTensor]]:
    sequences = Sequences(**facts, seq_lens=lengths, page_positions=paged.page_positions)
    pairs = iter(zip(paged.pools, elements, strict=True))
    return {
        index: [
            BlockPagedTensor.from_arrays(
                pool.view(element.pool_dtype),
                block_tables=paged.block_tables,
                element_type=element,
                kv_role=role,
                layer_index=index,
                kv_group=kv_group,
                sequences=sequences,
            )
            for role, (pool, element) in zip(_ROLES, pairs, strict=False)
        ]
        for index in layers
    }


# -- into the rectangle ------------------------------------------------------------------------------------------------


def _by_layer(tensors: Iterable[BlockPagedTensor]) -> dict[int, list[BlockPagedTensor]]:
    """Give key and value of each layer, in the order of the layers."""
    layers: dict[int, dict[str, BlockPagedTensor]] = {}
    for tensor in tensors:
        if tensor.component != "values" or tensor.quantization is not None or tensor.kv_role not in _ROLES:
            raise UnsupportedError(f"{tensor!r}: transformers keeps plain keys and values")
        if tensor.element_type.name not in _TORCH_TYPES:
            raise UnsupportedError(f"{tensor!r}: expected one of {_TORCH_TYPES}")
        if tensor.layer_index is None or tensor.kv_role in layers.setdefault(tensor.layer_index, {}):
            raise LayoutError(f"{tensor!r}: expected one {tensor.kv_role} per layer_index", expected=1, actual=2)
        layers[tensor.layer_index][tensor.kv_role] = tensor
    incomplete = sorted(index for index, pair in layers.items() if len(pair) < len(_ROLES))
    if incomplete or not layers:
        message = f"layers {incomplete} lack their key or value" if layers else "no tensors"
        raise LayoutError(message, expected=_ROLES, actual=incomplete)
    return {index: [layers[index][role] for role in _ROLES] for index in sorted(layers)}
