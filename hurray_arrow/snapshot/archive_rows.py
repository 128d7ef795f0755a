"""Rows of the archive profile: small columns first, then at most 8 MiB of pages a row, encoded on every core.

Spec: snapshot format, section 5, "archive".
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from fsspec.callbacks import Callback

from hurray_arrow.arrow.compressed_batch import compressed_batch
from hurray_arrow.arrow.ipc_file import block_of, encoded_batch
from hurray_arrow.arrow.page_buffers import page_buffers
from hurray_arrow.arrow.page_class import BYTE_PLANES, PageClass
from hurray_arrow.arrow.row_batches import page_row_batch, row_batch
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.snapshot.checksums import checksum_piece_bytes, page_checksums
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.placed import PlacedTensor
from hurray_arrow.snapshot.row_sink import Output

#: Pages of a row, decoded; a single page may be larger.
MAX_ROW_BYTES = 8 << 20
#: A pool up to this size lies in its tensor's first row: another row costs 3 KiB of headers, and a request to read it.
ONE_ROW_BYTES = 1 << 20
#: How much larger than their row its small columns may be, once they are decompressed.
FREE_SMALL_BYTES = 4 << 20
#: How many times their row a row's pages may be, where they are more than most rows hold.
MAX_EXPANSION = 100
#: Elements whose most significant byte is nearly all of an 8-bit exponent.
WIDE_EXPONENTS = ("bfloat16", "float32")

#: One row's bytes in order, and the hash of all of them.
_Encoded = tuple[list[bytes | memoryview], str]


@dataclass(frozen=True, slots=True)
class _EncodedRow:
    """One row that is being encoded: its bytes to come, and what the index says of it."""

    placed: PlacedTensor
    encoding: str
    page_offset: int
    num_pages: int
    pages_bytes: int
    encoded: Future[_Encoded]


def most_decoded_bytes(stored_bytes: int) -> int:
    """Return how many bytes of pages a row of so many bytes may hold: a page of zeros, however large, takes nothing."""
    return max(MAX_ROW_BYTES, MAX_EXPANSION * stored_bytes)


class ArchiveRows:
    """Write archive rows to an output.

    Parameters
    ----------
    output
        Takes the bytes, from where it stands.
    plan, schema
        The snapshot's plan, whose encoding says how pages are stored, and the Arrow schema made from it.
    checksums
        Whether pages get checksums.
    progress
        Told of the page bytes encoded and written.
    """

    def __init__(
        self, output: Output, *, plan: SchemaPlan, schema: pa.Schema, checksums: bool, progress: Callback
    ) -> None:
        self.rows: list[IndexRow] = []
        self._output = output
        self._plan, self._schema = plan, schema
        self._with_checksums = checksums
        self._progress = progress
        self._page_buffers = page_buffers(schema)
        workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(workers, "hurray-arrow-archive")
        self._most_in_flight = workers + 2
        self._in_flight: deque[_EncodedRow] = deque()

    def append(self, placed: PlacedTensor) -> None:
        """Take a tensor; its buffers are borrowed until :meth:`flush`. Rows are written in order as they get ready."""
        descriptor = placed.tensor.descriptor
        page_class = self._plan.page_class_of(descriptor)
        pool = placed.tensor.buffers[0]
        whole = not page_class.fits_a_column or pool.nbytes <= ONE_ROW_BYTES
        first = self._pool.submit(self._encode_first, placed, whole=whole)
        self._take(
            _EncodedRow(
                placed, page_class.encoding, 0, descriptor.num_pages if whole else 0, pool.nbytes * whole, first
            )
        )
        page_bytes = page_class.page_bytes
        if whole or not page_bytes:
            return
        step = max(1, MAX_ROW_BYTES // page_bytes)
        for page in range(0, descriptor.num_pages, step):
            pages = pool[page * page_bytes : (page + step) * page_bytes]
            encoded = self._pool.submit(self._encode_pages, placed, page, pages)
            num_pages = len(pages) // page_bytes
            self._take(_EncodedRow(placed, page_class.encoding, page, num_pages, pages.nbytes, encoded))

    def flush(self) -> None:
        """Write what was taken."""
        while self._in_flight:
            self._write(self._in_flight.popleft())

    def close(self) -> None:
        """Let the threads go; what was not flushed is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _take(self, row: _EncodedRow) -> None:
        self._in_flight.append(row)
        if len(self._in_flight) > self._most_in_flight:
            self._write(self._in_flight.popleft())

    def _write(self, row: _EncodedRow) -> None:
        parts, row_xxh3 = row.encoded.result()
        offset = self._output.position
        for part in parts:
            self._output.write(part)
        place = block_of(offset, parts[0], self._output.position - offset)
        self.rows.append(
            row.placed.index_row(
                row.encoding,
                page_offset=row.page_offset,
                num_pages=row.num_pages,
                row_xxh3=row_xxh3,
                **place._asdict(),
            )
        )
        self._progress.relative_update(row.pages_bytes)

    def _encode_first(self, placed: PlacedTensor, *, whole: bool) -> _Encoded:
        pages = placed.tensor.buffers[0] if whole else placed.tensor.buffers[0][:0]
        batch = row_batch(
            placed.tensor,
            plan=self._plan,
            schema=self._schema,
            tensor_index=placed.tensor_index,
            kv_group=placed.kv_group,
            with_tables=placed.with_tables,
            with_pages=whole,
            page_checksums=self._checksums(placed, pages),
        )
        return self._encode(placed, batch, pages)

    def _encode_pages(self, placed: PlacedTensor, page_offset: int, pages: npt.NDArray[np.uint8]) -> _Encoded:
        batch = page_row_batch(
            placed.tensor,
            plan=self._plan,
            schema=self._schema,
            tensor_index=placed.tensor_index,
            kv_group=placed.kv_group,
            page_offset=page_offset,
            pages=pages,
            page_checksums=self._checksums(placed, pages),
        )
        return self._encode(placed, batch, pages)

    def _encode(self, placed: PlacedTensor, batch: pa.RecordBatch, pages: npt.NDArray[np.uint8]) -> _Encoded:
        page_class = self._plan.page_class_of(placed.tensor.descriptor)
        parts = compressed_batch(batch, exponents=self._exponents(page_class))
        size = sum(map(len, parts))
        small_bytes = batch.nbytes - pages.nbytes
        if small_bytes > size + FREE_SMALL_BYTES // 2 or pages.nbytes > most_decoded_bytes(size // 2):
            # Readers would take it for a bomb.
            parts = [memoryview(encoded_batch(batch))]
        row_hash = xxhash.xxh3_64()
        for part in parts:
            row_hash.update(part)
        return parts, row_hash.hexdigest()

    def _exponents(self, page_class: PageClass) -> int | None:
        in_planes = page_class.fits_a_column and page_class.encoding == BYTE_PLANES
        if not in_planes or page_class.element_type not in WIDE_EXPONENTS:
            return None
        return self._page_buffers[self._plan.page_classes.index(page_class)][-1]

    def _checksums(self, placed: PlacedTensor, pages: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64] | None:
        if not self._with_checksums:
            return None
        return page_checksums(pages, checksum_piece_bytes(self._plan.page_class_of(placed.tensor.descriptor)))
