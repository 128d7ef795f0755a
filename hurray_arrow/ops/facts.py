"""What is known of sequences, chosen, cut and joined with them.

Spec: snapshot format section 2, sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.ops.page_table import stored_lengths
from hurray_arrow.sequences import MediaSpan, Sequences
from hurray_arrow.tensor import BlockPagedTensor

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one sequence; ``None`` where nobody knows."""

    seq_len: int | None = None
    id: str | None = None
    token_ids: npt.NDArray[np.uint32] | None = None
    page_positions: UInt64Array | None = None
    adapter: str | None = None
    tenant: str | None = None
    media: tuple[MediaSpan, ...] | None = None


def facts_of(tensor: BlockPagedTensor, places: Sequence[int] | None = None) -> list[Facts]:
    """Give what is known of sequences, of all without ``places``; the length of a single one is total_tokens."""
    known = tensor.sequences
    lengths, is_known = stored_lengths(tensor)
    chosen: Sequence[int] = range(tensor.num_seqs) if places is None else places
    where = np.asarray(chosen, np.intp)

    def entries(name: str) -> Sequence[Any]:
        values: Sequence[Any] | None = getattr(known, name)
        return [None] * len(chosen) if values is None else [values[place] for place in chosen]

    columns = [entries(name) for name in ("ids", "token_ids", "page_positions", "adapter", "tenant", "media")]
    rows = zip(lengths[where].tolist(), is_known[where].tolist(), *columns, strict=True)
    return [
        Facts(
            seq_len=length if recorded else None,
            id=name,
            token_ids=token_ids,
            page_positions=positions,
            adapter=adapter,
            tenant=tenant,
            media=media,
        )
        for length, recorded, name, token_ids, positions, adapter, tenant, media in rows
    ]


def join_facts(facts: Iterable[Facts]) -> Sequences:
    """Put the facts of single sequences together."""
    listed = list(facts)
    if not listed:
        return Sequences()
    return Sequences(
        seq_lens=[each.seq_len for each in listed],
        ids=[each.id for each in listed],
        token_ids=[each.token_ids for each in listed],
        page_positions=[each.page_positions for each in listed],
        adapter=[each.adapter for each in listed],
        tenant=[each.tenant for each in listed],
        media=[each.media for each in listed],
    )


def cut_facts(facts: Facts, *, seq_len: int, page_positions: UInt64Array | None, end: int) -> Facts:
    """Cut the facts of a sequence to a range of its positions.

    What names tokens before the range stays, because their values went into those of the range; what comes behind it
    goes. A media span that the end cuts is shortened.

    Parameters
    ----------
    facts
        Of the whole sequence.
    seq_len
        Tokens stored in the range.
    page_positions
        Of its pages.
    end
        Position behind the last token in the range, 0 for an empty range.

    Returns
    -------
    Facts

    Spec: snapshot format section 2, sequences.
    """
    media = facts.media
    if media is not None:
        media = tuple(
            MediaSpan(span.first_token, min(span.num_tokens, end - span.first_token), span.digest)
            for span in media
            if span.first_token < end
        )
    return Facts(
        seq_len=seq_len,
        id=facts.id,
        token_ids=None if facts.token_ids is None else facts.token_ids[:end],
        page_positions=page_positions,
        adapter=facts.adapter,
        tenant=facts.tenant,
        media=media,
    )


def regrouped_positions(
    positions: UInt64Array | None, *, page_size: int, start: int, end: int, new_page_size: int
) -> tuple[UInt64Array | None, int | None]:
    """Give the positions of new pages that hold the stored tokens ``[start, end)`` of a sequence.

    Parameters
    ----------
    positions
        uint64 ``[pages]``: where the old pages begin; ``None`` when page i begins at i × page_size.
    page_size, new_page_size
        Slots of an old and of a new page.
    start, end
        Stored tokens.

    Returns
    -------
    positions : numpy.ndarray or None
        New uint64 array ``[new pages]``; ``None`` where page i begins at i × new_page_size for the same reason.
    broken : int or None
        The first new page that would hold a hole, which no page can; ``None`` where there is none.

    Spec: snapshot format section 2, absent pages.
    """
    if positions is None and start == 0:
        return None, None
    first = np.arange(start, end, new_page_size)
    if positions is None:
        return first.astype(np.uint64), None
    last = np.minimum(first + new_page_size, end) - 1

    def position(token: npt.NDArray[np.int64]) -> UInt64Array:
        page, slot = np.divmod(token, page_size)
        places: UInt64Array = positions[page] + slot.astype(np.uint64)
        return places

    begins = position(first)
    broken = np.flatnonzero(position(last) - begins != (last - first).astype(np.uint64))
    return begins, int(broken[0]) if broken.size else None
