"""An object in S3, through s3fs: its client's own calls, since its handles send parts one after another.

A read sends If-Match, a creation If-None-Match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler, check_start, total_of_content_range
from hurray_arrow.snapshot.objects.store_object import AsyncObject, Part
from hurray_arrow.snapshot.stores import Place, TruncatedBodyError, status_of

_CHUNK_BYTES = 1 << 18
#: Above this, S3 takes no object in one request.
_MAX_PART_BYTES = 5 << 30


class S3Object(AsyncObject):
    """An object in S3.

    Raises
    ------
    IsADirectoryError
        The URL names a bucket.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        bucket, key, version_id = place.filesystem.split_path(place.path)
        if not key:
            raise IsADirectoryError(f"{place.url} names a bucket, not an object")
        self._where = {"Bucket": bucket, "Key": key}
        self._at_version = {"VersionId": version_id} if version_id else {}
        self._upload_id: str | None = None
        self._etag: str | None = None

    async def _version(self) -> Version | None:
        try:
            head = await self._fs._call_s3("head_object", **self._where, **self._at_version)
        except FileNotFoundError:
            return None
        return Version(head["ContentLength"], head["ETag"])

    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]:
        try:
            answer = await self._fs._call_s3(
                "get_object", **self._where, **self._at_version, Range=f"bytes=-{tail_bytes}"
            )
        except OSError as error:
            if status_of(error) != 416:
                raise
            # An empty object has no last byte to give.
            version = await self._version()
            if version is None:
                raise FileNotFoundError(self.place.url) from error
            return version, b""
        size, length = total_of_content_range(answer.get("ContentRange")), answer["ContentLength"]
        if length > tail_bytes:
            # Of a store that takes no ranges, and an object that may be of any size.
            answer["Body"].close()
            raise SnapshotError(f"{length} bytes came, the last {tail_bytes} were asked for", url=self.place.url)
        tail = bytearray(length)
        await _fill(answer["Body"], memoryview(tail))
        if size is not None:
            check_start(answer["ContentRange"], size - length)
        if answer.get("VersionId") and getattr(self._fs, "version_aware", False):
            self._at_version = {"VersionId": answer["VersionId"]}
        # Some stores send the whole of a small object with a plain 200.
        return Version(len(tail) if size is None else size, answer["ETag"]), bytes(tail)

    async def _get(self, start: int, view: memoryview, pinned: Version) -> None:
        condition = {} if getattr(self._fs, "local_expiry_check", False) else {"IfMatch": pinned.identity}
        wanted = f"bytes={start}-{start + len(view) - 1}"
        answer = await self._fs._call_s3("get_object", **self._where, **self._at_version, **condition, Range=wanted)
        try:
            self._check(pinned, answer.get("ContentRange"), answer.get("ETag"), start)
        except SnapshotError:
            answer["Body"].close()
            raise
        await _fill(answer["Body"], view)

    async def _put(self, part: Part, overwrite: bool) -> str:
        return await self._created("put_object", overwrite=overwrite, Body=Part(part.getvalue()))

    async def _begin(self, part_bytes: int, overwrite: bool) -> None:
        del part_bytes, overwrite
        answer = await self._fs._call_s3("create_multipart_upload", **self._where)
        self._upload_id = answer["UploadId"]

    async def _send(self, number: int, part: Part, last: bool) -> dict[str, Any]:
        del last
        # A reader of its own over the same bytes: a try that failed may still be reading.
        answer = await self._fs._call_s3(
            "upload_part", **self._where, UploadId=self._upload_id, PartNumber=number, Body=Part(part.getvalue())
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    async def _complete(self, receipts: Sequence[dict[str, Any]], overwrite: bool) -> str:
        parts = b"".join(_md5_of(receipt["ETag"]) for receipt in receipts)
        self._etag = f'"{hashlib.md5(parts, usedforsecurity=False).hexdigest()}-{len(receipts)}"'
        identity = await self._created(
            "complete_multipart_upload",
            overwrite=overwrite,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": list(receipts)},
        )
        self._upload_id = None
        return identity

    async def _abort(self) -> None:
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            await self._fs._call_s3("abort_multipart_upload", **self._where, UploadId=upload_id)

    async def _created(self, method: str, *, overwrite: bool, **how: Any) -> str:
        """Make the object visible."""
        condition = {} if overwrite else {"IfNoneMatch": "*"}
        try:
            answer = await self._fs._call_s3(method, **self._where, **how, **condition)
        except OSError as error:
            if status_of(error) != 501 or overwrite:
                raise
            # The store knows no conditions; that there was no object was checked a moment ago.
            answer = await self._fs._call_s3(method, **self._where, **how)
        return str(answer["ETag"])

    async def _ours(self) -> Version | None:
        found = await self._version()
        # The entity tag of parts says it all, unless they are encrypted: then their bytes do.
        return found if found is not None and found.identity == self._etag else await super()._ours()


async def _fill(body: Any, view: memoryview) -> None:
    filler = Filler(view)
    try:
        while chunk := await body.read(_CHUNK_BYTES):
            filler.take(chunk)
        filler.finish()
    except Exception as error:
        raise TruncatedBodyError(str(error)) from error
    finally:
        body.close()


def _md5_of(etag: str) -> bytes:
    try:
        return bytes.fromhex(etag.strip('"'))
    except ValueError:
        # Encrypted parts have other entity tags; then nothing equals what is made of them.
        return etag.encode()
