"""Rows as other libraries leave them: stripped, renamed, widened, nullable, as views; right or refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow.arrow.convert import from_record_batch, tensors_from_batches, to_record_batch
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.rows import Row
from hurray_arrow.arrow.tensor_rows import aligned
from hurray_arrow.arrow.types import PagePoolType
from hurray_arrow.errors import ExtensionMetadataError, SnapshotCorruptError, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import make_tensor, sample_facts


def tensor_with_everything(**more):
    return make_tensor(**sample_facts(), layer_name="model.17", kv_group=3, quantization="per_channel_heads", **more)


def row(tensor=None):
    return to_record_batch(tensor or tensor_with_everything())


def put(batch, name, column, *, nullable=None):
    """Replace a column by one of any type."""
    place = batch.schema.get_field_index(name)
    old = batch.schema.field(name)
    field = pa.field(name, column.type, nullable=old.nullable if nullable is None else nullable)
    return batch.set_column(place, field, column)


def codes(batch, error=SnapshotCorruptError):
    with pytest.raises(error) as caught:
        from_record_batch(batch)
    return caught.value.codes


def stripped(array):
    """The same values without our extension types."""
    pages = array.values
    storage = pages.storage
    kind = pa.large_list if pa.types.is_large_list(array.type) else pa.list_
    rebuilt = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return rebuilt.from_arrays(array.offsets, storage, type=kind(pa.field("item", storage.type, nullable=False)))


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_row_is_what_the_tensor_says():
    tensor = tensor_with_everything()
    found = Row.read(row(tensor), 0)
    assert (found.tensor_index, found.layer_index, found.layer_name) == (0, 17, "model.17")
    assert (found.kv_role, found.component, found.kv_group, found.page_offset) == ("value", "values", 3, 0)
    assert found.descriptor == tensor.descriptor.encode()
    assert found.original_descriptor is None
    assert found.page_checksums is None
    assert found.pool_column == "page_pool"
    assert found.page_class == PageClass("bfloat16", 16, (5, 3, 11))
    assert found.pool.tobytes() == tensor.page_pool.tobytes()
    assert found.tables.seq_ptr.tolist() == [0, 3, 3, 5, 6]
    assert found.tables.block_table.tolist() == [5, 2, 6, 5, 0, 2]
    assert [buffer.tobytes() for buffer in found.quantization_buffers] == [
        buffer.tobytes() for buffer in tensor.quantization_buffers
    ]


@pytest.mark.parametrize("name", ["tensor_index", "layer_index", "kv_group", "page_offset"])
@pytest.mark.parametrize(
    "column",
    [
        ["0"],
        [b"0"],
        [True],
        [-1],
        [0.5],
        [float("inf")],
        pa.array(["0"]).dictionary_encode(),
        pa.array([0], pa.date32()),
    ],
    ids=str,
)
def test_numbers_of_other_types_are_refused(name, column):
    assert codes(put(row(), name, column if isinstance(column, pa.Array) else pa.array(column))) == ["arrow_schema"]


@pytest.mark.parametrize("name", ["layer_name", "kv_role", "component", "descriptor", "original_descriptor"])
@pytest.mark.parametrize("column", [[0], [[1]], [{"a": 1}]], ids=str)
def test_texts_and_bytes_of_other_types_are_refused(name, column):
    assert codes(put(row(), name, pa.array(column))) == ["arrow_schema"]


def test_media_of_other_fields_are_refused():
    media = pa.list_(pa.struct([("first", pa.int8())]))
    sequences = pa.array([[{"media": [{"first": 1}]}] * 4], pa.list_(pa.struct([("media", media)])))
    assert codes(put(row(), "sequences", sequences)) == ["arrow_schema"]


def test_numbers_that_pandas_made_floats_are_numbers():
    found = Row.read(put(row(), "layer_index", pa.array([17.0])), 0)
    assert (found.layer_index, type(found.layer_index)) == (17, int)
    assert Row.read(put(row(), "layer_name", pa.nulls(1)), 0).layer_name is None


# -- what others do to a batch and is right all the same ---------------------------------------------------------------


def test_stripped_extension_types():
    tensor = tensor_with_everything()
    batch = row(tensor)
    for name in ("block_table", "page_pool"):
        batch = put(batch, name, stripped(batch.column(name)))
    assert from_record_batch(batch).equals(tensor)
    assert from_record_batch(batch, copy=False).equals(tensor)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("page_pool", pa.list_(pa.field("element", pa.list_(pa.uint16(), 165)))),
        ("page_pool", pa.large_list(pa.field("", pa.list_(pa.field("x", pa.uint16()), 165)))),
        ("page_pool", pa.list_view(pa.list_(pa.uint16(), 165))),
        ("page_pool", pa.large_list_view(pa.list_(pa.uint16(), 165))),
        ("block_table", pa.large_list(pa.large_list(pa.uint32()))),
        ("block_table", pa.list_(pa.list_(pa.field("element", pa.uint64())))),
        ("block_table", pa.large_list_view(pa.list_(pa.uint32()))),
        ("block_table", pa.list_(pa.list_view(pa.uint32()))),
        ("block_table", pa.list_view(pa.large_list_view(pa.uint64()))),
        ("quantization_buffers", pa.list_(pa.binary())),
        ("quantization_buffers", pa.large_list(pa.binary_view())),
        ("quantization_buffers", pa.list_view(pa.large_binary())),
        ("descriptor", pa.binary()),
        ("descriptor", pa.binary_view()),
        ("kv_role", pa.large_utf8()),
        ("kv_role", pa.string_view()),
        ("kv_role", pa.dictionary(pa.int8(), pa.utf8())),
        ("component", pa.string_view()),
        ("layer_name", pa.large_utf8()),
        ("tensor_index", pa.int64()),
        ("layer_index", pa.int64()),
        ("kv_group", pa.uint8()),
        ("page_offset", pa.int64()),
    ],
    ids=str,
)
def test_columns_of_other_types_that_hold_the_same(name, kind):
    tensor = tensor_with_everything()
    batch = row(tensor)
    column = batch.column(name)
    if name in ("block_table", "page_pool"):
        column = stripped(column)
    # Arrow casts few lists to views.
    column = pa.array(column.to_pylist(), kind) if "view" in str(kind) else column.cast(kind)
    found = from_record_batch(put(batch, name, column, nullable=True))
    assert found.equals(tensor)
    assert found.sequences.equals(tensor.sequences)


SEQUENCES_AS_OTHERS_WRITE = pa.large_list(
    pa.field(
        "element",
        pa.struct(
            [
                pa.field("num_tokens", pa.uint64()),
                pa.field("id", pa.large_utf8()),
                pa.field("token_ids", pa.large_list(pa.field("element", pa.uint32()))),
                pa.field("page_positions", pa.large_list(pa.field("element", pa.uint64()))),
                pa.field("adapter", pa.string_view()),
                pa.field("tenant", pa.large_utf8()),
                pa.field(
                    "media",
                    pa.large_list(
                        pa.field(
                            "element",
                            pa.struct(
                                [
                                    pa.field("first_token", pa.int64()),
                                    pa.field("num_tokens", pa.int64()),
                                    pa.field("digest", pa.large_utf8()),
                                ]
                            ),
                        )
                    ),
                ),
            ]
        ),
    )
)


def test_sequences_as_others_write_them():
    tensor = tensor_with_everything()
    batch = row(tensor)
    column = pa.array(batch.column("sequences").to_pylist(), SEQUENCES_AS_OTHERS_WRITE)
    found = from_record_batch(put(batch, "sequences", column))
    assert found.equals(tensor)


def test_columns_in_another_order_and_unknown_ones():
    tensor = tensor_with_everything()
    batch = row(tensor)
    batch = batch.select(sorted(batch.schema.names, reverse=True))
    batch = batch.append_column("later", pa.array([{"what": "ever"}]))
    batch = batch.append_column("page_pool_note", pa.array(["no pool"]))
    batch = batch.append_column("pool_bytes_note", pa.array([7]))
    assert from_record_batch(batch).equals(tensor)


def test_optional_columns_may_be_missing():
    tensor = make_tensor(seq_lens=None, total_tokens=29)
    batch = row(tensor)
    gone = ["layer_name", "quantization_buffers", "original_descriptor", "page_checksums", "pool_bytes", "sequences"]
    assert from_record_batch(batch.drop_columns(gone)).equals(tensor)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensor_index", "kv_role", "component", "kv_group", "page_offset"])
def test_required_columns(name):
    batch = row()
    assert codes(batch.drop_columns([name])) == ["arrow_schema"]
    assert codes(put(batch, name, pa.nulls(1, batch.column(name).type), nullable=True)) == ["arrow_null"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("descriptor", "row_missing"), ("block_table", "group_table_missing"), ("page_pool", "page_pool_size")],
)
def test_a_first_row_without(name, code):
    batch = row()
    assert codes(batch.drop_columns([name])) == [code]
    assert codes(put(batch, name, pa.nulls(1, batch.column(name).type))) == [code]


def test_two_columns_of_one_name():
    batch = row()
    assert codes(batch.append_column("kv_role", pa.array(["key"]))) == ["arrow_schema"]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("kv_role", "key", pa.utf8()),
        ("kv_role", "VALUE", pa.utf8()),
        ("layer_index", 18, pa.uint32()),
        ("layer_index", None, pa.uint32()),
    ],
)
def test_a_column_that_disagrees_with_the_descriptor(name, value, kind):
    with pytest.raises(SnapshotCorruptError) as caught:
        from_record_batch(put(row(), name, pa.array([value], kind), nullable=True))
    [problem] = caught.value.problems
    assert problem.code == "column_mismatch"
    assert problem.where.endswith(name)
    assert str(value) in problem.message  # both values are named
    assert {"kv_role": "value", "layer_index": "17"}[name] in problem.message


def test_pages_whose_type_disagrees_with_the_descriptor():
    batch = row()
    wrong = PagePoolType(PageClass("bfloat16", 16, (11, 3, 5)))
    pages = batch.column("page_pool").values.storage
    column = pa.LargeListArray.from_arrays(
        [0, 7],
        pa.ExtensionArray.from_storage(wrong, pages),
        type=pa.large_list(pa.field("item", wrong, nullable=False)),
    )
    assert codes(put(batch, "page_pool", column)) == ["column_mismatch"]


@pytest.mark.parametrize(
    ("element", "cast"),
    [("float16", pa.uint16()), ("float16", pa.int16()), ("bfloat16", pa.float16()), ("float64", pa.int64())],
    ids=str,
)
def test_stripped_pages_that_a_cast_made_other_numbers_of_the_same_width(element, cast):
    batch = row(make_tensor(element_type=element))
    pages = batch.column("page_pool").values.storage
    numbers = pa.array(np.ones(len(pages.flatten())), pages.type.value_type)
    for values, wrong in ((numbers, False), (numbers.cast(cast), True)):
        items = pa.FixedSizeListArray.from_arrays(values, pages.type.list_size)
        cut = put(batch, "page_pool", pa.LargeListArray.from_arrays([0, len(pages)], items))
        if wrong:
            assert codes(cut) == ["arrow_schema"]
        else:
            from_record_batch(cut)


def test_stripped_byte_planes_in_another_order():
    tensor = make_tensor()
    planes = PageClass("bfloat16", 16, tensor.descriptor.page_shape, "byte_planes").storage_type()
    raw = tensor.buffers[0].reshape(-1, 2)
    parts = [
        pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(plane)), planes.field(0).type.list_size)
        for plane in raw.T
    ]
    for names, wrong in (("b0 b1", False), ("b1 b0", True)):
        items = pa.StructArray.from_arrays([parts[int(name[1])] for name in names.split()], names.split())
        column = pa.LargeListArray.from_arrays([0, len(items)], items)
        changed = put(row(tensor), "page_pool", column)
        if wrong:
            assert codes(changed) == ["arrow_schema"]
        else:
            assert from_record_batch(changed).equals(tensor)


def test_more_or_fewer_pages_than_the_descriptor_says():
    batch = row()
    pages = batch.column("page_pool").values
    for number in (6, 8):
        items = pa.concat_arrays([pages, pages]).slice(0, number)
        column = pa.LargeListArray.from_arrays([0, number], items, type=batch.column("page_pool").type)
        assert codes(put(batch, "page_pool", column)) == ["page_pool_size"]


def test_two_filled_pools():
    batch = row()
    assert codes(put(batch, "pool_bytes", pa.array([b"x"], pa.large_binary()))) == ["column_mismatch"]


def test_a_pool_in_the_wrong_kind_of_column():
    batch = row(make_tensor())
    raw = batch.column("page_pool").values.storage.flatten().buffers()[1].to_pybytes()
    moved = put(batch.drop_columns(["page_pool"]), "pool_bytes", pa.array([raw], pa.large_binary()))
    assert codes(moved) == ["column_mismatch"]
    odd = row(make_tensor(element_type="int4"))
    raw = odd.column("pool_bytes")[0].as_py()
    column = pa.array([[[byte] for byte in raw]], pa.large_list(pa.list_(pa.uint8(), 1)))
    assert codes(odd.drop_columns(["pool_bytes"]).append_column("page_pool", column)) == ["column_mismatch"]


def test_pages_that_are_no_fixed_size_list():
    batch = row()
    column = stripped(batch.column("page_pool")).cast(pa.large_list(pa.list_(pa.uint16())))
    assert codes(put(batch, "page_pool", column)) == ["arrow_schema"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint16(),
        pa.utf8(),
        pa.list_(pa.int32()),
        pa.list_(pa.list_(pa.int64())),
        pa.list_(pa.list_(pa.float32())),
    ],
)
def test_page_ids_of_another_kind(kind):
    batch = row().drop_columns(["sequences"])
    value = {pa.uint16(): 3, pa.utf8(): "x", pa.list_(pa.int32()): [3]}.get(kind, [[5, 2, 6], [], [5, 0], [2]])
    assert codes(put(batch, "block_table", pa.array([value], kind))) == ["arrow_schema"]


@pytest.mark.parametrize("bad", [b"", b"HRRY", b"x" * 300])
def test_descriptor_bytes_that_are_none(bad):
    [code] = codes(put(row(), "descriptor", pa.array([bad], pa.large_binary())))
    assert code in {"bad_magic", "truncated"}


def test_tables_that_break_the_specification():
    batch = row(make_tensor()).drop_columns(["sequences"])
    kind = pa.list_(pa.list_(pa.uint32()))
    assert codes(put(batch, "block_table", pa.array([[[5, 2, 7], [], [5, 0], [2]]], kind))) == ["page_id_out_of_range"]
    assert "seq_ptr_size" in codes(put(batch, "block_table", pa.array([[[5, 2, 6], [5, 0], [2]]], kind)))


def test_sequences_of_another_number():
    batch = row()
    column = batch.column("sequences")
    shorter = pa.ListArray.from_arrays([0, 3], column.values.slice(0, 3), type=column.type)
    assert "sequence_facts_size" in codes(put(batch, "sequences", shorter))


# -- nulls where there are none ---------------------------------------------------------------------------------------


def nulled(batch, name, kind, change):
    """The column with nulls at some depth, as a type that allows them."""
    value = batch.column(name)
    value = (stripped(value) if name in ("block_table", "page_pool") else value).to_pylist()
    change(value[0])
    return put(batch, name, pa.array(value, kind), nullable=True)


def set_none(*path):
    def change(value):
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = None

    return change


SEQUENCES_NULLABLE = SEQUENCES_AS_OTHERS_WRITE
NULLS = {
    "a page": ("page_pool", pa.large_list(pa.list_(pa.uint16(), 165)), set_none(5)),
    "a value of a page": ("page_pool", pa.large_list(pa.list_(pa.uint16(), 165)), set_none(5, 164)),
    "a sequence's pages": ("block_table", pa.list_(pa.list_(pa.uint32())), set_none(1)),
    "a page id": ("block_table", pa.list_(pa.list_(pa.uint32())), set_none(0, 2)),
    "a sequence": ("sequences", SEQUENCES_NULLABLE, set_none(1)),
    "a token id": ("sequences", SEQUENCES_NULLABLE, set_none(0, "token_ids", 3)),
    "a page position": ("sequences", SEQUENCES_NULLABLE, set_none(0, "page_positions", 1)),
    "a quantization buffer": ("quantization_buffers", pa.list_(pa.large_binary()), set_none(1)),
}
NULLS_IN_MEDIA = {
    "a media span": set_none(2, "media", 1),
    "a span's start": set_none(2, "media", 0, "first_token"),
    "a span's length": set_none(2, "media", 1, "num_tokens"),
    "a span's digest": set_none(2, "media", 1, "digest"),
}


@pytest.mark.parametrize(("name", "kind", "change"), NULLS.values(), ids=NULLS)
def test_a_null_where_there_is_none(name, kind, change):
    assert codes(nulled(row(), name, kind, change)) == ["arrow_null"]
    # The same batch without the null is fine, so it is the null that is refused.
    assert from_record_batch(nulled(row(), name, kind, lambda value: value)).equals(tensor_with_everything())


@pytest.mark.parametrize("change", NULLS_IN_MEDIA.values(), ids=NULLS_IN_MEDIA)
def test_a_null_in_a_media_span(change):
    assert codes(nulled(row(), "sequences", SEQUENCES_NULLABLE, change)) == ["arrow_schema"]


def test_nulls_outside_the_window_do_not_matter():
    tensor = tensor_with_everything()
    good = put(row(tensor), "page_pool", stripped(row(tensor).column("page_pool")).cast(
        pa.large_list(pa.list_(pa.uint16(), 165))))  # fmt: skip
    bad = nulled(row(tensor), "page_pool", pa.large_list(pa.list_(pa.uint16(), 165)), set_none(5, 3))
    good, bad = (put(batch, "page_offset", batch.column("page_offset"), nullable=True) for batch in (good, bad))
    # RecordBatch.cast aborts the process in pyarrow before 22.
    good = pa.RecordBatch.from_arrays(good.columns, schema=bad.schema)
    [joined] = pa.Table.from_batches([bad, good]).combine_chunks().to_batches()
    assert from_record_batch(joined.slice(1)).equals(tensor)
    assert codes(joined.slice(0, 1)) == ["arrow_null"]


def test_null_checksums():
    kind = pa.large_list(pa.uint64())
    batch = put(row(), "page_checksums", pa.array([[1, None, 3]], kind))
    assert codes(batch) == ["arrow_null"]


# -- types whose metadata cannot be used ------------------------------------------------------------------------------


def with_metadata(metadata):
    batch = row()
    kind = PagePoolType.__arrow_ext_deserialize__(batch.column("page_pool").values.storage.type, metadata)
    pages = pa.ExtensionArray.from_storage(kind, batch.column("page_pool").values.storage)
    column = pa.LargeListArray.from_arrays([0, 7], pages, type=pa.large_list(pa.field("item", kind, nullable=False)))
    return put(batch, "page_pool", column)


def test_pages_with_unreadable_metadata_are_refused():
    assert codes(with_metadata(b"{"), ExtensionMetadataError) == ["extension_metadata_invalid"]


@pytest.mark.parametrize("what", [b'"encoding":"wavelets"', b'"element_type":"float3_e1m1"', b'"version":2'])
def test_pages_of_a_newer_version_are_unsupported(what):
    known = {b'"encoding":"plain"', b'"element_type":"bfloat16"', b'"version":1'}
    kept = [each for each in known if each.split(b":")[0] != what.split(b":")[0]]
    batch = with_metadata(b'{"page_shape":[5,3,11],' + b",".join([*kept, what]) + b"}")
    with pytest.raises(UnsupportedError):
        from_record_batch(batch)


def test_an_unreadable_column_of_another_tensor_does_not_matter():
    tensor = tensor_with_everything()
    bad = with_metadata(b"{").schema.field("page_pool").with_name("page_pool_1")
    batch = row(tensor).append_column(bad, pa.nulls(1, bad.type))
    assert from_record_batch(batch).equals(tensor)


# -- small buffers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("shift", [0, 8, 56])
def test_aligned_copies_only_what_does_not_lie_at_64_bytes(dtype, shift):
    room = np.arange(4096, dtype=np.uint8)
    start = -room.ctypes.data % 64 + shift
    values = room[start : start + 24].view(dtype)
    found = aligned(values)
    assert found.ctypes.data % 64 == 0
    assert (found.ctypes.data == values.ctypes.data) is (shift == 0)
    assert (found.dtype, found.tobytes()) == (values.dtype, values.tobytes())


def test_a_program_without_the_types_gives_rows_that_come_back(tmp_path):
    tensor = tensor_with_everything()
    source, target = tmp_path / "row.arrow", tmp_path / "again.arrow"
    with pa.ipc.new_file(str(source), row(tensor).schema) as writer:
        writer.write_batch(row(tensor))
    program = f"""
import sys, pyarrow as pa
table = pa.ipc.open_file({str(source)!r}).read_all()
assert "hurray_arrow" not in sys.modules
table = pa.concat_tables([table, table]).combine_chunks().slice(1)
with pa.ipc.new_file({str(target)!r}, table.schema) as writer:
    writer.write_table(table)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    [batch] = pa.ipc.open_file(str(target)).read_all().to_batches()
    assert isinstance(batch.schema.field("page_pool").type.value_type, PagePoolType)
    assert from_record_batch(batch).equals(tensor)


def test_one_tensor_per_index():
    assert all(isinstance(tensor, BlockPagedTensor) for tensor in tensors_from_batches([row(), row().slice(1)]))
