"""FlashInfer's paged key-value cache: one array or a pair, NHD or HND, rows as indptr, indices and last page length.

The shape *is* the memory order here, so only the name tells NHD from HND where page_size equals the number of heads.

Read from FlashInfer's ``docs/tutorials/kv_layout.rst``, ``flashinfer/page.py`` and ``flashinfer/mla``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from hurray_arrow.engines.adapter import Adapter
from hurray_arrow.engines.groups import CacheGroup, ExportOptions, PerLayer
from hurray_arrow.engines.layouts import Content, Layout
from hurray_arrow.engines.tables import of_indptr
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor

#: Every layout by name. ``B2…`` is one array; ``BNHD`` and ``BHND`` are a tuple (K, V), ``BNC`` is (ckv, kpe).
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(name="B2NHD", shapes=("B2NHD",)),
        Layout(name="B2HND", shapes=("B2HND",)),
        Layout(name="BNHD", shapes=("BNHD",), arrays=2),
        Layout(name="BHND", shapes=("BHND",), arrays=2),
        Layout(name="BNC", shapes=("BNC",), arrays=2, content=Content.LATENT),
    )
}
ADAPTER = Adapter("flashinfer", LAYOUTS)

import_cache = ADAPTER.import_cache
restore_into = ADAPTER.restore_into
metadata = ADAPTER.metadata


class PageTable(NamedTuple):
    """The arguments of FlashInfer's ``plan``, each int32.

    Parameters
    ----------
    kv_indptr
        ``[num_seqs + 1]``: where each sequence's pages begin in ``kv_indices``.
    kv_indices
        ``[total_logical_pages]``: page ids, sequence after sequence.
    kv_last_page_len
        ``[num_seqs]``: tokens of each last page, from 1 to page_size.
    """

    kv_indptr: npt.NDArray[np.int32]
    kv_indices: npt.NDArray[np.int32]
    kv_last_page_len: npt.NDArray[np.int32]


def export_cache(
    arrays: Mapping[str, Any],
    *,
    layout: PerLayer,
    kv_indptr: Any,
    kv_indices: Any,
    kv_last_page_len: Any,
    page_size: int,
    **options: Unpack[ExportOptions],
) -> list[BlockPagedTensor]:
    """Give the tensors of a FlashInfer cache.

    Parameters
    ----------
    arrays
        ``{layer_name: array}`` or ``{layer_name: (k, v)}``; ``(ckv, kpe)`` becomes one fused tensor, ckv first.
    layout
        One of ``LAYOUTS``, or one per layer.
    kv_indptr, kv_indices, kv_last_page_len, page_size
        As of :func:`hurray_arrow.engines.tables.of_indptr`: int32, the last page of a sequence is 1 … page_size long.
    **options
        ``element_type``, ``num_heads``, ``head_dim``, ``head_dim_v``, ``scales``, ``pages``, ``copy``,
        ``layer_indices`` and facts of the sequences, as of :meth:`hurray_arrow.engines.adapter.Adapter.export_groups`.

    Returns
    -------
    list of BlockPagedTensor
        New memory; with ``pages="all"`` a tuple's keys and values in NHD are views.

    Raises
    ------
    LayoutError, CopyRequiredError, InvariantError
        As there.

    Examples
    --------
    >>> from hurray_arrow.engines import flashinfer
    >>> cache = {"layers.0": np.zeros((5, 2, 4, 2, 3), np.float16)}
    >>> tensors = flashinfer.export_cache(
    ...     cache, layout="B2NHD", kv_indptr=[0, 2, 3], kv_indices=[4, 1, 4], kv_last_page_len=[3, 2], page_size=4
    ... )
    >>> [(tensor.kv_role, tensor.num_pages, tensor.total_tokens) for tensor in tensors]
    [('key', 2, 9), ('value', 2, 9)]
    """
    tables = of_indptr(kv_indptr, kv_indices, kv_last_page_len, page_size=page_size)
    groups: Sequence[CacheGroup] = [CacheGroup(layer_names=tuple(arrays), tables=tables)]
    return ADAPTER.export_groups(
        arrays,
        layout=layout,
        groups=groups,
        **options,
    )


def page_table(tensor: BlockPagedTensor) -> PageTable:
    """Give a tensor's tables as FlashInfer wants them, for arrays of :func:`import_cache`.

    Parameters
    ----------
    tensor
        With a known length of every sequence.

    Returns
    -------
    PageTable
        New int32 arrays. An empty sequence has a last page length of 0.

    Raises
    ------
    LayoutError
        Pages are absent inside a sequence, behind its end, or too many for int32.
    UnknownSequenceLengthError
        Nobody recorded a length.
    """
    size = tensor.page_size
    lens = np.array([tensor.token_count(seq) for seq in range(tensor.num_seqs)], np.int64)
    counts = np.diff(tensor.seq_ptr.astype(np.int64))
    if (counts != -(-lens // size)).any():
        raise LayoutError(
            "sequences have pages behind their end", expected=(-(-lens // size)).tolist(), actual=counts.tolist()
        )
    if any(positions is not None for positions in tensor.sequences.page_positions or ()):
        raise LayoutError(
            "pages are absent inside a sequence: FlashInfer has no place for that",
            expected=None,
            actual="page_positions",
        )
    largest = max(tensor.num_pages - 1, tensor.block_table.size)
    if largest > np.iinfo(np.int32).max:
        raise LayoutError(f"{largest} does not fit into int32", expected=int(np.iinfo(np.int32).max), actual=largest)
    return PageTable(
        tensor.seq_ptr.astype(np.int32),
        tensor.block_table.astype(np.int32),
        np.where(counts > 0, lens - (counts - 1) * size, 0).astype(np.int32),
    )
