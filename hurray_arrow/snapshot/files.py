"""Files that appear whole or not at all, and byte ranges of files that are only read.

Spec: snapshot format, section 5; house rules on secrets (files are created 0600).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

import pyarrow as pa

from hurray_arrow.errors import SnapshotError, SnapshotIncompleteError
from hurray_arrow.mappings import FileMapping
from hurray_arrow.spec import MIN_ALIGNMENT_BYTES

#: Small writes gather here; the pages pass by it straight into the kernel.
_BUFFER_BYTES = 1 << 20
#: What file systems without hard links answer.
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

PathLike = str | os.PathLike[str]


class Version(NamedTuple):
    """What a file or object is now: its size in bytes, and what changes when it is replaced."""

    size: int
    identity: Any


class Source(Protocol):
    """What a snapshot is read from: a file, or an object in a store. ``address`` is 0 where it is not mapped.

    ``requests`` and ``fetched_bytes`` count the ranges that were read so far, and their bytes.
    """

    url: str
    size: int
    version: Version
    requests: int
    fetched_bytes: int

    @property
    def is_mapped(self) -> bool:
        """Whether ranges are views of a mapping, and cost nothing."""

    @property
    def address(self) -> int:
        """Address of the mapping's first byte."""

    def read(self, offset: int, size: int) -> pa.Buffer:
        """Return exactly ``size`` bytes from ``offset``."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return several ranges ``(offset, size)`` in their order; neighbours are read at once."""

    def keep_from(self, offset: int, *, spare_bytes: int = 0) -> None:
        """Have everything from ``offset`` to the end at hand; ``spare_bytes`` before it may come along."""

    def close(self) -> None:
        """Let go; what was given out stays valid."""


class AtomicFile:
    """A local file that gets its name when it is complete, and until then lies beside it under a hidden temporary name.

    Parameters
    ----------
    path
        The final name. Its folder must exist. A symbolic link is followed.
    overwrite
        Whether an existing file may be replaced; it stays whole for those who have it open or mapped.
    mode
        Permission bits of the published file.

    Raises
    ------
    FileExistsError
        The name is taken and ``overwrite`` is False: at once, and again when publishing.

    Notes
    -----
    An exception, a full disk or ``kill -9`` at any moment leaves no file under the final name and an existing one
    untouched. A killed writer leaves its temporary file, ``.NAME.<8 hex digits>.tmp``.
    """

    def __init__(self, path: PathLike, *, overwrite: bool = False, mode: int = 0o600) -> None:
        self.path = Path(os.path.realpath(path))
        self._overwrite = overwrite
        self._mode = mode
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path))
        if not overwrite and self.path.exists():
            raise FileExistsError(errno.EEXIST, "it exists; overwrite=True replaces it", str(self.path))
        if not self.path.parent.exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", str(self.path.parent))
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        self._file: BinaryIO = os.fdopen(os.open(self._temporary, flags, 0o600), "w+b", buffering=_BUFFER_BYTES)
        self.position = 0

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object; returns its length in bytes."""
        # A buffered writer loops until the kernel has taken everything; it never reports a short write.
        written = self._file.write(data)
        self.position += written
        return written

    def publish(self) -> None:
        """Give the complete file its name: flush, fsync, rename, fsync of the folder.

        Raises
        ------
        FileExistsError
            The name was taken in the meantime and ``overwrite`` is False.
        SnapshotError
            The file has another size than was written.
        """
        try:
            self._file.flush()
            descriptor = self._file.fileno()
            size = os.fstat(descriptor).st_size
            if size != self.position:
                raise SnapshotError(f"{size} bytes on disk, {self.position} were written", url=str(self.path))
            os.fchmod(descriptor, self._mode)
            os.fsync(descriptor)
            self._file.close()
            self._take_name()
        except BaseException:
            self.discard()
            raise
        _fsync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove what was written; an existing file under the final name stays as it is."""
        try:
            # The buffered writer would flush into the file that is going away, and fail once more on a full disk.
            self._file.raw.close()  # type: ignore[attr-defined]  # BinaryIO does not name the raw file
        finally:
            self._temporary.unlink(missing_ok=True)

    def _take_name(self) -> None:
        if self._overwrite:
            self._temporary.replace(self.path)
            return
        try:
            os.link(self._temporary, self.path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # Without hard links there is no rename that refuses to replace; two writers at the same instant may race.
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path)) from error
            self._temporary.rename(self.path)
            return
        self._temporary.unlink()


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileRange:
    """A file that is only read, in ranges; mapped, so that a range costs nothing and keeps the mapping alive.

    Parameters
    ----------
    path
        The file.
    mapped
        False reads every range into new memory instead, for file systems where a mapping fails or faults.

    Raises
    ------
    IsADirectoryError
        It is a folder.
    SnapshotIncompleteError
        The file is empty, or a pipe or a device.
    """

    _descriptor = -1

    def __init__(self, path: PathLike, *, mapped: bool = True) -> None:
        # Without O_NONBLOCK a pipe of this name would be waited for.
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        self._take(os.open(path, flags), os.fspath(path), mapped=mapped)

    @classmethod
    def of_descriptor(cls, descriptor: int, *, url: str) -> Self:
        """Map the file of an open descriptor, which stays the caller's; ``url`` names it in messages."""
        source = cls.__new__(cls)
        source._take(os.dup(descriptor), url, mapped=True)  # noqa: SLF001 - a second constructor
        return source

    def _take(self, descriptor: int, url: str, *, mapped: bool) -> None:
        self.url = url
        #: Ranges that were read into new memory, and their bytes.
        self.requests = self.fetched_bytes = 0
        self._descriptor, self._readers, self._is_closed = descriptor, 0, False
        self._lock = threading.Lock()
        self._buffer: pa.Buffer | None = None
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
            self.size = status.st_size
            self.version = Version(status.st_size, status.st_mtime_ns)
            if not self.size:
                raise SnapshotIncompleteError("the file is empty", url=url)
            if mapped:
                self._buffer = pa.py_buffer(FileMapping(descriptor, self.size))
        except BaseException:
            self.close()
            raise
        if mapped:
            self.close()

    def read(self, offset: int, size: int) -> pa.Buffer:
        """Return exactly ``size`` bytes from ``offset``: a view of the mapping, or new memory where it is not mapped.

        New memory starts as many bytes after a multiple of 64 as the range does in the file.

        Raises
        ------
        SnapshotIncompleteError
            The range passes the end of the file.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise SnapshotIncompleteError(f"bytes [{offset}, {offset + size}) of a file of {self.size}", url=self.url)
        if self._buffer is not None:
            return self._buffer.slice(offset, size)
        # In memory as in the file, modulo 64: so pages keep the alignment that the writer gave them.
        before = offset % MIN_ALIGNMENT_BYTES
        target = pa.allocate_buffer(before + size)
        view, done = memoryview(target).cast("B")[before:], 0
        with self._in_use(size) as descriptor:
            while done < size:
                count = os.preadv(descriptor, [view[done:]], offset + done)
                if not count:
                    raise SnapshotIncompleteError(
                        f"the file ends at byte {offset + done}, expected {self.size}", url=self.url
                    )
                done += count
        return target.slice(before)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return several ranges ``(offset, size)``; as :meth:`read`."""
        return [self.read(offset, size) for offset, size in ranges]

    def keep_from(self, offset: int, *, spare_bytes: int = 0) -> None:
        """Do nothing: what is read twice costs nothing here."""

    @property
    def is_mapped(self) -> bool:
        """Whether ranges are views of a mapping."""
        return self._buffer is not None

    @property
    def address(self) -> int:
        """Address of the mapping's first byte; 0 where the file is not mapped."""
        return 0 if self._buffer is None else int(self._buffer.address)

    def close(self) -> None:
        """Close the descriptor, once nobody reads through it; views that were given out keep the mapping."""
        with self._lock:
            self._is_closed = True
        self._close_unused()

    @contextmanager
    def _in_use(self, size: int) -> Iterator[int]:
        """Keep the descriptor open: its number would be another file's a moment later, and so would the bytes."""
        with self._lock:
            if self._is_closed:
                raise SnapshotError("the snapshot is closed", url=self.url)
            self._readers += 1
            self.requests += 1
            self.fetched_bytes += size
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._readers -= 1
            self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            unused = self._is_closed and not self._readers and self._descriptor >= 0
            descriptor, self._descriptor = self._descriptor, -1 if unused else self._descriptor
        if unused:
            os.close(descriptor)

    def __del__(self) -> None:
        # Whoever forgot to close it holds no memory, but a descriptor, which nobody else would let go.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
