"""Snapshots through pipes and sockets: Arrow's IPC stream, tensor by tensor, closed by the same seal as a file.

A stream has the rows of the share profile, pages as they are, and no places. What protects it comes in two parts: page
checksums travel with their row and are compared before a tensor is given out; the hashes of everything else come last,
in the end batch, which also proves that nothing is missing. So a tensor is what was sent once the stream has ended.

Spec: snapshot format, section 5, "streams".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.ipc_file import empty_batch, encoded_batch, write_batch
from hurray_arrow.arrow.ipc_layout import END_MARKER
from hurray_arrow.arrow.metadata import MIN_PAGE_ALIGN_BYTES, new_metadata, schema_metadata
from hurray_arrow.arrow.page_class import PLAIN
from hurray_arrow.arrow.row_batches import row_batch
from hurray_arrow.arrow.schema import SchemaPlan, schema_xxh3
from hurray_arrow.arrow.small_columns import small_xxh3
from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.checksums import tensor_checksums
from hurray_arrow.snapshot.groups import missing_members
from hurray_arrow.snapshot.index import STREAM, Index, IndexRow
from hurray_arrow.snapshot.pipes import PipeSink
from hurray_arrow.snapshot.placed import PlacedTensor, Placing
from hurray_arrow.snapshot.row_sink import RowSink
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors


def write_stream(
    sink: Any,
    tensors: Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    plan: SchemaPlan | None = None,
    progress: Callback | None = None,
    checksums: bool = True,
    partial: bool = False,
) -> None:
    """Write tensors to a pipe, a socket or any other binary file object.

    Parameters
    ----------
    sink
        Where the bytes go: an object with ``write``, or a socket. It is flushed and stays open; it need not seek.
    tensors
        The tensors in snapshot order. Pages are written from where they lie, each tensor hashed before its first byte
        goes out.
    metadata
        What the cache belongs to, as in :func:`~hurray_arrow.write_snapshot`.
    plan
        What the schema decides before the first row, ``SchemaPlan.of(descriptors)``: with it ``tensors`` is taken one
        by one, so that a generator need not have more than one in memory. Without it all are listed first.
    progress
        Told of the bytes of pages written.
    checksums
        Send xxh3-64 of every page. Without them damage to page values cannot be found.
    partial
        Allow that a layer or companion listed in ``metadata["groups"]`` is missing; the metadata records it.

    Raises
    ------
    InvariantError
        A tensor breaks the specification, or ``tensor_key_duplicate``, ``kv_group_mismatch``.
    UnsupportedError
        A page class or table width is not in ``plan``.
    SnapshotError
        ``companion_missing`` without ``partial``; the sink does not take all bytes.
    ValueError
        The metadata is not the format's.

    Notes
    -----
    After an error the stream has no end batch, and its reader says that it is incomplete.

    Examples
    --------
    >>> import io
    >>> pipe = io.BytesIO()
    >>> ha.write_stream(pipe, [keys, values])
    >>> pipe.seek(0)
    0
    >>> with ha.read_stream(pipe) as tensors:
    ...     [tensor.kv_role for tensor in tensors]
    ['key', 'value']

    Spec: snapshot format, section 5, "streams".
    """
    callback = progress or NoOpCallback()
    if plan is None:
        tensors = listed_tensors(tensors)
        plan = SchemaPlan.of(tensors)
        callback.set_size(sum(tensor.buffers[0].nbytes for tensor in tensors))
    if plan.encoding != PLAIN:
        raise ValueError(f"encoding {plan.encoding!r}: streams carry pages as they are")
    # A stream aligns nothing; its reader promises the least that a file may have.
    document = new_metadata(metadata, profile="share", page_align_bytes=MIN_PAGE_ALIGN_BYTES, partial=partial)
    output = PipeSink(sink)
    rows = _Rows(output, plan=plan, schema=plan.arrow_schema(schema_metadata(document)), progress=callback)
    for tensor in tensors:
        rows.write(tensor, checksums=checksums)
    missing = [] if partial else missing_members(document, rows.rows)
    if missing:
        text = "; ".join(str(problem) for problem in missing)
        raise SnapshotError(f"{text}; pass partial=True to send it all the same")
    rows.finish()
    output.flush()


class _Rows:
    """The messages of one stream; the first goes out with the first row, so that a refusal before it sends nothing."""

    def __init__(self, output: PipeSink, *, plan: SchemaPlan, schema: pa.Schema, progress: Callback) -> None:
        self.rows: list[IndexRow] = []
        self._output = output
        self._plan, self._schema = plan, schema
        self._schema_message = schema.serialize()
        self._placing = Placing(plan)
        self._progress = progress

    def write(self, tensor: BlockPagedTensor, *, checksums: bool) -> None:
        placed = self._placing.place(tensor)
        batch = row_batch(
            tensor,
            plan=self._plan,
            schema=self._schema,
            tensor_index=placed.tensor_index,
            kv_group=placed.kv_group,
            with_tables=placed.with_tables,
            page_checksums=tensor_checksums(tensor) if checksums else None,
        )
        row = placed.index_row(PLAIN, small_xxh3=small_xxh3(batch))
        self._begin()
        self._send(placed, batch)
        self._placing.keep(placed)
        self.rows.append(row)

    def finish(self) -> None:
        self._begin()
        index = Index(tuple(self.rows), schema_xxh3(self._schema), STREAM)
        self._output.write(encoded_batch(empty_batch(self._schema), custom_metadata=index.custom_metadata()))
        self._output.write(END_MARKER)

    def _begin(self) -> None:
        if not self._output.position:
            self._output.write(self._schema_message)

    def _send(self, placed: PlacedTensor, batch: pa.RecordBatch) -> None:
        sink = RowSink(
            offset=self._output.position,
            skip_bytes=self._schema_message.size,
            pool=pa.py_buffer(placed.tensor.buffers[0]),
        )
        write_batch(pa.PythonFile(sink, mode="w"), batch)
        for _ in sink.send(self._output, self._progress):
            pass
        self._output.drain()
