"""Files that appear whole or not at all, and ranges of files that are read. Full disks and killed writers: faults/."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
from pathlib import Path

import pyarrow as pa
import pytest

from hurray_arrow import SnapshotError, SnapshotIncompleteError
from hurray_arrow.snapshot import files
from hurray_arrow.snapshot.files import AtomicFile, FileRange

CONTENT = bytes(range(251)) * 37


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "f"
    made.write_bytes(CONTENT)
    return made


def test_a_file_has_its_name_only_when_it_is_published(tmp_path):
    path = tmp_path / "f"
    file = AtomicFile(path)
    assert file.write(b"abc") == 3
    assert file.write(memoryview(b"defgh")) == 5
    assert file.write(pa.py_buffer(b"ijk")) == 3
    assert file.position == 11
    assert not path.exists()
    (hidden,) = tmp_path.iterdir()
    assert hidden.name.startswith(".f.")
    assert hidden.name.endswith(".tmp")
    file.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"abcdefghijk"


def test_large_writes_arrive_whole_and_in_order(tmp_path):
    pieces = [bytes([n]) * size for n, size in enumerate((1, 3 << 20, 5, (1 << 20) - 1, 2 << 20, 7))]
    file = AtomicFile(tmp_path / "f")
    for piece in pieces:
        file.write(piece)
    assert file.position == sum(map(len, pieces))
    file.publish()
    assert (tmp_path / "f").read_bytes() == b"".join(pieces)


def test_short_writes_of_the_system_are_made_good(tmp_path, monkeypatch):
    made = []

    class Short(io.FileIO):
        def write(self, data):
            made.append(1)
            return super().write(memoryview(data)[:1000])

    def fdopen(descriptor, mode, *, buffering):
        return io.BufferedRandom(Short(descriptor, mode.replace("b", "")), buffering)

    monkeypatch.setattr(files.os, "fdopen", fdopen)
    file = AtomicFile(tmp_path / "f")
    for start in range(0, len(CONTENT), 777):
        file.write(CONTENT[start : start + 777])
    file.write(CONTENT * 200)
    file.publish()
    assert (tmp_path / "f").read_bytes() == CONTENT * 201
    assert len(made) > 1800


def test_discarding_leaves_nothing_and_may_be_repeated(tmp_path):
    file = AtomicFile(tmp_path / "f")
    file.write(CONTENT)
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_order_of_publishing(tmp_path, monkeypatch):
    """The bytes are safe before the name is, and the name is safe before publish() returns."""
    calls = []
    real_fsync, real_replace, real_link = os.fsync, files.Path.replace, os.link

    def fsync(descriptor):
        calls.append("fsync folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "fsync file")
        real_fsync(descriptor)

    def replace(self, target):
        calls.append("replace")
        return real_replace(self, target)

    def link(source, target):
        calls.append("link")
        real_link(source, target)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.Path, "replace", replace)
    monkeypatch.setattr(files.os, "link", link)
    for overwrite, name in ((False, "link"), (True, "replace")):
        file = AtomicFile(tmp_path / "f", overwrite=overwrite)
        file.write(b"x")
        file.publish()
        assert calls == ["fsync file", name, "fsync folder"]
        calls.clear()


def test_a_name_that_is_taken(path):
    with pytest.raises(FileExistsError):
        AtomicFile(path)
    file = AtomicFile(path, overwrite=True)
    file.write(b"new")
    with path.open("rb") as old:
        file.publish()
        assert old.read() == CONTENT, "who has the old file open keeps it"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("code", sorted(files._NO_HARD_LINKS))
def test_file_systems_without_hard_links(tmp_path, monkeypatch, code):
    def link(*_args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "link", link)
    file = AtomicFile(tmp_path / "f")
    file.write(b"x")
    file.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_other_failures_of_the_link_are_failures(tmp_path, monkeypatch):
    def link(*_args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.os, "link", link)
    file = AtomicFile(tmp_path / "f")
    with pytest.raises(OSError) as caught:
        file.publish()
    assert caught.value.errno == errno.EIO
    assert list(tmp_path.iterdir()) == []


def test_a_dangling_link_names_the_file_to_write(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    file = AtomicFile(tmp_path / "link")
    file.write(b"x")
    file.publish()
    assert (tmp_path / "target").read_bytes() == b"x"
    assert (tmp_path / "link").is_symlink()


def test_a_path_may_be_a_string(tmp_path):
    file = AtomicFile(str(tmp_path / "f"))
    file.write(b"x")
    file.publish()
    with FileRange(str(tmp_path / "f")) as source:
        assert source.read(0, 1).to_pybytes() == b"x"
        assert source.url == str(tmp_path / "f")


@pytest.mark.parametrize("mapped", [True, False])
def test_ranges(path, mapped):
    with FileRange(path, mapped=mapped) as source:
        assert source.size == len(CONTENT)
        assert source.is_mapped is mapped
        assert (source.address != 0) is mapped
        for offset, size in ((0, 0), (0, 1), (3, 7), (len(CONTENT) - 5, 5), (len(CONTENT), 0), (0, len(CONTENT))):
            assert source.read(offset, size).to_pybytes() == CONTENT[offset : offset + size]
        for offset, size in ((-1, 1), (0, -1), (0, len(CONTENT) + 1), (len(CONTENT), 1), (2**62, 2**62), (5, 2**63)):
            with pytest.raises(SnapshotIncompleteError) as caught:
                source.read(offset, size)
            assert caught.value.url == str(path)


def test_mapped_ranges_are_views_that_outlive_the_file(path):
    source = FileRange(path)
    one, other = source.read(3, 50), source.read(10, 50)
    assert other.address - one.address == 7
    assert one.address - source.address == 3
    assert not one.is_mutable
    source.close()
    source.close()
    path.unlink()
    assert one.to_pybytes() == CONTENT[3:53]
    assert source.read(100, 9).to_pybytes() == CONTENT[100:109]


def test_unmapped_ranges_are_new_memory_aligned_as_in_the_file(path):
    with FileRange(path, mapped=False) as source:
        for offset in (0, 1, 63, 64, 67, 200):
            assert source.read(offset, 100).address % 64 == offset % 64
        one, other = source.read(0, 9), source.read(0, 9)
        assert one.address != other.address


def test_short_reads_of_the_system_are_made_good(path, monkeypatch):
    real = os.preadv
    calls = []

    def preadv(descriptor, buffers, offset):
        calls.append(offset)
        return real(descriptor, [buffers[0][:100]], offset)

    monkeypatch.setattr(files.os, "preadv", preadv)
    with FileRange(path, mapped=False) as source:
        assert source.read(13, 950).to_pybytes() == CONTENT[13:963]
    assert calls == list(range(13, 963, 100))


def test_a_file_that_shrinks_while_it_is_read(path):
    with FileRange(path, mapped=False) as source:
        os.truncate(path, 100)
        assert source.read(90, 10).to_pybytes() == CONTENT[90:100]
        with pytest.raises(SnapshotIncompleteError):
            source.read(90, 11)


@pytest.mark.parametrize("mapped", [True, False])
def test_descriptors_are_closed(path, tmp_path, mapped):
    (tmp_path / "empty").touch()
    source = FileRange(path, mapped=mapped)
    source.close()
    for bad, error in ((tmp_path / "empty", SnapshotIncompleteError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            FileRange(bad, mapped=mapped)
    with pytest.raises(SnapshotError):
        FileRange("/dev/null", mapped=mapped)
    # A mapping holds on to a descriptor of its own until it goes.
    del source
    gc.collect()
    assert [place for place in open_places() if place.startswith(str(tmp_path))] == []


def open_places():
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(entry.readlink())
