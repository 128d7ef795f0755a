"""Write snapshots: tensors one by one into one Arrow IPC file that appears whole or not at all.

Spec: snapshot format, sections 2 to 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.convert import row_batch
from hurray_arrow.arrow.ipc_layout import HEAD_BYTES
from hurray_arrow.arrow.metadata import new_metadata, schema_metadata
from hurray_arrow.arrow.page_class import PLAIN
from hurray_arrow.arrow.schema import SchemaPlan, page_class_of, schema_xxh3
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, SnapshotError
from hurray_arrow.snapshot.checksums import checksum_piece_bytes, page_checksums
from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.groups import Groups, missing_members
from hurray_arrow.snapshot.index import Index, IndexRow, TensorKey
from hurray_arrow.snapshot.row_sink import RowPlace, RowSink
from hurray_arrow.spec import INDEX_TYPE_NAMES
from hurray_arrow.tensor import BlockPagedTensor

DEFAULT_PAGE_ALIGN_BYTES = 4096

_IPC_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True, use_threads=False)


def write_snapshot(
    path: PathLike,
    tensors: Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Callback | None = None,
    page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
    checksums: bool = True,
    partial: bool = False,
    mode: int = 0o600,
) -> None:
    """Write tensors to one snapshot file, profile ``share``.

    Parameters
    ----------
    path
        The file; it appears under this name when it is complete, and not at all when anything fails.
    tensors
        The tensors in snapshot order. Their pages are written from where they lie and are not copied in Python.
    metadata
        What the cache belongs to: ``model``, ``engine``, ``groups``, ``topology``, ``set``, ``adapter``, ``tenant``,
        ``user``.
    overwrite
        Replace an existing file. Those who have it open keep the old one.
    progress
        Told of the bytes of pages written.
    page_align_bytes
        Pages start at a multiple of this in the file: a power of two, 64 to 2 MiB.
    checksums
        Store xxh3-64 of every page. Without them damage to page values cannot be found.
    partial
        Allow that a layer or companion listed in ``metadata["groups"]`` is missing; the snapshot records it.
    mode
        Permission bits. Keys and values can be turned back into the prompt: think before widening them.

    Raises
    ------
    FileExistsError
        The file exists and ``overwrite`` is False.
    InvariantError
        A tensor breaks the specification, or ``tensor_key_duplicate``, ``kv_group_mismatch``.
    SnapshotError
        ``companion_missing`` without ``partial``, or not all bytes arrived.
    ValueError
        The metadata is not the format's.

    Notes
    -----
    Spec: snapshot format, sections 2 to 5.
    """
    tensors = list(tensors)
    callback = progress or NoOpCallback()
    callback.set_size(sum(tensor.buffers[0].nbytes for tensor in tensors))
    with (
        SnapshotWriter(
            path,
            plan=SchemaPlan.of(tensors),
            metadata=metadata,
            overwrite=overwrite,
            progress=callback,
            page_align_bytes=page_align_bytes,
            checksums=checksums,
            partial=partial,
            mode=mode,
        ) as writer,
        ThreadPoolExecutor(1, "hurray-arrow-checksums") as pool,
    ):
        # The next tensor is hashed while this one goes to the disk: both release the GIL.
        ahead = [pool.submit(writer.checksums_of, tensor) for tensor in tensors[:1]]
        for number, tensor in enumerate(tensors):
            ready = ahead.pop().result()
            ahead += [pool.submit(writer.checksums_of, following) for following in tensors[number + 1 : number + 2]]
            writer.write(tensor, page_checksums=ready)


class SnapshotWriter:
    """Write tensors one by one, as an engine produces its layers.

    Parameters
    ----------
    path
        The file; see :func:`write_snapshot`.
    plan
        What the schema decides before the first row: ``SchemaPlan.of(descriptors)``. A tensor that does not fit it is
        refused before anything of it is written.
    metadata, overwrite, progress, page_align_bytes, checksums, partial, mode
        As in :func:`write_snapshot`.

    Notes
    -----
    A context manager: leaving it publishes the snapshot, leaving it by an exception discards it. A tensor that is
    refused leaves what is already written whole; a failed write does not. A writer belongs to one thread.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        plan: SchemaPlan,
        metadata: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        progress: Callback | None = None,
        page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
        checksums: bool = True,
        partial: bool = False,
        mode: int = 0o600,
    ) -> None:
        self._metadata = new_metadata(metadata, profile="share", page_align_bytes=page_align_bytes, partial=partial)
        self._plan = plan
        self._schema = plan.arrow_schema(schema_metadata(self._metadata))
        self._align = page_align_bytes
        self._checksums = checksums
        self._groups = Groups()
        self._rows: list[IndexRow] = []
        self._keys: set[TensorKey] = set()
        self._broken = False
        self._file = AtomicFile(path, overwrite=overwrite, mode=mode)
        self._sink = RowSink(self._file, progress)
        self._ipc = self._new_ipc(self._sink)

    @property
    def rows(self) -> tuple[IndexRow, ...]:
        """The index rows of what is written so far."""
        return tuple(self._rows)

    def checksums_of(self, tensor: BlockPagedTensor) -> npt.NDArray[np.uint64] | None:
        """Return the page checksums that :meth:`write` would compute: uint64 ``[num_pages]``, or ``None`` when off."""
        if not self._checksums:
            return None
        return page_checksums(tensor.buffers[0], checksum_piece_bytes(page_class_of(tensor.descriptor)))

    def write(self, tensor: BlockPagedTensor, *, page_checksums: npt.NDArray[np.uint64] | None = None) -> None:
        """Append one tensor.

        Parameters
        ----------
        tensor
            The tensor; its buffers are borrowed until the call returns.
        page_checksums
            What :meth:`checksums_of` gave for it, when it was computed ahead.

        Raises
        ------
        InvariantError
            The tensor breaks the specification; ``tensor_key_duplicate``; ``kv_group_mismatch``: its kv_group has other
            tables or sequences.
        UnsupportedError
            Its page class or table width was not declared.
        OSError
            The disk did not take it; the snapshot cannot be finished.
        """
        self._check_open()
        tensor.check()
        self._plan.column_of(page_class_of(tensor.descriptor))
        kv_group, is_first = self._groups.place(tensor)
        key = (kv_group, tensor.layer_index, tensor.layer_name, tensor.kv_role, tensor.component)
        if key in self._keys:
            raise InvariantError(
                Problem(ProblemCode.TENSOR_KEY_DUPLICATE, f"tensor {len(self._rows)}", f"{key} is already written")
            )
        batch = row_batch(
            tensor,
            plan=self._plan,
            schema=self._schema,
            tensor_index=len(self._rows),
            kv_group=kv_group,
            with_tables=is_first,
            page_checksums=self.checksums_of(tensor) if page_checksums is None else page_checksums,
        )
        self._broken = True
        place = self._write_row(batch, tensor)
        self._broken = False
        self._groups.keep(kv_group, tensor)
        self._keys.add(key)
        self._rows.append(_index_row(tensor, len(self._rows), kv_group, place))

    def close(self) -> None:
        """Write the end batch and the footer, and publish the snapshot.

        Raises
        ------
        SnapshotError
            ``companion_missing``: a listed layer or companion is missing and the snapshot is not partial; not all bytes
            arrived; or an earlier write failed. Nothing is published.
        FileExistsError
            Somebody took the name in the meantime and ``overwrite`` is False.
        """
        self._check_open()
        try:
            missing = [] if self._metadata.get("partial") else missing_members(self._metadata, self._rows)
            if missing:
                text = "; ".join(str(problem) for problem in missing)
                raise SnapshotError(f"{text}; pass partial=True to publish it all the same", url=str(self._file.path))
            index = Index(tuple(self._rows), schema_xxh3(self._schema))
            end = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self._schema], schema=self._schema)
            self._ipc.write_batch(end, custom_metadata=index.custom_metadata())
            self._ipc.close()
            self._sink.closed = True
            self._file.publish()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Throw away what was written; an existing snapshot under the name stays. Does nothing after :meth:`close`."""
        if not self._sink.closed:
            # The IPC writer is never closed here: it would write a valid footer under an unfinished file.
            self._sink.closed = True
            self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._sink.closed:
            self.close()
        else:
            self.discard()

    def _check_open(self) -> None:
        if self._sink.closed:
            raise SnapshotError("the writer is closed", url=str(self._file.path))
        if self._broken:
            raise SnapshotError("an earlier write failed, the snapshot cannot be finished", url=str(self._file.path))

    def _write_row(self, batch: pa.RecordBatch, tensor: BlockPagedTensor) -> RowPlace:
        start = HEAD_BYTES + self._schema.serialize().size
        offset = self._file.position if self._rows else start
        pool = pa.py_buffer(tensor.buffers[0])
        # A row written into nothing says where its pages would lie; the header grows by exactly what the pad does.
        trial = RowSink(None)
        measured = trial.write_row(self._new_ipc(trial), batch, offset=start, pool=pool, pad="")
        pad = -(offset + measured.pages_offset - start) % self._align if measured.pages_bytes else 0
        place = self._sink.write_row(self._ipc, batch, offset=offset, pool=pool, pad="0" * pad)
        if place.pages_bytes != pool.size or (place.pages_bytes and place.pages_offset % self._align):
            found, expected = f"{place.pages_bytes} page bytes at {place.pages_offset}", f"{pool.size} at a multiple"
            message = f"{found}, expected {expected} of {self._align}"
            raise SnapshotError(message, url=str(self._file.path))
        return place

    def _new_ipc(self, sink: RowSink) -> pa.ipc.RecordBatchFileWriter:
        return pa.ipc.new_file(pa.PythonFile(sink, mode="w"), self._schema, options=_IPC_OPTIONS)


def _index_row(tensor: BlockPagedTensor, tensor_index: int, kv_group: int, place: RowPlace) -> IndexRow:
    descriptor = tensor.descriptor
    return IndexRow(
        tensor_index=tensor_index,
        layer_index=tensor.layer_index,
        layer_name=tensor.layer_name,
        kv_role=tensor.kv_role,
        component=tensor.component,
        kv_group=kv_group,
        page_offset=0,
        num_pages=descriptor.num_pages,
        num_seqs=descriptor.num_seqs,
        element_type=descriptor.element_type.name,
        page_shape=descriptor.page_shape,
        encoding=PLAIN,
        index_type=INDEX_TYPE_NAMES[descriptor.index_type],
        **asdict(place),
    )
