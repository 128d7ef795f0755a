"""A snapshot's names as text that can do no harm: in a page, and in a figure.

Whoever wrote the snapshot chose them; here they are data, never markup, a formula or a command to the display.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.ft2font import FT2Font

from hurray_arrow.texts import printable

#: Characters of a name that a figure has room for.
LABEL_CHARS = 18
#: The font that comes with matplotlib, so that what it can draw is known.
LABEL_FAMILY = "DejaVu Sans"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def shortened(text: str, most: int) -> str:
    """Return `text` with its middle left out where it has more than `most` characters."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def label(text: str, *, most: int = LABEL_CHARS) -> str:
    """Return a name as a figure shows it: short, and only with characters that the figure's font has."""
    known = _drawable()
    return "".join(char if ord(char) in known else _REPLACEMENT for char in shortened(printable(text), most))


def label_style() -> dict[str, Any]:
    """Return the properties of a matplotlib text that takes a name as it is: no formulas, no TeX."""
    return {"parse_math": False, "usetex": False, "fontfamily": LABEL_FAMILY}


@lru_cache(maxsize=1)
def _drawable() -> frozenset[int]:
    font = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return frozenset(FT2Font(str(font)).get_charmap())
