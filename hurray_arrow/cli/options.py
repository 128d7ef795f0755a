"""Options that several commands have, and how their text becomes values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def key_values(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Return ``KEY=VALUE`` texts as a dictionary; a value that is JSON is taken as such, anything else as text."""
    found: dict[str, Any] = {}
    for key, value in key_texts(context, parameter, given).items():
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def key_texts(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a dictionary of texts."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            # The value may be a secret, so only what stands before it is shown.
            raise click.BadParameter(f"{key!r}: expected KEY=VALUE", context, parameter)
        found[key] = value
    return found


def storage_option(command: Command) -> Command:
    """Add ``--storage-option``."""
    decorate = click.option(
        "--storage-option",
        "storage_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=key_values,
        help="For the filesystem of a URL, such as anon=true; VALUE may be JSON. Others see command lines: keep keys "
        "in the environment or where the backend looks for them.",
    )
    return decorate(command)


def as_json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON document with stable keys.")(command)


def options_of(url: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the storage options that a path or URL takes: a local path takes none."""
    return given if given and ("://" in url or "::" in url) else None


def integers(context: click.Context, parameter: click.Parameter, given: str | None) -> list[int] | None:
    """Return the numbers and half-open ranges of a text such as ``3,7:10``, in the order given."""
    if given is None:
        return None
    found: list[int] = []
    for part in given.split(","):
        start, colon, stop = part.strip().partition(":")
        if not all(map(_is_number, [start, stop] if colon else [start])):
            raise click.BadParameter(f"{part!r}: expected a number or START:STOP", context, parameter)
        numbers = range(int(start), int(stop)) if colon else [int(start)]
        if not numbers:
            raise click.BadParameter(f"{part!r}: no number is in it, expected START < STOP", context, parameter)
        found += numbers
    return found


def positions(context: click.Context, parameter: click.Parameter, given: str | None) -> slice | None:
    """Return a half-open range of positions such as ``0:512`` or ``16:``."""
    if given is None:
        return None
    start, colon, stop = given.partition(":")
    if not colon or not all(not bound or _is_number(bound) for bound in (start, stop)):
        raise click.BadParameter(f"{given!r}: expected START:STOP", context, parameter)
    return slice(int(start or 0), int(stop) if stop else None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
