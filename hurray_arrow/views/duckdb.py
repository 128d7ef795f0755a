"""The views of a snapshot as tables of DuckDB (extra ``duckdb``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hurray_arrow.errors import MissingDependencyError
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import VIEWS, open_for_queries

if TYPE_CHECKING:
    import duckdb


def connect(
    snapshot: Snapshot,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
    pages: Mapping[str, Any] | None = None,
    tokens: Mapping[str, Any] | None = None,
    **selectors: Any,
) -> duckdb.DuckDBPyConnection:
    """Return a connection that has the views as ``tensors``, ``sequences``, ``pages`` and ``tokens``.

    Nothing is loaded: each query reads the columns that it names, of the tensors and sequences that its conditions on
    the key columns and on ``sequence`` or ``sequence_id`` leave. Queries may be repeated.

    Parameters
    ----------
    snapshot
        An open snapshot; it stays open while the connection is used.
    connection
        Register with this one; ``None`` opens a new one in memory.
    pages, tokens
        Options of these views, such as ``pages={"values": "float32"}`` or
        ``tokens={"values": "stats", "per_head": True}``.
    **selectors
        As of :func:`~hurray_arrow.views.open_view`, for all views.

    Returns
    -------
    duckdb.DuckDBPyConnection
        The connection, which is the caller's to close.

    Raises
    ------
    MissingDependencyError
        DuckDB is not installed.
    ValueError, KeyError, IndexError, UnsupportedError
        As :func:`~hurray_arrow.views.open_view`.

    Examples
    --------
    >>> from hurray_arrow.views.duckdb import connect
    >>> with connect(snapshot) as connection:
    ...     connection.sql("select count(*) from tokens where kv_role = 'key'").fetchall()
    [(18,)]
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError("duckdb", extra="duckdb") from error
    from hurray_arrow.views.dataset import ViewDataset

    own: dict[str, Mapping[str, Any]] = {"pages": pages or {}, "tokens": tokens or {}}
    opened = {name: open_for_queries(snapshot, name, **selectors, **own.get(name, {})) for name in VIEWS}
    made = duckdb.connect() if connection is None else connection
    for name, view in opened.items():
        made.register(name, ViewDataset(view))
    return made
