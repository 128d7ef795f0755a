"""The commands, and which exit code an error gives."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
#: As a shell says of a command that SIGPIPE ended: whoever read the output has gone.
NOBODY_READS = 141


class Unreadable(click.ClickException):
    """What was named cannot be read or written."""

    exit_code = 3


class Commands(click.Group):
    """The group of commands; errors of the library and of the system become exit code 3, wrong arguments 2."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments, which also prints help and version."""
        with _ended_from_outside():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; map errors that a user can cause to one line and an exit code."""
        with _ended_from_outside():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (HurrayArrowError, OSError, ImportError) as error:
            raise Unreadable(printable(_said(error))) from error
        except ValueError as error:
            # Of the library's own checks of arguments: no such protocol, a range that ends before it starts.
            raise click.UsageError(printable(str(error)), ctx) from error
        except MemoryError as error:
            raise Unreadable(printable(f"not enough memory: {error}")) from error


@contextmanager
def _ended_from_outside() -> Iterator[None]:
    """Exit quietly where the user interrupts, or nobody reads on: click would say 1, which is for findings."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(NOBODY_READS) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def _said(error: Exception) -> str:
    """Return what an error says, with its notes, and with the names that things have on the command line."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        missing = isinstance(error, FileNotFoundError) and error.strerror == os.strerror(errno.ENOENT)
        text = f"{error.filename}: {'no such file' if missing else error.strerror}"
    text = text.replace("overwrite=True", "--overwrite")
    return "\n".join([text, *getattr(error, "__notes__", ())])


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
