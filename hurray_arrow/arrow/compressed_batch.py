"""Record batches with a compressed body, each buffer by the compressor that suits it.

pyarrow knows one compression level for a whole batch, and compresses what only grows by it. In a cache the bytes that
hold exponents are best left to zstd's entropy coder, the noise beside them is best stored as it is, and small columns
are smaller without zstd's frame. Any Arrow reader takes the result.

Spec: Arrow columnar format, "Compression" and "Encapsulated message format" (Message.fbs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import zstandard

from hurray_arrow.arrow.ipc_file import encoded_batch
from hurray_arrow.arrow.ipc_layout import CONTINUATION, RECORD_BATCH_HEADER, BatchLayout, batch_layout, encapsulated

ZSTD_LEVEL = 1
#: Bytes that hold exponents hardly repeat. With a hash table as small as this zstd takes few matches and codes the rest
#: by frequency, anew for every window of 32 KiB, which is a few pages: most caches get smaller, and in half the time.
_EXPONENTS = zstandard.ZstdCompressionParameters.from_level(ZSTD_LEVEL, hash_log=7, window_log=15)
_METADATA_V5 = 4
_ZSTD = 1
#: What stands before a buffer that is stored as it is, instead of its decompressed length.
_AS_IT_IS = struct.pack("<q", -1)
_ALIGN_BYTES = 8


def compressed_batch(batch: pa.RecordBatch, *, exponents: int | None = None) -> list[bytes | memoryview]:
    """Return one encapsulated record batch, its body compressed with zstd.

    Parameters
    ----------
    batch
        The batch; no custom metadata is written.
    exponents
        The number of the buffer, in Arrow's pre-order, that holds the bytes with most bits of 8-bit exponents.

    Returns
    -------
    list of bytes-like objects
        The bytes in order, without a copy of what is stored as it is; they own what they need.
    """
    plain = memoryview(encoded_batch(batch))
    flatbuffer = encapsulated(plain)
    layout = batch_layout(flatbuffer)
    body = plain[8 + len(flatbuffer) :]
    parts: list[bytes | memoryview] = []
    places = []
    end = 0
    for number, (start, size) in enumerate(layout.buffers):
        compressor = _compressor(is_exponents=number == exponents)
        stored = list(_stored(body[start : start + size], compressor))
        stored_bytes = sum(map(len, stored))
        padding = bytes(-stored_bytes % _ALIGN_BYTES)
        places.append((end, stored_bytes))
        parts += [*stored, padding]
        end += stored_bytes + len(padding)
    header = _header(layout, places, body_bytes=end)
    return [struct.pack("<Ii", CONTINUATION, len(header)), header, *parts]


def compressed_bytes(raw: memoryview, *, is_exponents: bool = False) -> int:
    """Return what a buffer takes in the body of :func:`compressed_batch`, its padding aside."""
    return sum(map(len, _stored(raw, _compressor(is_exponents=is_exponents))))


def _compressor(*, is_exponents: bool) -> zstandard.ZstdCompressor:
    # One of its own for each buffer: a compressor belongs to one thread.
    if is_exponents:
        return zstandard.ZstdCompressor(compression_params=_EXPONENTS)
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL)


def _stored(raw: memoryview, compressor: zstandard.ZstdCompressor) -> Iterator[bytes | memoryview]:
    if not raw:
        return
    frame = compressor.compress(raw)
    if len(frame) < len(raw):
        yield struct.pack("<q", len(raw))
        yield frame
    else:
        yield _AS_IT_IS
        yield raw


def _header(layout: BatchLayout, places: list[tuple[int, int]], *, body_bytes: int) -> bytes:
    """Return the flatbuffer of a compressed batch: five parts at fixed places, then its two vectors."""
    nodes, buffers = len(layout.nodes), len(places)
    # A vtable: its size, its table's size, and where each field lies in the table; a table begins with the way back.
    message_vtable = struct.pack("<6H", 12, 24, 4, 6, 8, 16)
    message = struct.pack("<ihBxI4xq", 12, _METADATA_V5, RECORD_BATCH_HEADER, 52 - 24, body_bytes)
    batch_vtable = struct.pack("<6H", 12, 24, 12, 4, 8, 20)
    batch = struct.pack("<iIIqI", 12, 92 - 56, 100 + 16 * nodes - 60, layout.num_rows, 84 - 72)
    compression_vtable = struct.pack("<4H", 8, 8, 4, 0)
    compression = struct.pack("<ib3x", 8, _ZSTD)
    return b"".join(
        [
            struct.pack("<I", 16),
            message_vtable,
            message,
            batch_vtable,
            batch,
            compression_vtable,
            compression,
            struct.pack("<I", nodes),
            *(struct.pack("<qq", *node) for node in layout.nodes),
            struct.pack("<4xI", buffers),
            *(struct.pack("<qq", *place) for place in places),
        ]
    )
