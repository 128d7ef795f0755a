"""A snapshot appears whole or not at all: exceptions, full disks, kill -9, rivals for the name, mapped sources."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import signal
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from hurray_arrow import (
    InvariantError,
    SchemaPlan,
    SnapshotError,
    SnapshotIncompleteError,
    SnapshotWriter,
    UnsupportedError,
    open_snapshot,
    write_snapshot,
)
from hurray_arrow.snapshot import files
from tests.faults.outcome import Original, in_own_memory, is_same
from tests.faults.small import METADATA, small_tensors, write_small
from tests.sample import make_tensor


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.arrow"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def holds(path, tensors):
    with open_snapshot(path) as snapshot:
        snapshot.verify()
        found = list(snapshot.iter_tensors())
    return len(found) == len(tensors) and all(one.equals(other) for one, other in zip(found, tensors, strict=True))


OLD = [make_tensor(seed=3)]
NEW = [make_tensor(seed=5), make_tensor(seed=7, layer_index=2, element_type="float32")]


class FullDisk:
    """A raw file's writes that take ``free`` bytes in all, the last of them in part."""

    def __init__(self, monkeypatch, free):
        self.free = free
        real = files.os.fdopen

        def fdopen(descriptor, mode, *, buffering):
            # Unbuffered underneath, so that each write of the writer's meets the disk.
            file = real(descriptor, mode, buffering=buffering)
            return _Limited(file, self)

        monkeypatch.setattr(files.os, "fdopen", fdopen)


class _Limited:
    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        self._disk.free -= memoryview(data).nbytes
        if self._disk.free < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("profile", ["share", "archive"])
@pytest.mark.parametrize("there_before", [True, False])
def test_a_full_disk_leaves_what_was_there(path, monkeypatch, there_before, profile):
    write_snapshot(path, NEW, profile=profile)
    size = path.stat().st_size
    path.unlink()
    if there_before:
        write_snapshot(path, OLD)
    refused = 0
    for free in (*range(0, size, size // 23), size - 1):
        with monkeypatch.context() as context:
            FullDisk(context, free)
            with pytest.raises(OSError) as caught:
                write_snapshot(path, NEW, overwrite=True, profile=profile)
        assert caught.value.errno == errno.ENOSPC
        assert names(path.parent) == (["s.arrow"] if there_before else [])
        refused += 1
    assert refused >= 24
    if there_before:
        assert holds(path, OLD)
    with monkeypatch.context() as context:
        FullDisk(context, size)
        write_snapshot(path, NEW, overwrite=True, profile=profile)
    assert holds(path, NEW)


def _write_limited(path, limit, sender):
    # The kernel's own limit: a short write first, then EFBIG.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_snapshot(path, [make_tensor(num_pages=400, head_dim=101)], overwrite=True)
    except OSError as error:
        sender.send(error.errno)
    else:
        sender.send("written")


def test_a_disk_that_takes_half_of_a_write_leaves_what_was_there(path):
    write_snapshot(path, OLD)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_write_limited, args=(path, 1 << 20, sender))
    child.start()
    assert receiver.poll(300)
    assert receiver.recv() == errno.EFBIG
    child.join()
    assert names(path.parent) == ["s.arrow"]
    assert holds(path, OLD)


@pytest.mark.parametrize("call", ["fsync", "fchmod", "replace"])
def test_a_failure_while_publishing_leaves_what_was_there(path, monkeypatch, call):
    write_snapshot(path, OLD)

    def fail(*_args, **_keywords):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as context:
        context.setattr(*((files.Path, call) if call == "replace" else (files.os, call)), fail)
        with pytest.raises(OSError) as caught:
            write_snapshot(path, NEW, overwrite=True)
    assert caught.value.errno == errno.EIO
    assert names(path.parent) == ["s.arrow"]
    assert holds(path, OLD)


def test_a_file_of_another_size_than_was_written_is_not_published(path, monkeypatch):
    real = files.AtomicFile.write
    monkeypatch.setattr(files.AtomicFile, "write", lambda self, data: real(self, data) and self._forget())
    monkeypatch.setattr(
        files.AtomicFile, "_forget", lambda self: setattr(self, "position", self.position + 8), raising=False
    )
    with pytest.raises(SnapshotError):
        write_snapshot(path, OLD)
    assert names(path.parent) == []


def failing(tensors):
    yield from tensors
    raise ZeroDivisionError


def test_a_generator_that_raises_writes_nothing(path):
    with pytest.raises(ZeroDivisionError):
        write_snapshot(path, failing(NEW))
    assert names(path.parent) == []


@pytest.mark.parametrize("written", [0, 1, 2])
def test_an_exception_in_the_middle_discards(path, written):
    with pytest.raises(ZeroDivisionError), SnapshotWriter(path, plan=SchemaPlan.of(NEW)) as writer:  # noqa: PT012
        for tensor in NEW[:written]:
            writer.write(tensor)
        assert len(names(path.parent)) == 1, "the temporary file lies beside the name"
        raise ZeroDivisionError
    assert names(path.parent) == []


def test_a_failed_write_cannot_be_published_and_leaves_nothing(path, monkeypatch):
    with monkeypatch.context() as context:
        disk = FullDisk(context, 1 << 40)
        with pytest.raises(SnapshotError), SnapshotWriter(path, plan=SchemaPlan.of(NEW)) as writer:  # noqa: PT012
            writer.write(NEW[0])
            disk.free = 0
            with pytest.raises(OSError) as caught:
                writer.write(NEW[1])
            assert caught.value.errno == errno.ENOSPC
            disk.free = 1 << 40
            with pytest.raises(SnapshotError):
                writer.write(NEW[1])
    assert names(path.parent) == []


def test_a_writer_that_cannot_begin_leaves_nothing(path, monkeypatch):
    with monkeypatch.context() as context:
        FullDisk(context, 100)
        with pytest.raises(OSError):
            SnapshotWriter(path, plan=SchemaPlan.of(NEW))
    assert names(path.parent) == []


def _write_again_and_again(path, ready, *, first_whole):
    tensors = [make_tensor(seed=seed, layer_index=seed, num_pages=50) for seed in range(9)]
    if first_whole:
        write_snapshot(path, tensors, overwrite=True)
    ready.set()
    while True:
        write_snapshot(path, tensors, overwrite=True)


def test_kill_9_at_any_moment_leaves_a_whole_snapshot(path):
    tensors = [make_tensor(seed=seed, layer_index=seed, num_pages=50) for seed in range(9)]
    write_snapshot(path, OLD)
    context = multiprocessing.get_context("spawn")
    rng = random.Random(17)
    seen = []
    for first_whole in (False, False, True, True):
        ready = context.Event()
        child = context.Process(target=_write_again_and_again, args=(path, ready), kwargs={"first_whole": first_whole})
        child.start()
        assert ready.wait(300)
        for _ in range(6):
            # Stopped wherever it is, again and again: what is under the name is whole at each of these moments.
            time.sleep(rng.uniform(0, 0.12))
            os.kill(child.pid, signal.SIGSTOP)
            seen.append(_which(path, tensors))
            os.kill(child.pid, signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.12))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        seen.append(_which(path, tensors))
    assert set(seen) <= {"old", "new"}
    assert seen == sorted(seen, reverse=True), "old until the first one is published, and new from then on"
    assert seen[-1] == "new"
    # Killed writers leave their hidden temporary files and nothing else.
    others = [name for name in names(path.parent) if name != "s.arrow"]
    assert all(name.startswith(".s.arrow.") and name.endswith(".tmp") for name in others)


def _which(path, tensors):
    return "old" if holds(path, OLD) else "new" if holds(path, tensors) else "neither"


def test_what_a_killed_writer_left_can_be_recovered(path):
    with SnapshotWriter(path, plan=SchemaPlan.of(NEW)) as writer:
        writer.write(NEW[0])
        writer._file._file.flush()
        (left,) = path.parent.iterdir()
        with pytest.raises(SnapshotIncompleteError):
            open_snapshot(left)
        with open_snapshot(left, recover=True) as snapshot:
            assert snapshot.read().equals(NEW[0])
            assert snapshot.unverified
        writer.write(NEW[1])
    assert holds(path, NEW)


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o600), (0o640, 0o640), (0o444, 0o444)])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_permission_bits(path, mode, expected, umask):
    before = os.umask(umask)
    try:
        write_snapshot(path, OLD, **({} if mode is None else {"mode": mode}))
        with SnapshotWriter(path.with_name("t"), plan=SchemaPlan.of(OLD), mode=0o666) as writer:
            writer.write(OLD[0])
            (temporary,) = path.parent.glob(".t.*")
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600, "secret until it is published"
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == expected
    assert stat.S_IMODE(path.with_name("t").stat().st_mode) == 0o666


def test_an_existing_file_is_refused_early(path):
    path.write_bytes(b"somebody's")
    asked = []

    def tensors():
        asked.append(1)
        yield from NEW

    with pytest.raises(FileExistsError):
        write_snapshot(path, tensors())
    with pytest.raises(FileExistsError):
        SnapshotWriter(path, plan=SchemaPlan.of(NEW))
    assert path.read_bytes() == b"somebody's"
    assert names(path.parent) == ["s.arrow"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_in_the_meantime_is_refused_when_publishing(path, monkeypatch, links):
    if not links:

        def link(*_args):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(files.os, "link", link)
    with pytest.raises(FileExistsError), SnapshotWriter(path, plan=SchemaPlan.of(OLD)) as writer:  # noqa: PT012
        writer.write(OLD[0])
        path.write_bytes(b"somebody's")
    assert path.read_bytes() == b"somebody's"
    assert names(path.parent) == ["s.arrow"]
    path.unlink()
    write_snapshot(path, OLD)
    assert holds(path, OLD)


def test_of_two_writers_to_one_name_the_second_to_publish_is_refused(path):
    with SnapshotWriter(path, plan=SchemaPlan.of(OLD)) as first:
        first.write(OLD[0])
        second = SnapshotWriter(path, plan=SchemaPlan.of(NEW))
        for tensor in NEW:
            second.write(tensor)
        assert len(names(path.parent)) == 2
    with pytest.raises(FileExistsError):
        second.close()
    assert names(path.parent) == ["s.arrow"]
    assert holds(path, OLD)


def test_of_two_overwriting_writers_the_last_wins_whole(path):
    first = SnapshotWriter(path, plan=SchemaPlan.of(OLD), overwrite=True)
    with SnapshotWriter(path, plan=SchemaPlan.of(NEW), overwrite=True) as second:
        for tensor in NEW:
            second.write(tensor)
    assert holds(path, NEW)
    first.write(OLD[0])
    first.close()
    assert holds(path, OLD)
    assert names(path.parent) == ["s.arrow"]


def test_a_snapshot_is_overwritten_by_its_own_mapped_tensors(path):
    write_small(path)
    original = Original.of(path)
    content = path.read_bytes()
    inode = path.stat().st_ino
    with open_snapshot(path) as snapshot:
        mapped = list(snapshot.iter_tensors())
    write_snapshot(path, mapped, metadata=METADATA, page_align_bytes=64, overwrite=True)
    assert path.stat().st_ino != inode, "the mapped file is another one, and keeps its bytes"
    assert path.read_bytes() == content
    assert all(map(is_same, mapped, original.tensors))
    with open_snapshot(path) as snapshot:
        again = list(snapshot.iter_tensors())
    write_snapshot(path, [make_tensor()], overwrite=True)
    path.unlink()
    assert all(map(is_same, again, original.tensors))
    assert all(map(is_same, mapped, original.tensors))


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.arrow", tmp_path / "link.arrow"
    link.symlink_to(target)
    write_snapshot(link, OLD)
    assert link.is_symlink()
    assert holds(target, OLD)
    with pytest.raises(FileExistsError):
        write_snapshot(link, NEW)
    write_snapshot(link, NEW, overwrite=True)
    assert link.is_symlink()
    assert holds(link, NEW)
    assert names(tmp_path / "there") == ["real.arrow"]
    assert names(tmp_path) == ["link.arrow", "there"]


def test_places_where_no_file_can_be(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_snapshot(tmp_path / "missing" / "s.arrow", OLD)
    for overwrite in (True, False):
        with pytest.raises(IsADirectoryError):
            write_snapshot(tmp_path, OLD, overwrite=overwrite)
    write_small(tmp_path / "s.arrow")
    with pytest.raises(NotADirectoryError):
        write_snapshot(tmp_path / "s.arrow" / "t.arrow", OLD)
    assert names(tmp_path) == ["s.arrow"]


def test_a_refused_tensor_leaves_the_others_whole(path):
    written = [make_tensor(layer_index=1), make_tensor(layer_index=2)]
    plan = SchemaPlan.of(written)
    with SnapshotWriter(path, plan=plan) as writer:
        writer.write(written[0])
        with pytest.raises(UnsupportedError):
            writer.write(make_tensor(element_type="float32", layer_index=7))
        with pytest.raises(UnsupportedError):
            writer.write(make_tensor(index_type="uint64", layer_index=7))
        with pytest.raises(InvariantError) as caught:
            writer.write(make_tensor(layer_index=1))
        assert caught.value.codes == ["tensor_key_duplicate"]
        with pytest.raises(InvariantError) as caught:
            writer.write(make_tensor(layer_index=3, kv_group=0, block_tables=[[1, 2, 6], [], [5, 0], [2]]))
        assert caught.value.codes == ["kv_group_mismatch"]
        table = np.array([5, 2, 6, 5, 0, 7], np.uint32)
        broken = make_tensor(
            layer_index=4, block_table=table, seq_ptr=np.array([0, 3, 3, 5, 6], np.uint32), permissive=True
        )
        with pytest.raises(InvariantError) as caught:
            writer.write(broken)
        assert "page_id_out_of_range" in caught.value.codes
        writer.write(written[1])
    assert holds(path, written)


def test_a_closed_writer_takes_nothing(path):
    writer = SnapshotWriter(path, plan=SchemaPlan.of(OLD))
    writer.write(OLD[0])
    writer.close()
    for call in (lambda: writer.write(OLD[0]), writer.close):
        with pytest.raises(SnapshotError):
            call()
    writer.discard()
    assert holds(path, OLD)
    discarded = SnapshotWriter(path, plan=SchemaPlan.of(OLD), overwrite=True)
    discarded.discard()
    discarded.discard()
    with pytest.raises(SnapshotError):
        discarded.write(OLD[0])
    assert holds(path, OLD)
    assert names(path.parent) == ["s.arrow"]


def test_a_missing_companion_needs_partial(path):
    key = in_own_memory(small_tensors()[0])
    with pytest.raises(SnapshotError) as caught:
        write_snapshot(path, [key], metadata=METADATA)
    assert str(path) in str(caught.value)
    assert names(path.parent) == []
    write_snapshot(path, [key], metadata=METADATA, partial=True)
    with open_snapshot(path) as snapshot:
        assert snapshot.metadata["partial"] is True
        snapshot.verify()
        for read in (snapshot.read, lambda: list(snapshot.iter_tensors())):
            with pytest.raises(SnapshotError) as caught:
                read()
            assert caught.value.codes == ["companion_missing"]


def test_a_missing_layer_needs_partial(path):
    metadata = {"groups": [{"kind": "full", "layer_names": ["l.0", "l.1"]}]}
    tensor = make_tensor(layer_name="l.0")
    with pytest.raises(SnapshotError):
        write_snapshot(path, [tensor], metadata=metadata)
    assert names(path.parent) == []
    write_snapshot(path, [tensor, make_tensor(layer_name="l.1", layer_index=3)], metadata=metadata)
    write_snapshot(path, [tensor], metadata=metadata, partial=True, overwrite=True)
    with open_snapshot(path) as snapshot:
        assert snapshot.read().equals(tensor), "a layer that is there is read whole"


def test_the_empty_snapshot(path):
    write_snapshot(path, [])
    with open_snapshot(path) as snapshot:
        assert snapshot.entries == ()
        assert snapshot.verify().num_tensors == 0
        with pytest.raises(LookupError):
            snapshot.read()
    assert Path(path).stat().st_size < 10_000
