"""Sanitize: keep what sequences have stored, and no byte besides.

Spec: block-paged layout, Partial trailing page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import numpy as np

from hurray_arrow.ops.group import given_back, refuse_whole_pages, take_group
from hurray_arrow.ops.page_table import check_lengths_known, entry_fills, first_use, page_fills, whole_pages
from hurray_arrow.ops.parameters import check_movable
from hurray_arrow.ops.results import Tables, moved
from hurray_arrow.tensor import BlockPagedTensor


@overload
def sanitize(tensors: BlockPagedTensor) -> BlockPagedTensor: ...
@overload
def sanitize(tensors: Sequence[BlockPagedTensor]) -> list[BlockPagedTensor]: ...
def sanitize(tensors: BlockPagedTensor | Sequence[BlockPagedTensor]) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Drop the pages that no sequence names, and zero the slots behind each sequence's last token.

    Engines do not clear pages, so that these slots hold what other requests left there. Per-slot parameters are zeroed
    with their slots. A page that sequences fill to different slots keeps the fullest. The caller's memory is never
    written. Pages are numbered by first use, so that a sequence's pages lie together.

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
    UnknownSequenceLengthError
        Nobody recorded where a sequence ends.
    UnsupportedError
        A component ``page.<name>`` with a partly filled page; parameters of which nobody says how they belong to pages.
    InvariantError
        ``kv_group_mismatch``, and all codes of :meth:`BlockPagedTensor.validate`.

    Examples
    --------
    >>> clean = ha.ops.sanitize(keys)
    >>> clean.num_pages, clean.page_pool[clean.page_ids(0)[-1], 3].tolist()  # behind the seventh token
    (4, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    Spec: block-paged layout, Partial trailing page.
    """
    group = take_group(tensors)
    for tensor in group:
        check_movable(tensor, operation="sanitize")
    first = group[0]
    lengths = check_lengths_known(first, why="sanitize cannot tell which slots hold tokens")
    page_ids, block_table = first_use(first.block_table)
    fills = entry_fills(first.seq_ptr, lengths, page_size=first.page_size)
    fill = page_fills(block_table, fills, num_pages=page_ids.size)
    if np.any((fill > 0) & (fill < first.page_size)):
        refuse_whole_pages(group, operation="sanitize (partly filled pages, page.<name>)")
    move = replace(whole_pages(page_ids, page_size=first.page_size), fill=fill)
    tables = Tables(block_table, first.seq_ptr, first.sequences, first.total_tokens)
    return given_back(tensors, [moved((tensor,), move, tables) for tensor in group])
