"""Where things lie in an Arrow IPC file: the footer's blocks and a record batch's buffers.

pyarrow reads batches but does not say where they are, it decompresses before anybody could look at a size, and of what
a flatbuffer refers to many times it makes as many copies. These few bounds-checked reads of the format's flatbuffers do
only that.

Spec: Arrow columnar format, "IPC File Format" and "Encapsulated message format" (File.fbs, Message.fbs).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

MAGIC = b"ARROW1"
#: What ends a file: the footer's length and the magic.
TAIL_BYTES = 4 + len(MAGIC)
#: What stands before a file's schema message.
HEAD_BYTES = 8
CONTINUATION = 0xFFFFFFFF
SCHEMA_HEADER = 1
RECORD_BATCH_HEADER = 3
#: What ends a stream.
END_MARKER = struct.pack("<II", CONTINUATION, 0)
#: The most metadata of a schema that is read, fields' apart.
MAX_METADATA_BYTES = 8 << 20
#: The most fields, at every depth together, of a schema that is read: Arrow makes a kilobyte of each.
MAX_FIELDS = 50_000
#: What a table takes at least where it is referred to once: reference, table, an own string.
_TABLE_BYTES = 16
#: Numbers in Schema.fbs of the types that have a string or a vector of their own, and the bytes of its items.
_TYPE_ITEM_BYTES = {10: 1, 14: 4}


class IpcLayoutError(ValueError):
    """Bytes that are not the Arrow structure they should be."""


class Block(NamedTuple):
    """Place of one record batch in a file, in bytes."""

    offset: int
    metadata_bytes: int
    body_bytes: int

    @property
    def end(self) -> int:
        """First byte after the batch."""
        return self.offset + self.metadata_bytes + self.body_bytes


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What a record batch's header says of its body.

    Parameters
    ----------
    num_rows
        The batch's length.
    nodes
        ``(length, null count)`` of each array, in schema order.
    buffers
        ``(offset, length)`` of each buffer in the body, in bytes, in schema order.
    compression
        Arrow's codec number (0 LZ4 frame, 1 zstd), ``None`` for an uncompressed body.
    """

    num_rows: int
    nodes: tuple[tuple[int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    compression: int | None


def footer_bytes_of(tail: bytes | memoryview) -> int:
    """Return the length of the footer, from the last bytes of a file (at least :data:`TAIL_BYTES`).

    Raises
    ------
    IpcLayoutError
        The file does not end like an Arrow file.
    """
    if len(tail) < TAIL_BYTES or bytes(tail[-len(MAGIC) :]) != MAGIC:
        raise IpcLayoutError("no Arrow magic at the end")
    (length,) = struct.unpack("<i", tail[-TAIL_BYTES : -len(MAGIC)])
    if length <= 0:
        raise IpcLayoutError(f"footer length {length}")
    return int(length)


def check_footer(footer: bytes | memoryview) -> None:
    """Refuse a footer whose schema or metadata is larger than the bytes that it is made of.

    A flatbuffer may refer to one string or table from any number of places, and Arrow copies it for each: 100 KB of
    them are 100 MB in memory, or any number of gigabytes.

    Raises
    ------
    IpcLayoutError
        It is, or has more than :data:`MAX_FIELDS` fields or :data:`MAX_METADATA_BYTES`, or is no footer.
    """
    table = _root(memoryview(footer))
    schema = table.table(1)
    unfolded = _Unfolded(table.data)
    unfolded.take_pairs(table.position, 4)
    if schema is not None:
        unfolded.take_schema(schema.position)


def check_message(flatbuffer: bytes | memoryview) -> None:
    """Refuse a message whose schema or metadata is larger than the bytes that it is made of, as :func:`check_footer`.

    Parameters
    ----------
    flatbuffer
        The message's flatbuffer, see :func:`encapsulated`.

    Raises
    ------
    IpcLayoutError
        As :func:`check_footer`, or no message.
    """
    table = _root(memoryview(flatbuffer))
    schema = table.table(2) if table.scalar(1, "<B") == SCHEMA_HEADER else None
    unfolded = _Unfolded(table.data)
    unfolded.take_pairs(table.position, 4)
    if schema is not None:
        unfolded.take_schema(schema.position)


def footer_blocks(footer: bytes | memoryview) -> list[Block]:
    """Return the record batches that a footer lists, in file order.

    Raises
    ------
    IpcLayoutError
        Not a footer, or one that lists dictionaries (a snapshot has none).
    """
    table = _root(memoryview(footer))
    if table.vector(2, 24)[1]:
        raise IpcLayoutError("the footer lists dictionaries")
    start, count = table.vector(3, 24)
    return list(map(Block._make, struct.iter_unpack("<qi4xq", table.data[start : start + 24 * count])))


def encapsulated(message: bytes | memoryview) -> memoryview:
    """Return the flatbuffer of a message as it lies in a file: after the continuation marker and its length.

    Raises
    ------
    IpcLayoutError
        Not an encapsulated message.
    """
    data = memoryview(message)
    if len(data) < 8:
        raise IpcLayoutError(f"message of {len(data)} bytes")
    continuation, size = struct.unpack_from("<Ii", data, 0)
    if continuation != CONTINUATION or not 0 < size <= len(data) - 8:
        raise IpcLayoutError(f"message starts with {continuation:#x}, length {size} of {len(data) - 8} bytes")
    return data[8 : 8 + size]


def message_kind(flatbuffer: bytes | memoryview) -> tuple[int, int]:
    """Return what a message is (1 a schema, 3 a record batch) and how many bytes its body has.

    Raises
    ------
    IpcLayoutError
        Not a message, or a negative length.
    """
    table = _root(memoryview(flatbuffer))
    kind, body_bytes = int(table.scalar(1, "<B")), int(table.scalar(3, "<q"))
    if body_bytes < 0:
        raise IpcLayoutError(f"a body of {body_bytes} bytes")
    return kind, body_bytes


def batch_layout(flatbuffer: bytes | memoryview) -> BatchLayout:
    """Return what a record batch's header says of its body.

    Parameters
    ----------
    flatbuffer
        The message's flatbuffer, see :func:`encapsulated`.

    Raises
    ------
    IpcLayoutError
        Not a record batch, or one with more custom metadata than it has bytes, see :func:`check_footer`.
    """
    table = _root(memoryview(flatbuffer))
    if table.scalar(1, "<B") != RECORD_BATCH_HEADER:
        raise IpcLayoutError("the message is not a record batch")
    _Unfolded(table.data).take_pairs(table.position, 4)
    batch = table.table(2)
    if batch is None:
        raise IpcLayoutError("the message has no header")
    nodes, buffers = (
        tuple(struct.iter_unpack("<qq", batch.data[start : start + 16 * count]))
        for start, count in (batch.vector(1, 16), batch.vector(2, 16))
    )
    compression = batch.table(3)
    codec = None if compression is None else int(compression.scalar(0, "<b"))
    return BatchLayout(int(batch.scalar(0, "<q")), nodes, buffers, codec)


def record_batches_field(footer: bytes) -> int:
    """Return where a footer keeps the offset of its vector of record batches.

    Raises
    ------
    IpcLayoutError
        The footer lists none, and so has no such field.
    """
    place = _root(memoryview(footer)).field(3)
    if place is None:
        raise IpcLayoutError("the footer lists no record batches")
    return place


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffer table: fields by number, every read inside ``data``."""

    data: memoryview
    position: int

    def field(self, number: int) -> int | None:
        """Position of a field's value, ``None`` where the table leaves it out."""
        vtable = self.position - self.read("<i", self.position)
        entry = 4 + 2 * number
        if entry >= self.read("<H", vtable):
            return None
        relative = self.read("<H", vtable + entry)
        return self.position + relative if relative else None

    def scalar(self, number: int, kind: str) -> Any:
        place = self.field(number)
        return 0 if place is None else self.read(kind, place)

    def table(self, number: int) -> _Table | None:
        place = self.field(number)
        return None if place is None else _Table(self.data, place + self.read("<I", place))

    def vector(self, number: int, item_bytes: int) -> tuple[int, int]:
        """Start and length of a vector, all of it inside the data."""
        place = self.field(number)
        if place is None:
            return 0, 0
        start = place + self.read("<I", place)
        count = self.read("<I", start)
        if start + 4 + count * item_bytes > len(self.data):
            raise IpcLayoutError(f"a vector of {count} items at {start} passes the end of {len(self.data)} bytes")
        return start + 4, count

    def read(self, kind: str, place: int) -> Any:
        if not 0 <= place <= len(self.data) - struct.calcsize(kind):
            raise IpcLayoutError(f"offset {place} outside {len(self.data)} bytes")
        return struct.unpack_from(kind, self.data, place)[0]


def _root(data: memoryview) -> _Table:
    table = _Table(data, 0)
    return _Table(data, table.read("<I", 0))


class _Unfolded:
    """Counts what strings and tables come to when each is copied wherever it is referred to.

    Whoever opens a file waits for this, so the tables are read by hand and many fields at once.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        #: Writers may share what is equal here and there, but not much.
        self._left_bytes = 2 * len(data)
        self._left_fields = MAX_FIELDS

    def take_schema(self, position: int) -> None:
        """Count a Schema table's fields, at every depth, and its custom metadata."""
        before = self._left_bytes
        self.take_pairs(position, 2)
        if before - self._left_bytes > MAX_METADATA_BYTES:
            raise IpcLayoutError(f"more than {MAX_METADATA_BYTES} bytes of metadata in a schema")
        try:
            pending = self._fields(self._reference(position, 1))
            while pending:
                pending += self._children(pending.pop())
        except (struct.error, IndexError) as error:
            raise self._outside() from error

    def take_pairs(self, position: int, number: int) -> None:
        """Count the KeyValue tables of a vector, which is field ``number`` of the table at ``position``."""
        try:
            for pair in self._tables(self._reference(position, number)):
                self._take(sum(self._size(self._reference(pair, part)) for part in (0, 1)))
        except struct.error as error:
            raise self._outside() from error

    def _children(self, field: int) -> list[int]:
        """Count a field by itself, and return the positions of its children."""
        data = self._data
        vtable = field - _i32(data, field)[0]
        if vtable < 0:
            raise self._outside()
        # A vtable may be shorter than what is read of it, and stand at the end.
        described = data[vtable : vtable + _FIELD_VTABLE.size]
        if len(described) < _FIELD_VTABLE.size:
            described = memoryview(bytes(described).ljust(_FIELD_VTABLE.size, b"\0"))
        size, _, name, _, type_tag, kind, _, children, pairs = _FIELD_VTABLE.unpack(described)
        if size > 4 and name:
            self._take(self._size(field + name))
        if size > 10 and type_tag and kind and data[field + type_tag] in _TYPE_ITEM_BYTES:
            items = self._reference(field + kind + _u32(data, field + kind)[0], 1)
            self._take(_TYPE_ITEM_BYTES[data[field + type_tag]] * self._size(items))
        if size > 16 and pairs:
            self.take_pairs(field, 6)
        return self._fields(field + children) if size > 14 and children else []

    def _take(self, size: int) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise IpcLayoutError("a header that refers to the same bytes again and again")

    def _fields(self, reference: int) -> list[int]:
        found = self._tables(reference)
        self._left_fields -= len(found)
        if self._left_fields < 0:
            raise IpcLayoutError(f"more than {MAX_FIELDS} fields")
        return found

    def _reference(self, table: int, number: int) -> int:
        """Return where a table keeps a reference; 0 where it leaves the field out."""
        return _Table(self._data, table).field(number) or 0

    def _tables(self, reference: int) -> list[int]:
        """Return the positions of the tables of the vector that a reference leads to."""
        if not reference:
            return []
        start = reference + _u32(self._data, reference)[0]
        count = _u32(self._data, start)[0]
        self._take(count * _TABLE_BYTES)
        relative = struct.unpack_from(f"<{count}I", self._data, start + 4)
        return [start + 4 + 4 * place + each for place, each in enumerate(relative)]

    def _size(self, reference: int) -> int:
        """Return the length of the string or vector that a reference leads to."""
        return int(_u32(self._data, reference + _u32(self._data, reference)[0])[0]) if reference else 0

    def _outside(self) -> IpcLayoutError:
        return IpcLayoutError(f"a header that leads out of its {len(self._data)} bytes")


#: Its size, the table's, and where name, nullable, type's number, type, dictionary, children, metadata are in that.
_FIELD_VTABLE = struct.Struct("<9H")
_i32, _u32 = struct.Struct("<i").unpack_from, struct.Struct("<I").unpack_from
