"""Who refers to which page.

Spec: block-paged layout, Prefix Sharing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow import invariants
from hurray_arrow.errors import InvariantError
from hurray_arrow.tensor_fields import TensorFields

IndexArray: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

#: Above this a (page, sequence) pair has no int64 of its own.
_PAIR_LIMIT = 2**63


class PageSharing(TensorFields):
    """What :class:`hurray_arrow.tensor.BlockPagedTensor` says of sharing."""

    __slots__ = ()

    def page_references(self) -> Int64Array:
        """Count the block_table entries that name each page.

        Returns
        -------
        numpy.ndarray
            New int64 array ``[num_pages]``.

        Raises
        ------
        InvariantError
            ``page_id_out_of_range``.

        Spec: block-paged layout, Prefix Sharing.
        """
        invariants.check_page_ids(self.block_table, num_pages=self.num_pages)
        return _references(self.block_table, num_pages=self.num_pages)

    def sequences_per_page(self) -> Int64Array:
        """Count the sequences that name each page; a sequence that names a page twice counts once.

        Returns
        -------
        numpy.ndarray
            New int64 array ``[num_pages]``.

        Raises
        ------
        InvariantError
            Codes of Storage Invariants 1 to 3.

        Spec: block-paged layout, Prefix Sharing.
        """
        num_pages = self.num_pages
        problems = invariants.validate_tables(
            self.block_table, self.seq_ptr, num_pages=num_pages, num_seqs=self.num_seqs
        )
        if problems:
            raise InvariantError(problems)
        return _sequences_per_page(self.block_table, self.seq_ptr, num_pages=num_pages)

    def shared_pages(self) -> Int64Array:
        """Give the pages that two sequences or more name.

        Returns
        -------
        numpy.ndarray
            New int64 array of page ids, ascending.

        Raises
        ------
        InvariantError
            As :meth:`sequences_per_page`.

        Examples
        --------
        >>> keys.shared_pages().tolist(), keys.unreferenced_pages().tolist()
        ([4], [3])

        Spec: block-paged layout, Prefix Sharing.
        """
        return np.flatnonzero(self.sequences_per_page() > 1).astype(np.int64, copy=False)

    def unreferenced_pages(self) -> Int64Array:
        """Give the pages that no sequence names.

        Returns
        -------
        numpy.ndarray
            New int64 array of page ids, ascending.

        Raises
        ------
        InvariantError
            ``page_id_out_of_range``.

        Spec: block-paged layout, Prefix Sharing.
        """
        return np.flatnonzero(self.page_references() == 0).astype(np.int64, copy=False)


def sequences_per_named_page(block_table: IndexArray, seq_ptr: IndexArray) -> Int64Array:
    """Count the sequences of each page that a table names.

    :meth:`PageSharing.sequences_per_page` has an entry for every page, and of pages without bytes a file can claim more
    than memory holds.

    Parameters
    ----------
    block_table, seq_ptr
        As of a tensor; checked.

    Returns
    -------
    numpy.ndarray
        New int64 array, one entry per page that is named, at most as long as ``block_table``.

    Spec: block-paged layout, Prefix Sharing.
    """
    named, pages = np.unique(block_table, return_inverse=True)
    num_seqs, ends = max(seq_ptr.size - 1, 1), seq_ptr.astype(np.int64)
    owners = np.repeat(np.arange(ends.size - 1), ends[1:] - ends[:-1])
    return np.bincount(np.unique(pages * num_seqs + owners) // num_seqs, minlength=len(named))


def _references(block_table: IndexArray, *, num_pages: int) -> Int64Array:
    return np.bincount(block_table.astype(np.int64), minlength=num_pages).astype(np.int64, copy=False)


def _sequences_per_page(block_table: IndexArray, seq_ptr: IndexArray, *, num_pages: int) -> Int64Array:
    references = _references(block_table, num_pages=num_pages)
    # Only a page that is named twice can be named twice by one sequence, and few are.
    again = references[block_table] > 1
    pages = block_table[again].astype(np.int64)
    num_seqs = seq_ptr.size - 1
    starts, ends = seq_ptr[:-1].astype(np.int64), seq_ptr[1:].astype(np.int64)
    owners = np.repeat(np.arange(num_seqs), ends - starts)[again]
    if num_pages * num_seqs <= _PAIR_LIMIT:
        # Sorting one integer per pair is several times as fast as sorting by two keys.
        pairs = pages * num_seqs + owners
        pairs.sort()
        repeated = pairs[1:][pairs[1:] == pairs[:-1]] // max(num_seqs, 1)
    else:
        order = np.lexsort((owners, pages))
        pages, owners = pages[order], owners[order]
        repeated = pages[1:][(pages[1:] == pages[:-1]) & (owners[1:] == owners[:-1])]
    return references - np.bincount(repeated, minlength=num_pages)
