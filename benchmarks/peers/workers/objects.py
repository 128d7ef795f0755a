"""S3 for libraries that have no client of their own: obstore, which was the fastest of those tried.

A whole object comes over eight connections in ranges of 8 MiB, as this package fetches it too.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import obstore
from obstore.store import S3Store

from benchmarks.peers.protocol import Place

PIECE_BYTES = 8 << 20
READER_BYTES = 1 << 20
CONNECTIONS = 8
Bytes = npt.NDArray[np.uint8]


@functools.cache
def store(place: Place) -> S3Store:
    """Return the process's client."""
    return S3Store(
        place.bucket,
        endpoint=place.endpoint,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


@functools.cache
def connections() -> ThreadPoolExecutor:
    """Return the process's threads that wait for a store."""
    return ThreadPoolExecutor(CONNECTIONS)


def send(place: Place, paths: Sequence[Path]) -> None:
    """Upload local files under their own names, several at a time, and remove them."""
    list(connections().map(lambda path: obstore.put(store(place), path.name, path), paths))
    for path in paths:
        path.unlink()


def fetch_ranges(place: Place, wanted: Sequence[tuple[str, int, int]]) -> list[Bytes]:
    """Return half-open ranges of objects, several at a time; long ones come in pieces."""
    arrays = [np.empty(end - start, np.uint8) for _, start, end in wanted]
    pieces = [
        (name, start + at, array[at : at + PIECE_BYTES])
        for (name, start, _), array in zip(wanted, arrays, strict=True)
        for at in range(0, len(array), PIECE_BYTES)
    ]

    def fetch(piece: tuple[str, int, Bytes]) -> None:
        name, start, out = piece
        out[:] = np.frombuffer(
            memoryview(obstore.get_range(store(place), name, start=start, length=len(out))), np.uint8
        )

    list(connections().map(fetch, pieces))
    return arrays


def fetch_parts(place: Place, wanted: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, list[Bytes]]:
    """Return half-open ranges of objects; obstore fetches those less than 1 MiB apart together."""

    def parts(name: str) -> list[Bytes]:
        starts, ends = zip(*wanted[name], strict=True)
        found = obstore.get_ranges(store(place), name, starts=starts, ends=ends)
        return [np.frombuffer(memoryview(part), np.uint8) for part in found]

    return dict(zip(wanted, connections().map(parts, wanted), strict=True))


def fetch(place: Place, name: str) -> Bytes:
    """Return a whole object."""
    size = obstore.head(store(place), name)["size"]
    [array] = fetch_ranges(place, [(name, 0, size)])
    return array


def fetch_file(place: Place, name: str) -> Path:
    """Put a whole object into a local file, for a library that opens nothing else."""
    path = place.path(name)
    fetch(place, name).tofile(path)
    return path


class ObjectReader(io.RawIOBase):
    """An object as a file; wrap it in a buffer, since every read is a request."""

    def __init__(self, place: Place, name: str) -> None:
        self._store, self._name, self._at = store(place), name, 0
        self._size = obstore.head(self._store, name)["size"]

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move without a request."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with one request."""
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        buffer[:size] = memoryview(obstore.get_range(self._store, self._name, start=self._at, length=size))
        self._at += size
        return size


def reader(place: Place, name: str) -> io.BufferedReader:
    """Return an object as a file that libraries read and seek in."""
    return io.BufferedReader(ObjectReader(place, name), READER_BYTES)
