"""Repage: the same tokens in pages of another size.

Spec: block-paged layout, Page pool; snapshot format section 2, absent pages.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex, overload

import numpy as np

from hurray_arrow.errors import InvalidDescriptorError, InvariantError, Problem, ProblemCode, QuantizationError
from hurray_arrow.ops.facts import UInt64Array, regrouped_positions
from hurray_arrow.ops.group import Group, given_back, refuse_whole_pages, take_group
from hurray_arrow.ops.page_table import Int64Array, ends_of, regroup
from hurray_arrow.ops.parameters import check_movable
from hurray_arrow.ops.results import Tables, moved, scheme_of_size
from hurray_arrow.sequences import Sequences
from hurray_arrow.spec import UINT32_MAX
from hurray_arrow.tensor import BlockPagedTensor


@overload
def repage(tensors: BlockPagedTensor, page_size: SupportsIndex) -> BlockPagedTensor: ...
@overload
def repage(tensors: Sequence[BlockPagedTensor], page_size: SupportsIndex) -> list[BlockPagedTensor]: ...
def repage(
    tensors: BlockPagedTensor | Sequence[BlockPagedTensor], page_size: SupportsIndex
) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Lay the stored tokens of every sequence into pages of another size.

    Sequences share a new page wherever it would hold the same slots, also where one ends earlier in it: going to larger
    pages a shared page whose continuations differ is stored once for each, and going back does not undo that. Pages
    behind the last token and pages that no sequence names are left out; where nobody knows how long a sequence is, all
    its slots are kept. Slots that no old page fills are 0.

    Absent pages stay absent. A new page cannot hold a hole, and only the last page may be partial, so the tokens
    between two holes have to fill whole new pages.

    Parameters
    ----------
    tensors
        One tensor, or several of one kv_group; per-slot parameters and companions move with their slots.
    page_size
        Slots of a new page, of any size. The tensors come back as they are where it is theirs.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        As given, in new memory, with the same block tables and facts for all.

    Raises
    ------
    InvalidDescriptorError
        ``page_size_invalid``.
    QuantizationError
        ``quantization_block_size_invalid``: per-slot parameters need a power of two, at least 2.
    InvariantError
        ``page_positions_invalid``: a new page would hold a hole. ``kv_group_mismatch``, and all codes of
        :meth:`BlockPagedTensor.validate`.
    UnsupportedError
        A component ``page.<name>``; parameters of which nobody says how they belong to pages.

    Examples
    --------
    >>> wide = ha.ops.repage(keys, 8)
    >>> wide.page_pool.shape, bool((wide.gather(1) == keys.gather(1)).all())
    ((3, 8, 2, 3), True)

    Spec: block-paged layout, Per-scheme composition; snapshot format section 2, absent pages.
    """
    if not isinstance(page_size, SupportsIndex):
        raise TypeError(f"page_size: {page_size!r}, expected an integer")
    new_page_size = operator.index(page_size)
    if not 1 <= new_page_size <= UINT32_MAX:
        message = f"{new_page_size}, expected 1…{UINT32_MAX}"
        raise InvalidDescriptorError(Problem(ProblemCode.PAGE_SIZE_INVALID, "page_size", message, "wire format 1"))
    group = take_group(tensors)
    first = group[0]
    if new_page_size == first.page_size:
        return given_back(tensors, group)
    _check_expressible(group, new_page_size)
    ends = ends_of(first)
    sequences = _repositioned(first, ends, new_page_size)
    made = regroup(
        first.block_table,
        first.seq_ptr,
        page_size=first.page_size,
        starts=np.zeros_like(ends),
        ends=ends,
        new_page_size=new_page_size,
    )
    tables = Tables(made.block_table, made.seq_ptr, sequences, first.total_tokens)
    return given_back(tensors, [moved((tensor,), made.move, tables) for tensor in group])


def _check_expressible(group: Group, new_page_size: int) -> None:
    refuse_whole_pages(group, operation="repage")
    for tensor in group:
        check_movable(tensor, operation="repage")
        scheme = scheme_of_size(tensor, new_page_size)
        buffers = len(tensor.descriptor.buffers)
        if scheme is not None and (problems := scheme.validate(page_size=new_page_size, buffer_count=buffers)):
            raise QuantizationError(problems)


def _repositioned(tensor: BlockPagedTensor, ends: Int64Array, new_page_size: int) -> Sequences:
    """Give the facts with the positions of the new pages."""
    known = tensor.sequences
    if known.page_positions is None:
        return known
    problems, moved_positions = [], list[UInt64Array | None]()
    for s, (positions, end) in enumerate(zip(known.page_positions, ends.tolist(), strict=True)):
        begins, broken = regrouped_positions(
            positions, page_size=tensor.page_size, start=0, end=end, new_page_size=new_page_size
        )
        moved_positions.append(begins)
        if broken is not None:
            message = f"page {broken} of {new_page_size} slots would hold a hole: repage to a smaller page_size"
            code = ProblemCode.PAGE_POSITIONS_INVALID
            problems.append(Problem(code, f"page_positions[{s}]", message, "snapshot format 2"))
    if problems:
        raise InvariantError(problems)
    facts = {name: getattr(known, name) for name in ("ids", "token_ids", "adapter", "tenant", "media")}
    return Sequences(
        seq_lens=known.seq_lens, seq_lens_known=known.seq_lens_known, page_positions=moved_positions, **facts
    )
