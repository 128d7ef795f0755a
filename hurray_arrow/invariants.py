"""Every rule that ties a tensor's buffers and sequences to its descriptor, as functions of fields and arrays.

A function returns all that is broken, the first :data:`SHOWN_OF_A_KIND` problems of a kind and then one that counts
them. Rules are vectorised over entries, sizes are Python integers that never wrap, and nothing here reads outside an
array, whatever its values are.

Spec: block-paged layout, Storage Invariants; wire-format page sections 2 to 4; snapshot format section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import InvariantError, Problem, ProblemCode
from hurray_arrow.schemes import FIRST_PARAMETER_BUFFER, Quantization
from hurray_arrow.sequences import Sequences, UInt64Array, sum_of
from hurray_arrow.spec import UINT64_MAX

IndexArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]

#: How many problems of one kind are listed before they are only counted.
SHOWN_OF_A_KIND = 100

_FACTS_SPEC = "snapshot format 2"


def listed_problems(
    places: npt.NDArray[np.intp], code: ProblemCode, spec: str, *, say: Callable[[int], tuple[str, str]]
) -> list[Problem]:
    """Turn the places of broken entries into problems: the first :data:`SHOWN_OF_A_KIND`, and one that counts them.

    Parameters
    ----------
    places, code, spec
        int ``[broken]``, and the rule.
    say
        Gives (where, message) of one place; ``where`` ends in brackets.
    """
    problems = [Problem(code, *say(place), spec) for place in places[:SHOWN_OF_A_KIND].tolist()]
    if places.size > SHOWN_OF_A_KIND:
        where = problems[0].where.partition("[")[0]
        message = f"{places.size} entries are broken in this way, the first {SHOWN_OF_A_KIND} are listed"
        problems.append(Problem(code, where, message, spec))
    return problems


def validate_tables(block_table: IndexArray, seq_ptr: IndexArray, *, num_pages: int, num_seqs: int) -> list[Problem]:
    """Check that the tables have their sizes, that seq_ptr cuts block_table and that page ids name pages.

    Parameters
    ----------
    block_table
        uint32 or uint64 ``[total_logical_pages]``.
    seq_ptr
        uint32 or uint64 ``[num_seqs + 1]``.
    num_pages, num_seqs
        As the descriptor says.

    Returns
    -------
    list of Problem
        Codes ``seq_ptr_size``, ``seq_ptr_start``, ``seq_ptr_end``, ``seq_ptr_decreasing``, ``page_id_out_of_range``.

    Spec: Storage Invariants 1 to 3.
    """
    problems = []
    if seq_ptr.size != num_seqs + 1:
        message = f"{seq_ptr.size} entries, expected num_seqs + 1 = {num_seqs + 1}"
        problems.append(Problem(ProblemCode.SEQ_PTR_SIZE, "seq_ptr", message, "Storage Invariants 1"))
    if seq_ptr.size:
        first, last = int(seq_ptr[0]), int(seq_ptr[-1])
        if first != 0:
            message = f"{first}, expected 0"
            problems.append(Problem(ProblemCode.SEQ_PTR_START, "seq_ptr[0]", message, "Storage Invariants 1"))
        if last != block_table.size:
            where = f"seq_ptr[{seq_ptr.size - 1}]"
            message = f"{last}, expected the number of block_table entries {block_table.size}"
            problems.append(Problem(ProblemCode.SEQ_PTR_END, where, message, "Storage Invariants 1"))
    falls = np.flatnonzero(seq_ptr[1:] < seq_ptr[:-1])
    problems += listed_problems(
        falls,
        ProblemCode.SEQ_PTR_DECREASING,
        "Storage Invariants 2",
        say=lambda s: (f"seq_ptr[{s + 1}]", f"{seq_ptr[s + 1]}, expected >= seq_ptr[{s}] = {seq_ptr[s]}"),
    )
    return problems + validate_page_ids(block_table, num_pages=num_pages)


def validate_page_ids(
    page_ids: IndexArray, *, num_pages: int, name: str = "block_table", first: int = 0
) -> list[Problem]:
    """Check that every page id names a page of the pool.

    Parameters
    ----------
    page_ids
        Integers ``[n]``: block_table, or a run of it.
    num_pages
        Size of the pool in pages.
    name, first
        Where the ids stand and the place there of the first, for the message.

    Returns
    -------
    list of Problem
        Code ``page_id_out_of_range``.

    Spec: Storage Invariants 3.
    """
    if not page_ids.size or (int(page_ids.max()) < num_pages and (page_ids.dtype.kind == "u" or page_ids.min() >= 0)):
        return []
    # The largest id is too large or an id is negative; num_pages fits the ids' type in the first case only.
    high = page_ids >= num_pages if num_pages <= np.iinfo(page_ids.dtype).max else np.zeros(page_ids.shape, np.bool_)
    return listed_problems(
        np.flatnonzero(high | (page_ids < 0)),
        ProblemCode.PAGE_ID_OUT_OF_RANGE,
        "Storage Invariants 3",
        say=lambda k: (f"{name}[{first + k}]", f"page id {page_ids[k]}, expected < num_pages {num_pages}"),
    )


def check_page_ids(page_ids: IndexArray, *, num_pages: int, name: str = "block_table", first: int = 0) -> None:
    """Raise what :func:`validate_page_ids` finds.

    Raises
    ------
    InvariantError
        ``page_id_out_of_range``.

    Spec: Storage Invariants 3.
    """
    problems = validate_page_ids(page_ids, num_pages=num_pages, name=name, first=first)
    if problems:
        raise InvariantError(problems)


def validate_pool_padding(pool_bytes: npt.NDArray[np.uint8], *, used_bits: int) -> list[Problem]:
    """Check that the bits of a packed pool behind its last element are 0.

    Parameters
    ----------
    pool_bytes
        uint8 ``[bytes]``: the whole pool.
    used_bits
        Elements of the pool × bits of an element.

    Returns
    -------
    list of Problem
        Code ``page_pool_padding``.

    Spec: wire-format page section 4.
    """
    first, shift = divmod(used_bits, 8)
    # A 6-bit pool ends in a group of three bytes, so that more than one byte may be unused.
    tail = pool_bytes[first:].tolist()
    if not tail or (tail[0] >> shift == 0 and not any(tail[1:])):
        return []
    message = f"bits behind bit {used_bits} are set, expected 0"
    return [Problem(ProblemCode.PAGE_POOL_PADDING, f"page_pool byte {first}", message, "wire format 4")]


def validate_parameters(
    quantization: Quantization | None,
    sizes_bytes: Sequence[int],
    *,
    shape: tuple[int, int, int],
    num_pages: int,
    page_size: int,
) -> list[Problem]:
    """Check that the quantization parameters have the sizes that the scheme gives them.

    Parameters
    ----------
    quantization
        The scheme; ``None`` and schemes without a rule have nothing to check.
    sizes_bytes
        Sizes of buffers 3, 4, ….
    shape, num_pages, page_size
        As the descriptor says.

    Returns
    -------
    list of Problem
        Code ``quantization_buffer_size``.

    Spec: block-paged layout, Storage Invariants 5 and Quantization Compatibility.
    """
    if quantization is None:
        return []
    problems = []
    expected_sizes = quantization.parameter_sizes(shape, num_pages, page_size)
    for index, expected in sorted(expected_sizes.items()):
        size = sizes_bytes[index - FIRST_PARAMETER_BUFFER]
        if size != expected:
            message = f"{size} bytes, expected {expected} for scheme {quantization.scheme}"
            code = ProblemCode.QUANTIZATION_BUFFER_SIZE
            problems.append(Problem(code, f"buffers[{index}]", message, "Storage Invariants 5"))
    return problems


def validate_total_tokens(total_tokens: int, *, total_logical_pages: int, page_size: int) -> list[Problem]:
    """Check that the tokens of the batch fit into the pages that block_table names.

    Parameters
    ----------
    total_tokens
        shape[0] of the descriptor.
    total_logical_pages
        Entries of block_table.
    page_size
        Slots of a page.

    Returns
    -------
    list of Problem
        Code ``total_tokens_exceed_pages``.

    Spec: block-paged layout, Logical Shape and Partial trailing page.
    """
    slots = total_logical_pages * page_size
    if total_tokens <= slots:
        return []
    message = f"{total_tokens} tokens, expected <= {total_logical_pages} pages × {page_size} slots = {slots}"
    return [Problem(ProblemCode.TOTAL_TOKENS_EXCEED_PAGES, "descriptor.shape[0]", message, "Logical Shape")]


def validate_sequences(
    sequences: Sequences, seq_ptr: IndexArray, *, num_seqs: int, page_size: int, total_tokens: int
) -> list[Problem]:
    """Check what is known of the sequences against the tables: sizes, lengths, positions, token ids, media.

    Parameters
    ----------
    sequences
        The facts.
    seq_ptr
        uint32 or uint64 ``[num_seqs + 1]``; its own rules are those of :func:`validate_tables`.
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
            _FACTS_SPEC,
        )
        for name, size in sequences.sizes().items()
        if size != num_seqs
    ]
    sized = {name for name, size in sequences.sizes().items() if size == num_seqs}
    if seq_ptr.size != num_seqs + 1 or num_seqs == 0:
        return problems
    pages = _pages_per_sequence(seq_ptr)
    lens, known = _effective_lengths(sequences if "seq_lens" in sized else Sequences(), num_seqs, total_tokens)
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


def _effective_lengths(sequences: Sequences, num_seqs: int, total_tokens: int) -> tuple[UInt64Array, BoolArray]:
    """Give lengths and which are known: with one sequence the length is total_tokens."""
    if sequences.seq_lens is None:
        known = np.full(num_seqs, num_seqs == 1)
        return np.full(num_seqs, total_tokens if num_seqs == 1 else 0, np.uint64), known
    known = np.ones(num_seqs, np.bool_) if sequences.seq_lens_known is None else sequences.seq_lens_known
    return sequences.seq_lens, known


def _length_problems(
    sequences: Sequences, lens: UInt64Array, known: BoolArray, *, pages: UInt64Array, page_size: int, total_tokens: int
) -> list[Problem]:
    # Rounded up without adding to a value that may be 2**64 - 1.
    needed = lens // np.uint64(page_size) + (lens % np.uint64(page_size) != 0)
    problems = listed_problems(
        np.flatnonzero(known & (needed > pages)),
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
        _FACTS_SPEC,
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
        _FACTS_SPEC,
        say=lambda k: (
            f"page_positions[{owner[k]}][{place[k]}]",
            f"{flat[k]}, expected >= {int(flat[k - 1]) + page_size}, the end of the page at {flat[k - 1]}",
        ),
    )
    last = UINT64_MAX - (page_size - 1)
    return problems + listed_problems(
        np.flatnonzero(flat > np.uint64(last)),
        ProblemCode.PAGE_POSITIONS_INVALID,
        _FACTS_SPEC,
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

    return listed_problems(np.flatnonzero(broken), ProblemCode.TOKEN_IDS_SIZE, _FACTS_SPEC, say=say)


def _pages_for(tokens: UInt64Array, page_size: int) -> UInt64Array:
    """Give the pages that so many tokens take, rounded up without adding to a value that may be 2**64 - 1."""
    pages: UInt64Array = tokens // np.uint64(page_size) + (tokens % np.uint64(page_size) != 0)
    return pages


def _media_problems(sequences: Sequences, lens: UInt64Array, known: BoolArray) -> list[Problem]:
    positions = sequences.page_positions
    problems = []
    for s, spans in enumerate(sequences.media or ()):
        # Media may stand where pages are absent, and then only uint64 bounds it.
        if not known[s] or (positions is not None and s < len(positions) and positions[s] is not None):
            continue
        for span in spans or ():
            end = span.first_token + span.num_tokens
            if end > int(lens[s]):
                problems.append((s, f"tokens [{span.first_token}, {end}), expected within {lens[s]} tokens"))
    return _said(problems, ProblemCode.MEDIA_SPAN_INVALID, "media")


def _said(problems: list[tuple[int, str]], code: ProblemCode, name: str) -> list[Problem]:
    places = np.arange(len(problems))
    return listed_problems(places, code, _FACTS_SPEC, say=lambda k: (f"{name}[{problems[k][0]}]", problems[k][1]))
