"""The views of a snapshot as data frames of pandas (extra ``pandas``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hurray_arrow.errors import MissingDependencyError
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.opening import open_view

if TYPE_CHECKING:
    import pandas as pd


def frame(snapshot: Snapshot, view: str = "tensors", **options: Any) -> pd.DataFrame:
    """Return a view as a data frame, all of it in memory.

    Parameters
    ----------
    snapshot, view, **options
        As of :func:`~hurray_arrow.views.open_view`; ``columns=`` and filters keep what is read small.

    Returns
    -------
    pandas.DataFrame
        Columns of Arrow's types, so that integers with nulls stay integers; ``values`` are numpy arrays of their
        shape, views of one block.

    Raises
    ------
    MissingDependencyError
        pandas is not installed.
    ValueError, KeyError, IndexError, UnsupportedError
        As :func:`~hurray_arrow.views.open_view`.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", extra="pandas") from error
    table = open_view(snapshot, view, **options).reader().read_all()
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if isinstance(column.type, pa.FixedShapeTensorType):
            shaped = [row for chunk in column.chunks for row in chunk.to_numpy_ndarray()]
            cells = pd.Series(shaped, dtype=object)
        else:
            cells = pd.Series(pd.arrays.ArrowExtensionArray(column))
        columns[name] = cells
    return pd.DataFrame(columns)
