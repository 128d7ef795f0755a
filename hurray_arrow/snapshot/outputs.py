"""Where a snapshot is written to: a local file, or an object in a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import fsspec

from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.stores import locate

if TYPE_CHECKING:
    from hurray_arrow.snapshot.upload import RemoteFile


def open_output(
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    overwrite: bool = False,
    mode: int = 0o600,
    expected_bytes: int = 0,
) -> AtomicFile | RemoteFile:
    """Open a file or object for writing; it gets its name when it is published.

    Parameters
    ----------
    path, storage_options, filesystem
        As :func:`~hurray_arrow.snapshot.stores.locate`.
    overwrite
        Whether an existing one may be replaced.
    mode
        Permission bits of a local file.
    expected_bytes
        About how much will be written, 0 if nobody knows: parts are sized by it.

    Raises
    ------
    MissingDependencyError, ValueError
        As :func:`~hurray_arrow.snapshot.stores.locate`.
    FileExistsError
        There is one, and ``overwrite`` is False.
    PermissionError, SnapshotError
        As the store says.
    UnsupportedError
        The store can only be read.
    """
    place = locate(path, storage_options=storage_options, filesystem=filesystem)
    if isinstance(place, str):
        return AtomicFile(place, overwrite=overwrite, mode=mode)
    # Whoever writes to a disk does not wait for the modules of the stores.
    from hurray_arrow.snapshot.upload import RemoteFile

    return RemoteFile(place, overwrite=overwrite, expected_bytes=expected_bytes)
