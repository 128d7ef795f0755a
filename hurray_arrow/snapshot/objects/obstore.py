"""An object in a filesystem of obstore, whose stores retry, resume and send parts at the same time by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler
from hurray_arrow.snapshot.objects.store_object import AsyncObject, Part
from hurray_arrow.snapshot.stores import Place, status_of

#: Parts that its writer holds and sends at the same time.
_CONCURRENT_PARTS = 4


class ObstoreObject(AsyncObject):
    """An object in a filesystem of obstore.

    Raises
    ------
    IsADirectoryError
        The URL names a bucket.

    Notes
    -----
    A snapshot that fits one part is created under the store's own condition. For one that comes in parts obstore offers
    none, so that it is looked for once more just before it becomes visible.
    """

    #: In order: its writer sends them on, several at the same time.
    PARALLEL_PARTS = 1
    MIN_PART_BYTES = 32 << 20
    GROWING_PARTS = False
    NOT_AFTER_FORK = "obstore waits for ever in a process that was forked while it worked: spawn processes instead"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._bucket, self._name = place.filesystem._split_path(place.path)
        if not self._name:
            raise IsADirectoryError(f"{place.url} names a bucket, not an object")
        self._writer: Any = None

    @property
    def _store(self) -> Any:
        return self._fs._construct_store(self._bucket)

    async def _version(self) -> Version | None:
        try:
            return _version_of(await self._store.head_async(self._name))
        except FileNotFoundError:
            return None

    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]:
        try:
            answer = await self._store.get_async(self._name, options={"range": {"suffix": tail_bytes}})
        except Exception as error:
            # Azure has no ranges that count from the end, and an empty object has no last byte.
            if isinstance(error, FileNotFoundError) or status_of(error) in (401, 403):
                raise
            return await self._open_in_two(tail_bytes)
        return _version_of(answer.meta), bytes(await answer.bytes_async())

    async def _get(self, start: int, view: memoryview, pinned: Version) -> None:
        etag = pinned.identity[0]
        condition = {"if_match": etag} if etag else {}
        answer = await self._store.get_async(self._name, options={"range": (start, start + len(view)), **condition})
        version = _version_of(answer.meta)
        self._check(pinned, f"bytes {answer.range[0]}-/{version.size}", version.identity, start)
        filler = Filler(view)
        filler.take(memoryview(await answer.bytes_async()))
        filler.finish()

    async def _put(self, part: Part, overwrite: bool) -> Any:
        mode = "overwrite" if overwrite else "create"
        made = await self._store.put_async(self._name, part.getvalue(), mode=mode, use_multipart=False)
        return (made["e_tag"], made["version"], None) if made["e_tag"] else None

    async def _begin(self, part_bytes: int, overwrite: bool) -> None:
        del overwrite
        from obstore import open_writer_async

        self._writer = open_writer_async(
            self._store, self._name, buffer_size=part_bytes, max_concurrency=_CONCURRENT_PARTS
        )

    async def _send(self, number: int, part: Part, last: bool) -> None:
        del number, last
        await self._writer.write(part.getvalue())

    async def _complete(self, receipts: Sequence[Any], overwrite: bool) -> None:
        if not overwrite and await self._version() is not None:
            raise FileExistsError(self.place.url)
        writer, self._writer = self._writer, None
        await writer.close()

    async def _abort(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with contextlib.suppress(Exception):
                # An upload that is just being started would be started after it was aborted.
                await writer.flush()
            # Leaving it by an exception is how obstore is told to abort.
            discarded = InterruptedError("discarded")
            await writer.__aexit__(InterruptedError, discarded, None)


def _version_of(meta: Any) -> Version:
    return Version(meta["size"], (meta["e_tag"], meta["version"], None if meta["e_tag"] else meta["last_modified"]))
