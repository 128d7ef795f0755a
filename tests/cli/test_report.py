from __future__ import annotations

import json
import subprocess
import sys

import pytest

import hurray_arrow as ha
from tests.cli.conftest import SECRETS


@pytest.fixture
def quick(monkeypatch):
    """Leave the pictures out: these tests are about the command."""
    monkeypatch.setattr("hurray_arrow.report.document.sections", lambda *_: iter(()))


@pytest.mark.usefixtures("quick")
def test_a_report_is_a_file_of_its_own(run, path, tmp_path):
    target = tmp_path / "report.html"
    result = run("report", path, "-o", target, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    size = target.stat().st_size
    assert said == {"url": str(path), "output": str(target), "output_bytes": size, "sample_bytes": 64 << 20}
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    assert not any(secret in text + result.output for secret in SECRETS)
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("quick")
def test_an_existing_file_is_replaced_only_when_told(run, path, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("mine")
    assert run("report", path, "-o", target).exit_code == 3
    assert target.read_text() == "mine"
    assert run("report", path, "-o", target, "--overwrite").exit_code == 0
    assert target.read_text() != "mine"


def test_the_sample_is_what_was_asked_for(run, path, tmp_path, monkeypatch):
    asked = []

    def read(snapshot, *, sample_bytes):
        asked.append(sample_bytes)
        raise ha.SnapshotError("enough", url=snapshot.url)

    monkeypatch.setattr("hurray_arrow.report.document.sized_values", read)
    assert run("report", path, "-o", tmp_path / "a.html", "--sample", "7").exit_code == 3
    assert asked == [7 << 20]
    assert list(tmp_path.glob("*.html*")) == []


@pytest.mark.parametrize("arguments", [["report"], ["report", "a.arrow"], ["report", "a", "-o", "b", "--sample", "-1"]])
def test_usage_errors_exit_with_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_a_set_is_not_one_snapshot(run, members, tmp_path):
    pattern = str(members[0]).replace("m0", "m*")
    assert pattern != str(members[0])
    assert run("report", pattern, "-o", tmp_path / "a.html").exit_code == 2


def test_what_cannot_be_read_leaves_no_file(run, path, tmp_path):
    path.write_bytes(path.read_bytes()[:-1])
    for source in (path, tmp_path / "missing.arrow"):
        result = run("report", source, "-o", tmp_path / "a.html")
        assert result.exit_code == 3
        assert result.stdout == ""
    assert not (tmp_path / "a.html").exists()


def test_without_its_extra_it_says_what_to_install(path, tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None; from hurray_arrow.cli import main; main()"
    command = [sys.executable, "-c", program, "report", str(path), "-o", str(tmp_path / "a.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "matplotlib is not installed: pip install 'hurray-arrow[report]'" in done.stderr
    assert not (tmp_path / "a.html").exists()
