"""Attacks by what a file says: places, tables, rows, columns."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from hurray_arrow import BlockPagedTensor, write_snapshot
from tests.faults import hostile, hostile_archives
from tests.faults.attacks.attack import (
    TAKEN,
    archive,
    attack,
    forged,
    forged_stream,
    one,
    share,
    written,
)
from tests.faults.forgery import Forgery, RowBytes, column_places

PLACES, TABLES, ROWS, COLUMNS = "Places that overlap", "Tables", "Rows of archives and streams", "Columns"


# -- places that overlap -----------------------------------------------------------------------------------------------


@forged(share, PLACES, "two rows lie in one place", stopped_by="row_place")
def rows_in_one_place(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], blocks[0], *blocks[2:]]
    forgery.edit_rows = lambda rows: rows[1].update({k: rows[0][k] for k in ("offset", "metadata_bytes", "body_bytes")})


@forged(share, PLACES, "a row begins in the one before it", stopped_by="row_place")
def rows_that_overlap(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], (blocks[1][0] - 64, *blocks[1][1:]), *blocks[2:]]
    forgery.edit_rows = lambda rows: rows[1].update(offset=rows[1]["offset"] - 64)


@forged(share, PLACES, "the index lists rows backwards", stopped_by="row_place")
def places_that_go_back(forgery: Forgery) -> None:
    forgery.edit_index = lambda index: index.update(rows=index["rows"][::-1])


@forged(share, PLACES, "a row's pages are the next row's", stopped_by="row_place")
def pages_of_another_row(forgery: Forgery) -> None:
    forgery.edit_rows = lambda rows: rows[0].update(pages_offset=rows[1]["pages_offset"])


@forged(share, PLACES, "the index places a row's checksums elsewhere", stopped_by="row_place", at="read")
def checksums_in_another_place(forgery: Forgery) -> None:
    forgery.edit_rows = lambda rows: rows[0].update(checksums_offset=rows[0]["checksums_offset"] + 8)


@forged(share, PLACES, "a table lies in the pages, which no row hash covers", stopped_by="row_place", at="read")
def a_table_in_the_pages(forgery: Forgery) -> None:
    places = column_places(forgery.schema)

    def patch(stored: bytearray) -> None:
        row, number = RowBytes(stored), places["block_table.item.item"][1] + 1
        pages, _ = row.buffer(places["page_pool.item.item"][1] + 1)
        row.set_buffer(number, pages - row.body, row.buffer(number)[1])

    forgery.patches[0] = patch


@attack(PLACES, "100,000 rows of 8 bytes, for an index of 100,000 objects", stopped_by="index_invalid")
def rows_of_no_length() -> bytes:
    forgery = Forgery(one())
    count, row = 100_000, forgery.index["rows"][0]
    forgery.is_compressed_index = True
    forgery.edit_index = lambda index: index.update(
        rows=[{**row, "tensor_index": n, "layer_index": n, "offset": 8 * n, "metadata_bytes": 8} for n in range(count)],
        num_rows=count,
        num_tensors=count,
    )
    return forgery.content()


# -- tables ------------------------------------------------------------------------------------------------------------


_IDS, _ENDS, _TOKENS = "block_table.item.item", "block_table.item", "sequences.item.num_tokens"
#: name: what it tries, what stops it, and what of a buffer's bytes is changed to what.
_IN_TABLES: dict[str, tuple[str, str, tuple[str, str, int, int]]] = {
    "a_page_id_just_out_of_range": ("page id 5 of 5 pages", "page_id_out_of_range", (_IDS, "<I", 4, 5)),
    "the_largest_page_id": ("page id 2³² − 1", "page_id_out_of_range", (_IDS, "<I", 12, 2**32 - 1)),
    "offsets_that_go_back": ("seq_ptr goes back", "arrow_invalid", (_ENDS, "<i", 8, 1)),
    "offsets_past_the_ids": ("seq_ptr ends behind the ids", "arrow_invalid", (_ENDS, "<i", 12, 9)),
    "negative_offsets": ("seq_ptr is negative", "arrow_invalid", (_ENDS, "<i", 4, -1)),
    "more_tokens_than_pages": ("a sequence of 2⁶⁴ − 1 tokens", "seq_len_exceeds_pages", (_TOKENS, "<Q", 0, 2**64 - 1)),
}


def _in_table(path: str, kind: str, shift: int, value: int) -> Callable[[Forgery], None]:
    def change(forgery: Forgery) -> None:
        places = column_places(forgery.schema)

        def patch(row: bytearray) -> None:
            start, _ = RowBytes(row).buffer(places[path][1] + 1)
            struct.pack_into(kind, row, start + shift, value)

        forgery.patches[0] = patch

    return change


for _name, (_tries, _code, _where) in _IN_TABLES.items():
    forged(share, TABLES, _tries, stopped_by=_code, at="read", name=_name)(_in_table(*_where))


@attack(TABLES, "a million pages, each with a wrong checksum", stopped_by="page_checksum", at="verify")
def a_million_wrong_checksums() -> bytes:
    count = 1_000_000
    pool = np.zeros((count, 1, 1, 1), np.uint8)
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[0]], seq_lens=[1], kv_role="key", element_type="uint8")
    forgery = Forgery(written(lambda path: write_snapshot(path, [tensor], page_align_bytes=64)))
    wrong = pa.array([np.arange(count, dtype=np.uint64)], forgery.schema.field("page_checksums").type)
    forgery.set_column(0, "page_checksums", wrong)
    return forgery.content()


# -- rows of an archive, and of streams --------------------------------------------------------------------------------


@forged(archive, ROWS, "one byte plane has fewer values than the other", stopped_by="arrow_invalid", at="read")
def planes_of_unequal_length(forgery: Forgery) -> None:
    places = column_places(forgery.schema)

    def patch(row: bytearray) -> None:
        node = RowBytes(row).node(places["page_pool.item.b1.item"][0])
        (length,) = struct.unpack_from("<q", row, node)
        struct.pack_into("<q", row, node, length - 1)

    forgery.patches[hostile_archives.FIRST_PAGES] = patch


#: name: what it tries, what stops it, when, and the case of hostile_archives.py.
_IN_ARCHIVES = {
    "rows_of_pages_exchanged": (
        *("two rows of pages change places", "column_mismatch", "read"),
        "two_rows_of_pages_are_exchanged",
    ),
    "a_row_of_pages_twice": ("a row of pages is given twice", "index_invalid", "open", "row 2 is given twice"),
    "a_gap_between_rows": ("a page between two rows is missing", "row_missing", "read", "row 2 leaves a gap"),
    "a_row_claims_terabytes": ("a row claims 2⁴⁰ pages", "row_missing", "read", "row 2 claims terabytes"),
    "a_row_of_fewer_pages": ("a row holds less than it claims", "row_missing", "read", "a_row_holds_fewer_pages"),
}
for _name, (_tries, _code, _at, _case) in _IN_ARCHIVES.items():
    forged(archive, ROWS, _tries, stopped_by=_code, at=_at, name=_name)(hostile_archives.CASES[_case])


@forged(share, ROWS, "two rows are one tensor", stopped_by="tensor_key_duplicate")
def a_tensor_twice(forgery: Forgery) -> None:
    key = ("layer_index", "layer_name", "kv_role", "component", "kv_group")
    forgery.edit_rows = lambda rows: rows[1].update({name: rows[0][name] for name in key})


@forged_stream(ROWS, "a stream's rows come in another order", stopped_by="row_missing")
def stream_rows_exchanged(forgery: Forgery) -> None:
    forgery.batches[1], forgery.batches[2] = forgery.batches[2], forgery.batches[1]


@forged_stream(ROWS, "a stream's index has a row that did not come", stopped_by="row_missing")
def a_stream_row_missing(forgery: Forgery) -> None:
    del forgery.batches[-1]


@forged_stream(ROWS, "page id 5 of 5 pages, in a stream", stopped_by="page_id_out_of_range")
def a_stream_page_id_out_of_range(forgery: Forgery) -> None:
    places = column_places(forgery.schema)

    def patch(row: bytearray) -> None:
        start, _ = RowBytes(row).buffer(places[_IDS][1] + 1)
        struct.pack_into("<I", row, start + 4, 5)

    forgery.patches[0] = patch


# -- columns -----------------------------------------------------------------------------------------------------------


def _with_columns(forgery: Forgery, fields: list[pa.Field], values: list[pa.Array]) -> None:
    forgery.schema = pa.schema([*fields, *forgery.schema], metadata=forgery.schema.metadata)
    forgery.batches = [
        pa.RecordBatch.from_arrays([*values, *batch.columns], schema=forgery.schema) for batch in forgery.batches
    ]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)


@forged(one, COLUMNS, "100,000 columns that nobody knows", stopped_by="footer_invalid")
def a_hundred_thousand_columns(forgery: Forgery) -> None:
    count = 100_000
    _with_columns(forgery, [pa.field(f"c{n}", pa.null()) for n in range(count)], [pa.nulls(1)] * count)


@forged(one, COLUMNS, "20,000 columns that nobody knows", stopped_by=TAKEN)
def twenty_thousand_columns(forgery: Forgery) -> None:
    count = 20_000
    _with_columns(forgery, [pa.field(f"c{n}", pa.null()) for n in range(count)], [pa.nulls(1)] * count)


@forged(one, COLUMNS, "a column of lists, 60 deep", stopped_by=TAKEN)
def a_column_sixty_deep(forgery: Forgery) -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    _with_columns(forgery, [pa.field("deep", kind)], [pa.nulls(1, kind)])


forged(
    *(one, COLUMNS, "an extension type states pages of 2⁴⁰ × 2⁴⁰ × 2⁴⁰ elements"),
    stopped_by="extension_metadata_invalid",
    at="read",
    name="an_extension_type_of_terabytes",
)(hostile.CASES["extension shape of terabytes"])
