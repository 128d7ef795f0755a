"""Every kind of edit: those of rows and columns, and here those of the index, the footer, and whole rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.faults import hostile_archives
from tests.faults.forgery import zst_frame, zst_pairs
from tests.faults.hostile import CASES
from tests.fuzz import column_edits, row_edits
from tests.fuzz.scripts import Edit, Script


def index_row(script: Script) -> None:
    row, choices = script.row(), script.choices
    names = sorted({*script.forgery.index["rows"][row], "pages_offset", "row_xxh3", "checksums_offset", "small_xxh3"})
    name = choices.pick(names)
    old = script.forgery.index["rows"][row].get(name)
    left_out, near, value = choices.below(8) == 7, choices.flag(), choices.value(old)
    step = choices.pick((1, -1, 8, -8, 64, -64))

    def edit(rows: list[dict[str, Any]]) -> None:
        if left_out:
            rows[row].pop(name, None)
        elif near and type(rows[row].get(name)) is int:
            rows[row][name] += step
        else:
            rows[row][name] = value

    script.rows.append(edit)


def index_key(script: Script) -> None:
    name = script.choices.pick(("version", "kind", "num_rows", "num_tensors", "schema_xxh3", "rows", "more"))
    value = script.choices.value(script.forgery.index.get(name))
    script.index.append(lambda index: index.update({name: value}))


def index_text(script: Script) -> None:
    before, choices = script.forgery.edit_text, script.choices
    start, cut, new = choices.number(2), choices.below(12), choices.chunk(choices.below(10))

    def edit(text: str) -> str | bytes:
        found = before(text)
        stored = found if isinstance(found, bytes) else found.encode("utf-8", "surrogatepass")
        at = start % (len(stored) + 1)
        return stored[:at] + new + stored[at + cut :]

    script.forgery.edit_text = edit


def index_pairs(script: Script) -> None:
    how, place, new = script.choices.below(4), script.choices.number(2), script.choices.chunk(4)

    def edit(pairs: dict[Any, Any]) -> dict[Any, Any]:
        key, value = next(iter(pairs.items()))
        stored = value if isinstance(value, bytes) else value.encode()
        if how == 0:
            return {}
        if how == 1:
            return {key: value}
        frame = zst_frame(stored, states_size=how == 2)
        at = place % len(frame)
        return zst_pairs(frame[:at] + new + frame[at + 4 :] if place & 1 else frame)

    script.forgery.edit_pairs = edit


def index_kind(script: Script) -> None:
    """Let the index be one of the other kind, of as many rows as it says or of none."""
    is_empty = script.choices.flag()

    def edit(index: dict[str, Any]) -> None:
        index["kind"] = "stream" if index.get("kind") == "file" else "file"
        if is_empty:
            index.update(rows=[], num_rows=0, num_tensors=0)

    script.index.append(edit)


def end_rows(script: Script) -> None:
    """Give the end batch rows, and let the column that every snapshot has be another."""
    forgery, is_other = script.forgery, script.choices.flag()
    forgery.end = forgery.batches[script.row()]
    if is_other:
        names = ["x" if name == "tensor_index" else name for name in forgery.schema.names]
        forgery.schema = pa.schema(
            [f.with_name(name) for f, name in zip(forgery.schema, names, strict=True)], forgery.schema.metadata
        )
        forgery.batches = [pa.RecordBatch.from_arrays(b.columns, schema=forgery.schema) for b in forgery.batches]
        forgery.end = pa.RecordBatch.from_arrays(forgery.end.columns, schema=forgery.schema)


def block(script: Script) -> None:
    before, number, what = script.forgery.edit_blocks, script.choices.number(), script.choices.below(3)
    near, value = script.choices.flag(), script.choices.integer()

    def edit(blocks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        blocks = before(blocks)
        changed = list(blocks[number % len(blocks)])
        changed[what] = changed[what] + value % 256 - 128 if near else _in_i64(value)
        changed[1] %= 2**31
        blocks[number % len(blocks)] = (changed[0], changed[1], changed[2])
        return blocks

    script.forgery.edit_blocks = edit


def _in_i64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def end_bytes(script: Script) -> None:
    before, place, new = (
        script.forgery.edit_end,
        script.choices.number(2),
        script.choices.chunk(1 + script.choices.below(8)),
    )

    def edit(stored: bytearray) -> None:
        before(stored)
        at = place % len(stored)
        stored[at : at + len(new)] = new[: len(stored) - at]

    script.forgery.edit_end = edit


def batches(script: Script) -> None:
    """Leave a row out, give it twice, exchange two, or give one no rows or two."""
    forgery, row, how = script.forgery, script.row(), script.choices.below(6)
    other = script.row()
    rows, batches = forgery.index["rows"], forgery.batches
    match how:
        case 0:
            del batches[row], rows[row]
        case 1:
            batches.insert(other, batches[row])
            rows.insert(other, dict(rows[row]))
        case 2:
            batches[row], batches[other] = batches[other], batches[row]
        case 3:
            batches[row], batches[other] = batches[other], batches[row]
            rows[row], rows[other] = rows[other], rows[row]
        case 4:
            batches[row] = forgery.end
        case 5:
            batches[row] = pa.Table.from_batches([batches[row], batches[other]]).combine_chunks().to_batches()[0]
    forgery.index.update(num_rows=len(rows), num_tensors=len({each.get("tensor_index") for each in rows}))


def compression(script: Script) -> None:
    script.forgery.compression = script.choices.pick(("zstd", "lz4", None))
    script.forgery.end_compression = script.choices.pick((None, "zstd"))


CASE_NAMES = sorted(CASES)


_ARCHIVE_CASES = sorted(hostile_archives.CASES)


def archive_case(script: Script) -> None:
    """Apply one of the hand-made cases of archives whose pages lie in several rows."""
    hostile_archives.CASES[script.choices.pick(_ARCHIVE_CASES)](script.forgery)


def hostile_case(script: Script) -> None:
    """Apply one of the hand-made cases; what it sets goes before what was set already."""
    CASES[CASE_NAMES[script.choices.number(2) % len(CASE_NAMES)]](script.forgery)


#: By number: their order is what scripts mean, so new ones go to the end.
EDITS: tuple[Edit, ...] = (
    *(hostile_case, row_edits.header_bytes, row_edits.body_bytes, row_edits.node, row_edits.buffer, row_edits.scalar),
    *(row_edits.scalar, row_edits.stated_size, row_edits.checksums, column_edits.column_value),
    *(column_edits.column_value, column_edits.retyped, column_edits.fields, column_edits.extension),
    *(column_edits.metadata, index_row, index_row, index_key, index_text, index_pairs, block, end_bytes, batches),
    *(compression, archive_case, index_kind, end_rows, column_edits.moved_pages),
)
