"""An object in Azure Blob Storage, through adlfs: its client's own calls, with conditions on the entity tag."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler
from hurray_arrow.snapshot.objects.store_object import AsyncObject, Part
from hurray_arrow.snapshot.stores import Place

_LOST_BLOCKS = (
    "another writer published this name meanwhile, and with that the store throws away the parts of all others"
)


class AzureObject(AsyncObject):
    """An object in Azure Blob Storage.

    Raises
    ------
    IsADirectoryError
        The URL names a container.
    """

    MAX_PARTS = 50_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._container, self._name, self._version_id = place.filesystem.split_path(place.path)
        if not self._name:
            raise IsADirectoryError(f"{place.url} names a container, not an object")
        # Two writers may stage blocks of the same object; only ours are committed by us, and the other's are lost then.
        self._upload = secrets.token_hex(8)
        self._committing: list[str] = []

    async def _version(self) -> Version | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            async with self._blob() as blob:
                found = await blob.get_blob_properties(version_id=self._version_id)
        except ResourceNotFoundError:
            return None
        return Version(found.size, found.etag)

    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]:
        return await self._open_in_two(tail_bytes)

    async def _get(self, start: int, view: memoryview, pinned: Version) -> None:
        from azure.core import MatchConditions

        filler = Filler(view)
        answers: list[Any] = []
        async with self._blob() as blob:
            stream = await blob.download_blob(
                offset=start,
                length=len(view),
                version_id=self._version_id,
                etag=pinned.identity,
                match_condition=MatchConditions.IfNotModified,
                raw_response_hook=answers.append,
                **self._timeouts,
            )
            # The library does not look whether it is what was asked for. Old ones forget the hook when they ask again.
            for answer in answers[-1:]:
                headers = answer.http_response.headers
                self._check(pinned, headers.get("Content-Range"), headers.get("ETag"), start)
            async for chunk in stream.chunks():
                filler.take(chunk)
        filler.finish()

    async def _put(self, part: Part, overwrite: bool) -> str | None:
        await self._send(1, part, last=True)
        return await self._complete([self._block_id(1)], overwrite)

    async def _begin(self, part_bytes: int, overwrite: bool) -> None:
        """Do nothing: blocks may be staged at any time."""

    async def _send(self, number: int, part: Part, last: bool) -> str:
        del last
        async with self._blob() as blob:
            await blob.stage_block(self._block_id(number), Part(part.getvalue()), length=part.size, **self._timeouts)
        return self._block_id(number)

    async def _complete(self, receipts: Sequence[str], overwrite: bool) -> str | None:
        from azure.storage.blob import BlobBlock

        self._committing = list(receipts)
        condition = {} if overwrite else {"headers": {"If-None-Match": "*"}}
        async with self._blob() as blob:
            try:
                made = await blob.commit_block_list([BlobBlock(receipt) for receipt in receipts], **condition)
            except Exception as error:
                if getattr(error, "error_code", None) == "InvalidBlockList":
                    raise SnapshotError(_LOST_BLOCKS, url=self.place.url) from error
                raise
        etag: str | None = made.get("etag")
        return etag

    async def _ours(self) -> Version | None:
        found = await self._version()
        async with self._blob() as blob:
            committed, _ = await blob.get_block_list("committed")
        return found if [block.id for block in committed] == self._committing else None

    async def _abort(self) -> None:
        """Do nothing: blocks that nobody commits go away within a week, and are not visible until then."""

    def _blob(self) -> Any:
        return self._fs.service_client.get_blob_client(container=self._container, blob=self._name)

    @property
    def _timeouts(self) -> dict[str, Any]:
        return dict(getattr(self._fs, "_timeout_kwargs", {}))

    def _block_id(self, number: int) -> str:
        # All block ids of an object have to be of one length.
        return f"{self._upload}{number:08d}"
