"""Every rule that ties a tensor's buffers and sequences to its descriptor, as functions of fields and arrays.

A function returns all that is broken, as :func:`~hurray_arrow.errors.listed_problems` lists it. Rules are vectorised
over entries, sizes are Python integers that never wrap, and nothing here reads outside an array, whatever its values.

Spec: block-paged layout, Storage Invariants; wire-format page sections 2 to 4; snapshot format section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, listed_problems
from hurray_arrow.schemes import FIRST_PARAMETER_BUFFER, Quantization
from hurray_arrow.sequence_rules import validate_sequences
from hurray_arrow.sequences import Sequences

IndexArray = npt.NDArray[Any]


def validate_tensor(
    descriptor: BlockPagedDescriptor, arrays: Sequence[npt.NDArray[Any]], *, sequences: Sequences
) -> list[Problem]:
    """Check every rule of a tensor whose arrays have the dtypes and sizes that its descriptor gives them.

    Parameters
    ----------
    descriptor
        Of the tensor.
    arrays
        page_pool, block_table, seq_ptr, then the quantization parameters.
    sequences
        What is known of the sequences.

    Returns
    -------
    list of Problem
        The descriptor's own codes, and those of every function here and of ``sequence_rules``.

    Spec: block-paged layout, Storage Invariants; wire-format page sections 2 to 4; snapshot format section 2.
    """
    page_pool, block_table, seq_ptr, *parameters = arrays
    num_pages, num_seqs, page_size = descriptor.num_pages, descriptor.num_seqs, descriptor.page_size
    tokens = descriptor.total_tokens
    problems = descriptor.validate()
    problems += validate_tables(block_table, seq_ptr, num_pages=num_pages, num_seqs=num_seqs)
    problems += validate_total_tokens(tokens, total_logical_pages=block_table.size, page_size=page_size)
    if descriptor.element_type.is_packed:
        used_bits = descriptor.pool_elems * descriptor.element_type.bits
        problems += validate_pool_padding(page_pool, used_bits=used_bits)
    problems += validate_parameters(
        descriptor.quantization,
        [buffer.nbytes for buffer in parameters],
        shape=descriptor.shape,
        num_pages=num_pages,
        page_size=page_size,
    )
    return problems + validate_sequences(
        sequences, seq_ptr, num_seqs=num_seqs, page_size=page_size, total_tokens=tokens
    )


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
