"""Arrow's own headers as bare bytes: footers, messages, the tail of a file; read by hand before Arrow sees them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import pyarrow as pa

from hurray_arrow.arrow import ipc_layout
from hurray_arrow.arrow.ipc_file import file_tail
from hurray_arrow.arrow.ipc_layout import Block, IpcLayoutError
from tests.fuzz.bases import archives, share_files, small_stream
from tests.fuzz.choices import Choices
from tests.fuzz.limits import bounded, promise
from tests.fuzz.targets.streams import messages_of

READERS: tuple[Callable[[bytes], Any], ...] = (
    *(ipc_layout.footer_blocks, ipc_layout.check_footer, ipc_layout.batch_layout, ipc_layout.message_kind),
    *(ipc_layout.check_message, ipc_layout.footer_bytes_of, ipc_layout.encapsulated, ipc_layout.record_batches_field),
)
#: An input's first byte: bytes as they are, a script over a real header, or a schema of more than anybody has.
RAW, SCRIPT, LARGE = range(3)
#: Fields and bytes of metadata of a large schema.
_FIELDS, _METADATA_BYTES = (1, 50, 500, 501), (0, 100, 4096, 4097)


@cache
def _headers() -> tuple[bytes, ...]:
    """Return footers, a schema's and batches' messages, the end of a file, encapsulated messages."""
    found = []
    for content in (share_files()[0], share_files()[1], archives()[1]):
        size = ipc_layout.footer_bytes_of(content[-ipc_layout.TAIL_BYTES :])
        found += [content[-ipc_layout.TAIL_BYTES - size : -ipc_layout.TAIL_BYTES], content[-ipc_layout.TAIL_BYTES :]]
    for message in messages_of(small_stream())[:-1]:
        size = int.from_bytes(message[4:8], "little")
        found += [message[8 : 8 + size], message[: 8 + size]]
    schema = pa.schema([("a", pa.int8())], metadata={"k": "v"})
    found.append(schema.serialize().to_pybytes()[8:])
    return tuple(found)


def seeds() -> Iterator[bytes]:
    """Yield the headers as they are, and with numbers in them changed."""
    for number, header in enumerate(_headers()):
        yield bytes([RAW]) + header[:4095]
        for place in range(0, min(len(header), 400), 8):
            yield bytes([SCRIPT, number, place % 256, place // 256, 4, place % 60, place % 256])
    yield from (bytes([RAW]) + text for text in (b"", b"ARROW1", b"\xff" * 8, b"\xff" * 4 + bytes(60)))
    yield from (bytes([LARGE, number % 4, number // 4 % 4, number // 16]) for number in range(32))


def run(data: bytes) -> None:
    """Give a header to every reader of headers: what it says, or an error of theirs."""
    choices = Choices(data)
    match choices.below(3):
        case 0:
            header = choices.rest()
        case 1:
            header = _changed(choices.pick(_headers()), choices)
        case _:
            header = _large(choices.pick(_FIELDS), choices.pick(_METADATA_BYTES), choices.flag())
    # Bounds that a header of a few KiB passes; nobody else in this process has them.
    small = mock.patch.multiple(ipc_layout, MAX_FIELDS=500, MAX_METADATA_BYTES=4096)
    with bounded(len(header)), small:
        found = [_read(reader, header) for reader in READERS]
        blocks = found[0]
        if blocks is not None and len(blocks) < 100:
            _look_at(blocks)


def _read(reader: Callable[[bytes], Any], header: bytes) -> Any:
    try:
        return reader(header)
    except IpcLayoutError as error:
        promise(str(error) and len(str(error)) < 500, "an error that says nothing, or too much")
        return None


@cache
def _large(fields: int, metadata_bytes: int, is_footer: bool) -> bytes:  # noqa: FBT001 - a choice
    """Return a footer or a message of a schema: half of the fields beside each other, the others in the last."""
    inner = pa.struct([pa.field("", pa.int8())] * (fields // 2))
    schema = pa.schema([pa.field("", pa.int8())] * (fields - fields // 2 - 1) + [pa.field("", inner)])
    schema = schema.with_metadata({"k": "x" * metadata_bytes})
    if not is_footer:
        return schema.serialize().to_pybytes()[8:]
    tail = file_tail(schema, [])
    size = ipc_layout.footer_bytes_of(tail)
    return bytes(tail[-ipc_layout.TAIL_BYTES - size : -ipc_layout.TAIL_BYTES])


def _changed(header: bytes, choices: Choices) -> bytes:
    changed = bytearray(header)
    while choices.more:
        place, width = choices.number(2) % max(len(changed) - 8, 1), choices.pick((1, 2, 4, 8, 4))
        kind = choices.below(4)
        if kind == 3:
            del changed[choices.number(2) % (len(changed) + 1) :]
            changed += choices.chunk(choices.below(9))
            continue
        old = int.from_bytes(changed[place : place + width], "little")
        new = choices.integer(old) if kind else old + choices.below(32) - 16
        changed[place : place + width] = (new % 256**width).to_bytes(width, "little")
    return bytes(changed)


def _look_at(blocks: list[Block]) -> None:
    """Write a tail with the same blocks, and read them out of it again."""
    try:
        tail = file_tail(pa.schema([("a", pa.int8())]), blocks)
    except struct.error:
        # A place that no footer can state.
        return
    size = ipc_layout.footer_bytes_of(tail)
    again = ipc_layout.footer_blocks(tail[-ipc_layout.TAIL_BYTES - size : -ipc_layout.TAIL_BYTES])
    promise(again == blocks, "a footer of other blocks")
