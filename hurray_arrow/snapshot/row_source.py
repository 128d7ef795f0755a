"""The rows of a complete snapshot file, by its index; each is hashed and validated before anything of it is believed.

Spec: snapshot format, section 4, "Order of checks".
"""

from __future__ import annotations

import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import IpcLayoutError, batch_layout, encapsulated
from hurray_arrow.arrow.rows import Row, refuse
from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError, UnsupportedError
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.snapshot.entries import Entry, entries_of
from hurray_arrow.snapshot.files import FileRange
from hurray_arrow.snapshot.index import SPEC, IndexRow
from hurray_arrow.snapshot.tail import Tail


class IndexedRows:
    """Rows by index.

    Parameters
    ----------
    source
        The file.
    tail
        Its checked end.
    trusted
        Skip the hashes and Arrow's full validation.
    """

    def __init__(self, source: FileRange, tail: Tail, *, trusted: bool = False) -> None:
        self._source = source
        self._schema, self._types = tail.schema, tail.types
        self._trusted = trusted
        self._check_profile(tail)
        self.entries: tuple[Entry, ...] = entries_of(tail.index.rows)
        self._places: dict[int, list[IndexRow]] = {}
        for place in sorted(tail.index.rows, key=lambda row: row.page_offset):
            self._places.setdefault(place.tensor_index, []).append(place)

    def _check_profile(self, tail: Tail) -> None:
        if tail.metadata["profile"] != "share":
            raise UnsupportedError(f"{self._source.url}: profile {tail.metadata['profile']!r} is not supported yet")
        for number, row in enumerate(tail.index.rows):
            if None in (row.pages_offset, row.pages_bytes, row.head_xxh3, row.tail_xxh3):
                message = "a row of the share profile states the place of its pages and the hashes around them"
                problem = Problem(ProblemCode.INDEX_INVALID, f"rows[{number}]", message, SPEC)
                raise SnapshotCorruptError(problem, url=self._source.url)

    def rows_of(self, tensor_index: int) -> list[Row]:
        """Return all rows of a tensor in page order.

        Raises
        ------
        SnapshotCorruptError
            ``row_checksum``, ``arrow_invalid``, ``arrow_null``, ``column_mismatch``, ``row_place``.
        """
        return [self._row(place) for place in self._places[tensor_index]]

    def damage_of(self, tensor_index: int) -> list[Problem]:
        """Return what the row hashes say, page values aside."""
        return [
            problem
            for place in self._places[tensor_index]
            for problem in _hash_problems(place, self._source.read(place.offset, place.block.end - place.offset))
        ]

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _row(self, place: IndexRow) -> Row:
        stored = self._source.read(place.offset, place.block.end - place.offset)
        if not self._trusted:
            problems = _hash_problems(place, stored)
            if problems:
                raise SnapshotCorruptError(problems, url=self._source.url)
        where = f"tensor {place.tensor_index}"
        try:
            layout = batch_layout(encapsulated(memoryview(stored)[: place.metadata_bytes]))
            if layout.compression is not None or layout.num_rows != 1:
                raise IpcLayoutError(
                    f"{layout.num_rows} rows, compression {layout.compression}; expected 1 row as it is"
                )
            if any(start < 0 or size < 0 or start + size > place.body_bytes for start, size in layout.buffers):
                raise IpcLayoutError(f"a buffer passes the end of a body of {place.body_bytes} bytes")
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(stored)), self._schema)
            if not self._trusted:
                batch.validate(full=True)
        except (IpcLayoutError, pa.ArrowException, OSError) as error:
            raise refuse(ProblemCode.ARROW_INVALID, where, str(error), url=self._source.url) from error
        row = Row.read(batch, 0)
        _check_place(row, place, stored)
        return row


def _hash_problems(place: IndexRow, stored: pa.Buffer) -> list[Problem]:
    view = memoryview(stored)
    pages = (place.pages_offset or 0) - place.offset
    pages_end = pages + (place.pages_bytes or 0)
    problems = []
    for name, part in (("head_xxh3", view[:pages]), ("tail_xxh3", view[pages_end:])):
        expected, found = getattr(place, name), xxh3_hex(part)
        if found != expected:
            where, message = f"tensor {place.tensor_index}.{name}", f"xxh3 {found}, the index says {expected}"
            problems.append(Problem(ProblemCode.ROW_CHECKSUM, where, message, SPEC, offset_bytes=place.offset))
    return problems


def _check_place(row: Row, place: IndexRow, stored: pa.Buffer) -> None:
    """Refuse a row that differs from the index, which is what callers list and select by."""
    for name in ("tensor_index", "layer_index", "layer_name", "kv_role", "component", "kv_group", "page_offset"):
        found, expected = getattr(row, name), getattr(place, name)
        if found != expected:
            message = f"the row says {found!r:.60}, the index {expected!r:.60}"
            raise refuse(ProblemCode.COLUMN_MISMATCH, f"tensor {place.tensor_index}.{name}", message)
    found_place = (row.pool.ctypes.data - stored.address + place.offset, row.pool.nbytes)
    stated = (place.pages_offset, place.pages_bytes)
    if found_place != stated and (row.pool.nbytes or place.pages_bytes):
        message = f"pages at {found_place}, the index says {stated}"
        raise refuse(ProblemCode.ROW_PLACE, f"tensor {place.tensor_index}.page_pool", message)
