"""docs/howto/without.md runs where hurray_arrow cannot be imported."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from hurray_arrow.cli.app import app
from tests.docs.pages import DOCS, blocks_of

PAGE = DOCS / "howto" / "without.md"


def test_others_open_a_snapshot_without_this_package(tmp_path):
    path = tmp_path / "hurray-arrow-demo.arrow"
    assert CliRunner().invoke(app, ["demo", "--output", str(path)]).exit_code == 0
    readers = [block.text for block in blocks_of(PAGE)]
    assert len(readers) == 7
    program = "\n".join(["import sys; sys.modules['hurray_arrow'] = None", *readers])
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
