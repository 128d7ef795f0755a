"""Compact: keep the pages that sequences name, and no other.

Spec: block-paged layout, Page pool and Prefix Sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from hurray_arrow.ops.group import given_back, take_group
from hurray_arrow.ops.page_table import first_use, whole_pages
from hurray_arrow.ops.parameters import check_movable
from hurray_arrow.ops.results import Tables, moved
from hurray_arrow.tensor import BlockPagedTensor


@overload
def compact(tensors: BlockPagedTensor) -> BlockPagedTensor: ...
@overload
def compact(tensors: Sequence[BlockPagedTensor]) -> list[BlockPagedTensor]: ...
def compact(tensors: BlockPagedTensor | Sequence[BlockPagedTensor]) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Drop the pages that no sequence names, and number the others in the order of their first use.

    Sequences that share a page still share it. Pages that a sequence names stay whole, also slots that no token fills:
    :func:`sanitize` clears those.

    Parameters
    ----------
    tensors
        One tensor, or several of one kv_group.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        As given, in new memory, with the same block tables and facts for all.

    Raises
    ------
    UnsupportedError
        Parameters of which nobody says how they belong to pages: NF4, MXFP, buffers that no scheme names.
    InvariantError
        ``kv_group_mismatch``, and all codes of :meth:`BlockPagedTensor.validate`.

    Examples
    --------
    >>> small = ha.ops.compact(ha.ops.select(keys, "b"))
    >>> small.num_pages, small.page_ids(0).tolist()
    (3, [0, 1, 2])

    Spec: block-paged layout, Prefix Sharing.
    """
    group = take_group(tensors)
    for tensor in group:
        check_movable(tensor, operation="compact")
    first = group[0]
    page_ids, block_table = first_use(first.block_table)
    move = whole_pages(page_ids, page_size=first.page_size)
    tables = Tables(block_table, first.seq_ptr, first.sequences, first.total_tokens)
    return given_back(tensors, [moved((tensor,), move, tables) for tensor in group])
