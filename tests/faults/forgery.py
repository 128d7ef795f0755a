"""Forge snapshots: change rows, columns, index or footer of an intact one, and make all hashes right again.

xxh3 does not stop an attacker, so what the hashes would find is made invisible here, and the reader's other checks have
to stand alone. Knows the format from its page and Arrow's from its flatbuffers; nothing of the package is used.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import xxhash
import zstandard

RECORD_BATCH = 3
#: Place of a batch: offset, metadata_bytes, body_bytes.
Block = tuple[int, int, int]
INDEX, INDEX_ZST, INDEX_HASH = "hurray_arrow.index", "hurray_arrow.index.zst", "hurray_arrow.index_xxh3"


def xxh3(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(bytes(data))


class Forgery:
    """An intact snapshot taken apart. Change what is public, then ask for :meth:`content`.

    ``schema``, ``batches``, ``end``: what is written. ``patches[n]`` changes the bytes of row n in place (the same
    length), ``edit_rows`` the index' row objects, ``edit_index`` the index, ``edit_text`` its JSON, ``edit_pairs`` the
    end batch's custom metadata, ``edit_blocks`` the footer's (offset, metadata_bytes, body_bytes), ``edit_end`` the end
    batch's bytes. ``compression`` is the rows', ``end_compression`` the end batch's.
    """

    def __init__(self, intact: bytes) -> None:
        reader = pa.ipc.open_file(pa.BufferReader(intact))
        end, pairs = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        self._take(reader.schema, [reader.get_batch(n) for n in range(reader.num_record_batches - 1)], end, pairs)

    def _take(
        self, schema: pa.Schema, batches: list[pa.RecordBatch], end: pa.RecordBatch, pairs: dict[bytes, bytes]
    ) -> None:
        self.schema, self.batches, self.end = schema, batches, end
        self.is_compressed_index = INDEX_ZST.encode() in pairs
        self.index: dict[str, Any] = json.loads(index_text(pairs))
        self.patches: dict[int, Callable[[bytearray], None]] = {}
        self.edit_rows: Callable[[list[dict[str, Any]]], None] = lambda _rows: None
        self.edit_index: Callable[[dict[str, Any]], None] = lambda _index: None
        self.edit_text: Callable[[str], str | bytes] = lambda text: text
        self.edit_pairs: Callable[[dict[Any, Any]], dict[Any, Any]] = lambda pairs: pairs
        self.edit_blocks: Callable[[list[Block]], list[Block]] = lambda blocks: blocks
        self.edit_end: Callable[[bytearray], None] = lambda _row: None
        # An archive's rows too, unless somebody says "zstd": both are allowed, and these can be patched.
        self.compression: str | None = None
        self.end_compression: str | None = None

    def set_column(self, number: int, name: str, array: pa.Array) -> None:
        """Replace a column of a row; the schema takes the array's type, the other rows keep their values."""
        place = self.schema.get_field_index(name)
        field = self.schema.field(place)
        if array.type != field.type:
            self.schema = self.schema.set(place, field.with_type(array.type))
        for n, batch in enumerate(self.batches):
            columns = list(batch.columns)
            if n == number:
                columns[place] = array
            elif array.type != field.type:
                columns[place] = columns[place].cast(array.type)
            self.batches[n] = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in self.schema], schema=self.schema)

    def set_schema(self, schema: pa.Schema) -> None:
        """Replace the schema by one with the same buffers."""
        self.schema = schema
        self.batches = [_reinterpreted(batch, schema) for batch in self.batches]
        self.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)

    def content(self) -> bytes:
        """Return the forged file."""
        # Twice: the index lies behind the rows that it hashes, and one writer writes both.
        written, blocks = self._written({})
        unpatched = [bytearray(written[block[0] : sum(block)]) for block in blocks[:-1]]
        self.index["rows"] = self._index_rows(unpatched, blocks)
        rows = []
        for number, row in enumerate(unpatched):
            self.patches.get(number, lambda _row: None)(row)
            rows.append(bytes(row))
        self.edit_rows(self.index["rows"])
        for stated, row, block in zip(self.index["rows"], rows, blocks, strict=False):
            _rehash(stated, row, block[0])
        self.edit_index(self.index)
        text = self.edit_text(json.dumps(self.index, sort_keys=True, separators=(",", ":")))
        stored = text if isinstance(text, bytes) else text.encode()
        pairs = zst_pairs(zst_frame(stored)) if self.is_compressed_index else {INDEX: stored, INDEX_HASH: xxh3(stored)}
        written, blocks = self._written(self.edit_pairs(pairs))
        content = bytearray(written)
        for row, (offset, *_) in zip(rows, blocks, strict=False):
            content[offset : offset + len(row)] = row
        offset, metadata_bytes, body_bytes = blocks[-1]
        end = bytearray(content[offset : offset + metadata_bytes + body_bytes])
        self.edit_end(end)
        content[offset : offset + len(end)] = end
        for old, new in zip(blocks, self.edit_blocks(list(blocks)), strict=True):
            if old != new:
                at = content.rindex(struct.pack("<qi4xq", *old))
                content[at : at + 24] = struct.pack("<qi4xq", *new)
        return bytes(content)

    def _written(self, pairs: dict[Any, Any]) -> tuple[bytes, list[Block]]:
        """Return the file with its rows and end batch as pyarrow writes them, and their places."""
        content = bytearray(b"ARROW1\0\0" + self.schema.serialize().to_pybytes())
        blocks = []
        for number, batch in enumerate([*self.batches, self.end]):
            is_end = number == len(self.batches)
            message = self._message(
                batch,
                (pairs or None) if is_end else {"hurray_arrow.pad": ""},
                self.end_compression if is_end else self.compression,
            )
            metadata_bytes = 8 + struct.unpack_from("<i", message, 4)[0]
            blocks.append((len(content), metadata_bytes, len(message) - metadata_bytes))
            content += message
        return bytes(content + self._footer(blocks)), blocks

    def _message(self, batch: pa.RecordBatch, pairs: dict[Any, Any] | None, compression: str | None) -> bytes:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(allow_64bit=True, compression=compression)
        with pa.ipc.new_stream(sink, self.schema, options=options) as writer:
            writer.write_batch(batch, custom_metadata=pairs)
        return bytes(sink.getvalue()[self.schema.serialize().size : -8])

    def _footer(self, blocks: list[Block]) -> bytes:
        """Return end marker, footer, its length and the magic: those of a file of empty batches, with these places."""
        sink = pa.BufferOutputStream()
        places = [8 + self.schema.serialize().size]
        with pa.ipc.new_file(sink, self.schema) as writer:
            for _ in blocks:
                writer.write_batch(self.end)
                places.append(sink.tell())
        written = bytearray(sink.getvalue())
        for block, first in zip(blocks, places, strict=False):
            at = written.rindex(struct.pack("<q", first), places[-1])
            written[at : at + 24] = struct.pack("<qi4xq", *block)
        return bytes(written[places[-1] :])

    def _index_rows(self, rows: list[bytearray], blocks: list[Block]) -> list[dict[str, Any]]:
        self.index["schema_xxh3"] = schema_xxh3(self.schema)
        columns = column_places(self.schema)
        return [
            {
                **{key: value for key, value in self.index["rows"][number].items() if key != "checksums_offset"},
                **dict(zip(("offset", "metadata_bytes", "body_bytes"), block, strict=True)),
                **(_pages_of(RowBytes(row), columns, block[0]) if "head_xxh3" in self.index["rows"][number] else {}),
            }
            for number, (row, block) in enumerate(zip(rows, blocks, strict=False))
        ]


def _pages_of(row: RowBytes, columns: dict[str, tuple[int, int]], offset: int) -> dict[str, int]:
    """Return where a row's pages and checksums lie in the file, by the buffers that its header states."""
    stated = {"pages_offset": offset + len(row.row), "pages_bytes": 0}
    if row.header_type != RECORD_BATCH:
        return stated
    for path, (_, first) in columns.items():
        values = first + (2 if path == "pool_bytes" else 1)
        if (path.startswith("page_pool") and path.endswith(".item.item")) or path == "pool_bytes":
            start, size = row.buffer(values)
            if size:
                stated |= {"pages_offset": offset + start, "pages_bytes": size}
        if path == "page_checksums.item" and row.buffer(values)[1]:
            stated |= {"checksums_offset": offset + row.buffer(values)[0]}
    return stated


def index_text(pairs: dict[bytes, bytes]) -> bytes:
    if INDEX.encode() in pairs:
        return pairs[INDEX.encode()]
    return zstandard.decompress(base64.b64decode(pairs[INDEX_ZST.encode()]))


def _rehash(stated: dict[str, Any], row: bytes, offset: int) -> None:
    if "row_xxh3" in stated:
        stated["row_xxh3"] = xxh3(row)
    if "head_xxh3" not in stated:
        return
    pages = (stated.get("pages_offset") or 0) - offset
    pages_end = pages + stated.get("pages_bytes", 0)
    if 0 <= pages <= pages_end:
        stated["head_xxh3"], stated["tail_xxh3"] = xxh3(row[:pages]), xxh3(row[pages_end:])
    if "bare_head_xxh3" in stated:
        checksums = (stated.get("checksums_offset") or 0) - offset
        bare = row[:checksums] + row[checksums + 8 * stated["num_pages"] : pages]
        stated["bare_head_xxh3"] = xxh3(bare)


def schema_xxh3(schema: pa.Schema) -> str:
    """Hash a schema as section 4 of the format page says."""

    def canonical(field: pa.Field) -> list[Any]:
        kind, name, metadata = field.type, None, None
        if isinstance(kind, pa.ExtensionType):
            name, metadata = kind.extension_name, kind.__arrow_ext_serialize__().decode("utf-8", "backslashreplace")
            kind = kind.storage_type
        elif b"ARROW:extension:name" in (field.metadata or {}):
            name = field.metadata[b"ARROW:extension:name"].decode("utf-8", "backslashreplace")
            metadata = field.metadata.get(b"ARROW:extension:metadata", b"").decode("utf-8", "backslashreplace")
        names = {"fixed_size_list": pa.types.is_fixed_size_list, "large_list": pa.types.is_large_list}
        names |= {"list": pa.types.is_list, "struct": pa.types.is_struct}
        type_name = next((text for text, holds in names.items() if holds(kind)), str(kind))
        size = kind.list_size if type_name == "fixed_size_list" else None
        children = [canonical(kind.field(n)) for n in range(kind.num_fields)]
        return [field.name, field.nullable, type_name, size, name, metadata, children]

    pairs = sorted(
        [key.decode(), value.decode("utf-8", "backslashreplace")] for key, value in (schema.metadata or {}).items()
    )
    fields = [canonical(field) for field in schema]
    return xxh3(json.dumps([pairs, fields], separators=(",", ":"), ensure_ascii=False).encode())


def _reinterpreted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_as_type(column, field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same buffers under another type."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    if isinstance(kind, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(kind, _as_type(storage, kind.storage_type))
    if not kind.num_fields and kind.num_buffers == 2 and not pa.types.is_dictionary(kind):
        return pa.Array.from_buffers(kind, len(storage), storage.buffers())
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return storage
    if kind.num_fields != storage.type.num_fields:
        return storage
    own = storage.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    child = _as_type(storage.values, kind.value_type)
    return pa.Array.from_buffers(kind, len(storage), own, children=[child])


def zst_pairs(frame: bytes) -> dict[str, Any]:
    """Return the end batch's custom metadata with an index in one zstd frame, right hash included."""
    stored = base64.b64encode(frame)
    return {INDEX_ZST: stored, INDEX_HASH: xxh3(stored)}


def zst_frame(text: bytes, *, states_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=states_size).compress(text)


# -- a row's bytes -------------------------------------------------------------------------------------------------


def column_places(schema: pa.Schema) -> dict[str, tuple[int, int]]:
    """Return each array's (number of its field node, of its first buffer) by its path, such as ``block_table.item``."""
    places: dict[str, tuple[int, int]] = {}
    counts = [0, 0]

    def walk(path: str, kind: pa.DataType) -> None:
        kind = kind.storage_type if isinstance(kind, pa.ExtensionType) else kind
        places[path] = (counts[0], counts[1])
        counts[0] += 1
        counts[1] += _own_buffers(kind)
        for n in range(kind.num_fields):
            walk(f"{path}.{kind.field(n).name}", kind.field(n).type)

    for field in schema:
        walk(field.name, field.type)
    return places


def _own_buffers(kind: pa.DataType) -> int:
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return 1
    three = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return 3 if any(holds(kind) for holds in three) else 2


def untype(data: bytearray, start: int = 0) -> None:
    """Make the message at ``start`` one that does not say what it holds, which Arrow then does not verify."""
    table = start + 8 + struct.unpack_from("<I", data, start + 8)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    # The entry of the header's type.
    struct.pack_into("<H", data, vtable + 4 + 2, 0)


class RowBytes:
    """Places in the bytes of a record batch message."""

    def __init__(self, row: bytearray) -> None:
        self.row = row
        (size,) = struct.unpack_from("<i", row, 4)
        self.body = 8 + size
        message = 8 + self._u32(8)
        self.header_type = row[self._field(message, 1)]
        batch = self._target(message, 2)
        self.length = self._field(batch, 0)
        self.nodes = self._target(batch, 1) + 4
        self.buffers = self._target(batch, 2) + 4

    def node(self, number: int) -> int:
        """Return the place of a field node: int64 length, int64 null_count."""
        return self.nodes + 16 * number

    def buffer(self, number: int) -> tuple[int, int]:
        """Return the place in the row of a buffer's bytes, and their number."""
        offset, size = struct.unpack_from("<qq", self.row, self.buffers + 16 * number)
        return self.body + offset, size

    def set_buffer(self, number: int, offset: int, size: int) -> None:
        struct.pack_into("<qq", self.row, self.buffers + 16 * number, offset, size)

    def _u32(self, place: int) -> int:
        return struct.unpack_from("<I", self.row, place)[0]

    def _field(self, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", self.row, table)[0]
        return table + struct.unpack_from("<H", self.row, vtable + 4 + 2 * number)[0]

    def _target(self, table: int, number: int) -> int:
        place = self._field(table, number)
        return place + self._u32(place)
