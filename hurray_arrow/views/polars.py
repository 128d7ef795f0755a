"""The views of a snapshot as lazy frames of Polars (extra ``polars``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hurray_arrow.errors import MissingDependencyError
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import open_for_queries
from hurray_arrow.views.view import KEY_FIELDS, View, plain

if TYPE_CHECKING:
    import polars as pl

_SEQUENCE_KEYS = {"kv_group", "sequence", "sequence_id"}


def scan(snapshot: Snapshot, view: str = "tensors", **options: Any) -> pl.LazyFrame:
    """Return a view as a LazyFrame, which reads when it is collected.

    Polars says which columns it needs, and which conditions there are: only tensors and sequences that conditions on
    the key columns and on ``sequence`` or ``sequence_id`` leave are read.

    Parameters
    ----------
    snapshot
        An open snapshot; it stays open while the frame is used.
    view, **options
        As of :func:`~hurray_arrow.views.open_view`.

    Returns
    -------
    polars.LazyFrame
        ``values`` are arrays of Polars with all elements of a page or token in one dimension.

    Raises
    ------
    MissingDependencyError
        Polars is not installed.
    ValueError, KeyError, IndexError, UnsupportedError
        As :func:`~hurray_arrow.views.open_view`.
    """
    try:
        from polars.io.plugins import register_io_source
    except ImportError as error:
        raise MissingDependencyError("polars", extra="polars") from error
    opened = open_for_queries(snapshot, view, **options)
    empty = _frame(pa.RecordBatch.from_pylist([], schema=opened.schema))

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size
        left = n_rows
        wanted = opened if predicate is None or left is not None else _admitted(opened, predicate)
        for batch in wanted.projected(_needed(opened, with_columns, predicate)).batches():
            frame = _frame(batch)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame if with_columns is None else frame.select(with_columns)
            if left == 0:
                return
        # Polars wants at least one frame, if only for its columns.
        yield empty if with_columns is None else empty.select(with_columns)

    return register_io_source(source, schema=empty.schema, validate_schema=True)


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    import polars as pl

    found = pl.from_arrow(plain(batch))
    assert isinstance(found, pl.DataFrame)  # noqa: S101  for the type checker: a batch never is a Series
    return found


def _needed(view: View, with_columns: list[str] | None, predicate: pl.Expr | None) -> list[str]:
    if with_columns is None:
        return list(view.columns)
    names = {*with_columns, *(predicate.meta.root_names() if predicate is not None else ())}
    return [name for name in view.columns if name in names] or list(view.columns[:1])


def _admitted(view: View, predicate: pl.Expr) -> View:
    """Leave out tensors and sequences of which some part of the condition already says no."""
    import polars as pl

    selection = view.selection
    keys = {field.name for field in KEY_FIELDS}
    parts = [part for part in _conjuncts(predicate) if part.meta.root_names()]
    of_tensors = [part for part in parts if set(part.meta.root_names()) <= keys]
    of_sequences = [part for part in parts if set(part.meta.root_names()) <= _SEQUENCE_KEYS]
    if of_tensors and set(view.full_schema.names) >= keys:
        rows = [{name: getattr(entry, name) for name in keys} for entry in selection.entries]
        listed = _frame(pa.RecordBatch.from_pylist(rows, schema=pa.schema(KEY_FIELDS)))
        view = view.narrowed(entries=listed.filter(*of_tensors)["tensor_index"].to_list())
    if of_sequences and "sequence" in view.full_schema.names:
        places = {}
        for kv_group in selection.kv_groups:
            tables = selection.snapshot.group_tables(kv_group)
            sequence = pl.int_range(tables.seq_ptr.size - 1, dtype=pl.UInt32, eager=True)
            ids = pl.Series(tables.sequences.ids or [None] * sequence.len(), dtype=pl.String)
            listed = pl.DataFrame({"sequence": sequence, "sequence_id": ids}).with_columns(
                pl.lit(kv_group, dtype=pl.UInt32).alias("kv_group")
            )
            places[kv_group] = listed.filter(*of_sequences)["sequence"].to_numpy().astype(np.int64)
        view = view.narrowed(places=places)
    return view


def _conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """Take a condition apart at its outer ``&``."""
    inputs = predicate.meta.pop()
    if len(inputs) == 2:
        for left, right in (inputs, inputs[::-1]):
            if (left & right).meta.eq(predicate):
                return [*_conjuncts(left), *_conjuncts(right)]
    return [predicate]
