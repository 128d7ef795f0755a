"""Snapshots that other tools rewrote: no end batch, other lists, views, stripped extensions, rows joined; and damaged.

Recovery and ``from_arrow`` read them: what was only rewritten is the same, what was damaged is valid or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

import hurray_arrow as ha
from hurray_arrow import BlockPagedTensor, from_arrow, open_snapshot
from hurray_arrow.arrow.convert import from_record_batch, tensors_from_batches, to_record_batch
from hurray_arrow.errors import HurrayArrowError
from tests.faults.outcome import is_same
from tests.fuzz.bases import SHARE, archives, file_path, share_files
from tests.fuzz.choices import Choices
from tests.fuzz.limits import bounded, check_error, promise, refused
from tests.fuzz.targets.files import damaged

LISTS = ("list", "large_list", "list_view", "large_list_view")
_LISTED = ("block_table", "sequences", "quantization_buffers", "page_checksums")


@cache
def _bases() -> tuple[tuple[list[pa.RecordBatch], list[BlockPagedTensor]], ...]:
    """Return rows of snapshots, and their tensors."""
    found = []
    for content in (
        *share_files()[:2],
        *share_files()[3:9],
        share_files()[2 + SHARE.index("index_types")],
        *archives()[1:3],
    ):
        reader = pa.ipc.open_file(pa.BufferReader(content))
        batches = [reader.get_batch(n) for n in range(reader.num_record_batches - 1)]
        found.append((batches, tensors_from_batches(batches)))
    return tuple(found)


def seeds() -> Iterator[bytes]:
    """Yield scripts: every list, views, one batch or many, files and streams, compressed or not; then damage."""
    for base in range(12):
        for way in range(32):
            rest = [0] * 12 if way % 4 else [way * 7 % 256, way, way % 3, way, 6 + way % 2, way, way % 5, way // 2 % 8]
            yield bytes([base, way % 4, way, way // 4 % 4, way % 3, way % 6, *rest])
        yield from (bytes([base, *[0] * 8, 7, 0, how]) for how in range(2))
        yield bytes([base, *[0] * 11, 7, 0])
    for number in range(len(ODD)):
        for base in (0, 1, 9):
            yield from (bytes([base, 0, 0, 0, 0, 0, 0, base % 2, 6, number, left_out]) for left_out in (0, 7))
    for base in range(12):
        for place in range(0, 256, 17):
            yield bytes([base, *[0] * 13, place % 6, place, place, 2, 0xFF])


def run(data: bytes) -> None:
    """Rewrite a snapshot as a script says, and read what is left."""
    choices = Choices(data)
    batches, tensors = choices.pick(_bases())
    rewritten = _rewritten(batches, choices)
    rows_are_spoilt = False
    with bounded(sum(batch.nbytes for batch in rewritten)):
        _look_at_rows(rewritten, tensors, choices)
    odd = choices.below(8)
    if odd > 5 and rewritten:
        rewritten = _with_odd_column(rewritten, choices)
        rows_are_spoilt = True
        with bounded(sum(batch.nbytes for batch in rewritten)):
            for tensor in refused(lambda: tensors_from_batches(rewritten)) or ():
                promise(tensor.validate() == [], "a tensor out of odd columns breaks rules")
    if choices.below(8) == 7:
        rows_are_spoilt = True
        rewritten = [_spoilt(batch) for batch in rewritten]
    written = _written(rewritten, choices)
    if choices.below(8) == 7:
        written = _with_another_head(written)
    # A file whose writer died has no footer.
    content = written[: len(written) * 3 // 4] if choices.below(4) == 3 else written
    if choices.more:
        rows_are_spoilt = True
        content = damaged(content, choices)
    file_path().write_bytes(content)
    expected = len(tensors) if content == written and not rows_are_spoilt else None
    with bounded(2 * len(content)):
        for mapped in (True, False):
            _look_at_recovered(None if rows_are_spoilt else tensors, expected, mapped=mapped)


# -- rewriting ---------------------------------------------------------------------------------------------------------


def _rewritten(batches: list[pa.RecordBatch], choices: Choices) -> list[pa.RecordBatch]:
    kind, flags, order = choices.pick(LISTS), choices.number(), choices.below(4)
    kinds = (kind, choices.pick((pa.string_view(), pa.large_utf8())), choices.pick((pa.binary_view(), pa.binary())))
    changed = [_batch(batch, kinds, flags) for batch in batches]
    if order == 1:
        changed.reverse()
    elif order > 1 and changed:
        try:
            # Rows in batches of several, as every tool likes it.
            table = pa.Table.from_batches(changed[::-1] if order == 3 else changed).combine_chunks()
            changed = table.to_batches(max_chunksize=1 + choices.below(6))
        except (pa.ArrowException, NotImplementedError):
            return changed
    return changed


def _batch(batch: pa.RecordBatch, kinds: tuple[str, pa.DataType, pa.DataType], flags: int) -> pa.RecordBatch:
    lists, texts, binaries = kinds
    columns, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        made = column
        if field.name in _LISTED or pa.types.is_large_list(field.type):
            made = (
                _relisted(column, lists, strip=bool(flags & 1))
                if flags & 2
                else _stripped(column)
                if flags & 1
                else column
            )
        elif pa.types.is_string(field.type) and flags & 4:
            made = column.cast(texts)
        elif pa.types.is_large_binary(field.type) and flags & 8:
            made = column.cast(binaries)
        columns.append(made)
        fields.append(pa.field(field.name, made.type))
    metadata = None if flags & 16 else batch.schema.metadata
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))


def _stripped(array: pa.Array) -> pa.Array:
    return _relisted(array, "large_list" if pa.types.is_large_list(array.type) else "list", strip=True)


def _relisted(array: pa.Array, kind: str, *, strip: bool) -> pa.Array:
    """Return the same lists as lists of another kind, of bare items if asked."""
    values = array.values
    if strip and isinstance(values, pa.ExtensionArray):
        values = values.storage
    offsets = np.asarray(array.offsets).astype(np.int64)
    valid = array.is_valid()
    width = pa.int64() if kind.startswith("large") else pa.int32()
    if kind in ("list", "large_list"):
        make: Any = pa.LargeListArray if kind == "large_list" else pa.ListArray
        mask = pa.array([not each.as_py() for each in valid]) if array.null_count else None
        return make.from_arrays(pa.array(offsets, width), values, mask=mask)
    views = pa.LargeListViewArray if kind == "large_list_view" else pa.ListViewArray
    mask = pa.array([not each.as_py() for each in valid]) if array.null_count else None
    return views.from_arrays(pa.array(offsets[:-1], width), pa.array(np.diff(offsets), width), values, mask=mask)


def _odd(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array([values], kind)


_PLANES = {name: pa.list_(pa.field("item", pa.uint8(), nullable=False), size) for name, size in (("b0", 6), ("b1", 3))}
#: Columns that hold something, and not what the format says: by name, one row of each.
ODD = (
    ("page_pool", _odd([[1, 2]], pa.large_list(pa.list_(pa.int32())))),
    ("page_pool", _odd([{"b0": [0] * 6, "b1": [0] * 3}], pa.list_(pa.struct(_PLANES)))),
    ("page_pool", _odd([{}], pa.list_(pa.struct([])))),
    ("page_pool", _odd([5], pa.list_(pa.int64()))),
    ("page_pool", _odd(5, pa.int64())),
    ("page_pool", _odd([[0] * 6] * 5, pa.list_view(pa.list_(pa.uint16(), 6)))),
    ("page_pool", _odd([[0] * 6, None], pa.list_(pa.list_(pa.uint16(), 6)))),
    ("pool_bytes", _odd("text", pa.utf8())),
    ("pool_bytes", _odd(b"", pa.binary_view())),
    ("pool_bytes", _odd(b"x" * 12, pa.binary_view())),
    ("quantization_buffers", _odd(["text"], pa.list_(pa.utf8()))),
    ("quantization_buffers", _odd([b"", b"abcdefghijklmnop"], pa.list_(pa.binary_view()))),
    ("quantization_buffers", _odd(b"abc", pa.binary())),
    ("block_table", _odd([[1, 2], [], [3]], pa.list_(pa.list_(pa.int64())))),
    ("block_table", _odd([["a"]], pa.list_(pa.list_(pa.utf8())))),
    ("block_table", _odd([[3, 1], None, [1, 4]], pa.list_view(pa.list_(pa.uint64())))),
    ("block_table", _odd([[3, 1], [], [1, 2**40]], pa.list_(pa.list_(pa.uint64())))),
    ("block_table", _odd([1, 2], pa.list_(pa.uint32()))),
    ("sequences", _odd([{"num_tokens": 3}, {"num_tokens": None}], pa.list_(pa.struct([("num_tokens", pa.int16())])))),
    ("sequences", _odd([{"id": 3}], pa.list_(pa.struct([("id", pa.int16()), ("x", pa.null())])))),
    ("sequences", _odd(["x", "y"], pa.list_(pa.utf8()))),
    ("sequences", _odd([{"token_ids": [[1]]}], pa.list_(pa.struct([("token_ids", pa.list_(pa.list_(pa.int8())))])))),
    (
        "sequences",
        _odd([{"media": [{"a": 1}]}], pa.list_(pa.struct([("media", pa.list_(pa.struct([("a", pa.int8())])))]))),
    ),
    ("page_checksums", _odd([-1], pa.list_(pa.int64()))),
    ("page_checksums", _odd(["x"], pa.list_(pa.utf8()))),
    ("page_checksums", _odd([1.0, 2.0], pa.list_(pa.float64()))),
    ("layer_index", _odd(0.5, pa.float64())),
    ("layer_index", _odd(17.0, pa.float32())),
    ("kv_group", _odd(-1, pa.int64())),
    ("kv_group", _odd(2**64 - 1, pa.uint64())),
    ("page_offset", _odd(1, pa.int8())),
    ("component", _odd("values", pa.dictionary(pa.int8(), pa.utf8()))),
    ("descriptor", _odd(b"HRRY", pa.binary_view())),
    ("original_descriptor", _odd("text", pa.utf8())),
    ("layer_name", _odd(["x"], pa.list_(pa.utf8()))),
    # As many bytes, and other numbers.
    ("page_pool", _odd([[0.0] * 6] * 5, pa.list_(pa.list_(pa.field("item", pa.float16(), nullable=False), 6)))),
)


def _with_odd_column(batches: list[pa.RecordBatch], choices: Choices) -> list[pa.RecordBatch]:
    """Return batches with a column of another type, or with none of its name."""
    name, column = choices.pick(ODD)
    is_left_out = choices.below(8) == 7
    found = []
    for batch in batches:
        place = batch.schema.get_field_index(name)
        if place < 0:
            return batches
        if is_left_out:
            found.append(batch.remove_column(place))
            continue
        made = pa.concat_arrays([column] * batch.num_rows)
        found.append(batch.set_column(place, pa.field(name, column.type), made))
    return found


def _spoilt(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows fifty times and without a role: more than anybody lists."""
    place = batch.schema.get_field_index("kv_role")
    fields = list(batch.schema)
    fields[place] = pa.field("kv_role", pa.null())
    schema = pa.schema(fields, metadata=batch.schema.metadata)
    columns = [pa.concat_arrays([column] * 50) for column in batch.columns]
    columns[place] = pa.nulls(50 * batch.num_rows)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_another_head(content: bytes) -> bytes:
    """Return a file whose first message nobody can read, as Polars' cannot: only the footer has the schema."""
    return content[:8] + b"\x01\x02\x03\x04" + content[12:] if content.startswith(b"ARROW1") else content


def _written(batches: list[pa.RecordBatch], choices: Choices) -> bytes:
    options = pa.ipc.IpcWriteOptions(allow_64bit=True, compression=choices.pick((None, "zstd", "lz4")))
    make: Callable[..., Any] = choices.pick((pa.ipc.new_file, pa.ipc.new_stream))
    sink = pa.BufferOutputStream()
    schema = batches[0].schema if batches else pa.schema([])
    with make(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


# -- reading -----------------------------------------------------------------------------------------------------------


def _look_at_rows(batches: list[pa.RecordBatch], tensors: list[BlockPagedTensor], choices: Choices) -> None:
    found = refused(lambda: tensors_from_batches(batches))
    promise(found is not None and len(found) == len(tensors), "rewritten rows are refused")
    promise(all(map(is_same, found or (), tensors)), "rewritten rows are other tensors")
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    again = from_arrow(table if choices.flag() else table.to_reader())
    promise(len(again) == len(tensors) and all(map(is_same, again, tensors)), "tensors from Arrow are others")
    # One batch by itself may lack its group's tables.
    for tensor in refused(lambda: from_arrow(batches[0])) or ():
        promise(any(is_same(tensor, other) for other in tensors), "a tensor out of one batch is another")
    tensor = choices.pick(tensors)
    for exported in (to_record_batch(tensor), pa.record_batch(tensor)):
        promise(is_same(from_record_batch(exported), tensor), "a tensor changes on its way through Arrow")
    promise(is_same(from_arrow(tensor)[0], tensor), "a tensor changes on its way through the protocol")
    promise(pa.schema(tensor).equals(to_record_batch(tensor).schema), "a schema that is not the row's")
    shared = refused(lambda: from_record_batch(to_record_batch(tensor, copy=False), copy=False))
    promise(shared is None or is_same(shared, tensor), "a shared tensor is another")
    refused(lambda: from_arrow(object()), TypeError)
    refused(lambda: from_record_batch(batches[0]), ValueError)
    refused(lambda: tensors_from_batches(batches, copy=False))


def _look_at_recovered(tensors: list[BlockPagedTensor] | None, expected: int | None, *, mapped: bool) -> None:
    snapshot = refused(lambda: open_snapshot(file_path(), recover=True, mapped=mapped))
    if snapshot is None:
        promise(expected is None, "a rewritten file cannot be opened")
        return
    with snapshot:
        promise(expected in (None, len(snapshot.entries)), "not every tensor was recovered")
        promise(snapshot.unverified or not snapshot.entries, "recovery is sure of everything")
        found = [refused(lambda entry=entry: snapshot.checked_tensor(entry)[0]) for entry in snapshot.entries]
        promise(
            all(tensor is not None and tensor.validate() == [] for tensor in found), "a recovered tensor breaks rules"
        )
        refused(snapshot.verify)
        refused(lambda: snapshot.match_prefix([1, 2]))
        if tensors is not None:
            promise(all(any(is_same(one, other) for other in tensors) for one in found), "something else was recovered")
        _exported(snapshot)
        _copied(snapshot)


def _exported(snapshot: ha.Snapshot) -> None:
    try:
        rows = list(pa.RecordBatchReader.from_stream(snapshot))
        tensors_from_batches(rows)
    except HurrayArrowError as error:
        check_error(error)


def _copied(snapshot: ha.Snapshot) -> None:
    """Read in part, which needs an index, and by what views open."""
    promise(refused(lambda: snapshot.read_sequences(None)) is None, "an index out of nothing")
    for pages in refused(lambda: list(snapshot.open_tensors(snapshot.entries))) or ():
        promise(pages.read(np.array([0])).validate() == [], "an opened tensor breaks rules")
