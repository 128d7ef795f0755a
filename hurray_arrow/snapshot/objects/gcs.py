"""An object in Google Cloud Storage, through gcsfs: reads name the generation, creations forbid one.

An upload in parts is resumable, and its parts come one after another; gcsfs's own handle would publish what it has when
it is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.files import Version
from hurray_arrow.snapshot.objects.answers import Filler
from hurray_arrow.snapshot.objects.store_object import AsyncObject, Part
from hurray_arrow.snapshot.stores import Place

_CONTENT_TYPE = "application/octet-stream"
_BOUNDARY = "hurray-arrow-9c1f3ab2e7d84f60"
_PUT_HEAD = f"""--{_BOUNDARY}\r
Content-Type: application/json; charset=UTF-8\r
\r
%b\r
--{_BOUNDARY}\r
Content-Type: %b\r
\r
""".encode()


class GcsObject(AsyncObject):
    """An object in Google Cloud Storage.

    Raises
    ------
    IsADirectoryError
        The URL names a bucket.
    """

    PARALLEL_PARTS = 1
    #: One after another, so nothing limits their number; a multiple of 256 KiB each.
    MAX_PARTS = 1 << 62
    MIN_PART_BYTES = 16 << 20

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._bucket, self._key, _ = place.filesystem.split_path(place.path)
        if not self._key:
            raise IsADirectoryError(f"{place.url} names a bucket, not an object")
        self._location: str | None = None
        self._kept_bytes = 0

    async def _version(self) -> Version | None:
        try:
            found = await self._fs._call("GET", "b/{}/o/{}", self._bucket, self._key, json_out=True)
        except FileNotFoundError:
            return None
        return Version(int(found["size"]), str(found["generation"]))

    async def _open(self, tail_bytes: int) -> tuple[Version, bytes]:
        return await self._open_in_two(tail_bytes)

    async def _get(self, start: int, view: memoryview, pinned: Version) -> None:
        # gcsfs before 2026.8 takes no generation= here.
        url = f"{self._fs.url(self.place.path)}&generation={pinned.identity}"
        wanted = {"Range": f"bytes={start}-{start + len(view) - 1}"}
        headers, body = await self._fs._call("GET", url, headers=wanted)
        generation = headers.get("x-goog-generation", pinned.identity)
        self._check(pinned, headers.get("Content-Range"), generation, start)
        filler = Filler(view)
        filler.take(body)
        filler.finish()

    async def _put(self, part: Part, overwrite: bool) -> str | None:
        head = _PUT_HEAD % (json.dumps({"name": self._key}).encode(), _CONTENT_TYPE.encode())
        _, made = await self._fs._call(
            "POST",
            self._upload_url,
            uploadType="multipart",
            headers={"Content-Type": f'multipart/related; boundary="{_BOUNDARY}"'},
            data=Part(b"".join((head, part.getbuffer(), f"\r\n--{_BOUNDARY}--".encode()))),
            **_condition(overwrite),
        )
        if (generation := _generation_of(made)) is None:
            raise SnapshotError(f"the store says nothing of what it made, but {made[:40]!r}", url=self.place.url)
        return generation

    async def _begin(self, part_bytes: int, overwrite: bool) -> None:
        del part_bytes
        headers, _ = await self._fs._call(
            "POST",
            self._upload_url,
            uploadType="resumable",
            name=self._key,
            headers={"X-Upload-Content-Type": _CONTENT_TYPE},
            json={},
            **_condition(overwrite),
        )
        self._location = headers["Location"]

    async def _send(self, number: int, part: Part, last: bool) -> str | None:
        del number
        end = self._kept_bytes + part.size
        if not last:
            await self._send_until(end, "*", part)
            return None
        generation: str | None = await self._made(self._send_until, end, str(end), part)
        self._location = None
        return generation

    async def _send_until(self, end: int, total: str, part: Part) -> str | None:
        """Send what the store has not kept yet; it says how much of an unfinished upload that is."""
        while self._kept_bytes < end:
            rest = Part(part.getvalue()[self._kept_bytes - end :])
            wanted = {"Content-Range": f"bytes {self._kept_bytes}-{end - 1}/{total}", "Content-Type": _CONTENT_TYPE}
            headers, made = await self._fs._call("POST", self._location, headers=wanted, data=rest)
            if total != "*" and (generation := _generation_of(made)):
                return generation
            kept = int((headers.get("Range") or "").rpartition("-")[2] or -1) + 1
            if not self._kept_bytes < kept <= end:
                message = f"the store has {kept} bytes, it had {self._kept_bytes} and was sent those up to {end}"
                raise SnapshotError(message, url=self.place.url)
            self._kept_bytes = kept
        return None

    async def _complete(self, receipts: Sequence[Any], overwrite: bool) -> str | None:
        """Return what was made: the last part said that it is the last."""
        made: str | None = receipts[-1]
        return made

    async def _abort(self) -> None:
        if self._location is not None:
            location, self._location = self._location, None
            # The address repeats the condition, which a cancellation must not fail on.
            await self._fs._call("DELETE", location.replace("&ifGenerationMatch=0", ""))

    @property
    def _upload_url(self) -> str:
        return f"{self._fs._location}/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"


def _generation_of(made: bytes) -> str | None:
    """Return the generation of an object from what the store says of it."""
    try:
        said = json.loads(made)
    except ValueError:
        return None
    return str(said["generation"]) if isinstance(said, dict) and "generation" in said else None


def _condition(overwrite: bool) -> dict[str, str]:
    return {} if overwrite else {"ifGenerationMatch": "0"}
