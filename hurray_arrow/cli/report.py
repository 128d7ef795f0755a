"""``hurray-arrow report``: pictures of a snapshot as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hurray_arrow.cli.options import as_json_option, options_of, storage_option
from hurray_arrow.cli.output import console, print_json, printable, size
from hurray_arrow.snapshot import open_snapshot
from hurray_arrow.snapshot.sets import is_glob
from hurray_arrow.snapshot.stores import shown

MIB = 1 << 20


@click.command()
@click.argument("url")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML file to write.",
)
@click.option(
    "--sample",
    "sample_mib",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    metavar="MIB",
    help="MiB of pages to read for values and sizes, of all tensors together; of each at least some.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE when it exists.")
@storage_option
@as_json_option
def report(
    url: str, *, output: Path, sample_mib: int, overwrite: bool, storage_options: dict[str, Any], as_json: bool
) -> None:
    """Draw a snapshot: one HTML file that needs nothing else.

    Page map, sharing, fill, ranges and norms of keys and values, compressed sizes, and the numbers behind each picture.
    Values come from a sample of the pages, the same ones every time; the report says how many. Tenants, adapters, token
    ids and the free field `user` are not in it; sequence ids are.
    """
    if is_glob(url):
        raise click.UsageError("a report is about one snapshot: name one member of the set")
    from hurray_arrow.report import write_report

    with open_snapshot(url, storage_options=options_of(url, storage_options)) as snapshot:
        written = write_report(snapshot, output, sample_bytes=sample_mib * MIB, overwrite=overwrite)
    if as_json:
        print_json(
            {"url": shown(url), "output": str(output), "output_bytes": written, "sample_bytes": sample_mib * MIB}
        )
    else:
        console().print(printable(f"{output}: {size(written)}"))
