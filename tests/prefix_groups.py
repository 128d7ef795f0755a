"""Random groups of sequences, as prefixes are looked for in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import hurray_arrow as ha
from hurray_arrow.prefixes import PrefixGroup

#: What the sequences below can belong to.
ADAPTERS, TENANTS = (None, "a", "b"), (None, "a", "b", "t")


def random_groups(rng: np.random.Generator) -> list[PrefixGroup]:
    """One to three groups over the same four sequences: holes, windows, media, owners, lengths that nobody knows."""
    token_ids = [rng.integers(0, 2, rng.integers(0, 30)).astype(np.uint32) for _ in range(4)]
    names = [None, "a", "b"]
    facts = {
        "token_ids": [None if rng.integers(6) == 0 else ids for ids in token_ids],
        "adapter": [names[rng.integers(2)] for _ in token_ids],
        "media": [
            [
                ha.MediaSpan(first, int(rng.integers(0, 5)), "d")
                for first in sorted(rng.integers(0, 20, rng.integers(3)))
            ]
            for _ in token_ids
        ],
    }
    groups = []
    for number in range(rng.integers(1, 4)):
        positions = [
            None if rng.integers(4) else np.unique(rng.integers(0, 8, 5)) * 3 + rng.integers(2) for _ in token_ids
        ]
        lens = [
            len(ids) if at is None else int(rng.integers(3 * len(at) - 2, 3 * len(at) + 1))
            for ids, at in zip(token_ids, positions, strict=True)
        ]
        # Mostly the groups agree on whose a sequence is.
        tenants = [names[rng.integers(2)] if rng.integers(5) == 0 else None for _ in token_ids]
        own = facts if number == 0 else {"adapter": facts["adapter"], "tenant": tenants}
        window = None if rng.integers(2) else int(rng.integers(1, 9))
        sequences = ha.Sequences(seq_lens=lens, page_positions=positions, **own)
        adapter = names[rng.integers(2)] if rng.integers(5) == 0 else None
        groups.append(PrefixGroup(sequences, 3, window_tokens=window, tenant="t", adapter=adapter))
    return groups


def only(groups: list[PrefixGroup], s: int) -> list[PrefixGroup]:
    """Return groups of this one sequence, so that no other one can match in its place."""
    return [replace(group, sequences=_one_of(group.sequences, s)) for group in groups]


def _one_of(sequences: ha.Sequences, s: int) -> ha.Sequences:
    lens, known = sequences.seq_lens, sequences.seq_lens_known
    names = ("ids", "token_ids", "page_positions", "adapter", "tenant", "media")
    facts = {name: getattr(sequences, name) and [getattr(sequences, name)[s]] for name in names}
    return ha.Sequences(seq_lens=[None if known is not None and not known[s] else int(lens[s])], **facts)
