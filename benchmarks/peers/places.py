"""Where the files go: a folder on a disk, and buckets of an S3 server on loopback whose disk is memory.

A bucket is a collection of SeaweedFS's own, so that its space is free as soon as it is deleted.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec

from benchmarks.peers.protocol import Place
from tests.stores.proxy import Proxy
from tests.stores.servers import KEY, SECRET, proxy_to, weed

MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - a RAM disk is the point


class Places(abc.ABC):
    """Places of one kind."""

    kind: str

    @abc.abstractmethod
    def clear(self, name: str) -> Place:
        """Return an empty place of that name."""

    @abc.abstractmethod
    def drop(self, name: str) -> None:
        """Remove a place and everything in it."""

    @abc.abstractmethod
    def size_bytes(self, place: Place) -> int:
        """Return the bytes of all that lies there."""

    @abc.abstractmethod
    @contextlib.contextmanager
    def counted(self, place: Place) -> Iterator[tuple[Place, dict[str, int]]]:
        """Give the place as it is to be asked for, and what was counted when the block has ended."""


class LocalPlaces(Places):
    """Folders in a folder.

    Parameters
    ----------
    folder
        Where; the disk it lies on is the one that is measured.
    """

    kind = "local"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clear(self, name: str) -> Place:
        """Make the folder anew."""
        self.drop(name)
        (self._folder / name).mkdir()
        return Place(folder=str(self._folder / name))

    def drop(self, name: str) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def size_bytes(self, place: Place) -> int:
        """Add up its files."""
        return sum(path.stat().st_size for path in Path(place.folder).rglob("*") if path.is_file())

    @contextlib.contextmanager
    def counted(self, place: Place) -> Iterator[tuple[Place, dict[str, int]]]:
        """Let the kernel forget the files, so that the process's own count of bytes from the disk says something."""
        for path in Path(place.folder).rglob("*"):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)
        yield place, {}


class ObjectPlaces(Places):
    """Buckets of a server.

    Parameters
    ----------
    port
        The server's.
    proxy
        In front of it; only what is counted goes through, for it takes time.
    scratch
        A folder for files of libraries that write or read no objects.
    """

    kind = "s3"

    def __init__(self, port: int, proxy: Proxy, scratch: Path) -> None:
        self._endpoint, self._proxy, self._scratch = f"http://127.0.0.1:{port}", proxy, scratch
        region = {"region_name": "us-east-1"}
        options = {"key": KEY, "secret": SECRET, "endpoint_url": self._endpoint, "client_kwargs": region}
        self._filesystem = fsspec.filesystem("s3", use_listings_cache=False, **options)

    def clear(self, name: str) -> Place:
        """Make the bucket anew."""
        self.drop(name)
        bucket = f"peer-{name}"
        self._filesystem.mkdir(bucket)
        (self._scratch / name).mkdir()
        return Place(
            endpoint=self._endpoint,
            bucket=bucket,
            access_key=KEY,
            secret_key=SECRET,
            scratch=str(self._scratch / name),
        )

    def drop(self, name: str) -> None:
        """Delete the bucket."""
        shutil.rmtree(self._scratch / name, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm(f"peer-{name}", recursive=True)

    def size_bytes(self, place: Place) -> int:
        """Add up its objects."""
        return int(self._filesystem.du(place.bucket))

    @contextlib.contextmanager
    def counted(self, place: Place) -> Iterator[tuple[Place, dict[str, int]]]:
        """Send the requests through the proxy."""
        counts: dict[str, int] = {}
        self._proxy.reset()
        yield replace(place, endpoint=f"http://127.0.0.1:{self._proxy.port}"), counts
        requests = self._proxy.requests
        counts["requests"] = len(requests)
        counts["received_bytes"] = sum(request.answer_bytes for request in requests if request.method != "HEAD")
        counts["sent_bytes"] = sum(len(request.body) for request in requests)
        self._proxy.reset()


@contextlib.contextmanager
def object_places() -> Iterator[ObjectPlaces]:
    """Start the server; its data and all scratch lie on a RAM disk where there is one: no disk is measured here."""
    # None may look for credentials in a cloud.
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    before = tempfile.tempdir
    with contextlib.ExitStack() as stack:
        if MEMORY_DISK.is_dir():
            tempfile.tempdir = str(MEMORY_DISK)
        try:
            port, _ = stack.enter_context(weed())
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
        finally:
            tempfile.tempdir = before
        yield ObjectPlaces(port, stack.enter_context(proxy_to(port)), Path(scratch))
