"""The views of a snapshot as tables of DataFusion (extra ``datafusion``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hurray_arrow.errors import MissingDependencyError
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import VIEWS, open_for_queries

if TYPE_CHECKING:
    import datafusion


def connect(
    snapshot: Snapshot,
    *,
    context: datafusion.SessionContext | None = None,
    pages: Mapping[str, Any] | None = None,
    tokens: Mapping[str, Any] | None = None,
    **selectors: Any,
) -> datafusion.SessionContext:
    """Return a context that has the views as ``tensors``, ``sequences``, ``pages`` and ``tokens``.

    As :func:`hurray_arrow.views.duckdb.connect`, with a session context for a connection.

    Parameters
    ----------
    snapshot
        An open snapshot; it stays open while the context is used.
    context
        Register with this one; ``None`` makes a new one.
    pages, tokens, **selectors
        As of :func:`hurray_arrow.views.duckdb.connect`.

    Returns
    -------
    datafusion.SessionContext
        The context.

    Raises
    ------
    MissingDependencyError
        DataFusion is not installed.
    ValueError, KeyError, IndexError, UnsupportedError
        As :func:`~hurray_arrow.views.open_view`.
    """
    try:
        import datafusion
    except ImportError as error:
        raise MissingDependencyError("datafusion", extra="datafusion") from error
    from hurray_arrow.views.dataset import ViewDataset

    own: dict[str, Mapping[str, Any]] = {"pages": pages or {}, "tokens": tokens or {}}
    opened = {name: open_for_queries(snapshot, name, **selectors, **own.get(name, {})) for name in VIEWS}
    made = datafusion.SessionContext() if context is None else context
    for name, view in opened.items():
        made.register_dataset(name, ViewDataset(view))
    return made
