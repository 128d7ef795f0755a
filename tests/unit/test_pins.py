"""Snapshots that are opened a second time, elsewhere: as they were listed, or not at all."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot.pins import MOST_TAIL_BYTES, SnapshotPlace
from tests.sample import make_tensor

ID = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}


def tensors(count=2, seed=0):
    return [make_tensor(layer_index=layer, seed=seed + layer, head_dim=67) for layer in range(count)]


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return {"memory": "memory://pins/a.arrow", "file": str(tmp_path / "a.arrow")}[request.param]


def pinned(url):
    place = SnapshotPlace.of(url)
    snapshot, pin = place.pinned()
    snapshot.close()
    return pickle.loads(pickle.dumps(pin))  # noqa: S301  our own bytes


def remove(url):
    if url.startswith("memory:"):
        import fsspec

        fsspec.filesystem("memory").rm(url)
    else:
        Path(url).unlink()


def test_what_was_listed_is_opened_without_asking(url):
    some = tensors()
    ha.write_snapshot(url, some, overwrite=True)
    pin = pinned(url)
    with pin.open() as snapshot:
        assert snapshot._rows.source.requests == 0
        assert [entry.layer_index for entry in snapshot.entries] == [0, 1]
        assert snapshot.read(layer_index=1).equals(some[1])


def test_a_long_end_is_fetched_and_not_carried():
    some = [make_tensor(head_dim=1, num_heads=1, page_size=2, seq_lens=[5, 0, 4, 1], layer_index=n) for n in range(400)]
    ha.write_snapshot("memory://pins/long.arrow", some, overwrite=True, page_align_bytes=64)
    pin = pinned("memory://pins/long.arrow")
    assert pin.known.tail is None
    assert len(pickle.dumps(pin)) < 1000
    with pin.open() as snapshot:
        source = snapshot._rows.source
        assert source.requests == 1
        assert MOST_TAIL_BYTES < source.fetched_bytes == pin.known.tail_bytes
        assert len(snapshot.entries) == 400


@pytest.mark.parametrize("how", ["same size", "deleted"])
def test_another_version_is_refused(url, how):
    ha.write_snapshot(url, tensors(), metadata=ID, overwrite=True)
    pin = pinned(url)
    if how == "deleted":
        remove(url)
    else:
        ha.write_snapshot(url, tensors(seed=50), metadata=ID, overwrite=True)
    with pytest.raises(ha.SnapshotChangedError) as caught, pin.open() as snapshot:
        snapshot.read(layer_index=1)
    assert caught.value.url == url


def test_a_cached_copy_that_was_replaced_is_refused(tmp_path):
    """The cache of each process has a copy of its own, so that times say nothing; every snapshot has its own id."""
    ha.write_snapshot("memory://pins/cached.arrow", tensors(), overwrite=True)
    url = "simplecache::memory://pins/cached.arrow"
    place = SnapshotPlace.of(url, storage_options={"simplecache": {"cache_storage": str(tmp_path / "one")}})
    snapshot, pin = place.pinned()
    with snapshot, pin.open() as again:
        assert again.metadata["id"] == snapshot.metadata["id"]
    ha.write_snapshot("memory://pins/cached.arrow", tensors(seed=50), overwrite=True)
    elsewhere = SnapshotPlace.of(url, storage_options={"simplecache": {"cache_storage": str(tmp_path / "two")}})
    with pytest.raises(ha.SnapshotChangedError):
        type(pin)(elsewhere, pin.known, pin.snapshot_id).open()


def test_a_local_path_is_found_from_any_folder(tmp_path, monkeypatch):
    ha.write_snapshot(tmp_path / "a.arrow", tensors())
    monkeypatch.chdir(tmp_path)
    pin = pinned("a.arrow")
    monkeypatch.chdir("/")
    with pin.open() as snapshot:
        assert snapshot.url == str(tmp_path / "a.arrow")


def test_keys_are_not_shown():
    place = SnapshotPlace.of("memory://pins/a.arrow", storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(place)
