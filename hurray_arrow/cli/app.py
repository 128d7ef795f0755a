"""The commands, and which exit code an error gives."""

from __future__ import annotations

from typing import Any

import click

from hurray_arrow.arrow.metadata import package_version
from hurray_arrow.cli.catalog import catalog, find_prompt
from hurray_arrow.cli.copy import archive, copy
from hurray_arrow.cli.demo import demo
from hurray_arrow.cli.inspect import inspect
from hurray_arrow.cli.output import printable
from hurray_arrow.cli.report import report
from hurray_arrow.cli.validate import validate, verify
from hurray_arrow.errors import HurrayArrowError

INTERRUPTED = 130


class Unreadable(click.ClickException):
    """What was named cannot be read or written."""

    exit_code = 3


class Commands(click.Group):
    """The group of commands; errors of the library and of the system become exit code 3."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; map errors that a user can cause to one line and an exit code."""
        try:
            return super().invoke(ctx)
        except FileNotFoundError as error:
            raise Unreadable(printable(f"{error.filename or error}: no such file")) from error
        except (HurrayArrowError, OSError) as error:
            raise Unreadable(printable(f"{type(error).__name__}: {error}")) from error
        except MemoryError as error:
            raise Unreadable(printable(f"not enough memory: {error}")) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_version(), message="%(prog)s %(version)s")
def app() -> None:
    """Look at, check, copy, list and try snapshots of paged KV caches.

    URLs are paths or anything fsspec knows: s3://, gs://, abfs://, https://, memory://.

    Exit codes: 0 fine, 1 findings, 2 usage, 3 unreadable, 130 interrupted.
    """


app.add_command(inspect)
app.add_command(validate)
app.add_command(verify)
app.add_command(copy)
app.add_command(archive)
app.add_command(report)
app.add_command(catalog)
app.add_command(find_prompt)
app.add_command(demo)
