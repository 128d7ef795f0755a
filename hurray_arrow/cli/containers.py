"""``hurray-arrow copy`` to and from HRRYFILE containers (``.hrry``), through pyhurray.

pyhurray reads and writes local files, whole. A container in a store goes through a temporary one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import click

from hurray_arrow.arrow import SchemaPlan
from hurray_arrow.cli.output import console, count, print_json, printable
from hurray_arrow.engines.hurray_files import Container, read_container, write_container
from hurray_arrow.snapshot import SnapshotWriter, open_snapshot
from hurray_arrow.snapshot.copy_plan import OF_THE_FILE
from hurray_arrow.snapshot.outputs import open_output
from hurray_arrow.snapshot.remote import PIECE_BYTES, open_place
from hurray_arrow.snapshot.stores import Place, locate, shown
from hurray_arrow.snapshot.writer import profile_encoding

SUFFIX = ".hrry"


def is_container(url: str) -> bool:
    """Say whether a name is that of a container; the query of a web address is none of it."""
    return (urlsplit(url).path if url.startswith(("http://", "https://")) else url).endswith(SUFFIX)


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
        with _local_source(source, source_options) as path:
            container = read_container(path, skip_other_layouts=skip_other_layouts)
        skipped, num_tensors = container.skipped, len(container.tensors)
        _write_snapshot(
            container, destination, overwrite=overwrite, target_options=target_options, profile=profile or "share"
        )
    else:
        with open_snapshot(source, storage_options=source_options) as snapshot:
            tensors = list(snapshot.iter_tensors(verify=True))
            num_tensors = len(tensors)
            page_bytes = sum(tensor.nbytes for tensor in tensors)
            with _local_target(destination, target_options, overwrite=overwrite, expected_bytes=page_bytes) as path:
                write_container(path, tensors, metadata=snapshot.metadata, overwrite=overwrite)
    places = {"source": shown(source), "destination": shown(destination)}
    if as_json:
        found = {**places, "num_tensors": num_tensors, "skipped": skipped}
        print_json(found)
        return
    out = console()
    for name, layout in skipped.items():
        out.print(printable(f"skipped: {name}, layout {layout}"))
    out.print(printable(f"{shown(destination)}: {count(num_tensors, 'tensor')}"))


@contextmanager
def _local_source(url: str, options: dict[str, Any] | None) -> Iterator[str]:
    """Give the path of a container, or of a temporary copy of one that lies in a store."""
    place = locate(url, storage_options=options)
    if isinstance(place, str):
        yield place
        return
    with _temporary(place) as path:
        source = open_place(place, mapped=False)
        try:
            with path.open("xb") as copy:
                for start in range(0, source.size, PIECE_BYTES):
                    copy.write(source.read(start, min(PIECE_BYTES, source.size - start)))
        finally:
            source.close()
        yield str(path)


@contextmanager
def _local_target(url: str, options: dict[str, Any] | None, *, overwrite: bool, expected_bytes: int) -> Iterator[str]:
    """Give the path that a container is to be written to; of one in a store a temporary one, sent when it is whole."""
    place = locate(url, storage_options=options)
    if isinstance(place, str):
        yield place
        return
    # An object that is there is refused before anything is written.
    output = open_output(url, storage_options=options, overwrite=overwrite, expected_bytes=expected_bytes)
    try:
        with _temporary(place) as path:
            yield str(path)
            with path.open("rb") as written:
                while piece := written.read(PIECE_BYTES):
                    output.write(piece)
            output.publish()
    except BaseException:
        output.discard()
        raise


@contextmanager
def _temporary(place: Place) -> Iterator[Path]:
    """Give the path of a file that is not there yet, in a folder that goes; errors about it say what it stands for."""
    with TemporaryDirectory(prefix="hurray-arrow-") as folder:
        path = Path(folder) / f"container{SUFFIX}"
        try:
            yield path
        except Exception as error:
            if str(path) in str(error):
                error.add_note(f"{path} was a temporary copy of {place.url}")
            raise


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
