"""Rows of the share profile: one per tensor, uncompressed, its pages aligned in the file.

Spec: snapshot format, section 5, "share".
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fsspec.callbacks import Callback

from hurray_arrow.arrow.ipc_file import write_batch
from hurray_arrow.arrow.page_class import PLAIN
from hurray_arrow.arrow.row_batches import row_batch
from hurray_arrow.arrow.schema import SchemaPlan, page_class_of
from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.checksums import tensor_checksums
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.placed import PlacedTensor
from hurray_arrow.snapshot.row_sink import Output, RowPlace, RowSink

PAD_KEY = "hurray_arrow.pad"
#: Pages whose checksums a reader of few pages may leave out; of fewer they are next to nothing. The hash for that makes
#: listing dearer, which may take a ten thousandth of the snapshot: smaller pools have none.
MANY_PAGES, LARGE_POOL_BYTES = 128, 2 << 20

Checksums = npt.NDArray[np.uint64]


class ShareRows:
    """Write share rows to an output.

    Parameters
    ----------
    output
        Takes the bytes, from where it stands.
    plan, schema
        The snapshot's plan and the Arrow schema made from it.
    page_align_bytes
        Pages start at a multiple of this in the file.
    checksums
        Whether pages get checksums.
    progress
        Told of the page bytes written.
    """

    #: Holds one row.
    SINK: type[RowSink] = RowSink

    def __init__(
        self,
        output: Output,
        *,
        plan: SchemaPlan,
        schema: pa.Schema,
        page_align_bytes: int,
        checksums: bool,
        progress: Callback,
    ) -> None:
        self.rows: list[IndexRow] = []
        self._output = output
        self._plan, self._schema = plan, schema
        self._schema_bytes = schema.serialize().size
        self._align = page_align_bytes
        #: Where the next row to be encoded will start; only the thread that encodes changes it.
        self._next_offset = output.position
        self._with_checksums = checksums
        self._progress = progress
        self._pool = ThreadPoolExecutor(1, "hurray-arrow-rows")
        self._sending: Future[None] | None = None
        self._is_closed = False

    def append(self, placed: PlacedTensor) -> None:
        """Take a tensor; its buffers are borrowed until :meth:`flush`.

        A tensor is hashed and encoded here while a thread writes the one before it: both release the GIL. What the
        output raises comes with the next tensor, or with :meth:`flush`.
        """
        row = self._prepare(placed)
        before = self._sending
        self._sending = self._pool.submit(self._send, placed, row, before)
        if before is not None:
            before.result()

    def flush(self) -> None:
        """Wait until everything that was taken is written."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def close(self) -> None:
        """Let the thread go, once it is done with the piece at hand; what was not flushed is dropped."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)

    def _send(self, placed: PlacedTensor, row: RowSink, before: Future[None] | None) -> None:
        """Write a row; nothing goes behind one that failed."""
        if before is not None:
            before.result()
        for _ in row.send(self._output, self._progress):
            if self._is_closed:
                raise SnapshotError("the writer is closed")
        self.rows.append(placed.index_row(PLAIN, **asdict(_stated_place(placed, row.place()))))

    def _checksums(self, placed: PlacedTensor) -> Checksums | None:
        return tensor_checksums(placed.tensor) if self._with_checksums else None

    def _prepare(self, placed: PlacedTensor) -> RowSink:
        batch = row_batch(
            placed.tensor,
            plan=self._plan,
            schema=self._schema,
            tensor_index=placed.tensor_index,
            kv_group=placed.kv_group,
            with_tables=placed.with_tables,
            page_checksums=self._checksums(placed),
        )
        pool = pa.py_buffer(placed.tensor.buffers[0])
        # Encoded once to learn where its pages would lie; then the header grows by exactly what the pad does.
        measured = self._encode(batch, pool, pad_bytes=0).place()
        pad_bytes = -measured.pages_offset % self._align if measured.pages_bytes else 0
        row = self._encode(batch, pool, pad_bytes=pad_bytes)
        place = row.place()
        if place.pages_bytes != pool.size or (pool.size and place.pages_offset % self._align):
            found = f"{place.pages_bytes} page bytes at {place.pages_offset}"
            raise SnapshotError(f"{found}, expected {pool.size} at a multiple of {self._align}")
        self._next_offset = row.tell()
        return row

    def _encode(self, batch: pa.RecordBatch, pool: pa.Buffer, *, pad_bytes: int) -> RowSink:
        sink = self.SINK(
            offset=self._next_offset,
            skip_bytes=self._schema_bytes,
            pool=pool,
            checksums=_checksums_buffer(batch),
        )
        write_batch(pa.PythonFile(sink, mode="w"), batch, custom_metadata={PAD_KEY: "0" * pad_bytes})
        return sink


def _stated_place(placed: PlacedTensor, place: RowPlace) -> RowPlace:
    descriptor = placed.tensor.descriptor
    has_one_a_page = page_class_of(descriptor).fits_a_column
    is_large = descriptor.num_pages >= MANY_PAGES and place.pages_bytes >= LARGE_POOL_BYTES
    return place if has_one_a_page and is_large else replace(place, bare_head_xxh3=None)


def _checksums_buffer(batch: pa.RecordBatch) -> pa.Buffer | None:
    column = batch.column("page_checksums")
    return None if column.null_count else column.values.buffers()[1]
