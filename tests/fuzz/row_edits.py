"""Edits of the bytes of a row: its header, its body, single numbers in it."""

from __future__ import annotations

import struct

import xxhash

from tests.faults.forgery import RowBytes, column_places
from tests.fuzz.scripts import Script


def header_bytes(script: Script) -> None:
    row, place, new = script.row(), script.choices.number(2), script.choices.chunk(1 + script.choices.below(8))

    def patch(stored: bytearray) -> None:
        start = 8 + place % max(RowBytes(stored).body - 8, 1)
        stored[start : start + len(new)] = new[: len(stored) - start]

    script.patch(row, patch)


def body_bytes(script: Script) -> None:
    row, place, new = script.row(), script.choices.number(2), script.choices.chunk(1 + script.choices.below(8))

    def patch(stored: bytearray) -> None:
        body = RowBytes(stored).body
        start = body + place % max(len(stored) - body, 1)
        stored[start : start + len(new)] = new[: len(stored) - start]

    script.patch(row, patch)


def node(script: Script) -> None:
    row, number, what = script.row(), script.choices.number(), script.choices.below(2)
    value = script.choices.integer()

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        count = struct.unpack_from("<I", stored, places.nodes - 4)[0]
        _pack_i64(stored, places.node(number % max(count, 1)) + 8 * what, value)

    script.patch(row, patch)


def buffer(script: Script) -> None:
    row, number, what = script.row(), script.choices.number(), script.choices.below(2)
    near, value = script.choices.flag(), script.choices.integer()

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        count = struct.unpack_from("<I", stored, places.buffers - 4)[0]
        at = places.buffers + 16 * (number % max(count, 1)) + 8 * what
        old = struct.unpack_from("<q", stored, at)[0]
        _pack_i64(stored, at, old + value % 64 - 32 if near else value)

    script.patch(row, patch)


def scalar(script: Script) -> None:
    """Change one number in a small column: an offset, an id, a length, a checksum, a byte of a name or descriptor."""
    row, width = script.row(), script.choices.pick((1, 4, 8))
    path = script.choices.pick(sorted(column_places(script.forgery.schema)))
    place, buffer, near, value = (
        script.choices.number(),
        script.choices.below(3),
        script.choices.flag(),
        script.choices.integer(),
    )

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        start, size = places.buffer(column_places(script.forgery.schema)[path][1] + buffer)
        if size < width or start + size > len(stored):
            return
        at = start + place % (size // width) * width
        old = int.from_bytes(stored[at : at + width], "little")
        stored[at : at + width] = ((old + value % 16 - 8 if near else value) % 256**width).to_bytes(width, "little")

    script.patch(row, patch)


def stated_size(script: Script) -> None:
    """Let a compressed buffer state another size."""
    script.forgery.compression = script.choices.pick(("zstd", "lz4"))
    row, number, value = script.row(), script.choices.number(), script.choices.integer()

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        count = struct.unpack_from("<I", stored, places.buffers - 4)[0]
        start, size = places.buffer(number % max(count, 1))
        if size >= 8:
            _pack_i64(stored, start, value)

    script.patch(row, patch)


def checksums(script: Script) -> None:
    """Make the page checksums of a row those of its pages as they are now."""
    columns = column_places(script.forgery.schema)
    script.patch(script.row(), lambda stored: _rehash_pages(stored, columns))


def _rehash_pages(stored: bytearray, columns: dict[str, tuple[int, int]]) -> None:
    places = RowBytes(stored)
    start, size = places.buffer(columns["page_checksums.item"][1] + 1)
    for path, (_, first) in columns.items():
        if path.startswith("page_pool") and path.endswith(".item.item"):
            pages, pages_bytes = places.buffer(first + 1)
            count = size // 8
            if pages_bytes and count and not pages_bytes % count:
                step = pages_bytes // count
                hashes = [
                    xxhash.xxh3_64_intdigest(bytes(stored[pages + n * step : pages + (n + 1) * step]))
                    for n in range(count)
                ]
                struct.pack_into(f"<{count}Q", stored, start, *hashes)


def _pack_i64(stored: bytearray, at: int, value: int) -> None:
    stored[at : at + 8] = (value % 2**64).to_bytes(8, "little")
