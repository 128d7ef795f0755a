"""From an engine's cache to tensors: pages of key and value out of its arrays, tables, and nothing else of its pool.

Spec: block-paged layout, Buffer Table; snapshot format section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hurray_arrow.components import means_whole_pages
from hurray_arrow.engines.arrays import Int64Array, Words
from hurray_arrow.engines.groups import CacheFacts, CacheGroup, LayerFormat
from hurray_arrow.engines.layouts import PagePart
from hurray_arrow.engines.page_copies import reading_pages
from hurray_arrow.engines.tables import PageTables
from hurray_arrow.errors import CopyRequiredError, LayoutError
from hurray_arrow.ops.page_table import entry_fills, first_use, page_fills
from hurray_arrow.quantization import Quantization
from hurray_arrow.schemes import PerTensor
from hurray_arrow.sequences import Sequences
from hurray_arrow.spec import UINT32_MAX
from hurray_arrow.tensor import BlockPagedTensor

PAGES = ("referenced", "all")


def capture_cache(
    arrays: Mapping[str, Any],
    *,
    formats: Mapping[str, LayerFormat],
    groups: Sequence[CacheGroup],
    pages: str = "referenced",
    copy: bool | None = None,
    layer_indices: Mapping[str, int] | None = None,
    facts: CacheFacts | None = None,
) -> list[BlockPagedTensor]:
    """Give the tensors of a cache, in the order of its layers.

    Parameters
    ----------
    arrays
        Each layer's array, or tuple of arrays, by its name.
    formats
        How each layer is to be read.
    groups
        The layers' tables; every layer in exactly one.
    pages
        ``"referenced"``: only pages that a sequence names, renumbered in order of first use, slots behind a
        sequence's end zeroed, in new memory. ``"all"``: the whole pool as it is, stale bytes of other requests
        included.
    copy
        For ``"all"``: ``None`` shares the engine's memory where it is dense and copies elsewhere, ``True`` copies
        always, ``False`` refuses to copy.
    layer_indices
        Number of each layer in the model; ``None`` numbers ``arrays`` in order, and refuses where a name such as
        ``model.layers.12.attn`` says otherwise.
    facts
        ``ids``, ``token_ids``, ``adapter``, ``tenant``, ``media`` of the sequences, the same for all groups.

    Returns
    -------
    list of BlockPagedTensor
        Keys, their scales, values, their scales of each layer; ``kv_group`` is the place in ``groups``.

    Raises
    ------
    LayoutError
        An array or a table is not what was said.
    CopyRequiredError
        ``copy=False`` and a layer's pages are not dense.
    InvariantError
        Facts that do not fit the sequences.
    """
    if pages not in PAGES:
        raise LayoutError(f"pages {pages!r}, expected one of {PAGES}", expected=PAGES, actual=pages)
    if copy is False and pages != "all":
        raise CopyRequiredError("pages='referenced' puts the pages together anew: pages='all' shares the pool")
    numbers = _layer_numbers(arrays, layer_indices)
    by_layer: dict[str, list[BlockPagedTensor]] = {}
    # Everything is checked before the first page is copied.
    parts = {name: formats[name].parts(array) for name, array in arrays.items()}
    chosen = [_choose(group, parts, pages) for group in groups]
    for kv_group, (group, selection) in enumerate(zip(groups, chosen, strict=True)):
        sequences = _sequences(group.tables, facts)
        for name in group.layer_names:
            of_layer = list(by_tensor(parts[name]))
            pools = _pools(of_layer, selection, name=name, copy=copy)
            by_layer[name] = [
                BlockPagedTensor.from_arrays(
                    pool,
                    selection.block_table,
                    selection.seq_ptr,
                    kv_role=of_tensor[0].kv_role,
                    element_type=of_tensor[0].element_type,
                    quantization=_quantization(formats[name], of_tensor[0]),
                    layer_index=numbers[name],
                    layer_name=name,
                    component=of_tensor[0].component,
                    kv_group=kv_group,
                    sequences=sequences,
                )
                for of_tensor, pool in zip(of_layer, pools, strict=True)
            ]
    return [tensor for name in arrays for tensor in by_layer[name]]


def _layer_numbers(names: Iterable[str], layer_indices: Mapping[str, int] | None) -> Mapping[str, int]:
    """Give each layer's number, its place where nobody said; a name such as ``model.layers.12.attn`` may contradict."""
    names = list(names)
    if layer_indices is not None:
        if missing := [name for name in names if name not in layer_indices]:
            message = f"layer_indices: nothing for layers {missing}"
            raise LayoutError(message, expected=names, actual=sorted(layer_indices))
        return layer_indices
    for place, name in enumerate(names):
        own = [int(part) for part in name.split(".") if part.isdecimal()]
        if len(own) == 1 and own[0] != place:
            message = f"layer {name!r} is in place {place}, its name says {own[0]}: pass layer_indices="
            raise LayoutError(message, expected=own[0], actual=place)
    return {name: place for place, name in enumerate(names)}


def by_tensor(parts: Sequence[PagePart]) -> Iterator[list[PagePart]]:
    """Yield the parts of each tensor, those of a latent in two arrays together."""
    tensors: dict[tuple[str, str], list[PagePart]] = {}
    for part in parts:
        tensors.setdefault((part.kv_role, part.component), []).append(part)
    yield from tensors.values()


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """Which pages of a group are stored, and its tables in their new numbers."""

    page_ids: Int64Array | None
    block_table: Any
    seq_ptr: Any
    filled_slots: Int64Array


def _choose(group: CacheGroup, parts: Mapping[str, list[PagePart]], pages: str) -> _Selection:
    tables = group.tables
    counts = {name: part.pages.shape[0] for name in group.layer_names for part in parts[name]}
    if len(set(counts.values())) > 1:
        message = f"layers of one group have different numbers of pages: {counts}"
        raise LayoutError(message, expected="one number of pages", actual=counts)
    num_pages = next(iter(counts.values()), 0)
    tables.check_ids(num_pages)
    flat = np.concatenate([*tables.pages, np.empty(0, np.int64)])
    seq_ptr = np.zeros(tables.num_seqs + 1, np.int64)
    seq_ptr[1:] = np.cumsum([ids.size for ids in tables.pages])
    page_ids, filled = None, np.empty(0, np.int64)
    if pages == "referenced":
        page_ids, flat = first_use(flat)
        num_pages = page_ids.size
        fills = entry_fills(seq_ptr, tables.seq_lens, page_size=tables.page_size)
        filled = page_fills(flat, fills, num_pages=num_pages)
    index = np.uint32 if max(num_pages, flat.size) <= UINT32_MAX else np.uint64
    return _Selection(page_ids, flat.astype(index), seq_ptr.astype(index), filled)


def _pools(
    of_layer: Sequence[Sequence[PagePart]], selection: _Selection, *, name: str, copy: bool | None
) -> list[Words]:
    """Give the pools of a layer's tensors: the engine's own memory where that may be shared, else new memory."""
    pools: list[Words] = []
    pairs: list[tuple[Words, Words]] = []
    for parts in of_layer:
        first = parts[0]
        if selection.page_ids is None and copy is not True:
            if len(parts) == 1 and first.pages.flags.c_contiguous:
                pools.append(first.pages)
                continue
            if copy is False:
                message = f"{name}: {first.kv_role} pages are not dense in this layout (strides {first.pages.strides})"
                raise CopyRequiredError(f"{message}: copy=None copies them")
        num_pages = first.pages.shape[0] if selection.page_ids is None else selection.page_ids.size
        out = np.empty((num_pages, *first.pages.shape[1:3], first.num_words), first.pages.dtype)
        pairs += [(part.pages, out[..., part.first_word : part.first_word + part.pages.shape[-1]]) for part in parts]
        pools.append(out)
    if pairs:
        reading_pages(pairs, page_ids=selection.page_ids).run()
    if selection.page_ids is not None:
        for parts, pool in zip(of_layer, pools, strict=True):
            if not means_whole_pages(parts[0].component):
                _zero_tails(pool, selection.filled_slots)
    return [pool.view(parts[0].element_type.pool_dtype) for parts, pool in zip(of_layer, pools, strict=True)]


def _zero_tails(pool: Words, filled_slots: Int64Array) -> None:
    """Zero the slots behind every sequence's end: they may be another tenant's."""
    for page in np.flatnonzero(filled_slots < pool.shape[1]).tolist():
        pool[page, int(filled_slots[page]) :] = np.zeros((), pool.dtype)


def _quantization(form: LayerFormat, part: PagePart) -> Quantization | None:
    scale = form.scale_of(part)
    return None if scale is None else PerTensor(scale)


def _sequences(tables: PageTables, facts: CacheFacts | None) -> Sequences:
    return Sequences(seq_lens=tables.seq_lens, page_positions=tables.positions, **(facts or {}))
