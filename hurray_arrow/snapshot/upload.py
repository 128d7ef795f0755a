"""Objects that appear whole or not at all: sent in parts, several at the same time, from a few buffers.

No handle of a filesystem is used that publishes what it has when it is closed, left by an exception or forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from concurrent.futures import Future
from typing import Any

from fsspec.implementations.cached import CachingFileSystem

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.objects import object_at
from hurray_arrow.snapshot.objects.store_object import Part, StoreObject
from hurray_arrow.snapshot.stores import Place

#: What all parts under way take together, unless one alone is larger.
_BUFFERS_BYTES = 64 << 20
#: After this many parts of one size the next ones are twice as large: 10,000 hold 8 TiB, whatever was expected.
_PARTS_OF_A_SIZE = 1000
_MAX_PART_BYTES = 4 << 30


class RemoteFile:
    """An object that gets its name when it is complete; see :class:`~hurray_arrow.snapshot.files.AtomicFile`.

    Parameters
    ----------
    place
        Where it is to lie. A cache before the filesystem is passed by, and forgets its copy.
    overwrite
        Whether an existing object may be replaced; it stays until the new one is complete.
    expected_bytes
        About how much will be written, 0 if nobody knows.

    Raises
    ------
    FileExistsError
        There is one, and ``overwrite`` is False: at once, and again when publishing.
    PermissionError, SnapshotError
        As the store says.

    Notes
    -----
    An exception, a lost connection or ``kill -9`` at any moment leaves the old object or none. A killed writer may
    leave parts that are not visible and are paid for: a rule of the bucket that removes unfinished uploads helps.
    """

    def __init__(self, place: Place, *, overwrite: bool = False, expected_bytes: int = 0) -> None:
        self._cache = place if isinstance(place.filesystem, CachingFileSystem) else None
        self._object: StoreObject = object_at(_behind_caches(place))
        self.path = place.url
        self.position = 0
        self._overwrite = overwrite
        self._expected_bytes = expected_bytes
        self._object.check_writable()
        if not overwrite:
            self._refuse_existing()
        self._part = Part()
        self._part_bytes = self._size_of_part(1)
        self._begun, self._number = False, 0
        self._sending: deque[tuple[Part, Future[Any]]] = deque()
        self._receipts: list[Any] = []
        self._spare: list[Part] = []

    def write(self, data: Any) -> int:
        """Take all of a bytes-like object, which is copied; returns its length in bytes."""
        view = memoryview(data).cast("B")
        size = len(view)
        while view:
            # The last part is only known as such when no more comes.
            if self._part.tell() == self._part_bytes:
                self._send(last=False)
            taken = self._part.write(view[: self._part_bytes - self._part.tell()])
            view = view[taken:]
        self.position += size
        return size

    def publish(self) -> None:
        """Make the complete object visible.

        Raises
        ------
        FileExistsError
            The name was taken in the meantime and ``overwrite`` is False.
        SnapshotError
            The store did not take a part, or has another size than was written.
        """
        try:
            # Where the store itself refuses to replace, this only saves the last part.
            if not self._overwrite:
                self._refuse_existing()
            if self._number:
                self._send(last=True)
                self._receive(0)
                identity = self._object.complete(self._receipts, overwrite=self._overwrite)
            else:
                self._part.truncate()
                identity = self._object.put(self._part, overwrite=self._overwrite)
            found = self._object.version()
        except BaseException:
            self.discard()
            raise
        # Somebody else came in the moment since: ours was there whole.
        is_replaced = found is not None and identity not in (None, found.identity)
        if is_replaced and not self._overwrite:
            # A store that checks its condition a moment too early let two creators through, and the other came last.
            raise self._taken()
        if not is_replaced and (found is None or found.size != self.position):
            has = "no object" if found is None else f"{found.size} bytes"
            raise SnapshotError(f"{has} in the store, {self.position} were written", url=self.path)
        self._object.published()
        if self._cache is not None:
            _forget_copy(self._cache)

    def discard(self) -> None:
        """Throw away what was sent; an existing object under the name stays as it is."""
        for _, sending in self._sending:
            sending.cancel()
        for _, sending in self._sending:
            # Parts that arrive after the upload was aborted would stay, and be paid for.
            with contextlib.suppress(Exception):
                sending.result()
        self._sending.clear()
        if self._begun:
            self._begun = False
            # Nothing is visible either way, and why the upload failed is what the caller has to hear.
            with contextlib.suppress(Exception):
                self._object.abort()

    def _send(self, *, last: bool) -> None:
        part = self._part
        part.truncate()
        if not self._begun:
            self._begun = True
            self._object.begin(part_bytes=self._part_bytes, overwrite=self._overwrite)
        self._number += 1
        self._check_limit()
        parallel = max(1, min(self._object.PARALLEL_PARTS, _BUFFERS_BYTES // self._part_bytes))
        self._receive(0 if last else parallel - 1)
        self._sending.append((part, self._object.send(self._number, part, last=last)))
        self._part = self._spare.pop() if self._spare else Part()
        self._part.seek(0)
        self._part_bytes = self._size_of_part(self._number + 1)

    def _receive(self, most: int) -> None:
        """Wait until no more than ``most`` parts are under way."""
        while len(self._sending) > most:
            part, sending = self._sending[0]
            self._receipts.append(sending.result())
            self._sending.popleft()
            self._spare.append(part)

    def _size_of_part(self, number: int) -> int:
        """Return how large a part is to be: as expected, and growing, so that any number of bytes fits."""
        step = self._object.MIN_PART_BYTES
        expected = -(-self._expected_bytes * 100 // (97 * self._object.MAX_PARTS) // step) * step
        grown = step << min((number - 1) // _PARTS_OF_A_SIZE, 32) if self._object.GROWING_PARTS else step
        return int(min(max(step, expected, grown), max(_MAX_PART_BYTES, expected)))

    def _check_limit(self) -> None:
        if self._number > self._object.MAX_PARTS:
            message = f"more than {self._object.MAX_PARTS} parts; say how large the snapshot is (expected_bytes)"
            raise SnapshotError(message, url=self.path)

    def _refuse_existing(self) -> None:
        if self._object.version() is not None:
            raise self._taken()

    def _taken(self) -> FileExistsError:
        return FileExistsError(errno.EEXIST, "it exists; overwrite=True replaces it", self.path)


def _behind_caches(place: Place) -> Place:
    filesystem = place.filesystem
    while isinstance(filesystem, CachingFileSystem):
        filesystem = filesystem.fs
    return Place(filesystem, place.path, place.url, place.tries)


def _forget_copy(cache: Place) -> None:
    """Remove a cache's copy of what was just replaced, which it would go on giving out."""
    copy = cache.filesystem._check_file(cache.path)  # noqa: SLF001 - it has no door for this
    copy = copy[1] if isinstance(copy, tuple) else copy
    if isinstance(copy, str):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)  # noqa: PTH108 - a path as the cache made it
