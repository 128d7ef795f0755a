"""Tables of the numbers behind a picture, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: What stands where there is no number.
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers as a page shows them.

    Parameters
    ----------
    caption
        What they are.
    columns
        The heads; the first column names the row.
    rows
        Texts, as many in each as there are columns. They may hold a snapshot's names, which are data.
    note
        What was left out, or how to read it.
    num_names
        Leading columns of names; numbers stand behind them.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    num_names: int = 1


def integer(number: Any) -> str:
    """Return ``1,234``."""
    return f"{int(number):,}"


def decimal(number: Any) -> str:
    """Return four significant digits, or that there is no number."""
    value = float(number)
    return f"{value:.4g}" if math.isfinite(value) else NOTHING


def percent(part: Any, whole: Any) -> str:
    """Return a share such as ``12.5 %``, or that there is nothing to have a share of."""
    return f"{100 * float(part) / float(whole):.1f} %" if whole else NOTHING


def span(first: int, last: int) -> str:
    """Return a closed range such as ``16–31``, or its only number."""
    return integer(first) if first == last else f"{integer(first)}–{integer(last)}"


def spans(length: int, most: int) -> list[tuple[int, int]]:
    """Cut ``length`` things into at most ``most`` half-open ranges of one size, the last perhaps shorter."""
    step = max(1, -(-length // most))
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def sentence(parts: Sequence[str]) -> str:
    """Join what there is of some texts."""
    return " ".join(part for part in parts if part)
