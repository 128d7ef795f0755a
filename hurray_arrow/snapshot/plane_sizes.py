"""How many bytes the pages of an archive take, by byte plane, from the headers of its rows: no page is read.

Spec: snapshot format, section 5, "archive"; Arrow columnar format, "RecordBatch message".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import BatchLayout, IpcLayoutError, batch_layout, encapsulated
from hurray_arrow.arrow.page_buffers import page_buffers
from hurray_arrow.arrow.rows import refuse
from hurray_arrow.errors import ProblemCode
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.index import IndexRow


@dataclass(frozen=True, slots=True)
class PlaneSizes:
    """What some rows of a tensor in an archive take.

    Parameters
    ----------
    stored_bytes
        Compressed bytes of each byte plane, byte 0 of the elements first; one number where pages are stored plain.
    num_pages
        Pages in the rows looked at.
    rows_read, num_rows
        Rows looked at, of the rows with pages.
    """

    stored_bytes: tuple[int, ...]
    num_pages: int
    rows_read: int
    num_rows: int


def plane_sizes(source: Source, schema: pa.Schema, places: Sequence[IndexRow], *, most_rows: int) -> PlaneSizes:
    """Read the sizes of the planes from the headers of a tensor's rows.

    Parameters
    ----------
    source, schema
        The file and its schema.
    places
        The tensor's rows.
    most_rows
        Rows looked at: the first, the last and others at equal distances, in one request each.

    Returns
    -------
    PlaneSizes
        A header is not hashed by itself; its buffers have to fill exactly the body that the index states.

    Raises
    ------
    SnapshotCorruptError
        ``arrow_invalid``: a header that is none, or states other sizes than the index.
    UnsupportedError
        As :func:`~hurray_arrow.arrow.page_buffers.page_buffers`.
    """
    rows = [place for place in places if place.num_pages]
    chosen = [rows[n] for n in np.unique(np.linspace(0, len(rows) - 1, most_rows).astype(int))] if rows else []
    headers = source.read_many([(place.offset, place.metadata_bytes) for place in chosen])
    columns = page_buffers(schema)
    sums = np.zeros(max(map(len, columns), default=0), np.int64)
    used = 0
    for place, header in zip(chosen, headers, strict=True):
        try:
            layout = batch_layout(encapsulated(memoryview(header)))
            sizes = _page_sizes(_filled(layout, place.body_bytes), columns)
        except IpcLayoutError as error:
            where = f"tensor {place.tensor_index}"
            raise refuse(ProblemCode.ARROW_INVALID, where, str(error), url=source.url) from error
        sums[: len(sizes)] += np.array(sizes, np.int64)
        used = max(used, len(sizes))
    return PlaneSizes(tuple(sums[:used].tolist()), sum(each.num_pages for each in chosen), len(chosen), len(rows))


def _filled(layout: BatchLayout, body_bytes: int) -> list[int]:
    """Return the buffers' lengths, once they lie one behind the other and fill the body."""
    end = 0
    for start, size in layout.buffers:
        if size < 0 or not end <= start <= -(-end // 64) * 64:
            raise IpcLayoutError(f"a buffer of {size} bytes at {start}, the one before ends at {end}")
        end = start + size
    if not end <= body_bytes <= -(-end // 64) * 64:
        raise IpcLayoutError(f"the buffers end at {end}, the index says {body_bytes}")
    return [size for _, size in layout.buffers]


def _page_sizes(sizes: Sequence[int], columns: Sequence[Sequence[int]]) -> list[int]:
    """Return the sizes of the one page column that holds something."""
    if any(number >= len(sizes) for column in columns for number in column):
        raise IpcLayoutError(f"{len(sizes)} buffers, fewer than the schema's columns take")
    found = [[sizes[number] for number in column] for column in columns]
    filled = [column for column in found if any(column)]
    if len(filled) > 1:
        raise IpcLayoutError("pages in several columns")
    return filled[0] if filled else []
