"""One object in a store: read in ranges of one version, or written so that it appears whole or not at all.

What differs between the stores is in the modules beside this one; retries, bounds and errors are the same for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import fsspec.asyn
import xxhash

from hurray_arrow.errors import SnapshotChangedError, SnapshotError, UnsupportedError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import check_start, total_of_content_range
from hurray_arrow.snapshot.stores import (
    BACKOFF_SECONDS,
    TRIES,
    Place,
    TruncatedBodyError,
    is_transient,
    status_of,
    translated,
)

#: How long an upload that was interrupted while it began is waited for.
_PATIENCE_SECONDS = 10
#: Requests of one call that are under way at the same time.
IN_FLIGHT = 8
_READ_BACK_BYTES = 8 << 20
_UPLOAD_GONE = "the store has no such upload any more: somebody aborted it, or a rule of the bucket did"

Answer = TypeVar("Answer")
#: Bytes from an offset on, and the memory that they go to.
Piece = tuple[int, memoryview]


class Part(io.BytesIO):
    """Bytes on their way into a store; libraries that close what they have sent must not, it may be sent again."""

    @property
    def size(self) -> int:
        """The part's length in bytes."""
        return self.getbuffer().nbytes

    def close(self) -> None:
        """Do nothing."""


class StoreObject(ABC):
    """An object at a place in a store.

    Parameters
    ----------
    place
        Where it lies.
    """

    #: Parts that may be sent at the same time; 1 where they have to come in order.
    PARALLEL_PARTS = IN_FLIGHT
    #: What a store takes, so that a snapshot of any size fits.
    MAX_PARTS = 10_000
    MIN_PART_BYTES = 8 << 20
    #: Whether later parts may be larger than the first.
    GROWING_PARTS = True

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pinned: Version | None = None

    def pin(self, version: Version) -> None:
        """Have every later range be of a version that is known already; nothing is asked of the store."""
        self._pinned = version

    @abstractmethod
    def version(self) -> Version | None:
        """Return what is there now, ``None`` where nothing is."""

    @abstractmethod
    def open(self, tail_bytes: int) -> tuple[Version, bytes]:
        """Pin the version that every later range has to be of; return it and its last bytes, as many or all there are.

        Raises
        ------
        FileNotFoundError, PermissionError, IsADirectoryError, SnapshotError
            As the store says.
        """

    @abstractmethod
    def fetch(self, pieces: Sequence[Piece]) -> None:
        """Fill memory with ranges of the pinned version, several at the same time.

        Raises
        ------
        SnapshotChangedError
            The object was replaced or deleted.
        SnapshotError, PermissionError
            The bytes did not come; the message names the range.
        """

    def check_writable(self) -> None:  # noqa: B027 - most can be written
        """Refuse what can only be read.

        Raises
        ------
        UnsupportedError
            It can only be read.
        """

    @abstractmethod
    def put(self, part: Part, *, overwrite: bool) -> Any:
        """Create the object from all of its bytes at once; returns its identity where the store says it."""

    @abstractmethod
    def begin(self, *, part_bytes: int, overwrite: bool) -> None:
        """Start an object that comes in parts; nothing is visible before the last of them was sent."""

    @abstractmethod
    def send(self, number: int, part: Part, *, last: bool) -> Future[Any]:
        """Send a part, numbered from 1; the result is what :meth:`complete` wants to hear of it.

        The last one is sent when all others have arrived; with it a store may make the object visible.
        """

    @abstractmethod
    def complete(self, receipts: Sequence[Any], *, overwrite: bool) -> Any:
        """Make the object of its parts visible; returns its identity where the store says it.

        Raises
        ------
        FileExistsError
            There is one, and ``overwrite`` is False.
        """

    @abstractmethod
    def abort(self) -> None:
        """Throw the parts away."""

    def published(self) -> None:
        """Let the caller's filesystem know that there is a new object."""
        self.place.filesystem.invalidate_cache(self.place.filesystem._parent(self.place.path))


class AsyncObject(StoreObject):
    """An object in a filesystem that has an event loop; subclasses make one request at a time.

    Subclasses implement ``_version``, ``_open``, ``_get``, ``_put``, ``_begin``, ``_send``, ``_complete``, ``_abort``.
    """

    #: Why the library is of no use in a process that was forked while it worked.
    NOT_AFTER_FORK = ""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._pid = os.getpid()
        self._beginning: Future[None] | None = None
        self._sent_bytes, self._sent_xxh3 = 0, xxhash.xxh3_128()

    @property
    def _fs(self) -> Any:
        if self._pid != os.getpid():
            if self.NOT_AFTER_FORK:
                raise UnsupportedError(f"{self.place.url}: {self.NOT_AFTER_FORK}")
            self.place, self._pid = self.place.reopened(), os.getpid()
        return self.place.filesystem

    def version(self) -> Version | None:
        """Return what is there now; see :meth:`StoreObject.version`."""
        return self._run(self._version, doing="size and identity")

    def open(self, tail_bytes: int) -> tuple[Version, bytes]:
        """Pin a version; see :meth:`StoreObject.open`."""
        self._pinned, tail = self._run(self._open, tail_bytes, doing=f"the last {tail_bytes} bytes")
        return self._pinned, tail

    def fetch(self, pieces: Sequence[Piece]) -> None:
        """Fill memory with ranges; see :meth:`StoreObject.fetch`."""
        self._waited(self._fetch_all, pieces)

    def put(self, part: Part, *, overwrite: bool) -> Any:
        """Create the object at once; see :meth:`StoreObject.put`."""
        self._count(part)
        return self._run(self._made, self._put, part, overwrite, doing="upload", creating=not overwrite)

    def begin(self, *, part_bytes: int, overwrite: bool) -> None:
        """Start an object in parts; see :meth:`StoreObject.begin`."""
        doing, creating = "start of the upload", not overwrite
        beginning = self._tried(self._begin, part_bytes, overwrite, doing=doing, creating=creating)
        self._beginning = asyncio.run_coroutine_threadsafe(beginning, self._fs.loop)
        self._beginning.result()

    def send(self, number: int, part: Part, *, last: bool) -> Future[Any]:
        """Send a part; see :meth:`StoreObject.send`."""
        self._count(part)
        doing = f"upload of part {number}, {part.size} bytes"
        sending = self._tried(self._send, number, part, last, doing=doing, creating=last)
        return asyncio.run_coroutine_threadsafe(sending, self._fs.loop)

    def complete(self, receipts: Sequence[Any], *, overwrite: bool) -> Any:
        """Make the object visible; see :meth:`StoreObject.complete`."""
        how: dict[str, Any] = {"doing": "completion of the upload", "creating": not overwrite}
        return self._run(self._made, self._complete, receipts, overwrite, **how)

    def abort(self) -> None:
        """Throw the parts away; see :meth:`StoreObject.abort`."""
        if self._beginning is not None:
            # Interrupted while the store was asked: what it began can only be aborted by the name that it answers with.
            wait([self._beginning], timeout=_PATIENCE_SECONDS)
        self._run(self._abort, doing="abort of the upload")

    @abstractmethod
    async def _version(self) -> Version | None: ...

    @abstractmethod
    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]: ...

    @abstractmethod
    async def _get(self, start: int, view: memoryview, pinned: Version) -> None: ...

    @abstractmethod
    async def _put(self, part: Part, overwrite: bool) -> Any: ...

    @abstractmethod
    async def _begin(self, part_bytes: int, overwrite: bool) -> None: ...

    @abstractmethod
    async def _send(self, number: int, part: Part, last: bool) -> Any: ...

    @abstractmethod
    async def _complete(self, receipts: Sequence[Any], overwrite: bool) -> Any: ...

    @abstractmethod
    async def _abort(self) -> None: ...

    def _count(self, part: Part) -> None:
        self._sent_bytes += part.size
        self._sent_xxh3.update(part.getbuffer())

    async def _made(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Make the object visible; an answer that got lost on its way must not read as a failure."""
        try:
            return await work(*arguments)
        except Exception as error:
            if status_of(error) in (401, 403):
                raise
            # The name taken, the upload gone or no answer: perhaps all of it because this request, or the library's
            # first try of it, did arrive.
            with contextlib.suppress(Exception):
                if (ours := await self._ours()) is not None:
                    return ours.identity
            if self._beginning is not None and (isinstance(error, FileNotFoundError) or status_of(error) == 404):
                # Else it would read as if there were no such bucket.
                raise SnapshotError(_UPLOAD_GONE, url=self.place.url) from error
            raise

    async def _ours(self) -> Version | None:
        """Return what is there if it is what was sent, to the last byte."""
        found = await self._version()
        if found is None or found.size != self._sent_bytes:
            return None
        read = xxhash.xxh3_128()
        for start in range(0, found.size, _READ_BACK_BYTES):
            data = bytearray(min(_READ_BACK_BYTES, found.size - start))
            await self._get(start, memoryview(data), found)
            read.update(data)
        return found if read.digest() == self._sent_xxh3.digest() else None

    async def _open_in_two(self, tail_bytes: int) -> tuple[Version, bytes]:
        """Pin what is there and then read its end, for stores that cannot do both at once.

        Raises
        ------
        FileNotFoundError
            Nothing is there.
        SnapshotChangedError
            It was replaced in between, each time.
        """
        for _ in range(TRIES):
            version = await self._version()
            if version is None:
                raise FileNotFoundError(self.place.url)
            tail = bytearray(min(tail_bytes, version.size))
            try:
                if tail:
                    await self._get(version.size - len(tail), memoryview(tail), version)
            except Exception as error:
                gone = isinstance(error, FileNotFoundError | SnapshotChangedError) or status_of(error) in (404, 412)
                if not gone:
                    raise
                continue
            return version, bytes(tail)
        raise SnapshotChangedError("it is replaced again and again while it is being opened", url=self.place.url)

    async def _fetch_all(self, pieces: Sequence[Piece]) -> None:
        pinned = self._pinned
        if pinned is None:
            raise SnapshotError("read before it was opened", url=self.place.url)
        limit = asyncio.Semaphore(IN_FLIGHT)

        async def fetch_one(start: int, view: memoryview) -> None:
            async with limit:
                doing = f"bytes [{start}, {start + len(view)})"
                await self._tried(self._get, start, view, pinned, doing=doing, pinned=True)

        tasks = [asyncio.ensure_future(fetch_one(start, view)) for start, view in pieces]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in filter(None, tasks):
                task.cancel()
            # Nobody may write into the memory after the call has failed.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self, pinned: Version, content_range: str | None, identity: Any, start: int) -> None:
        """Refuse the answer to a range request that is not of the pinned version, whatever the store makes of If-Match.

        Raises
        ------
        SnapshotError
            The store does not take ranges, or gives another one.
        SnapshotChangedError
            The answer is of another version.
        """
        total = total_of_content_range(content_range)
        if total is None:
            raise SnapshotError(
                "the store does not take range requests; simplecache:: before the URL helps", url=self.place.url
            )
        if (total, identity) != pinned:
            message = f"an answer is of {total} bytes, {identity}; opened were {pinned.size} bytes, {pinned.identity}"
            raise SnapshotChangedError(message, url=self.place.url)
        check_start(content_range, start)

    def _run(
        self,
        work: Callable[..., Awaitable[Answer]],
        *arguments: Any,
        doing: str,
        creating: bool = False,
    ) -> Answer:
        answer: Answer = self._waited(self._tried, work, *arguments, doing=doing, creating=creating)
        return answer

    def _waited(self, work: Callable[..., Awaitable[Answer]], *arguments: Any, **how: Any) -> Answer:
        """Wait for what the event loop does; an interrupt ends that too, so that nothing becomes visible later."""
        loop, tasks = self._fs.loop, []

        async def watched() -> Answer:
            tasks.append(asyncio.current_task())
            return await work(*arguments, **how)

        try:
            answer: Answer = fsspec.asyn.sync(loop, watched)
        except BaseException:
            for task in filter(None, tasks):
                loop.call_soon_threadsafe(task.cancel)
            raise
        return answer

    async def _tried(
        self,
        work: Callable[..., Awaitable[Answer]],
        *arguments: Any,
        doing: str,
        pinned: bool = False,
        creating: bool = False,
    ) -> Answer:
        for pause in (*BACKOFF_SECONDS, None):
            try:
                return await work(*arguments)
            except Exception as error:
                # A body that broke off was no request that failed, so no library has tried it again.
                again = isinstance(error, TruncatedBodyError) or (self.place.tries == TRIES and is_transient(error))
                if pause is None or not again:
                    raise translated(
                        error, url=self.place.url, doing=doing, pinned=pinned, creating=creating
                    ) from error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")
