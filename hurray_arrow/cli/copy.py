"""``hurray-arrow copy`` and ``archive``: a snapshot to another place, whole or in part, as it is or changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import reduce
from typing import Any

import click

from hurray_arrow.cli.containers import SUFFIX, convert, is_container
from hurray_arrow.cli.options import (
    Command,
    as_json_option,
    integers,
    key_values,
    options_of,
    positions,
    storage_option,
)
from hurray_arrow.cli.output import console, count, print_json, printable, progress, size
from hurray_arrow.errors import UnknownSequenceLengthError
from hurray_arrow.ops.select import Which
from hurray_arrow.snapshot import CopyReport, copy_snapshot, open_snapshot
from hurray_arrow.snapshot.sets import is_glob
from hurray_arrow.snapshot.stores import shown

_CHOICES: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--layers", metavar="NUMBERS", callback=integers, help="Layers to copy, such as 0:4,7; ranges are half-open."
    ),
    click.option(
        "--sequences",
        metavar="NUMBERS",
        callback=integers,
        help="Sequences by their place, such as 0,2:5; in this order.",
    ),
    click.option(
        "--sequence-id", "sequence_ids", multiple=True, metavar="ID", help="A sequence by its id; repeatable."
    ),
    click.option(
        "--tokens",
        metavar="RANGE",
        callback=positions,
        help="Positions of each sequence, such as 0:512 or 16:; half-open.",
    ),
    click.option("--repage", type=click.IntRange(min=1), metavar="N", help="Tokens of a page in the copy."),
    click.option("--merge-heads", is_flag=True, help="SRC is a glob of a set's members: copy them into one snapshot."),
    click.option("--overwrite", is_flag=True, help="Replace DST when it exists; it may be SRC."),
    click.option(
        "--destination-option",
        "destination_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=key_values,
        help="As --storage-option, for DST only, which then takes no other.",
    ),
    storage_option,
    as_json_option,
)
#: Options that change what is copied, which a container's conversion does not.
_CHANGES = ("tokens", "repage", "merge_heads", "sanitize", "encoding")
_ENCODING = click.option(
    "--encoding",
    type=click.Choice(["byte_planes", "plain"]),
    help="How an archive stores pages: small, or so that other tools see values.",
)


def _choices(command: Command) -> Command:
    """Add the options that copy and archive have in common, the first on top of the help."""
    return reduce(lambda decorated, option: option(decorated), reversed(_CHOICES), command)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--profile", type=click.Choice(["share", "archive"]), help="share: for mapping; archive: small.")
@_ENCODING
@click.option("--sanitize", is_flag=True, help="Leave out unreferenced pages, zero the slots behind each sequence.")
@click.option(
    "--skip-other-layouts", is_flag=True, help="SRC is a .hrry container: leave other layouts out, and list them."
)
@_choices
def copy(source: str, destination: str, **options: Any) -> None:
    """Copy a snapshot from any URL to any URL.

    Without options nothing but id, time and producer changes. Every page is compared with its checksum on the way, and
    DST appears when it is complete. A name that ends in .hrry is a container of pyhurray's, on either side; at a URL it
    goes through a temporary file.
    """
    run(source, destination, **options)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@_ENCODING
@click.option(
    "--sanitize/--no-sanitize",
    default=True,
    help="Leave out unreferenced pages and zero the slots behind each sequence, where others' tokens lie (default).",
)
@_choices
def archive(source: str, destination: str, **options: Any) -> None:
    """Copy a snapshot into a small one for object stores.

    As `copy --profile archive --sanitize`: compressed, without the pages that no sequence uses.
    """
    run(source, destination, profile="archive", **options)


def run(
    source: str,
    destination: str,
    *,
    layers: list[int] | None,
    sequences: list[int] | None,
    sequence_ids: tuple[str, ...],
    storage_options: dict[str, Any],
    destination_options: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Copy, and print what was copied."""
    skip_other_layouts = options.pop("skip_other_layouts", False)
    source_options = options_of(source, storage_options)
    target_options = options_of(destination, destination_options or storage_options)
    _check_options_are_taken(
        (storage_options, "--storage-option", source_options or target_options),
        (destination_options, "--destination-option", target_options),
    )
    if is_container(source) or is_container(destination):
        wanted = (layers, sequences, sequence_ids, *(options[name] for name in _CHANGES if name in options))
        if any(value is not None and value is not False and value != () for value in wanted):
            raise click.UsageError(f"a {SUFFIX} container is converted as it is: copy the snapshot with the others")
        convert(
            source,
            destination,
            overwrite=options["overwrite"],
            skip_other_layouts=skip_other_layouts,
            source_options=source_options,
            target_options=target_options,
            profile=options.get("profile"),
            as_json=as_json,
        )
        return
    if is_glob(source) and not options["merge_heads"]:
        raise click.UsageError("a glob names several snapshots: --merge-heads makes one of a set")
    chosen: list[Which] | None = None
    if sequences is not None or sequence_ids:
        chosen = [*(sequences or []), *sequence_ids]
    places = {"source_options": source_options, "destination_options": target_options}
    report = _copied(source, destination, layer_index=layers, sequences=chosen, **places, **options)
    with open_snapshot(destination, storage_options=target_options) as copied:
        stored_bytes = sum(entry.stored_bytes for entry in copied.entries)
    _print(source, destination, report, stored_bytes=stored_bytes, as_json=as_json)


def _copied(source: str, destination: str, **options: Any) -> CopyReport:
    """Copy under a progress bar; what the choice of sequences or tokens was wrong about is a wrong use."""
    try:
        with progress("copying") as callback:
            return copy_snapshot(source, destination, progress=callback, **options)
    except UnknownSequenceLengthError as error:
        hint = " (copy without sanitizing keeps all slots as they are)" if options["sanitize"] else ""
        raise click.UsageError(printable(f"{error}{hint}")) from error
    except LookupError as error:
        raise click.UsageError(printable(str(error.args[0] if error.args else error))) from error


def _check_options_are_taken(*options: tuple[dict[str, Any], str, object]) -> None:
    for given, name, taken in options:
        if given and not taken:
            raise click.UsageError(f"{name}: a local path takes none")


def _print(source: str, destination: str, report: CopyReport, *, stored_bytes: int, as_json: bool) -> None:
    if as_json:
        found = asdict(report)
        places = {"source": shown(source), "destination": shown(destination)}
        print_json({**places, "stored_bytes": stored_bytes, **found})
        return
    out = console()
    for problem in report.unverified:
        out.print(printable(f"{problem.code}: {problem}"))
    pages = f"{count(report.num_pages, 'page')}, {size(report.page_bytes)} of pages"
    out.print(printable(f"{shown(destination)}: {count(report.num_tensors, 'tensor')}, {pages}"))
    out.print(f"{size(stored_bytes)} stored, profile {report.profile}")
