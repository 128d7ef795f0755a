"""Other tools open real snapshots and find numpy's values in them."""

from __future__ import annotations

import datafusion
import duckdb
import nanoarrow
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hurray_arrow.arrow.schema import SchemaPlan, page_class_of
from hurray_arrow.snapshot import write_snapshot
from tests.sample import make_tensor
from tests.tools.readers import (
    AS_PYTHON_NUMBERS,
    KEY_COLUMNS,
    READERS,
    SNAPSHOTS,
    block_tables,
    stored_pages,
    write_all,
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("tools"))


def test_the_matrix_is_whole():
    assert len(READERS) == 7
    assert len(SNAPSHOTS["every type"]()) == 30  # float16 has a test of its own


@pytest.fixture(scope="module", params=SNAPSHOTS)
def snapshot(request, paths):
    tensors = SNAPSHOTS[request.param]()
    return paths[request.param], tensors, SchemaPlan.of(tensors)


@pytest.fixture(params=READERS)
def tool(request):
    return request.param


def test_every_value_is_numpys(snapshot, tool):
    path, tensors, plan = snapshot
    found = READERS[tool](path)
    assert [int(number) for number in found["tensor_index"]] == list(range(len(tensors)))
    for name in KEY_COLUMNS[1:5]:
        assert found[name] == [getattr(tensor, name) for tensor in tensors], name
    assert set(found["page_offset"]) == {0}
    seen = set()
    for row, tensor in enumerate(tensors):
        assert found["descriptor"][row] == tensor.descriptor.encode()
        column = plan.column_of(page_class_of(tensor.descriptor))
        others = {name for name in found if name.startswith(("page_pool", "pool_bytes"))} - {column}
        assert all(found[name][row] is None for name in others)
        if column == "pool_bytes":
            assert bytes(found[column][row]) == tensor.buffers[0].tobytes()
        else:
            same_pages(found[column][row], tensor, exact=tool not in AS_PYTHON_NUMBERS)
        group = int(found["kv_group"][row])
        tables = found["block_table"][row]
        assert (tables is None) is (group in seen)
        if tables is not None:
            assert [[int(page) for page in pages] for pages in tables] == block_tables(tensor)
            same_sequences(found["sequences"][row], tensor)
        seen.add(group)


def same_pages(found, tensor, *, exact):
    """``exact``: the tool gives bits; the others give Python's numbers, in which a NaN has no payload."""
    assert len(found) == tensor.num_pages
    assert exact or not any(isinstance(page, np.ndarray) for page in found)
    if exact:
        assert b"".join(np.asarray(page).tobytes() for page in found) == tensor.buffers[0].tobytes()
        return
    expected = stored_pages(tensor)
    pages = np.array([list(page) for page in found], expected.dtype).reshape(expected.shape)
    assert np.array_equal(pages, expected, equal_nan=expected.dtype.kind == "f")


def same_sequences(found, tensor):
    facts = tensor.sequences
    assert len(found) == tensor.num_seqs
    for seq, row in enumerate(found):
        assert row["num_tokens"] == tensor.token_count(seq)
        assert row["id"] == (None if facts.ids is None else facts.ids[seq])
        assert row["tenant"] == (None if facts.tenant is None else facts.tenant[seq])
        tokens = None if facts.token_ids is None else facts.token_ids[seq]
        assert (None if row["token_ids"] is None else list(row["token_ids"])) == (
            None if tokens is None else tokens.tolist()
        )


# -- questions asked in the tool's own language -----------------------------------------------------------------------


def test_sharing_asked_of_polars(paths):
    frame = pl.scan_ipc(paths["real"]).filter(pl.col("block_table").is_not_null()).select("kv_group", "block_table")
    counted = (
        frame.collect()
        .with_columns(
            pl.Series("pages", [[p for s in row.ext.storage() for p in s] for row in frame.collect()["block_table"]])
        )
        .explode("pages", empty_as_null=False, keep_nulls=False)
        .group_by("kv_group", "pages")
        .len()
        .filter(pl.col("len") > 1)
        .sort("kv_group", "pages")
    )
    assert counted.rows() == [(0, 2, 2), (0, 5, 2), (1, 2, 2), (1, 5, 2)]


def test_one_value_asked_of_polars_lazily(paths):
    tensors = SNAPSHOTS["real"]()
    values = pl.scan_ipc(paths["real"]).select(pl.col("page_pool").list.get(5, null_on_oob=True)).collect()
    found = values.select(pl.col("page_pool").ext.storage().arr.get(7))["page_pool"].to_list()
    assert found[:2] == [int(stored_pages(tensor)[5, 7]) for tensor in tensors[:2]]
    assert set(found[2:]) == {None}


@pytest.mark.parametrize("tool", ["duckdb", "datafusion"])
def test_one_value_asked_in_sql(paths, tool):
    tensors = SNAPSHOTS["real"]()
    query = """
        select tensor_index, page_pool[6][8], page_pool[1][165], block_table[1][2]
        from snapshot where page_pool is not null order by tensor_index
    """
    if tool == "duckdb":
        with duckdb.connect() as connection:
            connection.register("snapshot", pa.ipc.open_file(paths["real"]).read_all())
            found = connection.sql(query).fetchall()
    else:
        context = datafusion.SessionContext()
        context.register_arrow("snapshot", paths["real"])
        found = [tuple(row.values()) for row in context.sql(query).to_pylist()]
    expected = [
        (number, int(stored_pages(tensors[number])[5, 7]), int(stored_pages(tensors[number])[0, 164]), entry)
        for number, entry in ((0, 2), (1, None))
    ]
    assert found == expected


# -- what the extension types look like, and known limits -------------------------------------------------------------


def test_polars_shows_the_extension_types_by_name(paths):
    schema = pl.read_ipc_schema(paths["real"])
    kind = schema["page_pool"].inner
    assert (kind.ext_name(), kind.ext_storage()) == ("hurray.page_pool", pl.Array(pl.UInt16, 165))
    assert '"page_shape":[5,3,11]' in kind.ext_metadata()
    assert schema["block_table"].inner.ext_name() == "hurray.block_table"


def test_polars_does_not_look_through_an_extension_type(paths):
    """``.ext.storage()`` comes first; Arrow kernels on the list around it work."""
    query = pl.scan_ipc(paths["real"]).select(pl.col("page_pool").list.get(5, null_on_oob=True).arr.get(7))
    with pytest.raises(pl.exceptions.InvalidOperationError):
        query.collect()
    lengths = pl.scan_ipc(paths["real"]).select(pl.col("page_pool").list.len()).collect()["page_pool"]
    assert lengths.to_list() == [7, 7, None, None, None, None, None]


def test_datafusion_and_arro3_keep_the_extension_types(paths):
    context = datafusion.SessionContext()
    context.register_arrow("snapshot", paths["real"])
    [shown] = context.sql("select distinct arrow_typeof(page_pool) as kind from snapshot").to_pydict()["kind"]
    assert "hurray.page_pool" in shown


def test_nanoarrow_shows_the_name_and_warns_that_it_gives_the_storage(paths):
    batch = pa.ipc.open_file(paths["real"]).get_batch(0)
    array = nanoarrow.Array(batch).child(batch.schema.get_field_index("block_table"))
    assert "hurray.block_table" in str(array.schema)
    with pytest.warns(nanoarrow.iterator.UnregisteredExtensionWarning):
        assert array.to_pylist() == [[[5, 2, 6], [], [5, 0], [2]]]


def test_pandas_makes_nullable_integers_floats(paths):
    frame = pd.read_feather(paths["real"])
    assert frame["layer_index"].dtype == np.float64  # null is NaN there
    assert frame["kv_group"].dtype == np.uint32
    few = pd.read_feather(paths["real"], columns=["layer_index", "kv_role"])
    assert list(few.columns) == ["layer_index", "kv_role"]


@pytest.mark.parametrize("tool", READERS)
def test_float16_pools(tmp_path, tool):
    """DuckDB has no half floats and refuses the whole Arrow object, also where other columns are asked for."""
    tensor = make_tensor(element_type="float16")
    path = str(tmp_path / "half.arrow")
    write_snapshot(path, [tensor])
    if tool != "duckdb":
        same_pages(READERS[tool](path)["page_pool"][0], tensor, exact=tool not in AS_PYTHON_NUMBERS)
        return
    with duckdb.connect() as connection:
        table = pa.ipc.open_file(path).read_all()
        with pytest.raises(duckdb.NotImplementedException):
            connection.register("snapshot", table)
        connection.register("without", table.drop_columns(["page_pool"]))
        assert connection.sql("select kv_role from without").fetchall() == [("value",)]


def test_bfloat16_is_never_half_floats(paths):
    """Read as float16 its bits would be wrong numbers without an error."""
    assert pl.read_ipc_schema(paths["real"])["page_pool"].inner.ext_storage().inner == pl.UInt16
    bits = pl.read_ipc(paths["real"])["page_pool"][1].ext.storage().to_numpy()
    tensor = SNAPSHOTS["real"]()[1]
    assert np.array_equal(bits.reshape(tensor.page_pool.shape), tensor.page_pool.view(np.uint16))
