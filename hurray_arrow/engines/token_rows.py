"""Tokens of a sequence as whole pages: for engines that keep no pages, or keep them in another order.

Spec: block-paged layout, Buffer Table and Prefix Sharing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hurray_arrow.engines.arrays import Int64Array, Words

#: Gives a sequence's stored tokens in the order of their positions: words ``[tokens, num_heads, head_dim]``.
TokenRows: TypeAlias = Callable[[int], Words]


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """Sequences laid out in pages.

    Parameters
    ----------
    block_tables
        int64 ``[pages]`` per sequence: page ids, numbered in order of first use.
    pools
        One ``[num_pages, page_size, num_heads, head_dim]`` per source, new memory; slots behind a sequence's end are 0.
    page_positions
        int64 ``[pages]`` per sequence: position of slot 0 of each page; ``None`` where they start at 0.
    """

    block_tables: list[Int64Array]
    pools: list[Words]
    page_positions: list[Int64Array | None]


def page_rows(
    sources: Sequence[TokenRows],
    *,
    lengths: Sequence[int],
    first_positions: Sequence[int],
    page_size: int,
    page_keys: Iterable[Sequence[Hashable]] | None = None,
) -> PagedRows:
    """Lay sequences out in pages.

    Parameters
    ----------
    sources
        One per tensor; all tensors get the same tables.
    lengths
        Stored tokens of each sequence, at least one sequence.
    first_positions
        Position of the first stored token of each sequence.
    page_size
        Slots of a page.
    page_keys
        For each sequence the keys of its first pages, full ones only: pages with equal keys are stored once, as long as
        all pages before them are, too. The caller vouches for equal bytes under equal keys.

    Returns
    -------
    PagedRows
        New arrays.
    """
    own_from, block_tables, num_pages = [], [], 0
    known: dict[Hashable, int] = {}
    for tokens, keys in zip(lengths, page_keys or [()] * len(lengths), strict=True):
        shared = 0
        while shared < len(keys) and keys[shared] in known:
            shared += 1
        own = np.arange(num_pages, num_pages + -(-tokens // page_size) - shared, dtype=np.int64)
        num_pages += own.size
        block_tables.append(np.concatenate([[known[key] for key in keys[:shared]], own]).astype(np.int64))
        known.update(zip(keys[shared:], own.tolist(), strict=False))
        own_from.append(shared * page_size)
    pools = [_pool(rows, block_tables, lengths, own_from, num_pages=num_pages, page_size=page_size) for rows in sources]
    positions = [
        None if first == 0 else first + page_size * np.arange(table.size, dtype=np.int64)
        for first, table in zip(first_positions, block_tables, strict=True)
    ]
    return PagedRows(block_tables, pools, positions)


def page_digests(
    sources: Sequence[TokenRows], s: int, *, tokens: int, first_position: int, page_size: int
) -> list[bytes]:
    """Give a key per full page of a sequence: a digest of its bytes in every source and of all pages before it.

    Parameters
    ----------
    sources
        As of :func:`page_rows`.
    s
        The sequence.
    tokens
        Its stored tokens.
    first_position
        Position of the first one.
    page_size
        Slots of a page.

    Returns
    -------
    list of bytes
        blake2b of 256 bits: nobody finds two contents for one.
    """
    rows = [source(s) for source in sources]
    state = hashlib.blake2b(str(first_position).encode(), digest_size=32)
    digests = []
    for start in range(0, tokens - page_size + 1, page_size):
        for each in rows:
            state.update(np.ascontiguousarray(each[start : start + page_size]).view(np.uint8).data)
        digests.append(state.digest())
    return digests


def _pool(
    rows: TokenRows,
    block_tables: Sequence[Int64Array],
    lengths: Sequence[int],
    own_from: Sequence[int],
    *,
    num_pages: int,
    page_size: int,
) -> Words:
    pool: Words | None = None
    for s, (table, tokens, start) in enumerate(zip(block_tables, lengths, own_from, strict=True)):
        taken = rows(s)
        if pool is None:
            pool = np.empty((num_pages, page_size, *taken.shape[1:]), taken.dtype)
        if tokens > start:
            # A sequence's own pages follow each other.
            first, stop = int(table[start // page_size]), int(table[-1]) + 1
            slots = pool[first:stop].reshape((stop - first) * page_size, *taken.shape[1:])
            slots[: tokens - start] = taken[start:]
            slots[tokens - start :] = 0
    return np.empty((0, page_size, 0, 0)) if pool is None else pool
