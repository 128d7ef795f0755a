from __future__ import annotations

import importlib.metadata

import pytest

import hurray_arrow as ha


def test_version(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.split()[1] == importlib.metadata.version("hurray-arrow")


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["validate", "a", "b"],
        ["verify"],
        ["copy", "a"],
        ["archive", "a", "b", "--profile", "share"],
        ["demo", "--no-such"],
        ["no-such-command"],
    ],
)
def test_usage_errors_exit_with_2(run, arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["inspect", "validate", "verify"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_cannot_be_read_exits_with_3(run, tmp_path, path, command, flags):
    other = tmp_path / "text.arrow"
    other.write_text("no snapshot\n" * 100)
    empty = tmp_path / "empty.arrow"
    empty.touch()
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(path.read_bytes()[:-1])
    for target in (tmp_path / "missing.arrow", other, empty, cut, tmp_path):
        result = run(command, target, *flags)
        assert result.exit_code == 3, (target, result.output)
        assert result.stdout == ""
        assert str(target) in result.stderr
        assert "Traceback" not in result.stderr


def test_help_names_the_exit_codes_and_every_command(run):
    output = run("--help").output
    assert "0 fine, 1 findings, 2 usage, 3 unreadable, 130 interrupted" in output
    assert {"inspect", "validate", "verify", "copy", "archive", "demo"} <= set(output.split())


def test_an_interrupt_is_no_finding(run, path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ha.Snapshot, "verify", lambda *_, **__: interrupted())
    assert run("validate", path).exit_code == 130


def test_no_progress_bar_where_nobody_looks(run, path):
    assert run("validate", path).stderr == ""


def test_too_little_memory_is_said_in_a_line(run, path, monkeypatch):
    def without_memory(*_):
        raise MemoryError("Unable to allocate 1.00 TiB")

    monkeypatch.setattr(ha.Snapshot, "verify", lambda *_, **__: without_memory())
    result = run("verify", path)
    assert result.exit_code == 3
    assert result.stderr.strip().splitlines() == ["Error: not enough memory: Unable to allocate 1.00 TiB"]
