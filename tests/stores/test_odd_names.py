"""Names that mean something to an address, and are only names here: what is written under one is read under it."""

from __future__ import annotations

import secrets
from urllib.parse import quote

import pytest

from hurray_arrow import open_snapshot, write_snapshot
from hurray_arrow.snapshot.listing import find_files
from hurray_arrow.snapshot.stores import locate
from tests.stores.conftest import WRITABLE
from tests.stores.samples import as_bytes, check_same, tensors

NAMES = [
    *("a b", "a+b", "a%20b", "100%", "a#b", "a#1", "a?b=c", "a?", "a*", "[a]", "{a}", "a&b=c", "a=b", "a:b@c", "a'b"),
    *("a;b,c", "~a", 'a"b', "grün", "gru\u0308n", "日本語"),
]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_any_name_comes_back_as_itself(store):
    folder, some = secrets.token_hex(4), tensors(layers=1, num_pages=7)
    for name in NAMES:
        write_snapshot(store.url(f"{folder}/{name}.arrow"), some, **store.how)
    for name in NAMES:
        with open_snapshot(store.url(f"{folder}/{name}.arrow"), **store.how) as snapshot:
            check_same(snapshot, some)
    found = find_files(locate(store.url(folder), **store.how))
    assert sorted(path.rpartition("/")[2] for path in found) == sorted(f"{name}.arrow" for name in NAMES)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", ["s3", "azure", "gcs", "obstore"], indirect=True)
def test_any_name_takes_parts(store):
    folder, some = secrets.token_hex(4), tensors(layers=2)
    for name in ("a b%20#?&+ü'日", "x"):
        url = store.url(f"{folder}/{name}.arrow")
        write_snapshot(url, some, **store.how)
        with open_snapshot(url, **store.how) as snapshot:
            check_same(snapshot, some)


def test_web_addresses_are_quoted_once(http_files, tmp_path):
    server, proxy = http_files
    content = as_bytes(tmp_path, tensors(layers=1))
    for name in NAMES:
        path = f"/{quote(name)}.arrow"
        server.files = {path: content}
        with open_snapshot(f"http://127.0.0.1:{proxy.port}{path}", storage_options={"encoded": True}) as snapshot:
            check_same(snapshot, tensors(layers=1))
    server.files = {"/gr%C3%BCn%20a.arrow": content}
    with open_snapshot(f"http://127.0.0.1:{proxy.port}/grün a.arrow") as snapshot:
        check_same(snapshot, tensors(layers=1))
