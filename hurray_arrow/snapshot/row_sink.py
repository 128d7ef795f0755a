"""Where one row of the share profile goes: watches its bytes pass by, notes the places, hashes what is not pages.

pyarrow hands the page pool over as the buffer it is, so its place is known by address and nothing is copied.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import xxhash
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.ipc_file import block_of
from hurray_arrow.errors import SnapshotError

#: Pages go on in pieces of this size: a progress bar moves, and no call passes Linux's limit of 2 GiB for one write.
PIECE_BYTES = 64 << 20


class Output(Protocol):
    """What takes the bytes of a snapshot: a file or object that is not published yet."""

    position: int

    def write(self, data: Any, /) -> int:
        """Take all of the bytes; return their number."""


class SnapshotOutput(Output, Protocol):
    """An output that becomes a snapshot, whole or not at all; ``path`` names it in messages."""

    path: Any

    def publish(self) -> None:
        """Make what was written a snapshot that others may open."""

    def discard(self) -> None:
        """Throw away what was written; harmless when called again."""


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
    """A file object for ``pyarrow.PythonFile`` that takes one row.

    Parameters
    ----------
    output
        Takes the bytes; ``None`` only counts them.
    offset
        Where the row starts in the file.
    skip_bytes
        How many bytes come first that do not belong to the row: its schema.
    pool, checksums
        The memory of the pages and of their checksums, recognised by address.
    progress
        Told of the page bytes that were taken.
    """

    def __init__(
        self,
        output: Output | None,
        *,
        offset: int,
        skip_bytes: int,
        pool: pa.Buffer,
        checksums: pa.Buffer | None = None,
        progress: Callback | None = None,
    ) -> None:
        self.closed = False
        self._output = output
        self._offset = offset
        self._skip_bytes = skip_bytes
        self._position = offset
        self._pool, self._checksums = pool, checksums
        self._progress = progress or NoOpCallback()
        self._pages_offset: int | None = None
        self._checksums_offset: int | None = None
        self._prefix = b""
        self._head, self._tail = xxhash.xxh3_64(), xxhash.xxh3_64()

    def place(self) -> RowPlace:
        """Return where the row lies, once it was written."""
        _, metadata_bytes, body_bytes = block_of(self._offset, self._prefix, self._position - self._offset)
        return RowPlace(
            offset=self._offset,
            metadata_bytes=metadata_bytes,
            body_bytes=body_bytes,
            pages_offset=self._position if self._pages_offset is None else self._pages_offset,
            pages_bytes=0 if self._pages_offset is None else self._pool.size,
            checksums_offset=self._checksums_offset,
            head_xxh3=self._head.hexdigest(),
            tail_xxh3=self._tail.hexdigest(),
        )

    def write(self, data: bytes | pa.Buffer) -> int:
        """Take all of the bytes; returns their number."""
        size = len(data)
        if self._skip_bytes:
            self._skip_bytes -= size
        elif isinstance(data, pa.Buffer) and _is_same(data, self._pool):
            if self._pages_offset is not None:
                raise SnapshotError(
                    "the pages' memory is also that of another buffer of their tensor; copy one of them"
                )
            self._pages_offset = self._position
            self._write_pages(memoryview(data).cast("B"))
        else:
            self._write_small(data)
        return size

    def _write_small(self, data: bytes | pa.Buffer) -> None:
        if isinstance(data, pa.Buffer) and _is_same(data, self._checksums):
            self._checksums_offset = self._position
        if len(self._prefix) < 8:
            self._prefix += bytes(memoryview(data)[: 8 - len(self._prefix)])
        (self._head if self._pages_offset is None else self._tail).update(data)
        if self._output is not None:
            self._output.write(data)
        self._position += len(data)

    def _write_pages(self, view: memoryview) -> None:
        if self._output is not None:
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                self._output.write(piece)
                self._progress.relative_update(len(piece))
        self._position += len(view)

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

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


def _is_same(data: pa.Buffer, watched: pa.Buffer | None) -> bool:
    return watched is not None and 0 < data.size == watched.size and data.address == watched.address
