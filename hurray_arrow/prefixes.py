"""The longest prefix of a prompt that stored sequences can restore.

Spec: snapshot format, section 2 (``sequences``, absent pages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hurray_arrow.sequences import Integers, MediaSpan, Sequences, UInt32Array, take_integers


class PrefixMatch(NamedTuple):
    """The sequence with the longest usable prefix; ``sequence`` is ``None`` where no token matches."""

    sequence: int | None
    num_tokens: int
    id: str | None = None


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """What one kv_group stores of its sequences, for :func:`match_groups`.

    Parameters
    ----------
    sequences
        The facts; a length that is not known counts as nothing stored.
    page_size
        Slots of a page.
    window_tokens
        How many tokens its layers look at, the newest one included, as models count it; ``None`` for all.
    adapter, tenant
        Of the sequences that name none.
    """

    sequences: Sequences
    page_size: int
    window_tokens: int | None = None
    adapter: str | None = None
    tenant: str | None = None


def match_prefix(
    sequences: Sequences,
    token_ids: Integers,
    *,
    page_size: int,
    adapter: str | None = None,
    tenant: str | None = None,
    media: Iterable[MediaSpan] | None = None,
    page_aligned: bool = False,
) -> PrefixMatch:
    """Find the stored sequence that shares the longest prefix with a prompt.

    Parameters
    ----------
    sequences
        The stored sequences.
    token_ids
        The prompt's token ids, uint32 ``[tokens]``.
    page_size
        Slots of a page.
    adapter, tenant
        Whose cache may be used: equal ones only, and ``None`` only matches sequences that name none.
    media
        The media in the prompt, positions counted as in ``token_ids``. A match stops before media that the other side
        does not have at the same place with the same digest, because all images share one token id.
    page_aligned
        Count whole pages only.

    Returns
    -------
    PrefixMatch
        The first of the sequences with the most tokens whose keys and values are stored from position 0 without a
        hole. A match never ends inside media.

    Raises
    ------
    InvariantError
        ``field_out_of_range``, ``buffer_dtype`` for ids that are none.

    Spec: snapshot format, section 2.
    """
    group = PrefixGroup(sequences, page_size)
    return match_groups([group], token_ids, adapter=adapter, tenant=tenant, media=media, page_aligned=page_aligned)


def match_groups(
    groups: Sequence[PrefixGroup],
    token_ids: Integers,
    *,
    adapter: str | None = None,
    tenant: str | None = None,
    media: Iterable[MediaSpan] | None = None,
    page_aligned: bool = False,
) -> PrefixMatch:
    """Find the longest prefix that every group can restore; otherwise as :func:`match_prefix`.

    Parameters
    ----------
    groups
        Sequence s of every group is the same sequence. Token ids and media are taken from the first group that knows
        them. A group with a window needs the last ``window_tokens - 1`` tokens of the prefix and no more.
    token_ids, adapter, tenant, media, page_aligned
        As of :func:`match_prefix`.

    Returns
    -------
    PrefixMatch
        As of :func:`match_prefix`.
    """
    prompt = take_integers(token_ids, np.uint32, where="token_ids")
    spans = tuple(media or ())
    best = PrefixMatch(None, 0)
    for s in range(min((_num_seqs(group.sequences) for group in groups), default=0)):
        if any(not _belongs(group, s, adapter=adapter, tenant=tenant) for group in groups):
            continue
        stored = _first_known(groups, "token_ids", s)
        if stored is None or min(stored.size, prompt.size) <= best.num_tokens:
            continue
        rules = [_media_rule(_first_known(groups, "media", s) or (), spans)]
        rules += [_storage_rule(group, s) for group in groups]
        if page_aligned:
            rules += [lambda n, size=group.page_size: n - n % size for group in groups]  # type: ignore[misc]  # mypy cannot type a lambda's default
        num_tokens = _largest(_equal_tokens(stored, prompt), rules)
        if num_tokens > best.num_tokens:
            best = PrefixMatch(s, num_tokens, _first_known(groups, "ids", s))
    return best


Rule = Callable[[int], int]


def _largest(num_tokens: int, rules: Sequence[Rule]) -> int:
    """Give the largest number that every rule lets stand; a rule gives the largest number up to its argument."""
    while True:
        before = num_tokens
        for rule in rules:
            num_tokens = rule(num_tokens)
        if num_tokens == before:
            return num_tokens


def _equal_tokens(stored: UInt32Array, prompt: UInt32Array) -> int:
    size = min(stored.size, prompt.size)
    different = stored[:size] != prompt[:size]
    return int(different.argmax()) if different.any() else size


def _media_rule(stored: Sequence[MediaSpan], given: Sequence[MediaSpan]) -> Rule:
    shared = set(stored) & set(given)
    stop = min((span.first_token for span in set(stored) ^ set(given)), default=None)

    def rule(num_tokens: int) -> int:
        if stop is not None:
            num_tokens = min(num_tokens, stop)
        for span in shared:
            if span.first_token < num_tokens < span.first_token + span.num_tokens:
                num_tokens = span.first_token
        return num_tokens

    return rule


def _storage_rule(group: PrefixGroup, s: int) -> Rule:
    runs, window = _stored_runs(group, s), group.window_tokens

    def rule(num_tokens: int) -> int:
        best = 0
        for first, stop in runs:
            # A run that starts late holds all that the next token looks at only from its own first window on.
            least = 0 if first == 0 else None if window is None else first + window - 1
            if least is not None and least <= min(stop, num_tokens):
                best = max(best, min(stop, num_tokens))
        return best

    return rule


def _stored_runs(group: PrefixGroup, s: int) -> list[tuple[int, int]]:
    """Give the half-open ranges of positions whose keys and values are stored."""
    sequences, page_size = group.sequences, group.page_size
    tokens = sequences.length(s) or 0
    positions = None if sequences.page_positions is None else sequences.page_positions[s]
    if positions is None or not tokens:
        return [(0, tokens)]
    # Python integers: positions are uint64 and may stand at the very end of it.
    starts = positions[: -(-tokens // page_size)].tolist()
    ends = [start + page_size for start in starts[:-1]] + [starts[-1] + tokens - (len(starts) - 1) * page_size]
    runs: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return runs


def _belongs(group: PrefixGroup, s: int, *, adapter: str | None, tenant: str | None) -> bool:
    named = [None if entries is None else entries[s] for entries in (group.sequences.adapter, group.sequences.tenant)]
    general = (group.adapter, group.tenant)
    return [other if own is None else own for own, other in zip(named, general, strict=True)] == [adapter, tenant]


def _first_known(groups: Sequence[PrefixGroup], name: str, s: int) -> Any:
    facts = [getattr(group.sequences, name) for group in groups]
    return next((entries[s] for entries in facts if entries is not None and entries[s] is not None), None)


def _num_seqs(sequences: Sequences) -> int:
    return min(sequences.sizes().values(), default=0)
