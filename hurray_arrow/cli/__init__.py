"""The command ``hurray-arrow``. It knows everything below it, and nobody knows it."""

from __future__ import annotations

import sys

from hurray_arrow.errors import MissingDependencyError

USAGE = 2


def main() -> None:
    """Run the command line; without the extra ``cli``, say which extra to install and exit with code 2."""
    try:
        from hurray_arrow.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.stderr.write(f"hurray-arrow: {MissingDependencyError(error.name, extra='cli')}\n")
        sys.exit(USAGE)
    app(prog_name="hurray-arrow")
