"""The rows of an archive: checked before they are decompressed, decoded on every core into the pool they belong to.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import BatchLayout, IpcLayoutError
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.rows import Row, aligned_empty, refuse
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import InvalidDescriptorError, Problem, ProblemCode
from hurray_arrow.snapshot.archive_rows import MAX_ROW_BYTES
from hurray_arrow.snapshot.files import FileRange
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.row_source import IndexedRows, check_place, hash_problems
from hurray_arrow.snapshot.tail import Tail

#: What one small column may decompress to.
MAX_SMALL_BYTES = 1 << 30
#: What the small columns of a row of pages may decompress to, its checksums aside.
_FREE_BYTES = 1 << 16


class ArchiveIndexedRows(IndexedRows):
    """Rows of the archive profile: a tensor's pages come in new memory."""

    STATED = ("row_xxh3",)

    def __init__(self, source: FileRange, tail: Tail, *, trusted: bool = False) -> None:
        super().__init__(source, tail, trusted=trusted)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "hurray-arrow-decode")

    def close(self) -> None:
        """Close the file and let the threads go."""
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return a tensor as one row, its pages joined; see :meth:`IndexedRows.rows_of`."""
        places = self._places[tensor_index]
        first = self.tables_row_of(tensor_index)
        if len(places) == 1:
            return [first]
        page_bytes = self._page_bytes(first, places)
        pool = aligned_empty(sum(place.num_pages for place in places) * page_bytes)
        jobs = [
            self._pool.submit(
                self._pages_row,
                place,
                pool[place.page_offset * page_bytes : (place.page_offset + place.num_pages) * page_bytes],
            )
            for place in places[1:]
        ]
        rows = [job.result() for job in jobs]
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
        """Return a tensor's first row, which has everything but pages."""
        place = self._places[tensor_index][0]
        row = Row.read(self._batch(place)[0], 0)
        check_place(row, place, ("layer_index", "layer_name"))
        return row

    def _pages_row(self, place: IndexRow, destination: npt.NDArray[np.uint8]) -> Row:
        row = Row.read(self._batch(place)[0], 0, destination=destination)
        check_place(row, place)
        return row

    def _page_bytes(self, first: Row, places: Sequence[IndexRow]) -> int:
        """Return the bytes of a page, once the index's rows are known to be exactly the descriptor's pages."""
        where = f"tensor {first.tensor_index}"
        try:
            descriptor = BlockPagedDescriptor.decode(first.descriptor or b"")
        except InvalidDescriptorError as error:
            raise refuse(ProblemCode.ROW_MISSING, where, str(error), url=self._source.url) from error
        page_bytes = page_class_of(descriptor).page_bytes or 0
        end = 0
        for place in places:
            fits = place.num_pages <= max(1, MAX_ROW_BYTES // max(page_bytes, 1))
            if place.page_offset != end or not fits:
                message = f"{place.num_pages} pages of {page_bytes} bytes from {place.page_offset}, expected from {end}"
                raise refuse(ProblemCode.ROW_MISSING, where, message, url=self._source.url)
            end += place.num_pages
        if end != descriptor.num_pages or not page_bytes:
            message = f"{end} pages in the index, the descriptor has {descriptor.num_pages}"
            raise refuse(ProblemCode.ROW_MISSING, where, message, url=self._source.url)
        return page_bytes

    def _damage(self, place: IndexRow, stored: pa.Buffer) -> list[Problem]:
        return hash_problems(place, "row_xxh3", memoryview(stored))

    def _check_layout(self, place: IndexRow, layout: BatchLayout, stored: pa.Buffer) -> None:
        """Compare what each buffer says it decompresses to with what the row can hold: zeros compress 30,000 times."""
        if layout.compression is None:
            return
        body = memoryview(stored)[place.metadata_bytes :]
        most = max(_most_page_bytes(place), MAX_SMALL_BYTES if place.page_offset == 0 else 0)
        for start, size in layout.buffers:
            if not size:
                continue
            if size < 8:
                raise IpcLayoutError(f"a compressed buffer of {size} bytes")
            (stated,) = struct.unpack_from("<q", body, start)
            # -1 says that the buffer is stored as it is.
            if stated != -1 and not 0 <= stated <= most:
                raise IpcLayoutError(f"a buffer states {stated} bytes for {place.num_pages} pages")


def _most_page_bytes(place: IndexRow) -> int:
    widest = PageClass("complex128", 128, place.page_shape).page_bytes or 0
    rows_bytes = max(MAX_ROW_BYTES, widest) if place.num_pages else 0
    return max(rows_bytes, 8 * place.num_pages) + _FREE_BYTES
