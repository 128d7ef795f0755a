"""The rules that tie what is known of sequences to a tensor's tables, as functions of fields and arrays.

Spec: wire-format page section 2; snapshot format section 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import Problem, ProblemCode, listed_problems
from hurray_arrow.sequences import BoolArray, Sequences, UInt64Array, effective_lengths, sum_of
from hurray_arrow.spec import UINT64_MAX

IndexArray = npt.NDArray[Any]

_SPEC = "snapshot format 2"


def validate_sequences(
    sequences: Sequences, seq_ptr: IndexArray, *, num_seqs: int, page_size: int, total_tokens: int
) -> list[Problem]:
    """Check what is known of the sequences against the tables: sizes, lengths, positions, token ids, media.

    Parameters
    ----------
    sequences
        The facts.
    seq_ptr
        uint32 or uint64 ``[num_seqs + 1]``; what breaks its own rules is reported elsewhere.
    num_seqs, page_size, total_tokens
        As the descriptor says.

    Returns
    -------
    list of Problem
        Codes ``sequence_facts_size``, ``seq_lens_sum``, ``seq_len_exceeds_pages``, ``page_positions_invalid``,
        ``token_ids_size``, ``media_span_invalid``. A fact of the wrong size is not looked into.

    Spec: wire-format page section 2, snapshot format section 2.
    """
    problems = [
        Problem(
            ProblemCode.SEQUENCE_FACTS_SIZE,
            name,
            f"{size} entries, expected one per sequence ({num_seqs}), None where nobody knows",
            _SPEC,
        )
        for name, size in sequences.sizes().items()
        if size != num_seqs
    ]
    sized = {name for name, size in sequences.sizes().items() if size == num_seqs}
    if seq_ptr.size != num_seqs + 1 or num_seqs == 0:
        return problems
    pages = _pages_per_sequence(seq_ptr)
    facts = sequences if "seq_lens" in sized else Sequences()
    lens, known = effective_lengths(facts, num_seqs=num_seqs, total_tokens=total_tokens)
    if "seq_lens" in sized:
        problems += _length_problems(
            sequences, lens, known, pages=pages, page_size=page_size, total_tokens=total_tokens
        )
    if "page_positions" in sized:
        problems += _position_problems(sequences, pages, page_size=page_size)
    if "token_ids" in sized:
        problems += _token_id_problems(sequences, lens, known, pages=pages, page_size=page_size)
    if "media" in sized:
        problems += _media_problems(sequences, lens, known)
    return problems


def _pages_per_sequence(seq_ptr: IndexArray) -> UInt64Array:
    """Give uint64 ``[num_seqs]``; a sequence whose seq_ptr falls has no pages here, the fall is reported elsewhere."""
    ends, starts = seq_ptr[1:].astype(np.uint64), seq_ptr[:-1].astype(np.uint64)
    return np.where(ends >= starts, ends - starts, np.uint64(0))


def _pages_for(tokens: UInt64Array, page_size: int) -> UInt64Array:
    """Give the pages that so many tokens take, rounded up without adding to a value that may be 2**64 - 1."""
    pages: UInt64Array = tokens // np.uint64(page_size) + (tokens % np.uint64(page_size) != 0)
    return pages


def _length_problems(
    sequences: Sequences, lens: UInt64Array, known: BoolArray, *, pages: UInt64Array, page_size: int, total_tokens: int
) -> list[Problem]:
    problems = listed_problems(
        np.flatnonzero(known & (_pages_for(lens, page_size) > pages)),
        ProblemCode.SEQ_LEN_EXCEEDS_PAGES,
        "wire format 2",
        say=lambda s: (
            f"seq_lens[{s}]",
            f"{lens[s]} tokens, expected <= {pages[s]} pages × page_size {page_size} = {int(pages[s]) * page_size}",
        ),
    )
    total = sequences.recorded_tokens()
    complete = bool(known.all())
    if total > total_tokens or (complete and total != total_tokens):
        expected = f"total_tokens {total_tokens}" if complete else f"<= total_tokens {total_tokens}, some are unknown"
        message = f"sum {total}, expected {expected}"
        problems.append(Problem(ProblemCode.SEQ_LENS_SUM, "seq_lens", message, "wire format 2"))
    most = total + sum_of(pages[~known]) * page_size
    if not complete and total_tokens > most:
        message = f"{most} at most with every slot of the sequences of unknown length, expected {total_tokens} or more"
        problems.append(Problem(ProblemCode.SEQ_LENS_SUM, "seq_lens", message, "wire format 2"))
    return problems


def _position_problems(sequences: Sequences, pages: UInt64Array, *, page_size: int) -> list[Problem]:
    facts = sequences.page_positions or ()
    present = np.flatnonzero([entry is not None for entry in facts])
    arrays = [entry for entry in facts if entry is not None]
    sizes = np.fromiter(map(len, arrays), np.uint64, len(arrays))
    problems = listed_problems(
        np.flatnonzero(sizes != pages[present]),
        ProblemCode.PAGE_POSITIONS_INVALID,
        _SPEC,
        say=lambda k: (
            f"page_positions[{present[k]}]",
            f"{sizes[k]} positions, expected one per stored page ({pages[present[k]]})",
        ),
    )
    flat = np.concatenate([*arrays, np.empty(0, np.uint64)])
    owner, ends = np.repeat(present, sizes.astype(np.intp)), np.cumsum(sizes, dtype=np.int64)
    place = np.arange(flat.size) - np.repeat(ends - sizes.astype(np.int64), sizes.astype(np.intp))
    # Pages must not overlap; compared as a difference, because the sum may pass 2**64.
    close = (owner[1:] == owner[:-1]) & ((flat[1:] <= flat[:-1]) | (flat[1:] - flat[:-1] < np.uint64(page_size)))
    problems += listed_problems(
        np.flatnonzero(close) + 1,
        ProblemCode.PAGE_POSITIONS_INVALID,
        _SPEC,
        say=lambda k: (
            f"page_positions[{owner[k]}][{place[k]}]",
            f"{flat[k]}, expected >= {int(flat[k - 1]) + page_size}, the end of the page at {flat[k - 1]}",
        ),
    )
    last = UINT64_MAX - (page_size - 1)
    return problems + listed_problems(
        np.flatnonzero(flat > np.uint64(last)),
        ProblemCode.PAGE_POSITIONS_INVALID,
        _SPEC,
        say=lambda k: (
            f"page_positions[{owner[k]}][{place[k]}]",
            f"{flat[k]}, expected <= {last}: positions are uint64",
        ),
    )


def _token_id_problems(
    sequences: Sequences, lens: UInt64Array, known: BoolArray, *, pages: UInt64Array, page_size: int
) -> list[Problem]:
    facts, positions = sequences.token_ids or (), sequences.page_positions
    present = np.flatnonzero([entry is not None for entry in facts])
    sizes = np.array([len(entry) for entry in facts if entry is not None], np.uint64)
    absent_pages = np.zeros(len(facts), np.bool_)
    if positions is not None:
        absent_pages[: len(positions)] = [entry is not None for entry in positions[: len(facts)]]
    lens, known, absent, pages = lens[present], known[present], absent_pages[present], pages[present]
    # With absent pages a list may name their tokens too.
    wrong = np.where(absent, sizes < lens, sizes != lens)
    broken = np.where(known, wrong, ~absent & (_pages_for(sizes, page_size) > pages))

    def say(k: int) -> tuple[str, str]:
        if known[k]:
            expected = f"one per {'stored ' if absent[k] else ''}token ({lens[k]}){' or more' if absent[k] else ''}"
        else:
            expected = f"<= {int(pages[k]) * page_size}, the slots of its pages"
        return f"token_ids[{present[k]}]", f"{sizes[k]} token ids, expected {expected}"

    return listed_problems(np.flatnonzero(broken), ProblemCode.TOKEN_IDS_SIZE, _SPEC, say=say)


def _media_problems(sequences: Sequences, lens: UInt64Array, known: BoolArray) -> list[Problem]:
    positions = sequences.page_positions
    broken: list[tuple[str, str]] = []
    for s, spans in enumerate(sequences.media or ()):
        # Media may stand where pages are absent, and then only uint64 bounds it.
        if not known[s] or (positions is not None and s < len(positions) and positions[s] is not None):
            continue
        for span in spans or ():
            end = span.first_token + span.num_tokens
            if end > int(lens[s]):
                message = f"tokens [{span.first_token}, {end}), expected within {lens[s]} tokens"
                broken.append((f"media[{s}]", message))
    places = np.arange(len(broken))
    return listed_problems(places, ProblemCode.MEDIA_SPAN_INVALID, _SPEC, say=lambda k: broken[k])
