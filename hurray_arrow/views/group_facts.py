"""What the tables of a kv_group say of its sequences and pages, worked out once for all tensors that share them.

Spec: block-paged layout, Prefix Sharing and Partial trailing page; snapshot format section 2.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.errors import UnknownSequenceLengthError, UnsupportedError
from hurray_arrow.sequences import Sequences, effective_lengths
from hurray_arrow.sharing import sequences_per_named_page
from hurray_arrow.tensor import BlockPagedTensor

Int64Array: TypeAlias = npt.NDArray[np.int64]

#: A length that nobody recorded.
UNKNOWN = -1
#: Pages that have bytes are bounded by them; of others no more than this are listed one by one.
MOST_PAGES_WITHOUT_BYTES = 2**20


class GroupFacts:
    """Tables and sequences of a group as int64 arrays.

    Parameters
    ----------
    tensor
        A tensor of the group; its rules have been checked.

    Attributes
    ----------
    page_size, num_pages
        The tensor's.
    table, seq_ptr
        int64 ``[entries]`` and ``[num_seqs + 1]``.
    num_tokens
        int64 ``[num_seqs]``: stored tokens, -1 where nobody recorded them.
    """

    def __init__(self, tensor: BlockPagedTensor) -> None:
        self.page_size = tensor.page_size
        self.num_pages = tensor.num_pages
        self.sequences: Sequences = tensor.sequences
        self._can_be_listed = tensor.buffers[0].size > 0 or tensor.num_pages <= MOST_PAGES_WITHOUT_BYTES
        self.table: Int64Array = tensor.block_table.astype(np.int64)
        self.seq_ptr: Int64Array = tensor.seq_ptr.astype(np.int64)
        self._sequences_per_page: Any = tensor.sequences_per_page
        self.num_tokens = _num_tokens(tensor)

    @property
    def num_seqs(self) -> int:
        """Sequences."""
        return self.seq_ptr.size - 1

    @cached_property
    def owners(self) -> Int64Array:
        """int64 ``[entries]``: the sequence that each table entry belongs to."""
        return np.repeat(np.arange(self.num_seqs), np.diff(self.seq_ptr))

    @cached_property
    def places(self) -> Int64Array:
        """int64 ``[entries]``: which page of its sequence each table entry is."""
        return np.arange(self.table.size) - np.repeat(self.seq_ptr[:-1], np.diff(self.seq_ptr))

    @property
    def listed_pages(self) -> int:
        """Pages, of which there is one entry in arrays ``[num_pages]``.

        Raises
        ------
        UnsupportedError
            Pages without bytes, of which a small file may claim more than memory holds.
        """
        if not self._can_be_listed:
            message = f"{self.num_pages} pages without bytes, expected at most {MOST_PAGES_WITHOUT_BYTES} to list them"
            raise UnsupportedError(message)
        return self.num_pages

    @cached_property
    def sequences_per_named_page(self) -> Int64Array:
        """int64: sequences that name each page that is named, in the order of the pages."""
        if not self._can_be_listed:
            return sequences_per_named_page(self.table, self.seq_ptr)
        return self.sequences_per_page[self.references > 0]

    @cached_property
    def references(self) -> Int64Array:
        """int64 ``[num_pages]``: table entries that name each page."""
        return np.bincount(self.table, minlength=self.listed_pages).astype(np.int64, copy=False)

    @cached_property
    def sequences_per_page(self) -> Int64Array:
        """int64 ``[num_pages]``: sequences that name each page."""
        found: Int64Array = self._sequences_per_page() if self.listed_pages else np.empty(0, np.int64)
        return found

    @cached_property
    def first_sequence(self) -> Int64Array:
        """int64 ``[num_pages]``: the first sequence that names each page, -1 where none does."""
        first = np.full(self.listed_pages, -1)
        first[self.table[::-1]] = self.owners[::-1]
        return first

    @cached_property
    def fill_tokens(self) -> Int64Array:
        """int64 ``[num_pages]``: slots that hold a token of some sequence, -1 where lengths are not known."""
        lengths = self.num_tokens[self.owners]
        filled = np.clip(lengths - self.places * self.page_size, 0, self.page_size)
        known = lengths != UNKNOWN
        fill = np.zeros(self.listed_pages, np.int64)
        np.maximum.at(fill, self.table[known], filled[known])
        doubtful = self.table[~known]
        fill[doubtful[fill[doubtful] < self.page_size]] = UNKNOWN
        return fill

    @cached_property
    def first_positions(self) -> npt.NDArray[np.uint64]:
        """uint64 ``[entries]``: the position in its sequence of slot 0 of each table entry's page."""
        positions = (self.places * self.page_size).astype(np.uint64)
        for sequence, stated in enumerate(self.sequences.page_positions or ()):
            if stated is not None:
                start = self.seq_ptr[sequence]
                positions[start : start + len(stated)] = stated[: self.seq_ptr[sequence + 1] - start]
        return positions

    @cached_property
    def ids(self) -> pa.Array | None:
        """utf8 ``[num_seqs]``: the ids of the sequences, ``None`` where nobody recorded any."""
        return None if self.sequences.ids is None else pa.array(self.sequences.ids, pa.utf8())

    @cached_property
    def token_ids(self) -> tuple[npt.NDArray[np.uint32], Int64Array]:
        """uint32 token ids of all sequences one after the other, and int64 ``[num_seqs + 1]`` where each begins."""
        lists = [np.empty(0, np.uint32) if ids is None else ids for ids in self.sequences.token_ids or ()]
        lists += [np.empty(0, np.uint32)] * (self.num_seqs - len(lists))
        starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return np.concatenate([*lists, np.zeros(1, np.uint32)]), starts

    @cached_property
    def shared_by(self) -> tuple[Int64Array, Int64Array]:
        """For each page that several sequences name, those: int64 ``[num_pages + 1]`` where, ``[pairs]`` which."""
        shared = self.sequences_per_page[self.table] > 1
        pages, owners = self.table[shared], self.owners[shared]
        order = np.lexsort((owners, pages))
        pages, owners = pages[order], owners[order]
        new = np.ones(pages.size, np.bool_)
        new[1:] = (pages[1:] != pages[:-1]) | (owners[1:] != owners[:-1])
        starts = np.zeros(self.num_pages + 1, np.int64)
        np.cumsum(np.bincount(pages[new], minlength=self.num_pages), out=starts[1:])
        return starts, owners[new]

    @cached_property
    def sharers(self) -> tuple[Int64Array, list[Int64Array]]:
        """For each page the place in a list of what sequences name it, -1 where only one or none does, and the list."""
        starts, sequences = self.shared_by
        which = np.full(self.num_pages, -1)
        places: dict[bytes, int] = {}
        for page in np.flatnonzero(np.diff(starts)):
            which[page] = places.setdefault(sequences[starts[page] : starts[page + 1]].tobytes(), len(places))
        return which, [np.frombuffer(each, np.int64) for each in places]

    def page_ids(self, sequence: int) -> Int64Array:
        """Return a sequence's slice of the table."""
        return self.table[self.seq_ptr[sequence] : self.seq_ptr[sequence + 1]]

    def check_lengths(self, sequences: Int64Array) -> Int64Array:
        """Return the tokens of sequences, int64.

        Raises
        ------
        UnknownSequenceLengthError
            Nobody recorded the length of one of them.
        """
        lengths = self.num_tokens[sequences]
        unknown = sequences[lengths == UNKNOWN]
        if unknown.size:
            raise UnknownSequenceLengthError(
                f"the length of sequence {unknown[0]} and of {unknown.size - 1} others was not recorded, so that "
                f"their tokens cannot be listed: select others with sequence="
            )
        return lengths


def _num_tokens(tensor: BlockPagedTensor) -> Int64Array:
    lengths, known = effective_lengths(tensor.sequences, num_seqs=tensor.num_seqs, total_tokens=tensor.total_tokens)
    return np.where(known, lengths.astype(np.int64), UNKNOWN)
