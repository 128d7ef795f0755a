"""An object behind HTTP, through fsspec: it can only be read, and only where the server takes ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hurray_arrow.errors import SnapshotError, UnsupportedError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler, check_start, total_of_content_range
from hurray_arrow.snapshot.objects.store_object import AsyncObject, Part
from hurray_arrow.snapshot.stores import TruncatedBodyError

_CHUNK_BYTES = 1 << 18


class HttpObject(AsyncObject):
    """An object behind HTTP."""

    def check_writable(self) -> None:
        """Refuse; see :meth:`StoreObject.check_writable`."""
        raise UnsupportedError(_READ_ONLY)

    async def _version(self) -> Version | None:
        try:
            return (await self._open(1))[0]
        except FileNotFoundError:
            return None

    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]:
        async with await self._request(f"bytes=-{tail_bytes}") as answer:
            size = total_of_content_range(answer.headers.get("Content-Range"))
            if answer.status == 416 and size is not None:
                return Version(size, _identity(answer)), b""
            _check_status(answer, self.place.url)
            if size is None:
                raise SnapshotError(_NO_RANGES, url=self.place.url)
            tail = bytearray(min(tail_bytes, size))
            check_start(answer.headers.get("Content-Range"), size - len(tail))
            await _fill(answer, memoryview(tail))
            return Version(size, _identity(answer)), bytes(tail)

    async def _get(self, start: int, view: memoryview, pinned: Version) -> None:
        wanted = f"bytes={start}-{start + len(view) - 1}"
        etag = pinned.identity[0]
        # A weak tag never matches; it is compared below all the same.
        condition = {"If-Match": etag} if etag and not etag.startswith("W/") else {}
        async with await self._request(wanted, **condition) as answer:
            _check_status(answer, self.place.url)
            self._check(pinned, answer.headers.get("Content-Range"), _identity(answer), start)
            await _fill(answer, view)

    async def _request(self, wanted: str, **condition: str) -> Any:
        options = dict(self._fs.kwargs)
        # Ranges of a compressed body would be ranges of something else.
        headers = {**options.pop("headers", {}), "Range": wanted, "Accept-Encoding": "identity", **condition}
        session = await self._fs.set_session()
        return session.get(self._fs.encode_url(self.place.path), headers=headers, **options)

    async def _put(self, part: Part, overwrite: bool) -> None:
        raise UnsupportedError(_READ_ONLY)

    async def _begin(self, part_bytes: int, overwrite: bool) -> None:
        raise UnsupportedError(_READ_ONLY)

    async def _send(self, number: int, part: Part, last: bool) -> None:
        raise UnsupportedError(_READ_ONLY)

    async def _complete(self, receipts: Sequence[Any], overwrite: bool) -> None:
        raise UnsupportedError(_READ_ONLY)

    async def _abort(self) -> None:
        """Do nothing: nothing was sent."""


_READ_ONLY = "snapshots are read over HTTP, not written"
_NO_RANGES = "the server does not take range requests; simplecache:: before the URL fetches the whole file"


def _identity(answer: Any) -> tuple[str | None, str | None]:
    return answer.headers.get("ETag"), answer.headers.get("Last-Modified")


class _StatusError(Exception):
    """An answer that is none; aiohttp's own says the address too, whose query may be a signature."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer.reason)
        self.status = answer.status


def _check_status(answer: Any, url: str) -> None:
    if answer.status == 404:
        raise FileNotFoundError(url)
    if answer.status >= 400:
        raise _StatusError(answer)
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise SnapshotError(f"the server sends ranges of a body that it compresses ({encoding!r:.40})", url=url)


async def _fill(answer: Any, view: memoryview) -> None:
    filler = Filler(view)
    try:
        async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
            filler.take(chunk)
        filler.finish()
    except Exception as error:
        raise TruncatedBodyError(str(error)) from error
