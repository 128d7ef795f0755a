"""Scripts that change an intact snapshot or stream: every part of it, and then the hashes made right again.

A script is bytes: edits one after another until nothing is left. An edit names its kind and takes its decisions from
the bytes behind it, so that whoever changes bytes (libFuzzer, hypothesis) changes edits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from tests.faults.forgery import Forgery
from tests.fuzz.choices import Choices

Patch: TypeAlias = Callable[[bytearray], None]
Edit: TypeAlias = "Callable[[Script], None]"

#: What a script may make of a snapshot of a few KiB.
MAX_BYTES = 1 << 20


class UnbuildableError(Exception):
    """A script asks for something that Arrow refuses to write; it says nothing about the reader."""


@dataclass
class Script:
    """A forgery and the edits that were asked of it."""

    forgery: Forgery
    choices: Choices
    edits: Sequence[Edit]
    patches: dict[int, list[Patch]] = field(default_factory=dict)
    rows: list[Callable[[list[dict[str, Any]]], None]] = field(default_factory=list)
    index: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)

    def content(self) -> bytes:
        """Read the script to its end and return what it makes.

        Raises
        ------
        UnbuildableError
            Arrow does not write it.
        """
        try:
            while self.choices.more:
                self.choices.pick(self.edits)(self)
                # An edit that doubles a row may come again and again.
                if sum(batch.nbytes for batch in self.forgery.batches) > MAX_BYTES:
                    raise UnbuildableError("the script makes too much")
            self._take_edits()
            return self.forgery.content()
        except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise UnbuildableError(str(error)) from error
        except (struct.error, AssertionError, RecursionError, NotImplementedError, MemoryError) as error:
            raise UnbuildableError(str(error)) from error

    def _take_edits(self) -> None:
        for row, patches in self.patches.items():
            earlier = self.forgery.patches.get(row)
            self.forgery.patches[row] = _all([*([earlier] if earlier else []), *patches])
        if self.rows:
            self.forgery.edit_rows = _all([self.forgery.edit_rows, *self.rows])
        if self.index:
            self.forgery.edit_index = _all([self.forgery.edit_index, *self.index])

    def patch(self, row: int, patch: Patch) -> None:
        """Add a change of a row's bytes."""
        self.patches.setdefault(row, []).append(patch)

    def row(self) -> int:
        """Return the number of a row."""
        return self.choices.below(len(self.forgery.batches))


def _all(changes: list[Callable[[Any], None]]) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        for each in changes:
            each(value)

    return change
