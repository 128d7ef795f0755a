"""One encoded row of the share profile: its parts in order, where they lie, and the hashes of what is not pages.

pyarrow hands the page pool over as the buffer it is, so its place is known by address and nothing is copied.

Spec: snapshot format, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import xxhash
from fsspec.callbacks import Callback

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

    ``pages_offset`` is the row's end where it has no pages; ``checksums_offset`` is ``None`` where it has none, and so
    is ``bare_head_xxh3``, which is ``head_xxh3`` without them.
    """

    offset: int
    metadata_bytes: int
    body_bytes: int
    pages_offset: int
    pages_bytes: int
    checksums_offset: int | None
    head_xxh3: str
    bare_head_xxh3: str | None
    tail_xxh3: str


class RowSink:
    """A file object for ``pyarrow.PythonFile`` that takes one row, and holds its parts until they are sent.

    Parameters
    ----------
    offset
        Where the row starts in the file.
    skip_bytes
        How many bytes come first that do not belong to the row: its schema.
    pool, checksums
        The memory of the pages and of their checksums, recognised by address.
    """

    def __init__(self, *, offset: int, skip_bytes: int, pool: pa.Buffer, checksums: pa.Buffer | None = None) -> None:
        self.closed = False
        self._offset = offset
        self._skip_bytes = skip_bytes
        self._position = offset
        self._pool, self._checksums = pool, checksums
        self._parts: list[bytes | pa.Buffer] = []
        self._pages_offset: int | None = None
        self._checksums_offset: int | None = None
        self._prefix = b""
        self._head, self._bare_head, self._tail = xxhash.xxh3_64(), xxhash.xxh3_64(), xxhash.xxh3_64()

    def place(self) -> RowPlace:
        """Return where the row lies, once it was taken."""
        _, metadata_bytes, body_bytes = block_of(self._offset, self._prefix, self._position - self._offset)
        return RowPlace(
            offset=self._offset,
            metadata_bytes=metadata_bytes,
            body_bytes=body_bytes,
            pages_offset=self._position if self._pages_offset is None else self._pages_offset,
            pages_bytes=0 if self._pages_offset is None else self._pool.size,
            checksums_offset=self._checksums_offset,
            head_xxh3=self._head.hexdigest(),
            bare_head_xxh3=None if self._checksums_offset is None else self._bare_head.hexdigest(),
            tail_xxh3=self._tail.hexdigest(),
        )

    def send(self, output: Output, progress: Callback) -> Iterator[None]:
        """Write the row to an output, piece by piece as the caller goes on.

        ``progress`` is told of the page bytes that were taken.
        """
        for part in self._parts:
            if part is self._pool:
                yield from self.send_pages(output, memoryview(part).cast("B"), progress)
            else:
                output.write(part)

    def send_pages(self, output: Output, pages: memoryview, progress: Callback) -> Iterator[None]:
        """Write the pages to an output, piece by piece as :meth:`send`."""
        for start in range(0, len(pages), PIECE_BYTES):
            piece = pages[start : start + PIECE_BYTES]
            output.write(piece)
            progress.relative_update(len(piece))
            yield

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
            self._parts.append(self._pool)
            self._position += size
        else:
            self._take_small(data)
        return size

    def _take_small(self, data: bytes | pa.Buffer) -> None:
        is_checksums = isinstance(data, pa.Buffer) and _is_same(data, self._checksums)
        if is_checksums:
            self._checksums_offset = self._position
        if len(self._prefix) < 8:
            self._prefix += bytes(memoryview(data)[: 8 - len(self._prefix)])
        if self._pages_offset is not None:
            self._tail.update(data)
        else:
            self._head.update(data)
            if not is_checksums:
                self._bare_head.update(data)
        self._parts.append(data)
        self._position += len(data)

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def flush(self) -> None:
        """Do nothing: there is nothing behind it."""

    def close(self) -> None:
        """Do nothing: what was taken can still be sent."""

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
