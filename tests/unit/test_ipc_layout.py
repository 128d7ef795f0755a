"""Our few reads of Arrow's flatbuffers against what pyarrow wrote, and against bytes that are none of it."""

from __future__ import annotations

import contextlib
import io
import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow.arrow.ipc_file import checked_messages
from hurray_arrow.arrow.ipc_layout import (
    HEAD_BYTES,
    MAX_FIELDS,
    TAIL_BYTES,
    Block,
    IpcLayoutError,
    batch_layout,
    check_footer,
    check_message,
    encapsulated,
    footer_blocks,
    footer_bytes_of,
)
from tests.faults.attacks import headers

CODECS = {None: None, "lz4": 0, "zstd": 1}


def columns(rows):
    return pa.record_batch(
        {
            "n": pa.array(np.arange(rows, dtype=np.uint16)),
            "s": pa.array([None if row % 3 == 1 else "x" * row for row in range(rows)], pa.utf8()),
            "l": pa.array([[row] * row for row in range(rows)], pa.large_list(pa.int8())),
        }
    )


def file_of(batches, *, compression=None, metadata=None):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, columns(1).schema, options=options) as writer:
        for number, batch in enumerate(batches):
            writer.write_batch(batch, custom_metadata={"pad": "0" * (8 * number)} if metadata else None)
    return sink.getvalue()


def parts(data):
    """The footer and its blocks."""
    size = footer_bytes_of(data[-TAIL_BYTES:])
    footer = data[-TAIL_BYTES - size : -TAIL_BYTES]
    return footer, footer_blocks(footer)


def flatbuffer(data, block):
    return encapsulated(data[block.offset : block.offset + block.metadata_bytes])


@pytest.mark.parametrize("count", [0, 1, 2, 17])
@pytest.mark.parametrize("metadata", [False, True])
def test_blocks_are_where_the_batches_lie(count, metadata):
    batches = [columns(rows + 1) for rows in range(count)]
    data = file_of(batches, metadata=metadata)
    _, blocks = parts(data)
    assert len(blocks) == count
    schema = columns(1).schema
    end = HEAD_BYTES + schema.serialize().size
    for batch, block in zip(batches, blocks, strict=True):
        assert block.offset == end
        end = block.end
        message = pa.ipc.read_message(data[block.offset : block.end])
        assert pa.ipc.read_record_batch(message, schema).equals(batch)
        assert message.metadata.to_pybytes() == bytes(flatbuffer(data, block))
        assert message.body.size == block.body_bytes


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_batchs_buffers_are_where_pyarrow_finds_them(compression, rows):
    batch = columns(rows)
    data = file_of([batch], compression=compression)
    _, [block] = parts(data)
    layout = batch_layout(flatbuffer(data, block))
    assert layout.num_rows == rows
    assert layout.compression == CODECS[compression]
    body = data[block.offset + block.metadata_bytes : block.end]
    # Validity and data of n; validity, offsets, data of s; validity, offsets of l, validity and data of its items.
    assert len(layout.buffers) == 9
    assert all(start >= 0 and size >= 0 and start + size <= len(body) for start, size in layout.buffers)
    if compression is None:
        start, size = layout.buffers[1]
        assert body[start : start + size] == np.arange(rows, dtype=np.uint16).tobytes()
        start, size = layout.buffers[8]
        assert body[start : start + size] == b"".join(bytes([row]) * row for row in range(rows))


def test_a_block_ends_after_its_body():
    assert Block(104, 24, 800).end == 928


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"ARROW1",
        b"\0" * 10,
        struct.pack("<i", 16) + b"ARROW2",
        struct.pack("<i", 0) + b"ARROW1",
        struct.pack("<i", -16) + b"ARROW1",
        struct.pack("<I", 2**31) + b"ARROW1",
    ],
)
def test_tails_that_are_none(tail):
    with pytest.raises(IpcLayoutError):
        footer_bytes_of(tail)


def test_a_tail_may_be_longer():
    assert footer_bytes_of(b"before" + struct.pack("<i", 2**31 - 1) + b"ARROW1") == 2**31 - 1


def test_a_footer_with_dictionaries_is_refused():
    sink = io.BytesIO()
    batch = pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode()})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(IpcLayoutError):
        parts(sink.getvalue())


def test_a_schema_message_is_no_record_batch():
    message = columns(1).schema.serialize().to_pybytes()
    with pytest.raises(IpcLayoutError):
        batch_layout(encapsulated(message))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff" * 7,
        struct.pack("<Ii", 0, 8) + b"x" * 8,
        struct.pack("<Ii", 0xFFFFFFFF, 0),
        struct.pack("<Ii", 0xFFFFFFFF, -8) + b"x" * 8,
        struct.pack("<Ii", 0xFFFFFFFF, 9) + b"x" * 8,
    ],
)
def test_messages_that_are_none(message):
    with pytest.raises(IpcLayoutError):
        encapsulated(message)


def test_a_message_may_be_followed_by_anything():
    assert bytes(encapsulated(struct.pack("<Ii", 0xFFFFFFFF, 8) + b"12345678rest")) == b"12345678"


def nested_schema():
    """Every kind of field that has something of its own: children, metadata, a time zone, a union's numbers."""
    union = pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.utf8())], [3, 7])
    inner = pa.struct([pa.field("t", pa.timestamp("us", "Europe/Berlin")), pa.field("u", union)])
    fields = [pa.field("l", pa.list_(pa.field("item", inner, metadata={"k": "v" * 50}))), pa.field("n", pa.null())]
    return pa.schema(fields, metadata={"key": "value"})


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        nested_schema(),
        columns(1).schema,
        pa.schema([pa.field("", pa.int8())] * 1013),
        pa.schema([pa.field("a" * 100_000, pa.int8(), metadata={"": "x" * 1000})]),
        pa.schema([pa.field(str(number), pa.int8()) for number in range(MAX_FIELDS)]),
    ],
    ids=["empty", "nested", "columns", "without names", "long names", "as many as are read"],
)
def test_what_pyarrow_writes_unfolds_to_what_it_is(schema):
    check_message(encapsulated(schema.serialize().to_pybytes()))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions()):
        pass
    data = sink.getvalue()
    check_footer(data[-TAIL_BYTES - footer_bytes_of(data) : -TAIL_BYTES])


def test_more_fields_than_anybody_needs_are_refused():
    schema = pa.schema([pa.field(str(number), pa.struct([("a", pa.int8())])) for number in range(MAX_FIELDS // 2 + 1)])
    with pytest.raises(IpcLayoutError, match=str(MAX_FIELDS)):
        check_message(encapsulated(schema.serialize().to_pybytes()))


#: Offsets lead forward, so that a loop leads out.
UNFOLDED = "again and again|leads out"
COPIED = {
    "pairs": lambda header, schema: headers.repeat_pairs(header, schema, headers.PAIRS_IN_SCHEMA, count=100, size=1000),
    "fields": lambda header, schema: headers.repeat_fields(header, schema, count=100, size=1000),
    "children": lambda header, schema: headers.repeat_children(header, schema, depth=12),
    "many children": lambda header, schema: headers.repeat_children(header, schema, depth=3, count=1000),
    "its own child": headers.be_ones_own_child,
    "time zones": lambda header, schema: headers.repeat_time_zones(header, schema, count=100, size=1000),
    "unions": lambda header, schema: headers.repeat_time_zones(
        header, schema, count=100, size=1000, type_number=headers.UNION
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_is_referred_to_many_times_is_refused(name):
    """pyarrow copies it for each reference: some kilobytes are any number of gigabytes."""
    plain = encapsulated(pa.schema([("a", pa.int8())], metadata={"k": "v"}).serialize().to_pybytes())
    header = headers.Header(plain)
    COPIED[name](header, header.target(header.place(header.root(), headers.SCHEMA_IN_MESSAGE)))
    with pytest.raises(IpcLayoutError, match=UNFOLDED):
        check_message(header.data)
    data = file_of([columns(3)])
    footer, _ = parts(data)
    header = headers.Header(footer)
    schema = header.target(header.place(header.root(), headers.SCHEMA_IN_FOOTER))
    if name != "pairs":
        COPIED[name](header, schema)
        with pytest.raises(IpcLayoutError, match=UNFOLDED):
            check_footer(header.data)


def test_a_schema_has_no_more_metadata_than_anybody_needs():
    for size, refused in ((8 << 20, True), ((8 << 20) - 100, False)):
        schema = pa.schema([("a", pa.int8())], metadata={"k": "v" * size})
        message = encapsulated(schema.serialize().to_pybytes())
        with pytest.raises(IpcLayoutError) if refused else contextlib.nullcontext():
            check_message(message)


def test_a_batchs_metadata_are_no_larger_than_its_header():
    data = file_of([columns(3), columns(3)], metadata=True)
    _, [_, block] = parts(data)
    header = headers.Header(flatbuffer(data, block))
    assert batch_layout(header.data).num_rows == 3
    headers.repeat_pairs(header, header.root(), headers.PAIRS_IN_MESSAGE, count=100, size=1000)
    for read in (batch_layout, check_message):
        with pytest.raises(IpcLayoutError, match=UNFOLDED):
            read(header.data)


def test_messages_are_read_one_after_another_and_none_that_unfolds():
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, columns(1).schema) as writer:
        for rows in (3, 5):
            writer.write_batch(columns(rows))
    stream = sink.getvalue()
    schema, *batches = checked_messages(pa.py_buffer(stream + b"behind the end marker"))
    assert pa.ipc.read_schema(schema) == columns(1).schema
    assert [pa.ipc.read_record_batch(each, columns(1).schema).num_rows for each in batches] == [3, 5]
    header = headers.Header(encapsulated(stream))
    schema = header.target(header.place(header.root(), headers.SCHEMA_IN_MESSAGE))
    headers.repeat_fields(header, schema, count=1000, size=1000)
    hostile = struct.pack("<Ii", 0xFFFFFFFF, len(header.data)) + bytes(header.data)
    with pytest.raises(IpcLayoutError):
        list(checked_messages(pa.py_buffer(hostile)))


def test_every_cut_and_every_flip_gives_a_result_or_our_error():
    """No IndexError, struct.error or endless loop on bytes that pretend to be Arrow's."""
    data = file_of([columns(3), columns(5)])
    footer, [first, _] = parts(data)
    batch = bytes(flatbuffer(data, first))
    refused = 0
    schema = bytes(encapsulated(nested_schema().serialize().to_pybytes()))
    for read, whole in (
        (footer_blocks, footer),
        (check_footer, footer),
        (batch_layout, batch),
        (check_message, batch),
        (check_message, schema),
    ):
        cuts = [whole[:length] for length in range(len(whole))]
        flips = []
        for place in range(8 * len(whole)):
            changed = bytearray(whole)
            changed[place // 8] ^= 1 << place % 8
            flips.append(bytes(changed))
        noise = random.Random(17)
        flips += [noise.randbytes(len(whole)) for _ in range(500)]
        for hostile in cuts + flips:
            try:
                read(hostile)
            except IpcLayoutError:
                refused += 1
    assert refused > 500
