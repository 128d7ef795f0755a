"""SGLang's token pools: keys and values by token slot, requests as rows of slots.

``MHATokenToKVPool`` keeps two arrays ``[slots, heads, head_dim]`` per layer, or the halves of one; a page is
``page_size`` slots in a row, and its first page is a dummy that padding is written to. Slots are pages here: with
page_size 1 every token has a page of its own. float8 is held as uint8.

Read from the files of SGLang 0.5.23 (``srt/mem_cache/memory_pool.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from hurray_arrow.engines.adapter import Adapter
from hurray_arrow.engines.arrays import as_integers
from hurray_arrow.engines.groups import CacheGroup, ExportOptions, LayerTypes, PerLayer
from hurray_arrow.engines.layouts import Content, Layout
from hurray_arrow.engines.restoration import Restored
from hurray_arrow.engines.restore_plan import PerGroup
from hurray_arrow.engines.tables import of_req_to_token, of_slot_mapping
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor

#: Every layout by name. ``BNHD`` and ``BHND`` are a tuple (k_buffer, v_buffer).
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(name="BNHD", shapes=("SHD",), arrays=2),
        Layout(name="2BNHD", shapes=("2SHD",)),
        Layout(name="BHND", shapes=("BHND",), arrays=2),
        Layout(name="BNC", shapes=("S1C",), content=Content.LATENT),
        Layout(
            name="BNC-dsa", shapes=("S1C",), content=Content.RECORD, component="record.fp8_ds_mla", record_bytes=656
        ),
    )
}
#: Layouts that SGLang has and this package does not handle.
REFUSED = {
    "BHNDX": "ROCm's vectorized keys and values are not handled",
    "BNC-indexer": "the indexer's pages of SGLang are not handled",
}
ADAPTER = Adapter("sglang", LAYOUTS, REFUSED)

import_cache = ADAPTER.import_cache
metadata = ADAPTER.metadata


def export_cache(
    arrays: Mapping[str, Any],
    *,
    layout: PerLayer,
    req_to_token: Any,
    seq_lens: Any,
    page_size: int,
    req_pool_indices: Any = None,
    **options: Unpack[ExportOptions],
) -> list[BlockPagedTensor]:
    """Give the tensors of an SGLang cache.

    Parameters
    ----------
    arrays
        ``{layer_name: (k_buffer, v_buffer)}``, or one array for the layouts that have one.
    layout
        One of ``LAYOUTS``, or one per layer.
    req_to_token
        int32 ``[requests, max_context]``: the slot of each position.
    seq_lens
        ``[num_seqs]`` tokens.
    page_size
        Slots of a page, as the server was started with.
    req_pool_indices
        ``[num_seqs]``: each sequence's row; ``None`` for the first rows in order.
    **options
        ``element_type``, ``num_heads``, ``head_dim``, ``head_dim_v``, ``scales``, ``pages``, ``copy``,
        ``layer_indices`` and facts of the sequences, as of :meth:`hurray_arrow.engines.adapter.Adapter.export_groups`.

    Returns
    -------
    list of BlockPagedTensor
        New memory; with ``pages="all"`` keys and values in NHD are views, the dummy page among them.

    Raises
    ------
    LayoutError, CopyRequiredError, InvariantError
        As there.

    Examples
    --------
    >>> from hurray_arrow.engines import sglang
    >>> cache = {"layers.0": (np.zeros((20, 2, 3), np.float16), np.zeros((20, 2, 3), np.float16))}
    >>> slots = np.array([[16, 17, 18, 19, 4, 5, 6, 0]], np.int32)
    >>> tensors = sglang.export_cache(cache, layout="BNHD", req_to_token=slots, seq_lens=[7], page_size=4)
    >>> [(tensor.kv_role, tensor.num_pages, tensor.total_tokens) for tensor in tensors]
    [('key', 2, 7), ('value', 2, 7)]
    """
    tables = of_req_to_token(req_to_token, seq_lens, page_size=page_size, rows=req_pool_indices)
    return ADAPTER.export_groups(
        arrays,
        layout=layout,
        groups=[CacheGroup(layer_names=tuple(arrays), tables=tables)],
        **options,
    )


def restore_into(
    destination: Mapping[str, Any],
    tensors: Iterable[BlockPagedTensor],
    *,
    layout: PerLayer,
    sequence: int | str,
    page_size: PerGroup,
    expect: Mapping[str, Any] | None,
    block_ids: Any = None,
    token_slots: Any = None,
    tokens: int | range | None = None,
    metadata: Mapping[str, Any] | None = None,
    **types: Unpack[LayerTypes],
) -> Restored:
    """Write one stored sequence into slots of a running pool.

    Parameters
    ----------
    token_slots
        Instead of ``block_ids``: the slot of every wanted position, as the allocator gave them.
    destination, tensors, layout, sequence, block_ids, page_size, expect, tokens, metadata, **types
        As of :meth:`hurray_arrow.engines.adapter.Adapter.restore_into`.

    Returns
    -------
    Restored
        What was written.

    Raises
    ------
    SnapshotMismatchError, LayoutError, UnsupportedError, UnknownSequenceLengthError
        As there.
    """
    if (block_ids is None) == (token_slots is None):
        given = [block_ids is not None, token_slots is not None]
        raise LayoutError("pass either block_ids or token_slots", expected=1, actual=sum(given))
    if token_slots is not None:
        if not isinstance(page_size, int):
            raise LayoutError("token_slots are of one page size", expected="int", actual=type(page_size).__name__)
        slots = as_integers(token_slots, name="token_slots")
        block_ids = of_slot_mapping(slots, [slots.size], page_size=page_size).pages[0]
    return ADAPTER.restore_into(
        destination,
        tensors,
        layout=layout,
        sequence=sequence,
        block_ids=block_ids,
        page_size=page_size,
        expect=expect,
        tokens=tokens,
        metadata=metadata,
        **types,
    )
