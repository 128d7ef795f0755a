"""An open catalogue: its table by columns and row groups, its digests as arrays that are not copied.

Spec: ``schemas/catalog.schema.json``, ``schemas/catalog-arrow-schema.txt``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Self

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from hurray_arrow.arrow.ipc_file import checked_messages, schema_of
from hurray_arrow.arrow.ipc_layout import batch_layout
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.contents import Prefixes
from hurray_arrow.catalog.document import Document, Run, RunKind, invalid
from hurray_arrow.catalog.writer import PREFIX_SCHEMA
from hurray_arrow.errors import HurrayArrowError, SnapshotIncompleteError
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.snapshot.files import PathLike, Source
from hurray_arrow.snapshot.remote import open_range


def open_catalog(
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
) -> Catalog:
    """Open a catalogue, for several questions; a local one is mapped.

    Parameters
    ----------
    path
        The file, or any URL of fsspec's.
    storage_options, filesystem
        As in :func:`~hurray_arrow.open_snapshot`.

    Returns
    -------
    Catalog
        A context manager; for one thread.

    Raises
    ------
    FileNotFoundError, PermissionError, SnapshotError
        As :func:`~hurray_arrow.open_snapshot`.
    CatalogError
        ``catalog_invalid``: it is no catalogue, one of another version, or damaged.
    """
    try:
        source = open_range(path, storage_options=storage_options, filesystem=filesystem)
    except SnapshotIncompleteError as error:
        raise invalid("file", error.message, url=error.url) from error
    try:
        return Catalog(source)
    except BaseException:
        source.close()
        raise


class Catalog:
    """An open catalogue; see :func:`open_catalog`.

    Attributes
    ----------
    url
        Where it lies.
    document
        What it says of itself.
    """

    def __init__(self, source: Source) -> None:
        self.url = source.url
        self._source = source
        with self._damage("footer"):
            self._parquet = parquet.ParquetFile(_arrow_file(source), page_checksum_verification=True, pre_buffer=True)
            pairs = self._parquet.metadata.metadata
        self.document = Document.from_metadata(pairs, url=self.url)
        self._runs: dict[Run, Prefixes] = {}

    @property
    def is_current(self) -> bool:
        """Whether its columns are those that this version writes."""
        return bool(self._parquet.schema_arrow.equals(SCHEMAS[self.document.rows]))

    def row_groups(
        self, columns: Sequence[str] | None = None, *, files: npt.NDArray[np.integer[Any]] | None = None
    ) -> Iterator[pa.Table]:
        """Read the table row group by row group.

        Parameters
        ----------
        columns
            Which columns; ``None`` for all.
        files
            Leave out row groups that have none of these; ascending. ``None`` reads all.

        Raises
        ------
        CatalogError
            ``catalog_invalid``: a page does not match its checksum, or is none; a column is missing or another.
        """
        schema = SCHEMAS[self.document.rows]
        names = schema.names if columns is None else list(columns)
        expected = pa.schema([schema.field(name) for name in names])
        for number in range(self._parquet.num_row_groups):
            with self._damage(f"row group {number}"):
                if files is not None and not self._has_some(number, files):
                    continue
                table = self._parquet.read_row_group(number, columns=names).select(names)
                if not table.schema.equals(expected):
                    raise TypeError(f"columns {table.schema.names}, expected {names} of their types")
            yield table

    def run(self, run: Run, *, verify: bool = False) -> Prefixes:
        """Return the digests of a run: views of the mapping, or of memory where the catalogue is not mapped.

        Parameters
        ----------
        run
            One of the document's.
        verify
            Compare its hash.

        Raises
        ------
        CatalogError
            ``catalog_invalid``.
        """
        where = f"run at byte {run.offset_bytes}"
        with self._damage(where):
            data = self._source.read(run.offset_bytes, run.num_bytes)
            if verify and xxh3_hex(data) != run.xxh3:
                raise ValueError(f"xxh3 {xxh3_hex(data)}, expected {run.xxh3}")
            schema, message = islice(checked_messages(data), 2)
            if batch_layout(message.metadata).compression is not None:
                raise ValueError("compressed digests")
            batch = pa.ipc.read_record_batch(message, schema_of(schema))
            batch.validate()
            if batch.schema != PREFIX_SCHEMA or len(batch) != run.num_rows:
                raise ValueError(f"{len(batch)} rows of {batch.schema.names}, expected {run.num_rows} digests")
            return Prefixes(*(column.to_numpy(zero_copy_only=True) for column in batch.columns))

    def runs(self, kind: RunKind) -> Iterator[Prefixes]:
        """Return the digests of all runs of a kind.

        What comes from a store is compared with its hash, and kept for the next question. A mapped catalogue is not: a
        search touches a few pages of it.
        """
        for run in self.document.runs:
            if run.kind == kind:
                if run not in self._runs:
                    self._runs[run] = self.run(run, verify=not self._source.is_mapped)
                yield self._runs[run]

    def close(self) -> None:
        """Close the file."""
        self._parquet.close(force=True)
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Catalog({self.url!r}, {self.document.num_files} files of {self.document.url!r})"

    def _has_some(self, number: int, files: npt.NDArray[np.integer[Any]]) -> bool:
        statistics = self._parquet.metadata.row_group(number).column(0).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        first, last = np.searchsorted(files, [statistics.min, statistics.max + 1])
        return bool(last > first)

    @contextmanager
    def _damage(self, where: str) -> Iterator[None]:
        """Say what pyarrow finds in a file that is no catalogue."""
        try:
            yield
        except SnapshotIncompleteError as error:
            raise invalid(where, error.message, url=self.url) from error
        except HurrayArrowError:
            raise
        except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, OverflowError, StopIteration) as error:
            raise invalid(where, str(error), url=self.url) from error


def _arrow_file(source: Source) -> pa.NativeFile:
    """Return the source as pyarrow takes it; a mapping stays one."""
    if source.is_mapped:
        return pa.BufferReader(source.read(0, source.size))
    return pa.PythonFile(_RangeFile(source), mode="r")


class _RangeFile(io.RawIOBase):
    """A file object over a source, for pyarrow."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        rest = max(self._source.size - self._position, 0)
        data: bytes = self._source.read(self._position, rest if size < 0 else min(size, rest)).to_pybytes()
        self._position += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
