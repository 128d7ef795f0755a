"""Each tool's own way to the values of a snapshot, and what numpy says that they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import arro3.io
import datafusion
import duckdb
import nanoarrow.ipc
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.snapshot import write_snapshot
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts

KEY_COLUMNS = ("tensor_index", "layer_index", "layer_name", "kv_role", "component", "kv_group", "page_offset")

#: A snapshot as a tool sees it: its columns in the order of tensor_index, each value as plain Python or numpy objects.
Columns = Mapping[str, list[Any]]


def polars_columns(frame: pl.DataFrame) -> Columns:
    """Polars gives the extension types as its own; ``.ext.storage()`` is the values."""
    frame = frame.sort("tensor_index")
    columns: dict[str, list[Any]] = {}
    for name in frame.columns:
        rows = list(frame[name])
        if name.startswith("page_pool"):
            rows = [None if row is None else row.ext.storage().to_numpy() for row in rows]
        elif name == "block_table":
            rows = [None if row is None else [list(pages) for pages in row.ext.storage()] for row in rows]
        elif name == "sequences":
            rows = [None if row is None else row.to_list() for row in rows]
        columns[name] = rows
    return columns


def read_polars(path: str) -> Columns:
    return polars_columns(pl.read_ipc(path))


def scan_polars(path: str) -> Columns:
    return polars_columns(pl.scan_ipc(path).collect())


def read_datafusion(path: str) -> Columns:
    context = datafusion.SessionContext()
    context.register_arrow("snapshot", path)
    return context.sql("select * from snapshot order by tensor_index").to_pydict()


def read_arro3(path: str) -> Columns:
    with open(path, "rb") as file:  # noqa: PTH123  what arro3's documentation does
        table = arro3.io.read_ipc(file).read_all()
    return pa.table(table).to_pydict()


def read_nanoarrow(path: str) -> Columns:
    """nanoarrow reads streams; an Arrow file is one after its first 8 bytes."""
    with open(path, "rb") as file:  # noqa: PTH123  what nanoarrow's documentation does
        file.seek(8)
        with nanoarrow.ipc.InputStream.from_readable(file) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore", nanoarrow.iterator.UnregisteredExtensionWarning)
            rows = list(nanoarrow.ArrayStream(stream).read_all().iter_py())
    return {name: [row[name] for row in rows] for name in rows[0]}


def read_pandas(path: str) -> Columns:
    frame = pd.read_feather(path)
    columns = {}
    for name in frame.columns:
        rows = [None if missing else row for row, missing in zip(frame[name], frame[name].isna(), strict=True)]
        columns[name] = rows
    return columns


def read_duckdb(path: str) -> Columns:
    """DuckDB reads the Arrow table, in memory."""
    table = pa.ipc.open_file(path).read_all()
    with duckdb.connect() as connection:
        connection.register("snapshot", table)
        relation = connection.sql("select * from snapshot order by tensor_index")
        rows = relation.fetchall()
        return {name: [row[place] for row in rows] for place, name in enumerate(relation.columns)}


READERS: Mapping[str, Callable[[str], Columns]] = {
    "polars read_ipc": read_polars,
    "polars scan_ipc": scan_polars,
    "datafusion": read_datafusion,
    "arro3": read_arro3,
    "nanoarrow": read_nanoarrow,
    "pandas": read_pandas,
    "duckdb": read_duckdb,
}
#: These hand numbers out as Python's, so that a NaN's payload is gone; the others give the bits.
AS_PYTHON_NUMBERS = {"nanoarrow", "duckdb"}


def stored_pages(tensor: Any) -> np.ndarray:
    """The pages as Arrow stores them: ``[num_pages, values_per_page]``."""
    element = tensor.element_type
    page_class = PageClass(element.name, element.bits, tensor.descriptor.page_shape)
    return (
        tensor.buffers[0]
        .view(page_class.value_type.to_pandas_dtype())
        .reshape(tensor.num_pages, page_class.values_per_page or 0)
    )


def block_tables(tensor: Any) -> list[list[int]]:
    """Page ids per sequence."""
    return [tensor.page_ids(seq).tolist() for seq in range(tensor.num_seqs)]


def real_tensors(**more: Any) -> list[Any]:
    """Two layers and more: several page classes, a companion, two groups, a pool that cannot be cut, an empty batch."""
    facts = sample_facts()
    return [
        make_tensor(layer_index=3, kv_role="key", layer_name="model.3", **facts, **more),
        make_tensor(layer_index=3, layer_name="model.3", seed=5, **facts, **more),
        make_tensor(layer_index=5, element_type="float8_e4m3", quantization="per_channel_heads", kv_role="key", **more),
        make_tensor(
            layer_index=3, kv_role="key", element_type="float32", head_dim=1, component="scales", **facts, **more
        ),
        make_tensor(layer_index=7, element_type="int4", **more),
        make_tensor(layer_index=None, layer_name="encoder", element_type="int8", seed=7, **more),
        make_tensor(layer_index=11, element_type="int8", num_pages=0, block_tables=[], seq_lens=[], **more),
    ]


def every_type() -> list[Any]:
    """One tensor of each element type but float16, in whole pages; layer n has the n-th type."""
    names = [name for name in ALL_ELEMENT_TYPES if name != "float16"]
    return [make_tensor(element_type=name, page_size=4, layer_index=number) for number, name in enumerate(names)]


SNAPSHOTS: Mapping[str, Callable[[], list[Any]]] = {
    "real": real_tensors,
    "uint64 tables": lambda: real_tensors(index_type="uint64"),
    "every type": every_type,
}


def write_all(folder: Any) -> dict[str, str]:
    """Write every sample snapshot; gives their paths."""
    paths = {}
    for name, tensors in SNAPSHOTS.items():
        paths[name] = str(folder / f"{name.replace(' ', '_')}.arrow")
        write_snapshot(paths[name], tensors(), metadata={"model": {"name": "toy"}})
    return paths
