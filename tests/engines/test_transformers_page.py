"""docs/howto/transformers.md, pasted from top to bottom, with torch and transformers as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.engines

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "transformers.md"


def test_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for number, text in enumerate(blocks):
        exec(compile(text, f"transformers.md block {number}", "exec"), names)  # noqa: S102  the page is ours
    assert len(blocks) == 4
    assert names["match"].num_tokens == 15
