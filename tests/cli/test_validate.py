from __future__ import annotations

import json

import pytest

import hurray_arrow as ha

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
    assert found == {"url": str(path), "num_tensors": 4, "problems": [], "unverified": []}


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
