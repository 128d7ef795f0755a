"""Byte ranges of an object in a store: of one version only, in few requests, several at the same time.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa

from hurray_arrow.errors import SnapshotChangedError, SnapshotIncompleteError
from hurray_arrow.snapshot.files import FileRange, PathLike, Source, Version
from hurray_arrow.snapshot.stores import Place, locate, translated

#: What is fetched when a snapshot is opened: the whole end of one that has some hundred rows.
TAIL_BYTES = 64 << 10
#: Longer ranges are cut, so that several connections carry them.
PIECE_BYTES = 8 << 20
_ALIGN_BYTES = 64


class Known(NamedTuple):
    """What an earlier reader found out about a snapshot file, so that nobody has to ask again.

    Parameters
    ----------
    version
        The version that it was read in; another is refused.
    tail_bytes
        How many of its last bytes opening it takes.
    tail
        Those bytes; ``None`` where they are to be fetched again.
    """

    version: Version
    tail_bytes: int
    tail: bytes | None


def open_range(
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    mapped: bool = True,
) -> Source:
    """Open a file or object for reading in ranges.

    A local file is mapped, and so is the copy that a cache such as ``simplecache::`` keeps.

    Raises
    ------
    MissingDependencyError, ValueError
        As :func:`~hurray_arrow.snapshot.stores.locate`.
    FileNotFoundError, PermissionError, IsADirectoryError
        As the store says.
    SnapshotIncompleteError
        It is empty.
    SnapshotError
        The store does not answer.
    """
    return open_place(locate(path, storage_options=storage_options, filesystem=filesystem), mapped=mapped)


def open_place(place: str | Place, *, mapped: bool = True, known: Known | None = None) -> Source:
    """Open what lies at a place; as :func:`open_range`.

    Parameters
    ----------
    place
        A path, or a place in a filesystem.
    mapped
        As of :func:`open_range`.
    known
        What is known of it; the object's store is asked for nothing then before something is read.

    Raises
    ------
    SnapshotChangedError
        It is of another version than is known, or gone.
    """
    if not isinstance(place, str) and not getattr(place.filesystem, "local_file", False):
        return RemoteRange(place, known=known)
    try:
        source = FileRange(place if isinstance(place, str) else _cached_copy(place), mapped=mapped)
    except FileNotFoundError as error:
        if known is None:
            raise
        raise SnapshotChangedError("it was deleted since it was listed", url=str(error.filename)) from error
    if not isinstance(place, str):
        source.url = place.url
        # Each process has a copy of its own, whose time says nothing of the object.
        source.version = Version(source.size, None)
    if known is not None and source.version != known.version:
        source.close()
        message = f"it is {source.version} now and was {known.version} when it was listed"
        raise SnapshotChangedError(message, url=source.url)
    return source


def _cached_copy(place: Place) -> str:
    try:
        with place.filesystem.open(place.path, "rb") as file:
            return str(file.name)
    except Exception as error:
        raise translated(error, url=place.url, doing="copy into the cache") from error


class RemoteRange:
    """An object that is only read, in ranges, and only in the version that it was opened in.

    Parameters
    ----------
    place
        Where it lies.
    known
        What is known of it: opening it is no request then, or one for its end.

    Raises
    ------
    FileNotFoundError, PermissionError, IsADirectoryError
        As the store says.
    SnapshotIncompleteError
        The object is empty.
    SnapshotError
        The store does not answer.

    Notes
    -----
    Opening is one request where the store takes a range that counts from the end, and two otherwise; the last 64 KiB
    are kept. ``requests`` counts ranges, without what a store needs besides them, and without repetitions. May be used
    from several threads.
    """

    is_mapped = False
    address = 0

    def __init__(self, place: Place, *, known: Known | None = None) -> None:
        # Whoever reads from a disk does not wait for the modules of the stores.
        from hurray_arrow.snapshot.objects import object_at

        self.url = place.url
        self._object = object_at(place)
        self._lock, self._counts = threading.Lock(), threading.Lock()
        self.requests = self.fetched_bytes = 0
        if known is None:
            self.version, tail = self._object.open(TAIL_BYTES)
            self.requests, self.fetched_bytes = 1, len(tail)
        else:
            self._object.pin(known.version)
            self.version, tail = known.version, known.tail or b""
        self.size = self.version.size
        if not self.size:
            raise SnapshotIncompleteError("the object is empty", url=self.url)
        self._tail_start, self._tail = self.size - len(tail), pa.py_buffer(tail)
        if known is not None:
            self.keep_from(self.size - known.tail_bytes)

    def read(self, offset: int, size: int) -> pa.Buffer:
        """Return exactly ``size`` bytes from ``offset`` in new memory; long ranges over several connections.

        Raises
        ------
        SnapshotIncompleteError
            The range passes the end of the object.
        SnapshotChangedError
            The object was replaced or deleted since it was opened.
        SnapshotError
            The store did not give the bytes; the message names them.
        """
        return self.read_many([(offset, size)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return several ranges; neighbours come in one request, and a few requests are under way at the same time.

        Parameters
        ----------
        ranges
            ``(offset, size)`` of each, in bytes.

        Returns
        -------
        list of pyarrow.Buffer
            In the order of ``ranges``. Neighbours share memory, which lies to a multiple of 64 as in the object.

        Raises
        ------
        SnapshotIncompleteError, SnapshotChangedError, SnapshotError
            As :meth:`read`.
        """
        for offset, size in ranges:
            if offset < 0 or size < 0 or offset + size > self.size:
                message = f"bytes [{offset}, {offset + size}) of an object of {self.size}"
                raise SnapshotIncompleteError(message, url=self.url)
        with self._lock:
            tail_start, tail = self._tail_start, self._tail
        spans = _spans([(offset, size) for offset, size in ranges if size and offset < tail_start])
        memory = {start: _allocate(start, end - start) for start, end in spans}
        self._fill([(start, view) for start, (_, view) in memory.items()])
        found = []
        for offset, size in ranges:
            if not size or offset >= tail_start:
                found.append(tail.slice(max(offset - tail_start, 0), size))
                continue
            start = max(start for start in memory if start <= offset)
            found.append(memory[start][0].slice(offset - start, size))
        return found

    def keep_from(self, offset: int, *, spare_bytes: int = 0) -> None:
        """Have everything from ``offset`` to the end at hand: in one request, or in none if it is.

        Parameters
        ----------
        offset
            Where what is needed starts.
        spare_bytes
            How much more before it to fetch when there has to be a request at all.
        """
        with self._lock:
            if offset >= self._tail_start:
                return
            start = max(offset - spare_bytes, 0)
            whole, view = _allocate(start, self.size - start)
            missing = self._tail_start - start
            self._fill([(start, view[:missing])])
            view[missing:] = memoryview(self._tail).cast("B")
            self._tail_start, self._tail = start, whole

    def close(self) -> None:
        """Do nothing: the connections are the filesystem's."""

    def _fill(self, targets: Sequence[tuple[int, memoryview]]) -> None:
        pieces = []
        for start, view in targets:
            pieces += [(start + at, view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES)]
        if pieces:
            self._object.fetch(pieces)
            with self._counts:
                self.requests += len(pieces)
                self.fetched_bytes += sum(len(view) for _, view in pieces)


def _spans(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that touch or overlap: ``(start, end)`` in order."""
    spans: list[tuple[int, int]] = []
    for offset, size in sorted(ranges):
        if spans and offset <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], offset + size))
        else:
            spans.append((offset, offset + size))
    return spans


def _allocate(offset: int, size: int) -> tuple[pa.Buffer, memoryview]:
    """Return memory and a view to fill it, at the same place modulo 64 as in the object: aligned pages stay aligned."""
    buffer = pa.allocate_buffer(size + _ALIGN_BYTES)
    start = (offset - buffer.address) % _ALIGN_BYTES
    return buffer.slice(start, size), memoryview(buffer).cast("B")[start : start + size]
