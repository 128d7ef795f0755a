"""Open a snapshot: check its end, and choose how its rows are read.

Spec: snapshot format, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec

from hurray_arrow.errors import HurrayArrowError, SnapshotCorruptError, SnapshotIncompleteError
from hurray_arrow.snapshot.checksums import page_problems
from hurray_arrow.snapshot.expectations import check_snapshot
from hurray_arrow.snapshot.files import PathLike, Source
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.remote import open_range
from hurray_arrow.snapshot.row_source import IndexedRows, ShareIndexedRows
from hurray_arrow.snapshot.tail import Tail, read_tail


def open_snapshot(
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    expect: Mapping[str, Any] | None = None,
    recover: bool = False,
    trusted: bool = False,
    mapped: bool = True,
) -> Snapshot:
    """Open a snapshot; nothing but its end is read, except for what ``expect`` asks of the sequences.

    Parameters
    ----------
    path
        The file, or any URL of fsspec: ``s3://…``, ``gs://…``, ``abfs://…``, ``https://…``, ``memory://…``, and chained
        ones such as ``simplecache::s3://…``.
    storage_options
        What the filesystem of a URL is opened with, such as keys.
    filesystem
        A filesystem of fsspec's that is open already; ``path`` is one in it then.
    expect
        What the snapshot has to be, by dotted name: ``{"model.revision": "9f2c", "tenant": None}`` compares each value
        with the metadata's. ``adapter`` and ``tenant`` are those of every sequence, and the tables of each kv_group are
        read for them; ``element_type``, ``page_shape``, ``page_size``, ``num_heads`` and ``head_dim`` are those of each
        tensor of values.
    recover
        Read whole rows of a file that has no end batch: one whose writer died, or that another tool rewrote. What could
        not be verified is listed in :attr:`Snapshot.unverified`. A complete snapshot opens as always.
    trusted
        Skip row hashes and Arrow's full validation when reading: only for a file that this program itself just wrote.
    mapped
        False reads tensors into new memory, for file systems where a mapping fails or faults. Objects in stores always
        are read so.

    Returns
    -------
    Snapshot
        A context manager. Tensors read from it stay valid after it is closed.

    Raises
    ------
    FileNotFoundError, PermissionError
        As the system or the store says.
    SnapshotError
        The store failed three times; later also SnapshotChangedError, when the object is replaced while it is open.
    MissingDependencyError
        The package for the URL is not installed; the message names the extra of this one.
    SnapshotIncompleteError
        The file is empty or has no end batch.
    SnapshotCorruptError
        The end of the file is damaged: ``index_checksum``, ``index_invalid``, ``schema_checksum``, ``footer_invalid``,
        ``metadata_invalid``.
    UnsupportedError
        Another version of the format, or a required feature that this version does not know.
    SnapshotMismatchError
        The snapshot is not what ``expect`` says: a value differs, or nothing in it says.

    Notes
    -----
    Untrusted files are safe to open; what they hold is not thereby true. A mapped file that somebody truncates kills
    the process that reads it (SIGBUS): nobody may write into a file that may be mapped, and this library never does.

    Examples
    --------
    >>> with ha.open_snapshot("cache.arrow", expect={"model.name": "toy"}) as opened:
    ...     keys = opened.read(layer_index=0, kv_role="key")  # a view of the mapped file
    >>> keys.page_pool.shape, keys.page_pool.flags.writeable
    ((5, 4, 2, 3), False)

    Spec: snapshot format, section 4.
    """
    source = open_range(path, storage_options=storage_options, filesystem=filesystem, mapped=mapped)
    return open_source(source, expect=expect, recover=recover, trusted=trusted)


def open_source(
    source: Source, *, expect: Mapping[str, Any] | None = None, recover: bool = False, trusted: bool = False
) -> Snapshot:
    """Open the snapshot that a source holds; as :func:`open_snapshot`. The source is closed where that fails."""
    try:
        try:
            tail = read_tail(source)
        except (SnapshotIncompleteError, SnapshotCorruptError):
            if not recover:
                raise
            snapshot = _recovered(source)
        else:
            snapshot = snapshot_of(source, tail, trusted=trusted)
        check_snapshot(snapshot, expect)
    except BaseException:
        source.close()
        raise
    return snapshot


def snapshot_of(source: Source, tail: Tail, *, trusted: bool = False) -> Snapshot:
    """Return the snapshot whose end was read."""
    kind: type[IndexedRows] = ShareIndexedRows
    if tail.metadata["profile"] == "archive":
        from hurray_arrow.snapshot.archive_source import ArchiveIndexedRows

        kind = ArchiveIndexedRows
    return Snapshot(source.url, tail.metadata, kind(source, tail, trusted=trusted))


def _recovered(source: Source) -> Snapshot:
    from hurray_arrow.snapshot.recovery import RecoveredRows
    from hurray_arrow.snapshot.verification import problems_of

    rows = RecoveredRows(source)
    snapshot = Snapshot(source.url, rows.metadata, rows)
    broken: set[int] = set()
    for entry in rows.entries:
        try:
            tensor, checksums = snapshot.checked_tensor(entry)
            problems = page_problems(tensor, checksums, tensor_index=entry.tensor_index, unverified=rows.unverified)
        except HurrayArrowError as error:
            problems = list(problems_of(error, entry))
        if problems:
            rows.unverified += problems
            broken.add(entry.tensor_index)
    rows.leave_out(broken)
    snapshot.unverified = tuple(rows.unverified)
    return snapshot
