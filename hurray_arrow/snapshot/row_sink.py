"""Where an IPC writer's rows go: watches the bytes of a row pass by, notes the places, hashes what is not pages.

pyarrow hands the page pool over as the buffer it is, so its place is known by address and nothing is copied.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import xxhash
from fsspec.callbacks import Callback, NoOpCallback

PAD_KEY = "hurray_arrow.pad"
#: Pages go on in pieces of this size: a progress bar moves, and no call passes Linux's limit of 2 GiB for one write.
PIECE_BYTES = 64 << 20


class Output(Protocol):
    """What takes the bytes: a file that is not published yet."""

    def write(self, data: Any, /) -> int:
        """Take all of the bytes; return their number."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row lies, offsets in bytes from the file's start.

    ``pages_offset`` is the row's end where it has no pages; ``checksums_offset`` is ``None`` where it has none.
    """

    offset: int
    metadata_bytes: int
    body_bytes: int
    pages_offset: int
    pages_bytes: int
    checksums_offset: int | None
    head_xxh3: str
    tail_xxh3: str


class RowSink:
    """A file object for ``pyarrow.PythonFile``.

    Parameters
    ----------
    output
        Takes the bytes; ``None`` only counts them.
    progress
        Told of the page bytes that were taken.
    """

    def __init__(self, output: Output | None, progress: Callback | None = None) -> None:
        self._output = output
        self._progress = progress or NoOpCallback()
        self.position = 0
        self.closed = False
        self._row_offset = 0
        self._start_row(0, None, None)

    def write_row(
        self, ipc: pa.ipc.RecordBatchFileWriter, batch: pa.RecordBatch, *, offset: int, pool: pa.Buffer, pad: str
    ) -> RowPlace:
        """Let an IPC writer on this sink write one row.

        Parameters
        ----------
        ipc
            The writer.
        batch
            The row; its page checksums are recognised by address.
        offset
            Where the row starts; bytes before it are the file's magic and schema.
        pool
            The memory of the pages.
        pad
            Value of the custom metadata that moves the pages to where they belong.
        """
        self._start_row(offset, pool, _checksums_buffer(batch))
        ipc.write_batch(batch, custom_metadata={PAD_KEY: pad})
        metadata_bytes = 8 + struct.unpack_from("<i", self._prefix, 4)[0]
        pages_offset = self.position if self._pages_offset is None else self._pages_offset
        return RowPlace(
            offset=offset,
            metadata_bytes=metadata_bytes,
            body_bytes=self.position - offset - metadata_bytes,
            pages_offset=pages_offset,
            pages_bytes=0 if self._pages_offset is None else pool.size,
            checksums_offset=self._checksums_offset,
            head_xxh3=self._head.hexdigest(),
            tail_xxh3=self._tail.hexdigest(),
        )

    def _start_row(self, offset: int, pool: pa.Buffer | None, checksums: pa.Buffer | None) -> None:
        self._row_offset = offset
        self._pool, self._checksums = pool, checksums
        self._pages_offset: int | None = None
        self._checksums_offset: int | None = None
        self._prefix = b""
        self._head, self._tail = xxhash.xxh3_64(), xxhash.xxh3_64()

    def write(self, data: bytes | pa.Buffer) -> int:
        """Take all of the bytes; returns their number."""
        if isinstance(data, pa.Buffer) and _is_same(data, self._pool):
            self._pages_offset = self.position
            self._write_pages(memoryview(data).cast("B"))
            return len(data)
        if isinstance(data, pa.Buffer) and _is_same(data, self._checksums):
            self._checksums_offset = self.position
        if self.position >= self._row_offset:
            if len(self._prefix) < 8:
                self._prefix += bytes(memoryview(data)[: 8 - len(self._prefix)])
            (self._head if self._pages_offset is None else self._tail).update(data)
        if self._output is not None:
            self._output.write(data)
        self.position += len(data)
        return len(data)

    def _write_pages(self, view: memoryview) -> None:
        if self._output is not None:
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                self._output.write(piece)
                self._progress.relative_update(len(piece))
        self.position += len(view)

    def tell(self) -> int:
        """Return the position in bytes."""
        return self.position

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is published."""

    def close(self) -> None:
        """Do nothing: only the writer decides whether the file is published."""

    def readable(self) -> bool:
        """Say no."""
        return False

    def writable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say no."""
        return False


def _checksums_buffer(batch: pa.RecordBatch) -> pa.Buffer | None:
    column = batch.column("page_checksums")
    return None if column.null_count else column.values.buffers()[1]


def _is_same(data: pa.Buffer, watched: pa.Buffer | None) -> bool:
    return watched is not None and 0 < data.size == watched.size and data.address == watched.address
