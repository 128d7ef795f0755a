"""A file that is written over while others read it, copy it, or write it too: each sees one version whole."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from hurray_arrow import copy_snapshot, open_snapshot, write_snapshot
from tests.concurrency.versions import (
    TIMEOUT_SECONDS,
    VERSIONS,
    reading_process,
    reading_threads,
    tensors,
    version_of,
    write,
)

ROUNDS = 12


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "s.arrow"
    write(made, 0)
    return made


def check_seen(seen):
    """Versions only, none of them earlier than one seen before, and some of those that were written meanwhile."""
    assert seen
    assert all(type(version) is int for version in seen), seen
    assert seen == sorted(seen)


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_readers_see_the_old_or_the_new_while_a_writer_replaces_it(path, profile):
    with reading_process(path) as elsewhere:
        with reading_threads(path, 1) as mapped, reading_threads(path, 1, mapped=False) as unmapped:
            for version in range(1, VERSIONS):
                write(path, version, profile=profile)
        last = [*mapped, *unmapped]
    for seen in (*last, elsewhere):
        check_seen(seen)
    assert len(set(elsewhere) | set(mapped[0]) | set(unmapped[0])) > 2
    assert [entry.name for entry in path.parent.iterdir()] == ["s.arrow"]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("profile", ["share", "archive"])
def test_what_is_open_keeps_its_version_and_what_was_read_its_values(path, profile, mapped):
    write(path, 0, profile=profile)
    with open_snapshot(path, mapped=mapped) as snapshot:
        first = snapshot.read(layer_index=0, kv_role="key")
        for version in range(1, 4):
            write(path, version, profile=profile)
        path.unlink()
        assert version_of(snapshot) == 0
        assert snapshot.read_sequences(0, layer_index=2, kv_role="value").tensors[0].num_seqs == 1
    assert first.equals(tensors(0)[0])


def _write_as_told(barrier, channel):
    """Write whatever comes, at the same moment as the others."""
    channel.send("ready")
    while told := channel.recv():
        path, number, overwrite = told
        barrier.wait(TIMEOUT_SECONDS)
        try:
            write_snapshot(path, tensors(number), metadata={"user": {"version": number}}, overwrite=overwrite)
        except FileExistsError:
            channel.send("refused")
        else:
            channel.send(number)


@pytest.fixture(scope="module", params=["threads", "processes"])
def at_once(request):
    """Let two writers write each its version to one name; gives what each says of it."""
    context = multiprocessing.get_context("spawn")
    in_threads = request.param == "threads"
    barrier = threading.Barrier(2) if in_threads else context.Barrier(2)
    make = threading.Thread if in_threads else context.Process
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    writers = [make(target=_write_as_told, args=(barrier, theirs), daemon=True) for _, theirs in pipes]
    for writer in writers:
        writer.start()

    def hear(channel):
        assert channel.poll(TIMEOUT_SECONDS)
        return channel.recv()

    assert [hear(ours) for ours, _ in pipes] == ["ready", "ready"]

    def tell(path, numbers, *, overwrite):
        for (ours, _), number in zip(pipes, numbers, strict=True):
            ours.send((path, number, overwrite))
        return [hear(ours) for ours, _ in pipes]

    yield tell
    for ours, _ in pipes:
        ours.send(None)
    for writer in writers:
        writer.join(TIMEOUT_SECONDS)


def test_of_two_creators_exactly_one_wins(tmp_path, at_once):
    for number in range(ROUNDS):
        path = tmp_path / f"{number}.arrow"
        said = at_once(path, [1, 2], overwrite=False)
        assert said.count("refused") == 1
        [winner] = [each for each in said if each != "refused"]
        with open_snapshot(path) as snapshot:
            assert version_of(snapshot) == winner
        path.unlink()
    assert list(tmp_path.iterdir()) == []


def test_of_two_overwriting_writers_the_last_is_there_whole(path, at_once):
    with reading_threads(path, 1) as seen:
        for _ in range(ROUNDS):
            assert at_once(path, [1, 2], overwrite=True) == [1, 2]
    assert set(seen[0]) <= {0, 1, 2}
    with open_snapshot(path) as snapshot:
        assert version_of(snapshot) in (1, 2)
    assert [entry.name for entry in path.parent.iterdir()] == ["s.arrow"]


def test_a_copy_is_of_one_version_while_the_source_is_replaced(path, tmp_path):
    stop = threading.Event()

    def replace():
        version = 0
        while not stop.is_set():
            version += 1
            write(path, version % VERSIONS, profile=("share", "archive")[version % 2])

    writer = threading.Thread(target=replace)
    writer.start()
    versions = set()
    try:
        for number in range(ROUNDS):
            copy = tmp_path / f"copy-{number}.arrow"
            copy_snapshot(path, copy, profile=("archive", "share")[number % 2])
            with open_snapshot(copy) as snapshot:
                versions.add(version_of(snapshot))
    finally:
        stop.set()
        writer.join(TIMEOUT_SECONDS)
    assert len(versions) > 1


def test_a_snapshot_is_copied_over_itself_while_others_read_it(path):
    with reading_threads(path, 2) as seen:
        for number in range(ROUNDS):
            copy_snapshot(path, path, overwrite=True, profile=("archive", "share")[number % 2])
    assert {version for each in seen for version in each} == {0}
    assert all(seen)
