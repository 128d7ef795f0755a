"""Hostile snapshots: each changes one thing of an intact one and makes all hashes right again; and what it must end in.

A case is a function that changes a Forgery. ``EXPECTED`` says which codes it may end in, in opening, reading or
verifying; ``SAME`` where the change is none of the reader's business.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.faults.forgery import INDEX, INDEX_HASH, Forgery, RowBytes, column_places, xxh3, zst_frame, zst_pairs
from tests.faults.outcome import SAME

CASES: dict[str, Callable[[Forgery], None]] = {}
EXPECTED: dict[str, set[str]] = {}

UNSUPPORTED, INCOMPLETE = "UnsupportedError", "SnapshotIncompleteError"
HUGE = 1 << 40
#: Place of the layout tag in a descriptor: after magic, version, length, flags and type tag.
LAYOUT_TAG_OFFSET = 15


def case(*expected: str) -> Callable[[Callable[[Forgery], None]], Callable[[Forgery], None]]:
    def add(function: Callable[[Forgery], None]) -> Callable[[Forgery], None]:
        add_case(function.__name__, function, *expected)
        return function

    return add


def add_case(name: str, function: Callable[[Forgery], None], *expected: str) -> None:
    assert name not in CASES
    CASES[name], EXPECTED[name] = function, set(expected)


@case(SAME)
def nothing_changed(forgery: Forgery) -> None:
    """Prove that a forgery is otherwise right: every other case ends as it does because of what it changes."""


# -- the index -----------------------------------------------------------------------------------------------------


def _set_rows(name: str, value: Any, *expected: str, row: int = 1, also: str = "") -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        found = rows[row].get(name)
        rows[row][name] = value(found) if callable(value) else value

    def change(forgery: Forgery) -> None:
        forgery.edit_rows = edit

    add_case(f"index row {name} {also}", change, *expected)


for _name, _value, _codes in (
    ("num_pages", HUGE, ("column_mismatch",)),
    ("num_pages", 4, ("column_mismatch",)),
    ("num_seqs", HUGE, ("column_mismatch",)),
    ("page_shape", [HUGE, HUGE, HUGE], ("column_mismatch",)),
    ("page_shape", [2, 1], ("index_invalid",)),
    ("page_shape", [2, 1, "x"], ("index_invalid",)),
    ("element_type", "complex128", ("column_mismatch",)),
    ("element_type", 7, ("index_invalid",)),
    ("index_type", "uint64", ("column_mismatch",)),
    ("encoding", "byte_planes", ("column_mismatch",)),
    ("encoding", "rot13", ("column_mismatch",)),
    ("kv_role", "value", ("column_mismatch",)),
    ("component", "zero_points", ("companion_missing",)),
    ("component", "values", ("tensor_key_duplicate",)),
    ("layer_index", 1, ("companion_missing",)),
    ("layer_index", None, ("companion_missing",)),
    ("layer_index", "0", (SAME,)),
    ("layer_name", "l.1", ("companion_missing",)),
    ("layer_name", "\ud800", ("index_invalid",)),
    ("kv_group", 1, ("companion_missing",)),
    ("kv_group", 2**63, ("companion_missing",)),
    ("page_offset", 3, ("column_mismatch",)),
    ("tensor_index", 0, ("index_invalid",)),
    ("tensor_index", 7, ("column_mismatch",)),
    ("tensor_index", -1, ("index_invalid",)),
    ("tensor_index", 1.0, ("index_invalid",)),
    ("tensor_index", True, ("index_invalid",)),
    ("offset", 0, ("row_place",)),
    ("offset", HUGE, ("row_place",)),
    ("offset", 2**64 - 8, ("row_place",)),
    ("offset", 2**64, ("index_invalid",)),
    # As many digits as Python reads: a sum of two has one more, which it refuses to print.
    ("offset", 9 * 10**4299, ("index_invalid",)),
    ("body_bytes", 9 * 10**4299, ("index_invalid",)),
    ("metadata_bytes", 0, ("row_place",)),
    ("body_bytes", lambda size: size + 8, ("row_place",)),
    ("pages_offset", lambda offset: offset + 8, ("row_place",)),
    ("pages_offset", lambda offset: offset - 8, ("row_place",)),
    ("pages_offset", 8, ("row_place",)),
    ("pages_offset", HUGE, ("row_place",)),
    ("pages_offset", None, ("index_invalid",)),
    ("pages_bytes", lambda size: size - 1, ("row_place",)),
    ("pages_bytes", lambda size: size + 8, ("row_place",)),
    ("pages_bytes", 0, ("row_place",)),
    ("pages_bytes", 2**62, ("row_place",)),
    ("checksums_offset", lambda offset: offset + 8, ("row_place",)),
    ("checksums_offset", 2**62, ("row_place",)),
    # Right in the end: whoever writes few pages may state it too.
    ("bare_head_xxh3", "0" * 16, (SAME,)),
    ("unknown_key", [1], (SAME,)),
):
    _set_rows(_name, _value, *_codes, also=f"{len(CASES)}")


def _edit_index(name: str, edit: Callable[[dict[str, Any]], Any], *expected: str) -> None:
    def change(forgery: Forgery) -> None:
        forgery.edit_index = edit

    add_case(f"index {name}", change, *expected)


_edit_index("num_rows", lambda index: index.update(num_rows=3), "index_invalid")
_edit_index("num_rows huge", lambda index: index.update(num_rows=HUGE), "index_invalid")
_edit_index("num_tensors", lambda index: index.update(num_tensors=5), "index_invalid")
_edit_index("version", lambda index: index.update(version=2), "index_invalid")
_edit_index("kind", lambda index: index.update(kind="stream"), "footer_invalid")
_edit_index("kind unknown", lambda index: index.update(kind="pile"), "index_invalid")
_edit_index("schema hash", lambda index: index.update(schema_xxh3="0" * 16), "schema_checksum")
_edit_index("schema hash case", lambda index: index.update(schema_xxh3="A" * 16), "index_invalid")
_edit_index("no rows", lambda index: index.update(rows=[], num_rows=0, num_tensors=0), "footer_invalid")
_edit_index("rows missing", lambda index: index.pop("rows"), "index_invalid")
_edit_index("rows of numbers", lambda index: index.update(rows=[1, 2, 3, 4]), "index_invalid")
_edit_index(
    "a row less",
    lambda index: index.update(rows=index["rows"][:-1], num_rows=3, num_tensors=3),
    "footer_invalid",
)
_edit_index(
    "rows in another order",
    lambda index: index.update(rows=index["rows"][::-1]),
    "row_place",
)
_edit_index("bare hash of other bytes", lambda index: index["rows"][1].update(bare_head_xxh3="0" * 16), "row_checksum")
_edit_index("bare hash that is none", lambda index: index["rows"][1].update(bare_head_xxh3="x"), "index_invalid")
_edit_index("unknown key", lambda index: index.update(surprise={"a": [None]}), SAME)


def _edit_text(name: str, edit: Callable[[str], str | bytes], *expected: str) -> None:
    def change(forgery: Forgery) -> None:
        forgery.edit_text = edit

    add_case(f"index text {name}", change, *expected)


_edit_text("empty", lambda _text: "", "index_invalid")
_edit_text("duplicate key", lambda text: text.replace('"kind"', '"kind":"file","kind"', 1), "index_invalid")
_edit_text("duplicate key in a row", lambda text: text.replace('"kv_role"', '"offset":8,"kv_role"', 1), "index_invalid")
_edit_text("NaN", lambda text: text.replace('"kind"', '"user":NaN,"kind"', 1), "index_invalid")
_edit_text("Infinity", lambda text: text.replace('"kind"', '"user":-Infinity,"kind"', 1), "index_invalid")
_edit_text("1e999", lambda text: text.replace('"num_rows":4', '"num_rows":1e999', 1), "index_invalid")
_edit_text("digits", lambda text: text.replace('"num_rows":4', '"num_rows":' + "9" * 5000, 1), "index_invalid")
_edit_text("nesting 17", lambda text: _nested(text, 17), "index_invalid")
_edit_text("nesting 10,000", lambda text: _nested(text, 10_000), "index_invalid")
_edit_text("nesting 1,000,000", lambda text: _nested(text, 1_000_000), "index_invalid")
_edit_text("array", lambda text: f"[{text}]", "index_invalid")
_edit_text("trailing", lambda text: text + "{}", "index_invalid")
_edit_text("no UTF-8", lambda text: text.encode().replace(b"l.0", b"\xff.0"), "index_invalid")
_edit_text("UTF-16", lambda text: text.encode("utf-16"), "index_invalid")
_edit_text("NUL", lambda text: text.replace("l.0", "l\0"), "index_invalid")


def _nested(text: str, depth: int) -> str:
    return text.replace('"kind"', '"user":' + "[" * depth + "]" * depth + ',"kind"', 1)


def _edit_pairs(name: str, edit: Callable[[dict[Any, Any]], dict[Any, Any]], *expected: str) -> None:
    def change(forgery: Forgery) -> None:
        forgery.edit_pairs = edit

    add_case(f"end batch {name}", change, *expected)


def _text(pairs: dict[Any, Any]) -> bytes:
    return bytes(pairs[INDEX])


_edit_pairs("without index", lambda pairs: {INDEX_HASH: pairs[INDEX_HASH]}, INCOMPLETE)
_edit_pairs("without hash", lambda pairs: {INDEX: pairs[INDEX]}, "index_checksum")
_edit_pairs("wrong hash", lambda pairs: {**pairs, INDEX_HASH: "0" * 16}, "index_checksum")
_edit_pairs("hash in upper case", lambda pairs: {**pairs, INDEX_HASH: xxh3(_text(pairs)).upper()}, "index_checksum")
_edit_pairs("nothing", lambda _pairs: {}, INCOMPLETE)
_edit_pairs("zst", lambda pairs: zst_pairs(zst_frame(_text(pairs))), SAME)
_edit_pairs("zst without size", lambda pairs: zst_pairs(zst_frame(_text(pairs), states_size=False)), "index_invalid")
_edit_pairs("zst trailing", lambda pairs: zst_pairs(zst_frame(_text(pairs)) + b"junk"), "index_invalid")
_edit_pairs("zst two frames", lambda pairs: zst_pairs(2 * zst_frame(_text(pairs))), "index_invalid")
_edit_pairs("zst cut", lambda pairs: zst_pairs(zst_frame(_text(pairs))[:-9]), "index_invalid")
_edit_pairs("zst of nothing", lambda _pairs: zst_pairs(b""), "index_invalid")
_edit_pairs("zst garbage", lambda _pairs: zst_pairs(b"\x28\xb5\x2f\xfd" + bytes(range(99))), "index_invalid")
_edit_pairs("zst no base64", lambda pairs: _unbased(zst_pairs(zst_frame(_text(pairs)))), "index_invalid")
_edit_pairs("zst bomb", lambda _pairs: zst_pairs(_bomb(300 << 20)), "index_invalid")
_edit_pairs(
    "zst bomb of 256 GiB stated", lambda _pairs: zst_pairs(_restated(_bomb(1 << 20), 256 << 30)), "index_invalid"
)
_edit_pairs("zst states less", lambda _pairs: zst_pairs(_restated(_bomb(1 << 24), 1 << 20)), "index_invalid")
_edit_pairs("zst states more", lambda _pairs: zst_pairs(_restated(_bomb(1 << 20), 1 << 24)), "index_invalid")


def _unbased(pairs: dict[str, Any]) -> dict[str, Any]:
    stored = b"!" + next(iter(pairs.values()))
    return {next(iter(pairs)): stored, INDEX_HASH: xxh3(stored)}


def _bomb(size: int) -> bytes:
    return zst_frame(bytes(size))


def _restated(frame: bytes, size: int) -> bytes:
    """Return a frame that states another size; a frame of a MiB or more has it in 4 bytes, with a single segment."""
    descriptor = frame[4]
    field = {0: 0, 1: 2, 2: 4, 3: 8}[descriptor >> 6]
    window = 0 if descriptor & 0x20 else 1
    head = frame[:4] + bytes([descriptor & 0x3F | 0xC0]) + frame[5 : 5 + window]
    return head + struct.pack("<Q", size) + frame[5 + window + field :]


# -- the footer ----------------------------------------------------------------------------------------------------


@case("row_place")
def rows_in_one_place(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], blocks[0], *blocks[2:]]
    forgery.edit_rows = lambda rows: rows[1].update({k: rows[0][k] for k in ("offset", "metadata_bytes", "body_bytes")})


@case("row_place")
def rows_that_overlap(forgery: Forgery) -> None:
    def shorter(block: tuple[int, int, int]) -> tuple[int, int, int]:
        return (block[0] - 64, block[1], block[2])

    forgery.edit_blocks = lambda blocks: [blocks[0], shorter(blocks[1]), *blocks[2:]]
    forgery.edit_rows = lambda rows: rows[1].update(offset=rows[1]["offset"] - 64)


@case("footer_invalid")
def a_block_past_the_end(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [*blocks[:-1], (HUGE, blocks[-1][1], blocks[-1][2])]


@case("footer_invalid")
def a_block_of_terabytes(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], (blocks[1][0], blocks[1][1], HUGE), *blocks[2:]]


@case("footer_invalid")
def a_block_of_negative_size(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[0], (blocks[1][0], blocks[1][1], -HUGE), *blocks[2:]]


@case("footer_invalid")
def a_block_that_wraps(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [*blocks[:-1], (2**63 - 8, blocks[-1][1], blocks[-1][2])]


@case("footer_invalid")
def rows_exchanged_in_the_footer(forgery: Forgery) -> None:
    forgery.edit_blocks = lambda blocks: [blocks[1], blocks[0], *blocks[2:]]


@case(INCOMPLETE)
def an_end_batch_with_a_row(forgery: Forgery) -> None:
    forgery.end = forgery.batches[0]


@case("footer_invalid")
def an_end_batch_that_states_100_mib(forgery: Forgery) -> None:
    forgery.end_compression = "zstd"

    def edit(row: bytearray) -> None:
        places = RowBytes(row)
        compressed = [start for start, size in map(places.buffer, range(81)) if size >= 8]
        assert compressed, "a compressed end batch has nothing to decompress"
        for start in compressed:
            struct.pack_into("<q", row, start, 100 << 20)

    forgery.edit_end = edit


# -- a row's header ------------------------------------------------------------------------------------------------


def _patch(name: str, patch: Callable[[RowBytes, dict[str, tuple[int, int]]], None], *expected: str) -> None:
    def change(forgery: Forgery) -> None:
        places = column_places(forgery.schema)
        forgery.patches[0] = lambda row: patch(RowBytes(row), places)

    add_case(f"row {name}", change, *expected)


def _pack(  # noqa: PLR0917 - a table of patches reads best as rows
    kind: str, value: int, where: str = "node", path: str = "", buffer: int = 0, shift: int = 0
) -> Callable[[RowBytes, dict[str, tuple[int, int]]], None]:
    def patch(row: RowBytes, places: dict[str, tuple[int, int]]) -> None:
        node, first_buffer = places[path] if path else (0, 0)
        place = {
            "node": lambda: row.node(node),
            "buffer": lambda: row.buffers + 16 * (first_buffer + buffer),
            "data": lambda: row.buffer(first_buffer + buffer)[0],
            "length": lambda: row.length,
        }[where]()
        struct.pack_into(kind, row.row, place + shift, value)

    return patch


def _in_the_pages(path: str, buffer: int) -> Callable[[RowBytes, dict[str, tuple[int, int]]], None]:
    """Let a small buffer lie in the pages, which no row hash covers and partial reads leave out."""

    def patch(row: RowBytes, places: dict[str, tuple[int, int]]) -> None:
        pages, _ = row.buffer(places["page_pool.item.item"][1] + 1)
        number = places[path][1] + buffer
        row.set_buffer(number, pages - row.body, row.buffer(number)[1])

    return patch


for _path in (
    "tensor_index",
    "layer_name",
    "kv_role",
    "block_table",
    "block_table.item",
    "block_table.item.item",
    "sequences.item",
    "sequences.item.num_tokens",
    "sequences.item.token_ids.item",
    "descriptor",
    "page_checksums.item",
    "page_pool",
    "page_pool.item",
    "page_pool.item.item",
):
    _patch(f"length of {_path} is terabytes", _pack("<q", HUGE, path=_path), "arrow_invalid")
    _patch(f"length of {_path} is negative", _pack("<q", -1, path=_path), "arrow_invalid")
    # One length of three is not known, so there this count is right.
    _truth = SAME if _path == "sequences.item.num_tokens" else "arrow_invalid"
    _patch(f"null_count of {_path} lies", _pack("<q", 1, path=_path, shift=8), _truth)
    _patch(f"null_count of {_path} is huge", _pack("<q", HUGE, path=_path, shift=8), "arrow_invalid")
    _patch(f"null_count of {_path} is negative", _pack("<q", -7, path=_path, shift=8), "arrow_invalid")
for _path, _number in (("block_table.item", 1), ("page_pool.item.item", 1), ("descriptor", 2), ("layer_name", 1)):
    for _size in (HUGE, -8, 2**63 - 1):
        _patch(f"buffer {_path} of {_size}", _pack("<q", _size, "buffer", _path, _number, 8), "arrow_invalid")
        _patch(f"buffer {_path} at {_size}", _pack("<q", _size, "buffer", _path, _number, 0), "arrow_invalid")
    _patch(f"buffer {_path} of nothing", _pack("<q", 0, "buffer", _path, _number, 8), "arrow_invalid")
_patch("pages elsewhere", _pack("<q", 0, "buffer", "page_pool.item.item", 1, 0), "row_place")
for _path, _number in (
    ("block_table.item.item", 1),
    ("block_table.item", 1),
    ("page_checksums.item", 1),
    ("kv_role", 2),
):
    _patch(f"{_path} in the pages", _in_the_pages(_path, _number), "row_place")
_patch("length", _pack("<q", 2, "length"), "arrow_invalid")
_patch("length 0", _pack("<q", 0, "length"), "arrow_invalid")
_patch("length of terabytes", _pack("<q", HUGE, "length"), "arrow_invalid")
_patch("seq_ptr goes back", _pack("<i", 1, "data", "block_table.item", 1, 8), "arrow_invalid")
_patch("seq_ptr from behind", _pack("<i", 3, "data", "block_table.item", 1, 0), "arrow_invalid")
_patch("seq_ptr negative", _pack("<i", -1, "data", "block_table.item", 1, 4), "arrow_invalid")
_patch("seq_ptr past the ids", _pack("<i", 9, "data", "block_table.item", 1, 12), "arrow_invalid")
_patch("page id just out of range", _pack("<I", 5, "data", "block_table.item.item", 1, 4), "page_id_out_of_range")
_patch("page id 2^32 - 1", _pack("<I", 2**32 - 1, "data", "block_table.item.item", 1, 12), "page_id_out_of_range")
_patch("page_offset", _pack("<Q", 1, "data", "page_offset", 1), "column_mismatch")
_patch("kv_group", _pack("<I", 1, "data", "kv_group", 1), "column_mismatch")
_patch("tensor_index", _pack("<I", 1, "data", "tensor_index", 1), "column_mismatch")
_patch("layer_index", _pack("<I", 1, "data", "layer_index", 1), "column_mismatch")
_patch("kv_role", _pack("<3s", b"KEY", "data", "kv_role", 2), "column_mismatch")
_patch("component", _pack("<3s", b"\xff\xfe\xfd", "data", "component", 2), "arrow_invalid")
_patch("num_tokens", _pack("<Q", 5, "data", "sequences.item.num_tokens", 1), "seq_len_exceeds_pages")
_patch("num_tokens 2^64 - 1", _pack("<Q", 2**64 - 1, "data", "sequences.item.num_tokens", 1), "seq_len_exceeds_pages")
_patch("positions", _pack("<Q", 4, "data", "sequences.item.page_positions.item", 1), "page_positions_invalid")
_patch("checksum", _pack("<Q", 4, "data", "page_checksums.item", 1), "page_checksum")
_patch("descriptor's magic", _pack("<4s", b"hrry", "data", "descriptor", 2), "bad_magic")
_patch("descriptor's version", _pack("<B", 2, "data", "descriptor", 2, 4), "version_unsupported")
_patch("descriptor's layout", _pack("<B", 1, "data", "descriptor", 2, LAYOUT_TAG_OFFSET), UNSUPPORTED)
_patch(
    "descriptor's layout unknown", _pack("<B", 0x7F, "data", "descriptor", 2, LAYOUT_TAG_OFFSET), "layout_tag_invalid"
)


# -- columns -------------------------------------------------------------------------------------------------------


def _replace(name: str, column: str, make: Callable[[pa.Array], pa.Array], *expected: str, row: int = 0) -> None:
    def change(forgery: Forgery) -> None:
        forgery.set_column(row, column, make(forgery.batches[row].column(column)))

    add_case(f"column {name}", change, *expected)


def _with(path: str, value: Any) -> Callable[[pa.Array], pa.Array]:
    """Return what replaces the item at a path such as ``"0.1.id"`` of a column, whatever the schema says of nulls."""

    def make(array: pa.Array) -> pa.Array:
        values = _storage_values(array)
        target, last = values, 0
        steps = [0, *(int(step) if step.isdigit() else step for step in path.split(".") if step)]
        for step in steps:
            holder, target, last = target, target[step], step
        holder[last] = value
        return _typed(values, array.type)

    return make


def _storage_values(array: pa.Array) -> list[Any]:
    return _plain(array).to_pylist()


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        return _plain(array.storage)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _plain(array.values)
        made = pa.large_list(values.type) if pa.types.is_large_list(kind) else pa.list_(values.type)
        return pa.Array.from_buffers(made, len(array), array.buffers()[:2], children=[values])
    return array


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(kind, _typed(values, kind.storage_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = [item for value in values for item in value or ()]
        plain = pa.array([None if v is None else [0] * len(v) for v in values], _list_of(kind, pa.int8()))
        return pa.Array.from_buffers(
            kind, len(values), plain.buffers()[:2], plain.null_count, children=[_typed(items, kind.value_type)]
        )
    return pa.array(values, kind)


def _list_of(kind: pa.DataType, item: pa.DataType) -> pa.DataType:
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


_null = _with("", None)
for _column in ("tensor_index", "kv_role", "component", "kv_group", "page_offset"):
    _replace(f"{_column} null", _column, _null, "arrow_null")
_replace("descriptor null", "descriptor", _null, "row_missing")
_replace("block_table null", "block_table", _null, "group_table_missing")
_replace("block_table item null", "block_table", _with("0", None), "arrow_null")
_replace("block_table page id null", "block_table", _with("0.1", None), "arrow_null")
_replace("sequences item null", "sequences", _with("1", None), "arrow_null")
_replace("token id null", "sequences", _with("0.token_ids.1", None), "arrow_null")
_replace("position null", "sequences", _with("0.page_positions.1", None), "arrow_null")
_replace("media span null", "sequences", _with("0.media", [None]), "arrow_schema")
_replace(
    "media start null",
    "sequences",
    _with("0.media", [{"first_token": None, "num_tokens": 1, "digest": "d"}]),
    "arrow_schema",
)
_replace(
    "media span past 2^64",
    "sequences",
    _with("0.media", [{"first_token": 2**64 - 1, "num_tokens": 2, "digest": "d"}]),
    "media_span_invalid",
)
_replace("sequences too few", "sequences", lambda a: _typed([_storage_values(a)[0][:2]], a.type), "sequence_facts_size")
_replace("sequences empty", "sequences", lambda a: _typed([[]], a.type), "sequence_facts_size")
_replace("token ids too few", "sequences", _with("0.token_ids", [7]), "token_ids_size")
_replace("page_pool null", "page_pool", _null, "page_pool_size")
_replace("page null", "page_pool", _with("2", None), "arrow_null")
_replace("page value null", "page_pool", _with("2.1", None), "arrow_null")
_replace("a page less", "page_pool", lambda a: _typed([_storage_values(a)[0][:4]], a.type), "page_pool_size")
_replace("page_checksums null item", "page_checksums", _with("1", None), "arrow_null")
_replace("a checksum less", "page_checksums", lambda a: _typed([_storage_values(a)[0][:4]], a.type), "page_checksum")
_replace("parameters null", "quantization_buffers", _with("0", None), "arrow_null", row=3)
_replace("parameters gone", "quantization_buffers", _null, "buffer_missing", row=3)
_replace("parameters short", "quantization_buffers", _with("0", b"\0" * 11), "quantization_buffer_size", row=3)
_replace("parameters of nobody", "quantization_buffers", lambda a: _typed([[b"x"]], a.type), "buffer_missing")
_replace("two pools", "page_pool_1", lambda a: _typed([[[1.0, 2.0]]], a.type), "column_mismatch")
_replace("pool bytes too", "pool_bytes", lambda a: _typed([b""], a.type), "column_mismatch")
_replace("descriptor empty", "descriptor", lambda a: _typed([b""], a.type), "truncated")
_replace("descriptor cut", "descriptor", lambda a: _typed([_storage_values(a)[0][:50]], a.type), "truncated")
_replace("descriptor of another row", "descriptor", lambda a: _typed([_descriptor(1)], a.type), "column_mismatch")
_replace("tables of its own", "block_table", lambda a: _typed([[[3, 1], [], [1, 2]]], a.type), "column_mismatch", row=1)
_replace(
    "sequences of its own", "sequences", lambda a: _typed([[{"id": "x"}, {}, {}]], a.type), "column_mismatch", row=1
)
_replace("a role nobody knows", "kv_role", lambda a: _typed(["kéy"], a.type), "column_mismatch")


def _descriptor(row: int) -> bytes:
    from tests.faults.small import small_tensors

    return bytes(small_tensors()[row].descriptor.encode())


def _field(name: str, column: str, kind: Callable[[pa.DataType], pa.DataType], *expected: str) -> None:
    """Give a column another type; every row's values are cast, or taken as the new type's empty value."""

    def change(forgery: Forgery) -> None:
        place = forgery.schema.get_field_index(column)
        new = kind(forgery.schema.field(place).type)
        schema = forgery.schema.set(place, forgery.schema.field(place).with_type(new))
        columns = [batch.column(column).cast(new) for batch in forgery.batches]
        forgery.schema = schema
        for n, batch in enumerate(forgery.batches):
            arrays = [*batch.columns[:place], columns[n], *batch.columns[place + 1 :]]
            forgery.batches[n] = pa.RecordBatch.from_arrays(arrays, schema=schema)
        forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)

    add_case(f"type {name}", change, *expected)


_field("tensor_index int64", "tensor_index", lambda _: pa.int64(), SAME)
_field("tensor_index utf8", "tensor_index", lambda _: pa.utf8(), "arrow_schema")
_field("tensor_index float64", "tensor_index", lambda _: pa.float64(), SAME)
_field("tensor_index bool", "tensor_index", lambda _: pa.bool_(), "arrow_schema")
_field("kv_role binary", "kv_role", lambda _: pa.binary(), "arrow_schema")
_field("layer_name null", "layer_name", lambda _: pa.utf8(), SAME)


@case(INCOMPLETE)
def a_dictionary_for_the_roles(forgery: Forgery) -> None:
    place = forgery.schema.get_field_index("kv_role")
    roles = ["key", "value", "fused"]

    def encoded(values: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(map(roles.index, values), pa.int8()), roles)

    columns = [encoded(batch.column(place).to_pylist()) for batch in forgery.batches]
    schema = forgery.schema.set(place, pa.field("kv_role", columns[0].type, nullable=False))
    forgery.schema = schema
    for n, batch in enumerate(forgery.batches):
        arrays = [*batch.columns[:place], columns[n], *batch.columns[place + 1 :]]
        forgery.batches[n] = pa.RecordBatch.from_arrays(arrays, schema=schema)
    arrays = [encoded([]) if f.name == "kv_role" else pa.nulls(0, f.type) for f in schema]
    forgery.end = pa.RecordBatch.from_arrays(arrays, schema=schema)


@case("arrow_schema")
def a_column_is_missing(forgery: Forgery) -> None:
    place = forgery.schema.get_field_index("kv_role")
    forgery.schema = forgery.schema.remove(place)
    forgery.batches = [
        pa.RecordBatch.from_arrays(batch.columns[:place] + batch.columns[place + 1 :], schema=forgery.schema)
        for batch in forgery.batches
    ]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)


@case("arrow_schema")
def a_column_is_there_twice(forgery: Forgery) -> None:
    forgery.schema = forgery.schema.append(forgery.schema.field("kv_role"))
    forgery.batches = [
        pa.RecordBatch.from_arrays([*batch.columns, batch.column("kv_role")], schema=forgery.schema)
        for batch in forgery.batches
    ]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)


@case(SAME)
def a_column_nobody_knows(forgery: Forgery) -> None:
    extra = pa.array(["surprise"])
    forgery.schema = forgery.schema.insert(13, pa.field("page_colour", pa.utf8()))
    forgery.batches = [
        pa.RecordBatch.from_arrays([*batch.columns[:13], extra, *batch.columns[13:]], schema=forgery.schema)
        for batch in forgery.batches
    ]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)


@case("arrow_invalid")
def rows_are_compressed(forgery: Forgery) -> None:
    forgery.compression = "zstd"


@case("arrow_invalid")
def rows_are_lz4_bombs(forgery: Forgery) -> None:
    forgery.compression = "lz4"

    def patch(row: bytearray) -> None:
        places = RowBytes(row)
        for number in range(80):
            start, size = places.buffer(number)
            if size >= 8:
                struct.pack_into("<q", row, start, HUGE)

    forgery.patches[0] = patch


@case("arrow_invalid")
def a_batch_of_two_rows(forgery: Forgery) -> None:
    joined = pa.Table.from_batches(forgery.batches[:1] * 2).combine_chunks().to_batches()
    forgery.batches[0] = joined[0]


@case("arrow_invalid")
def a_batch_without_rows(forgery: Forgery) -> None:
    forgery.batches[0] = forgery.end


# -- extension metadata --------------------------------------------------------------------------------------------


def _extension(name: str, column: str, metadata: Any, *expected: str, storage: pa.DataType | None = None) -> None:
    def change(forgery: Forgery) -> None:
        place = forgery.schema.get_field_index(column)
        field = forgery.schema.field(place)
        item = field.type.value_field
        stated = metadata(item.type.__arrow_ext_serialize__()) if callable(metadata) else metadata
        pairs = {"ARROW:extension:name": item.type.extension_name, "ARROW:extension:metadata": stated}
        bare = pa.field("item", storage or item.type.storage_type, nullable=False, metadata=pairs)
        made = pa.large_list(bare) if pa.types.is_large_list(field.type) else pa.list_(bare)
        # Through the wire, as a reader meets it: there the metadata becomes a type.
        schema = forgery.schema.set(place, pa.field(column, made))
        forgery.set_schema(pa.ipc.read_schema(schema.serialize()))

    add_case(f"extension {name}", change, *expected)


def _changed(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda metadata: json.dumps({**json.loads(metadata), **fields}).encode()


_extension("with a new key", "page_pool", _changed(colour="red"), SAME)
_extension("of 5 KiB", "page_pool", _changed(user="x" * 5000), "extension_metadata_invalid")
_extension("empty", "page_pool", b"", "extension_metadata_invalid")
_extension("no UTF-8", "page_pool", b'{"version":1,"\xff":1}', "extension_metadata_invalid")
_extension("a list", "page_pool", b"[1]", "extension_metadata_invalid")
_extension("nested 2,000", "page_pool", b"[" * 2000 + b"]" * 2000, "extension_metadata_invalid")
_extension("duplicate key", "page_pool", lambda m: m.replace(b"{", b'{"version":1,', 1), "extension_metadata_invalid")
_extension("version 2", "page_pool", _changed(version=2), UNSUPPORTED)
_extension("version true", "page_pool", _changed(version=True), "extension_metadata_invalid")
_extension("no shape", "page_pool", _changed(page_shape=None), "extension_metadata_invalid")
_extension("shape of terabytes", "page_pool", _changed(page_shape=[HUGE, HUGE, HUGE]), "extension_metadata_invalid")
_extension("shape of zero", "page_pool", _changed(page_shape=[0, 1, 3]), "extension_metadata_invalid")
_extension("shape turned", "page_pool", _changed(page_shape=[1, 2, 3]), "column_mismatch")
_extension("negative shape", "page_pool", _changed(page_shape=[-2, -1, 3]), "extension_metadata_invalid")
_extension("encoding unknown", "page_pool", _changed(encoding="rot13"), UNSUPPORTED)
_extension("encoding byte_planes", "page_pool", _changed(encoding="byte_planes"), "extension_metadata_invalid")
_extension("element type unknown", "page_pool", _changed(element_type="float7"), UNSUPPORTED)
_extension("element type of the same width", "page_pool", _changed(element_type="uint16"), "column_mismatch")
_extension("element type float16", "page_pool", _changed(element_type="float16"), "extension_metadata_invalid")
_extension("private", "page_pool", _changed(element_type="private_0xF3"), "extension_metadata_invalid")
_extension("private nonsense", "page_pool", _changed(element_type="private_0x"), "extension_metadata_invalid")
_extension("element type a number", "page_pool", _changed(element_type=3), "extension_metadata_invalid")
_extension("table version 2", "block_table", _changed(version=2), "extension_metadata_invalid")
_extension("table empty", "block_table", b"", "extension_metadata_invalid")
_extension(
    "storage of another size",
    "page_pool",
    lambda m: m,
    "extension_metadata_invalid",
    storage=pa.list_(pa.field("item", pa.uint16(), nullable=False), 3),
)
_extension(
    "storage of another type",
    "page_pool",
    lambda m: m,
    "extension_metadata_invalid",
    storage=pa.list_(pa.field("item", pa.int16(), nullable=False), 6),
)


# -- the snapshot's metadata ---------------------------------------------------------------------------------------


def _metadata(name: str, edit: Callable[[dict[bytes, bytes]], Any], *expected: str) -> None:
    def change(forgery: Forgery) -> None:
        pairs = dict(forgery.schema.metadata)
        edit(pairs)
        forgery.set_schema(forgery.schema.with_metadata(pairs))

    add_case(f"metadata {name}", change, *expected)


_FORMAT, _SNAPSHOT = b"hurray_arrow.format", b"hurray_arrow.snapshot"


def _document(**fields: Any) -> Callable[[dict[bytes, bytes]], Any]:
    return lambda pairs: pairs.update({_SNAPSHOT: json.dumps({**json.loads(pairs[_SNAPSHOT]), **fields}).encode()})


_metadata("gone", lambda pairs: pairs.pop(_SNAPSHOT), "metadata_invalid")
_metadata("format gone", lambda pairs: pairs.pop(_FORMAT), "metadata_invalid")
_metadata("format 2", lambda pairs: pairs.update({_FORMAT: b"2"}), UNSUPPORTED)
_metadata("requires base", _document(requires=["base"]), UNSUPPORTED)
_metadata("requires numbers", _document(requires=[1]), "metadata_invalid")
_metadata("profile unknown", _document(profile="keep"), "metadata_invalid")
_metadata("profile archive", _document(profile="archive"), "index_invalid")
_metadata("align 0", _document(page_align_bytes=0), "metadata_invalid")
_metadata("align 96", _document(page_align_bytes=96), "metadata_invalid")
_metadata("align of terabytes", _document(page_align_bytes=HUGE), "metadata_invalid")
_metadata("groups of numbers", _document(groups=[1]), "metadata_invalid")
_metadata("groups wrong", _document(groups=[{"kind": "full", "components": "values"}]), "metadata_invalid")
_metadata("a companion more", _document(groups=[{"kind": "full", "components": ["state.x"]}]), "companion_missing")
_metadata("id a number", _document(id=7), "metadata_invalid")
_metadata("no object", lambda pairs: pairs.update({_SNAPSHOT: b"[]"}), "metadata_invalid")
_metadata("NaN", lambda pairs: pairs.update({_SNAPSHOT: b'{"id":NaN}'}), "metadata_invalid")
_metadata("nesting 10,000", lambda pairs: pairs.update({_SNAPSHOT: b"[" * 10_000 + b"]" * 10_000}), "metadata_invalid")
_metadata("no UTF-8", lambda pairs: pairs.update({_SNAPSHOT: b"\xff"}), "metadata_invalid")
