"""docs/mistakes.md: each mistake is made, and what it says is what the page shows, to the letter."""

from __future__ import annotations

import re
import sys

import pytest

from tests.docs.pages import DOCS, blocks_of

FIRST, *BLOCKS = blocks_of(DOCS / "mistakes.md")
MISTAKES = list(zip(BLOCKS[::2], BLOCKS[1::2], strict=True))


def shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}\n"


def test_the_page_has_the_commonest():
    assert len(MISTAKES) >= 20
    assert {mistake.language for mistake, _ in MISTAKES} == {"python"}
    assert {message.language for _, message in MISTAKES} == {"text"}
    assert len({message.text for _, message in MISTAKES}) == len(MISTAKES)


def test_each_mistake_says_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    # Where a test before this one used it, fsspec has the class already.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    names: dict[str, object] = {}
    exec(FIRST.text, names)  # noqa: S102  the page is ours
    for mistake, message in MISTAKES:
        with pytest.raises(Exception) as caught:
            exec(compile(mistake.text, "mistakes.md", "exec"), names)  # noqa: S102  as above
        # What depends on the folder, or is long and the same everywhere, is cut on the page.
        pattern = ".*".join(re.escape(part) for part in message.text.rstrip("\n").split("…"))
        assert re.fullmatch(pattern, shown(caught.value).rstrip("\n"), re.DOTALL), shown(caught.value)


def test_each_message_says_what_was_found_and_what_was_expected():
    words = ("expected", "overwrite=True", "make it first", "pass ", "recover=True", "pip install", "tell them apart")
    words += ("give ", "np.", "the format has", "are missing", "no snapshot", "which begins with")
    assert [message.text for _, message in MISTAKES if not any(word in message.text for word in words)] == []
