"""What the commands have in common on the terminal: text that cannot do harm, sizes, progress, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec.callbacks import Callback
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from hurray_arrow import texts
from hurray_arrow.texts import count, size

__all__ = ["BarCallback", "console", "count", "print_json", "printable", "progress", "size"]

#: Columns of text that a table gets where there is no terminal to ask, and the least it gets where there is one:
#: a narrow terminal wraps lines, and nothing is cut off.
PIPE_WIDTH = 160
LEAST_WIDTH = 100


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the group of commands; rich would end with exit code 1, which says that there are findings."""
        raise  # noqa: PLE0704 - rich calls it while it handles the BrokenPipeError


def console() -> Console:
    """Return a console on stdout that reads no markup in a snapshot's names and cuts no numbers."""
    screen = _Screen(markup=False, highlight=False, emoji=False, soft_wrap=True)
    screen.width = max(screen.width, LEAST_WIDTH) if screen.is_terminal else PIPE_WIDTH
    return screen


def printable(text: str) -> str:
    """Return `text` with every character that a terminal would act on written as an escape; line ends stay."""
    return "\n".join(map(texts.printable, text.split("\n")))


def print_json(document: Any) -> None:
    """Write one JSON document to stdout; ASCII only, so nothing in it reaches a terminal as a command."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    # Where nobody reads, the command ends with its own code, and not Python at its end with another.
    sys.stdout.flush()


class BarCallback(Callback):  # type: ignore[misc]  # fsspec has no types
    """A progress bar that moves with an fsspec callback.

    Parameters
    ----------
    bar
        The display, already started.
    description
        The words in front of the bar.
    """

    def __init__(self, bar: Progress, description: str) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task(description, total=None)

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """Draw what fsspec's own bookkeeping says."""
        del hook_name, kwargs
        self._bar.update(self._task, completed=self.value, total=self.size)


@contextmanager
def progress(description: str, *, in_bytes: bool = True) -> Iterator[Callback]:
    """Give a callback whose bar is drawn on stderr while the block runs, and only where that is a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        # A display that is not shown ends with a line of its own in rich before 14.3.
        yield Callback()
        return
    counted: list[ProgressColumn] = [DownloadColumn(), TransferSpeedColumn()] if in_bytes else [MofNCompleteColumn()]
    columns = (TextColumn("{task.description}"), BarColumn(), *counted)
    bar = Progress(*columns, TimeRemainingColumn(), console=screen, transient=True)
    with bar:
        yield BarCallback(bar, description)
