"""Decisions out of bytes: atheris and hypothesis both hand over bytes, and every target reads its choices from them.

Bytes that are not there read as zeros, so that every input is one, and a shorter one means less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

#: Where arithmetic goes wrong.
EDGES = (
    *(0, 1, 2, 3, 5, 7, 8, 9, 16, 63, 64, 127, 128, 255, 256, 4095, 4096, 2**15, 2**16 - 1, 2**20, 2**26, 2**30),
    *(
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**40,
        2**53 - 1,
        2**53,
        2**62,
        2**63 - 8,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
    ),
    *(-1, -2, -8, -(2**31), -(2**40), -(2**63)),
)
TEXTS = ("", "values", "scales", "key", "value", "fused", "l.0", "state.x", "page.x", "uint32", "uint64", "bfloat16")
MORE_TEXTS = (
    "plain",
    "byte_planes",
    "private_0xF1",
    "int4",
    "0",
    "18446744073709551616",
    "\0",
    "\ud800",
    "ß",
    "x" * 5000,
)


class Choices:
    """Reads decisions one after another.

    Parameters
    ----------
    data
        The input.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def more(self) -> bool:
        """Whether bytes are left."""
        return self._position < len(self._data)

    def chunk(self, size: int) -> bytes:
        """Return the next bytes; zeros behind the end."""
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken.ljust(size, b"\0")

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        taken = self._data[self._position :]
        self._position = len(self._data)
        return taken

    def number(self, size_bytes: int = 1) -> int:
        """Return an unsigned number of so many bytes."""
        return int.from_bytes(self.chunk(size_bytes), "little")

    def below(self, bound: int) -> int:
        """Return a number below ``bound``; 0 where nothing is."""
        if bound < 1:
            return 0
        return self.number(1 if bound <= 256 else 2 if bound <= 65536 else 4) % bound

    def pick(self, among: Sequence[T]) -> T:
        """Return one of several."""
        return among[self.below(len(among))]

    def flag(self) -> bool:
        """Return yes or no."""
        return bool(self.number() & 1)

    def integer(self, near: int = 0) -> int:
        """Return an integer: an edge, one close to ``near``, or any of 64 bits."""
        kind = self.number()
        if kind < 128:
            return EDGES[kind % len(EDGES)]
        if kind < 224:
            return near + kind - 176
        return self.number(8)

    def value(self, near: Any = None, *, depth: int = 0) -> Any:
        """Return a JSON value, often of the kind of ``near``."""
        kind = self.below(12)
        if kind < 5 and isinstance(near, list) and near:
            changed = list(near)
            place = self.below(len(near))
            changed[place] = self.value(near[place], depth=depth + 1)
            return changed
        if kind < 5 and isinstance(near, dict) and near:
            name = self.pick(sorted(near))
            return {**near, name: self.value(near[name], depth=depth + 1)}
        if kind < 5:
            return self.integer(near if type(near) is int else 0)
        if depth > 3:
            return None
        match kind:
            case 5:
                return None
            case 6:
                return self.flag()
            case 7:
                return self.pick(TEXTS + MORE_TEXTS)
            case 8:
                return [self.value(depth=depth + 1) for _ in range(self.below(4))]
            case 9:
                return {self.pick(TEXTS): self.value(depth=depth + 1) for _ in range(self.below(4))}
            case 10:
                return self.pick((0.5, 1e308, float("nan"), float("inf"), -0.0, 4.0))
        return self.chunk(self.below(9)).decode("latin-1")

    def splice(self, content: bytes) -> bytes:
        """Return content with a piece of it replaced, left out or put in."""
        start = self.below(len(content) + 1)
        return content[:start] + self.chunk(self.below(12)) + content[start + self.below(12) :]


def json_text(value: Any) -> str:
    """Return JSON as a careless writer would: NaN, and anything else that Python writes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
