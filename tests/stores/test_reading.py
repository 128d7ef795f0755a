"""Reading what is not there, broken, replaced or slow to come: an error of ours with the place, or the right bytes."""

from __future__ import annotations

import itertools
import time
import traceback

import pytest

from hurray_arrow import (
    SnapshotChangedError,
    SnapshotError,
    SnapshotIncompleteError,
    open_snapshot,
    write_snapshot,
)
from hurray_arrow.cli.app import app
from hurray_arrow.snapshot import remote
from tests.cli.conftest import RUNNER
from tests.stores.conftest import REMOTE, WRITABLE
from tests.stores.proxy import Answer, Cut, Reset, always, first
from tests.stores.samples import as_bytes, check_same, tensors

SLOW_DOWN = Answer(503, b"<Error><Code>SlowDown</Code></Error>")


@pytest.fixture
def written(store):
    url = store.unique()
    write_snapshot(url, tensors(), **store.how)
    store.proxy.reset()
    return url


@pytest.mark.parametrize("how", ["same size", "other size", "deleted"])
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_an_object_that_changes_while_it_is_open(store, how, tmp_path):
    url = store.unique()
    old, new = tensors(seed=0), tensors(seed=50, layers=2 if how == "other size" else 3)
    # One id and time for both: not even the sizes differ.
    metadata = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}
    write_snapshot(url, old, metadata=metadata, **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        assert snapshot.read(layer_index=0, kv_role="key").equals(old[0])
        if how == "deleted":
            store.remove(url)
        else:
            replacement = as_bytes(tmp_path, new, metadata=metadata)
            assert (len(replacement) == snapshot._rows.source.size) == (how == "same size")
            time.sleep(1.1 if store.kind == "gcs" else 0)
            store.replace(url, replacement)
        with pytest.raises(SnapshotChangedError) as caught:
            snapshot.read(layer_index=2, kv_role="value")
        assert caught.value.url == url
    if how != "deleted":
        with open_snapshot(url, **store.how) as snapshot:
            check_same(snapshot, new)


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_an_object_that_changes_in_the_middle_of_one_read(store, tmp_path, written, monkeypatch):
    """The second of four ranges already is of the new object."""
    monkeypatch.setattr(remote, "PIECE_BYTES", 1 << 20)
    replacement = as_bytes(tmp_path, tensors(seed=50))
    with open_snapshot(written, **store.how) as snapshot:
        seen = itertools.count()

        def replace(request):
            if request.range and next(seen) == 1:
                store.proxy.fault = always(None)
                store.replace(written, replacement)

        store.proxy.fault = replace
        with pytest.raises(SnapshotChangedError):
            snapshot.read(layer_index=1, kv_role="value")


@pytest.mark.parametrize(
    "failures",
    [[Cut(100)], [Reset()], [SLOW_DOWN, SLOW_DOWN], [Cut(0), Cut(1000)]],
    ids=["short body", "reset", "503 twice", "short twice"],
)
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_what_fails_for_a_moment_is_asked_again(store, written, failures):
    with open_snapshot(written, **store.how) as snapshot:
        left = iter(failures)
        store.proxy.fault = lambda request: next(left, None) if request.range else None
        assert snapshot.read(layer_index=1, kv_role="value").equals(tensors()[3])
        assert next(left, None) is None


@pytest.mark.parametrize("fault", [Cut(100), Reset(), SLOW_DOWN], ids=["short body", "reset", "503"])
@pytest.mark.parametrize("store", ["s3", "obstore"], indirect=True)
def test_what_fails_for_good_ends_soon(store, written, fault):
    """Requests are bounded: three tries of the two that s3fs makes."""
    with open_snapshot(written, **store.how) as snapshot:
        store.proxy.reset()
        store.proxy.fault = lambda request: fault if request.range else None
        start = time.monotonic()
        with pytest.raises(SnapshotError) as caught:
            snapshot.read(layer_index=1, kv_role="value")
        assert time.monotonic() - start < 30
        assert caught.value.url == written
        assert caught.value.__cause__ is not None
        place = next(row for row in snapshot._rows._places[3])
        assert f"bytes [{place.offset}, {place.block.end})" in str(caught.value)
        assert 3 <= len(store.proxy.reads()) <= 12


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_nothing_there(store):
    url = store.unique()
    with pytest.raises(FileNotFoundError) as caught:
        open_snapshot(url, **store.how)
    assert caught.value.filename == url


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_objects_that_are_no_snapshots(store):
    for data in (b"", b"x", b"not an Arrow file" * 10_000):
        url = store.unique()
        store.replace(url, data)
        with pytest.raises(SnapshotIncompleteError):
            open_snapshot(url, **store.how)


@pytest.mark.parametrize("store", ["s3", "azure", "gcs", "memory"], indirect=True)
def test_a_bucket_is_no_snapshot(store):
    with pytest.raises((IsADirectoryError, FileNotFoundError)):
        open_snapshot(store.prefix, **store.how)


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_store_that_forbids_reading(store, written):
    store.proxy.fault = always(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(PermissionError) as caught:
        open_snapshot(written, **store.how)
    assert caught.value.filename == written


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_wrong_secret(store, written):
    wrong = {"storage_options": {**store.options, "secret": "wrong"}}
    with pytest.raises(PermissionError):
        open_snapshot(written, **wrong)
    with pytest.raises(PermissionError):
        write_snapshot(store.unique(), tensors(layers=1), **wrong)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_store_that_does_not_know_conditions_is_found_out(store, written, tmp_path):
    """It answers with a range of the new object; the entity tag of the answer says so."""
    other = as_bytes(tmp_path, tensors(seed=50))

    def ignore_condition(request):
        start, _, last = request.range.removeprefix("bytes=").partition("-")
        place = f"bytes {start}-{last}/{len(other)}"
        return Answer(206, other[int(start) : int(last) + 1], {"Content-Range": place, "ETag": '"other"'})

    with open_snapshot(written, **store.how) as snapshot:
        store.proxy.fault = ignore_condition
        with pytest.raises(SnapshotChangedError):
            snapshot.read(layer_index=1, kv_role="value")


def test_http_servers_of_every_kind(http_files, tmp_path):
    server, proxy = http_files
    some = tensors()
    server.files["/x.arrow"] = as_bytes(tmp_path, some)
    url = f"http://127.0.0.1:{proxy.port}/x.arrow"
    with open_snapshot(url) as snapshot:
        check_same(snapshot, some)
        server.files["/x.arrow"] = as_bytes(tmp_path, tensors(seed=50))
        with pytest.raises(SnapshotChangedError):
            snapshot.read(layer_index=1, kv_role="value")
        del server.files["/x.arrow"]
        with pytest.raises(SnapshotChangedError):
            snapshot.read(layer_index=1, kv_role="value")
    with pytest.raises(FileNotFoundError):
        open_snapshot(url)
    server.files |= {"/x.arrow": as_bytes(tmp_path, some), "/empty": b""}
    with pytest.raises(SnapshotIncompleteError):
        open_snapshot(url.replace("x.arrow", "empty"))
    server.takes_ranges = False
    with pytest.raises(SnapshotError, match="simplecache::"):
        open_snapshot(url)
    with open_snapshot(f"simplecache::{url}") as snapshot:
        check_same(snapshot, some)


@pytest.mark.parametrize("failures", [[Cut(100)], [Reset(), SLOW_DOWN]], ids=["short body", "reset and 503"])
def test_http_that_fails_for_a_moment(http_files, tmp_path, failures):
    server, proxy = http_files
    server.files["/x.arrow"] = as_bytes(tmp_path, tensors())
    with open_snapshot(f"http://127.0.0.1:{proxy.port}/x.arrow") as snapshot:
        proxy.fault = first(*failures)
        assert snapshot.read(layer_index=1, kv_role="value").equals(tensors()[3])
        proxy.fault = always(failures[0])
        with pytest.raises(SnapshotError, match="bytes \\["):
            snapshot.read(layer_index=1, kv_role="value")


def test_signatures_do_not_get_into_errors(http_files, tmp_path):
    server, proxy = http_files
    server.files["/x.arrow"] = as_bytes(tmp_path, tensors(layers=1))
    url = f"http://127.0.0.1:{proxy.port}/x.arrow?signature=hunter2"
    with open_snapshot(url) as snapshot:
        assert "hunter2" not in snapshot.url + repr(snapshot)
    for status, kind in ((403, PermissionError), (404, FileNotFoundError), (500, SnapshotError), (400, SnapshotError)):
        server.statuses["/x.arrow"] = status
        with pytest.raises(kind) as caught:
            open_snapshot(url)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("command", ["verify", "validate", "inspect", "copy"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_signatures_do_not_get_into_what_commands_print(http_files, tmp_path, command, flags):
    server, _ = http_files
    server.files["/x.arrow"] = as_bytes(tmp_path, tensors(layers=1))
    url = f"http://127.0.0.1:{server.port}/x.arrow?signature=hunter2"
    target = [str(tmp_path / "copy.arrow")] if command == "copy" else []
    for address, exit_code in ((url, 0), (url.replace("x.arrow", "none"), 3)):
        result = RUNNER.invoke(app, [command, address, *target, *flags])
        assert result.exit_code == exit_code, result.output
        assert result.output + result.stderr != ""
        assert "hunter2" not in result.output + result.stderr
