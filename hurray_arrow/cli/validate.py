"""``hurray-arrow validate`` and ``verify``: every checksum and every rule, and all that is broken."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from hurray_arrow.cli.options import as_json_option, options_of, storage_option
from hurray_arrow.cli.output import console, count, print_json, printable, progress, size
from hurray_arrow.errors import Problem, SnapshotCorruptError
from hurray_arrow.snapshot import Snapshot, open_snapshot, open_snapshot_set
from hurray_arrow.snapshot.sets import is_glob
from hurray_arrow.snapshot.stores import shown

FINDINGS = 1


@dataclasses.dataclass(slots=True)
class Findings:
    """What checking a snapshot or a set found.

    Parameters
    ----------
    num_tensors, num_pages, page_bytes
        What there is; pages only as far as they are right. A snapshot too broken to be opened has none.
    problems
        Everything that is wrong.
    unverified
        What could not be checked.
    """

    num_tensors: int = 0
    num_pages: int = 0
    page_bytes: int = 0
    problems: list[Problem] = dataclasses.field(default_factory=list)
    unverified: list[Problem] = dataclasses.field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the findings with the JSON keys of this class."""
        documents = {name: [as_document(each) for each in getattr(self, name)] for name in ("problems", "unverified")}
        return {**dataclasses.asdict(self), **documents}


@click.command()
@click.argument("url")
@storage_option
@as_json_option
def validate(url: str, *, storage_options: dict[str, Any], as_json: bool) -> None:
    """Check every checksum and rule of a snapshot.

    Reads the whole snapshot at URL, or of every member of the set where URL is a glob. Exit code 1 and a list of what
    is broken when there are findings, 3 when there is no complete snapshot.
    """
    found = findings(url, storage_options)
    unchecked = f", {count(len(found.unverified), 'part')} not verifiable" if found.unverified else ""
    verdict = count(len(found.problems), "problem") if found.problems else "no problems"
    report(url, found, f"{count(found.num_tensors, 'tensor')}, {verdict}{unchecked}", as_json=as_json)


@click.command()
@click.argument("url")
@storage_option
@as_json_option
def verify(url: str, *, storage_options: dict[str, Any], as_json: bool) -> None:
    """Prove that a snapshot is what was written.

    Reads every byte at URL, or of every member of the set where URL is a glob, and compares all hashes and page
    checksums. Exit code 1 when something is damaged, 3 when it is no complete snapshot. Checksums find accidents, not
    forgery.
    """
    found = findings(url, storage_options)
    if found.problems:
        verdict = f"DAMAGED, {count(len(found.problems), 'problem')}"
    elif found.unverified:
        verdict = f"nothing damaged, {count(len(found.unverified), 'part')} without checksums"
    else:
        verdict = "intact"
    pages = f"{count(found.num_pages, 'page')} ({size(found.page_bytes)})"
    text = f"{verdict}; {count(found.num_tensors, 'tensor')}, {pages} are right"
    report(url, found, text, as_json=as_json)


def report(url: str, found: Findings, verdict: str, *, as_json: bool) -> None:
    """Print the findings, and end the command with the exit code for them."""
    if as_json:
        print_json({"url": shown(url), **found.as_json()})
    else:
        out = console()
        for problem in [*found.problems, *found.unverified]:
            out.print(printable(f"{problem.code}: {problem}"))
        out.print(printable(f"{shown(url)}: {verdict}"))
    if found.problems:
        sys.exit(FINDINGS)


def findings(url: str, storage_options: dict[str, Any]) -> Findings:
    """Verify a snapshot, or every member of a set where ``url`` is a glob.

    Parameters
    ----------
    url
        The snapshot's path or URL.
    storage_options
        For a URL.
    """
    found = Findings()
    options = options_of(url, storage_options)
    try:
        if is_glob(url):
            with open_snapshot_set(url, storage_options=options) as snapshots:
                for member, snapshot in enumerate(snapshots.members):
                    _verify(snapshot, found, prefix=f"member {member}.")
        else:
            with open_snapshot(url, storage_options=options) as snapshot:
                _verify(snapshot, found)
    except SnapshotCorruptError as error:
        found.problems += error.problems
    return found


def _verify(snapshot: Snapshot, found: Findings, *, prefix: str = "") -> None:
    found.num_tensors += len(snapshot.entries)
    try:
        with progress(f"verifying {prefix.rstrip('.')}".rstrip()) as callback:
            checked = snapshot.verify(progress=callback)
    except SnapshotCorruptError as error:
        found.problems += _placed(error.problems, prefix)
        return
    found.num_pages += checked.num_pages
    found.page_bytes += checked.page_bytes
    found.unverified += _placed(checked.unverified, prefix)


def _placed(problems: tuple[Problem, ...], prefix: str) -> list[Problem]:
    return [dataclasses.replace(problem, where=f"{prefix}{problem.where}") for problem in problems]


def as_document(problem: Problem) -> dict[str, Any]:
    """Return a problem with the JSON keys ``code``, ``where``, ``message``, ``spec``, ``offset_bytes``, ``field``."""
    return {**dataclasses.asdict(problem), "code": str(problem.code)}
