"""Places for a snapshot that can be broken as fault_table.py names it: stores behind a proxy, a disk, a filesystem."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
from fsspec.implementations.memory import MemoryFileSystem

from hurray_arrow.snapshot import files
from tests.stores.proxy import Answer, Cut, Flip, Reset, Slow, Stall
from tests.stores.servers import RangeServer, Store, obstore_of

BUSY = Answer(503, b"<Error><Code>SlowDown</Code></Error>")
FORBIDDEN = Answer(403, b"<Error><Code>AccessDenied</Code></Error>", {"x-ms-error-code": "AuthorizationFailure"})
FULL = Answer(507, b"<Error><Code>InsufficientStorage</Code></Error>")
SLOW = Slow(12, 0.01)
#: How long a client waits for an answer that does not come.
PATIENCE_SECONDS = 0.3
NOBODY = 65534


class Network:
    """A store behind a proxy."""

    def __init__(self, store: Store, *, seed: int) -> None:
        self.store, self.how = store, store.how
        self.url = store.unique()
        #: How often something was broken.
        self.struck = 0
        self._random = random.Random(seed)

    def put(self, content: bytes) -> None:
        self.store.replace(self.url, content)

    def content(self) -> bytes | None:
        return self.store.bytes_of(self.url)

    def remove(self) -> None:
        self.store.remove(self.url)

    def impatient(self) -> None:
        """Let the client give up soon."""
        options = {
            "s3": {"config_kwargs": {"read_timeout": PATIENCE_SECONDS, "connect_timeout": PATIENCE_SECONDS}},
            "azure": {"read_timeout": PATIENCE_SECONDS},
            "gcs": {"requests_timeout": PATIENCE_SECONDS},
        }
        if self.store.kind == "obstore":
            self.how = obstore_of(self.store, timeout=f"{int(PATIENCE_SECONDS * 1000)}ms").how
        else:
            self.how = {"storage_options": {**self.store.options, **options[self.store.kind]}}

    @contextlib.contextmanager
    def broken(self, fault: str, *, writing: bool) -> Iterator[None]:
        proxy = self.store.proxy
        if writing and fault.startswith("cut"):
            proxy.cut_upload = self._cut_upload(for_good=fault == "cut for good")
        elif fault in ("replaced", "deleted"):
            pass
        else:
            breaks = self._fault(fault)
            concerns = self._publishes if fault.startswith("lost") else self._reads if not writing else self._writes
            proxy.fault = lambda request: self._counted(breaks(request)) if concerns(request) else None
        try:
            yield
        finally:
            proxy.reset()

    def _counted(self, fault: Any) -> Any:
        self.struck += fault is not None
        return fault

    @staticmethod
    def _reads(request: Any) -> bool:
        return bool(request.range)

    @staticmethod
    def _writes(request: Any) -> bool:
        return bool(request.is_part)

    @staticmethod
    def _publishes(request: Any) -> bool:
        return bool(request.is_completion)

    def _cut_upload(self, *, for_good: bool) -> Callable[[Any, int], int | None]:
        def give(request: Any, size: int) -> int | None:
            if request.method not in ("PUT", "POST") or size <= 1024 or (self.struck and not for_good):
                return None
            self.struck += 1
            return self._random.randrange(size)

        return give

    def _fault(self, fault: str) -> Callable[[Any], Any]:
        once: set[str] = set()
        twice = iter((BUSY, BUSY))

        def cut(request: Any) -> Any:
            first, _, last = request.range.removeprefix("bytes=").partition("-")
            return Cut(self._random.randrange(int(last) - int(first)))

        def cut_once(request: Any) -> Any:
            # Some go on where it broke off: the rest has another start.
            end = request.range.rpartition("-")[2]
            if end in once:
                return None
            once.add(end)
            return cut(request)

        return {
            "cut": cut_once,
            "cut for good": cut,
            "busy": lambda _request: next(twice, None),
            "busy for good": lambda _request: BUSY,
            "slow": lambda _request: SLOW,
            "stalled": lambda _request: Stall(),
            "flipped": lambda _request: Flip(self._random.randrange(1 << 20)),
            "forbidden": lambda _request: FORBIDDEN,
            "full": lambda _request: FULL,
            "lost": lambda _request: Reset(forward=True) if not self.struck else None,
            "lost for good": lambda _request: Reset(forward=True),
        }[fault]


class Web(Network):
    """A web server, which is only read."""

    def __init__(self, server: RangeServer, proxy: Any, *, seed: int) -> None:
        super().__init__(Store("http", f"http://127.0.0.1:{proxy.port}", proxy), seed=seed)
        self._server, self._path = server, f"/{seed}.arrow"
        self.url = f"{self.store.prefix}{self._path}"

    def put(self, content: bytes) -> None:
        self._server.files[self._path] = content

    def remove(self) -> None:
        del self._server.files[self._path]

    def impatient(self) -> None:
        timeout = aiohttp.ClientTimeout(sock_read=PATIENCE_SECONDS)
        self.how = {"storage_options": {"client_kwargs": {"timeout": timeout}}}


class Disk:
    """A file, read into memory: through a mapping the kernel would end the process at some of these."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.url = str(folder / "s.arrow")
        self.how: dict[str, Any] = {}
        self.struck = 0
        self._path = Path(self.url)
        self._random = random.Random(seed)

    def put(self, content: bytes) -> None:
        beside = self._path.with_name("beside")
        beside.write_bytes(content)
        beside.replace(self._path)

    def content(self) -> bytes | None:
        return self._path.read_bytes()

    def remove(self) -> None:
        self._path.unlink()

    @contextlib.contextmanager
    def broken(self, fault: str, *, writing: bool) -> Iterator[None]:
        self.struck += fault in ("cut for good", "flipped")
        if fault in ("replaced", "deleted"):
            yield
        elif writing:
            with self._broken_for_writing(fault):
                yield
        elif fault == "cut for good":
            content = self._path.read_bytes()
            os.truncate(self._path, self._random.randrange(len(content) // 4))
            try:
                yield
            finally:
                self._path.write_bytes(content)
        elif fault == "flipped":
            with self._path.open("r+b") as file:
                place = self._path.stat().st_size * 3 // 4
                file.seek(place)
                byte = file.read(1)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 4]), place)
                try:
                    yield
                finally:
                    os.pwrite(file.fileno(), bytes([byte]), place)
        else:
            with mock.patch.object(files.os, "preadv", self._preadv(fault)):
                yield

    def _preadv(self, fault: str) -> Callable[[int, list[memoryview], int], int]:
        real = os.preadv

        def preadv(descriptor: int, views: list[memoryview], offset: int) -> int:
            self.struck += 1
            if fault == "broken":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault == "slow":
                time.sleep(0.01)
            [view] = views
            return real(descriptor, [view[: self._random.randrange(1, max(len(view) // 3, 2))]], offset)

        return preadv

    @contextlib.contextmanager
    def _broken_for_writing(self, fault: str) -> Iterator[None]:
        real = files.os.fdopen
        free = self._random.randrange(1 << 20, 4 << 20)

        def fdopen(descriptor: int, mode: str, *, buffering: int) -> Any:
            self.struck += 1
            return _Full(real(descriptor, mode, buffering=buffering), free)

        def fsync(_descriptor: int) -> None:
            self.struck += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        breaks = {"full": ("fdopen", fdopen), "broken": ("fsync", fsync)}[fault]
        with mock.patch.object(files.os, *breaks):
            yield


class _Full:
    """A file on a disk that has so many bytes left."""

    def __init__(self, file: Any, free: int) -> None:
        self._file, self._free = file, free

    def write(self, data: Any) -> int:
        self._free -= memoryview(data).nbytes
        if self._free < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Breakable(MemoryFileSystem):
    """A filesystem that nobody knows, and that fails as it is told."""

    protocol = "breakable"
    cachable = False
    #: Asked before ranges are read and before bytes are written.
    reading: Callable[[bytes], bytes] = staticmethod(lambda data: data)
    writing: Callable[[], None] = staticmethod(lambda: None)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return self.reading(super().cat_file(path, start, end, **kwargs))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "w" in mode:
            self.writing()
        file = super()._open(path, mode, **kwargs)
        if "w" in mode:
            real = file.write
            file.write = lambda data: (self.writing(), real(data))[1]
        return file


class Other:
    """Another filesystem of fsspec's."""

    def __init__(self, *, seed: int) -> None:
        self._fs = Breakable()
        self.url = f"/faults/{seed}.arrow"
        self.how = {"filesystem": self._fs}
        self.struck = 0
        self._random = random.Random(seed)

    def put(self, content: bytes) -> None:
        self._fs.pipe_file(self.url, content)

    def content(self) -> bytes | None:
        return bytes(MemoryFileSystem.store[self.url].getbuffer())

    def remove(self) -> None:
        self._fs.rm_file(self.url)

    @contextlib.contextmanager
    def broken(self, fault: str, *, writing: bool) -> Iterator[None]:
        name = "writing" if writing else "reading"
        if fault not in ("replaced", "deleted"):
            breaks: Callable[..., Any] = self._writing(fault) if writing else self._reading(fault)

            def counted(*data: bytes) -> Any:
                self.struck += 1
                return breaks(*data)

            setattr(self._fs, name, counted)
        try:
            yield
        finally:
            self._fs.__dict__.pop(name, None)

    def _reading(self, fault: str) -> Callable[[bytes], bytes]:
        twice = iter((1, 2))

        def fail(_data: bytes) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def busy(data: bytes) -> bytes:
            if fault == "busy for good" or next(twice, None):
                raise TimeoutError("busy")
            return data

        def cut(data: bytes) -> bytes:
            for_good = fault == "cut for good"
            return data[: self._random.randrange(len(data))] if for_good or next(twice, None) == 1 else data

        def deny(_data: bytes) -> bytes:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        def flip(data: bytes) -> bytes:
            place = self._random.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]

        def slow(data: bytes) -> bytes:
            time.sleep(0.05)
            return data

        return {
            "cut": cut,
            "cut for good": cut,
            "busy": busy,
            "busy for good": busy,
            "forbidden": deny,
            "flipped": flip,
            "slow": slow,
            "broken": fail,
        }[fault]

    def _writing(self, fault: str) -> Callable[[], None]:
        errors = {
            "cut for good": ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
            "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            "forbidden": PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        }

        def fail() -> None:
            if fault == "slow":
                time.sleep(0.05)
                return
            raise errors[fault]

        return fail


def as_nobody(work: Callable[..., str], *arguments: Any) -> str:
    """Return what a function returns in a process that has no rights but everybody's."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_without_rights, args=(work, arguments, sender))
    child.start()
    try:
        assert receiver.poll(120)
        return str(receiver.recv())
    finally:
        child.kill()
        child.join()


def _without_rights(work: Callable[..., str], arguments: tuple[Any, ...], sender: Any) -> None:
    # What is imported lazily is imported now: nobody may not even look into the checkout.
    work(*arguments, rehearsal=True)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    sender.send(work(*arguments))
