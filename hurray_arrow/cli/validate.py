"""``hurray-arrow validate``: every checksum and every rule, and all that is broken."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from hurray_arrow.cli.output import console, count, print_json, printable, progress
from hurray_arrow.errors import Problem, SnapshotCorruptError
from hurray_arrow.snapshot import open_snapshot

FINDINGS = 1


@click.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document with stable keys.")
def validate(url: str, *, as_json: bool) -> None:
    """Check every checksum and rule of a snapshot.

    Reads the whole snapshot at URL. Exit code 1 and a list of what is broken when there are findings, 3 when the file
    is no complete snapshot.
    """
    num_tensors, problems, unverified = findings(url)
    if as_json:
        lists = {"problems": problems, "unverified": unverified}
        documents = {name: [as_document(problem) for problem in found] for name, found in lists.items()}
        print_json({"url": url, "num_tensors": num_tensors, **documents})
    else:
        out = console()
        for problem in [*problems, *unverified]:
            out.print(printable(f"{problem.code}: {problem}"))
        verdict = count(len(problems), "problem") if problems else "no problems"
        unchecked = f", {count(len(unverified), 'part')} not verifiable" if unverified else ""
        out.print(printable(f"{url}: {count(num_tensors, 'tensor')}, {verdict}{unchecked}"))
    if problems:
        sys.exit(FINDINGS)


def findings(url: str) -> tuple[int, list[Problem], list[Problem]]:
    """Verify a snapshot.

    Parameters
    ----------
    url
        The snapshot's path or URL.

    Returns
    -------
    tuple[int, list[Problem], list[Problem]]
        The number of tensors, everything that is wrong, and what could not be checked. A snapshot too broken to be
        opened has 0 tensors and the problems that opening found.
    """
    num_tensors = 0
    try:
        with open_snapshot(url) as snapshot, progress("verifying") as callback:
            num_tensors = len(snapshot.entries)
            report = snapshot.verify(progress=callback)
    except SnapshotCorruptError as error:
        return num_tensors, list(error.problems), []
    return num_tensors, [], list(report.unverified)


def as_document(problem: Problem) -> dict[str, Any]:
    """Return a problem with the JSON keys ``code``, ``where``, ``message``, ``spec``, ``offset_bytes``, ``field``."""
    return {**dataclasses.asdict(problem), "code": str(problem.code)}
