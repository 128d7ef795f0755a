"""Every page of docs/tools answers its five questions as numpy does."""

from __future__ import annotations

import re

import pytest

from tests.tools.questions import PAGES, answers, check_page, write_cache

TOOLS = ("datafusion", "duckdb", "pandas", "polars")
#: Its page is run by tests/ray, which start it.
RAY = "ray"


@pytest.fixture(scope="module")
def expected():
    return answers()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("questions")
    write_cache(made / "cache.arrow")
    return made


def test_every_tool_has_a_page_and_every_page_a_tool():
    pages = sorted([*TOOLS, RAY])
    assert sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README") == pages
    assert sorted(re.findall(r"\]\((\w+)\.md\)", (PAGES / "README.md").read_text())) == pages


@pytest.mark.parametrize("tool", TOOLS)
def test_answers_are_numpys(tool, folder, expected, monkeypatch):
    monkeypatch.chdir(folder)
    check_page(tool, expected)


def test_variables_hold_what_the_page_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    text = (PAGES / "duckdb.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for block in (blocks[0], blocks[-1]):
        exec(compile(block, "duckdb.md", "exec"), names)  # noqa: S102  the page is ours
    assert names["lengths"] == [(0, 331), (1, 307), (2, 256), (3, 37)]
    assert [page for page, _ in names["first"]] == [3]
