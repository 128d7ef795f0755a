"""Every example runs, and prints what its README says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ALL_FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "data")
#: These run in the engines' own environments, with the tests of tests/engines and tests/vllm.
OF_ENGINES = {"real_model", "vllm_connector"}
FOLDERS = [name for name in ALL_FOLDERS if name not in OF_ENGINES]


def run(script: Path, snapshot: Path) -> str:
    command = [sys.executable, "-W", "error", str(script), str(snapshot)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "smollm2_small.arrow"
    run(EXAMPLES / "keep_a_cache" / "keep_a_cache.py", path)
    return path


def test_every_folder_is_listed():
    listed = re.findall(r"\| \[(\w+)\]\(\1\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == ALL_FOLDERS
    assert len(FOLDERS) == 12


@pytest.mark.parametrize("folder", FOLDERS)
def test_example_prints_what_its_readme_says(folder, snapshot, tmp_path):
    readme = (EXAMPLES / folder / "README.md").read_text()
    [(command, expected)] = re.findall(r"```console\n\$ (.*)\n((?:.*\n)*?)```", readme)
    assert command == f"python examples/{folder}/{folder}.py smollm2_small.arrow"
    copy = shutil.copy(snapshot, tmp_path / "smollm2_small.arrow")
    printed = run(EXAMPLES / folder / f"{folder}.py", Path(copy))
    assert [line.rstrip() for line in printed.rstrip().splitlines()] == expected.splitlines()


@pytest.mark.parametrize("folder", ALL_FOLDERS)
def test_example_and_readme_ask_the_same_question(folder):
    question = (EXAMPLES / folder / "README.md").read_text().splitlines()[0].removeprefix("# ")
    script = (EXAMPLES / folder / f"{folder}.py").read_text().splitlines()[0].strip('"')
    assert question == script
    assert question in (EXAMPLES / "README.md").read_text()
