"""The command ``hurray-arrow``. It knows everything below it, and nobody knows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hurray_arrow.errors import MissingDependencyError

if TYPE_CHECKING:
    import click

USAGE = 2


def load() -> click.Group:
    """Import the commands; without the extra ``cli``, say which extra to install and exit with code 2."""
    try:
        from hurray_arrow.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.stderr.write(f"hurray-arrow: {MissingDependencyError(error.name, extra='cli')}\n")
        sys.exit(USAGE)
    return app


def main() -> None:
    """Run the command line in a process that has imported this package already."""
    load()(prog_name="hurray-arrow")
