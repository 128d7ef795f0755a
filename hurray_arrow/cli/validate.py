"""``hurray-arrow validate``: every checksum and every rule, and all that is broken."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from hurray_arrow.cli.output import console, count, print_json, printable, progress
from hurray_arrow.errors import InvalidDescriptorError, Problem, SnapshotCorruptError
from hurray_arrow.snapshot import Entry, Snapshot, open_snapshot

FINDINGS = 1


@click.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document with stable keys.")
def validate(url: str, *, as_json: bool) -> None:
    """Check the whole snapshot at URL: its checksums, its structure, and every tensor against the specification.

    Exit code 1 and a list of what is broken when there are findings, 3 when the file is no complete snapshot.
    """
    num_tensors, problems = find_problems(url)
    if as_json:
        print_json({"url": url, "num_tensors": num_tensors, "problems": [as_document(problem) for problem in problems]})
    else:
        out = console()
        for problem in problems:
            out.print(printable(f"{problem.code}: {problem}"), soft_wrap=True)
        verdict = count(len(problems), "problem") if problems else "no problems"
        out.print(printable(f"{url}: {count(num_tensors, 'tensor')}, {verdict}"), soft_wrap=True)
    if problems:
        sys.exit(FINDINGS)


def find_problems(url: str) -> tuple[int, list[Problem]]:
    """Return the number of tensors of a snapshot and everything that is wrong with it.

    Parameters
    ----------
    url
        The snapshot's path or URL.

    Returns
    -------
    tuple[int, list[Problem]]
        A snapshot too broken to be opened has 0 tensors and the problems that opening found.
    """
    problems: list[Problem] = []
    num_tensors = 0
    try:
        with open_snapshot(url) as snapshot:
            num_tensors = len(snapshot.entries)
            with progress("verifying") as callback:
                snapshot.verify(progress=callback)
            for entry in snapshot.entries:
                problems += tensor_problems(snapshot, entry)
    except SnapshotCorruptError as error:
        problems += error.problems
    return num_tensors, problems


def tensor_problems(snapshot: Snapshot, entry: Entry) -> list[Problem]:
    """Return the rules of the specification that one tensor breaks; each problem's place names the tensor."""
    try:
        problems = snapshot.read_entry(entry).validate()
    except InvalidDescriptorError as error:
        problems = list(error.problems)
    place = f"tensor {entry.tensor_index}"
    return [dataclasses.replace(problem, where=f"{place}: {problem.where}") for problem in problems]


def as_document(problem: Problem) -> dict[str, Any]:
    """Return a problem with the JSON keys ``code``, ``where``, ``message``, ``spec``, ``offset_bytes``, ``field``."""
    return {**dataclasses.asdict(problem), "code": str(problem.code)}
