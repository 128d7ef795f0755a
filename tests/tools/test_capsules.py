"""Rows through the Arrow PyCapsule interface into other libraries of the process and back."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import arro3.core
import duckdb
import nanoarrow
import polars as pl
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.arrow import PagePoolType
from hurray_arrow.errors import CopyRequiredError, SnapshotCorruptError
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor, sample_facts
from tests.share.contents import MIB, large, lies_in, mappings_of


def in_duckdb(rows):
    return duckdb.from_arrow(rows).order("tensor_index")


#: Each takes anything with __arrow_c_stream__ and gives its own object, which exports it again.
TOOLS = {
    "pyarrow table": pa.table,
    "pyarrow reader": pa.RecordBatchReader.from_stream,
    "polars": pl.DataFrame,
    "arro3 table": arro3.core.Table.from_arrow,
    "arro3 reader": arro3.core.RecordBatchReader.from_arrow,
    "nanoarrow stream": nanoarrow.ArrayStream,
    "nanoarrow array": nanoarrow.Array,
    "duckdb": in_duckdb,
    "duckdb table": lambda rows: in_duckdb(rows).to_arrow_table(),
}
#: These hand over the memory that they were given; DuckDB's vectors are its own.
ZERO_COPY = [name for name in TOOLS if not name.startswith("duckdb")]


def tensors():
    return [
        make_tensor(**sample_facts()),
        make_tensor(layer_index=3, quantization="per_channel_heads"),
        make_tensor(layer_index=5, element_type="int4"),
        make_tensor(layer_index=7, element_type="float64", index_type="uint64"),
    ]


@pytest.fixture
def snapshot():
    with share.publish(tensors(), metadata={"tenant": "t-5"}) as sealed:
        return sealed.open()


def equal(found, expected):
    return [a.equals(b) for a, b in zip(found, expected, strict=True)] == [True] * len(expected)


# -- snapshots as streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_a_snapshot_goes_through_every_tool_and_back(snapshot, tool):
    assert equal(ha.from_arrow(TOOLS[tool](snapshot)), tensors())


def test_the_schema_has_the_extension_types_and_the_metadata(snapshot):
    table = pa.table(snapshot)
    assert table.schema.field("page_pool").type.value_type == PagePoolType(ha.PageClass("bfloat16", 16, (5, 3, 11)))
    assert table.schema.field("block_table").type.value_type.extension_name == "hurray.block_table"
    assert table.schema.metadata[b"hurray_arrow.format"] == b"1"
    assert b"t-5" in table.schema.metadata[b"hurray_arrow.snapshot"]
    assert pa.schema(snapshot) == table.schema
    assert table.column("tensor_index").to_pylist() == [0, 1, 2, 3]
    assert [given is None for given in table.column("block_table").to_pylist()] == [False, False, True, True]
    assert [len(sums) for sums in table.column("page_checksums").to_pylist()] == [7, 7, 1, 7]


@pytest.mark.parametrize("tool", ["polars", "arro3 table", "nanoarrow stream"])
def test_extension_types_are_kept_by(snapshot, tool):
    schema = pa.RecordBatchReader.from_stream(TOOLS[tool](snapshot)).schema
    assert schema.field("page_pool").type.value_type.extension_name == "hurray.page_pool"
    assert schema.field("block_table").type.value_type.extension_name == "hurray.block_table"


def test_rows_of_an_archive_come_decoded(tmp_path):
    ha.write_snapshot(tmp_path / "a.arrow", tensors(), profile="archive")
    with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
        assert equal(ha.from_arrow(pl.DataFrame(snapshot)), tensors())
        assert pa.table(snapshot).num_rows == 4


def test_a_stream_may_outlive_the_snapshot(snapshot):
    reader = pa.RecordBatchReader.from_stream(snapshot)
    snapshot.close()
    del snapshot
    gc.collect()
    assert equal(ha.from_arrow(reader), tensors())


def test_damage_is_an_error_of_the_stream(tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(path, tensors())
    data = bytearray(path.read_bytes())
    data[data.index(b"s-a")] ^= 1
    path.write_bytes(data)
    with ha.open_snapshot(path) as snapshot, pytest.raises((SnapshotCorruptError, OSError, pa.ArrowException)):
        pa.table(snapshot)


# -- tensors as arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_a_tensor_of_every_element_type(name):
    given = make_tensor(element_type=name, page_size=4, **sample_facts(4))
    assert equal(ha.from_arrow(given), [given])
    assert pa.schema(given) == pa.record_batch(given).schema


@pytest.mark.parametrize("quantization", SCHEMES)
def test_a_tensor_of_every_scheme(quantization):
    given = make_tensor(quantization=quantization)
    for one in (
        given,
        pl.DataFrame(pa.record_batch(given)),
        arro3.core.RecordBatch.from_arrow(given),
        nanoarrow.c_array(given),
    ):
        assert equal(ha.from_arrow(one), [given])


def test_what_exports_nothing_is_refused():
    with pytest.raises(TypeError):
        ha.from_arrow([1, 2])
    with pytest.raises(SnapshotCorruptError) as caught:
        ha.from_arrow(pl.DataFrame({"a": [1]}))
    assert caught.value.codes == ["arrow_schema"]


def test_copy_is_refused_where_asked():
    given = make_tensor(quantization="per_channel_heads")
    assert ha.from_arrow(pa.record_batch(given), copy=False)[0].equals(given)
    many = pa.table(pl.DataFrame([{"a": 1}]))
    with pytest.raises((CopyRequiredError, SnapshotCorruptError)):
        ha.from_arrow(many, copy=False)


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ZERO_COPY)
def test_pages_stay_where_they_are(tool):
    given = [large(), make_tensor()]
    with share.publish(given) as sealed:
        snapshot = sealed.open()
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    found = ha.from_arrow(TOOLS[tool](snapshot))
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert equal(found, given)
    assert lies_in(found[0].page_pool, mappings_of())
    assert found[0].page_pool.ctypes.data == snapshot.read(layer_index=3).page_pool.ctypes.data
    assert not found[0].page_pool.flags.writeable
    assert pa.total_allocated_bytes() - arrow < MIB
    assert python < MIB


@pytest.mark.parametrize("tool", [*TOOLS, "from_arrow"])
def test_memory_is_released_when_the_tool_lets_go_and_once(tool):
    pool = make_tensor().page_pool.copy()
    released = []
    weakref.finalize(pool, released.append, tool)
    given = make_tensor(page_pool=pool)
    rows = pa.table(pa.record_batch(given))
    del given, pool
    held = ha.from_arrow(rows) if tool == "from_arrow" else TOOLS[tool](rows)
    del rows
    gc.collect()
    # DuckDB's table is its own memory, so ours is free as soon as it is made.
    assert released == ([tool] if tool == "duckdb table" else [])
    if tool != "from_arrow":
        # Whoever exports to us is held by what we made of it.
        held, tool_object = ha.from_arrow(held), held
        del tool_object
        gc.collect()
        assert released == [] or tool.startswith("duckdb")
    assert held[0].equals(make_tensor())
    del held
    gc.collect()
    assert released == [tool]


def test_capsules_nobody_takes_are_released():
    pool = make_tensor().page_pool.copy()
    gone = weakref.ref(pool)
    given = make_tensor(page_pool=pool)
    capsules = given.__arrow_c_array__()
    stream = pa.table(pa.record_batch(given)).__arrow_c_stream__()
    del given, pool
    gc.collect()
    assert gone() is not None
    del capsules, stream
    gc.collect()
    assert gone() is None


def test_round_trips_leak_nothing(snapshot):
    def go():
        for _ in range(12):
            assert len(ha.from_arrow(pl.DataFrame(snapshot))) == 4
        gc.collect()
        return pa.total_allocated_bytes()

    assert go() == go()
