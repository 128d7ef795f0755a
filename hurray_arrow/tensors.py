"""Several tensors, as callers hand them over, and what those of one kv_group have to share.

Spec: snapshot format section 2, kv_group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor


class Paged(Protocol):
    """What :func:`unlike_tables` compares, of a tensor or of a copy that somebody kept."""

    @property
    def page_size(self) -> int:
        """Slots of a page."""

    @property
    def total_tokens(self) -> int:
        """Tokens of all sequences."""

    @property
    def seq_ptr(self) -> npt.NDArray[Any]:
        """Where each sequence's pages begin in ``block_table``."""

    @property
    def block_table(self) -> npt.NDArray[Any]:
        """Page numbers."""

    @property
    def sequences(self) -> Sequences:
        """What is known of each sequence."""


def listed_tensors(tensors: Iterable[Any]) -> list[BlockPagedTensor]:
    """Return tensors as a list.

    Raises
    ------
    TypeError
        One tensor alone, or something else among them.
    """
    if isinstance(tensors, BlockPagedTensor):
        raise TypeError("tensors: one BlockPagedTensor, expected several: [tensor]")
    found = list(tensors)
    for number, tensor in enumerate(found):
        if not isinstance(tensor, BlockPagedTensor):
            message = f"tensors[{number}]: {type(tensor).__name__}, expected BlockPagedTensor"
            raise TypeError(f"{message}: BlockPagedTensor.from_arrays() makes one of arrays")
    return found


def unlike_tables(one: Paged, other: Paged) -> Iterator[str]:
    """Name the fields, by value, in which two tensors differ that those of one kv_group share; the cheap ones first."""
    if one.page_size != other.page_size:
        yield "page_size"
    # Where nobody recorded lengths, only this says that the sequences are other ones.
    if one.total_tokens != other.total_tokens:
        yield "total_tokens"
    if one.seq_ptr is not other.seq_ptr and not np.array_equal(one.seq_ptr, other.seq_ptr):
        yield "seq_ptr"
    if one.block_table is not other.block_table and not np.array_equal(one.block_table, other.block_table):
        yield "block_table"
    # An empty batch has no sequences to know anything of.
    if one.seq_ptr.size > 1 and not one.sequences.equals(other.sequences):
        yield "sequences"
