"""The README's code runs, its commands exist, its links lead somewhere, and its output is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hurray_arrow.cli.app import app
from hurray_arrow.snapshot.ranges import (
    FIRST_BYTE_SECONDS,
    STREAM_BYTES_PER_SECOND,
    STREAMS,
    modelled_seconds,
    plan_ranges,
)
from tests.docs.pages import EXTRAS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_every_block_is_of_a_kind_that_is_tested():
    assert {language for language, _ in BLOCKS} == {"python", "sh", "shell", "console"}


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, text in enumerate(blocks("python")):
        exec(compile(text, f"README.md block {number}", "exec"), names)  # noqa: S102  the README is ours
    assert len(blocks("python")) == 3
    assert (tmp_path / "cache.arrow").exists()


def test_the_example_is_ten_lines():
    code = [line for line in blocks("python")[0].splitlines() if line.strip() and not line.startswith(("import", ")"))]
    assert len(code) <= 10


def test_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [line.split("#")[0].split() for text in blocks("sh") for line in text.splitlines() if line]
    assert len(commands) == 9
    for program, name, *_ in commands:
        assert program in {"make", "hurray-arrow"}
        assert name in (targets if program == "make" else app.commands)


def test_command_lines_work_on_the_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})  # noqa: S102  the README is ours
    for text in blocks("sh"):
        for line in text.splitlines():
            if line.startswith("hurray-arrow"):
                arguments = line.split("#")[0].split()[1:]
                assert CliRunner().invoke(app, arguments).exit_code == 0


def test_demo_prints_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [shown] = blocks("console")
    command, *expected = shown.splitlines()
    assert command == "$ make demo"
    printed = CliRunner().invoke(app, ["demo"]).output
    printed = printed.replace(f"{tmp_path}/", "")
    printed = re.sub(r"  id: .*\n", "  id: …\n", re.sub(r"  created: .*\n", "  created: …\n", printed))
    assert [line.rstrip() for line in printed.splitlines()] == expected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert missing == []


def test_every_document_is_found():
    assert len(DOCUMENTS) >= 8


@pytest.mark.parametrize("page", ["README.md", "docs/howto/archive.md"])
def test_what_a_real_store_costs_is_the_arithmetic_of_the_plans(page):
    """The model by which plans are compared: a request for the small columns, then the pages in order."""

    def ranges(size_bytes):
        return plan_ranges(np.array([(at, 32 << 10) for at in range(0, size_bytes, 32 << 10)]))

    part, whole = ranges(50 << 20), ranges(5 << 30)
    # To the nearest twentieth of a second: the model is no more exact than that.
    seconds = round((FIRST_BYTE_SECONDS + modelled_seconds(part)) * 20) / 20
    first, megabytes = FIRST_BYTE_SECONDS * 1e3, STREAM_BYTES_PER_SECOND / 1e6
    text = " ".join((ROOT / page).read_text().split())
    assert f"{first:.0f} ms to the first byte and {megabytes:.0f} MB/s a stream" in text
    assert f"{len(part) + 1} requests and {seconds:.2f} s over {STREAMS} streams" in text
    assert f"{len(whole)} requests and {modelled_seconds(whole):.0f} s" in text


def test_every_extra_for_users_is_named():
    for_us = {"stores", "docs", "test", "dev"}
    assert [extra for extra in EXTRAS if extra not in for_us and f"`{extra}`" not in README] == []
