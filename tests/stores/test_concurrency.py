"""An object that is written over while others read, copy or write it: one version whole, or an error that says so."""

from __future__ import annotations

import threading
import time

import pytest

from hurray_arrow import SnapshotChangedError, SnapshotError, copy_snapshot, open_snapshot, write_snapshot
from tests.concurrency.versions import TIMEOUT_SECONDS, reading_threads, tensors, version_of, write
from tests.stores.conftest import WRITABLE
from tests.stores.proxy import Answer
from tests.stores.samples import as_bytes

ROUNDS = 5


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_readers_see_the_old_or_the_new_or_that_it_changed(store):
    url = store.unique()
    write(url, 0, **store.how)
    with reading_threads(url, 2, **store.how) as seen:
        for version in range(1, ROUNDS):
            write(url, version, profile=("share", "archive")[version % 2], **store.how)
        # At least once each after the last one was written.
        before = [len(each) for each in seen]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(len(each) < count + 2 for each, count in zip(seen, before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    for each in seen:
        versions = [version for version in each if type(version) is int]
        others = [error for error in each if type(error) is not int]
        assert all(error.startswith("SnapshotChangedError") for error in others), others
        assert versions == sorted(versions)
        assert versions[-1] == ROUNDS - 1


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_of_two_overwriting_writers_the_last_is_there_whole(store):
    url = store.unique()
    write(url, 0, **store.how)
    for _ in range(2):
        together, errors = threading.Barrier(2), []

        def write_one(version, together=together, errors=errors):
            together.wait(TIMEOUT_SECONDS)
            try:
                write(url, version, **store.how)
            except Exception as caught:  # noqa: BLE001 - looked at below
                errors.append(caught)

        writers = [threading.Thread(target=write_one, args=[version]) for version in (1, 2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(TIMEOUT_SECONDS)
        # Whoever commits blocks of an object in Azure throws away all others' blocks of it; and of a filesystem that
        # nothing is known of only a size tells whose object it is.
        assert all(store.kind in ("azure", "memory") and type(error) is SnapshotError for error in errors), errors
        assert len(errors) < 2
        with open_snapshot(url, **store.how) as snapshot:
            assert version_of(snapshot) in (1, 2)


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_a_copy_is_of_one_version_or_none(store, tmp_path):
    """Nothing is published where the source changed in the middle."""
    url = store.unique()
    write(url, 0, **store.how)
    stop, ends = threading.Event(), []

    def copy_again_and_again():
        number = 0
        while not stop.is_set() or number < 2:
            number += 1
            path = tmp_path / f"{number}.arrow"
            how = {name.replace("storage", "source"): value for name, value in store.how.items()}
            how = {{"filesystem": "source_filesystem"}.get(name, name): value for name, value in how.items()}
            try:
                copy_snapshot(url, path, **how)
            except SnapshotChangedError:
                ends.append(path.exists())
            else:
                with open_snapshot(path) as copy:
                    version_of(copy)

    copier = threading.Thread(target=copy_again_and_again)
    copier.start()
    for version in range(1, ROUNDS):
        write(url, version, **store.how)
    stop.set()
    copier.join(TIMEOUT_SECONDS)
    assert not copier.is_alive()
    assert not any(ends)
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("store", ["s3", "azure"], indirect=True)
def test_threads_that_create_one_name_again_and_again(store):
    """Exactly one creates it, whoever comes a moment later is refused."""
    url = store.unique()
    together, said = threading.Barrier(3), []

    def create(version):
        together.wait(TIMEOUT_SECONDS)
        try:
            write_snapshot(url, tensors(version), metadata={"user": {"version": version}}, **store.how)
        except FileExistsError:
            said.append("refused")
        else:
            said.append(version)

    writers = [threading.Thread(target=create, args=[version]) for version in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(TIMEOUT_SECONDS)
    assert len(said) == 3
    if store.kind == "azure":
        # SeaweedFS looks at its condition before it looks for the object, and may let several through; each of them
        # looks again who is there, and is refused unless it is itself.
        assert said.count("refused") == 2
    [winner, *others] = [version for version in said if version != "refused"]
    with open_snapshot(url, **store.how) as snapshot:
        assert version_of(snapshot) in (winner, *others)


@pytest.mark.parametrize("store", ["azure", "gcs", "obstore"], indirect=True)
def test_an_object_that_is_replaced_between_the_two_requests_of_opening_is_asked_for_anew(store, tmp_path):
    """Some stores cannot say what is there and give its end at once."""
    url = store.unique()
    write(url, 0, **store.how)
    if store.kind == "obstore":
        # As it does where a store has no ranges that count from the end.
        store.proxy.fault = lambda request: Answer(416) if (request.range or "").startswith("bytes=-") else None
    contents = [as_bytes(tmp_path, tensors(version), metadata={"user": {"version": version}}) for version in (1, 2)]
    left, counted = iter(contents), []
    before = store.proxy.fault

    def replace(request):
        if request.range and not request.range.startswith("bytes=-") and (content := next(left, None)):
            counted.append(request)
            store.proxy.fault = before
            store.replace(url, content)
            store.proxy.fault = replace
        return before(request)

    store.proxy.fault = replace
    with open_snapshot(url, **store.how) as snapshot:
        assert version_of(snapshot) == 2
    assert len(counted) == 2
    left = iter(contents * 3)
    with pytest.raises(SnapshotChangedError):
        open_snapshot(url, **store.how)
    store.proxy.reset()
    with open_snapshot(url, **store.how) as snapshot:
        assert version_of(snapshot) in (1, 2)
