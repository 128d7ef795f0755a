"""Servers that answer something else than they were asked for: the right bytes, or an error that says so."""

from __future__ import annotations

import gzip
import itertools
import re

import pytest

from hurray_arrow import SnapshotChangedError, SnapshotError, open_snapshot, write_snapshot
from tests.stores.conftest import REMOTE
from tests.stores.proxy import Answer
from tests.stores.samples import as_bytes, check_same, tensors
from tests.stores.servers import RangeServer

HTML = Answer(200, b"<html><body>Please log in</body></html>", {"Content-Type": "text/html"})


@pytest.fixture
def page(http_files, tmp_path):
    """A snapshot behind HTTP: its address, the server, and the proxy before it."""
    server, proxy = http_files
    server.files["/x.arrow"] = as_bytes(tmp_path, tensors(layers=1))
    return f"http://127.0.0.1:{proxy.port}/x.arrow", server, proxy


def asked(request, size):
    """Return the bytes that a request is for, half-open."""
    first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", request.range).groups()
    return (int(first), int(last) + 1) if first else (max(size - int(last), 0), size)


def answering(change):
    """Answer every range request as a server does, but for what is changed of (status, headers, body)."""

    def make(data, request):
        start, end = asked(request, len(data))
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": '"x"'}
        return made(*change(206, headers, data[start:end]))

    return make


def made(status, headers, body):
    return Answer(status, body, headers)


def chunked(status, headers, body):
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    body = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return status, {**headers, "Transfer-Encoding": "chunked"}, body


def earlier(status, headers, body):
    [name] = [name for name in headers if name.lower() == "content-range"]
    start, end, size = map(int, re.match(r"bytes (\d+)-(\d+)/(\d+)", headers[name]).groups())
    return status, {**headers, name: f"bytes {start - 64}-{end - 64}/{size}"}, body


def in_parts(status, headers, body):
    head = f"--cut\r\nContent-Range: {headers['Content-Range']}\r\n\r\n".encode()
    return status, {"Content-Type": "multipart/byteranges; boundary=cut", "ETag": '"x"'}, head + body + b"\r\n--cut--"


RIGHT = {
    "as it should": lambda *answer: answer,
    "chunked": chunked,
    "weak tag": lambda status, headers, body: (status, {**headers, "ETag": 'W/"x"'}, body),
}
WRONG = {
    "a page": lambda *_: (HTML.status, HTML.headers, HTML.body),
    "the whole": lambda _status, headers, body: (200, {"ETag": headers["ETag"]}, body),
    "another range": earlier,
    "more": lambda status, headers, body: (status, headers, body + b"more"),
    "less": lambda status, headers, body: (status, headers, body[:-1]),
    "in parts": in_parts,
    "no number": lambda status, headers, body: (status, {**headers, "Content-Range": "bytes 0-1/²"}, body),
    "gzip": lambda status, headers, body: (status, {**headers, "Content-Encoding": "gzip"}, gzip.compress(body, 1)),
    "said to be gzip": lambda status, headers, body: (status, {**headers, "Content-Encoding": "gzip"}, body),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [*RIGHT, *WRONG])
def test_web_servers_that_answer_oddly(page, how):
    url, server, proxy = page
    data, answer = server.files["/x.arrow"], answering((RIGHT | WRONG)[how])
    proxy.fault = lambda request: answer(data, request)
    if how in RIGHT:
        with open_snapshot(url) as snapshot:
            check_same(snapshot, tensors(layers=1))
        return
    with pytest.raises(SnapshotError):
        open_snapshot(url)
    proxy.fault = lambda request: answering(RIGHT["as it should"])(data, request)
    with open_snapshot(url) as snapshot:
        proxy.fault = lambda request: answer(data, request)
        with pytest.raises(SnapshotError):
            snapshot.read(kv_role="key")


def test_a_tag_that_changes_with_every_answer_is_a_change(page):
    """Of servers behind one address each may make its own: nobody can tell that from another object."""
    url, server, proxy = page
    number = itertools.count()
    data = server.files["/x.arrow"]

    def answer(request):
        tag = f'"{next(number)}"'
        return answering(lambda status, headers, body: (status, {**headers, "ETag": tag}, body))(data, request)

    proxy.fault = answer
    with open_snapshot(url) as snapshot, pytest.raises(SnapshotChangedError):
        snapshot.read(kv_role="key")


def test_a_range_behind_the_end_is_a_change(page):
    """What is asked for was there when the snapshot was opened."""
    url, server, proxy = page
    with open_snapshot(url) as snapshot:
        server.gives_etags = False
        proxy.fault = lambda _request: Answer(416, b"", {"Content-Range": "bytes */17"})
        with pytest.raises(SnapshotChangedError):
            snapshot.read(kv_role="key")


def test_redirects_are_followed_without_what_is_meant_for_the_first_host(page):
    url, _, proxy = page
    first = RangeServer()
    try:
        first.redirects["/moved"] = url.replace("127.0.0.1", "localhost")
        first.redirects["/round"] = "/round"
        start = f"http://127.0.0.1:{first.port}"
        how = {"storage_options": {"headers": {"Authorization": "Bearer hunter2"}}}
        with open_snapshot(f"{start}/moved", **how) as snapshot:
            check_same(snapshot, tensors(layers=1))
        assert proxy.requests
        assert not any("authorization" in request.headers for request in proxy.requests)
        with pytest.raises(SnapshotError):
            open_snapshot(f"{start}/round", **how)
    finally:
        first.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["a page", "another range", "more", "less"])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_stores_that_answer_oddly(store, how):
    """Something between us and the store makes up answers, or mixes them up."""
    url, some = store.unique(), tensors(layers=1)
    write_snapshot(url, some, **store.how)
    data = store.bytes_of(url)

    def change(request, status, headers, body):
        return made(*WRONG[how](status, headers, body)) if request.range else None

    with open_snapshot(url, **store.how) as snapshot:
        store.proxy.change = change
        with pytest.raises(SnapshotError) as caught:
            snapshot.read(kv_role="key")
        assert caught.value.url == url
        with pytest.raises(SnapshotError) as caught:
            open_snapshot(url, **store.how)
        assert caught.value.url == url
        store.proxy.reset()
        check_same(snapshot, some)
    assert store.bytes_of(url) == data


@pytest.mark.usefixtures("impatient", "small_parts")
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_page_instead_of_an_answer_publishes_nothing(store, layers):
    """A proxy that wants somebody to log in says 200 to everything."""
    url = store.unique()
    store.proxy.fault = lambda request: None if request.is_read else HTML
    with pytest.raises(SnapshotError):
        write_snapshot(url, tensors(layers=layers), **store.how)
    store.proxy.fault = lambda _request: HTML
    with pytest.raises(SnapshotError):
        write_snapshot(url, tensors(layers=layers), overwrite=True, **store.how)
    store.proxy.reset()
    assert store.bytes_of(url) is None


@pytest.mark.usefixtures("impatient", "small_parts")
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_page_instead_of_an_answer_is_no_success_over_an_object_of_the_same_size(store, layers, tmp_path):
    url = store.unique()
    metadata = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}
    old = as_bytes(tmp_path, tensors(layers=layers, seed=90), metadata=metadata)
    store.replace(url, old)
    store.proxy.fault = lambda request: HTML if request.is_completion else None
    with pytest.raises(SnapshotError):
        write_snapshot(url, tensors(layers=layers), metadata=metadata, overwrite=True, **store.how)
    store.proxy.reset()
    assert store.bytes_of(url) == old
