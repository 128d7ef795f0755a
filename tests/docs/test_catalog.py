"""docs/catalog.md: its code runs on real snapshots, its commands work, and it names every column."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hurray_arrow.catalog.columns import SCHEMAS
from tests.unit.catalog.samples import PROMPT, write

PAGE = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    groups = [{"kind": "full"}, {"kind": "sliding_window", "window_tokens": 6}]
    for number, tokens in enumerate((23, 42, 97)):
        whole = {"id": "s-1", "member": number, "members": 4}
        metadata = {"model": {"name": "toy"}, "tenant": "t-1", "groups": groups, "set": whole}
        write(tmp_path / "caches" / f"{number}.arrow", tokens=tokens, metadata=metadata)
    (tmp_path / "caches" / "text.arrow").write_text("not Arrow")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_shell(text, environment):
    """Run lines of the page; a file of the folder is no snapshot, which is a finding and no failure of the page."""
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    return done.stdout


def test_page_runs(folder):
    names: dict[str, object] = {}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = []
    for number, (language, text) in enumerate(BLOCKS):
        if language == "sh":
            printed.append(run_shell(text, environment))
        else:
            exec(compile(text, f"catalog.md block {number}", "exec"), names)  # noqa: S102  the page is ours
    assert [language for language, _ in BLOCKS] == ["sh", "python", "python", "python", "sh", "python"]
    found = [f"16 tokens, sequence 3: {folder / 'caches' / 'demo.arrow'}"]
    assert printed[0].count(": 5 files") == 3
    assert printed[1].splitlines()[-1:] == found
    smol = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert [row[:4] for row in names["by_model"]] == [(smol, None, 1, 931), ("toy", None, 3, 183)]
    assert names["broken"] == [(str(folder / "caches" / "text.arrow"), "SnapshotIncompleteError", None)]
    assert names["incomplete_sets"] == [("s-1",)]
    assert names["windows"]["window_tokens"].to_list() == [6, 6, 6]
    assert [match[1:3] for match in names["found"]] == [(3, 37)]
    Path("question.json").write_text(json.dumps({"token_ids": PROMPT.tolist(), "tenant": "t-1"}))
    answer = run_shell("hurray-arrow find-prompt catalog.parquet question.json --key-file catalog.key", environment)
    assert [line.split()[0] for line in answer.splitlines()] == ["97", "42", "23"]


@pytest.mark.parametrize("rows", SCHEMAS)
def test_every_column_is_named(rows):
    named = set(re.findall(r"`(\w+)`", PAGE))
    prefixes = ("producer_", "engine_", "topology_")
    assert [name for name in SCHEMAS[rows].names if name not in named and not name.startswith(prefixes)] == []
