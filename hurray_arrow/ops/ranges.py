"""Half-open ranges as callers write them.

Spec: house rule that ranges are half-open.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, TypeAlias

#: ``(start, stop)``, ``slice(start, stop)`` or ``range(start, stop)``; ``None`` leaves an end open.
HalfOpen: TypeAlias = tuple[SupportsIndex | None, SupportsIndex | None] | slice | range


def is_half_open(value: object) -> bool:
    """Say whether a value is one range, and not several."""
    if isinstance(value, slice | range):
        return True
    ends = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    return isinstance(value, tuple) and all(end is None or isinstance(end, SupportsIndex) for end in ends)


def half_open(value: Any, *, where: str) -> tuple[int, int | None]:
    """Read one range.

    Returns
    -------
    start : int
        At least 0.
    stop : int or None
        At least start; ``None`` for an open end.

    Raises
    ------
    TypeError
        No range.
    ValueError
        Steps, negative ends, or an end before the start.
    """
    if not is_half_open(value):
        raise TypeError(f"{where}: {value!r}, expected (start, stop), a slice or a range")
    start, stop = value if isinstance(value, tuple) else (value.start, value.stop)
    if not isinstance(value, tuple) and value.step not in (None, 1):
        raise ValueError(f"{where}: steps of {value.step}, expected 1")
    first = 0 if start is None else operator.index(start)
    end = None if stop is None else operator.index(stop)
    if first < 0 or (end is not None and end < first):
        raise ValueError(f"{where}: [{first}, {end}), expected 0 <= start <= stop")
    return first, end
