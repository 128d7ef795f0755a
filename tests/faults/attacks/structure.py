"""Attacks on memory by what holds a file together: sizes, compressed bytes, headers that unfold."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from hurray_arrow import BlockPagedDescriptor, BlockPagedTensor, write_snapshot
from tests.faults import hostile_archives
from tests.faults.attacks import headers
from tests.faults.attacks.attack import (
    INCOMPLETE,
    TAKEN,
    archive,
    attack,
    forged,
    share,
    stream,
    written,
)
from tests.faults.forgery import Forgery, RowBytes, column_places

HUGE = 1 << 40
SIZES, BOMBS, HEADERS = "Sizes that multiply", "Bombs", "Headers that unfold"


# -- sizes that multiply -----------------------------------------------------------------------------------------------


@forged(share, SIZES, "the index says that a tensor has 2⁴⁰ pages", stopped_by="column_mismatch", at="read")
def pages_of_terabytes_in_the_index(forgery: Forgery) -> None:
    forgery.edit_rows = lambda rows: rows[1].update(num_pages=HUGE)


@forged(share, SIZES, "… and that each has 2⁴⁰ × 2⁴⁰ × 2⁴⁰ elements", stopped_by="column_mismatch", at="read")
def a_page_shape_of_terabytes_in_the_index(forgery: Forgery) -> None:
    forgery.edit_rows = lambda rows: rows[1].update(num_pages=HUGE, page_shape=[HUGE] * 3)


@forged(share, SIZES, "index and descriptor agree on 2⁴⁰ pages", stopped_by="page_pool_size", at="read")
def pages_of_terabytes_everywhere(forgery: Forgery) -> None:
    column = forgery.batches[0].column("descriptor")
    descriptor = bytearray(column[0].as_py())
    num_pages = struct.pack("<Q", BlockPagedDescriptor.decode(bytes(descriptor)).num_pages)
    places = [at for at in range(len(descriptor) - 7) if descriptor[at : at + 8] == num_pages]
    for at in places:
        changed = descriptor[:at] + struct.pack("<Q", HUGE) + descriptor[at + 8 :]
        try:
            found = BlockPagedDescriptor.decode(bytes(changed)).num_pages
        except ValueError:
            continue
        if found == HUGE:
            forgery.set_column(0, "descriptor", pa.array([bytes(changed)], column.type))
    forgery.edit_rows = lambda rows: rows[0].update(num_pages=HUGE)


@attack(SIZES, "2⁴⁰ pages of no elements, which take no bytes", stopped_by=TAKEN)
def pages_of_nothing() -> bytes:
    tensor = BlockPagedTensor.from_arrays(
        np.empty((1 << 40, 3, 2, 0), np.float16), block_tables=[[7, (1 << 32) - 1]], seq_lens=[5], kv_role="key"
    )
    return written(lambda path: write_snapshot(path, [tensor]))


def _node(path: str, length: int) -> Callable[[Forgery], None]:
    """Let a field node of the first row state another length."""

    def change(forgery: Forgery) -> None:
        number, _ = column_places(forgery.schema)[path]
        forgery.patches[0] = lambda row: struct.pack_into("<q", row, RowBytes(row).node(number), length)

    return change


def _buffer(path: str, number: int, size: int) -> Callable[[Forgery], None]:
    """Let a buffer of the first row state another size."""

    def change(forgery: Forgery) -> None:
        _, first = column_places(forgery.schema)[path]
        forgery.patches[0] = lambda row: struct.pack_into(
            "<q", row, RowBytes(row).buffers + 16 * (first + number) + 8, size
        )

    return change


for _name, _tries, _change in (
    ("a_length_of_terabytes", "a row's header states 2⁴⁰ page ids", _node("block_table.item.item", HUGE)),
    ("a_buffer_of_terabytes", "… a buffer of 2⁴⁰ bytes", _buffer("block_table.item.item", 1, HUGE)),
    ("a_negative_length", "… −1 sequences", _node("sequences.item", -1)),
    ("a_negative_buffer", "… a buffer of −8 bytes", _buffer("descriptor", 2, -8)),
):
    forged(share, SIZES, _tries, stopped_by="arrow_invalid", at="read", name=_name)(_change)


@forged(share, SIZES, "the footer lists a batch of 2⁴⁰ bytes", stopped_by="footer_invalid")
def a_batch_of_terabytes(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], (blocks[1][0], blocks[1][1], HUGE), *blocks[2:]]


@forged(share, SIZES, "… one of −2⁴⁰ bytes", stopped_by="footer_invalid")
def a_batch_of_negative_size(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], (blocks[1][0], blocks[1][1], -HUGE), *blocks[2:]]


@attack(SIZES, "the footer states that it is 2³¹ − 1 bytes long", stopped_by=INCOMPLETE)
def a_footer_longer_than_its_file() -> bytes:
    return share()[:-10] + struct.pack("<i", 2**31 - 1) + b"ARROW1"


@attack(SIZES, "a stream's header states that it is 2 GiB long", stopped_by="arrow_invalid", at="open", is_stream=True)
def a_header_of_gigabytes() -> bytes:
    return stream()[:4] + struct.pack("<I", 2**31 - 8) + stream()[8:]


@attack(SIZES, "… its first row a body of 2⁴⁰ bytes", stopped_by="arrow_invalid", at="read", is_stream=True)
def a_body_of_terabytes() -> bytes:
    first = 8 + struct.unpack_from("<i", stream(), 4)[0]
    size = struct.unpack_from("<i", stream(), first + 4)[0]
    header = headers.Header(stream()[first + 8 : first + 8 + size])
    struct.pack_into("<q", header.data, header.place(header.root(), headers.BODY_IN_MESSAGE), HUGE)
    return stream()[: first + 8] + bytes(header.data[:size]) + stream()[first + 8 + size :]


# -- bombs -------------------------------------------------------------------------------------------------------------


#: name: what it tries, and the case of hostile_archives.py; each is stopped before anything is decompressed.
_IN_COMPRESSED_ROWS = {
    "a_table_that_states_a_gigabyte": ("a compressed table states 1 GiB", "a buffer block_table states 1 GiB"),
    "pages_that_state_more_than_their_row": (
        "a row's pages state 8 MiB, its index says 12 bytes",
        "a buffer page_pool.item.b1.item states 8 MiB",
    ),
    "pages_that_are_a_bomb": ("… hold a MiB of zeros", "a bomb in the pages"),
    "one_bomb_in_every_buffer": ("all buffers of a row are one frame of 60 MiB", "one_frame_in_every_buffer"),
}
for _name, (_tries, _case) in _IN_COMPRESSED_ROWS.items():
    _change = hostile_archives.CASES[_case]
    forged(archive, BOMBS, _tries, stopped_by="arrow_invalid", at="read", name=_name)(_change)


@attack(BOMBS, "a page of 100 MiB of zeros, in 10 KB", stopped_by="arrow_invalid", at="read")
def a_page_of_zeros() -> bytes:
    pool = np.zeros((1, 1, 1, 100 << 20), np.uint8)
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[0]], seq_lens=[1], kv_role="key", element_type="uint8")
    forgery = Forgery(written(lambda path: write_snapshot(path, [tensor], profile="archive")))
    forgery.compression = "zstd"
    return forgery.content()


@attack(BOMBS, "pages that take no bytes and 100 MiB of checksums, in 12 KB", stopped_by="arrow_invalid", at="read")
def checksums_of_nothing() -> bytes:
    pool = np.empty((1 << 40, 3, 2, 0), np.float16)
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[7]], seq_lens=[3], kv_role="key")
    forgery = Forgery(written(lambda path: write_snapshot(path, [tensor], profile="archive")))
    kind = forgery.schema.field("page_checksums").type
    checksums = pa.array(np.zeros(13 << 20, np.uint64))
    offsets = pa.py_buffer(np.array([0, len(checksums)], np.int64))
    forgery.set_column(0, "page_checksums", pa.Array.from_buffers(kind, 1, [None, offsets], children=[checksums]))
    forgery.compression = "zstd"
    return forgery.content()


@forged(share, BOMBS, "the end batch is compressed and states 100 MiB", stopped_by="footer_invalid")
def an_end_batch_that_is_a_bomb(forgery: Forgery) -> None:
    forgery.end_compression = "zstd"

    def edit(row: bytearray) -> None:
        for start, size in map(RowBytes(row).buffer, range(81)):
            if size >= 8:
                struct.pack_into("<q", row, start, 100 << 20)

    forgery.edit_end = edit


@forged(share, BOMBS, "rows of the share profile are compressed", stopped_by="arrow_invalid", at="read")
def compressed_share_rows(forgery: Forgery) -> None:
    forgery.compression = "lz4"


@attack(BOMBS, "90,000 sequences of which nothing is known, in 10 KB", stopped_by=TAKEN)
def sequences_in_a_few_kilobytes() -> bytes:
    return _sequences(90_000)


@attack(BOMBS, "… 200,000", stopped_by="arrow_invalid", at="read")
def too_many_sequences_in_a_few_kilobytes() -> bytes:
    return _sequences(200_000)


def _sequences(count: int) -> bytes:
    tensor = BlockPagedTensor.from_arrays(
        np.zeros((1, 1, 1, 1), np.uint8),
        block_table=np.zeros(1, np.uint32),
        seq_ptr=np.repeat(np.uint32([0, 1]), [1, count]),
        seq_lens=[1] + [0] * (count - 1),
        token_ids=[[7]] + [[]] * (count - 1),
        kv_role="key",
        element_type="uint8",
    )
    forgery = Forgery(written(lambda path: write_snapshot(path, [tensor], profile="archive")))
    forgery.compression = "zstd"
    return forgery.content()


# -- headers that unfold -----------------------------------------------------------------------------------------------


class _Unfolding(Forgery):
    """A forgery whose footer, rows' headers or end batch's header are added to."""

    footer: Any = staticmethod(lambda _header: None)
    row: Any = None
    last: Any = None

    def _message(self, batch: pa.RecordBatch, pairs: dict[Any, Any] | None, compression: str | None) -> bytes:
        message = super()._message(batch, pairs, compression)
        change = self.last if batch is self.end else self.row
        if change is None or not pairs:
            return message
        size = struct.unpack_from("<i", message, 4)[0]
        header = headers.Header(message[8 : 8 + size])
        change(header)
        return struct.pack("<Ii", 0xFFFFFFFF, len(header.data)) + bytes(header.data) + message[8 + size :]

    def _footer(self, blocks: list[tuple[int, int, int]]) -> bytes:
        whole = super()._footer(blocks)
        (size,) = struct.unpack_from("<i", whole, len(whole) - 10)
        header = headers.Header(whole[-10 - size : -10])
        self.footer(header)
        return whole[: -10 - size] + bytes(header.data) + struct.pack("<i", len(header.data)) + whole[-6:]


def _schema_of(header: headers.Header) -> int:
    return header.target(header.place(header.root(), headers.SCHEMA_IN_FOOTER))


def _unfolding(name: str, tries: str, stopped_by: str, at: str, **changes: Any) -> None:
    def make() -> bytes:
        forgery = _Unfolding(share())
        for where, change in changes.items():
            setattr(forgery, where, change)
        return forgery.content()

    attack(HEADERS, tries, stopped_by=stopped_by, at=at, name=name)(make)


def _in_schema(change: Any, **how: int) -> Any:
    return lambda header: change(header, _schema_of(header), **how)


_unfolding(
    "one_string_a_hundred_thousand_times",
    "a schema refers to one text of 1 MB a hundred thousand times: 100 GB in a footer of 1.4 MB",
    *("footer_invalid", "open"),
    footer=lambda header: headers.repeat_pairs(
        header, _schema_of(header), headers.PAIRS_IN_SCHEMA, count=100_000, size=1 << 20
    ),
)
_unfolding(
    "one_name_a_hundred_thousand_times",
    "… to one field with a name of 1 MB",
    *("footer_invalid", "open"),
    footer=_in_schema(headers.repeat_fields, count=100_000, size=1 << 20),
)
_unfolding(
    "fields_that_double",
    "each of 60 fields has the next one twice as its child: 2⁶⁰ fields",
    *("footer_invalid", "open"),
    footer=_in_schema(headers.repeat_children, depth=60),
)
_unfolding(
    "fields_of_a_thousand_children",
    "… a thousand times, 6 deep",
    *("footer_invalid", "open"),
    footer=_in_schema(headers.repeat_children, depth=6, count=1000),
)
_unfolding(
    "a_field_that_is_its_own_child",
    "a field's child is the field itself",
    *("footer_invalid", "open"),
    footer=_in_schema(headers.be_ones_own_child),
)
_unfolding(
    "one_time_zone_a_hundred_thousand_times",
    "a hundred thousand fields of a type with one time zone of 1 MB",
    *("footer_invalid", "open"),
    footer=_in_schema(headers.repeat_time_zones, count=100_000, size=1 << 20),
)
_unfolding(
    "one_pair_in_a_row_again_and_again",
    "a row's header refers to one text of 1 MB a hundred thousand times",
    *("arrow_invalid", "read"),
    row=lambda header: headers.repeat_pairs(
        header, header.root(), headers.PAIRS_IN_MESSAGE, count=100_000, size=1 << 20
    ),
)
_unfolding(
    "one_pair_in_the_end_batch_again_and_again",
    "… the end batch's",
    *("footer_invalid", "open"),
    last=lambda header: headers.repeat_pairs(
        header, header.root(), headers.PAIRS_IN_MESSAGE, count=100_000, size=1 << 20
    ),
)


@attack(HEADERS, "a stream's schema does so", stopped_by="arrow_invalid", is_stream=True)
def a_schema_message_that_unfolds() -> bytes:
    size = struct.unpack_from("<i", stream(), 4)[0]
    header = headers.Header(stream()[8 : 8 + size])
    schema = header.target(header.place(header.root(), headers.SCHEMA_IN_MESSAGE))
    headers.repeat_pairs(header, schema, headers.PAIRS_IN_SCHEMA, count=100_000, size=1 << 20)
    return struct.pack("<Ii", 0xFFFFFFFF, len(header.data)) + bytes(header.data) + stream()[8 + size :]


@attack(HEADERS, "the footer lists 2²⁷ dictionaries", stopped_by=INCOMPLETE)
def a_footer_of_dictionaries() -> bytes:
    (size,) = struct.unpack_from("<i", share(), len(share()) - 10)
    header = headers.Header(share()[-10 - size : -10])
    vector = header.target(header.place(header.root(), headers.DICTIONARIES_IN_FOOTER))
    struct.pack_into("<I", header.data, vector, 1 << 27)
    return share()[: -10 - size] + bytes(header.data[:size]) + share()[-10:]
