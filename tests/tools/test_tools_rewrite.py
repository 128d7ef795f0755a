"""Snapshots that another tool read and wrote again: read back right, or refused; never wrong."""

from __future__ import annotations

import subprocess
import sys
import warnings

import arro3.io
import datafusion
import duckdb
import nanoarrow.ipc
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hurray_arrow.arrow.convert import from_record_batch, tensors_from_batches, to_record_batch
from hurray_arrow.errors import SnapshotCorruptError, SnapshotIncompleteError
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from tests.sample import make_tensor
from tests.tools.readers import SNAPSHOTS, write_all


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("tools"))


def polars_plain(source, target):
    pl.read_ipc(source).write_ipc(target)


def polars_zstd(source, target):
    pl.read_ipc(source).write_ipc(target, compression="zstd")


def polars_lz4_reversed(source, target):
    pl.read_ipc(source).reverse().write_ipc(target, compression="lz4")


def polars_sink(source, target):
    pl.scan_ipc(source).sink_ipc(target)


def arro3_file(source, target):
    with open(source, "rb") as file:  # noqa: PTH123  what arro3's documentation does
        arro3.io.write_ipc(arro3.io.read_ipc(file).read_all(), target, compression=None)


def arro3_zstd(source, target):
    with open(source, "rb") as file:  # noqa: PTH123  what arro3's documentation does
        arro3.io.write_ipc(arro3.io.read_ipc(file).read_all(), target, compression="zstd")


def datafusion_copy(source, target):
    context = datafusion.SessionContext()
    context.register_arrow("snapshot", source)
    context.sql("copy (select * from snapshot) to '" + target + "' stored as arrow").collect()  # noqa: S608  our path


def nanoarrow_stream(source, target):
    """Writes a stream: no magic, no footer."""
    with nanoarrow.ipc.StreamWriter.from_path(target) as writer:
        writer.write_stream(pa.ipc.open_file(source).read_all())


def pyarrow_unregistered(source, target, writing="pa.ipc.new_file(sys.argv[2], table.schema)"):
    """A program that never imported this package, and put all rows into one batch."""
    program = f"""
import sys, pyarrow as pa, pyarrow.feather
table = pa.ipc.open_file(sys.argv[1]).read_all().combine_chunks()
with {writing} as writer:
    writer.write_table(table)
assert "hurray_arrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, source, target], check=True)


def pyarrow_stream(source, target):
    pyarrow_unregistered(source, target, "pa.ipc.new_stream(sys.argv[2], table.schema)")


def pyarrow_feather(source, target):
    """Feather's own default: LZ4."""
    program = """
import sys, pyarrow.feather as feather
feather.write_feather(feather.read_table(sys.argv[1]), sys.argv[2])
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, source, target], check=True)


WRITERS = {
    writer.__name__: writer
    for writer in (
        polars_plain,
        polars_zstd,
        polars_lz4_reversed,
        polars_sink,
        arro3_file,
        arro3_zstd,
        datafusion_copy,
        nanoarrow_stream,
        pyarrow_unregistered,
        pyarrow_stream,
        pyarrow_feather,
    )
}
#: These drop schema metadata, so that a snapshot does not say what it belongs to any more.
FORGET_METADATA = {"polars_plain", "polars_zstd", "polars_lz4_reversed", "polars_sink"}


def all_equal(found, expected):
    found = list(found)
    return len(found) == len(expected) and all(one.equals(other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", SNAPSHOTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_rewritten_file_is_refused_and_recovers_whole(paths, tmp_path, name, writer):
    tensors = SNAPSHOTS[name]()
    target = str(tmp_path / "again.arrow")
    WRITERS[writer](paths[name], target)
    with pytest.raises((SnapshotIncompleteError, SnapshotCorruptError)):
        open_snapshot(target)
    with open_snapshot(target, recover=True) as snapshot:
        assert all_equal(snapshot.iter_tensors(), tensors)
        assert {problem.code for problem in snapshot.unverified} == {"unverified"}
        assert (snapshot.metadata == {}) is (writer in FORGET_METADATA)
        if writer not in FORGET_METADATA:
            assert snapshot.metadata["model"] == {"name": "toy"}
        assert snapshot.verify().unverified == snapshot.unverified


def test_the_matrix_is_whole():
    assert len(WRITERS) * len(SNAPSHOTS) == 33


@pytest.mark.parametrize("writer", ["polars_plain", "arro3_file", "pyarrow_unregistered"])
def test_damage_in_a_rewritten_file_is_left_out_by_its_checksums(paths, tmp_path, writer):
    tensors = SNAPSHOTS["real"]()
    target = tmp_path / "again.arrow"
    WRITERS[writer](paths["real"], str(target))
    data = bytearray(target.read_bytes())
    place = data.index(tensors[1].page_pool.tobytes()) + 3 * 330 + 17  # a byte of page 3
    data[place] ^= 4
    target.write_bytes(data)
    with open_snapshot(target, recover=True) as snapshot:
        problems = [problem for problem in snapshot.unverified if problem.code == "page_checksum"]
        assert [problem.where for problem in problems] == ["tensor 1.page_pool[3]"]
        assert all_equal(snapshot.iter_tensors(), [tensors[0], *tensors[2:]])


@pytest.mark.parametrize("writer", WRITERS)
def test_a_rewritten_file_can_be_written_as_a_snapshot_again(paths, tmp_path, writer):
    tensors = SNAPSHOTS["real"]()
    target = tmp_path / "again.arrow"
    WRITERS[writer](paths["real"], str(target))
    with open_snapshot(target, recover=True) as snapshot:
        write_snapshot(target, snapshot.iter_tensors(), overwrite=True)
    with open_snapshot(target) as snapshot:
        assert all_equal(snapshot.iter_tensors(), tensors)
        assert snapshot.verify().unverified == ()


# -- Arrow objects that went through a tool ---------------------------------------------------------------------------


def through_polars(table):
    return pl.from_arrow(table).to_arrow()


def through_polars_oldest(table):
    """Without string and binary views."""
    return pl.from_arrow(table).to_arrow(compat_level=pl.CompatLevel.oldest())


def through_datafusion(table):
    context = datafusion.SessionContext()
    return context.from_arrow(table).to_arrow_table()


def through_arro3(table):
    return pa.table(arro3.core.Table.from_arrow(table))


def through_nanoarrow(table):
    return pa.table(nanoarrow.ArrayStream(table))


def through_duckdb(table):
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return connection.sql("select * from rows").to_arrow_table()


TOOLS = (
    through_polars,
    through_polars_oldest,
    through_datafusion,
    through_arro3,
    through_nanoarrow,
    through_duckdb,
)


@pytest.mark.parametrize("name", SNAPSHOTS)
@pytest.mark.parametrize("tool", TOOLS)
def test_an_arrow_table_that_went_through_a_tool(paths, name, tool):
    tensors = SNAPSHOTS[name]()
    table = tool(pa.ipc.open_file(paths[name]).read_all())
    assert table.num_rows == len(tensors)
    assert all_equal(tensors_from_batches(table.to_batches()), tensors)
    for number in (1, len(tensors) - 1):
        few = table.slice(number, 1).to_batches()
        if few[0].column("block_table").null_count == 0:
            assert from_record_batch(few[0]).equals(tensors[number])


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool is not through_duckdb])
def test_half_floats_that_went_through_a_tool(tool):
    """DuckDB has none, see test_tools_read.py."""
    tensor = make_tensor(element_type="float16")
    table = tool(pa.Table.from_batches([to_record_batch(tensor)]))
    assert all_equal(tensors_from_batches(table.to_batches()), [tensor])


def test_rows_that_sql_chose_and_reordered(paths):
    tensors = SNAPSHOTS["real"]()
    with duckdb.connect() as connection:
        connection.register("rows", pa.ipc.open_file(paths["real"]).read_all())
        chosen = connection.sql("select * from rows where kv_group = 0 order by layer_index desc, kv_role desc")
        found = tensors_from_batches(chosen.to_arrow_table().to_batches())
    assert all_equal(found, [tensors[0], tensors[1], tensors[3]])


def test_pandas_forgets_the_size_of_pages_and_is_refused(paths, tmp_path):
    """pandas writes pages as lists of any length; nothing of them is guessed."""
    frame = pd.read_feather(paths["real"])
    with pytest.raises(SnapshotCorruptError) as caught:
        tensors_from_batches(pa.Table.from_pandas(frame).to_batches())
    assert caught.value.codes == ["arrow_schema"]
    target = tmp_path / "pandas.feather"
    frame.to_feather(target)
    with pytest.raises(SnapshotIncompleteError), warnings.catch_warnings():
        open_snapshot(target)
    with open_snapshot(target, recover=True) as snapshot:
        assert snapshot.entries == ()
        assert len(snapshot.unverified) > 4
