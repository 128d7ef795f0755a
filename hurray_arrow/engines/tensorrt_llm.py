"""TensorRT-LLM's key-value pools, **from documentation**: nothing here was run against the engine.

``get_buffers`` gives a layer's ``[pages, kv_factor, tokens_per_block, heads, head_dim]`` (NHD) or
``[pages, kv_factor, heads, tokens_per_block, head_dim]`` (HND), a view into the pool of all layers with one head
count; kv_factor is 1 for a latent. Block ids are padded with 0, which is a block like any other.

Read from ``tensorrt_llm/_torch/pyexecutor/resource_manager.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from hurray_arrow.engines.adapter import Adapter
from hurray_arrow.engines.groups import CacheGroup, ExportOptions, PerLayer
from hurray_arrow.engines.layouts import Content, Layout
from hurray_arrow.engines.tables import of_block_tables
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor

#: Every layout by name.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(name="B2NHD", shapes=("B2NHD",)),
        Layout(name="B2HND", shapes=("B2HND",)),
        Layout(name="BNC", shapes=("B1N1C", "B11NC"), content=Content.LATENT),
    )
}
#: Layouts that TensorRT-LLM has and this package does not handle.
REFUSED = {"B2NHD-nvfp4": "values of 4 bits with scales in a pool of their own are not handled"}
ADAPTER = Adapter("tensorrt_llm", LAYOUTS, REFUSED)

import_cache = ADAPTER.import_cache
restore_into = ADAPTER.restore_into
metadata = ADAPTER.metadata


def export_cache(
    arrays: Mapping[str, Any],
    *,
    layout: PerLayer,
    block_ids: Any,
    seq_lens: Any,
    tokens_per_block: int,
    **options: Unpack[ExportOptions],
) -> list[BlockPagedTensor]:
    """Give the tensors of a TensorRT-LLM cache.

    Parameters
    ----------
    arrays
        ``{layer_name: get_buffers(layer)}``.
    layout
        One of ``LAYOUTS``, or one per layer.
    block_ids
        One row of block ids per sequence (ids, not offsets); entries behind a sequence's end are not read.
    seq_lens
        ``[num_seqs]`` tokens.
    tokens_per_block
        Slots of a page, a power of two.
    **options
        ``element_type``, ``num_heads``, ``head_dim``, ``head_dim_v``, ``scales``, ``pages``, ``copy``,
        ``layer_indices`` and facts of the sequences, as of :meth:`hurray_arrow.engines.adapter.Adapter.export_groups`.

    Returns
    -------
    list of BlockPagedTensor
        New memory; keys and values of a page are never dense here.

    Raises
    ------
    LayoutError, CopyRequiredError, InvariantError
        As there; ``tokens_per_block`` that is no power of two.
    """
    if tokens_per_block < 1 or tokens_per_block & (tokens_per_block - 1):
        message = f"tokens_per_block {tokens_per_block}, expected a power of two"
        raise LayoutError(message, expected="a power of two", actual=tokens_per_block)
    tables = of_block_tables(block_ids, seq_lens, page_size=tokens_per_block)
    return ADAPTER.export_groups(
        arrays,
        layout=layout,
        groups=[CacheGroup(layer_names=tuple(arrays), tables=tables)],
        **options,
    )
