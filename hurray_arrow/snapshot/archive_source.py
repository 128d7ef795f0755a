"""The rows of an archive: checked before they are decompressed, decoded on every core into the pool they belong to.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import BatchLayout, IpcLayoutError
from hurray_arrow.arrow.rows import Row, refuse
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.errors import InvalidDescriptorError, Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.memory import new_bytes
from hurray_arrow.snapshot.archive_rows import FREE_SMALL_BYTES, MAX_ROW_BYTES, most_decoded_bytes
from hurray_arrow.snapshot.checksums import checksum_problems, page_checksums
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.plane_sizes import PlaneSizes, plane_sizes
from hurray_arrow.snapshot.row_source import (
    IndexedRows,
    PartialRow,
    Piece,
    check_place,
    hash_problems,
    sparse_memory,
)
from hurray_arrow.snapshot.tail import Tail
from hurray_arrow.snapshot.workers import Workers

_WIDEST_BITS = 128
#: Stored rows that are fetched at once; two windows are in memory.
_WINDOW_BYTES = 64 << 20


class ArchiveIndexedRows(IndexedRows):
    """Rows of the archive profile: a tensor's pages come in new memory."""

    STATED = ("row_xxh3",)

    def __init__(self, source: Source, tail: Tail, *, trusted: bool = False) -> None:
        super().__init__(source, tail, trusted=trusted)
        # One more than processors: there is always one that waits for Arrow's threads to decompress its row.
        self._workers = Workers((os.cpu_count() or 1) + 1, "hurray-arrow-decode", url=source.url)
        self._place_at = {row.offset: row for row in tail.index.rows}
        self._num_pages = {entry.tensor_index: entry.num_pages for entry in self.entries}

    def close(self) -> None:
        """Close the file and let the threads go."""
        self._workers.close()
        super().close()

    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return a tensor as one row, its pages joined; see :meth:`IndexedRows.rows_of`."""
        places = self._places[tensor_index]
        windows = _windows(places)
        stored = self._stored_many(windows[0])
        first = self._first_row(places[0], stored[0])
        if len(places) == 1:
            return [first]
        page_bytes = self._page_bytes(first, places)
        pool = new_bytes(sum(place.num_pages for place in places) * page_bytes)
        jobs: list[list[Future[Row]]] = []
        for number, window in enumerate(windows):
            if number:
                # One window comes while the one before it is decoded; of that before it nothing is needed any more.
                wait(jobs[number - 2] if number > 1 else ())
                stored = self._stored_many(window)
            jobs.append([])
            for place, buffer in zip(window, stored, strict=True):
                if place is not places[0]:
                    pages = pool[place.page_offset * page_bytes : (place.page_offset + place.num_pages) * page_bytes]
                    jobs[number].append(self._workers.submit(self._pages_row, place, pages, buffer))
        rows = self._workers.results(itertools.chain(*jobs))
        other = next((row for row in rows if row.pool_column != rows[0].pool_column), None)
        if other is not None:
            message = f"pages in {other.pool_column} too, those before it are in {rows[0].pool_column}"
            where = f"tensor {tensor_index}.page_offset {other.page_offset}"
            raise refuse(ProblemCode.COLUMN_MISMATCH, where, message, url=self.source.url)
        stored = [row.page_checksums for row in rows if row.page_checksums is not None]
        merged = replace(
            first,
            pool=pool,
            pool_column=rows[0].pool_column,
            page_class=rows[0].page_class,
            page_checksums=np.concatenate(stored) if len(stored) == len(rows) else None,
        )
        return [merged]

    def tables_row_of(self, tensor_index: int) -> Row:
        """Return a tensor's first row, which has everything but pages, and those too where they are few."""
        place = self._places[tensor_index][0]
        return self._first_row(place, self._stored(place))

    def rows_without_pages(
        self, tensor_indexes: Sequence[int], *, most_checksum_bytes: int | None = None
    ) -> list[PartialRow]:
        """Return tensors' first rows; see :meth:`IndexedRows.rows_without_pages`."""
        del most_checksum_bytes
        places = [self._places[tensor_index][0] for tensor_index in tensor_indexes]
        stored = self._stored_many(places)
        partials = []
        for place, buffer in zip(places, stored, strict=True):
            first = self._first_row(place, buffer)
            rows = self._places[place.tensor_index]
            if len(rows) > 1:
                size_bytes = sum(row.num_pages for row in rows) * self._page_bytes(first, rows)
                pool = sparse_memory(size_bytes, in_megabytes=True)
                first = replace(first, pool=pool, page_checksums=None)
            partials.append(PartialRow(first, first.pool, is_checked_when_filled=True))
        return partials

    def pieces_of(self, partial: PartialRow, page_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows that hold these pages; see :meth:`IndexedRows.pieces_of`."""
        rows = self._places[partial.row.tensor_index][1:]
        starts = np.array([row.page_offset for row in rows], np.int64)
        held = np.unique(np.searchsorted(starts, page_ids, side="right") - 1) if rows else np.empty(0, np.int64)
        places = [(rows[number].offset, rows[number].block.end - rows[number].offset) for number in held]
        return np.array(places, np.int64).reshape(-1, 2)

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Decode rows into their places; see :meth:`IndexedRows.fill`."""
        self._workers.results([self._workers.submit(self._fill_one, *piece) for piece in pieces])

    def plane_sizes(self, tensor_index: int, *, most_rows: int) -> PlaneSizes:
        """Return what the byte planes of a tensor's pages take; see :meth:`IndexedRows.plane_sizes`."""
        return plane_sizes(self.source, self._schema, self._places[tensor_index], most_rows=most_rows)

    def _fill_one(self, partial: PartialRow, offset: int, data: memoryview) -> None:
        place = self._place_at[offset]
        page_bytes = len(partial.pool) // self._num_pages[place.tensor_index]
        pages = partial.pool[place.page_offset * page_bytes :][: place.num_pages * page_bytes]
        row = self._pages_row(place, pages, pa.py_buffer(data))
        if row.page_checksums is not None:
            where = f"tensor {place.tensor_index}.page_pool"
            page_ids = np.arange(place.page_offset, place.page_offset + place.num_pages)
            found = page_checksums(pages, page_bytes)
            problems = checksum_problems(found, row.page_checksums, where=where, page_ids=page_ids)
            if problems:
                raise SnapshotCorruptError(problems, url=self.source.url)

    def _stored_many(self, places: Sequence[IndexRow]) -> list[pa.Buffer]:
        return self.source.read_many([(place.offset, place.block.end - place.offset) for place in places])

    def _first_row(self, place: IndexRow, stored: pa.Buffer) -> Row:
        row = Row.read(self._batch_of(place, stored), 0)
        check_place(row, place, ("layer_index", "layer_name"))
        if row.pool.size and not place.num_pages:
            message = f"{row.pool.nbytes} bytes of pages in a row that the index says has none"
            raise refuse(ProblemCode.ROW_MISSING, f"tensor {place.tensor_index}", message, url=self.source.url)
        return row

    def _pages_row(self, place: IndexRow, destination: npt.NDArray[np.uint8], stored: pa.Buffer) -> Row:
        row = Row.read(self._batch_of(place, stored), 0, destination=destination)
        check_place(row, place)
        if row.descriptor is not None:
            where = f"tensor {place.tensor_index}"
            message = "two rows with a descriptor: they are of two tensors"
            raise refuse(ProblemCode.ROW_MISSING, where, message, url=self.source.url)
        checksums = row.page_checksums
        if checksums is not None and len(checksums) != place.num_pages:
            where = f"tensor {place.tensor_index}.page_checksums"
            message = f"{len(checksums)} checksums in a row of {place.num_pages} pages"
            raise refuse(ProblemCode.PAGE_CHECKSUM, where, message, url=self.source.url)
        return row

    def _page_bytes(self, first: Row, places: Sequence[IndexRow]) -> int:
        """Return the bytes of a page, once the index's rows are known to be exactly the descriptor's pages."""
        where = f"tensor {first.tensor_index}"
        try:
            descriptor = BlockPagedDescriptor.decode(first.descriptor or b"")
        except InvalidDescriptorError as error:
            raise refuse(ProblemCode.ROW_MISSING, where, str(error), url=self.source.url) from error
        page_bytes = page_class_of(descriptor).page_bytes or 0
        end = 0
        for place in places:
            fits = place.num_pages <= max(1, MAX_ROW_BYTES // max(page_bytes, 1))
            if place.page_offset != end or not fits:
                message = f"{place.num_pages} pages of {page_bytes} bytes from {place.page_offset}, expected from {end}"
                raise refuse(ProblemCode.ROW_MISSING, where, message, url=self.source.url)
            end += place.num_pages
        if end != descriptor.num_pages or not page_bytes:
            message = f"{end} pages in the index, the descriptor has {descriptor.num_pages}"
            raise refuse(ProblemCode.ROW_MISSING, where, message, url=self.source.url)
        return page_bytes

    def _damage(self, place: IndexRow, stored: pa.Buffer) -> list[Problem]:
        return hash_problems(place, "row_xxh3", memoryview(stored))

    def _check_layout(self, place: IndexRow, layout: BatchLayout, stored: pa.Buffer) -> None:
        """Compare what the buffers say they decompress to with what the row can hold: zeros compress 30,000 times."""
        if layout.compression is None:
            return
        body = memoryview(stored)[place.metadata_bytes :]
        total = 0
        for start, size in layout.buffers:
            if not size:
                continue
            if size < 8:
                raise IpcLayoutError(f"a compressed buffer of {size} bytes")
            (stated,) = struct.unpack_from("<q", body, start)
            # -1 says that the buffer is stored as it is.
            if stated < -1:
                raise IpcLayoutError(f"a buffer states {stated} bytes")
            total += size if stated == -1 else stated
        most = min(_most_page_bytes(place), most_decoded_bytes(stored.size)) + stored.size + FREE_SMALL_BYTES
        if total > most:
            message = f"{stored.size} bytes with {place.num_pages} pages state {total} bytes, expected at most {most}"
            raise IpcLayoutError(message)


def _most_page_bytes(place: IndexRow) -> int:
    """Return what pages and their checksums can take, by what the index lists of the tensor."""
    element = ELEMENT_TYPES.get(place.element_type)
    bits = _WIDEST_BITS if element is None else element.bits
    pages = place.num_pages * math.prod(place.page_shape) * bits // 8 + 1
    # How wide a private type is only the descriptor says, which lies in the first row.
    least = MAX_ROW_BYTES if element is None and place.num_pages else 0
    return max(pages, least) + 8 * place.num_pages


def _windows(places: Sequence[IndexRow]) -> list[list[IndexRow]]:
    """Cut rows into runs of about :data:`_WINDOW_BYTES`."""
    windows: list[list[IndexRow]] = [[]]
    size = 0
    for place in places:
        row_bytes = place.block.end - place.offset
        if windows[-1] and size + row_bytes > _WINDOW_BYTES:
            windows.append([])
            size = 0
        windows[-1].append(place)
        size += row_bytes
    return windows
