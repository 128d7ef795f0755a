"""What is left of a snapshot without its end batch: whole rows, and a list of what could not be verified.

A writer that died left a file without a footer; another tool that rewrote the file dropped the end batch, may have put
many rows into a batch, renamed child fields, stripped the extension types and written list for large_list. Both are
read as what an Arrow file is after its first bytes: a stream; or where it is none, by its footer.

Spec: snapshot format, section 4.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from hurray_arrow.arrow.ipc_file import checked_message, checked_messages, schema_of
from hurray_arrow.arrow.ipc_layout import CONTINUATION, MAGIC, BatchLayout, IpcLayoutError, batch_layout
from hurray_arrow.arrow.metadata import check_format_version, parse_schema_metadata
from hurray_arrow.arrow.page_class import PLAIN
from hurray_arrow.arrow.rows import Row
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.errors import (
    SHOWN_OF_A_KIND,
    HurrayArrowError,
    InvalidDescriptorError,
    Problem,
    ProblemCode,
    SnapshotCorruptError,
    SnapshotIncompleteError,
)
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.index import SPEC
from hurray_arrow.snapshot.tail import footer_schema, read_footer
from hurray_arrow.spec import INDEX_TYPE_NAMES

#: A rewritten file may be compressed; a body that states more than this many times its size is not decompressed.
MAX_EXPANSION = 100
FREE_EXPANSION_BYTES = 64 << 20
#: What the columns take that no row is without: tensor_index, kv_group, page_offset.
LEAST_ROW_BYTES = 4 + 4 + 8
#: What a message starts with, and the most that writers put before the first one.
MARKER = struct.pack("<I", CONTINUATION)
LONGEST_HEAD_BYTES = 64 + len(MARKER)


class RecoveredRows:
    """Rows of a file that has no end batch.

    Parameters
    ----------
    source
        The file.

    Attributes
    ----------
    metadata
        The snapshot's metadata, empty where it is gone.
    unverified
        What could not be checked, and what was left out.

    Raises
    ------
    SnapshotIncompleteError
        Not even a schema is left.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.unverified: list[Problem] = [
            _unverified("snapshot", "there is no index: whether tensors are missing is not known, row hashes are gone")
        ]
        self._rows: dict[int, list[Row]] = {}
        self._left_out = 0
        schema, batches = self._open()
        self.metadata = self._metadata_of(schema)
        for batch in batches:
            self._take(batch)
        if self._left_out > SHOWN_OF_A_KIND:
            self.unverified.append(_unverified("rows", f"{self._left_out} are left out, the first are listed"))
        self._share_tables()
        self.entries: tuple[Entry, ...] = tuple(
            entry for tensor_index in sorted(self._rows) if (entry := self._entry(tensor_index)) is not None
        )

    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return all rows of a tensor in page order."""
        return self._rows[tensor_index]

    def tables_row_of(self, tensor_index: int) -> Row:
        """Return a tensor's first row, which has its tables."""
        return self._rows[tensor_index][0]

    #: There is nothing to check them by.
    checks_rows = False

    def damage_of(self, tensor_index: int) -> list[Problem]:
        """Return nothing: the row hashes are gone."""
        del tensor_index
        return []

    def leave_out(self, tensor_indexes: Collection[int]) -> None:
        """Drop tensors that cannot be read."""
        self.entries = tuple(entry for entry in self.entries if entry.tensor_index not in tensor_indexes)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _open(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        start = self._stream_start()
        try:
            if start is None:
                blocks = read_footer(self._source)
                if any(block.offset < before.end for before, block in pairwise(sorted(blocks))):
                    raise IpcLayoutError("the footer lists batches that overlap")
                schema = footer_schema(self._source)
                places = ((block.offset, block.end - block.offset) for block in blocks)
                return schema, self._batches((checked_message(self._source.read(*place)) for place in places), schema)
            messages = checked_messages(self._source.read(start, self._source.size - start))
            schema = schema_of(next(messages))
        except (pa.ArrowException, IpcLayoutError, OSError, StopIteration) as error:
            raise SnapshotIncompleteError(f"nothing to recover: {error}", url=self._source.url) from error
        return schema, self._batches(messages, schema)

    def _stream_start(self) -> int | None:
        """Return where the file is a stream; ``None`` for what only the footer can tell.

        arrow-rs puts zeros before the schema message, and Polars something else.
        """
        head = self._source.read(0, min(self._source.size, LONGEST_HEAD_BYTES)).to_pybytes()
        if not head.startswith(MAGIC):
            return 0
        rest = head[len(MAGIC) :].lstrip(b"\0")
        return len(head) - len(rest) if not rest or rest.startswith(MARKER[: len(rest)]) else None

    def _batches(self, messages: Iterator[pa.ipc.Message], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        number = 0
        while True:
            try:
                message = next(messages)
                _check_expansion(message, most_rows=self._source.size)
                batch = pa.ipc.read_record_batch(message, schema)
                batch.validate(full=True)
            except StopIteration:
                return
            except (pa.ArrowException, OSError, ValueError) as error:
                self.unverified.append(_unverified(f"batch {number}", f"the file is not readable from here: {error}"))
                return
            yield batch
            number += 1

    def _metadata_of(self, schema: pa.Schema) -> dict[str, Any]:
        check_format_version(schema.metadata, url=self._source.url)
        try:
            return parse_schema_metadata(schema.metadata, url=self._source.url)
        except SnapshotCorruptError as error:
            self.unverified += [_unverified(problem.where, problem.message) for problem in error.problems]
            return {}

    def _take(self, batch: pa.RecordBatch) -> None:
        for number in range(batch.num_rows):
            try:
                row = Row.read(batch, number)
            except HurrayArrowError as error:
                self._left_out += 1
                if self._left_out <= SHOWN_OF_A_KIND:
                    self.unverified.append(_unverified(f"row {number} of a batch", f"left out: {error}"))
                continue
            self._rows.setdefault(row.tensor_index, []).append(row)

    def _share_tables(self) -> None:
        """Give every tensor the tables of its group: the tensor that has them may be one that cannot be read."""
        having: dict[int, Row] = {}
        for tensor_index in sorted(self._rows):
            rows = self._rows[tensor_index]
            rows.sort(key=lambda row: row.order)
            own = rows[0]
            if own.tables is not None:
                having.setdefault(own.kv_group, own)
            elif own.kv_group in having:
                first = having[own.kv_group]
                rows[0] = replace(own, tables=first.tables, sequences=own.sequences or first.sequences)

    def _entry(self, tensor_index: int) -> Entry | None:
        rows = self._rows[tensor_index]
        first = rows[0]
        try:
            descriptor = BlockPagedDescriptor.decode(first.descriptor or b"")
        except (InvalidDescriptorError, NotImplementedError) as error:
            self.unverified.append(_unverified(f"tensor {tensor_index}", f"left out: {error}"))
            return None
        return Entry(
            tensor_index=tensor_index,
            layer_index=first.layer_index,
            layer_name=first.layer_name,
            kv_role=first.kv_role,
            component=first.component,
            kv_group=first.kv_group,
            num_pages=descriptor.num_pages,
            page_shape=descriptor.page_shape,
            num_seqs=descriptor.num_seqs,
            element_type=descriptor.element_type.name,
            index_type=INDEX_TYPE_NAMES[descriptor.index_type],
            encoding=PLAIN,
            num_rows=len(rows),
            stored_bytes=sum(row.pool.nbytes for row in rows),
        )


def _check_expansion(message: pa.ipc.Message, *, most_rows: int) -> None:
    """Refuse a batch that states more than its bytes can hold, before it is decompressed or its rows are counted."""
    layout = batch_layout(message.metadata)
    body = memoryview(message.body or b"")
    holds = len(body) if layout.compression is None else _decompressed_bytes(layout, body)
    if holds > MAX_EXPANSION * len(body) + FREE_EXPANSION_BYTES:
        raise IpcLayoutError(f"{len(body)} compressed bytes state {holds} bytes")
    if layout.num_rows > min(holds // LEAST_ROW_BYTES, most_rows):
        raise IpcLayoutError(f"{layout.num_rows} rows in a body of {len(body)} bytes")


def _decompressed_bytes(layout: BatchLayout, body: memoryview) -> int:
    stated = 0
    for start, size in layout.buffers:
        if size:
            if start < 0 or size < 8 or start + size > len(body):
                raise IpcLayoutError(f"buffer [{start}, {start + size}) of a body of {len(body)} bytes")
            # A prefix of -1 says that the buffer is stored as it is.
            stated += max(struct.unpack_from("<q", body, start)[0], size)
    return stated


def _unverified(where: str, message: str) -> Problem:
    return Problem(ProblemCode.UNVERIFIED, where, message, SPEC)
