"""Hostile archives: what hostile.py does to a share file, and what compressed rows and pages in several rows allow.

``CASES`` change an archive of byte planes whose tensors' pages lie in several rows; ``ALSO_SHARE`` says in what the
cases of hostile.py end in an archive of plain pages, where that differs from a share file.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import zstandard

from hurray_arrow import write_snapshot
from hurray_arrow.snapshot import archive_rows
from tests.faults.forgery import Forgery, RowBytes, column_places
from tests.faults.outcome import SAME
from tests.faults.small import METADATA, small_tensors

HUGE = 1 << 40
#: Rows of the archive of small_tensors(): tensor 0 has its head and pages [0, 2), [2, 4), [4, 5), tensor 1 its head …
NUM_ROWS, HEAD, FIRST_PAGES, SECOND_PAGES, LAST_PAGES, HEAD_OF_1 = 11, 0, 1, 2, 3, 4

CASES: dict[str, Callable[[Forgery], None]] = {}
EXPECTED: dict[str, set[str]] = {}

#: What an archive's index does not state, so that nothing is wrong with it.
_NOT_STATED = (
    *("index row pages_offset", "index row pages_bytes", "index row checksums_offset"),
    "index row bare_head_xxh3",
)
ALSO_SHARE: dict[str, set[str]] = {
    "index bare hash of other bytes": {"row_place"},
    "row pages elsewhere": {"page_checksum"},
    # Only a share row has pages that its hash leaves out.
    "row block_table.item.item in the pages": {"page_id_out_of_range"},
    "row block_table.item in the pages": {"arrow_invalid"},
    "row page_checksums.item in the pages": {"page_checksum"},
    "row kv_role in the pages": {"arrow_invalid"},
    "rows_are_compressed": {SAME},
    "metadata profile archive": {SAME},
}


def applies(name: str) -> bool:
    """Say whether a case of hostile.py can be tried on an archive."""
    return not name.startswith(_NOT_STATED)


def write_whole(path: Path) -> None:
    """Write an archive of plain pages, one row a tensor."""
    write_snapshot(path, small_tensors(), metadata=METADATA, profile="archive", encoding="plain", overwrite=True)


def write_cut(path: Path) -> None:
    """Write an archive of byte planes with at most 24 bytes of pages in a row."""
    with mock.patch.multiple(archive_rows, ONE_ROW_BYTES=0, MAX_ROW_BYTES=24):
        write_snapshot(path, small_tensors(), metadata=METADATA, profile="archive", overwrite=True)


def case(*expected: str) -> Callable[[Callable[[Forgery], None]], Callable[[Forgery], None]]:
    def add(function: Callable[[Forgery], None]) -> Callable[[Forgery], None]:
        _add(function.__name__, function, *expected)
        return function

    return add


def _add(name: str, function: Callable[[Forgery], None], *expected: str) -> None:
    assert name not in CASES
    CASES[name], EXPECTED[name] = function, set(expected)


@case(SAME)
def nothing_changed(forgery: Forgery) -> None:
    """Prove that a forgery is otherwise right."""
    assert len(forgery.batches) == NUM_ROWS


@case(SAME)
def compressed(forgery: Forgery) -> None:
    forgery.compression = "zstd"


@case(SAME)
def compressed_by_lz4(forgery: Forgery) -> None:
    forgery.compression = "lz4"


# -- rows of pages -----------------------------------------------------------------------------------------------------


@case("row_missing")
def a_row_of_pages_has_a_descriptor(forgery: Forgery) -> None:
    head, pages = forgery.batches[HEAD], forgery.batches[SECOND_PAGES]
    place = pages.schema.get_field_index("descriptor")
    forgery.batches[SECOND_PAGES] = pages.set_column(place, pages.schema.field(place), head.column(place))


def _index_row(row: int, also: str, *expected: str, **values: Any) -> None:
    def change(forgery: Forgery) -> None:
        forgery.edit_rows = lambda rows: rows[row].update(values)

    _add(f"row {row} {also}", change, *expected)


_index_row(SECOND_PAGES, "claims more pages", "row_missing", num_pages=3)
_index_row(SECOND_PAGES, "claims fewer pages", "row_missing", num_pages=1)
_index_row(SECOND_PAGES, "claims no pages", "row_missing", num_pages=0)
_index_row(SECOND_PAGES, "claims terabytes", "row_missing", num_pages=HUGE)
_index_row(LAST_PAGES, "claims a page behind the last", "row_missing", num_pages=2)
_index_row(LAST_PAGES, "claims terabytes at the end", "row_missing", num_pages=HUGE)
_index_row(HEAD, "claims pages", "row_missing", "index_invalid", num_pages=5)
_index_row(HEAD, "claims terabytes", "row_missing", "index_invalid", num_pages=HUGE)
_index_row(SECOND_PAGES, "leaves a gap", "row_missing", page_offset=3)
_index_row(SECOND_PAGES, "goes back", "row_missing", page_offset=1)
_index_row(SECOND_PAGES, "begins beyond everything", "row_missing", page_offset=HUGE)
_index_row(SECOND_PAGES, "is given twice", "index_invalid", page_offset=0)
_index_row(FIRST_PAGES, "is another tensor's", "index_invalid", "tensor_key_duplicate", tensor_index=1)
_index_row(HEAD_OF_1, "is another tensor's", "index_invalid", tensor_index=0)
_index_row(SECOND_PAGES, "is another role's", "index_invalid", kv_role="value")
_index_row(SECOND_PAGES, "has another encoding", "index_invalid", encoding="plain")
_index_row(HEAD, "has another shape", "index_invalid", page_shape=[HUGE, 1, 3])
_index_row(SECOND_PAGES, "has another shape", "index_invalid", page_shape=[2, 1, 4])


@case("index_invalid")
def a_hash_is_not_stated(forgery: Forgery) -> None:
    forgery.edit_index = lambda index: index["rows"][SECOND_PAGES].pop("row_xxh3")


@case("row_checksum")
def another_hash_is_stated(forgery: Forgery) -> None:
    forgery.edit_index = lambda index: index["rows"][SECOND_PAGES].update(row_xxh3="0" * 16)


def _without(forgery: Forgery, row: int) -> None:
    del forgery.batches[row], forgery.index["rows"][row]
    tensors = len({stated["tensor_index"] for stated in forgery.index["rows"]})
    forgery.index.update(num_rows=len(forgery.batches), num_tensors=tensors)


@case("row_missing")
def a_row_of_pages_is_gone(forgery: Forgery) -> None:
    _without(forgery, SECOND_PAGES)


@case("row_missing")
def the_last_row_of_pages_is_gone(forgery: Forgery) -> None:
    _without(forgery, LAST_PAGES)


@case("row_missing", "column_mismatch")
def the_head_is_gone(forgery: Forgery) -> None:
    _without(forgery, HEAD)


@case("column_mismatch")
def two_rows_of_pages_are_exchanged(forgery: Forgery) -> None:
    rows = forgery.batches
    rows[FIRST_PAGES], rows[SECOND_PAGES] = rows[SECOND_PAGES], rows[FIRST_PAGES]


@case(SAME)
def rows_come_in_another_order(forgery: Forgery) -> None:
    for rows in (forgery.batches, forgery.index["rows"]):
        rows[FIRST_PAGES], rows[SECOND_PAGES] = rows[SECOND_PAGES], rows[FIRST_PAGES]


@case("column_mismatch", "row_missing")
def a_row_of_pages_is_a_head(forgery: Forgery) -> None:
    forgery.batches[SECOND_PAGES] = forgery.batches[HEAD]


def _pages(forgery: Forgery, row: int) -> list[Any]:
    return forgery.batches[row].column("page_pool").cast(_bare(forgery)).to_pylist()[0]


def _bare(forgery: Forgery) -> pa.DataType:
    item = forgery.schema.field("page_pool").type.value_type
    return pa.large_list(pa.field("item", item.storage_type, nullable=False))


def _with_pages(forgery: Forgery, row: int, pages: list[Any] | None) -> None:
    kind = forgery.schema.field("page_pool").type
    stored = pa.array([pages], _bare(forgery))
    if pages is not None:
        item = pa.ExtensionArray.from_storage(kind.value_type, stored.values)
        stored = pa.Array.from_buffers(kind, 1, stored.buffers()[:2], children=[item])
    else:
        stored = pa.nulls(1, kind)
    forgery.set_column(row, "page_pool", stored)


# The pages of a row go straight into their place in the pool: too few must not be spread over it.
@case("arrow_schema", "row_missing", "page_pool_size")
def a_row_holds_fewer_pages(forgery: Forgery) -> None:
    _with_pages(forgery, SECOND_PAGES, _pages(forgery, SECOND_PAGES)[:1])


@case("arrow_schema", "row_missing", "page_pool_size")
def a_row_holds_more_pages(forgery: Forgery) -> None:
    _with_pages(forgery, SECOND_PAGES, _pages(forgery, SECOND_PAGES) * 2)


@case("arrow_schema", "row_missing", "page_pool_size")
def a_row_holds_an_empty_list(forgery: Forgery) -> None:
    _with_pages(forgery, SECOND_PAGES, [])


@case("arrow_schema", "row_missing", "column_mismatch")
def a_row_holds_no_pages(forgery: Forgery) -> None:
    _with_pages(forgery, SECOND_PAGES, None)


@case("column_mismatch", "row_missing", "arrow_schema")
def a_head_holds_pages_too(forgery: Forgery) -> None:
    _with_pages(forgery, HEAD, _pages(forgery, SECOND_PAGES))


@case("page_checksum")
def pages_of_other_values(forgery: Forgery) -> None:
    _with_pages(forgery, SECOND_PAGES, _pages(forgery, SECOND_PAGES)[::-1])


@case("page_checksum", SAME)
def a_row_without_checksums(forgery: Forgery) -> None:
    kind = forgery.schema.field("page_checksums").type
    forgery.set_column(SECOND_PAGES, "page_checksums", pa.nulls(1, kind))


@case("page_checksum")
def a_row_with_a_checksum_less(forgery: Forgery) -> None:
    column = forgery.batches[SECOND_PAGES].column("page_checksums")
    forgery.set_column(SECOND_PAGES, "page_checksums", pa.array([column.to_pylist()[0][:1]], column.type))


@case("page_checksum")
def a_checksum_moves_to_the_next_row(forgery: Forgery) -> None:
    column = [forgery.batches[row].column("page_checksums") for row in (SECOND_PAGES, LAST_PAGES)]
    one, two = (each.to_pylist()[0] for each in column)
    forgery.set_column(SECOND_PAGES, "page_checksums", pa.array([one[:1]], column[0].type))
    forgery.set_column(LAST_PAGES, "page_checksums", pa.array([one[1:] + two], column[0].type))


@case("row_missing")
def pages_in_another_column(forgery: Forgery) -> None:
    batch = forgery.batches[SECOND_PAGES]
    forgery.set_column(SECOND_PAGES, "pool_bytes", pa.array([b"\0" * 24], pa.large_binary()))
    forgery.set_column(SECOND_PAGES, "page_pool", pa.nulls(1, batch.column("page_pool").type))


# -- compressed buffers ------------------------------------------------------------------------------------------------


def _stated(name: str, size: int, *expected: str, row: int = SECOND_PAGES, path: str = "page_checksums.item") -> None:
    """Let a compressed buffer state another size than it has."""

    def change(forgery: Forgery) -> None:
        forgery.compression = "zstd"
        place = column_places(forgery.schema)[path][1] + 1

        def patch(stored: bytearray) -> None:
            start, length = RowBytes(stored).buffer(place)
            assert length > 8
            struct.pack_into("<q", stored, start, size)

        forgery.patches[row] = patch

    _add(f"a buffer {name}", change, *expected)


_PLANE = "page_pool.item.b1.item"
for _path in ("page_checksums.item", _PLANE):
    _stated(f"{_path} states terabytes", HUGE, "arrow_invalid", path=_path)
    _stated(f"{_path} states 2^63 - 1", 2**63 - 1, "arrow_invalid", path=_path)
    _stated(f"{_path} states less than nothing", -2, "arrow_invalid", path=_path)
    _stated(f"{_path} states nothing", 0, "arrow_invalid", path=_path)
    _stated(f"{_path} states a byte", 1, "arrow_invalid", path=_path)
    _stated(f"{_path} states 8 MiB", 8 << 20, "arrow_invalid", path=_path)
_stated("block_table states 2 GiB", 2 << 30, "arrow_invalid", row=HEAD, path="block_table.item.item")
_stated("block_table states 1 GiB", 1 << 30, "arrow_invalid", row=HEAD, path="block_table.item.item")
_stated("kv_role states 1 GiB", 1 << 30, "arrow_invalid", row=HEAD, path="kv_role")


def bomb_in(row: int, path: str, size: int) -> Callable[[Forgery], None]:
    """Put ``size`` compressed zeros into a buffer of a row, in place of its message's body."""

    def change(forgery: Forgery) -> None:
        forgery.compression = "zstd"
        frame = zstandard.ZstdCompressor().compress(bytes(size))
        place = column_places(forgery.schema)[path][1] + 1

        def patch(stored: bytearray) -> None:
            piece = struct.pack("<q", size) + frame
            places = RowBytes(stored)
            start, _ = places.buffer(place)
            room = len(stored) - start
            assert len(piece) <= room, (len(piece), room)
            stored[start : start + len(piece)] = piece
            places.set_buffer(place, start - places.body, len(piece))

        forgery.patches[row] = patch

    return change


_add("a bomb in the pages", bomb_in(FIRST_PAGES, _PLANE, 1 << 20), "arrow_invalid")


@case("arrow_invalid")
def a_buffer_too_short_to_state_anything(forgery: Forgery) -> None:
    forgery.compression = "zstd"
    place = column_places(forgery.schema)["page_checksums.item"][1] + 1

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        start, _ = places.buffer(place)
        places.set_buffer(place, start - places.body, 7)

    forgery.patches[SECOND_PAGES] = patch


@case("arrow_invalid")
def one_frame_in_every_buffer(forgery: Forgery) -> None:
    """Let all buffers of a head be the same 60 MiB of zeros: each alone would be allowed."""
    forgery.compression = "zstd"
    size = 60 << 20
    piece = struct.pack("<q", size) + zstandard.ZstdCompressor().compress(bytes(size))
    extra = pa.field("zeros", pa.large_binary())
    forgery.schema = forgery.schema.insert(0, extra)
    forgery.batches = [
        pa.RecordBatch.from_arrays([_incompressible(len(piece) + 64), *batch.columns], schema=forgery.schema)
        for batch in forgery.batches
    ]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)

    def patch(stored: bytearray) -> None:
        places = RowBytes(stored)
        start, _ = places.buffer(2)
        stored[start : start + len(piece)] = piece
        for number in range(3, 60):
            places.set_buffer(number, start - places.body, len(piece))

    forgery.patches[HEAD] = patch


def _incompressible(size: int) -> pa.Array:
    return pa.array([random.Random(3).randbytes(size)], pa.large_binary())
