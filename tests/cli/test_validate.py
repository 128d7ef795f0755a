from __future__ import annotations

import json

import pytest

import hurray_arrow as ha
from tests.cli.conftest import small_tensor

PROBLEM_KEYS = {"code", "where", "message", "spec", "offset_bytes", "field"}


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0b100
    path.write_bytes(data)


@pytest.fixture
def damaged(path):
    """The snapshot with one bit of a page changed."""
    with ha.open_snapshot(path) as snapshot:
        page = snapshot.read(layer_index=13, kv_role="key").page_pool[5].tobytes()
    flip(path, path.read_bytes().index(page) + 17)
    return path


def test_a_whole_snapshot_has_no_problems(run, path):
    result = run("validate", path)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: 4 tensors, no problems\n"
    found = json.loads(run("validate", path, "--json").stdout)
    assert found == {
        "url": str(path),
        "num_tensors": 4,
        "num_pages": 28,
        "page_bytes": 28 * 3 * 2 * 5 * 4,
        "problems": [],
        "unverified": [],
    }


def test_a_changed_page_is_a_finding_with_its_code(run, damaged):
    result = run("validate", damaged)
    assert result.exit_code == 1
    assert result.stdout.startswith("page_checksum: ")
    assert result.stdout.endswith(f"{damaged}: 4 tensors, 1 problem\n")
    result = run("validate", damaged, "--json")
    assert result.exit_code == 1
    [problem] = json.loads(result.stdout)["problems"]
    assert set(problem) == PROBLEM_KEYS
    assert problem["code"] == "page_checksum"


def test_inspect_reads_no_pages_and_so_finds_nothing(run, damaged):
    assert run("inspect", damaged).exit_code == 0


def test_a_broken_index_is_a_finding_and_unreadable(run, path):
    flip(path, path.read_bytes().rindex(b"num_rows"))
    result = run("validate", path, "--json")
    assert result.exit_code == 1
    assert [problem["code"] for problem in json.loads(result.stdout)["problems"]] == ["index_checksum"]
    assert run("inspect", path).exit_code == 3


def test_verify_says_whether_it_is_what_was_written(run, path):
    result = run("verify", path)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: intact; 4 tensors, 28 pages (3.4 kB) are right\n"
    assert run("verify", path, "--json").stdout == run("validate", path, "--json").stdout


def test_verify_finds_damage(run, damaged):
    result = run("verify", damaged)
    assert result.exit_code == 1
    assert result.stdout.startswith("page_checksum: ")
    assert f"{damaged}: DAMAGED, 1 problem; 4 tensors, " in result.stdout


def test_pages_without_checksums_are_not_called_intact(run, tmp_path):
    path = tmp_path / "none.arrow"
    ha.write_snapshot(path, [small_tensor(5, "key")], checksums=False)
    result = run("verify", path)
    assert result.exit_code == 0
    assert "nothing damaged, 1 part without checksums" in result.stdout
    assert "intact" not in result.stdout


def test_every_member_of_a_set_is_verified(run, members):
    pattern = members[0].parent / "cache.m*.arrow"
    assert run("verify", pattern).stdout == f"{pattern}: intact; 6 tensors, 42 pages (2.5 kB) are right\n"
    found = json.loads(run("validate", pattern, "--json").stdout)
    assert (found["num_tensors"], found["num_pages"], found["problems"]) == (6, 42, [])
    with ha.open_snapshot(members[1]) as snapshot:
        page = snapshot.read(layer_index=13, kv_role="key").page_pool[5].tobytes()
    flip(members[1], members[1].read_bytes().index(page) + 3)
    result = run("verify", pattern, "--json")
    assert result.exit_code == 1
    [problem] = json.loads(result.stdout)["problems"]
    assert (problem["code"], problem["where"][:9]) == ("page_checksum", "member 1.")
    members[0].unlink()
    result = run("verify", pattern)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "0 to 1 these are missing: 0" in result.stderr
