"""Snapshots that other tools rewrote or that lost their end: whole tensors come back right, the others are listed."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap

import arro3.io
import datafusion
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hurray_arrow import (
    SnapshotCorruptError,
    SnapshotIncompleteError,
    SnapshotMismatchError,
    UnsupportedError,
    open_snapshot,
    write_snapshot,
)
from tests.faults.forgery import untype
from tests.faults.small import METADATA, small_tensors
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts


def samples():
    """Tensors of several classes, groups and layers, one with every fact, one empty."""
    other = {"block_tables": [[6, 0, 3], [2], [], [2, 1]], "seq_lens": [11, 4, 0, 9]}
    return [
        make_tensor(layer_index=0, kv_role="key", layer_name="l.0", **sample_facts()),
        make_tensor(layer_index=0, kv_role="value", layer_name="l.0", seed=3, **sample_facts()),
        make_tensor(layer_index=0, component="scales", element_type="float32", head_dim=1, **sample_facts()),
        make_tensor(layer_index=1, element_type="int4", quantization="per_channel_dims", **other, seed=5),
        # A page of 5 × 3 × 11 two-bit elements is no whole number of bytes: pool_bytes.
        make_tensor(layer_index=2, element_type="int2", **other, seed=7),
        make_tensor(layer_index=3, num_pages=0, block_tables=[[], []], seq_lens=[0, 0], kv_role="fused"),
    ]


@pytest.fixture(params=["share", "archive"])
def path(request, tmp_path):
    made = tmp_path / "s.arrow"
    write_snapshot(made, samples(), metadata={"user": "u"}, profile=request.param)
    return made


def recovered(path):
    with open_snapshot(path, recover=True) as snapshot:
        assert all(problem.code for problem in snapshot.unverified)
        return snapshot, list(snapshot.iter_tensors())


def assert_whole(path, expected=None):
    """Every tensor comes back as it was, and the list of what was not verified names no tensor."""
    with pytest.raises((SnapshotIncompleteError, SnapshotCorruptError)):
        open_snapshot(path)
    snapshot, found = recovered(path)
    expected = samples() if expected is None else expected
    assert [str(problem) for problem in snapshot.unverified if "left out" in problem.message] == []
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.equals(other)
        assert (one.layer_name, one.component) == (other.layer_name, other.component)
    assert [entry.num_pages for entry in snapshot.entries] == [tensor.num_pages for tensor in expected]
    report = snapshot.verify()
    assert report.num_tensors == len(expected)
    assert any(problem.where == "snapshot" for problem in report.unverified)
    return snapshot


def table_of(path):
    return pa.ipc.open_file(path).read_all()


def write_table(table, path, **options):
    with pa.ipc.new_file(path, table.schema, **options) as writer:
        writer.write_table(table)


# -- rewritten by others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("how", ["read", "scan", "scan and sink"])
def test_polars(path, compression, how):
    copy = path.with_name("polars.arrow")
    if how == "read":
        pl.read_ipc(path).write_ipc(copy, compression=compression)
    elif how == "scan":
        pl.scan_ipc(path).collect().write_ipc(copy, compression=compression)
    else:
        pl.scan_ipc(path).sink_ipc(copy, compression=compression)
    snapshot = assert_whole(copy)
    # Polars drops the schema's metadata, which is said.
    assert snapshot.metadata == {}
    assert any("hurray_arrow.format" in problem.where for problem in snapshot.unverified)


def test_polars_in_another_order(path):
    copy = path.with_name("polars.arrow")
    frame = pl.read_ipc(path)
    frame.reverse().write_ipc(copy)
    assert_whole(copy)
    pl.concat([frame[3:], frame[:3]]).write_ipc(copy)
    assert_whole(copy)


def test_pyarrow_without_the_extension_types(path):
    copy = path.with_name("plain.arrow")
    script = """
        import sys
        import pyarrow as pa
        table = pa.ipc.open_file(sys.argv[1]).read_all()
        with pa.ipc.new_file(sys.argv[2], table.schema) as writer:
            writer.write_table(table)
        bare = pa.table([column.combine_chunks() for column in table.columns], names=table.schema.names)
        assert "hurray_arrow" not in sys.modules
        with pa.ipc.new_file(sys.argv[2] + ".bare", bare.schema) as writer:
            writer.write_table(bare)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), path, copy], check=True)
    assert assert_whole(copy).metadata["user"] == "u"
    assert assert_whole(path.with_name("plain.arrow.bare")).metadata == {}


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_pyarrow(path, compression):
    copy = path.with_name("pyarrow.arrow")
    table = table_of(path)
    write_table(table, copy, options=pa.ipc.IpcWriteOptions(compression=compression, allow_64bit=True))
    assert assert_whole(copy).metadata["user"] == "u"
    # All rows in one batch.
    write_table(table.combine_chunks(), copy, options=pa.ipc.IpcWriteOptions(compression=compression))
    assert_whole(copy)


def test_arro3(path):
    copy = path.with_name("arro3.arrow")
    arro3.io.write_ipc(arro3.io.read_ipc(path), copy)
    assert_whole(copy)


def test_arro3_stream(path):
    copy = path.with_name("arro3.arrows")
    arro3.io.write_ipc_stream(arro3.io.read_ipc(path), copy)
    assert_whole(copy)


def test_datafusion_in_another_order(path):
    copy = path.with_name("datafusion.arrow")
    context = datafusion.SessionContext()
    context.register_record_batches("s", [table_of(path).to_batches()])
    batches = context.sql("SELECT * FROM s ORDER BY tensor_index DESC, page_offset DESC, descriptor").collect()
    order = [row.as_py() for batch in batches for row in batch.column("tensor_index")]
    assert order == sorted(order, reverse=True)
    write_table(pa.Table.from_batches(batches), copy)
    assert_whole(copy)


def test_pandas(path):
    copy = path.with_name("pandas.arrow")
    frame = table_of(path).to_pandas(types_mapper=pd.ArrowDtype)
    write_table(pa.Table.from_pandas(frame, preserve_index=False), copy)
    assert_whole(copy)


# -- windows: slices, filters, joins ---------------------------------------------------------------------------------


def test_sliced_tables(path):
    copy = path.with_name("sliced.arrow")
    table = table_of(path).combine_chunks()
    first_group = [number for number, tensor in enumerate(samples()) if number < 3]
    rows = [n for n, tensor in enumerate(table["tensor_index"].to_pylist()) if tensor in first_group]
    write_table(table.slice(0, len(rows)), copy)
    assert_whole(copy, samples()[:3])
    # A group whose first tensor is gone has no tables left: its tensors are listed, not guessed at.
    first_of = min(n for n, tensor in enumerate(table["tensor_index"].to_pylist()) if tensor == 1)
    write_table(table.slice(first_of), copy)
    snapshot, found = recovered(copy)
    assert [entry.tensor_index for entry in snapshot.entries] == [3, 4, 5]
    assert all(one.equals(other) for one, other in zip(found, samples()[3:], strict=True))
    assert [p.code for p in snapshot.unverified].count("group_table_missing") == 2


def test_filtered_tables(path):
    copy = path.with_name("filtered.arrow")
    table = table_of(path)
    keep = {0, 2, 3, 5}
    mask = pa.array([index in keep for index in table["tensor_index"].to_pylist()])
    write_table(table.filter(mask), copy)
    assert_whole(copy, [tensor for number, tensor in enumerate(samples()) if number in keep])


def test_joined_tables(path):
    copy = path.with_name("joined.arrow")
    table = table_of(path).combine_chunks()
    half = table.num_rows // 2
    write_table(pa.concat_tables([table.slice(half), table.slice(0, half)]), copy)
    assert_whole(copy)
    write_table(pa.concat_tables([table.slice(half), table.slice(0, half)]).combine_chunks(), copy)
    assert_whole(copy)


def test_a_table_that_is_there_twice_is_not_mixed(path):
    copy = path.with_name("twice.arrow")
    table = table_of(path)
    write_table(pa.concat_tables([table, table]), copy)
    snapshot, _ = recovered(copy)
    assert snapshot.entries == ()
    assert "row_missing" in {problem.code for problem in snapshot.unverified}


def test_renamed_children_and_views(path):
    copy = path.with_name("views.arrow")
    table = table_of(path)
    names = [field.name for field in table.schema]
    columns = [
        column.cast(pa.string_view()) if column.type == pa.utf8()
        else column.cast(pa.binary_view()) if column.type == pa.large_binary()
        else column
        for column in table.columns
    ]  # fmt: skip
    write_table(pa.table(columns, names=names), copy)
    assert_whole(copy)


def test_unknown_columns_are_ignored(path):
    copy = path.with_name("more.arrow")
    table = table_of(path)
    write_table(table.append_column("page_colour", pa.array([1] * table.num_rows)), copy)
    assert_whole(copy)


@pytest.mark.parametrize("column", ["tensor_index", "kv_role", "component", "kv_group", "page_offset"])
def test_without_a_column_that_every_row_needs_nothing_comes_back(path, column):
    copy = path.with_name("less.arrow")
    write_table(table_of(path).drop_columns([column]), copy)
    snapshot, found = recovered(copy)
    assert found == []
    assert snapshot.unverified[1:]


@pytest.mark.parametrize("column", ["descriptor", "block_table", "sequences", "page_checksums", "quantization_buffers"])
def test_without_a_nullable_column_what_is_wrong_is_not_given_out(path, column):
    copy = path.with_name("less.arrow")
    write_table(table_of(path).drop_columns([column]), copy)
    snapshot, found = recovered(copy)
    expected = samples()
    match column:
        case "descriptor" | "block_table":
            assert found == []
        case "sequences":
            assert [one.sequences.sizes() for one in found] == [{}] * len(expected)
        case "page_checksums":
            assert all(one.equals(other) for one, other in zip(found, expected, strict=True))
            named = {problem.where for problem in snapshot.unverified if "checksum" in problem.message}
            assert named == {f"tensor {number}.page_pool" for number in range(5)}
        case _:
            assert [entry.tensor_index for entry in snapshot.entries] == [0, 1, 2, 4, 5]


# -- damage ----------------------------------------------------------------------------------------------------------


def without_end(path):
    """Cut a snapshot behind its last row and return its bytes, and the places of its rows."""
    with open_snapshot(path) as snapshot:
        places = [snapshot._rows._places[entry.tensor_index][0] for entry in snapshot.entries]
    content = bytearray(path.read_bytes()[: max(place.block.end for place in places)])
    return content, places


@pytest.fixture
def share_path(tmp_path):
    made = tmp_path / "s.arrow"
    write_snapshot(made, samples(), metadata={"user": "u"})
    return made


@pytest.mark.parametrize("damaged", [0, 1, 3, 4])
def test_a_tensor_with_a_damaged_page_is_left_out_and_listed(share_path, damaged):
    content, places = without_end(share_path)
    content[places[damaged].pages_offset + 7] ^= 1
    share_path.write_bytes(content)
    snapshot, found = recovered(share_path)
    assert [entry.tensor_index for entry in snapshot.entries] == [n for n in range(6) if n != damaged]
    assert all(one.equals(samples()[entry.tensor_index]) for one, entry in zip(found, snapshot.entries, strict=True))
    listed = [(p.code, p.where) for p in snapshot.unverified if p.where.startswith("tensor")]
    assert listed == [("page_checksum", f"tensor {damaged}.page_pool[0]")]


def test_tables_survive_a_first_tensor_that_cannot_be_read(share_path):
    content, places = without_end(share_path)
    at = content.index(b"HRRY", places[0].offset)
    content[at : at + 4] = b"hrry"
    share_path.write_bytes(content)
    snapshot, found = recovered(share_path)
    assert [entry.tensor_index for entry in snapshot.entries] == [1, 2, 3, 4, 5]
    assert all(one.equals(samples()[entry.tensor_index]) for one, entry in zip(found, snapshot.entries, strict=True))


def test_a_snapshot_whose_index_is_damaged_is_recovered(path):
    content = path.read_bytes()
    at = content.rindex(b'"num_rows"')
    path.write_bytes(content[:at] + b'"num_cows"' + content[at + 10 :])
    with pytest.raises(SnapshotCorruptError) as caught:
        open_snapshot(path)
    assert caught.value.codes == ["index_checksum"]
    assert_whole(path)


def test_expectations_hold_for_what_is_recovered_too(share_path):
    content, _ = without_end(share_path)
    share_path.write_bytes(content)
    with open_snapshot(share_path, recover=True, expect={"user": "u"}) as snapshot:
        assert len(snapshot.entries) == 6
    with pytest.raises(SnapshotMismatchError):
        open_snapshot(share_path, recover=True, expect={"user": "v"})
    with pytest.raises(SnapshotMismatchError):
        open_snapshot(share_path, recover=True, expect={"model.revision": "9f2c"})


def test_whose_it_is_got_lost_with_the_metadata(tmp_path):
    """Polars drops the metadata, and with it the adapter and the tenant that all sequences have."""
    path = tmp_path / "s.arrow"
    ids = [list(range(13)), [], list(range(10)), list(range(4))]
    tensors = [make_tensor(token_ids=ids)]
    write_snapshot(path, tensors, metadata={"adapter": "lora", "tenant": "t-1"})
    with open_snapshot(path, expect={"tenant": "t-1", "adapter": "lora"}) as snapshot:
        assert snapshot.match_prefix(ids[0], adapter="lora", tenant="t-1").num_tokens == 13
        assert snapshot.match_prefix(ids[0]).num_tokens == 0
    pl.read_ipc(path).write_ipc(path)
    for expect in ({"tenant": None}, {"adapter": None}, {"tenant": "t-1"}):
        with pytest.raises(SnapshotMismatchError) as caught:
            open_snapshot(path, recover=True, expect=expect)
        assert caught.value.found is None
    with open_snapshot(path, recover=True) as snapshot:
        assert next(snapshot.iter_tensors()).equals(tensors[0])
        assert snapshot.match_prefix(ids[0]).num_tokens == 0
    # What the sequences themselves say is still there.
    write_snapshot(path, [make_tensor(tenant=["t-2"] * 4)], overwrite=True)
    pl.read_ipc(path).write_ipc(path)
    with open_snapshot(path, recover=True, expect={"tenant": "t-2"}) as snapshot:
        assert len(snapshot.entries) == 1


def test_another_version_is_not_recovered(tmp_path):
    path = tmp_path / "s.arrow"
    write_snapshot(path, small_tensors(), metadata=METADATA)
    table = table_of(path)
    write_table(table.replace_schema_metadata({**table.schema.metadata, b"hurray_arrow.format": b"2"}), path)
    with pytest.raises(UnsupportedError):
        open_snapshot(path, recover=True)


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_every_element_type_survives_polars(tmp_path, name):
    path = tmp_path / "s.arrow"
    tensor = make_tensor(element_type=name, page_size=4, head_dim=12)
    write_snapshot(path, [tensor])
    pl.read_ipc(path).write_ipc(tmp_path / "p.arrow")
    with open_snapshot(tmp_path / "p.arrow", recover=True) as snapshot:
        assert snapshot.read().equals(tensor)


def test_null_checksums_are_never_values(path):
    copy = path.with_name("nulls.arrow")
    # Shifted by one in each list, so that the first is null.
    frame = pl.read_ipc(path)
    frame.with_columns(pl.col("page_checksums").list.shift(1)).write_ipc(copy)
    snapshot, found = recovered(copy)
    assert all(tensor.num_pages == 0 for tensor in found)
    assert sum("left out" in problem.message for problem in snapshot.unverified) >= 5


def test_a_compressed_file_that_states_terabytes_is_not_decompressed(path):
    copy = path.with_name("bomb.arrow")
    table = table_of(path)
    write_table(table, copy, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    content = bytearray(copy.read_bytes())
    magic = struct.pack("<I", 0xFD2FB528)
    at = content.index(magic)
    struct.pack_into("<q", content, at - 8, 1 << 40)
    copy.write_bytes(content)
    before = pa.default_memory_pool().max_memory()
    snapshot, _ = recovered(copy)
    assert any("compressed" in problem.message for problem in snapshot.unverified)
    assert pa.default_memory_pool().max_memory() <= max(before, 64 << 20)


@pytest.mark.parametrize("num_rows", [1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("columns", [["tensor_index"], ["tensor_index", "descriptor", "page_offset"], ["colour"]])
def test_rows_that_take_no_bytes_are_not_counted_through(tmp_path, num_rows, columns):
    """A column of nulls has no buffer, so a few hundred bytes can state any number of rows."""
    path = tmp_path / "s.arrow"
    batch = pa.record_batch({name: pa.Array.from_buffers(pa.null(), num_rows, [None]) for name in columns})
    with pa.ipc.new_file(path, batch.schema, options=pa.ipc.IpcWriteOptions(allow_64bit=True)) as writer:
        writer.write_batch(batch)
    with open_snapshot(path, recover=True) as snapshot:
        assert snapshot.entries == ()
        assert [problem.where for problem in snapshot.unverified][-1] == "batch 0"


def test_compressed_rows_are_no_more_than_the_file_has_bytes(tmp_path):
    path = tmp_path / "s.arrow"
    zeros = pa.nulls(1 << 22, pa.uint32()).fill_null(0)
    batch = pa.record_batch({"tensor_index": zeros, "kv_group": zeros, "page_offset": zeros, "colour": zeros})
    with pa.ipc.new_file(path, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    assert path.stat().st_size < 10_000
    with open_snapshot(path, recover=True) as snapshot:
        assert [problem.where for problem in snapshot.unverified][-1] == "batch 0"


def test_of_many_rows_left_out_a_hundred_are_listed_and_all_are_counted(tmp_path):
    path = tmp_path / "s.arrow"
    batch = pa.record_batch({name: pa.array(range(317), pa.uint64()) for name in ("tensor_index", "page_offset")})
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    with open_snapshot(path, recover=True) as snapshot:
        left_out = [problem for problem in snapshot.unverified if problem.where.endswith("of a batch")]
        assert len(left_out) == 100
        assert "317" in snapshot.unverified[-1].message


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_schema_that_does_not_say_that_it_is_one(tmp_path, share_path, is_stream):
    """Arrow takes it for one without verifying it, and may crash."""
    content = bytearray(share_path.read_bytes()[8 if is_stream else 0 : -1])
    untype(content, 0 if is_stream else 8)
    path = tmp_path / "f.arrow"
    path.write_bytes(content)
    with pytest.raises(SnapshotIncompleteError, match="expected a schema"):
        open_snapshot(path, recover=True)


def test_a_footer_that_lists_a_batch_many_times_is_not_followed(tmp_path, share_path):
    from tests.faults.forgery import Forgery

    forgery = Forgery(share_path.read_bytes())
    forgery.edit_blocks = lambda blocks: [blocks[0]] * len(blocks)
    content = forgery.content()
    # Not a stream from its first message on, so that only the footer says where batches lie.
    path = tmp_path / "f.arrow"
    path.write_bytes(content[:8] + b"\1" + content[9:])
    with pytest.raises(SnapshotIncompleteError, match="overlap"):
        open_snapshot(path, recover=True)
