"""CONTRIBUTING.md draws the house as it is, and a toy of each kind touches the files that it says, and no other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.toys import TOYS
from tests.unit.test_house import FLOOR, PACKAGE, broken_rules

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
TABLE = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| [^|]*\|$", TEXT, re.MULTILINE))


def test_the_picture_has_every_floor_in_order():
    [picture] = re.findall(r"```text\n(┌.*?┘)\n```", TEXT, re.DOTALL)
    places = {}
    for number, line in enumerate(picture.splitlines()):
        for name in re.findall(r"(?:│|  +)\s?([a-z_]+)(?=  +)", line):
            if name in FLOOR:
                places.setdefault(name, number)
    assert set(FLOOR) - set(places) == {"__main__", "_json", "_later", "_wire"}
    drawn = sorted(places, key=lambda name: places[name])
    highest = ("cli", "ray", "report", "catalog", "views", "share", "snapshot", "arrow", "engines", "ops")
    assert tuple(drawn[: len(highest)]) == highest
    floors = [
        FLOOR[name] for name in drawn if name in ("tensor", "descriptor", "elements", "packing", "spec", "errors")
    ]
    assert floors == sorted(floors, reverse=True)


def test_every_kind_in_the_table_was_tried():
    kinds = {kind for kind in TABLE if kind not in ("a new", "---")}
    assert {toy.kind for toy in TOYS} == kinds


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.kind.split(" (")[0].replace(" ", "_"))
def test_a_toy_touches_the_files_that_the_table_says(toy, tmp_path):
    named = set(re.findall(r"`([\w/.]+\.py)`", TABLE[toy.kind]))
    touched = {path: re.sub(r"/\w+\.py$", "/NAME.py", path) for path in toy.files} | {
        path: path for path in toy.changes
    }
    assert set(touched.values()) == named
    package = shutil.copytree(PACKAGE, tmp_path / "hurray_arrow", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in toy.files.items():
        assert not (package / path).exists()
        (package / path).write_text(text.lstrip())
        assert broken_rules(PACKAGE / path, text) == []
    for path, changes in toy.changes.items():
        source = (package / path).read_text()
        for there, added in changes:
            assert source.count(there) == 1, (path, there)
            source = source.replace(there, there + added)
        (package / path).write_text(source)
    (tmp_path / "use.py").write_text(toy.use)
    done = subprocess.run(
        [sys.executable, "-W", "error", "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
