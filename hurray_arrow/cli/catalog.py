"""``hurray-arrow catalog`` and ``find-prompt``: one table over many snapshots, and which of them hold a prompt."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from hurray_arrow.catalog import CatalogReport, build_catalog, find_prefix, read_key
from hurray_arrow.catalog.listing import PATTERN
from hurray_arrow.cli.options import as_json_option, key_texts, key_values, options_of, storage_option
from hurray_arrow.cli.output import console, count, print_json, printable, progress, size
from hurray_arrow.errors import CatalogError, HurrayArrowError, InvariantError, ProblemCode
from hurray_arrow.sequences import MediaSpan
from hurray_arrow.snapshot.stores import shown

FINDINGS = 1
#: Others see command lines, so a key comes from a file or from the environment.
KEY_VARIABLE = "HURRAY_ARROW_CATALOG_KEY"
#: Unreadable files that are listed; the table has them all.
_SHOWN = 20

_key_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar=f"{KEY_VARIABLE}_FILE",
    show_envvar=True,
    help=f"A file with the key of the digests, 16 to 64 bytes; without it the variable {KEY_VARIABLE} is the key.",
)


@click.command()
@click.argument("url")
@click.option("-o", "--output", default="catalog.parquet", show_default=True, metavar="URL", help="The catalogue.")
@click.option(
    "--rows", type=click.Choice(["snapshots", "tensors"]), default="snapshots", show_default=True, help="What a row is."
)
@_key_option
@click.option(
    "--step-tokens", type=click.IntRange(min=1), help="Digests are of every so many tokens (16; or as they are)."
)
@click.option("--pattern", default=PATTERN, show_default=True, help="Names of files that count under a folder.")
@click.option(
    "--on-error",
    type=click.Choice(["list", "raise"]),
    default="list",
    show_default=True,
    help="Files that are no snapshots get a row, or end the command.",
)
@click.option("--rebuild", is_flag=True, help="Read everything anew, whatever the catalogue was built from.")
@click.option(
    "--destination-option",
    "destination_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=key_values,
    help="As --storage-option, for the catalogue only, which then takes no other.",
)
@storage_option
@as_json_option
def catalog(
    url: str,
    *,
    output: str,
    key_file: Path | None,
    storage_options: dict[str, Any],
    destination_options: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Write one Parquet table over the snapshots under URL.

    URL is a folder or prefix with all below it, a glob, or one file. No page is read. Where the catalogue exists, only
    what is new or changed since is read. With a key, find-prompt can say which snapshots hold a prompt.

    Exit code 1 when some files could not be read.
    """
    with _usage_errors(), progress("reading", in_bytes=False) as callback:
        report = build_catalog(
            url,
            destination=output,
            key=_key(key_file),
            storage_options=options_of(url, storage_options),
            destination_options=options_of(output, destination_options or storage_options),
            progress=callback,
            **options,
        )
    _print(url, output, report, as_json=as_json)
    if report.failures:
        sys.exit(FINDINGS)


def _print(url: str, output: str, report: CatalogReport, *, as_json: bool) -> None:
    if as_json:
        failures = [failure._asdict() for failure in report.failures]
        print_json(
            {"url": shown(url), "destination": shown(output), **dataclasses.asdict(report), "failures": failures}
        )
        return
    out = console()
    for failure in report.failures[:_SHOWN]:
        out.print(printable(f"{failure.error_code or failure.error}: {failure.url}"))
    if len(report.failures) > _SHOWN:
        out.print(f"… and {len(report.failures) - _SHOWN:,} more, which have an error in the table")
    counts = f"{report.num_read:,} read, {report.num_kept:,} as before, {report.num_dropped:,} dropped"
    out.print(
        printable(f"{shown(output)}: {count(report.num_files, 'file')}; {counts}, {len(report.failures):,} unreadable")
    )
    out.print(f"{count(report.requests, 'range')}, {size(report.fetched_bytes)} read")


@click.command("find-prompt")
@click.argument("catalogue")
@click.argument("question", type=click.File(encoding="utf-8"))
@_key_option
@click.option(
    "--expect",
    multiple=True,
    metavar="FIELD=VALUE",
    callback=key_texts,
    help="What the snapshots' metadata has to say, such as model.name=…; repeatable.",
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many snapshots.")
@storage_option
@as_json_option
def find_prompt(
    catalogue: str,
    question: TextIO,
    *,
    key_file: Path | None,
    expect: dict[str, Any],
    limit: int,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Say which snapshots of a catalogue hold a prompt.

    QUESTION is a file, or - for standard input, with a JSON list of token ids, or an object with token_ids and, where
    they matter, adapter, tenant and media (a list of objects with first_token, num_tokens and digest). The longest
    matches come first. No snapshot is opened.
    """
    asked = _question(question)
    key = _key(key_file)
    if key is None:
        raise click.UsageError(f"no key: give --key-file, or set {KEY_VARIABLE}")
    with _usage_errors():
        found = find_prefix(
            catalogue,
            **asked,
            key=key,
            expect=expect,
            limit=limit,
            storage_options=options_of(catalogue, storage_options),
        )
    if as_json:
        num_tokens = len(asked["token_ids"])
        print_json({"catalogue": catalogue, "num_tokens": num_tokens, "matches": [match._asdict() for match in found]})
        return
    out = console()
    for match in found:
        out.print(printable(f"{count(match.num_tokens, 'token')}, sequence {match.sequence}: {match.url}"))
    if not found:
        out.print("no snapshot holds any of it")


def _question(file: TextIO) -> dict[str, Any]:
    """Read a question; what is wrong with it is said without repeating it."""
    try:
        asked = json.load(file)
        asked = asked if isinstance(asked, dict) else {"token_ids": asked}
        token_ids = asked.pop("token_ids", None)
        if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
            raise ValueError("token_ids: expected a list of integers")
        media = [MediaSpan(**span) for span in asked.pop("media", None) or ()]
        owner = {name: asked.pop(name, None) for name in ("adapter", "tenant")}
        if asked or not all(value is None or isinstance(value, str) for value in owner.values()):
            raise ValueError("expected token_ids, adapter, tenant and media, and nothing else")
    except (ValueError, TypeError, RecursionError, InvariantError) as error:
        raise click.BadParameter(f"{type(error).__name__}: {error}", param_hint="QUESTION") from error
    return {"token_ids": token_ids, "media": media, **owner}


def _key(file: Path | None) -> bytes | None:
    if file is None:
        text = os.environ.get(KEY_VARIABLE)
        return None if text is None else os.fsencode(text)
    with _usage_errors():
        return read_key(file)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Say what the caller can mend by calling otherwise; a catalogue that is none is not among it."""
    try:
        yield
    except ValueError as error:
        is_ours = isinstance(error, HurrayArrowError)
        if is_ours and getattr(error, "codes", None) == [ProblemCode.CATALOG_INVALID]:
            raise
        if is_ours and not isinstance(error, CatalogError | InvariantError):
            raise
        raise click.UsageError(printable(str(error))) from error
