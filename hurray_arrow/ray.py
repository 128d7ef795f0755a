"""Many snapshots as a dataset of Ray Data, read by the machines of a cluster (extra ``ray``).

The driver reads the indexes, and nothing else. Tasks carry names, options, pages and the version that was listed.

Spec: house rules, "Threads, processes, files".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import fsspec
import pyarrow as pa

from hurray_arrow.errors import MissingDependencyError
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.views.pieces import Piece
from hurray_arrow.views.plan import Errors, Plan, Skipped, plan_snapshots, read_pieces
from hurray_arrow.views.question import Question

try:
    import ray
    from ray.data import Dataset, Datasource, ReadTask
    from ray.data.block import BlockMetadata
except ImportError as _error:
    raise MissingDependencyError("ray", extra="ray") from _error

if TYPE_CHECKING:
    import pyarrow.compute as pc

#: A column that every view has and that costs nothing, for questions that ask for none but how many rows there are.
_COUNTED = "kv_group"
#: What Ray itself calls the column that stands for none, and hides.
_NO_COLUMN = "__bsp_stub"
#: Under this name a dataset, and what is made of it, says in its context which reading it comes from.
_READING = "hurray_arrow.reading"


def read_snapshots(
    urls: PathLike | Iterable[PathLike],
    view: str = "tensors",
    *,
    columns: Iterable[str] | None = None,
    filter: pc.Expression | None = None,  # noqa: A002  pyarrow's and Ray's name for it
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    errors: Errors = "raise",
    ray_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """Return a view of many snapshots as a dataset, which reads when it is consumed.

    Columns that later steps do not use are not read, and neither is what ``Dataset.filter(expr=…)`` leaves out: Ray's
    optimizer pushes both down.

    Parameters
    ----------
    urls, view, columns, filter, storage_options, filesystem, errors, **options
        As of :func:`hurray_arrow.views.read_snapshots`. Options and filesystem go to the workers, keys included. Local
        paths have to be there on every node.
    ray_options
        What ``ray.data.read_datasource`` takes beside: ``concurrency``, ``override_num_blocks``, ``memory``, …

    Returns
    -------
    ray.data.Dataset
        Column ``url`` says which snapshot a row is of. With ``errors="skip"``, :func:`skipped` lists what was left out.

    Raises
    ------
    MissingDependencyError
        Ray is not installed: raised when this module is imported.
    FileNotFoundError, PermissionError, SnapshotError, UnsupportedError, ValueError
        As of :func:`hurray_arrow.views.read_snapshots`, at once for what the indexes say. What a worker finds later
        comes out of Ray as a ``ray.exceptions.RayTaskError`` that is of the same class too.
    """
    source = SnapshotDatasource(
        urls,
        view,
        columns=columns,
        filter=filter,
        storage_options=storage_options,
        filesystem=filesystem,
        errors=errors,
        **options,
    )
    dataset = ray.data.read_datasource(source, **(ray_options or {}))
    dataset.context.set_config(_READING, source.reading)
    return dataset


def skipped(dataset: Dataset | SnapshotDatasource) -> list[Skipped]:
    """Return the snapshots that were left out, so far, of a dataset and of all that reads the same source.

    Parameters
    ----------
    dataset
        What :func:`read_snapshots` returned with ``errors="skip"``, a dataset that was made of it, or the source
        itself. What workers find is listed when the dataset has been consumed.

    Returns
    -------
    list of Skipped
        URL, kind of the error and its code of each.

    Raises
    ------
    ValueError
        The dataset was read otherwise.
    """
    own = isinstance(dataset, SnapshotDatasource)
    reading = dataset.reading if own else dataset.context.get_config(_READING)
    if reading is None:
        raise ValueError("the dataset does not come from read_snapshots(…, errors='skip')")
    found: list[Skipped] = ray.get(_ledger().of.remote(reading))
    return found


class SnapshotDatasource(Datasource):
    """What ``ray.data.read_datasource`` reads snapshots from; see :func:`read_snapshots` for the parameters.

    Attributes
    ----------
    reading
        What :func:`skipped` knows this reading by; ``None`` with ``errors="raise"``.
    """

    def __init__(
        self,
        urls: PathLike | Iterable[PathLike],
        view: str = "tensors",
        *,
        columns: Iterable[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002  as of read_snapshots
        storage_options: Mapping[str, Any] | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
        errors: Errors = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        self._question = Question.of(view, columns=columns, condition=filter, **options)
        self._plan = plan_snapshots(
            urls, self._question, storage_options=storage_options, filesystem=filesystem, errors=errors
        )
        self._projection_map: dict[str, str] | None = None
        self.reading: str | None = None
        self._ledger: Any = None
        if errors == "skip":
            self.reading, self._ledger = secrets.token_hex(8), _ledger()
            ray.get(self._ledger.add.remote(self.reading, self._plan.skipped))

    def get_name(self) -> str:
        """Return what Ray calls the read tasks."""
        return "Snapshots"

    def supports_projection_pushdown(self) -> bool:
        """Say yes: Ray tells which columns later steps use."""
        return True

    def supports_predicate_pushdown(self) -> bool:
        """Say yes: Ray hands conditions down."""
        return True

    def apply_projection(self, projection_map: dict[str, str] | None) -> Self:
        """Return the same source with these columns."""
        return self._replanned(super().apply_projection(projection_map))

    def apply_predicate(self, predicate_expr: Any) -> Self:
        """Return the same source with a further condition."""
        return self._replanned(super().apply_predicate(predicate_expr))

    def estimate_inmemory_data_size(self) -> int:
        """Estimate what all rows take in memory, from the indexes."""
        return sum(piece.size_bytes for piece in self._plan.pieces)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the tasks, about as many as asked for; nothing is read for it.

        Parameters
        ----------
        parallelism
            How many tasks are wanted: fewer come where they would be smaller than some ten MiB.
        per_task_row_limit
            Rows that one task gives at most.
        data_context
            Not needed.
        """
        del data_context
        return [self._task(pieces, per_task_row_limit) for pieces in self._plan.tasks(parallelism) or [[]]]

    def _replanned(self, source: Self) -> Self:
        names = source.get_projection_map()
        expression = source.get_current_predicate()
        source._plan = self._plan.asking(
            self._question.narrowed(
                columns=None if names is None else tuple(names) or (_COUNTED,),
                condition=None if expression is None else expression.to_pyarrow(),
            )
        )
        return source

    def _task(self, pieces: Sequence[Piece], row_limit: int | None) -> ReadTask:
        plan: Plan = self._plan
        skip = None if self.reading is None else partial(_report, self._ledger, self.reading)
        no_columns = self._projection_map == {}
        schema = pa.schema([(_NO_COLUMN, pa.null())]) if no_columns else plan.schema
        exact = plan.question.is_counted_by_index and skip is None
        metadata = BlockMetadata(
            num_rows=sum(piece.num_rows for piece in pieces) if exact else None,
            # Ray takes 0 for no rows at all.
            size_bytes=sum(max(1, piece.size_bytes) for piece in pieces),
            input_files=tuple(dict.fromkeys(piece.pin.place.url for piece in pieces)),
            exec_stats=None,
        )
        read = partial(_read, plan.question, tuple(pieces), schema, skip)
        return ReadTask(read, metadata, schema=schema, per_task_row_limit=row_limit)


def _read(
    question: Question, pieces: Sequence[Piece], schema: pa.Schema, skip: Callable[[Skipped], None] | None
) -> Iterator[pa.Table]:
    """Do what one task does, on a worker."""
    some = False
    for batch in read_pieces(question, pieces, skip=skip):
        some = True
        if schema.names == [_NO_COLUMN]:
            yield pa.table([pa.nulls(batch.num_rows)], schema=schema)
        else:
            yield pa.Table.from_batches([batch])
    if not some:
        yield schema.empty_table()


def _report(ledger: Any, reading: str, found: Skipped) -> None:
    # Waited for: when the task has ended, the list is complete.
    ray.get(ledger.add.remote(reading, [found]))


class _Ledger:
    """The actor that keeps what was left out: one for all readings of a driver, since each is a process."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Skipped]] = {}

    def add(self, reading: str, found: Iterable[Skipped]) -> None:
        own = self._found.setdefault(reading, {})
        for each in found:
            # Ray may do a task twice, and several tasks may find out the same.
            own.setdefault(each.url, each)

    def of(self, reading: str) -> list[Skipped]:
        return list(self._found.get(reading, {}).values())


#: By node and job: after ray.shutdown() the old one is gone.
_LEDGERS: dict[tuple[str, str], Any] = {}


def _ledger() -> Any:
    if not ray.is_initialized():
        ray.init()
    context = ray.get_runtime_context()
    key = (context.get_node_id(), context.get_job_id())
    if key not in _LEDGERS:
        _LEDGERS.clear()
        _LEDGERS[key] = ray.remote(num_cpus=0)(_Ledger).remote()
    return _LEDGERS[key]
