from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import hurray_arrow as ha
from hurray_arrow.cli.app import app
from hurray_arrow.cli.catalog import KEY_VARIABLE


def test_version(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.split()[1] == importlib.metadata.version("hurray-arrow")


def test_the_package_runs_as_the_command():
    ended = subprocess.run(
        [sys.executable, "-m", "hurray_arrow", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["hurray-arrow", importlib.metadata.version("hurray-arrow")]


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


def test_an_argument_that_the_library_refuses_is_a_usage_error(run, path, tmp_path):
    target = tmp_path / "new.arrow"
    for arguments in (
        ["inspect", "s4://caches/x.arrow"],
        ["validate", "s4://caches/x.arrow"],
        ["verify", "s4://caches/x.arrow"],
        ["report", "s4://caches/x.arrow", "-o", tmp_path / "r.html"],
        ["copy", path, "s4://caches/x.arrow"],
        ["copy", path, target, "--tokens", "5:2"],
        ["copy", path, target, "--layers", "5:2"],
    ):
        result = run(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert result.stderr.startswith("Usage: ")
    assert not target.exists()


def test_a_filesystem_whose_package_is_missing_exits_with_3(run, monkeypatch):
    def without(*_, **__):
        raise ImportError('SFTPFileSystem requires "paramiko" to be installed')

    monkeypatch.setattr("hurray_arrow.snapshot.stores.url_to_fs", without)
    result = run("inspect", "sftp://host/x.arrow")
    assert result.exit_code == 3
    assert "paramiko" in result.stderr


def test_errors_name_the_options_of_the_command_line(run, path, tmp_path):
    assert run("copy", path, path).stderr == f"Error: {path}: it exists; --overwrite replaces it\n"
    missing = run("copy", path, tmp_path / "nowhere" / "new.arrow").stderr
    assert missing == f"Error: {tmp_path / 'nowhere'}: there is no such folder; make it first\n"
    assert run("inspect", "").stderr == "Error: : no such file\n"


def test_a_snapshot_of_no_set_is_named(run, path):
    result = run("inspect", path.with_name("sm*.arrow"))
    assert result.exit_code == 3
    assert str(path) in result.stderr


#: Every command that writes to stdout, with what it needs.
TALKING = [
    ["--help"],
    ["--version"],
    ["inspect", "--help"],
    ["inspect", "SNAPSHOT"],
    ["inspect", "SNAPSHOT", "--json"],
    ["validate", "SNAPSHOT"],
    ["verify", "SNAPSHOT", "--json"],
    ["copy", "SNAPSHOT", "copy.arrow"],
    ["copy", "SNAPSHOT", "copy.arrow", "--json"],
    ["copy", "SNAPSHOT", "copy.hrry"],
    ["archive", "SNAPSHOT", "archive.arrow"],
    ["report", "SNAPSHOT", "-o", "report.html"],
    ["catalog", "."],
    ["find-prompt", "catalog.parquet", "prompt.json"],
    ["demo"],
]


@pytest.mark.parametrize("arguments", TALKING, ids=" ".join)
def test_a_reader_that_goes_away_is_no_finding(path, run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_VARIABLE, "07" * 32)
    if arguments[0] == "find-prompt":
        assert run("catalog", ".", "--output", "catalog.parquet").exit_code == 0
        Path("prompt.json").write_text('{"token_ids": [1, 2, 3]}')
    given = [str(path) if each == "SNAPSHOT" else each for each in arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        command = [sys.executable, "-m", "hurray_arrow_command", *given]
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_every_command_is_among_them():
    assert {each[0] for each in TALKING} == {"--help", "--version", *app.commands}


#: Ctrl-C when Python is about to import a module of this name.
INTERRUPTED_START = """
import os, signal, sys
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
if KIND == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from hurray_arrow_command import main
sys.meta_path.insert(0, Interrupting)
sys.argv[1:] = ["--version"]
main()
"""


@pytest.mark.parametrize("module", ["hurray_arrow", "pyarrow.lib", "hurray_arrow.snapshot", "click", "rich.console"])
@pytest.mark.parametrize("kind", ["heard", "ignored"])
def test_an_interrupt_while_it_starts_is_quiet(module, kind):
    program = INTERRUPTED_START.replace("MODULE", repr(module)).replace("KIND", repr(kind))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130 if kind == "heard" else 0, b"")
    assert bool(ended.stdout) == (kind == "ignored")


def test_an_interrupt_while_arguments_are_read_is_quiet(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Group, "parse_args", interrupted)
    result = run("inspect")
    assert (result.exit_code, result.output) == (130, "")
