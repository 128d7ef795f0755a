"""The rows of a complete snapshot file, by its index; each is hashed and validated before anything of it is believed.

Spec: snapshot format, section 4, "Order of checks".
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import BatchLayout, IpcLayoutError, batch_layout, encapsulated
from hurray_arrow.arrow.rows import Row, refuse
from hurray_arrow.arrow.schema import POOL_BYTES
from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.snapshot.entries import Entry, entries_of
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.index import CHECKSUM_BYTES, SPEC, IndexRow
from hurray_arrow.snapshot.tail import Tail

if TYPE_CHECKING:
    from hurray_arrow.snapshot.plane_sizes import PlaneSizes


@dataclass(frozen=True, slots=True)
class PartialRow:
    """A tensor's row whose ``pool`` is memory of ours: zero, and without room of its own, until pages are put there.

    Where the file is mapped, ``pool`` is the mapping and there is nothing to put. ``checksums`` are bytes of the row's
    page checksums that are put there with the pages; empty where all are there.

    ``is_checked_when_filled``: a piece comes with a hash of its own, which :meth:`IndexedRows.fill` compares.
    """

    row: Row
    pool: npt.NDArray[np.uint8]
    is_checked_when_filled: bool = False
    checksums: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))


class Piece(NamedTuple):
    """Bytes of the file that belong into a tensor's memory, and where in the file they were."""

    partial: PartialRow
    offset: int
    data: memoryview


def sparse_memory(size_bytes: int, *, in_megabytes: bool = False) -> npt.NDArray[np.uint8]:
    """Return zeros that take room only where somebody writes: uint8 ``[size_bytes]``.

    ``in_megabytes``: who writes, writes much at a time; then the kernel may give room in large pages, which is faster.
    """
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=_SPARSE)
    if in_megabytes and hasattr(mmap, "MADV_HUGEPAGE"):
        # Kernels may be built without them.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:size_bytes]


#: A row's end is not asked for where it is no longer than this and has the hash of zeros.
_MOST_ZEROS = 64 << 10
#: Checksums are asked for together where no more lies between them than this part of a page's bytes.
_PAGE_BYTES_PER_GAP_BYTE = 32
#: Without MAP_NORESERVE Linux maps no more than the machine has, however little is written. Python names it from 3.13
#: on; its number is another one on rarer machines.
_IS_0X4000 = os.uname().sysname == "Linux" and os.uname().machine in ("x86_64", "aarch64")
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _IS_0X4000 else 0)
#: Anonymous memory that takes room only where it is written.
_SPARSE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE


class IndexedRows(ABC):
    """Rows by index; the profiles say what protects a row and how its pages come out of it.

    Parameters
    ----------
    source
        The file.
    tail
        Its checked end.
    trusted
        Skip the hashes and Arrow's full validation.

    Raises
    ------
    SnapshotCorruptError
        ``index_invalid``: a row lacks what its profile states in the index.
    """

    #: What the index says of every row in this profile.
    STATED: tuple[str, ...] = ()

    def __init__(self, source: Source, tail: Tail, *, trusted: bool = False) -> None:
        self.source = source
        self._schema, self._types = tail.schema, tail.types
        self._trusted = trusted
        for number, row in enumerate(tail.index.rows):
            missing = [name for name in self.STATED if getattr(row, name) is None]
            if missing:
                message = f"{missing} not stated, in profile {tail.metadata['profile']}"
                problem = Problem(ProblemCode.INDEX_INVALID, f"rows[{number}]", message, SPEC)
                raise SnapshotCorruptError(problem, url=source.url)
        self.entries: tuple[Entry, ...] = entries_of(tail.index.rows)
        self._places: dict[int, list[IndexRow]] = {}
        for place in sorted(tail.index.rows, key=lambda row: (row.page_offset, row.num_pages > 0)):
            self._places.setdefault(place.tensor_index, []).append(place)

    @abstractmethod
    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return all rows of a tensor in page order.

        Raises
        ------
        SnapshotCorruptError
            ``row_checksum``, ``arrow_invalid``, ``arrow_null``, ``column_mismatch``, ``row_place``, ``row_missing``.
        """

    @abstractmethod
    def tables_row_of(self, tensor_index: int) -> Row:
        """Return the row that has a tensor's tables; its pages may be left out."""

    @abstractmethod
    def rows_without_pages(
        self, tensor_indexes: Sequence[int], *, most_checksum_bytes: int | None = None
    ) -> list[PartialRow]:
        """Return tensors' rows with everything but pages, and memory that is to hold those that somebody wants.

        Where checksums take more than ``most_checksum_bytes`` and can be had one by one, they are left out too.
        """

    @abstractmethod
    def pieces_of(self, partial: PartialRow, page_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return which bytes of the file hold these pages: int64 ``[pieces, 2]``, offset and size, in file order.

        Parameters
        ----------
        partial
            The tensor.
        page_ids
            int64 ``[pages]``, ascending, each once.
        """

    def checksum_pieces_of(self, partial: PartialRow, page_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return which bytes hold the checksums of these pages, as :meth:`pieces_of`; none where they are there."""
        del partial, page_ids
        return np.empty((0, 2), np.int64)

    @abstractmethod
    def fill(self, pieces: Iterable[Piece]) -> None:
        """Put pieces of the file into their tensors' memory."""

    def plane_sizes(self, tensor_index: int, *, most_rows: int) -> PlaneSizes | None:
        """Return what the byte planes of a tensor's pages take; ``None`` where pages are not compressed."""
        del tensor_index, most_rows
        return None

    @property
    def checks_rows(self) -> bool:
        """Whether a row is hashed whenever it is read."""
        return not self._trusted

    def damage_of(self, tensor_index: int) -> list[Problem]:
        """Return what the row hashes say, page values aside."""
        return [problem for place in self._places[tensor_index] for problem in self._damage(place, self._stored(place))]

    def close(self) -> None:
        """Close the file."""
        self.source.close()

    def _stored(self, place: IndexRow) -> pa.Buffer:
        return self.source.read(place.offset, place.block.end - place.offset)

    @abstractmethod
    def _damage(self, place: IndexRow, stored: pa.Buffer) -> list[Problem]:
        """Compare a row's hashes."""

    @abstractmethod
    def _check_layout(self, place: IndexRow, layout: BatchLayout, stored: pa.Buffer) -> None:
        """Refuse a batch, by an IpcLayoutError or an error of its own, that must not be decoded."""

    def _batch(self, place: IndexRow) -> tuple[pa.RecordBatch, pa.Buffer]:
        """Return a row's batch, checked as far as Arrow knows, and its bytes as stored."""
        stored = self._stored(place)
        return self._batch_of(place, stored), stored

    def _batch_of(self, place: IndexRow, stored: pa.Buffer) -> pa.RecordBatch:
        if not self._trusted:
            self._refuse_damage(self._damage(place, stored))
        return self._decoded(place, stored)

    def _refuse_damage(self, problems: Sequence[Problem]) -> None:
        if problems:
            raise SnapshotCorruptError(problems, url=self.source.url)

    def _decoded(self, place: IndexRow, stored: pa.Buffer) -> pa.RecordBatch:
        try:
            layout = batch_layout(encapsulated(memoryview(stored)[: place.metadata_bytes]))
            if layout.num_rows != 1:
                raise IpcLayoutError(f"{layout.num_rows} rows, expected 1")
            if any(start < 0 or size < 0 or start + size > place.body_bytes for start, size in layout.buffers):
                raise IpcLayoutError(f"a buffer passes the end of a body of {place.body_bytes} bytes")
            self._check_layout(place, layout, stored)
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(stored)), self._schema)
            if not self._trusted:
                batch.validate(full=True)
        except SnapshotCorruptError:
            raise
        except (IpcLayoutError, pa.ArrowException, OSError) as error:
            where = f"tensor {place.tensor_index}"
            raise refuse(ProblemCode.ARROW_INVALID, where, str(error), url=self.source.url) from error
        return batch


class ShareIndexedRows(IndexedRows):
    """Rows of the share profile: views of what the file holds."""

    STATED = ("pages_offset", "pages_bytes", "head_xxh3", "tail_xxh3")

    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return all rows of a tensor in page order; see :meth:`IndexedRows.rows_of`."""
        return [self._row(place) for place in self._places[tensor_index]]

    def tables_row_of(self, tensor_index: int) -> Row:
        """Return a tensor's row; where the file is not mapped its pages are not read, and are zero."""
        if self.source.is_mapped:
            return self.rows_of(tensor_index)[0]
        return self.rows_without_pages([tensor_index])[0].row

    def rows_without_pages(
        self, tensor_indexes: Sequence[int], *, most_checksum_bytes: int | None = None
    ) -> list[PartialRow]:
        """Return tensors' rows around pages that nobody has read; see :meth:`IndexedRows.rows_without_pages`."""
        if self.source.is_mapped:
            rows = [self.rows_of(tensor_index)[0] for tensor_index in tensor_indexes]
            return [PartialRow(row, row.pool) for row in rows]
        places = [self._places[tensor_index][0] for tensor_index in tensor_indexes]
        bare = [_can_leave_out_checksums(place, most_checksum_bytes) for place in places]
        parts = [_around_pages(place, is_bare=is_bare) for place, is_bare in zip(places, bare, strict=True)]
        found = iter(self.source.read_many([part for some in parts for part in some]))
        return [
            self._partial_row(place, dict(zip(some, found, strict=False)), is_bare=is_bare)
            for place, some, is_bare in zip(places, parts, bare, strict=True)
        ]

    def pieces_of(self, partial: PartialRow, page_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where pages lie; see :meth:`IndexedRows.pieces_of`."""
        place = self._places[partial.row.tensor_index][0]
        if self.source.is_mapped or not place.pages_bytes or not len(page_ids):
            return np.empty((0, 2), np.int64)
        if partial.row.pool_column == POOL_BYTES:
            return np.array([[place.pages_offset, place.pages_bytes]], np.int64)
        page_bytes = place.pages_bytes // place.num_pages
        offsets = (place.pages_offset or 0) + page_ids * page_bytes
        return np.stack([offsets, np.full_like(offsets, page_bytes)], axis=1)

    def checksum_pieces_of(self, partial: PartialRow, page_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where checksums of pages lie; see :meth:`IndexedRows.checksum_pieces_of`."""
        place = self._places[partial.row.tensor_index][0]
        if not partial.checksums.size or not len(page_ids):
            return np.empty((0, 2), np.int64)
        # A request for eight bytes costs more than the few that lie between: a small part of what the pages take.
        gap = (place.pages_bytes or 0) // place.num_pages // _PAGE_BYTES_PER_GAP_BYTE
        firsts = np.flatnonzero(np.diff(page_ids, prepend=-(1 << 62)) > 1 + gap // CHECKSUM_BYTES)
        lasts = np.append(firsts[1:], len(page_ids)) - 1
        start, count = page_ids[firsts], page_ids[lasts] - page_ids[firsts] + 1
        return np.stack([(place.checksums_offset or 0) + CHECKSUM_BYTES * start, CHECKSUM_BYTES * count], axis=1)

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Put pieces where they belong; see :meth:`IndexedRows.fill`."""
        for partial, offset, data in pieces:
            place = self._places[partial.row.tensor_index][0]
            pages_offset = place.pages_offset or 0
            part, first = (
                (partial.pool, pages_offset)
                if offset >= pages_offset
                else (partial.checksums, place.checksums_offset or 0)
            )
            part[offset - first :][: len(data)] = np.frombuffer(data, np.uint8)

    def _partial_row(self, place: IndexRow, parts: Mapping[tuple[int, int], pa.Buffer], *, is_bare: bool) -> PartialRow:
        memory = sparse_memory(place.block.end - place.offset)
        for (offset, size), data in parts.items():
            memory[offset - place.offset :][:size] = np.frombuffer(data, np.uint8)
        stored = pa.py_buffer(memory)
        pool = memory[(place.pages_offset or 0) - place.offset :][: place.pages_bytes]
        if not is_bare:
            return PartialRow(self._checked_row(place, self._batch_of(place, stored), stored), pool)
        if not self._trusted:
            self._refuse_damage(self._damage(place, stored, is_bare=True))
        row = self._checked_row(place, self._decoded(place, stored), stored)
        if row.page_checksums is None or len(row.page_checksums) != place.num_pages:
            where = f"tensor {place.tensor_index}.page_checksums"
            message = f"not one for each of {place.num_pages} pages, which the index says"
            raise refuse(ProblemCode.PAGE_CHECKSUM, where, message, url=self.source.url)
        checksums = memory[(place.checksums_offset or 0) - place.offset : place.checksums_end - place.offset]
        return PartialRow(row, pool, checksums=checksums)

    def _row(self, place: IndexRow) -> Row:
        return self._checked_row(place, *self._batch(place))

    def _checked_row(self, place: IndexRow, batch: pa.RecordBatch, stored: pa.Buffer) -> Row:
        row = Row.read(batch, 0)
        check_place(row, place, ("layer_index", "layer_name"))
        pool, checksums = row.pool, row.page_checksums
        found = (pool.ctypes.data - stored.address + place.offset, pool.nbytes)
        stated = (place.pages_offset, place.pages_bytes)
        where = f"tensor {place.tensor_index}"
        if found != stated and (pool.nbytes or place.pages_bytes):
            raise refuse(ProblemCode.ROW_PLACE, f"{where}.page_pool", f"pages at {found}, the index says {stated}")
        # Who reads single pages over a network trusts this place without ever seeing the row's own columns.
        if checksums is not None and checksums.size:
            at = checksums.ctypes.data - stored.address + place.offset
            if at != place.checksums_offset:
                message = f"at {at}, the index says {place.checksums_offset}"
                raise refuse(ProblemCode.ROW_PLACE, f"{where}.page_checksums", message)
        return row

    def _damage(self, place: IndexRow, stored: pa.Buffer, *, is_bare: bool = False) -> list[Problem]:
        """Compare a row's hashes; ``is_bare``: its page checksums are not there."""
        view = memoryview(stored)
        pages = (place.pages_offset or 0) - place.offset
        tail = view[pages + (place.pages_bytes or 0) :]
        problems = [] if is_bare else hash_problems(place, "head_xxh3", view[:pages])
        # Of a damaged head both would say the same.
        if place.bare_head_xxh3 is not None and not problems:
            start, end = (place.checksums_offset or 0) - place.offset, place.checksums_end - place.offset
            problems = hash_problems(place, "bare_head_xxh3", view[:start], view[end:pages])
        return problems + hash_problems(place, "tail_xxh3", tail)

    def _check_layout(self, place: IndexRow, layout: BatchLayout, stored: pa.Buffer) -> None:
        del stored
        if layout.compression is not None:
            raise IpcLayoutError(f"compressed with codec {layout.compression}; the share profile is not")
        # Pages are in no row hash, and who reads single pages over a network has nothing in place of the others; nor of
        # the other checksums.
        body = place.offset + place.metadata_bytes
        alone = [("page_pool", place.pages_offset or 0, (place.pages_offset or 0) + (place.pages_bytes or 0))]
        if place.bare_head_xxh3 is not None:
            alone.append(("page_checksums", place.checksums_offset or 0, place.checksums_end))
        for name, first, end in alone:
            within = sum(body + start < end and body + start + size > first for start, size in layout.buffers if size)
            if within > 1:
                message = f"{within} buffers where the index says they are"
                where = f"tensor {place.tensor_index}.{name}"
                raise refuse(ProblemCode.ROW_PLACE, where, message, url=self.source.url)


def _can_leave_out_checksums(place: IndexRow, most_bytes: int | None) -> bool:
    has_a_hash_without = place.bare_head_xxh3 is not None
    return has_a_hash_without and most_bytes is not None and CHECKSUM_BYTES * place.num_pages > most_bytes


def _around_pages(place: IndexRow, *, is_bare: bool) -> list[tuple[int, int]]:
    """Return offset and size of what lies before and after the pages; ``is_bare``: without their checksums."""
    pages_offset, pages_end = place.pages_offset or 0, (place.pages_offset or 0) + (place.pages_bytes or 0)
    ends = [place.offset, pages_offset]
    if is_bare:
        ends[1:1] = [place.checksums_offset or 0, place.checksums_end]
    tail_bytes = place.block.end - pages_end
    # Behind the pages there are hardly ever other columns than null ones, and zeros are there already.
    if tail_bytes > _MOST_ZEROS or xxh3_hex(bytes(tail_bytes)) != place.tail_xxh3:
        ends += [pages_end, place.block.end]
    return [(start, end - start) for start, end in zip(ends[::2], ends[1::2], strict=True)]


def hash_problems(place: IndexRow, name: str, *parts: memoryview) -> list[Problem]:
    """Compare one hash of a row, of parts of it one behind the other, with what the index says."""
    expected, found = getattr(place, name), xxh3_hex(*parts)
    if found == expected:
        return []
    where, message = f"tensor {place.tensor_index}.{name}", f"xxh3 {found}, the index says {expected}: damaged"
    return [Problem(ProblemCode.ROW_CHECKSUM, where, message, SPEC, offset_bytes=place.offset)]


def check_place(row: Row, place: IndexRow, also: tuple[str, ...] = ()) -> None:
    """Refuse a row that differs from the index, which is what callers list and select by."""
    for name in ("tensor_index", "kv_role", "component", "kv_group", "page_offset", *also):
        found, expected = getattr(row, name), getattr(place, name)
        if found != expected:
            message = f"the row says {found!r:.60}, the index {expected!r:.60}"
            raise refuse(ProblemCode.COLUMN_MISMATCH, f"tensor {place.tensor_index}.{name}", message)
    if row.page_class is not None and row.page_class.encoding != place.encoding:
        message = f"the column says {row.page_class.encoding!r}, the index {place.encoding!r:.60}"
        raise refuse(ProblemCode.COLUMN_MISMATCH, f"tensor {place.tensor_index}.encoding", message)
