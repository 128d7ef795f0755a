"""The hash of a stream row's small columns, ``small_xxh3``: xxh3-64 over every Arrow buffer that holds no pages.

The columns are all but ``page_pool``, ``page_pool_1``, … and ``pool_bytes``, in schema order, unknown ones included. Of
each column its array of one row is walked depth first, an extension type as its storage. An array of ``n`` elements
gives these buffers, each preceded by its length in bytes as a little-endian u64:

===============================  ====================================================================================
every array but those of nulls   validity: nothing (length 0) where no element is null; else ⌈n / 8⌉ bytes, least
                                 significant bit first, bits behind the last element 0
booleans                         values: ⌈n / 8⌉ bytes as above
integers, floats, decimals,      values: n × width bytes, little-endian, as they are stored, also those of nulls
dates, times, fixed-size binary
binary, utf8, list, map and      offsets: n + 1 of the type's own width, little-endian, rebased so that the first is 0;
their large forms                one 0 where n is 0, also where Arrow leaves the buffer out
binary, utf8                     data: the bytes between the first and the last offset
list, map                        the child's elements between the first and the last offset, as an array
fixed-size list                  the child's n × size elements, as an array
struct                           each child's n elements, as an array, in order
===============================  ====================================================================================

No other type has a hash, and a snapshot's own columns use none. Buffers are hashed without IPC's padding and without
what slices leave outside of their window, so that the hash does not depend on how a batch was cut or sent.

Spec: snapshot format, section 5, "streams". JSON Schema: ``schemas/index.schema.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from hurray_arrow.arrow.rows import is_pool_column
from hurray_arrow.errors import UnsupportedError

_EMPTY = np.empty(0, np.uint8)


def small_xxh3(batch: pa.RecordBatch) -> str:
    """Return the hash of a batch's small columns: xxh3-64, 16 lower-case hex digits.

    Parameters
    ----------
    batch
        One row; its page columns are not touched.

    Raises
    ------
    UnsupportedError
        A column that this version does not know has a type without a hash.

    Spec: snapshot format, section 5, "streams".
    """
    digest = xxhash.xxh3_64()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not is_pool_column(name):
            for buffer in _buffers(column):
                digest.update(struct.pack("<Q", len(buffer)))
                digest.update(buffer.data)
    return digest.hexdigest()


def _buffers(array: pa.Array) -> Iterator[npt.NDArray[np.uint8]]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind, count = array.type, len(array)
    if pa.types.is_null(kind):
        return
    yield _bits(array, 0) if array.null_count else _EMPTY
    if pa.types.is_boolean(kind):
        yield _bits(array, 1)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _buffers(array.field(number))
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        yield from _buffers(array.values.slice(array.offset * size, count * size))
    elif kind in (pa.utf8(), pa.binary(), pa.large_utf8(), pa.large_binary()):
        offsets, first, last = _offsets(array, large=kind in (pa.large_utf8(), pa.large_binary()))
        yield offsets
        yield _window(array.buffers()[2], first, last)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets, first, last = _offsets(array, large=pa.types.is_large_list(kind))
        yield offsets
        yield from _buffers(array.values.slice(first, last - first))
    elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.bit_width // 8
        yield _window(array.buffers()[1], array.offset * width, (array.offset + count) * width)
    else:
        raise UnsupportedError(f"a column of type {kind} has no hash in format version 1")


def _bits(array: pa.Array, buffer: int) -> npt.NDArray[np.uint8]:
    """Return a bitmap of the array: its window from bit 0, and 0 behind it."""
    stored = array.buffers()[buffer]
    if stored is None or not len(array):
        return _EMPTY
    start, end = array.offset, array.offset + len(array)
    bits = np.unpackbits(_window(stored, start // 8, -(-end // 8)), bitorder="little")[start % 8 :][: len(array)]
    return np.packbits(bits, bitorder="little")


def _offsets(array: pa.Array, *, large: bool) -> tuple[npt.NDArray[np.uint8], int, int]:
    """Return the bytes of the rebased offsets, and where the window of the data or the child begins and ends."""
    dtype = np.dtype("<i8" if large else "<i4")
    stored = array.buffers()[1]
    if stored is None or not len(array):
        return np.zeros(1, dtype).view(np.uint8), 0, 0
    width = dtype.itemsize
    offsets = _window(stored, array.offset * width, (array.offset + len(array) + 1) * width).view(dtype)
    return (offsets - offsets[0]).view(np.uint8), int(offsets[0]), int(offsets[-1])


def _window(stored: pa.Buffer | None, start: int, end: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(stored, np.uint8, end - start, start) if stored is not None and end > start else _EMPTY
