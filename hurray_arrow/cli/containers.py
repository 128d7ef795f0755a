"""``hurray-arrow copy`` to and from HRRYFILE containers (``.hrry``), through pyhurray."""

from __future__ import annotations

from typing import Any

import click

from hurray_arrow.arrow import SchemaPlan
from hurray_arrow.cli.output import console, count, print_json, printable
from hurray_arrow.engines.hurray_files import Container, read_container, write_container
from hurray_arrow.snapshot import SnapshotWriter, open_snapshot
from hurray_arrow.snapshot.copy_plan import OF_THE_FILE
from hurray_arrow.snapshot.writer import profile_encoding

SUFFIX = ".hrry"


def is_container(url: str) -> bool:
    """Say whether a name is that of a container."""
    return url.endswith(SUFFIX)


def convert(
    source: str,
    destination: str,
    *,
    overwrite: bool,
    skip_other_layouts: bool,
    source_options: dict[str, Any] | None,
    target_options: dict[str, Any] | None,
    profile: str | None,
    as_json: bool,
) -> None:
    """Convert a container into a snapshot or the other way round, tensors and facts as they are, and print what came.

    Raises
    ------
    click.UsageError
        Both are containers.
    MissingDependencyError
        pyhurray is not installed.
    UnsupportedError
        The container holds tensors of other layouts, which the message names, and they are not to be skipped.
    """
    if is_container(source) and is_container(destination):
        raise click.UsageError("SRC and DST are both containers: one has to be a snapshot")
    skipped: dict[str, str] = {}
    if is_container(source):
        container = read_container(source, skip_other_layouts=skip_other_layouts)
        skipped, num_tensors = container.skipped, len(container.tensors)
        _write_snapshot(
            container, destination, overwrite=overwrite, target_options=target_options, profile=profile or "share"
        )
    else:
        with open_snapshot(source, storage_options=source_options) as snapshot:
            tensors = list(snapshot.iter_tensors(verify=True))
            num_tensors = len(tensors)
            write_container(destination, tensors, metadata=snapshot.metadata, overwrite=overwrite)
    if as_json:
        found = {"source": source, "destination": destination, "num_tensors": num_tensors, "skipped": skipped}
        print_json(found)
        return
    out = console()
    for name, layout in skipped.items():
        out.print(printable(f"skipped: {name}, layout {layout}"))
    out.print(printable(f"{destination}: {count(num_tensors, 'tensor')}"))


def _write_snapshot(
    container: Container, destination: str, *, overwrite: bool, target_options: dict[str, Any] | None, profile: str
) -> None:
    tensors = list(container.tensors.values())
    with SnapshotWriter(
        destination,
        plan=SchemaPlan.of(tensors, encoding=profile_encoding(profile, None)),
        profile=profile,
        metadata={key: value for key, value in container.metadata.items() if key not in OF_THE_FILE},
        overwrite=overwrite,
        storage_options=target_options,
        keep_unknown=True,
        partial=bool(container.metadata.get("partial")),
    ) as writer:
        for tensor in tensors:
            writer.borrow(tensor)
