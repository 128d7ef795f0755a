"""``copy`` and ``archive``: options, output, exit codes, and what an interrupt leaves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import fsspec
import pytest

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.cli.options import integers, key_values, positions
from tests.cli.conftest import SECRETS, small_tensor
from tests.cli.test_inspect import read_terminal

JSON_KEYS = {
    "source", "destination", "profile", "num_tensors", "num_pages", "page_bytes", "stored_bytes", "unverified",
}  # fmt: skip


def tensors():
    return [small_tensor(layer, role) for layer in (11, 13) for role in ("key", "value")]


def read_all(path):
    with ha.open_snapshot(path) as snapshot:
        snapshot.verify()
        return list(snapshot.iter_tensors())


def all_equal(found, expected):
    return len(found) == len(expected) and all(one.equals(other) for one, other in zip(found, expected, strict=True))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "copy.arrow"


def test_copy_keeps_everything_and_says_so(run, path, target):
    result = run("copy", path, target)
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == f"{target}: 4 tensors, 28 pages, 3.4 kB of pages"
    assert second.endswith("stored, profile share")
    assert all_equal(read_all(target), tensors())
    for secret in SECRETS:
        assert secret not in result.output


def test_json(run, path, target):
    result = run("copy", path, target, "--json", "--profile", "archive")
    found = json.loads(result.stdout)
    assert set(found) == JSON_KEYS
    assert (found["source"], found["destination"], found["profile"]) == (str(path), str(target), "archive")
    assert (found["num_tensors"], found["num_pages"], found["page_bytes"]) == (4, 28, 28 * 120)
    with ha.open_snapshot(target) as snapshot:
        assert found["stored_bytes"] == sum(entry.stored_bytes for entry in snapshot.entries)


def test_archive_sanitizes_unless_told_otherwise(run, path, target):
    assert run("archive", path, target).exit_code == 0
    with ha.open_snapshot(target) as snapshot:
        assert snapshot.profile == "archive"
    assert all_equal(read_all(target), [ops.sanitize(tensor) for tensor in tensors()])
    assert run("archive", path, target, "--no-sanitize", "--overwrite", "--encoding", "plain").exit_code == 0
    assert all_equal(read_all(target), tensors())
    with ha.open_snapshot(target) as snapshot:
        assert {entry.encoding for entry in snapshot.entries} == {"plain"}


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["--layers", "13"], lambda ts: ts[2:]),
        (["--layers", "11:14:", "--sanitize"], None),
        (["--layers", "12,13"], None),
        (["--sanitize"], lambda ts: [ops.sanitize(t) for t in ts]),
        (["--repage", "2"], lambda ts: [ops.repage(t, 2) for t in ts]),
        (["--sequences", "3,0"], lambda ts: [ops.compact(ops.select(t, [3, 0])) for t in ts]),
        (["--sequences", "1:4"], lambda ts: [ops.compact(ops.select(t, [1, 2, 3])) for t in ts]),
        (["--tokens", "3:"], lambda ts: [ops.compact(ops.select(t, tokens=slice(3, None))) for t in ts]),
        (
            ["--tokens", ":5", "--sequences", "0"],
            lambda ts: [ops.compact(ops.select(t, [0], tokens=(0, 5))) for t in ts],
        ),
        (["--sequences", "9"], None),
        (["--sequence-id", "nobody"], None),
        (["--tokens", "5"], None),
        (["--repage", "0"], None),
        (["--sequences", "1-2"], None),
        (["--storage-option", "anon=true"], None),
        (["--storage-option", "anon"], None),
        (["--destination-option", "anon=true"], None),
    ],
)
def test_choices(run, path, target, arguments, change):
    result = run("copy", path, target, *arguments)
    if change is None:
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr
        assert not target.exists()
    else:
        assert result.exit_code == 0, result.output
        assert all_equal(read_all(target), change(tensors()))


def test_sequences_by_id(run, tmp_path, target):
    named = small_tensor(3, "key", ids=["7", "b,c", None, "ß"])
    source = tmp_path / "named.arrow"
    ha.write_snapshot(source, [named])
    assert run("copy", source, target, "--sequence-id", "ß", "--sequence-id", "b,c", "--sequences", "0").exit_code == 0
    assert read_all(target)[0].sequences.ids == ("7", "ß", "b,c")


def test_an_existing_copy_stays_unless_overwritten(run, path, target):
    target.write_text("mine")
    result = run("copy", path, target)
    assert result.exit_code == 3
    assert target.read_text() == "mine"
    assert run("copy", path, target, "--overwrite").exit_code == 0
    assert run("copy", path, path, "--overwrite", "--layers", "11").exit_code == 0
    assert all_equal(read_all(path), tensors()[:2])


def test_unknown_lengths_say_how_to_archive_all_the_same(run, tmp_path, target):
    source = tmp_path / "unknown.arrow"
    unknown = ha.BlockPagedTensor.from_arrays(
        small_tensor(3, "key").page_pool, block_tables=[[5, 2], [3]], seq_lens=[5, None], total_tokens=7, kv_role="key"
    )
    ha.write_snapshot(source, [unknown])
    result = run("archive", source, target)
    assert (result.exit_code, target.exists()) == (2, False)
    assert "without sanitizing" in result.stderr
    assert run("archive", source, target, "--no-sanitize").exit_code == 0


def test_a_damaged_source_is_unreadable(run, path, target):
    with ha.open_snapshot(path) as snapshot:
        page = snapshot.read(layer_index=13, kv_role="key").page_pool[5].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(page) + 7] ^= 1
    path.write_bytes(content)
    result = run("copy", path, target)
    assert (result.exit_code, target.exists()) == (3, False)
    assert "page_pool[5]" in result.stderr


def test_a_set_becomes_one(run, members, target):
    pattern = members[0].parent / "cache.m*.arrow"
    result = run("copy", pattern, target, "--merge-heads", "--sanitize")
    assert result.exit_code == 0, result.output
    assert all_equal(read_all(target), [ops.sanitize(t) for t in (*tensors()[:2], tensors()[2])])
    result = run("copy", pattern, target, "--overwrite")
    assert result.exit_code == 2
    assert "--merge-heads" in result.stderr
    members[0].unlink()
    result = run("copy", pattern, target, "--merge-heads", "--overwrite")
    assert result.exit_code == 3
    assert "0 to 1 these are missing: 0" in result.stderr


def test_urls_and_their_options(run, path):
    memory = fsspec.filesystem("memory")
    given = []

    class Noting(type(memory)):
        protocol = "noting"

        def __init__(self, *args, **options):
            given.append(options)
            super().__init__(*args)

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix("noting://"))

    fsspec.register_implementation("noting", Noting, clobber=True)
    try:
        options = ["--storage-option", "endpoint=http://h:7", "--storage-option", 'kwargs={"a": [1, true]}']
        assert run("archive", path, "noting://here/a.arrow", *options).exit_code == 0
        expected = {"endpoint": "http://h:7", "kwargs": {"a": [1, True]}}
        assert given
        assert all(each.items() >= expected.items() for each in given)
        given.clear()
        assert run("verify", "noting://here/a.arrow", *options).exit_code == 0
        assert run("inspect", "noting://here/*", *options, "--json").exit_code == 3
        assert run("inspect", "noting://here/a.arrow", *options).exit_code == 0
        assert given
        assert all(each.items() >= expected.items() for each in given)
        given.clear()
        result = run("copy", "noting://here/a.arrow", "noting://here/b.arrow", "--destination-option", "other=5")
        assert result.exit_code == 0, result.output
        assert {"other"} in [set(each) & {"other", "endpoint"} for each in given]
    finally:
        memory.rm("/here", recursive=True)


def test_no_progress_bar_where_nobody_looks(run, path, target):
    assert run("copy", path, target).stderr == ""


def test_a_terminal_sees_a_bar_in_bytes(path, target):
    leader, follower = pty.openpty()
    program = "from hurray_arrow.cli import main; main()"
    command = [sys.executable, "-c", program, "copy", str(path), str(target)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=follower, stdout=subprocess.PIPE, env=environment) as child:
        os.close(follower)
        text = b""
        while chunk := read_terminal(leader):
            text += chunk
        assert child.stdout.read().startswith(str(target).encode())
    os.close(leader)
    assert child.returncode == 0
    assert b"copying" in text
    assert b"3.4/3.4 kB" in text


# -- interrupts --------------------------------------------------------------------------------------------------------

STAGES = {
    "while a tensor is written": "def write(self, tensor):\n        super().write(tensor); ready()",
    "before it is published": "def close(self):\n        ready(); super().close()",
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("profile", ["share", "archive"])
def test_an_interrupt_leaves_nothing_behind(path, target, stage, profile):
    program = f"""
import sys, time
from hurray_arrow.cli import main
from hurray_arrow.snapshot import transform
def ready():
    print("ready", flush=True); time.sleep(60)
class Slow(transform.SnapshotWriter):
    {STAGES[stage]}
transform.SnapshotWriter = Slow
sys.argv = ["hurray-arrow", "copy", {str(path)!r}, {str(target)!r}, "--profile", {profile!r}]
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        assert any(child.suffix == ".tmp" for child in path.parent.iterdir())
        os.kill(child.pid, signal.SIGINT)
        output, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert list(path.parent.iterdir()) == [path]
    assert all_equal(read_all(path), tensors())


def test_an_interrupt_at_any_moment_leaves_a_whole_copy_or_none(path, target):
    command = [sys.executable, "-c", "from hurray_arrow.cli import main; main()", "copy", str(path), str(target)]
    codes = set()
    for wait in (0.4, 0.7, 0.9, 1.1, 1.3):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(wait)
            child.send_signal(signal.SIGINT)
            codes.add(child.wait(timeout=60))
        assert set(path.parent.iterdir()) in ({path}, {path, target})
        if target.exists():
            assert all_equal(read_all(target), tensors())
            target.unlink()
    # While Python starts, an interrupt kills it as it kills any process.
    assert codes <= {0, 1, 130, -signal.SIGINT}


# -- texts of options --------------------------------------------------------------------------------------------------


def test_texts_become_values():
    assert integers(None, None, "3,7:10, 1") == [3, 7, 8, 9, 1]
    assert integers(None, None, None) is None
    assert positions(None, None, ":") == slice(0, None)
    assert positions(None, None, "16:512") == slice(16, 512)
    assert key_values(None, None, ("a=1", "b=x=y", "c=", 'd="1"')) == {"a": 1, "b": "x=y", "c": "", "d": "1"}
