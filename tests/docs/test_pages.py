"""Every page of docs/ runs from top to bottom in an empty folder that has the demo's snapshot and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from hurray_arrow.cli.app import app
from tests.docs.pages import DOCS, ROOT, blocks_of, run_page

#: Pages whose blocks other tests run, because they need a server, an engine, or other snapshots.
ELSEWHERE = {
    "catalog.md": "tests/docs/test_catalog.py",
    "mistakes.md": "tests/docs/test_messages.py",
    "howto/without.md": "tests/docs/test_without.py",
    "howto/archive.md": "tests/stores/test_howto.py",
    "howto/transformers.md": "tests/engines/test_transformers_page.py",
    "tools/datafusion.md": "tests/tools/test_views_questions.py",
    "tools/duckdb.md": "tests/tools/test_views_questions.py",
    "tools/pandas.md": "tests/tools/test_views_questions.py",
    "tools/polars.md": "tests/tools/test_views_questions.py",
    "tools/ray.md": "tests/tools/test_views_questions.py",
}
#: Languages of blocks that nobody runs.
SHOWN = {"", "text"}
WITH_BLOCKS = sorted(
    str(page.relative_to(DOCS))
    for page in DOCS.rglob("*.md")
    if any(block.language not in SHOWN for block in blocks_of(page))
)
HERE = [name for name in WITH_BLOCKS if name not in ELSEWHERE]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "hurray-arrow-demo.arrow"
    assert CliRunner().invoke(app, ["demo", "--output", str(path)]).exit_code == 0
    return path


def test_every_page_with_code_is_run_somewhere():
    assert set(ELSEWHERE) <= set(WITH_BLOCKS)
    assert len(HERE) >= 9
    for name, where in ELSEWHERE.items():
        assert Path(name).name in (source := (ROOT / where).read_text()) or Path(name).stem in source
    languages = {block.language for name in WITH_BLOCKS for block in blocks_of(DOCS / name)}
    assert languages - SHOWN <= {"python", "sh", "console"}


@pytest.mark.parametrize("name", HERE)
def test_page_runs(name, demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "tour.md":
        shutil.copy(demo, tmp_path)
    run_page(DOCS / name)
