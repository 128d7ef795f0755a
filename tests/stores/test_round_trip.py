"""Snapshots go into every store and come back, whatever the profile."""

from __future__ import annotations

import os

import fsspec
import pytest

from hurray_arrow import SnapshotWriter, UnsupportedError, open_snapshot, ops, write_snapshot
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.snapshot.remote import RemoteRange
from tests.stores.conftest import WRITABLE
from tests.stores.samples import as_bytes, check_same, tensors


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("profile", ["share", "archive"])
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_what_is_written_comes_back(store, profile):
    url, some = store.unique(), tensors()
    write_snapshot(url, some, profile=profile, **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        assert snapshot.url == url
        assert [entry.layer_index for entry in snapshot.entries] == [0, 0, 1, 1, 2, 2]
        check_same(snapshot, some)


@pytest.mark.parametrize("profile", ["share", "archive"])
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_what_one_sequence_needs_comes_back(store, profile):
    url, some = store.unique(), tensors(layers=2)
    write_snapshot(url, some, profile=profile, **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        found = snapshot.read_sequences([3, 0], layer_index=1, kv_role="value")
    assert found.tensors[0].equals(ops.compact(ops.select(some[3], [3, 0])))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_the_object_is_the_file(store, tmp_path):
    """Not a bit differs, wherever a part ends, and a small one comes in one piece."""
    metadata = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}
    for layers in (1, 3):
        url, some = store.unique(), tensors(layers=layers)
        write_snapshot(url, some, metadata=metadata, **store.how)
        assert store.bytes_of(url) == as_bytes(tmp_path, some, metadata=metadata)


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_pages_from_a_store_are_aligned_as_in_the_file(store):
    url = store.unique()
    write_snapshot(url, tensors(), **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        assert isinstance(snapshot._rows.source, RemoteRange)
        for tensor in snapshot.iter_tensors():
            assert tensor.page_pool.ctypes.data % 64 == 0


@pytest.mark.parametrize("store", ["s3", "azure", "memory"], indirect=True)
def test_a_filesystem_object_serves_as_well_as_a_url(store):
    url, some = store.unique(), tensors(layers=1)
    filesystem, path = fsspec.core.url_to_fs(url, **store.options)
    write_snapshot(path, some, filesystem=filesystem)
    with open_snapshot(url, filesystem=filesystem) as snapshot:
        check_same(snapshot, some)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_one_tensor_after_another(store):
    """What a caller does with its buffers after write() does not change what is sent later."""
    url, some = store.unique(), tensors()
    with SnapshotWriter(url, plan=SchemaPlan.of(some), **store.how) as writer:
        for tensor in tensors():
            writer.write(tensor)
            _scribble(tensor)
    with open_snapshot(url, **store.how) as snapshot:
        check_same(snapshot, some)


def _scribble(tensor):
    pool = tensor.page_pool
    pool = pool if pool.flags.writeable else pool.base
    pool[...] = 0


def test_local_urls_are_mapped(tmp_path):
    some = tensors(layers=1)
    path = tmp_path / "x.arrow"
    write_snapshot(f"file://{path}", some)
    assert path.stat().st_mode & 0o777 == 0o600
    local = fsspec.filesystem("file")
    for where, how in ((f"file://{path}", {}), (str(path), {"filesystem": local}), (f"local://{path}", {})):
        with open_snapshot(where, **how) as snapshot:
            assert snapshot._rows.source.is_mapped
            check_same(snapshot, some)


@pytest.mark.parametrize("store", ["s3", "memory"], indirect=True)
def test_a_cache_gives_out_its_copy_mapped(store, tmp_path):
    url, some = store.unique(), tensors(layers=1)
    how = {"storage_options": {"s3": store.options, "simplecache": {"cache_storage": str(tmp_path)}}}
    if store.kind == "memory":
        how = {"storage_options": {"simplecache": {"cache_storage": str(tmp_path)}}}
    write_snapshot(f"simplecache::{url}", some, **how)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        with open_snapshot(f"simplecache::{url}", **how) as snapshot:
            assert snapshot._rows.source.is_mapped
            check_same(snapshot, some)
    assert len(list(tmp_path.iterdir())) == 1
    other = tensors(layers=1, seed=5)
    write_snapshot(f"simplecache::{url}", other, overwrite=True, **how)
    with open_snapshot(f"simplecache::{url}", **how) as snapshot:
        check_same(snapshot, other)


def test_http_is_read_and_not_written(http_files, tmp_path):
    server, proxy = http_files
    some = tensors(layers=1)
    for gives_etags in (True, False):
        server.gives_etags = gives_etags
        server.files["/x.arrow"] = as_bytes(tmp_path, some)
        url = f"http://127.0.0.1:{proxy.port}/x.arrow"
        with open_snapshot(url) as snapshot:
            check_same(snapshot, some)
    with pytest.raises(UnsupportedError):
        write_snapshot(url, some)
    with pytest.raises(UnsupportedError):
        write_snapshot(url, some, overwrite=True)


@pytest.mark.parametrize("store", ["s3", "azure", "gcs"], indirect=True)
def test_a_forked_child_reads_over_connections_of_its_own(store):
    url = store.unique()
    write_snapshot(url, tensors(layers=1), **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        snapshot.read(layer_index=0, kv_role="key")
        assert read_in_a_child(snapshot) == READ
        check_same(snapshot, tensors(layers=1))


@pytest.mark.parametrize("store", ["obstore"], indirect=True)
def test_a_forked_child_is_told_that_obstore_would_wait_for_ever(store):
    url = store.unique()
    write_snapshot(url, tensors(layers=1), **store.how)
    with open_snapshot(url, **store.how) as snapshot:
        assert read_in_a_child(snapshot) == REFUSED
        check_same(snapshot, tensors(layers=1))


#: All that a child can say.
READ, OTHER, REFUSED, FAILED = range(4)


def read_in_a_child(snapshot) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            code = READ if snapshot.read(layer_index=0, kv_role="value").equals(tensors(layers=1)[1]) else OTHER
        except UnsupportedError:
            code = REFUSED
        except BaseException:  # noqa: BLE001 - whatever it is
            code = FAILED
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
