"""A snapshot's rows as a stream for other Arrow libraries: one row per tensor, its pages plain.

Spec: Arrow PyCapsule Interface; snapshot format, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.metadata import schema_metadata
from hurray_arrow.arrow.row_batches import row_batch
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.snapshot.checked_tensors import RowProvider
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.tensor import BlockPagedTensor


def row_reader(
    rows: RowProvider,
    entries: Sequence[Entry],
    *,
    tensor_of: Callable[[Entry], tuple[BlockPagedTensor, npt.NDArray[np.uint64] | None]],
    metadata: Mapping[str, Any],
) -> pa.RecordBatchReader:
    """Return a reader of the rows of a snapshot.

    Parameters
    ----------
    rows, entries
        The snapshot's rows, for their descriptors, and what it holds.
    tensor_of
        Reads and checks a tensor and gives its page checksums.
    metadata
        The snapshot's.

    Returns
    -------
    pyarrow.RecordBatchReader
        A row is read and checked when it is asked for; damage is then an Arrow error with the same text. Pages of the
        share profile are views of the mapping, those of an archive come decoded, in new memory.

    Raises
    ------
    SnapshotCorruptError
        A descriptor cannot be read.
    """
    descriptors = [BlockPagedDescriptor.decode(rows.tables_row_of(e.tensor_index).descriptor or b"") for e in entries]
    plan = SchemaPlan.of(descriptors)
    schema = plan.arrow_schema(schema_metadata(metadata) if metadata else None)

    def batches() -> Iterator[pa.RecordBatch]:
        seen: set[int] = set()
        for entry in entries:
            tensor, page_checksums = tensor_of(entry)
            yield row_batch(
                tensor,
                plan=plan,
                schema=schema,
                tensor_index=entry.tensor_index,
                kv_group=entry.kv_group,
                with_tables=entry.kv_group not in seen,
                page_checksums=page_checksums,
            )
            seen.add(entry.kv_group)

    return pa.RecordBatchReader.from_batches(schema, batches())
