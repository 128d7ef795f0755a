"""A catalogue is a Parquet file: DuckDB, Polars, pandas and DataFusion read all of it, digests and all, without us."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

import hurray_arrow as ha
from hurray_arrow.catalog import build_catalog, find_prefix, open_catalog
from hurray_arrow.catalog import writer as catalog_writer
from hurray_arrow.catalog.columns import SCHEMAS
from tests.unit.catalog.samples import KEY, PROMPT, write

GROUPS = [{"kind": "full"}, {"kind": "sliding_window", "window_tokens": 6}]


@pytest.fixture(scope="module", params=SCHEMAS)
def catalogue(request, tmp_path_factory):
    """Several row groups with runs of digests between them, and one file that is no snapshot."""
    folder = tmp_path_factory.mktemp("catalogue")
    for number in range(5):
        metadata = {"model": {"name": "toy", "revision": f"r{number % 2}"}, "groups": GROUPS}
        write(folder / "cache" / f"{number}.arrow", tokens=20 + 7 * number, metadata=metadata)
    (folder / "cache" / "text.arrow").write_text("not Arrow")
    path = folder / "c.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_writer, "GROUP_ROWS", 2)
        patch.setattr(catalog_writer, "RUN_ROWS", 3)
        build_catalog(folder / "cache", destination=path, key=KEY, rows=request.param)
    metadata = parquet.read_metadata(path)
    starts = [metadata.row_group(number).column(0).data_page_offset for number in range(metadata.num_row_groups)]
    with open_catalog(path) as opened:
        offsets = [run.offset_bytes for run in opened.document.runs]
    assert min(starts) < min(offsets) < max(starts), "digests lie between row groups"
    return path


def in_order(table):
    """Rows as Python values; the tools may give them in another order."""
    rows = pa.table(table).to_pylist()
    return sorted(rows, key=lambda row: (row["file_index"], row.get("tensor_index") or 0))


def duckdb_table(path):
    import duckdb

    return duckdb.sql(f"select * from '{path}'").to_arrow_table()  # noqa: S608  a path of ours


def polars_table(path):
    import polars as pl

    return pl.read_parquet(path).to_arrow()


def polars_lazy(path):
    import polars as pl

    return pl.scan_parquet(path).filter(pl.col("file_index") >= 0).collect().to_arrow()


def datafusion_table(path):
    import datafusion

    return datafusion.SessionContext().read_parquet(path).to_arrow_table()


@pytest.mark.parametrize("read", [duckdb_table, polars_table, polars_lazy, datafusion_table])
def test_every_value_of_every_column(catalogue, read):
    expected = in_order(parquet.read_table(catalogue))
    found = in_order(read(str(catalogue)))
    assert len(found) == len(expected) > 5
    assert found == expected


def test_pandas_reads_every_column(catalogue):
    import pandas as pd

    found = pd.read_parquet(catalogue)
    assert list(found.columns) == SCHEMAS["tensors" if "tensor_index" in found else "snapshots"].names
    assert found["error"].notna().sum() == 1
    assert set(found["model_revision"].dropna()) == {"r0", "r1"}


@pytest.mark.parametrize("read", [duckdb_table, polars_table, parquet.read_table])
def test_a_table_written_anew_says_that_it_has_no_digests(catalogue, tmp_path, read):
    path = tmp_path / "anew.parquet"
    metadata = parquet.read_metadata(catalogue).metadata
    for kept in ({}, {key: value for key, value in metadata.items() if key.startswith(b"hurray_arrow")}):
        parquet.write_table(read(str(catalogue)).replace_schema_metadata(kept), path)
        with pytest.raises(ha.CatalogError) as caught:
            find_prefix(path, PROMPT, key=KEY)
        assert caught.value.codes == ["catalog_invalid"]


QUESTIONS = """
import sys
import duckdb
import polars as pl
path = sys.argv[1]
rows = duckdb.sql(f"select model_revision, count(distinct url) from '{path}' group by 1 order by 1").fetchall()
assert rows == [("r0", 3), ("r1", 2), (None, 1)], rows
times = duckdb.sql(f"select max(created) - min(created) from '{path}'").fetchall()
assert times[0][0].days == 0, times
found = pl.scan_parquet(path).filter(pl.col("model_revision") == "r1").select(pl.col("stored_bytes").sum()).collect()
assert found.item() > 0
assert "hurray_arrow" not in sys.modules
"""


def test_questions_without_us(catalogue):
    command = [sys.executable, "-W", "error", "-c", QUESTIONS, str(catalogue)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
