"""A view as a Parquet file, which needs neither this package nor Arrow.

Spec: house rules, "Threads, processes, files".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa

from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.outputs import open_output
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import open_view
from hurray_arrow.views.view import plain

if TYPE_CHECKING:
    from hurray_arrow.snapshot.upload import RemoteFile

#: Rows that are collected before they are written, so that row groups are worth their headers.
_GROUP_BYTES = 32 << 20


def export(
    snapshot: Snapshot,
    view: str,
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    overwrite: bool = False,
    mode: int = 0o600,
    **options: Any,
) -> int:
    """Write a view to a Parquet file, whole or not at all.

    Floats are split by byte before zstd compresses them, which keeps their repetitive bytes together; all else is
    encoded by dictionary where that helps. Values of pages and tokens become lists of numbers.

    Parameters
    ----------
    snapshot, view, options
        As of :func:`open_view`.
    path
        The file's name or URL; it appears when the file is complete.
    storage_options, filesystem
        As in :func:`~hurray_arrow.write_snapshot`.
    overwrite
        Replace an existing file.
    mode
        Permission bits: a file with values or token ids is as secret as the snapshot.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    FileExistsError
        The file exists, and ``overwrite`` is False.
    PermissionError, SnapshotError, MissingDependencyError
        As :func:`~hurray_arrow.write_snapshot`.
    ValueError, KeyError, IndexError, UnsupportedError
        As :func:`open_view`.
    """
    from pyarrow import parquet

    opened = open_view(snapshot, view, **options)
    schema = plain(pa.RecordBatch.from_pylist([], schema=opened.schema)).schema
    floats = list(_paths(schema, floating=True))
    file = open_output(path, storage_options=storage_options, filesystem=filesystem, overwrite=overwrite, mode=mode)
    try:
        sink = pa.PythonFile(_Writing(file), mode="w")
        others = list(_paths(schema, floating=False))
        rows = 0
        with parquet.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=others or False,
            use_byte_stream_split=floats or False,
            write_statistics=others or False,
        ) as writer:
            for table in _tables(opened.batches(), schema):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
    except BaseException:
        file.discard()
        raise
    file.publish()
    return rows


class _Writing:
    """What a Parquet writer asks of a file: it only ever appends."""

    def __init__(self, file: AtomicFile | RemoteFile) -> None:
        self._file = file
        self.closed = False

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.position

    def flush(self) -> None:
        """Leave it to publish()."""

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True


def _tables(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(plain(batch))
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, size = [], 0
    yield pa.Table.from_batches(held, schema)


def _paths(schema: pa.Schema, *, floating: bool) -> Iterator[str]:
    """Return Parquet's names of the columns that hold floats, or of all others."""
    for field in schema:
        yield from (path for path, kind in _leaves(field.name, field.type) if pa.types.is_floating(kind) == floating)


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind
