"""The pieces of an Arrow IPC file, made one by one: head, record batches, tail.

pyarrow's file writer wants one sink and one thread, and its ``__exit__`` writes a valid footer under an unfinished
file. Here batches are encoded wherever there is a core, and the footer exists when somebody asks for it.

Spec: Arrow columnar format, "IPC File Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import (
    CONTINUATION,
    END_MARKER,
    HEAD_BYTES,
    MAGIC,
    TAIL_BYTES,
    Block,
    IpcLayoutError,
    check_message,
    encapsulated,
    footer_bytes_of,
    message_kind,
    record_batches_field,
)

#: A page pool may hold more than 2^31 values; threads are ours to start.
PLAIN_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True, use_threads=False)


def file_head(schema: pa.Schema) -> bytes:
    """Return what stands before the first batch: magic and schema."""
    return bytes(MAGIC.ljust(HEAD_BYTES, b"\0") + schema.serialize().to_pybytes())


def file_tail(schema: pa.Schema, blocks: Sequence[Block]) -> bytes:
    """Return what stands after the last batch: end marker, footer, its length, magic."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(empty_batch(schema))
    written = sink.getvalue().to_pybytes()
    footer = bytearray(written[-TAIL_BYTES - footer_bytes_of(written) : -TAIL_BYTES])
    # A flatbuffer's vector may lie anywhere behind the field that points at it: the real blocks go to the end.
    field = record_batches_field(bytes(footer))
    footer += bytes(-(len(footer) + 4) % 8)
    struct.pack_into("<I", footer, field, len(footer) - field)
    footer += struct.pack("<I", len(blocks)) + b"".join(struct.pack("<qi4xq", *block) for block in blocks)
    return struct.pack("<II", CONTINUATION, 0) + bytes(footer) + struct.pack("<i", len(footer)) + MAGIC


def write_batch(
    sink: Any,
    batch: pa.RecordBatch,
    *,
    custom_metadata: Mapping[str, str] | None = None,
    options: pa.ipc.IpcWriteOptions = PLAIN_OPTIONS,
) -> int:
    """Write the batch's schema and then the batch, encapsulated, to a sink of pyarrow's.

    Returns
    -------
    int
        How many bytes the schema takes, which a file has only once: the sink or its reader leaves them out.
    """
    writer = pa.ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch, custom_metadata=dict(custom_metadata or {}))
    return int(batch.schema.serialize().size)


def encoded_batch(
    batch: pa.RecordBatch,
    *,
    custom_metadata: Mapping[str, str] | None = None,
    options: pa.ipc.IpcWriteOptions = PLAIN_OPTIONS,
) -> pa.Buffer:
    """Return one encapsulated record batch in new memory, as it lies in a file."""
    sink = pa.BufferOutputStream()
    schema_bytes = write_batch(sink, batch, custom_metadata=custom_metadata, options=options)
    return sink.getvalue().slice(schema_bytes)


def custom_metadata_of(
    batch: pa.Buffer, schema_message: bytes | memoryview | pa.Buffer
) -> Mapping[bytes, bytes] | None:
    """Return an encapsulated record batch's custom metadata, which pyarrow tells of a stream alone; copies both."""
    stream = pa.ipc.open_stream(pa.py_buffer(b"".join([memoryview(schema_message), memoryview(batch)])))
    pairs: Mapping[bytes, bytes] | None = stream.read_next_batch_with_custom_metadata()[1]
    return pairs


def block_of(offset: int, message_start: bytes | memoryview, total_bytes: int) -> Block:
    """Return the place of an encapsulated batch of ``total_bytes`` at ``offset``, from its first 8 bytes."""
    metadata_bytes = 8 + struct.unpack_from("<i", message_start, 4)[0]
    return Block(offset, metadata_bytes, total_bytes - metadata_bytes)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def checked_messages(data: pa.Buffer) -> Iterator[pa.ipc.Message]:
    """Yield the messages that a stream begins with, until its end marker or its last byte.

    Raises
    ------
    IpcLayoutError
        As :func:`checked_message`.
    """
    while data.size and data[: len(END_MARKER)] != END_MARKER:
        header = encapsulated(memoryview(data))
        end = min(len(END_MARKER) + len(header) + message_kind(header)[1], data.size)
        yield checked_message(data.slice(0, end))
        data = data.slice(end)


def checked_message(data: pa.Buffer) -> pa.ipc.Message:
    """Return the message that lies in a buffer, once its header is known to be no larger than its bytes.

    Raises
    ------
    IpcLayoutError
        No message, or as :func:`~hurray_arrow.arrow.ipc_layout.check_message`.
    """
    check_message(encapsulated(memoryview(data)))
    return pa.ipc.read_message(data)


def schema_of(message: pa.ipc.Message) -> pa.Schema:
    """Return the schema that a message holds: Arrow takes whatever a message holds for one, unverified.

    Raises
    ------
    IpcLayoutError
        It holds no schema.
    """
    if message.type != "schema":
        raise IpcLayoutError(f"a message of type {message.type!r}, expected a schema")
    return pa.ipc.read_schema(message)
