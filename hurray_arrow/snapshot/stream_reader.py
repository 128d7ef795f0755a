"""Read streams: each tensor as it comes, and the proof that it was all at the end.

Spec: snapshot format, section 5, "streams", and section 4, "Order of checks" where a stream allows it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.ipc_file import custom_metadata_of, encoded_batch
from hurray_arrow.arrow.ipc_layout import (
    CONTINUATION,
    END_MARKER,
    RECORD_BATCH_HEADER,
    SCHEMA_HEADER,
    BatchLayout,
    IpcLayoutError,
    batch_layout,
    check_message,
    message_kind,
)
from hurray_arrow.arrow.metadata import check_format_version, parse_schema_metadata
from hurray_arrow.arrow.page_class import PLAIN
from hurray_arrow.arrow.rows import Row, Tables, is_pool_column
from hurray_arrow.arrow.schema import SchemaPlan, schema_xxh3
from hurray_arrow.arrow.small_columns import small_xxh3
from hurray_arrow.arrow.tensor_rows import aligned, tables_of, tensor_from_rows
from hurray_arrow.arrow.types import BLOCK_TABLE_STORAGES, held_types
from hurray_arrow.errors import (
    HurrayArrowError,
    Problem,
    ProblemCode,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotIncompleteError,
)
from hurray_arrow.memory import new_bytes
from hurray_arrow.snapshot.checksums import page_problems
from hurray_arrow.snapshot.expectations import check_metadata, check_tensor
from hurray_arrow.snapshot.groups import missing_members
from hurray_arrow.snapshot.index import STREAM, Index, IndexRow
from hurray_arrow.snapshot.pipes import PipeSource
from hurray_arrow.snapshot.placed import PlacedTensor
from hurray_arrow.spec import MIN_ALIGNMENT_BYTES
from hurray_arrow.tensor import BlockPagedTensor

SPEC = "snapshot format 5"
URL = "stream"
#: A header comes in pieces of this size, so that one that states too much takes no memory that it does not send.
_PIECE_BYTES = 1 << 20
#: What a header may take: an index of 256 MiB, as text in base64.
_MAX_HEADER_BYTES = 512 << 20


def read_stream(
    source: Any, *, expect: Mapping[str, Any] | None = None, progress: Callback | None = None
) -> StreamReader:
    """Read a snapshot from a pipe, a socket or any other binary file object; its schema is read at once.

    Parameters
    ----------
    source
        Where the bytes come from: an object with ``readinto`` or ``read``, or a socket. It stays open, need not seek,
        and nothing is read of it behind the stream's end marker.
    expect
        What the snapshot has to be, by dotted name; see :func:`~hurray_arrow.open_snapshot`. What tensors and sequences
        tell is compared as they come.
    progress
        Told of the bytes of pages read.

    Returns
    -------
    StreamReader
        An iterator of the tensors, and a context manager.

    Raises
    ------
    SnapshotIncompleteError
        The source ends before the schema does.
    SnapshotCorruptError
        ``arrow_invalid``: no Arrow stream; ``metadata_invalid``: another one; ``arrow_schema``: a column of a wrong
        type.
    UnsupportedError
        Another version of the format, or a required feature that this version does not know.
    SnapshotMismatchError
        The snapshot is not what ``expect`` says.

    Spec: snapshot format, section 5, "streams".
    """
    reader = StreamReader(source, expect=expect, progress=progress)
    check_metadata(reader.metadata, expect)
    return reader


class StreamReader:
    """The tensors of a stream, one after another; see :func:`read_stream`.

    Each comes in new memory, its pages at a multiple of 64 bytes, with its page checksums verified; the reader holds on
    to no pages. What is not pages is proven by the end batch: **use what you were given when the iteration has ended**,
    not when an error ended it. A stream that is cut raises :class:`SnapshotIncompleteError`, which says how many
    tensors came whole. A reader belongs to one thread.

    Attributes
    ----------
    metadata
        The snapshot's metadata (format page section 3).
    schema
        The Arrow schema.
    num_tensors
        How many tensors were given out.
    complete
        Whether the end batch came and proved everything.
    unverified
        Tensors whose pages have no checksums.
    """

    def __init__(
        self, source: Any, *, expect: Mapping[str, Any] | None = None, progress: Callback | None = None
    ) -> None:
        self.num_tensors = 0
        self.complete = False
        self.unverified: list[Problem] = []
        self._source = PipeSource(source)
        self._progress = progress or NoOpCallback()
        self._expect = expect
        self._broken = False
        self._tables: dict[int, Tables] = {}
        self._rows: list[IndexRow] = []
        with _mapped_errors("schema"):
            header = self._header()
            if header is None:
                raise self._incomplete("the end marker comes first")
            kind, body_bytes = message_kind(header[8:])
            if kind != SCHEMA_HEADER or body_bytes:
                raise IpcLayoutError(f"message of kind {kind} with {body_bytes} bytes, expected a schema")
            check_message(header[8:])
            self._schema_message = bytes(header)
            self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(self._schema_message))
            self.schema, self._types = held_types(self.schema)
            check_format_version(self.schema.metadata, url=URL)
            _check_types(self.schema)
            self._schema_xxh3 = schema_xxh3(self.schema)
        self.metadata = parse_schema_metadata(self.schema.metadata, url=URL)

    def __iter__(self) -> Iterator[BlockPagedTensor]:
        return self

    def __next__(self) -> BlockPagedTensor:
        """Return the next tensor.

        Raises
        ------
        SnapshotIncompleteError
            The stream ends here, and its writer did not.
        SnapshotCorruptError
            ``arrow_invalid``, ``arrow_null``, ``arrow_schema``, ``column_mismatch``, ``row_missing``, the tensor's own
            broken invariants, ``page_checksum``; at the end ``index_checksum``, ``index_invalid``, ``schema_checksum``,
            ``row_checksum``, ``tensor_key_duplicate``; ``companion_missing``: the stream is not ``partial``, and a
            layer or companion that its metadata lists did not come.
        UnsupportedError
            Pages of an encoding, element type or extension version that this version does not know.
        SnapshotMismatchError
            The tensor or its sequences are not what was expected.
        """
        if self._broken:
            raise SnapshotError("an earlier read failed, the stream cannot be read on", url=URL)
        if self.complete:
            raise StopIteration
        self._broken = True
        with _mapped_errors(f"row {self.num_tensors}"):
            tensor = self._next()
        self._broken = False
        if tensor is None:
            self.complete = True
            raise StopIteration
        self.num_tensors += 1
        self._progress.relative_update(tensor.buffers[0].nbytes)
        return tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the memory of the tables go; the source is the caller's, and stays where it is."""
        self._tables.clear()
        self._broken = not self.complete

    def _next(self) -> BlockPagedTensor | None:
        header = self._header()
        if header is None:
            raise self._incomplete("its writer did not finish: there is an end marker and no end batch")
        kind, body_bytes = message_kind(header[8:])
        if kind != RECORD_BATCH_HEADER:
            raise IpcLayoutError(f"message of kind {kind}, expected a record batch")
        layout = batch_layout(header[8:])
        _check_layout(layout, body_bytes)
        message = self._message(header, layout, body_bytes)
        if not layout.num_rows:
            self._check_end(message)
            return None
        if layout.num_rows != 1:
            raise IpcLayoutError(f"{layout.num_rows} rows, expected 1")
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(message)), self.schema)
        batch.validate(full=True)
        return self._tensor(batch)

    def _tensor(self, batch: pa.RecordBatch) -> BlockPagedTensor:
        hashed = small_xxh3(batch)
        with_pages = Row.read(batch, 0)
        if with_pages.tensor_index != self.num_tensors:
            message = f"{with_pages.tensor_index}, expected {self.num_tensors}"
            raise _corrupt(ProblemCode.ROW_MISSING, f"row {self.num_tensors}.tensor_index", message)
        # Facts and tables outlive the tensor in its group, and must not hold on to the memory of its pages.
        small = Row.read(_without_pages(batch), 0)
        own = tables_of(small, self._tables.get(small.kv_group))
        if small.kv_group not in self._tables:
            own = Tables(aligned(own.seq_ptr), aligned(own.block_table), own.sequences)
            self._tables[small.kv_group] = own
        page_class = with_pages.page_class
        row = replace(
            small,
            pool=aligned(with_pages.pool),
            pool_column=with_pages.pool_column,
            page_class=page_class,
            storage_type=with_pages.storage_type,
        )
        tensor = tensor_from_rows([row], own, align_small_buffers=True)
        problems = page_problems(tensor, row.page_checksums, tensor_index=row.tensor_index, unverified=self.unverified)
        if problems:
            raise SnapshotCorruptError(problems, url=URL)
        check_tensor(tensor, self.metadata, self._expect)
        encoding = PLAIN if page_class is None else page_class.encoding
        placed = PlacedTensor(tensor, row.tensor_index, row.kv_group, row.tables is not None)
        self._rows.append(placed.index_row(encoding, small_xxh3=hashed))
        return tensor

    def _check_end(self, message: pa.Buffer) -> None:
        pairs = custom_metadata_of(message, self._schema_message)
        try:
            index = Index.from_custom_metadata(pairs, url=URL, file_bytes=self._source.received_bytes)
        except SnapshotIncompleteError as error:
            raise self._incomplete("there is no end batch: the writer did not finish, or it is another's") from error
        if index.kind != STREAM:
            raise _corrupt(ProblemCode.INDEX_INVALID, "kind", f"{index.kind!r}, expected {STREAM!r}")
        if index.schema_xxh3 != self._schema_xxh3:
            text = f"xxh3 {self._schema_xxh3}, the index says {index.schema_xxh3}"
            raise _corrupt(ProblemCode.SCHEMA_CHECKSUM, "schema", text)
        if len(index.rows) != len(self._rows):
            text = f"{len(self._rows)} rows came, the index has {len(index.rows)}"
            raise _corrupt(ProblemCode.ROW_MISSING, "rows", text)
        problems = [
            problem
            for found, stated in zip(self._rows, index.rows, strict=True)
            for problem in _row_problems(found, stated)
        ]
        if not self.metadata.get("partial"):
            problems += missing_members(self.metadata, self._rows)
        if problems:
            raise SnapshotCorruptError(problems, url=URL)
        if self._header() is not None:
            raise IpcLayoutError("a message follows the end batch, expected the end marker")

    def _header(self) -> memoryview | None:
        """Return the next message as far as its flatbuffer, length and marker included; ``None`` at the end marker."""
        prefix = bytearray(8)
        self._fill(memoryview(prefix))
        if prefix == END_MARKER:
            return None
        continuation, size = struct.unpack("<Ii", prefix)
        if continuation != CONTINUATION or not 0 < size <= _MAX_HEADER_BYTES:
            raise IpcLayoutError(f"message starts with {continuation:#x}, length {size}")
        header = prefix
        while len(header) < 8 + size:
            piece = bytearray(min(8 + size - len(header), _PIECE_BYTES))
            self._fill(memoryview(piece))
            header += piece
        return memoryview(header).toreadonly()

    def _message(self, header: memoryview, layout: BatchLayout, body_bytes: int) -> pa.Buffer:
        """Read a body into memory with its header; its largest buffer, the pages, lies at a multiple of 64 bytes."""
        largest = max(layout.buffers, key=lambda buffer: buffer[1], default=(0, 0))[0]
        start = -(len(header) + largest) % MIN_ALIGNMENT_BYTES
        memory = new_bytes(start + len(header) + body_bytes)[start:]
        memory[: len(header)] = header
        self._fill(memoryview(memory.data)[len(header) :])
        return pa.py_buffer(memory)

    def _fill(self, view: memoryview) -> None:
        try:
            found = self._source.read_into(view)
        except HurrayArrowError:
            raise
        except (OSError, ValueError) as error:
            raise self._incomplete(f"reading failed: {type(error).__name__}: {error}") from error
        if found != len(view):
            raise self._incomplete(f"it ends {len(view) - found} bytes early")

    def _incomplete(self, message: str) -> SnapshotIncompleteError:
        whole = f"{self.num_tensors} tensor{'' if self.num_tensors == 1 else 's'} came whole"
        return SnapshotIncompleteError(f"{whole}, then {message}", url=URL)


@contextmanager
def _mapped_errors(where: str) -> Iterator[None]:
    """Turn what pyarrow and a body too large for memory raise into this library's errors."""
    try:
        yield
    except HurrayArrowError:
        raise
    except (pa.ArrowException, MemoryError, OSError, OverflowError, ValueError) as error:
        raise _corrupt(ProblemCode.ARROW_INVALID, where, str(error) or "too large for memory") from error


def _check_types(schema: pa.Schema) -> None:
    """Refuse columns of other types than the format's: here rows are read before the schema's hash is known."""
    expected = SchemaPlan().arrow_schema()
    for field in schema:
        if field.name == "block_table":
            right = pa.types.is_list(field.type) and _storage(field.type.value_type) in BLOCK_TABLE_STORAGES.values()
        elif field.name in expected.names:
            right = field.type == expected.field(field.name).type
        elif is_pool_column(field.name):
            pages = _storage(field.type.value_type) if pa.types.is_large_list(field.type) else None
            right = pages is not None and (pa.types.is_fixed_size_list(pages) or pa.types.is_struct(pages))
        else:
            right = True
        if not right:
            raise _corrupt(ProblemCode.ARROW_SCHEMA, field.name, f"the column is {field.type}")


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _check_layout(layout: BatchLayout, body_bytes: int) -> None:
    """Refuse what must not be decoded, before a byte of the body is read."""
    if layout.compression is not None:
        raise IpcLayoutError(f"compressed with codec {layout.compression}; a stream is not")
    end = 0
    for start, size in layout.buffers:
        if start < 0 or size < 0 or start + size > body_bytes:
            raise IpcLayoutError(f"a buffer [{start}, {start + size}) passes the end of a body of {body_bytes} bytes")
        end = max(end, start + size)
    if body_bytes - end > MIN_ALIGNMENT_BYTES:
        raise IpcLayoutError(f"the body has {body_bytes} bytes, its buffers end at {end}")


def _without_pages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of a row's small columns in memory of their own."""
    small = batch.select([name for name in batch.schema.names if not is_pool_column(name)])
    message = pa.ipc.read_message(pa.BufferReader(encoded_batch(small)))
    return pa.ipc.read_record_batch(message, small.schema)


def _row_problems(found: IndexRow, stated: IndexRow) -> list[Problem]:
    where = f"tensor {found.tensor_index}"
    if stated.small_xxh3 != found.small_xxh3:
        text = f"xxh3 {found.small_xxh3}, the index says {stated.small_xxh3}"
        return [Problem(ProblemCode.ROW_CHECKSUM, f"{where}.small_xxh3", text, SPEC)]
    return [
        Problem(ProblemCode.COLUMN_MISMATCH, f"{where}.{name}", f"{value!r:.60}, the index says {other!r:.60}", SPEC)
        for name, value, other in zip(found._fields, found, stated, strict=True)
        if value != other
    ]


def _corrupt(code: ProblemCode, where: str, message: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(Problem(code, where, message, SPEC), url=URL)
