"""An HTTP proxy in front of a store: it counts what goes through, and breaks what a test wants broken."""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Request:
    """One request as it came, and what was answered."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer_bytes: int = 0

    @property
    def is_read(self) -> bool:
        return self.method in ("GET", "HEAD")

    @property
    def range(self) -> str | None:
        return self.headers.get("range") or self.headers.get("x-ms-range")

    @property
    def is_part(self) -> bool:
        """Whether the request carries a piece of a snapshot into the store."""
        return self.method in ("PUT", "POST") and len(self.body) > 1024

    @property
    def is_completion(self) -> bool:
        """Whether the request is the one that makes an object visible."""
        if self.method == "POST":
            whole = self.headers.get("content-range", "").rpartition("/")[2] not in ("", "*")
            uploaded = "uploadId=" in self.target and "uploads" not in self.target
            return uploaded or "uploadType=multipart" in self.target or whole
        return self.method == "PUT" and "partNumber=" not in self.target and "comp=block&" not in f"{self.target}&"


@dataclass(frozen=True)
class Answer:
    """Answer without asking the store."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """Pass the answer on, but close the connection after so many bytes of its body."""

    after_bytes: int


@dataclass(frozen=True)
class Reset:
    """Close the connection; ``forward`` lets the store see the request all the same."""

    forward: bool = False


@dataclass(frozen=True)
class Slow:
    """Pass everything on, the answer's body in so many pieces with a pause before each."""

    pieces: int
    pause_seconds: float


@dataclass(frozen=True)
class Stall:
    """Take the request and say nothing, for as long as the test lasts."""


@dataclass(frozen=True)
class Flip:
    """Pass the answer on with one bit of its body changed."""

    at_byte: int


@dataclass(frozen=True)
class InTurn:
    """Pass the request on while no other of the same turn is under way."""

    turn: threading.Lock


Fault = Answer | Cut | Reset | Slow | Stall | Flip | InTurn | None


def always(fault: Fault) -> Callable[[Request], Fault]:
    """Break every request in the same way."""

    def give(request: Request) -> Fault:
        del request
        return fault

    return give


def first(*faults: Fault) -> Callable[[Request], Fault]:
    """Break the first requests, each in its way."""
    left = iter(faults)

    def give(request: Request) -> Fault:
        del request
        return next(left, None)

    return give


#: A request, and the answer's status, headers and body; ``None`` leaves it as it is.
Change = Callable[[Request, int, dict[str, str], bytes], Answer | None]


def _keep(request: Request, status: int, headers: dict[str, str], body: bytes) -> None:
    del request, status, headers, body


class Proxy:
    """The proxy; ``fault`` is asked about every request before it goes on.

    ``cut_upload`` is asked before a request's body is read: after how many bytes of it to close the connection, or
    ``None``. ``change`` may put something else in the place of what the store answered.
    """

    def __init__(self, port: int = 0) -> None:
        self.upstream: tuple[str, int] = ("127.0.0.1", 0)
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Fault] = always(None)
        self.cut_upload: Callable[[Request, int], int | None] = lambda _request, _size: None
        self.change: Change = _keep
        self._lock = threading.Lock()
        self._going_on = threading.Event()
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    proxy._serve(self)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Forget what was counted, and break nothing."""
        self.fault = always(None)
        self.cut_upload = lambda _request, _size: None
        self.change = _keep
        self._going_on.set()
        self._going_on = threading.Event()
        with self._lock:
            self.requests = []

    def reads(self) -> list[Request]:
        """Return the requests that read, in order."""
        with self._lock:
            return [request for request in self.requests if request.is_read]

    def close(self) -> None:
        self._going_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _cut_upload(self, request: Request, size: int) -> int | None:
        # Looked up when the request has come: a connection may have stood open since before.
        return self.cut_upload(request, size)

    def _serve(self, handler: socketserver.StreamRequestHandler) -> None:
        upstream = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            while request := _read_request(handler, self._cut_upload):
                with self._lock:
                    self.requests.append(request)
                fault = self.fault(request)
                if isinstance(fault, Answer):
                    request.status = fault.status
                    _write_answer(handler, fault.status, fault.headers, fault.body, head=request.method == "HEAD")
                    continue
                if isinstance(fault, Stall):
                    self._going_on.wait()
                    return
                if isinstance(fault, Reset) and not fault.forward:
                    return
                with fault.turn if isinstance(fault, InTurn) else contextlib.nullcontext():
                    answer = _forward(upstream, request)
                    body = answer.read()
                request.status, request.answer_bytes = answer.status, len(body)
                if isinstance(fault, Reset):
                    return
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN_HEADERS}
                if request.method == "HEAD" and (length := answer.getheader("content-length")):
                    headers["Content-Length"] = length
                if changed := self.change(request, answer.status, headers, body):
                    request.status = changed.status
                    _write_answer(handler, changed.status, changed.headers, changed.body)
                    continue
                cut = fault.after_bytes if isinstance(fault, Cut) else None
                if isinstance(fault, Flip) and body:
                    body = _flipped(body, fault.at_byte % len(body))
                slow = fault if isinstance(fault, Slow) else Slow(1, 0)
                _write_answer(handler, answer.status, headers, body, head=request.method == "HEAD", cut=cut, slow=slow)
                if cut is not None:
                    return
        finally:
            upstream.close()
            with contextlib.suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)


_OWN_HEADERS = {"transfer-encoding", "connection", "content-length", "keep-alive"}


def _flipped(body: bytes, at_byte: int) -> bytes:
    return body[:at_byte] + bytes([body[at_byte] ^ 4]) + body[at_byte + 1 :]


def _read_request(
    handler: socketserver.StreamRequestHandler, cut_upload: Callable[[Request, int], int | None]
) -> Request | None:
    line = handler.rfile.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := handler.rfile.readline().decode("latin1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.pop("expect", "").lower() == "100-continue":
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    size = int(headers.get("content-length", 0))
    if (after := cut_upload(Request(method, target, headers, b""), size)) is not None:
        handler.rfile.read(min(after, size))
        return None
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b"".join(_chunks(handler))
        del headers["transfer-encoding"]
        headers["content-length"] = str(len(body))
    else:
        body = handler.rfile.read(size)
    return Request(method, target, headers, body)


def _chunks(handler: socketserver.StreamRequestHandler) -> Iterator[bytes]:
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        yield handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()


def _forward(upstream: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
    for again in (True, False):
        try:
            upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name != "connection":
                    upstream.putheader(name, value)
            upstream.endheaders(request.body or None)
            return upstream.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # The server closed a connection that stood idle.
            upstream.close()
            if not again:
                raise
    raise AssertionError("unreachable")


def _write_answer(
    handler: socketserver.StreamRequestHandler,
    status: int,
    headers: dict[str, str],
    body: bytes,
    *,
    head: bool = False,
    cut: int | None = None,
    slow: Slow = Slow(1, 0),
) -> None:
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not {"Content-Length", "Transfer-Encoding"} & headers.keys() and status not in (204, 304):
        lines.append(f"Content-Length: {len(body)}")
    handler.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin1"))
    if not head:
        sent = body if cut is None else body[:cut]
        step = max(1, -(-len(sent) // slow.pieces))
        for start in range(0, len(sent), step):
            time.sleep(slow.pause_seconds)
            handler.wfile.write(sent[start : start + step])
    handler.wfile.flush()
