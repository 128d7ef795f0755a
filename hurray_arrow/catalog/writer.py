"""Write a catalogue: rows and digests as they come, in bounded memory, to a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from hurray_arrow.catalog.columns import SCHEMAS, Rows
from hurray_arrow.catalog.contents import Prefixes
from hurray_arrow.catalog.document import Document, Run, RunKind
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.snapshot.files import AtomicFile
from hurray_arrow.snapshot.upload import RemoteFile

#: Rows that are held back for one row group, and digests for one run: 32 bytes each, and some copies for sorting.
GROUP_ROWS = 1 << 15
RUN_ROWS = 1 << 19
_ALIGN_BYTES = 64

PREFIX_SCHEMA = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("file_index", pa.uint32(), nullable=False),
        pa.field("sequence", pa.uint32(), nullable=False),
        pa.field("num_tokens", pa.uint64(), nullable=False),
    ]
)


class CatalogWriter:
    """A catalogue that is being written.

    Parameters
    ----------
    file
        Where it goes; published or discarded by this.
    rows
        What its rows are about.
    step_tokens
        Tokens of a step, where there are to be digests.
    """

    def __init__(self, file: AtomicFile | RemoteFile, *, rows: Rows, step_tokens: int = 1) -> None:
        self._output = _Output(file)
        self._step_tokens = np.uint64(step_tokens)
        self._runs: list[Run] = []
        self._rows: list[pa.Table] = []
        self._held_rows = 0
        self._prefixes: dict[RunKind, list[Prefixes]] = {kind: [] for kind in get_args(RunKind)}
        self._held_prefixes: dict[RunKind, int] = dict.fromkeys(get_args(RunKind), 0)
        self._sink = pa.PythonFile(self._output, mode="w")
        self._parquet = parquet.ParquetWriter(self._sink, SCHEMAS[rows], compression="zstd", write_page_checksum=True)

    def add_rows(self, rows: pa.Table) -> None:
        """Take rows of the catalogue's schema."""
        self._rows.append(rows)
        self._held_rows += len(rows)
        if self._held_rows >= GROUP_ROWS:
            self._write_rows()

    def add_prefixes(self, prefixes: Prefixes) -> None:
        """Take digests in any order."""
        is_step = prefixes.num_tokens % self._step_tokens == 0
        parts: dict[RunKind, Prefixes] = {"steps": prefixes.taken(is_step), "ends": prefixes.taken(~is_step)}
        for kind, part in parts.items():
            self._prefixes[kind].append(part)
            self._held_prefixes[kind] += len(part.high)
            if self._held_prefixes[kind] >= RUN_ROWS:
                self._write_run(kind)

    def publish(self, document: Document) -> None:
        """Write what is held back and the document, whose runs come from here, and give the file its name.

        Raises
        ------
        OSError, SnapshotError
            As :meth:`AtomicFile.publish`.
        """
        for kind in self._prefixes:
            self._write_run(kind)
        self._write_rows()
        whole = dataclasses.replace(document, runs=tuple(self._runs))
        self._parquet.add_key_value_metadata(whole.metadata())
        self._parquet.close()
        self._output.file.publish()

    def discard(self) -> None:
        """Leave no trace; an existing catalogue stays as it is."""
        self._output.is_discarded = True
        # Parquet's writer writes a footer when it goes, now or later.
        with contextlib.suppress(Exception):
            self._parquet.close()
        self._output.file.discard()

    def _write_rows(self) -> None:
        if self._rows:
            table = pa.concat_tables(self._rows)
            self._rows, self._held_rows = [], 0
            self._parquet.write_table(table, row_group_size=len(table))

    def _write_run(self, kind: RunKind) -> None:
        found = Prefixes.joined(self._prefixes[kind])
        self._prefixes[kind], self._held_prefixes[kind] = [], 0
        if not len(found.high):
            return
        found = found.taken(np.argsort(found.high, kind="stable"))
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, PREFIX_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(list(map(pa.array, found)), schema=PREFIX_SCHEMA))
        data = stream.getvalue()
        # Between row groups, through the sink that Parquet's writer asks where it stands.
        self._sink.write(bytes(-self._sink.tell() % _ALIGN_BYTES))
        self._runs.append(Run(kind, len(found.high), self._sink.tell(), data.size, xxh3_hex(data)))
        self._sink.write(data)


class _Output:
    """What a Parquet writer asks of a file: it only ever appends."""

    def __init__(self, file: AtomicFile | RemoteFile) -> None:
        self.file = file
        self.closed = self.is_discarded = False

    def write(self, data: Any) -> int:
        return len(data) if self.is_discarded else self.file.write(data)

    def flush(self) -> None:
        """Leave it to publish()."""

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True
