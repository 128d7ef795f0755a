"""The example with a real model runs, and says what its README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engines

FOLDER = Path(__file__).parents[2] / "examples" / "real_model"


def test_the_example_goes_on_with_the_same_tokens(tmp_path):
    command = [sys.executable, str(FOLDER / "real_model.py"), str(tmp_path / "a.arrow"), "--tokens", "300"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=offline, check=False)
    assert done.returncode == 0, done.stderr
    [(_, readme)] = re.findall(r"\$ python (.*)\n((?:.*\n)*?)```", (FOLDER / "README.md").read_text())
    printed, promised = (
        [re.sub(r"\d+|'.*' …", "…", line) for line in text.splitlines()] for text in (done.stdout, readme)
    )
    assert printed == promised
    assert re.findall(r"(\d+) tokens restored", done.stdout) == ["300", "300"]
    assert done.stdout.count("the next 64 tokens are the same") == 2
