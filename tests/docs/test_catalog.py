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


def test_python_blocks_run_in_order(folder):
    names: dict[str, object] = {"prompt": PROMPT.tolist()}
    ran = [text for language, text in BLOCKS if language == "python"]
    for number, text in enumerate(ran):
        exec(compile(text, f"catalog.md block {number}", "exec"), names)  # noqa: S102  the page is ours
    assert len(ran) == 4
    assert names["by_model"] == [("toy", None, 3, 183, pytest.approx(1, abs=10**6))]
    assert names["broken"] == [(str(folder / "caches" / "text.arrow"), "SnapshotIncompleteError", None)]
    assert names["incomplete_sets"] == [("s-1",)]
    assert names["windows"]["window_tokens"].to_list() == [6, 6, 6]
    assert [match[2] for match in names["found"]] == [97, 42, 23]


def test_commands_work(folder):
    commands = [text for language, text in BLOCKS if language == "sh"]
    assert len(commands) == 2
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    for text in commands:
        # One file is no snapshot, which is a finding and not a failure of the page.
        program = text.replace("s3://bucket/caches", "caches")
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment, check=False)
        assert done.stderr == ""
        assert "no snapshot holds any of it" in done.stdout or ": 4 files" in done.stdout
    assert {path.name for path in folder.glob("*.*")} == {"catalog.parquet", "tensors.parquet", "catalog.key"}
    (folder / "question.json").write_text(json.dumps({"token_ids": PROMPT.tolist(), "tenant": "t-1"}))
    command = ["hurray-arrow", "find-prompt", "catalog.parquet", "question.json", "--key-file", "catalog.key"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["97", "42", "23"]


@pytest.mark.parametrize("rows", SCHEMAS)
def test_every_column_is_named(rows):
    named = set(re.findall(r"`(\w+)`", PAGE))
    prefixes = ("producer_", "engine_", "topology_")
    assert [name for name in SCHEMAS[rows].names if name not in named and not name.startswith(prefixes)] == []
