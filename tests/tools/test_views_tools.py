"""Each tool reads each view, for every element type, and reads no more of it than the question needs."""

from __future__ import annotations

import subprocess
import sys

import duckdb
import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import hurray_arrow as ha
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.views import VIEWS, datafusion, export, open_view, pandas, polars
from hurray_arrow.views import duckdb as duckdb_door
from hurray_arrow.views.dataset import ViewDataset
from hurray_arrow.views.values import has_numbers
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts

OPTIONS = {"pages": {"values": "raw"}, "tokens": {}, "tensors": {}, "sequences": {}}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """Two layers of keys and values, and scales, which other pages have."""
    path = tmp_path_factory.mktemp("tools") / "a.arrow"
    facts = sample_facts()
    ha.write_snapshot(
        path,
        [
            make_tensor(layer_index=3, kv_role="key", element_type="int8", layer_name="model.3", **facts),
            make_tensor(layer_index=3, element_type="int8", quantization="per_channel_heads", seed=5, **facts),
            make_tensor(layer_index=7, kv_role="key", element_type="int8", seed=7, **facts),
            make_tensor(layer_index=7, kv_role="key", component="scales", element_type="uint16", head_dim=1, **facts),
        ],
    )
    with ha.open_snapshot(path) as opened:
        yield opened


@pytest.fixture
def read(monkeypatch):
    """List the layers and roles of the tensors whose pages are read."""
    seen: list[tuple[int | None, str]] = []
    reading = TensorPages.read

    def counting(self, page_ids):
        seen.append((self.tensor.layer_index, self.tensor.kv_role))
        return reading(self, page_ids)

    monkeypatch.setattr(TensorPages, "read", counting)
    return seen


def plain_rows(view):
    return [tuple(row.values()) for row in pa.table(view).to_pylist()]


@pytest.mark.parametrize("element_type", ALL_ELEMENT_TYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_sql_over_a_variable_works_on_each_view_for_every_element_type(tmp_path, view, element_type):
    tensor = make_tensor(element_type=element_type, page_size=4)
    ha.write_snapshot(tmp_path / "a.arrow", [tensor])
    with ha.open_snapshot(tmp_path / "a.arrow") as opened:
        options = dict(OPTIONS[view])
        if view == "tokens" and has_numbers(element_type):
            options["values"] = "float32"
        variable = open_view(opened, view, **options).reader()  # noqa: F841  DuckDB finds it by its name
        expected = open_view(opened, view, **options).reader().read_all()
        found = duckdb.sql("select * from variable").to_arrow_table()
        assert found.num_rows == expected.num_rows > 0
        if "values" in options:
            flat = found["values"].combine_chunks()
            stored = expected["values"].combine_chunks().storage
            np.testing.assert_array_equal(
                np.asarray(flat.flatten()), stored.values.to_numpy()[: len(stored) * stored.type.list_size]
            )


def values_of(tool, snapshot, folder, options):
    """Return the values of all pages, flat, as a tool gives them."""
    if tool == "polars":
        return polars.scan(snapshot, "pages", **options).select("values").collect()["values"].to_numpy().reshape(-1)
    if tool == "pandas":
        return np.stack(pandas.frame(snapshot, "pages", **options)["values"]).reshape(-1)
    if tool == "datafusion":
        table = datafusion.connect(snapshot, pages=options).sql('select "values" from pages order by page_id')
        # The type of fixed shape stays, where the others have lists.
        return np.asarray(table.to_arrow_table()["values"].combine_chunks().storage.flatten())
    export(snapshot, "pages", folder / "pages.parquet", **options)
    found = duckdb.read_parquet(str(folder / "pages.parquet")).to_arrow_table()["values"]
    return np.asarray(found.combine_chunks().flatten())


@pytest.mark.parametrize("tool", ["polars", "pandas", "datafusion", "parquet"])
@pytest.mark.parametrize("element_type", ALL_ELEMENT_TYPES)
def test_every_tool_gets_the_values_of_every_element_type(tmp_path, tool, element_type):
    ha.write_snapshot(tmp_path / "a.arrow", [make_tensor(element_type=element_type, page_size=4)])
    with ha.open_snapshot(tmp_path / "a.arrow") as opened:
        for values in ("raw", "float32") if has_numbers(element_type) else ("raw",):
            expected = open_view(opened, "pages", values=values).reader().read_all()["values"].combine_chunks()
            found = values_of(tool, opened, tmp_path, {"values": values, "columns": ["page_id", "values"]})
            np.testing.assert_array_equal(found, expected.storage.flatten().to_numpy(zero_copy_only=False))
            (tmp_path / "pages.parquet").unlink(missing_ok=True)


def test_duckdb_pushes_columns_and_conditions(snapshot, read):
    db = duckdb_door.connect(snapshot, tokens={"values": "stats", "per_head": True}, component="values")
    query = "select norm from tokens where layer_index = 3 and kv_role = 'value' and sequence_id = 's-a'"
    found = sorted(value for (value,) in db.sql(query).fetchall())
    assert read == [(3, "value")]
    values = snapshot.read(layer_index=3, kv_role="value").dequantize(0)
    np.testing.assert_allclose(found, np.sort(np.linalg.norm(values, axis=-1).ravel()), rtol=1e-5)
    assert len(db.sql(query).fetchall()) == len(found)
    read.clear()
    assert db.sql("select count(*) from tokens where layer_index in (7, 99)").fetchall() == [(27 * 3,)]
    assert db.sql("select count(*) from pages join tensors using (tensor_index)").fetchall() == [(21,)]
    assert read == []


@pytest.mark.parametrize("tool", [duckdb_door, datafusion])
def test_queries_may_name_what_is_made_on_demand(snapshot, tool):
    query = "select shared_with from sequences where sequence = 3"
    connection = tool.connect(snapshot)
    found = connection.sql(query)
    pairs = found.fetchall() if tool is duckdb_door else [tuple(row.values()) for row in found.to_pylist()]
    assert pairs == [([{"sequence": 0, "num_pages": 1}],)]


def test_duckdb_registers_with_a_connection_of_the_callers(snapshot):
    with duckdb.connect() as mine:
        assert duckdb_door.connect(snapshot, connection=mine) is mine
        assert {name for (name,) in mine.sql("show tables").fetchall()} == set(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_polars_reads_each_view(snapshot, view):
    lazy = polars.scan(snapshot, view)
    frame = lazy.collect()
    assert frame.schema == lazy.collect_schema()
    expected = pl.from_arrow(pa.table(open_view(snapshot, view).with_all_columns()))
    assert frame.equals(expected)
    assert lazy.head(2).collect().equals(expected.head(2))
    assert lazy.select(pl.len()).collect().item() == expected.height


@pytest.mark.parametrize(
    ("condition", "tensors"),
    [
        ((pl.col("layer_index") == 3) & (pl.col("kv_role") == "value"), [(3, "value")]),
        ((pl.col("layer_index") == 7) & (pl.col("sequence") == 2) & (pl.col("norm") > 0), [(7, "key")]),
        (
            pl.col("layer_index").is_in([3]) & ((pl.col("token") == 1) | (pl.col("slot") == 2)),
            [(3, "key"), (3, "value")],
        ),
        ((pl.col("layer_index") == 7) | (pl.col("norm") < 0), [(3, "key"), (3, "value"), (7, "key")]),
        ((pl.col("sequence_id") != "s-a") & (pl.col("layer_name") == "model.3"), [(3, "key")]),
    ],
)
def test_polars_pushes_conditions(snapshot, read, condition, tensors):
    lazy = polars.scan(snapshot, "tokens", values="stats", component="values")
    found = lazy.filter(condition).select("norm", "token").collect()
    assert read == tensors
    assert found.equals(lazy.collect().filter(condition).select("norm", "token"))


def test_polars_limits_before_it_filters(snapshot):
    lazy = polars.scan(snapshot, "tokens")
    assert lazy.head(30).filter(pl.col("layer_index") == 3).collect().height == 30
    assert lazy.filter(pl.col("layer_index") == 7).head(3).collect()["layer_index"].to_list() == [7, 7, 7]


def test_polars_reads_no_pages_for_other_columns(snapshot, read):
    polars.scan(snapshot, "tokens", values="stats").select("token", "page_id").collect()
    assert read == []


@pytest.mark.parametrize("view", VIEWS)
def test_datafusion_reads_each_view(snapshot, view):
    context = datafusion.connect(snapshot)
    found = context.sql(f"select * from {view}").to_pylist()  # noqa: S608  names of ours
    assert [tuple(row.values()) for row in found] == plain_rows(open_view(snapshot, view).with_all_columns())


def test_datafusion_pushes_columns_and_conditions(snapshot, read):
    context = datafusion.connect(snapshot, tokens={"values": "stats"}, component="values")
    found = context.sql("select norm from tokens where layer_index = 7 and sequence = 3").to_pylist()
    assert read == [(7, "key")]
    values = snapshot.read(layer_index=7, component="values").gather(3).astype(np.float32).reshape(4, -1)
    np.testing.assert_allclose([row["norm"] for row in found], np.linalg.norm(values, axis=-1), rtol=1e-5)
    assert context.sql("select count(*) as n from tokens").to_pylist() == [{"n": 81}]


@pytest.mark.parametrize("view", VIEWS)
def test_pandas_reads_each_view(snapshot, view):
    frame = pandas.frame(snapshot, view)
    expected = pa.table(open_view(snapshot, view))
    assert list(frame.columns) == expected.column_names
    assert len(frame) == expected.num_rows
    key = frame.columns[0]
    assert frame[key].tolist() == expected[key].to_pylist()


def test_pandas_gives_shaped_values(snapshot):
    cells = pandas.frame(snapshot, "pages", values="float32", layer_index=3, kv_role="value")["values"]
    np.testing.assert_array_equal(np.stack(cells), snapshot.read(layer_index=3, kv_role="value").dequantize_pages())


@pytest.mark.parametrize("view", VIEWS)
def test_parquet_comes_back_through_duckdb_alone(snapshot, tmp_path, view):
    options = {"pages": {"values": "float32"}, "tokens": {"values": "float32"}}.get(view, {})
    path = tmp_path / "view.parquet"
    written = export(snapshot, view, path, component="values", **options)
    expected = pa.table(open_view(snapshot, view, component="values", **options))
    assert written == expected.num_rows
    assert path.stat().st_mode & 0o777 == 0o600
    program = (
        "import duckdb, sys\n"
        "table = duckdb.read_parquet(sys.argv[1])\n"
        "print(table.columns, len(table.fetchall()))\n"
        "assert not {'hurray_arrow', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{expected.column_names} {expected.num_rows}"
    found = parquet.read_table(path)
    for name in expected.column_names:
        values = expected[name].combine_chunks()
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        assert found[name].to_pylist() == values.to_pylist()
    for each in range(parquet.ParquetFile(path).metadata.num_columns):
        column = parquet.ParquetFile(path).metadata.row_group(0).column(each)
        assert column.compression == "ZSTD"
        split = column.physical_type in ("FLOAT", "DOUBLE")
        assert ("BYTE_STREAM_SPLIT" in column.encodings) == split, column.path_in_schema


def test_an_export_that_fails_leaves_nothing(snapshot, tmp_path):
    path = tmp_path / "view.parquet"
    with pytest.raises(ha.UnsupportedError):
        export(snapshot, "pages", path, values="float32")
    assert list(tmp_path.iterdir()) == []
    export(snapshot, "pages", path)
    with pytest.raises(FileExistsError):
        export(snapshot, "pages", path)
    before = path.stat().st_ino
    assert export(snapshot, "pages", path, overwrite=True, kv_role="key") == 21
    assert path.stat().st_ino != before


def test_an_export_goes_to_a_store_as_well(snapshot, tmp_path):
    url = "memory://exported/pages.parquet"
    store = fsspec.filesystem("memory")
    export(snapshot, "pages", tmp_path / "pages.parquet")
    try:
        assert export(snapshot, "pages", url) == export(snapshot, "pages", "/exported/other", filesystem=store)
        assert store.cat(url) == (tmp_path / "pages.parquet").read_bytes()
        with pytest.raises(FileExistsError):
            export(snapshot, "pages", url)
        with pytest.raises(ha.UnsupportedError):
            export(snapshot, "pages", url, overwrite=True, values="float32")
        assert store.cat(url) == (tmp_path / "pages.parquet").read_bytes()
        assert sorted(store.find("/exported")) == ["/exported/other", "/exported/pages.parquet"]
    finally:
        store.rm("/exported", recursive=True)


@pytest.mark.parametrize("package", ["duckdb", "polars", "pandas", "datafusion"])
def test_what_is_not_installed_is_named(snapshot, monkeypatch, package):
    doors = {
        "duckdb": duckdb_door.connect,
        "polars": polars.scan,
        "pandas": pandas.frame,
        "datafusion": datafusion.connect,
    }
    for module in list(sys.modules):
        if module == package or module.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ha.MissingDependencyError) as caught:
        doors[package](snapshot)
    assert caught.value.extra == package


def test_a_dataset_outlives_many_queries(snapshot):
    tokens = ViewDataset(open_view(snapshot, "tokens", component="values"))  # noqa: F841  DuckDB finds it
    for _ in range(3):
        assert duckdb.sql("select count(*) from tokens where sequence = 0").fetchall() == [(39,)]


def test_importing_the_package_loads_no_tool():
    program = (
        "import hurray_arrow.views, sys\n"
        "print(*sorted({'duckdb', 'polars', 'pandas', 'datafusion', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
