"""Lay a snapshot out in shared memory first and let an engine write its pages straight into it.

Spec: snapshot format, section 5, "Fill in place".
"""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from fsspec.callbacks import Callback

from hurray_arrow.arrow.schema import SchemaPlan, page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import ElementType, PrivateType
from hurray_arrow.elements import element_type as element_type_of
from hurray_arrow.errors import SnapshotError
from hurray_arrow.intake import shape_pool
from hurray_arrow.mappings import FileMapping
from hurray_arrow.share.memory_file import MemoryFile
from hurray_arrow.share.sealed_snapshot import SealedSnapshot
from hurray_arrow.snapshot.checksums import checksum_piece_bytes, tensor_checksums, xxh3_hex
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.placed import PlacedTensor
from hurray_arrow.snapshot.row_sink import Output, RowSink
from hurray_arrow.snapshot.share_rows import Checksums, ShareRows
from hurray_arrow.snapshot.writer import DEFAULT_PAGE_ALIGN_BYTES, SnapshotWriter
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors

_URL = "allocation"


def tensor_spec(
    *,
    num_pages: int,
    page_shape: Sequence[int],
    element_type: ElementType | npt.DTypeLike,
    private: PrivateType | None = None,
    **facts: Any,
) -> BlockPagedTensor:
    """Describe a tensor whose pages come later, for :func:`allocate`.

    Parameters
    ----------
    num_pages, page_shape
        Pages, and ``(page_size, num_heads, head_dim)``.
    element_type, private
        As of :meth:`BlockPagedTensor.from_arrays`.
    **facts
        All else that :meth:`BlockPagedTensor.from_arrays` takes: block tables, sequences, ``kv_role``,
        ``layer_index``, …

    Returns
    -------
    BlockPagedTensor
        Its page pool reads as zeros and takes no memory.

    Raises
    ------
    InvariantError, InvalidDescriptorError, UnknownSequenceLengthError, TypeError
        As :meth:`BlockPagedTensor.from_arrays`.
    """
    element = element_type_of(element_type, private=private)
    page_elems = int(np.prod([int(size) for size in page_shape], dtype=object))
    return BlockPagedTensor.from_arrays(
        _nothing(element.size_bytes(num_pages * page_elems)),
        element_type=element,
        page_shape=page_shape,
        num_pages=num_pages,
        **facts,
    )


def _nothing(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeros that are one page of the system's however often they are read, and cannot be written."""
    if not size_bytes:
        return np.empty(0, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ), np.uint8)


def allocate(
    specs: Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
    checksums: bool = True,
    partial: bool = False,
) -> Allocation:
    """Lay out a snapshot in memory, its pages still empty.

    Parameters
    ----------
    specs
        What each tensor is, from :func:`tensor_spec`; or tensors like the ones that come, whose own pages are not
        looked at. Tables, sequences and parameters are written now and cannot change any more.
    metadata, page_align_bytes, checksums, partial
        As of :func:`hurray_arrow.write_snapshot`.

    Returns
    -------
    Allocation
        A context manager: :meth:`Allocation.page_pools` are for writing, :meth:`Allocation.seal` makes the snapshot.
        Leaving it unsealed, or dying, leaves nothing.

    Raises
    ------
    InvariantError, SnapshotError, UnsupportedError, ValueError
        As :func:`hurray_arrow.share.publish`.

    Spec: snapshot format, section 5, "Fill in place".
    """
    tensors = listed_tensors(specs)
    output = MemoryFile()
    with ExitStack() as undo:
        undo.callback(output.discard)
        writer = _HoleWriter(
            output,
            plan=SchemaPlan.of(tensors),
            metadata=metadata,
            page_align_bytes=page_align_bytes,
            checksums=checksums,
            partial=partial,
        )
        undo.callback(writer.discard)
        for tensor in tensors:
            writer.write(tensor)
        writer.check_complete()
        output.lay_out()
        undo.pop_all()
    return Allocation(output, writer, tensors)


class Allocation:
    """A snapshot in memory whose pages are being written; see :func:`allocate`. It belongs to one thread.

    Attributes
    ----------
    specs
        What was allocated, in snapshot order.
    """

    def __init__(self, output: MemoryFile, writer: _HoleWriter, specs: Sequence[BlockPagedTensor]) -> None:
        self.specs = tuple(specs)
        self._output, self._writer = output, writer
        self._mappings: dict[int, mmap.mmap] = {}
        self._views: list[weakref.ref[npt.NDArray[np.uint8]]] = []
        self._is_open = True

    def page_pool(self, tensor_index: int) -> npt.NDArray[Any]:
        """Return a tensor's page pool for writing.

        Parameters
        ----------
        tensor_index
            The tensor's place among the specs.

        Returns
        -------
        ndarray
            ``[num_pages, page_size, num_heads, head_dim]`` of ``element_type.pool_dtype`` (uint8 ``[pool_bytes]`` for
            types narrower than a byte): a view of the memory that is shared once it is sealed, zeros at first.

        Raises
        ------
        SnapshotError
            The allocation is sealed or discarded.
        """
        self._check_open()
        row, descriptor = self._writer.index_rows[tensor_index], self.specs[tensor_index].descriptor
        if not row.pages_bytes:
            return _shaped(np.empty(0, np.uint8), descriptor)
        pages_offset = row.pages_offset or 0
        before = pages_offset % mmap.ALLOCATIONGRANULARITY
        mapping = self._mappings.get(tensor_index)
        if mapping is None:
            mapping = mmap.mmap(self._output.fileno(), before + row.pages_bytes, offset=pages_offset - before)
            self._mappings[tensor_index] = mapping
        raw = np.frombuffer(mapping, np.uint8, row.pages_bytes, before)
        # Every slice and reshape, of numpy's or another library's, keeps this array alive, which is what is counted.
        self._views.append(weakref.ref(raw))
        return _shaped(raw, descriptor)

    def page_pools(self) -> list[npt.NDArray[Any]]:
        """Return the page pools of all tensors for writing; as :meth:`page_pool`."""
        return [self.page_pool(number) for number in range(len(self.specs))]

    @property
    def num_views(self) -> int:
        """How many of the arrays that :meth:`page_pool` gave out are alive, themselves or in a view of them."""
        self._views = [view for view in self._views if view() is not None]
        return len(self._views)

    def seal(self) -> SealedSnapshot:
        """Hash the pages, write the end of the snapshot, and make all of it unchangeable.

        Returns
        -------
        SealedSnapshot
            As of :func:`hurray_arrow.share.publish`.

        Raises
        ------
        SnapshotError
            Writable views are alive, in variables, slices or other libraries' tensors: the message counts them, and the
            allocation stays as it is. Or the system says EBUSY, because another process maps the pages for writing or a
            device still does: then the allocation is discarded. There is no weaker seal.
        InvariantError
            ``page_pool_padding``: unused bits of a packed pool are set. The allocation stays as it is.
        """
        self._check_open()
        if self.num_views:
            gc.collect()
        if self.num_views:
            raise SnapshotError(
                f"{self.num_views} writable views of its page pools are alive; drop them first (a loop's variable "
                "holds one too)",
                url=_URL,
            )
        while self._mappings:
            _, mapping = self._mappings.popitem()
            mapping.close()
        self._fill_in()
        self._is_open = False
        self._writer.close()
        return SealedSnapshot(self._output.take_descriptor())

    def discard(self) -> None:
        """Give the memory back; views that are alive keep theirs. Does nothing once it is sealed."""
        self._is_open = False
        self._mappings.clear()
        self._writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _fill_in(self) -> None:
        """Write what depends on the pages: their checksums, and the hash of what lies before them."""
        mapped = np.frombuffer(FileMapping(self._output.fileno(), self._output.position), np.uint8)
        for number, (row, spec) in enumerate(zip(self._writer.index_rows, self.specs, strict=True)):
            if not row.pages_bytes or row.pages_offset is None:
                continue
            pages = mapped[row.pages_offset : row.pages_offset + row.pages_bytes]
            filled = replace(spec, page_pool=_shaped(pages, spec.descriptor), permissive=False)
            if row.checksums_offset is not None:
                self._output.overwrite(tensor_checksums(filled), row.checksums_offset)
            head = xxh3_hex(mapped[row.offset : row.pages_offset])
            self._writer.index_rows[number] = row._replace(head_xxh3=head)

    def _check_open(self) -> None:
        if not self._is_open:
            raise SnapshotError("it is sealed or discarded", url=_URL)


def _shaped(raw: npt.NDArray[np.uint8], descriptor: BlockPagedDescriptor) -> npt.NDArray[Any]:
    return shape_pool(raw, descriptor.element_type, num_pages=descriptor.num_pages, page_shape=descriptor.page_shape)


class _HoleSink(RowSink):
    """A row's sink that leaves out its pages."""

    def send_pages(self, output: Output, pages: memoryview, progress: Callback) -> Iterator[None]:  # noqa: ARG002 - nothing is written
        cast("MemoryFile", output).skip(len(pages))
        yield


class _HoleRows(ShareRows):
    """Rows whose pages are holes and whose checksums are zeros."""

    SINK = _HoleSink

    def _checksums(self, placed: PlacedTensor) -> Checksums | None:
        if not self._with_checksums:
            return None
        piece_bytes = checksum_piece_bytes(page_class_of(placed.tensor.descriptor))
        return np.zeros(-(-placed.tensor.buffers[0].nbytes // piece_bytes), np.uint64)


class _HoleWriter(SnapshotWriter):
    SHARE_ROWS = _HoleRows

    @property
    def index_rows(self) -> list[IndexRow]:
        """What the index will say of each row; changed in place when the pages are there."""
        return self._rows.rows
