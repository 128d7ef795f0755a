"""The longest prefix of a prompt that stored sequences can restore.

Spec: snapshot format, section 2 (``sequences``, absent pages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import InvariantError, Problem, ProblemCode
from hurray_arrow.sequences import Integers, MediaSpan, Sequences, UInt32Array, take_integers


class PrefixMatch(NamedTuple):
    """The sequence with the longest usable prefix.

    Parameters
    ----------
    sequence
        Its place; ``None`` where no token matches.
    num_tokens
        Tokens from the start of the prompt that it has; 0 where none matches.
    id
        The producer's name of it, where it has one.
    """

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
        How many tokens its layers look at, the newest one included, as models count it; ``None`` or 0 for all.
    adapter, tenant
        Of the sequences that name none.
    """

    sequences: Sequences
    page_size: int
    window_tokens: int | None = None
    adapter: str | None = None
    tenant: str | None = None


class StoredPrefixes(NamedTuple):
    """The prefixes of one stored sequence that can be restored, and what they are prefixes of.

    Parameters
    ----------
    sequence
        Its place.
    adapter, tenant
        Whose it is.
    token_ids
        uint32 ``[tokens]``.
    media
        The media in it.
    lengths
        int64, ascending: multiples of the step, and the longest prefix of all.
    """

    sequence: int
    adapter: str | None
    tenant: str | None
    token_ids: UInt32Array
    media: tuple[MediaSpan, ...]
    lengths: npt.NDArray[np.int64]


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
        ``field_out_of_range``, ``buffer_dtype`` for ids that are none; ``page_positions_invalid`` for fewer positions
        than a sequence's tokens take pages.

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
    for s in range(_num_seqs(groups)):
        if any(_owner(group, s) != (adapter, tenant) for group in groups):
            continue
        stored = _first_known(groups, "token_ids", s)
        if stored is None or min(stored.size, prompt.size) <= best.num_tokens:
            continue
        rules = [_media_rule(_first_known(groups, "media", s) or (), spans)]
        rules += [_storage_rule(group, s) for group in groups]
        if page_aligned:
            rules += [_page_rule(group.page_size) for group in groups]
        num_tokens = _largest(_equal_tokens(stored, prompt), rules)
        if num_tokens > best.num_tokens:
            best = PrefixMatch(s, num_tokens, _first_known(groups, "ids", s))
    return best


def stored_prefixes(groups: Sequence[PrefixGroup], *, step_tokens: int) -> Iterator[StoredPrefixes]:
    """Give for each sequence the prefixes that :func:`match_groups` finds whole when it is asked for exactly them.

    Parameters
    ----------
    groups
        As of :func:`match_groups`.
    step_tokens
        Lengths that are multiples of this are given, beside the longest.

    Yields
    ------
    StoredPrefixes
        In order. Sequences whose token ids nobody knows, of which nothing can be restored, or on whose adapter or
        tenant the groups disagree, are left out: nothing ever matches them.
    """
    for s in range(_num_seqs(groups)):
        owners = {_owner(group, s) for group in groups}
        token_ids = _first_known(groups, "token_ids", s)
        if token_ids is None or len(owners) != 1:
            continue
        media = tuple(_first_known(groups, "media", s) or ())
        longest = _largest(token_ids.size, [_media_rule(media, media), *(_storage_rule(group, s) for group in groups)])
        if longest:
            steps = np.arange(step_tokens, longest, step_tokens, dtype=np.int64)
            for group in groups:
                steps = steps[_within(steps, _restorable_ranges(group, s))]
            for span in media:
                steps = steps[(steps <= span.first_token) | (steps >= span.first_token + span.num_tokens)]
            yield StoredPrefixes(s, *owners.pop(), token_ids, media, np.append(steps, longest))


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


def _page_rule(page_size: int) -> Rule:
    return lambda num_tokens: num_tokens - num_tokens % page_size


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
    ranges = _restorable_ranges(group, s)

    def rule(num_tokens: int) -> int:
        return max((min(stop, num_tokens) for least, stop in ranges if least <= num_tokens), default=0)

    return rule


def _restorable_ranges(group: PrefixGroup, s: int) -> list[tuple[int, int]]:
    """Give the ranges, ends included and ascending, of the lengths at which all that the next token looks at is stored.

    A run that starts late has that only from its own first window on.
    """
    # A window of no token is none: somebody wrote 0 for "not set".
    window = group.window_tokens or None
    ranges = []
    for first, stop in _stored_runs(group, s):
        least = 0 if first == 0 else None if window is None else first + window - 1
        if least is not None and least <= stop:
            ranges.append((least, stop))
    return ranges


def _within(lengths: npt.NDArray[np.int64], ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    most = np.iinfo(np.int64).max
    bounds = np.array([(min(least, most), min(stop, most)) for least, stop in ranges], np.int64).reshape(-1, 2)
    place = np.searchsorted(bounds[:, 0], lengths, side="right") - 1
    stops = np.append(bounds[:, 1], -1)
    return lengths <= stops[place]


def _stored_runs(group: PrefixGroup, s: int) -> list[tuple[int, int]]:
    """Give the half-open ranges of positions whose keys and values are stored."""
    sequences, page_size = group.sequences, group.page_size
    tokens = sequences.length(s) or 0
    positions = None if sequences.page_positions is None else sequences.page_positions[s]
    if positions is None or not tokens:
        return [(0, tokens)]
    num_pages = -(-tokens // page_size)
    if len(positions) < num_pages:
        # Of a snapshot only the facts are read here, and no tensor that would be checked with them.
        message = f"{len(positions)} positions, {tokens} tokens take {num_pages} pages of {page_size}"
        raise InvariantError(
            Problem(ProblemCode.PAGE_POSITIONS_INVALID, f"page_positions[{s}]", message, "snapshot format 2")
        )
    # Python integers: positions are uint64 and may stand at the very end of it.
    starts = positions[:num_pages].tolist()
    ends = [start + page_size for start in starts[:-1]] + [starts[-1] + tokens - (len(starts) - 1) * page_size]
    runs: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return runs


def _owner(group: PrefixGroup, s: int) -> tuple[str | None, str | None]:
    """Give the adapter and the tenant that a sequence belongs to."""
    adapters, tenants = group.sequences.adapter, group.sequences.tenant
    adapter = None if adapters is None else adapters[s]
    tenant = None if tenants is None else tenants[s]
    return group.adapter if adapter is None else adapter, group.tenant if tenant is None else tenant


def _first_known(groups: Sequence[PrefixGroup], name: str, s: int) -> Any:
    facts = [getattr(group.sequences, name) for group in groups]
    return next((entries[s] for entries in facts if entries is not None and entries[s] is not None), None)


def _num_seqs(groups: Sequence[PrefixGroup]) -> int:
    return min((min(group.sequences.sizes().values(), default=0) for group in groups), default=0)
