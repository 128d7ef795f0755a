"""What all views have in common: columns, a schema, and batches that are made while somebody takes them.

Spec: snapshot format section 2.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.windows import numpy_dtype
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.views.selection import Places, Selection

#: Each column of a batch, made when it is wanted.
Makers: TypeAlias = Mapping[str, Callable[[], Any]]

#: The column that says, where rows are of many snapshots, which one a row is of.
URL_FIELD = pa.field("url", pa.utf8())
#: The columns that say which tensor a row is about.
KEY_FIELDS = (
    pa.field("tensor_index", pa.uint32()),
    pa.field("layer_index", pa.uint32()),
    pa.field("layer_name", pa.utf8()),
    pa.field("kv_role", pa.utf8()),
    pa.field("component", pa.utf8()),
    pa.field("kv_group", pa.uint32()),
)


class View(ABC):
    """One table over a snapshot. It may be read any number of times, and holds nothing but what was asked.

    Parameters
    ----------
    selection
        Which tensors and sequences.
    columns
        Which columns, in which order; ``None`` for all but those of ``ON_DEMAND``.

    Raises
    ------
    ValueError
        The view has no such column, or none is asked for.
    """

    NAME: ClassVar[str]
    #: Columns that are only made where they are named, because they may be larger than all that is asked about.
    ON_DEMAND: ClassVar[frozenset[str]] = frozenset()
    #: Of each tensor only the pages from here up to there; ``None`` for all.
    page_range: tuple[int, int] | None = None
    #: The columns that were asked for.
    schema: pa.Schema

    def __init__(self, selection: Selection, *, columns: Iterable[str] | None = None) -> None:
        self.selection = selection
        self.columns = self._chosen(columns)
        self.schema = self._schema()

    @property
    @abstractmethod
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make the batches, each of some MiB at most (or of one row)."""

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader over the batches from the beginning."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def projected(self, columns: Iterable[str]) -> Self:
        """Return the same view with these columns."""
        made = copy.copy(self)
        made.columns = self._chosen(columns)
        made.schema = made._schema()  # noqa: SLF001  of the same class
        return made

    def with_all_columns(self) -> Self:
        """Return the same view for a tool that names the columns of each query: those of ``ON_DEMAND`` are offered."""
        return self.projected(self.full_schema.names)

    def narrowed(self, *, entries: Iterable[int] | None = None, places: Places | None = None) -> Self:
        """Return the same view of fewer tensors and sequences; see :meth:`Selection.narrowed`."""
        made = copy.copy(self)
        made.selection = self.selection.narrowed(entries=entries, places=places)
        return made

    def within(self, page_range: tuple[int, int] | None) -> Self:
        """Return the same view of some pages of each tensor, by page id and half-open, and of the tokens in them."""
        made = copy.copy(self)
        made.page_range = page_range
        return made

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<view {self.NAME} of {len(self.selection.entries)} tensors: {', '.join(self.columns)}>"

    def _chosen(self, columns: Iterable[str] | None) -> tuple[str, ...]:
        names = self.full_schema.names
        usual = [name for name in names if name not in self.ON_DEMAND]
        chosen = tuple(usual if columns is None else [columns] if isinstance(columns, str) else columns)
        unknown = [name for name in chosen if name not in names]
        if unknown or not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"{self.NAME}: columns {list(chosen)}, expected some of {names}, each once")
        return chosen

    def _schema(self) -> pa.Schema:
        full = self.full_schema
        return pa.schema([full.field(name) for name in self.columns])

    def _wants(self, names: Iterable[str]) -> bool:
        return not set(names).isdisjoint(self.columns)

    def _batch(self, makers: Makers) -> pa.RecordBatch:
        arrays = [_array(makers[field.name](), field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def key_makers(entry: Entry, num_rows: int) -> dict[str, Callable[[], pa.Array]]:
    """Return the makers of the key columns for rows that are all about one tensor."""

    def maker(field: pa.Field) -> Callable[[], pa.Array]:
        return lambda: pa.repeat(pa.scalar(getattr(entry, field.name), field.type), num_rows)

    return {field.name: maker(field) for field in KEY_FIELDS}


def with_nulls(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Return an array in which what is ``missing`` is null, whatever stands there."""
    return pa.array(np.where(missing, 0, values).astype(numpy_dtype(kind)), kind, mask=missing)


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with extension arrays as their storage, for tools that make something odd of the type."""
    arrays = [column.storage if isinstance(column, pa.ExtensionArray) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and kind == pa.uint64():
        # Counts and places are never negative.
        return pa.array(values.view(np.uint64), kind)
    if isinstance(values, np.ndarray) and pa.types.is_primitive(kind):
        return pa.array(values.astype(numpy_dtype(kind), copy=False), kind)
    return pa.array(values, kind)


def weighed(items: Sequence[int], weights: Callable[[int], int], limit: int) -> Iterator[list[int]]:
    """Cut items into runs that weigh no more than ``limit`` together, or are single."""
    run: list[int] = []
    total = 0
    for item in items:
        weight = weights(item)
        if run and total + weight > limit:
            yield run
            run, total = [], 0
        run.append(item)
        total += weight
    if run:
        yield run
