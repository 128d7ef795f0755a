"""Named files: for systems without memory files. Their owner removes them; what a killed owner left is recognised."""

from __future__ import annotations

import gc
import re
import stat
from pathlib import Path

import psutil
import pytest

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.errors import InvariantError, SnapshotIncompleteError
from tests.sample import make_tensor
from tests.share.contents import digests, lies_in, mappings_of, tensors
from tests.share.processes import child, finish, kill, line_of


def test_a_named_file_is_a_snapshot_until_its_owner_closes_it(tmp_path):
    given = tensors()
    with share.publish_file(given, folder=tmp_path) as named:
        assert named.path.parent == tmp_path
        assert re.fullmatch(r"hurray-[0-9a-f]{16}\.arrow", named.path.name)
        assert stat.S_IMODE(named.path.stat().st_mode) == 0o600
        with ha.open_snapshot(named.path) as snapshot:
            assert [a.equals(b) for a, b in zip(given, snapshot.iter_tensors(verify=True), strict=True)] == [True] * 4
            pool = snapshot.read(layer_index=3).page_pool
            assert lies_in(pool, mappings_of(str(named.path)))
        assert not share.is_stale(named.path)
        assert share.remove_stale(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert digests([given[0]])[0] == digests(given)[0]
    named.close()


def test_views_outlive_the_file(tmp_path):
    given = make_tensor()
    named = share.publish_file([given], folder=tmp_path)
    found = named.open().read()
    named.close()
    assert found.equals(given)


def test_it_is_removed_when_its_owner_forgets_it(tmp_path):
    gc.collect()
    before = psutil.Process().num_fds()
    named = share.publish_file([make_tensor()], folder=tmp_path)
    assert psutil.Process().num_fds() == before + 1
    del named
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process().num_fds() == before


def test_what_cannot_be_published_leaves_no_file_and_no_lock(tmp_path):
    gc.collect()
    before = psutil.Process().num_fds()
    with pytest.raises(InvariantError):
        share.publish_file([make_tensor(), make_tensor()], folder=tmp_path)
    with pytest.raises(FileNotFoundError):
        share.publish_file([make_tensor()], folder=tmp_path / "nowhere")
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process().num_fds() == before


def test_two_at_once_have_two_names(tmp_path):
    with share.publish_file([make_tensor()], folder=tmp_path) as one:
        with share.publish_file([make_tensor()], folder=tmp_path) as other:
            assert one.path != other.path
        assert one.path.exists()
        assert not other.path.exists()


def test_the_default_folder_is_in_memory():
    with share.publish_file([make_tensor()]) as named:
        assert str(named.path.parent) == "/dev/shm"  # noqa: S108


OWNER = """
named = share.publish_file(contents.tensors(), folder=sys.argv[2])
say(named.path)
sys.stdin.readline()
"""


def test_a_file_without_its_owner_is_stale(tmp_path):
    with child(OWNER, tmp_path) as (process, _):
        path = line_of(process)
        assert not share.is_stale(path)
        assert share.remove_stale(tmp_path) == []
        snapshot = ha.open_snapshot(path)
        kill(process)
    assert share.is_stale(path)
    assert [str(removed) for removed in share.remove_stale(tmp_path)] == [path]
    assert not Path(path).exists()
    assert digests(snapshot.iter_tensors(verify=True)) == digests(tensors())


def test_an_owner_that_ends_removes_its_file(tmp_path):
    with child(OWNER, tmp_path) as (process, _):
        path = line_of(process)
        assert Path(path).exists()
        process.stdin.write("\n")
        assert finish(process) == []
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_remove_its_parents_file(tmp_path):
    program = (
        OWNER
        + """
pid = os.fork()
if not pid:
    named.close()
    os._exit(0)
os.waitpid(pid, 0)
say(os.path.exists(named.path) and not share.is_stale(named.path))
"""
    )
    with child(program, tmp_path) as (process, _):
        line_of(process)
        process.stdin.write("\n")
        assert finish(process) == ["True"]


def test_half_of_one_never_opens_and_is_recognised(tmp_path):
    program = """
import hurray_arrow.share.named_snapshot as named
from hurray_arrow.arrow import SchemaPlan
tensors = contents.tensors()
output = named._OwnedFile(named.Path(sys.argv[2]) / "hurray-0123456789abcdef.arrow", mode=0o600)
writer = ha.SnapshotWriter(output, plan=SchemaPlan.of(tensors))
writer.write(tensors[0])
say("half")
sys.stdin.readline()
"""
    with child(program, tmp_path) as (process, _):
        assert line_of(process) == "half"
        [half] = tmp_path.iterdir()
        assert half.name.startswith(".hurray-0123456789abcdef.arrow.")
        assert not share.is_stale(half)
        assert share.remove_stale(tmp_path) == []
        with pytest.raises(SnapshotIncompleteError):
            ha.open_snapshot(half)
        kill(process)
    with pytest.raises(SnapshotIncompleteError):
        ha.open_snapshot(half)
    assert share.remove_stale(tmp_path) == [half]
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_not_touched(tmp_path):
    for name in ("cache.arrow", "hurray.txt", ".hurray-1.tmp", "hurray-x"):
        (tmp_path / name).write_bytes(b"mine")
    assert share.remove_stale(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4
