"""An object in any other filesystem of fsspec: checked after each read, written beside its name and moved there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from hurray_arrow.errors import SnapshotChangedError, SnapshotError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler
from hurray_arrow.snapshot.objects.store_object import IN_FLIGHT, Part, Piece, StoreObject
from hurray_arrow.snapshot.stores import TRIES, Place, tried

Answer = TypeVar("Answer")

#: What filesystems call that which changes when a file is replaced.
_IDENTITY = (
    "ETag", "etag", "e_tag", "generation", "version", "checksum", "md5", "content_hash", "LastModified",
    "last_modified", "mtime", "modified", "created", "ino", "uid",
)  # fmt: skip


class GenericObject(StoreObject):
    """An object in a filesystem of which nothing is known but what all of them can.

    Notes
    -----
    A filesystem that cannot say when a file was replaced (neither entity tag nor time) has its size compared only.
    """

    PARALLEL_PARTS = 1
    MAX_PARTS = 1 << 62

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._fs = place.filesystem
        folder, _, name = place.path.rpartition("/")
        self._temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp".lstrip("/" if not folder else "")
        self._handle: Any = None
        self._position = 0

    def version(self) -> Version | None:
        """Return what is there now; see :meth:`StoreObject.version`."""
        return self._tried(self._version, doing="size and identity")

    def open(self, tail_bytes: int) -> tuple[Version, bytes]:
        """Pin a version; see :meth:`StoreObject.open`."""
        found = self._tried(self._existing, doing="size and identity")
        self._pinned = found
        tail = bytearray(min(tail_bytes, found.size))
        if tail:
            self.fetch([(found.size - len(tail), memoryview(tail))])
        return found, bytes(tail)

    def fetch(self, pieces: Sequence[Piece]) -> None:
        """Fill memory with ranges; see :meth:`StoreObject.fetch`."""
        try:
            for first in range(0, len(pieces), IN_FLIGHT):
                window = pieces[first : first + IN_FLIGHT]
                ranges = f"bytes [{window[0][0]}, {window[-1][0] + len(window[-1][1])})"
                self._tried(self._fetch, window, doing=ranges, pinned=True)
        except SnapshotError:
            self._check_unchanged()
            raise
        # What was read before the object changed, or at that very moment, is not told apart: all of it is refused.
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        now = self._tried(self._version, doing="size and identity")
        if now != self._pinned:
            message = f"it is {now} now and was {self._pinned} when it was opened"
            raise SnapshotChangedError(message, url=self.place.url)

    def put(self, part: Part, *, overwrite: bool) -> None:
        """Create the object at once; see :meth:`StoreObject.put`."""
        self.begin(part_bytes=part.size, overwrite=overwrite)
        self.send(1, part, last=True)
        self.complete([None], overwrite=overwrite)

    def begin(self, *, part_bytes: int, overwrite: bool) -> None:
        """Open the temporary file; see :meth:`StoreObject.begin`."""
        del part_bytes, overwrite
        self._handle = self._tried(self._fs.open, self._temporary, "wb", doing="start of the upload")

    def send(self, number: int, part: Part, *, last: bool) -> Future[Any]:
        """Write on; see :meth:`StoreObject.send`."""
        del last
        done: Future[Any] = Future()
        self._tried(self._write, part, doing=f"upload of part {number}, {part.size} bytes", again=False)
        done.set_result(None)
        return done

    def complete(self, receipts: Sequence[Any], *, overwrite: bool) -> None:
        """Move the temporary file to its name; see :meth:`StoreObject.complete`."""
        del receipts
        self._tried(self._publish, overwrite, doing="completion of the upload", creating=not overwrite, again=False)

    def abort(self) -> None:
        """Remove the temporary file; see :meth:`StoreObject.abort`."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.close()
            finally:
                self._tried(self._fs.rm_file, self._temporary, doing="removal of the temporary file", again=False)

    def _version(self) -> Version | None:
        try:
            return self._existing()
        except FileNotFoundError:
            return None

    def _existing(self) -> Version:
        self._forget()
        info = self._fs.info(self.place.path)
        if info.get("type") == "directory":
            raise IsADirectoryError(self.place.url)
        return Version(info["size"], tuple((name, str(info[name])) for name in _IDENTITY if info.get(name) is not None))

    def _forget(self) -> None:
        self._fs.invalidate_cache(self._fs._parent(self.place.path))

    def _fetch(self, window: Sequence[Piece]) -> None:
        starts = [start for start, _ in window]
        ends = [start + len(view) for start, view in window]
        found = self._fs.cat_ranges([self.place.path] * len(window), starts, ends, on_error="raise")
        for (_, view), data in zip(window, found, strict=True):
            filler = Filler(view)
            filler.take(data)
            filler.finish()

    def _write(self, part: Part) -> None:
        view = memoryview(part.getbuffer())
        while view:
            written = self._handle.write(view)
            # Some handles say nothing, which means all.
            view = view[len(view) if written is None else written :]
        self._position += part.size

    def _publish(self, overwrite: bool) -> None:
        handle = self._handle
        handle.close()
        size = self._fs.info(self._temporary)["size"]
        if size != self._position:
            raise OSError(f"{size} bytes in the temporary file, {self._position} were written")
        if not overwrite and self._version() is not None:
            raise FileExistsError(self.place.url)
        if type(self._fs).mv is AbstractFileSystem.mv:
            # fsspec's own would take a name with "?", "*" or "[" for a pattern.
            self._fs.cp_file(self._temporary, self.place.path)
            self._fs.rm_file(self._temporary)
        else:
            self._fs.mv(self._temporary, self.place.path)
        self._handle = None

    def _tried(
        self,
        work: Callable[..., Answer],
        *arguments: Any,
        doing: str,
        pinned: bool = False,
        creating: bool = False,
        again: bool = True,
    ) -> Answer:
        tries, url = TRIES if again else 1, self.place.url
        return tried(work, *arguments, url=url, doing=doing, pinned=pinned, creating=creating, tries=tries)
