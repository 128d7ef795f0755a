"""Every page of docs/tools answers its five questions as numpy does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools.questions import answers, write_cache

PAGES = Path(__file__).parents[2] / "docs" / "tools"
TOOLS = ("datafusion", "duckdb", "pandas", "polars")


@pytest.fixture(scope="module")
def expected():
    return answers()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("questions")
    write_cache(made / "cache.arrow")
    return made


def test_every_tool_has_a_page_and_every_page_a_tool():
    assert sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README") == list(TOOLS)
    assert sorted(re.findall(r"\]\((\w+)\.md\)", (PAGES / "README.md").read_text())) == list(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
def test_answers_are_numpys(tool, folder, expected, monkeypatch):
    monkeypatch.chdir(folder)
    text = (PAGES / f"{tool}.md").read_text()
    assert f"hurray-arrow[{tool}]" in text
    names: dict[str, object] = {}
    found = []
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        exec(compile(block, f"{tool}.md block {number}", "exec"), names)  # noqa: S102  the page is ours
        if "answer" in names:
            found.append(names.pop("answer"))
    assert len(found) == 5
    for ours, numpys in zip(found, expected, strict=True):
        assert len(ours) == len(numpys)
        cells = [pair for rows in zip(ours, numpys, strict=True) for pair in zip(*rows, strict=True)]
        assert all(one == (two if isinstance(two, str) else pytest.approx(two, rel=1e-5)) for one, two in cells), ours


def test_variables_hold_what_the_page_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    text = (PAGES / "duckdb.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for block in (blocks[0], blocks[-1]):
        exec(compile(block, "duckdb.md", "exec"), names)  # noqa: S102  the page is ours
    assert names["lengths"] == [(0, 331), (1, 307), (2, 256), (3, 37)]
    assert [page for page, _ in names["first"]] == [3]
