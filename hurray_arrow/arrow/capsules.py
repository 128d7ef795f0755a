"""Tensors through the Arrow PyCapsule interface: to every library that imports it, from every one that exports it.

Spec: Arrow PyCapsule Interface; snapshot format, sections 1 and 2.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hurray_arrow.arrow.convert import tensors_from_batches, to_record_batch
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.tensor import BlockPagedTensor


def schema_capsule(tensor: BlockPagedTensor) -> Any:
    """Return the capsule of the schema of a tensor's row."""
    return SchemaPlan.of([tensor]).arrow_schema().__arrow_c_schema__()


def array_capsules(tensor: BlockPagedTensor, requested_schema: Any = None) -> tuple[Any, Any]:
    """Return the capsules of a tensor's row, whose pages are the tensor's own memory; see :func:`to_record_batch`."""
    schema, array = to_record_batch(tensor).__arrow_c_array__(requested_schema)
    return schema, array


def from_arrow(source: Any, *, copy: bool | None = None) -> list[BlockPagedTensor]:
    """Return the tensors in anything that exports Arrow rows of a snapshot.

    Parameters
    ----------
    source
        A table, data frame, stream, batch or query result of any library with ``__arrow_c_stream__`` or
        ``__arrow_c_array__``: pyarrow, Polars, arro3, nanoarrow, DuckDB, …
    copy
        As of :func:`from_record_batch`.

    Returns
    -------
    list of BlockPagedTensor
        In snapshot order. Their buffers are views of the memory that the library exported, and keep it alive; the
        library gets it back when the last of them goes.

    Raises
    ------
    TypeError
        ``source`` exports nothing.
    SnapshotCorruptError, CopyRequiredError
        As :func:`from_record_batch`.
    """
    if hasattr(source, "__arrow_c_stream__"):
        return tensors_from_batches(list(pa.RecordBatchReader.from_stream(source)), copy=copy)
    if hasattr(source, "__arrow_c_array__"):
        return tensors_from_batches([pa.record_batch(source)], copy=copy)
    raise TypeError(f"{type(source).__name__} has neither __arrow_c_stream__ nor __arrow_c_array__")
