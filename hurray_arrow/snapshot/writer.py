"""Write snapshots: tensors one by one into one Arrow IPC file that appears whole or not at all.

Spec: snapshot format, sections 2 to 5.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import fsspec
import numpy as np
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.ipc_file import block_of, empty_batch, encoded_batch, file_head, file_tail
from hurray_arrow.arrow.metadata import PROFILES, new_metadata, schema_metadata
from hurray_arrow.arrow.page_class import BYTE_PLANES, PLAIN
from hurray_arrow.arrow.schema import SchemaPlan, schema_xxh3
from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.snapshot.groups import missing_members
from hurray_arrow.snapshot.index import Index
from hurray_arrow.snapshot.outputs import open_output
from hurray_arrow.snapshot.placed import Placing
from hurray_arrow.snapshot.row_sink import SnapshotOutput
from hurray_arrow.snapshot.share_rows import ShareRows
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors

if TYPE_CHECKING:
    from hurray_arrow.snapshot.archive_rows import ArchiveRows

DEFAULT_PAGE_ALIGN_BYTES = 4096


def write_snapshot(
    path: PathLike | SnapshotOutput,
    tensors: Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    overwrite: bool = False,
    progress: Callback | None = None,
    profile: str = "share",
    encoding: str | None = None,
    page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
    checksums: bool = True,
    partial: bool = False,
    sanitize: bool = False,
    mode: int = 0o600,
) -> None:
    """Write tensors to one snapshot file.

    Parameters
    ----------
    path
        The file, or any URL of fsspec's (``s3://…``, ``gs://…``, ``abfs://…``, ``memory://…``); it appears under this
        name when it is complete, and not at all when anything fails. Or an output that is no file, such as memory to
        share; ``overwrite`` and ``mode`` say nothing then.
    tensors
        The tensors in snapshot order. Their pages are written from where they lie and are not copied in Python.
    metadata
        What the cache belongs to: ``model``, ``engine``, ``groups``, ``topology``, ``set``, ``adapter``, ``tenant``,
        ``user``.
    storage_options
        What the filesystem of a URL is opened with, such as keys.
    filesystem
        A filesystem of fsspec's that is open already; ``path`` is one in it then.
    overwrite
        Replace an existing file. Those who have it open keep the old one; those who read an object in a store in ranges
        are told that it changed. Of several writers to one name the last to finish wins, whole; without ``overwrite``
        exactly one does, where the store itself can refuse to replace (local files, S3, Azure, Google).
    progress
        Told of the bytes of pages written, in the share profile by a thread of the writer's.
    profile
        ``"share"``: uncompressed, its pages aligned for mapping. ``"archive"``: small, for object stores.
    encoding
        How an archive stores pages: ``"byte_planes"`` (default), or ``"plain"`` for people whose other tools must see
        values.
    page_align_bytes
        Share profile: pages start at a multiple of this in the file, a power of two, 64 to 2 MiB.
    checksums
        Store xxh3-64 of every page. Without them damage to page values cannot be found.
    partial
        Allow that a layer or companion listed in ``metadata["groups"]`` is missing; the snapshot records it.
    sanitize
        Leave out the pages that no sequence names and zero the slots behind each sequence's last token, where other
        requests' tokens lie: for snapshots that cross a trust boundary. One tensor at a time is copied. See
        :func:`hurray_arrow.ops.sanitize`, also for what it refuses.
    mode
        Permission bits. Keys and values can be turned back into the prompt: think before widening them.

    Raises
    ------
    FileExistsError
        The file exists and ``overwrite`` is False.
    InvariantError
        A tensor breaks the specification, or ``tensor_key_duplicate``, ``kv_group_mismatch``.
    SnapshotError
        ``companion_missing`` without ``partial``, or not all bytes arrived, or the store failed three times.
    PermissionError
        The file system or store refuses.
    MissingDependencyError
        The package for the URL is not installed; the message names the extra of this one.
    ValueError
        The metadata is not the format's.

    Examples
    --------
    >>> ha.write_snapshot("small.arrow", [keys, values], profile="archive", metadata={"model": {"name": "toy"}})
    >>> ha.open_snapshot("small.arrow").read(kv_role="value").equals(values)
    True

    Spec: snapshot format, sections 2 to 5.
    """
    tensors = listed_tensors(tensors)
    callback = progress or NoOpCallback()
    callback.set_size(sum(referenced_bytes(tensor) if sanitize else tensor.buffers[0].nbytes for tensor in tensors))
    with SnapshotWriter(
        path,
        plan=SchemaPlan.of(tensors, encoding=profile_encoding(profile, encoding)),
        profile=profile,
        metadata=metadata,
        storage_options=storage_options,
        filesystem=filesystem,
        expected_bytes=sum(tensor.buffers[0].nbytes for tensor in tensors) if profile == "share" else 0,
        overwrite=overwrite,
        progress=callback,
        page_align_bytes=page_align_bytes,
        checksums=checksums,
        partial=partial,
        mode=mode,
    ) as writer:
        for tensor in tensors:
            if sanitize:
                from hurray_arrow import ops

                writer.write(ops.sanitize(tensor))
            else:
                writer.borrow(tensor)


def referenced_bytes(tensor: BlockPagedTensor) -> int:
    """Return the bytes of the pages that sequences name."""
    element, page_elems = tensor.element_type, tensor.descriptor.page_elems
    return element.size_bytes(len(np.unique(tensor.block_table)) * page_elems)


def _check_kinds(path: Any, plan: Any) -> None:
    if not isinstance(plan, SchemaPlan):
        raise TypeError(f"plan: {type(plan).__name__}, expected SchemaPlan.of(tensors)")
    if not isinstance(path, str | os.PathLike) and not hasattr(path, "publish"):
        kind = type(path).__name__
        raise TypeError(f"path: {kind}, expected a path or a URL; write_stream() writes into file objects")


def profile_encoding(profile: str, encoding: str | None) -> str:
    """Return how a profile stores pages: archives in byte planes unless the caller chooses, shared pages as they are.

    Raises
    ------
    ValueError
        A profile or encoding that does not exist, or byte planes in the share profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r}: expected one of {PROFILES}")
    if encoding is None:
        return BYTE_PLANES if profile == "archive" else PLAIN
    if encoding not in (PLAIN, BYTE_PLANES) or (profile == "share" and encoding != PLAIN):
        raise ValueError(f"encoding {encoding!r} in profile {profile!r}: plain, or for archives byte_planes")
    return encoding


class SnapshotWriter:
    """Write tensors one by one, as an engine produces its layers.

    Parameters
    ----------
    path
        The file; see :func:`write_snapshot`.
    plan
        What the schema decides before the first row: ``SchemaPlan.of(descriptors)``. A tensor that does not fit it is
        refused before anything of it is written.
    metadata, storage_options, filesystem, overwrite, progress, profile, page_align_bytes, checksums, partial, mode
        As in :func:`write_snapshot`.
    expected_bytes
        About how large the snapshot gets, 0 if nobody knows: a store's parts are sized by it.
    keep_unknown
        Take metadata keys that this version does not know, as copies of newer snapshots do, instead of refusing them.

    Notes
    -----
    A context manager: leaving it publishes the snapshot, leaving it by an exception discards it. A tensor that is
    refused leaves what is already written whole; a failed write does not. A writer belongs to one thread and to one
    process; others may write to the same name, see ``overwrite``.

    Examples
    --------
    >>> plan = ha.SchemaPlan.of([keys.descriptor, values.descriptor])
    >>> with ha.SnapshotWriter("layers.arrow", plan=plan) as writer:
    ...     for tensor in (keys, values):
    ...         writer.write(tensor)
    >>> len(ha.open_snapshot("layers.arrow").entries)
    2
    """

    #: Writes the rows of the share profile.
    SHARE_ROWS: type[ShareRows] = ShareRows

    def __init__(
        self,
        path: PathLike | SnapshotOutput,
        *,
        plan: SchemaPlan,
        metadata: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
        expected_bytes: int = 0,
        overwrite: bool = False,
        progress: Callback | None = None,
        profile: str = "share",
        page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
        checksums: bool = True,
        partial: bool = False,
        keep_unknown: bool = False,
        mode: int = 0o600,
    ) -> None:
        _check_kinds(path, plan)
        profile_encoding(profile, plan.encoding)
        self._metadata = new_metadata(
            metadata, profile=profile, page_align_bytes=page_align_bytes, partial=partial, keep_unknown=keep_unknown
        )
        self._placing = Placing(plan)
        self._schema = plan.arrow_schema(schema_metadata(self._metadata))
        self._state = _State.OPEN
        self._file: SnapshotOutput = (
            open_output(
                path,
                storage_options=storage_options,
                filesystem=filesystem,
                overwrite=overwrite,
                mode=mode,
                expected_bytes=expected_bytes,
            )
            if isinstance(path, str | os.PathLike)
            else path
        )
        try:
            self._file.write(file_head(self._schema))
            self._rows = self._row_writer(plan, checksums=checksums, progress=progress or NoOpCallback())
        except BaseException:
            self._file.discard()
            raise

    def _row_writer(self, plan: SchemaPlan, *, checksums: bool, progress: Callback) -> ShareRows | ArchiveRows:
        """Return what writes the rows of the profile, from where the file stands."""
        if self._metadata["profile"] == "archive":
            from hurray_arrow.snapshot.archive_rows import ArchiveRows

            return ArchiveRows(self._file, plan=plan, schema=self._schema, checksums=checksums, progress=progress)
        return self.SHARE_ROWS(
            self._file,
            plan=plan,
            schema=self._schema,
            page_align_bytes=self._metadata["page_align_bytes"],
            checksums=checksums,
            progress=progress,
        )

    def write(self, tensor: BlockPagedTensor) -> None:
        """Append one tensor.

        Parameters
        ----------
        tensor
            The tensor; its buffers are borrowed until the call returns.

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
        self.borrow(tensor)
        with self._writing():
            self._rows.flush()

    def borrow(self, tensor: BlockPagedTensor) -> None:
        """Append one tensor whose buffers stay as they are until :meth:`close`; as :meth:`write`, and faster.

        A thread writes it while the next one is checked, hashed and encoded. What the disk does not take is an error
        of a later call.
        """
        self._check_open()
        placed = self._placing.place(tensor)
        with self._writing():
            self._rows.append(placed)
        self._placing.keep(placed)

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
        try:
            self._check_open()
            self._rows.flush()
            rows = self._rows.rows
            self.check_complete()
            index = Index(tuple(rows), schema_xxh3(self._schema))
            end = encoded_batch(empty_batch(self._schema), custom_metadata=index.custom_metadata())
            end_block = block_of(self._file.position, memoryview(end)[:8], end.size)
            self._file.write(end)
            self._file.write(file_tail(self._schema, [*(row.block for row in rows), end_block]))
            self._file.publish()
            self._state = _State.CLOSED
        except BaseException:
            self.discard()
            raise
        finally:
            self._rows.close()

    def check_complete(self) -> None:
        """Refuse a snapshot that lacks what its metadata lists, among the tensors written so far.

        Raises
        ------
        SnapshotError
            ``companion_missing``, as :meth:`close`.
        """
        missing = [] if self._metadata.get("partial") else missing_members(self._metadata, self._rows.rows)
        if missing:
            text = "; ".join(str(problem) for problem in missing)
            raise SnapshotError(f"{text}; pass partial=True to publish it all the same", url=self._url)

    def discard(self) -> None:
        """Throw away what was written; an existing snapshot under the name stays. Does nothing after :meth:`close`."""
        if self._state is not _State.CLOSED:
            self._state = _State.CLOSED
            self._rows.close()
            self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._state is not _State.CLOSED:
                self.close()
        finally:
            # Also where an interrupt comes before close() gets to its own care.
            self.discard()

    @property
    def _url(self) -> str:
        return str(self._file.path)

    def _check_open(self) -> None:
        if self._state is _State.CLOSED:
            raise SnapshotError("the writer is closed", url=self._url)
        if self._state is _State.BROKEN:
            raise SnapshotError("an earlier write failed, the snapshot cannot be finished", url=self._url)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Mark the snapshot as broken when what is inside fails: part of a row may be in the file."""
        self._state = _State.BROKEN
        yield
        self._state = _State.OPEN


class _State(Enum):
    OPEN = "open"
    BROKEN = "broken"
    CLOSED = "closed"
