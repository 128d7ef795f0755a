"""What is asked of every one of many snapshots: a view, its filters, a condition on its rows, columns.

A question is small and goes through a pickle, so that any thread or process can put it to its own snapshots.

Spec: house rules, "Selectors".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hurray_arrow.snapshot.entries import SELECTORS
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import VIEWS, make_view
from hurray_arrow.views.selection import Selection
from hurray_arrow.views.values import STATISTICS
from hurray_arrow.views.view import URL_FIELD, View

if TYPE_CHECKING:
    import pyarrow.compute as pc

#: Columns that take pages.
VALUED = frozenset({"values", *STATISTICS})


@dataclass(frozen=True, slots=True)
class Question:
    """One question to many snapshots.

    Parameters
    ----------
    view
        ``"tensors"``, ``"sequences"``, ``"pages"`` or ``"tokens"``.
    columns
        Which columns, in which order, ``url`` among them; ``None`` for all but those that the view makes on demand.
    condition
        The condition on rows, ``None`` for none.
    filters
        The selectors and ``sequence`` of :func:`~hurray_arrow.views.open_view`.
    options
        What else the view takes, such as ``values``.
    """

    view: str
    columns: tuple[str, ...] | None = None
    condition: pc.Expression | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, view: str, *, columns: Iterable[str] | None = None, condition: pc.Expression | None = None, **rest: Any
    ) -> Question:
        """Return the question that the arguments of ``read_snapshots`` mean.

        Raises
        ------
        ValueError
            No such view, or a column twice.
        TypeError
            The condition is no expression of pyarrow's.
        """
        if view not in VIEWS:
            raise ValueError(f"view {view!r}, expected one of {list(VIEWS)}")
        if condition is not None:
            import pyarrow.compute as pc

            if not isinstance(condition, pc.Expression):
                raise TypeError(f"filter is a {type(condition).__name__}, expected a pyarrow.compute.Expression")
        chosen = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
        if chosen is not None and (not chosen or len(set(chosen)) != len(chosen)):
            raise ValueError(f"{view}: columns {list(chosen)}, expected some, each once")
        filters = {name: rest.pop(name) for name in (*SELECTORS, "sequence") if name in rest}
        return cls(view, chosen, condition, filters, rest)

    def narrowed(self, *, columns: Iterable[str] | None, condition: pc.Expression | None) -> Question:
        """Return the same question with a further condition, and fewer columns where some are named."""
        both = [each for each in (self.condition, condition) if each is not None]
        joined = both[0] & both[1] if len(both) == 2 else both[0] if both else None
        return replace(self, columns=self.columns if columns is None else tuple(columns), condition=joined)

    def listed(self, snapshot: Snapshot) -> View:
        """Return the view of all tensors that the filters admit, with all columns that it has, from the index alone.

        Parameters
        ----------
        snapshot
            An open snapshot.

        Raises
        ------
        ValueError, UnsupportedError
            As :func:`~hurray_arrow.views.open_view`.
        """
        selectors = {name: value for name, value in self.filters.items() if name != "sequence"}
        return make_view(self.view, Selection.of(snapshot, **selectors), **self.options)

    def schema_of(self, full_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the answers.

        Parameters
        ----------
        full_schema
            All columns of the view, on demand or not.

        Raises
        ------
        ValueError
            There is no such column.
        """
        all_fields = {each.name: each for each in [URL_FIELD, *full_schema]}
        usual = [name for name in all_fields if name not in VIEWS[self.view].ON_DEMAND]
        chosen = usual if self.columns is None else self.columns
        unknown = [name for name in chosen if name not in all_fields]
        if unknown:
            raise ValueError(f"{self.view}: columns {unknown}, expected some of {list(all_fields)}")
        return pa.schema([all_fields[name] for name in chosen])

    @property
    def is_counted_by_index(self) -> bool:
        """Whether the index says how many rows there are: not for tokens, and not behind a condition on rows."""
        return self.view != "tokens" and self.condition is None and self.filters.get("sequence") is None

    def takes_values(self, schema: pa.Schema) -> bool:
        """Say whether pages are read for an answer of these columns."""
        if self.options.get("values") is None:
            return False
        said = "" if self.condition is None else str(self.condition)
        return not VALUED.isdisjoint(schema.names) or any(name in said for name in VALUED)

    def batches(
        self, snapshot: Snapshot, url: str, tensors: Collection[int], page_range: tuple[int, int] | None
    ) -> Iterator[pa.RecordBatch]:
        """Answer from some tensors of a snapshot.

        Parameters
        ----------
        snapshot
            An open snapshot.
        url
            What column ``url`` says.
        tensors
            ``tensor_index`` of each; the filters and the condition hold beside.
        page_range
            Only these pages of them, half-open, and the tokens in those; ``None`` for all.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            Each of some MiB; none without rows.
        """
        selection = Selection.of(snapshot, every=False, tensors=tensors, **self.filters)
        view = make_view(self.view, selection, **self.options).within(page_range).with_all_columns()
        schema = self.schema_of(view.full_schema)
        if self.condition is None:
            needed = [name for name in schema.names if name != URL_FIELD.name] or view.columns[:1]
            for batch in view.projected(needed).batches():
                yield _of(schema, batch, url)
            return
        # pyarrow.dataset takes a while to be imported.
        from hurray_arrow.views.dataset import admitted_sequences, needed_columns

        view = admitted_sequences(view, self.condition, url=url)
        view = view.projected(needed_columns(view, schema.names, self.condition))
        wider = pa.schema([URL_FIELD, *view.schema])
        for batch in view.batches():
            table = pa.Table.from_batches([_of(wider, batch, url)]).filter(self.condition)
            if table.num_rows:
                yield from table.select(schema.names).combine_chunks().to_batches()


def _of(schema: pa.Schema, batch: pa.RecordBatch, url: str) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(url, each.type), batch.num_rows) if each.name == URL_FIELD.name else batch[each.name]
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
