"""The sizes that an HRRYFILE states, compared with the file before pyhurray believes them.

pyhurray 0.1 asks for as much memory as a size says, whatever it says, and where there is none the process ends. So
index, key-value section and descriptors are looked at here first: nothing may pass the end of the file, and all buffers
together may not be more than it.

Spec: pgillet/hurray, file format ("Trailer", "Index Encoding", "KV Section Encoding").
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError

_MAGIC, _TRAILER_MAGIC = b"HRRYFILE", b"HRRY"
_HEADER_BYTES = 64
_TRAILER = struct.Struct("<QQQI8x4s")
_ENTRY = struct.Struct("<QIQQI")
_ALIGNMENT_OFFSET = 16
#: The least that an entry takes: a name of one byte; a key of one byte and a bool.
_LEAST_ENTRY_BYTES, _LEAST_PAIR_BYTES = 3 + _ENTRY.size, 5
_STRING, _BYTES, _ARRAY = 1, 6, 7
#: Bytes of the key-value section's other values, by tag.
_SCALAR_BYTES = {2: 8, 3: 8, 4: 8, 5: 1}


class _Sizes(NamedTuple):
    """What pyhurray would read by an entry of the index."""

    name: str
    descriptor_offset: int
    descriptor_bytes: int
    data_offset: int


def check_places(path: str | os.PathLike[str], *, descriptor: Any) -> None:
    """Refuse a container whose parts are not where it says.

    Parameters
    ----------
    path
        The file.
    descriptor
        ``hurray.Descriptor``, which knows every layout.

    Raises
    ------
    FileNotFoundError, PermissionError
        As the system says.
    SnapshotCorruptError
        ``footer_invalid``: no container, or a part that passes the end of the file; ``index_invalid``: buffers larger
        than the file, or a descriptor that is none.
    """
    url = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            _check(file, descriptor)
    except _PlaceError as error:
        raise SnapshotCorruptError(Problem(error.code, error.where, str(error), "HRRYFILE"), url=url) from error


class _PlaceError(ValueError):
    def __init__(self, where: str, message: str, code: ProblemCode = ProblemCode.FOOTER_INVALID) -> None:
        self.where, self.code = where, code
        super().__init__(message)


def _check(file: BinaryIO, descriptor: Any) -> None:
    size = file.seek(0, os.SEEK_END)
    end = size - _TRAILER.size
    if end < _HEADER_BYTES:
        raise _PlaceError("trailer", f"{size} bytes are no container")
    header = _read(file, 0, _HEADER_BYTES, end, "header")
    index_offset, index_bytes, kv_offset, kv_bytes, magic = _TRAILER.unpack(
        _read(file, end, _TRAILER.size, size, "trailer")
    )
    if not header.startswith(_MAGIC) or magic != _TRAILER_MAGIC:
        raise _PlaceError("magic", "neither begins nor ends like a container")
    (alignment,) = struct.unpack_from("<I", header, _ALIGNMENT_OFFSET)
    if alignment < 1 or alignment & (alignment - 1):
        raise _PlaceError("header.data_buffer_alignment", f"{alignment}, expected a power of two")
    _check_pairs(_Bytes(_read(file, kv_offset, kv_bytes, end, "kv"), "kv"))
    entries = list(_entries(_Bytes(_read(file, index_offset, index_bytes, end, "index"), "index")))
    left = size
    for entry in entries:
        where = f"index[{entry.name!r:.60}]"
        raw = _read(file, entry.descriptor_offset, entry.descriptor_bytes, end, f"{where}.descriptor")
        sizes = _buffer_bytes(raw, descriptor, where, len(entries))
        left -= sum(sizes)
        # Each buffer but the first begins at a multiple of the alignment.
        data_end = entry.data_offset + sum(sizes[-1:]) + sum(-(-each // alignment) * alignment for each in sizes[:-1])
        if data_end > end or left < 0:
            message = f"buffers of {sum(sizes)} bytes at {entry.data_offset}, in a file of {size}"
            raise _PlaceError(f"{where}.data", message, ProblemCode.INDEX_INVALID)


def _buffer_bytes(raw: bytes, descriptor: Any, where: str, num_entries: int) -> list[int]:
    try:
        decoded = descriptor.decode(raw)
    except ValueError as error:
        raise _PlaceError(f"{where}.descriptor", str(error), ProblemCode.INDEX_INVALID) from error
    members = getattr(decoded.layout, "member_count", 0)
    if members >= num_entries and members:
        message = f"{members} members, the container has {num_entries} tensors"
        raise _PlaceError(f"{where}.member_count", message, ProblemCode.INDEX_INVALID)
    return [int(handle.byte_size) for handle in decoded.buffer_handles]


def _read(file: BinaryIO, offset: int, size: int, end: int, where: str) -> bytes:
    if offset + size > end:
        raise _PlaceError(where, f"[{offset}, {offset + size}) passes {end}")
    file.seek(offset)
    return file.read(size)


class _Bytes:
    """A section, read piece by piece and never past its end."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self.left = len(data)

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise _PlaceError(self._where, f"needs {size} bytes, {self.left} are left")
        start = len(self._data) - self.left
        self.left -= size
        return self._data[start : start + size]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def count(self, size: int, least_bytes: int) -> int:
        """Return a number of items of which each takes ``least_bytes`` at least."""
        found = self.number(size)
        if found * least_bytes > self.left:
            raise _PlaceError(self._where, f"{found} entries in {self.left} bytes")
        return found


def _entries(index: _Bytes) -> Iterator[_Sizes]:
    for _ in range(index.count(8, _LEAST_ENTRY_BYTES)):
        name = index.take(index.number(2)).decode("utf-8", "replace")
        descriptor_offset, descriptor_bytes, data_offset, _, _ = _ENTRY.unpack(index.take(_ENTRY.size))
        yield _Sizes(name, descriptor_offset, descriptor_bytes, data_offset)


def _check_pairs(pairs: _Bytes) -> None:
    if not pairs.left:
        return
    for _ in range(pairs.count(4, _LEAST_PAIR_BYTES)):
        pairs.take(pairs.number(2))
        tag = pairs.number(1)
        if tag != _ARRAY:
            _skip_value(pairs, tag)
            continue
        tag = pairs.number(1)
        for _ in range(pairs.count(4, 1)):
            _skip_value(pairs, tag)


def _skip_value(pairs: _Bytes, tag: int) -> None:
    if tag in (_STRING, _BYTES):
        pairs.take(pairs.number(4))
    elif tag in _SCALAR_BYTES:
        pairs.take(_SCALAR_BYTES[tag])
    else:
        raise _PlaceError("kv", f"a value of the kind {tag:#x}")
