"""The pages of docs/ as programs: what is pasted from top to bottom has to work, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from hurray_arrow.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```([\w{}-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Block(NamedTuple):
    """A fenced block of a page; directives of the site are none."""

    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text()) if not found[0].startswith("{")]


def run_page(page: Path) -> None:
    """Run every block in order, all Python in one namespace, in the current folder."""
    names: dict[str, object] = {}
    for number, (language, text) in enumerate(blocks_of(page)):
        if language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"{page.name} block {number}", "exec"), names)  # noqa: S102  the page is ours
            # A comment behind print() says what comes.
            for shown in re.findall(r"print\(\w+\)  # (\S+: .+)", text):
                assert shown in printed.getvalue()
        elif language == "sh":
            for line in text.splitlines():
                run_command(line)
        elif language == "console":
            command, expected = text.split("\n", 1)
            assert run_command(command.removeprefix("$ ")) == expected


def run_command(line: str) -> str:
    """Run a line of the shell, in this process where it is ours; what installs something has to be there."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "hurray-arrow":
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)
        return "".join(f"{printed.rstrip()}\n" for printed in done.output.splitlines())
    if program == "make":
        assert set(arguments) <= TARGETS
    else:
        assert line.startswith("pip install 'hurray-arrow["), line
        assert set(re.findall(r"\[([\w,]+)\]", line)[0].split(",")) <= set(EXTRAS)
    return ""
