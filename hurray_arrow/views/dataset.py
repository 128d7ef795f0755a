"""A view as a ``pyarrow.dataset.Dataset``: what DuckDB and DataFusion push columns and conditions into.

pyarrow keeps expressions to itself, but it knows which pieces of a dataset an expression can admit. So every tensor,
and every sequence, stands for such a piece, and pyarrow says which of them are worth reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.views.selection import Places
from hurray_arrow.views.view import KEY_FIELDS, URL_FIELD, View

_TENSOR_SCHEMA = pa.schema(KEY_FIELDS)
_SEQUENCE_SCHEMA = pa.schema(
    [pa.field("kv_group", pa.uint32()), pa.field("sequence", pa.uint32()), pa.field("sequence_id", pa.utf8())]
)
#: Beyond this many, asking which sequences a condition can admit costs more than reading them.
_MOST_SEQUENCES = 1 << 14


class ViewDataset(ds.Dataset):
    """A view that may be queried any number of times, each time with other columns and conditions.

    Parameters
    ----------
    view
        The view.
    """

    def __init__(self, view: View) -> None:
        # Without pyarrow's own constructor, which there is none of for subclasses: nothing here needs its state.
        self.view = view

    @property
    def schema(self) -> pa.Schema:
        """The view's columns."""
        return self.view.schema

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> Any:  # noqa: A002
        """Return a scanner, or what does as one, that reads no tensor and no sequence that the condition cannot admit.

        Parameters
        ----------
        columns
            Names, or expressions by name; ``None`` for all.
        filter
            The condition on rows.
        **options
            ``batch_size`` and the like, of ``pyarrow.dataset.Scanner``.
        """
        names = self.view.columns if columns is None else columns
        if filter is None and names and not isinstance(names, Mapping) and set(names) <= set(self.view.columns):
            return _Reading(self.view.projected(names))
        view = self.view if filter is None else _admitted(self.view, filter)
        needed = needed_columns(view, columns, filter)
        reader = view.projected(needed).reader()
        options = {name: value for name, value in options.items() if name in ("batch_size", "use_threads")}
        return ds.Scanner.from_batches(
            reader, columns=list(needed) if columns is None else columns, filter=filter, **options
        )

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:  # noqa: A002
        """Return the view as its only fragment; :meth:`scanner` finds out itself what to leave out."""
        del filter
        return iter([_Fragment(self)])

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """Read as record batches; options as of :meth:`scanner`."""
        return iter(self.scanner(**options).to_reader())

    def to_table(self, **options: Any) -> pa.Table:
        """Read as a table; options as of :meth:`scanner`."""
        return self.scanner(**options).to_table()

    def count_rows(self, **options: Any) -> int:
        """Count rows; options as of :meth:`scanner`."""
        return int(self.scanner(columns=[], **options).count_rows())

    def __reduce__(self) -> Any:
        raise TypeError("a view reads an open snapshot and cannot be pickled")


class _Reading:
    """A scan of whole columns without a condition: pyarrow's own would hand each batch through several threads."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.dataset_schema = self.projected_schema = view.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return self._view.reader()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return self._view.batches()

    def to_table(self) -> pa.Table:
        return self._view.reader().read_all()

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._view.batches())


class _Fragment(ds.Fragment):
    def __init__(self, dataset: ViewDataset) -> None:
        self.dataset = dataset

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> Any:
        del schema
        return self.dataset.scanner(**options)


def needed_columns(view: View, columns: Any, condition: pc.Expression | None) -> Sequence[str]:
    """Return the columns that a scan takes, in the view's order, and at least one: rows are counted on it."""
    if columns is None:
        return view.columns
    wanted = list(columns.values()) if isinstance(columns, Mapping) else list(columns)
    said = " ".join(str(each) for each in [*wanted, condition])
    if "FieldPath" in said:
        return view.columns
    # Expressions do not say which fields they use, but they print them. A name too many costs time, nothing else.
    words = set(re.findall(r"\w+", said))
    return [name for name in view.columns if name in words] or view.columns[:1]


def _admitted(view: View, condition: pc.Expression) -> View:
    entries = admitted_entries(view.selection.entries, view.schema, condition)
    return admitted_sequences(view.narrowed(entries=[entry.tensor_index for entry in entries]), condition)


def admitted_entries(
    entries: Sequence[Entry], schema: pa.Schema, condition: pc.Expression, *, url: str | None = None
) -> list[Entry]:
    """Return the tensors of which a condition may leave a row.

    Parameters
    ----------
    entries
        Tensors of one snapshot.
    schema
        The view's columns; every one that the condition names is among them.
    condition
        The condition on rows.
    url
        What column ``url`` says, where the condition may name it.
    """
    rows = [[getattr(entry, field.name) for field in KEY_FIELDS] for entry in entries]
    return [entries[place] for place in _pieces(_TENSOR_SCHEMA, rows, schema, condition, url=url)]


def admitted_urls(urls: Sequence[str], schema: pa.Schema, condition: pc.Expression) -> set[str]:
    """Return the snapshots of which a condition may leave a row; column ``url`` is in the schema."""
    known = pa.schema([URL_FIELD])
    return {urls[place] for place in _pieces(known, [[url] for url in urls], schema, condition, url=None)}


def admitted_sequences(view: View, condition: pc.Expression, *, url: str | None = None) -> View:
    """Return a view without the sequences of which a condition leaves no row; as :func:`admitted_entries`.

    The tables are read where the condition names sequences.
    """
    if "sequence" in view.schema.names or "sequence_id" in view.schema.names:
        places = _places(view, condition, url)
        view = view if places is None else view.narrowed(places=places)
    return view


def _places(view: View, condition: pc.Expression, url: str | None) -> Places | None:
    if not re.search(r"\bsequence(_id)?\b", str(condition)):
        return None
    rows: list[list[Any]] = []
    selection = view.selection
    for kv_group in selection.kv_groups:
        tables = selection.snapshot.group_tables(kv_group)
        num_seqs = tables.seq_ptr.size - 1
        ids = tables.sequences.ids or [None] * num_seqs
        rows += [[kv_group, sequence, ids[sequence]] for sequence in range(num_seqs)]
        if len(rows) > _MOST_SEQUENCES:
            return None
    kept = [rows[place] for place in _pieces(_SEQUENCE_SCHEMA, rows, view.schema, condition, url=url)]
    return {g: np.array([row[1] for row in kept if row[0] == g], np.int64) for g in selection.kv_groups}


def _pieces(
    known: pa.Schema, rows: Sequence[Sequence[Any]], schema: pa.Schema, condition: pc.Expression, *, url: str | None
) -> Iterator[int]:
    """Say which of the rows, of which only some columns are known, a condition can admit."""
    if url is not None:
        known, rows, schema = pa.schema([URL_FIELD, *known]), [[url, *row] for row in rows], schema.insert(0, URL_FIELD)
    format_, nowhere = ds.IpcFileFormat(), fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    fields = [(place, field) for place, field in enumerate(known) if field.name in schema.names]
    if not fields:
        return iter(range(len(rows)))
    fragments = [
        format_.make_fragment(
            str(number), nowhere, partition_expression=reduce(and_, (_is(row[place], field) for place, field in fields))
        )
        for number, row in enumerate(rows)
    ]
    if not fragments:
        return iter(())
    pieces = ds.FileSystemDataset(fragments, schema, format_)
    return (int(fragment.path) for fragment in pieces.get_fragments(filter=condition))


def _is(value: Any, field: pa.Field) -> pc.Expression:
    named = pc.field(field.name)
    return named.is_null() if value is None else named == pa.scalar(value, field.type)
