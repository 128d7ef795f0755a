"""Bring back some sequences of a snapshot: only the bytes that their pages need, as compact, valid tensors.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow import ops
from hurray_arrow.arrow.rows import Row, Tables
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.arrow.tensor_rows import tensor_from_rows
from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.ops.select import needed_pages
from hurray_arrow.snapshot.checksums import checksum_piece_bytes, checksum_problems, page_checksums
from hurray_arrow.snapshot.entries import Entry, check_entry
from hurray_arrow.snapshot.index import SPEC
from hurray_arrow.snapshot.ranges import Pieces, plan_ranges
from hurray_arrow.snapshot.row_source import IndexedRows, PartialRow, Piece, sparse_memory
from hurray_arrow.tensor import BlockPagedTensor

#: Tensors whose rows are looked at together: their requests go out together, and as much is in memory at once.
_TENSORS_AT_ONCE = 64
#: Bytes of ranges that are in memory at once, before they are put into the pools.
_WINDOW_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a partial read asked the store for, the listing of the snapshot aside.

    Parameters
    ----------
    requests, fetched_bytes
        Ranges asked for, and their bytes: pages, gaps between them, and each row's small columns, which are fetched
        whole because one hash covers them: in the first row of a kv_group its tables, and of a share row 8 bytes of
        checksum for every page of the tensor, wanted or not, where they are no more than ``gap_bytes``, nobody said how
        much that is, or the index has no hash without them. 0 where the file is mapped.
    needed_pages, needed_bytes
        Pages that the sequences name, and their bytes as stored; of archives those of the rows that hold them, without
        a tensor's first row, which is fetched in any case.
    """

    requests: int = 0
    fetched_bytes: int = 0
    needed_pages: int = 0
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartialRead:
    """Some sequences of some tensors.

    Parameters
    ----------
    tensors
        One per tensor selected, in snapshot order: compact, in new memory, the sequences in the order asked for.
    fetched
        What it cost.
    unverified
        What could not be checked, such as pages without checksums.
    """

    tensors: tuple[BlockPagedTensor, ...]
    fetched: Fetched
    unverified: tuple[Problem, ...]


class TensorPages:
    """A tensor whose pages are read when they are asked for, some at a time.

    Attributes
    ----------
    tensor
        Descriptor, tables and parameters; of its pages only those may be believed that were always there: all of a
        mapped file, or of a snapshot that was recovered.
    """

    def __init__(
        self, tensor: BlockPagedTensor, reader: PartialReader | None = None, partial: PartialRow | None = None
    ) -> None:
        self.tensor = tensor
        self._reader, self._partial = reader, partial

    def read(self, page_ids: npt.NDArray[np.int64]) -> BlockPagedTensor:
        """Return the tensor with these pages.

        Parameters
        ----------
        page_ids
            int64 ``[pages]``, ascending, each once.

        Returns
        -------
        BlockPagedTensor
            Other pages than these read as zeros, or as they are where that costs nothing: a mapping, or new memory.

        Raises
        ------
        SnapshotCorruptError
            As :meth:`Snapshot.read_sequences`; pages of a mapped file are not compared with their checksums.
        """
        if self._reader is None or self._partial is None:
            return self.tensor
        return self._reader.with_pages(self.tensor, self._partial, page_ids)


class PartialReader:
    """Reads sequences out of the rows of a snapshot.

    Parameters
    ----------
    rows
        The snapshot's rows by index.
    tables_of
        Gives the tables of a tensor's row: the group's, where it has none.
    gap_bytes
        As of :func:`~hurray_arrow.snapshot.ranges.plan_ranges`.
    """

    def __init__(self, rows: IndexedRows, *, tables_of: Callable[[Row], Tables], gap_bytes: int | None) -> None:
        self._source = rows.source
        self._rows = rows
        self._tables_of = tables_of
        self._gap_bytes = gap_bytes

    def read(self, entries: Iterable[Entry], sequences: Any, tokens: Any) -> PartialRead:
        """Read the sequences of these entries; see :meth:`Snapshot.read_sequences`."""
        requests, fetched_bytes = self._source.requests, self._source.fetched_bytes
        needed_pages = needed_bytes = 0
        tensors: list[BlockPagedTensor] = []
        unverified: list[Problem] = []
        remaining = iter(entries)
        while some := list(islice(remaining, _TENSORS_AT_ONCE)):
            wanted = deque(self._wanted(some, sequences, tokens))
            self._fill(wanted)
            while wanted:
                # Whatever came along with the pages goes as soon as these are taken out of it.
                each = wanted.popleft()
                unverified += each.check_pages()
                tensors.append(ops.compact(ops.select(each.tensor, sequences, tokens=tokens)))
                needed_pages += len(each.page_ids)
                needed_bytes += int(each.pieces[:, 1].sum())
                del each
        fetched = Fetched(
            self._source.requests - requests,
            self._source.fetched_bytes - fetched_bytes,
            needed_pages,
            needed_bytes,
        )
        return PartialRead(tuple(tensors), fetched, tuple(unverified))

    def open(self, entries: Sequence[Entry]) -> list[TensorPages]:
        """Read everything of these tensors but pages; see :meth:`Snapshot.open_tensors`."""
        partials = self._rows.rows_without_pages([entry.tensor_index for entry in entries])
        opened = []
        for entry, partial in zip(entries, partials, strict=True):
            tensor = tensor_from_rows([partial.row], self._tables_of(partial.row), align_small_buffers=True)
            check_entry(entry, tensor)
            opened.append(TensorPages(tensor, self, partial))
        return opened

    def with_pages(
        self, tensor: BlockPagedTensor, partial: PartialRow, page_ids: npt.NDArray[np.int64]
    ) -> BlockPagedTensor:
        """Return the tensor over memory that has these pages; see :meth:`TensorPages.read`."""
        if not len(self._rows.pieces_of(partial, page_ids)):
            return tensor
        # Memory of its own each time: what was read before goes when nobody holds it any more.
        memory = sparse_memory(len(partial.pool))
        row = replace(partial.row, pool=memory)
        fresh = PartialRow(row, memory, partial.is_checked_when_filled)
        filled = tensor_from_rows([row], self._tables_of(row), align_small_buffers=True)
        wanted = _Wanted(fresh, filled, page_ids, self._rows.pieces_of(fresh, page_ids))
        self._fill([wanted])
        wanted.check_pages()
        return filled

    def _wanted(self, entries: Sequence[Entry], sequences: Any, tokens: Any) -> list[_Wanted]:
        wanted = []
        partials = self._rows.rows_without_pages(
            [entry.tensor_index for entry in entries], most_checksum_bytes=self._gap_bytes
        )
        for entry, partial in zip(entries, partials, strict=True):
            whole = tensor_from_rows([partial.row], self._tables_of(partial.row), align_small_buffers=True)
            check_entry(entry, whole)
            page_ids = needed_pages(whole, sequences, tokens=tokens)
            wanted.append(_Wanted(partial, whole, page_ids, self._rows.pieces_of(partial, page_ids)))
        return wanted

    def _fill(self, wanted: Sequence[_Wanted]) -> None:
        """Fetch the pieces of several tensors by one plan: their rows are neighbours in the file."""
        by_owner = [
            np.concatenate([self._rows.checksum_pieces_of(each.partial, each.page_ids), each.pieces]) for each in wanted
        ]
        pieces = np.concatenate(by_owner)
        owners = np.repeat(np.arange(len(wanted)), list(map(len, by_owner)))
        order = np.argsort(pieces[:, 0], kind="stable")
        pieces, owners = pieces[order], owners[order]
        ranges = plan_ranges(pieces, gap_bytes=self._gap_bytes)
        held = iter(zip(pieces.tolist(), owners.tolist(), strict=True))
        for window in _windows(ranges):
            found: list[Piece] = []
            for (start, size), data in zip(window, self._source.read_many(window), strict=True):
                view = memoryview(data)
                count = int(np.searchsorted(pieces[:, 0], start + size) - np.searchsorted(pieces[:, 0], start))
                for (offset, length), owner in islice(held, count):
                    found.append(Piece(wanted[owner].partial, offset, view[offset - start :][:length]))
            self._rows.fill(found)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor over memory that is to hold the pages that some sequences need."""

    partial: PartialRow
    tensor: BlockPagedTensor
    page_ids: npt.NDArray[np.int64]
    pieces: Pieces

    def check_pages(self) -> list[Problem]:
        """Compare the pages with their checksums; return what could not be checked.

        Raises
        ------
        SnapshotCorruptError
            ``page_checksum``.
        """
        row = self.partial.row
        where = f"tensor {row.tensor_index}.page_pool"
        if row.page_checksums is None:
            unknown = len(self.page_ids) and not self.partial.is_checked_when_filled
            return [Problem(ProblemCode.UNVERIFIED, where, "the pages have no checksums", SPEC)] if unknown else []
        page_class = page_class_of(self.tensor.descriptor)
        size = checksum_piece_bytes(page_class)
        # A pool that cannot be cut into pages came whole, or, where no page was wanted, not at all.
        uncut = len(self.page_ids) > 0 and not page_class.fits_a_column
        page_ids = np.arange(len(row.page_checksums)) if uncut else self.page_ids
        found = page_checksums(self.partial.pool, size, page_ids)
        problems = checksum_problems(found, row.page_checksums[page_ids], where=where, page_ids=page_ids)
        if problems:
            raise SnapshotCorruptError(problems)
        return []


def _windows(ranges: Pieces) -> Iterator[list[tuple[int, int]]]:
    """Cut a plan so that what is read at once stays small."""
    window: list[tuple[int, int]] = []
    total = 0
    for offset, size in ranges.tolist():
        if window and total + size > _WINDOW_BYTES:
            yield window
            window, total = [], 0
        window.append((offset, size))
        total += size
    if window:
        yield window
