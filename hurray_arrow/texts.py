"""Names and numbers as people read them, on a terminal or on a page, and what of a snapshot is not shown there."""

from __future__ import annotations

from typing import Any

#: Metadata that may say whose the cache is or what was asked: that it is there is said, and no more.
WITHHELD = ("tenant", "adapter", "user")


def printable(text: str) -> str:
    """Return `text` on one line, with every character that a display would act on written as an escape.

    Line ends, control characters, marks of direction and lone surrogates are such.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count(number: Any, noun: str) -> str:
    """Return ``1 page`` or ``1,234 pages``."""
    return f"{int(number):,} {noun}" + ("" if int(number) == 1 else "s")


def size(num_bytes: Any) -> str:
    """Return a number of bytes as people read it, such as ``1.9 MB`` (powers of 1000)."""
    amount = float(num_bytes)
    if amount < 1000:
        return f"{int(num_bytes)} B"
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 1000:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"
