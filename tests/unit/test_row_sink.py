"""The sink of a share row: places and hashes are those of the bytes that arrive, whatever the shape of the tensor."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.snapshot import row_sink
from hurray_arrow.snapshot.row_sink import RowSink

SCHEMA = pa.schema(
    [
        pa.field("a", pa.uint16()),
        pa.field("sums", pa.large_list(pa.field("item", pa.uint64(), nullable=False))),
        pa.field("pages", pa.large_list(pa.field("item", pa.uint8(), nullable=False))),
        pa.field("after", pa.utf8()),
    ]
)
OFFSET = 1000


class Kept(list):
    """An output that keeps what it is given, and checks that nothing came twice or in between."""

    def write(self, data):
        self.append(bytes(data))
        return len(data)


def one_list(values):
    kind = pa.from_numpy_dtype(values.dtype)
    items = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    offsets = pa.py_buffer(np.array([0, len(values)], np.int64))
    field = pa.field("item", kind, nullable=False)
    return pa.Array.from_buffers(pa.large_list(field), 1, [None, offsets], children=[items])


def send(pool, sums, *, pad="", progress=None):
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7], pa.uint16()), one_list(sums), one_list(pool), pa.array(["behind the pages"])], schema=SCHEMA
    )
    kept = Kept()
    sink = RowSink(
        offset=OFFSET,
        skip_bytes=SCHEMA.serialize().size,
        pool=pa.py_buffer(pool),
        checksums=batch.column("sums").values.buffers()[1],
    )
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), SCHEMA, options=options)
    writer.write_batch(batch, custom_metadata={"hurray_arrow.pad": pad})
    assert list(sink.send(kept, progress or NoOpCallback())) == [None] * -(-pool.nbytes // row_sink.PIECE_BYTES)
    place, taken = sink.place(), b"".join(kept)
    assert sink.tell() == OFFSET + len(taken)
    del writer
    return place, taken, batch


POOL = np.arange(3 * 251, dtype=np.uint16).view(np.uint8)[: 3 * 251]
SUMS = np.array([11, 13, 17], np.uint64)


@pytest.mark.parametrize("pad", ["", "0" * 8, "0" * 4088])
def test_places_and_hashes_are_those_of_the_bytes(pad):
    place, taken, batch = send(POOL, SUMS, pad=pad)
    assert len(taken) == place.metadata_bytes + place.body_bytes
    assert place.offset == OFFSET
    pages, checksums = place.pages_offset - OFFSET, place.checksums_offset - OFFSET
    assert taken[pages : pages + place.pages_bytes] == POOL.tobytes()
    assert place.pages_bytes == POOL.nbytes
    assert taken[checksums : checksums + 24] == SUMS.tobytes()
    assert place.head_xxh3 == xxhash.xxh3_64_hexdigest(taken[:pages])
    assert place.bare_head_xxh3 == xxhash.xxh3_64_hexdigest(taken[:checksums] + taken[checksums + 24 : pages])
    assert place.tail_xxh3 == xxhash.xxh3_64_hexdigest(taken[pages + POOL.nbytes :])
    assert b"behind the pages" in taken[pages + POOL.nbytes :]
    message = pa.ipc.read_message(pa.py_buffer(taken))
    assert pa.ipc.read_record_batch(message, SCHEMA).equals(batch)


def test_the_pad_moves_the_pages_by_its_length():
    places = [send(POOL, SUMS, pad="0" * pad)[0] for pad in (0, 8, 64, 4096)]
    assert [place.pages_offset - places[0].pages_offset for place in places] == [0, 8, 64, 4096]
    assert [place.metadata_bytes - places[0].metadata_bytes for place in places] == [0, 8, 64, 4096]


def test_without_pages_everything_is_head():
    place, taken, _ = send(np.empty(0, np.uint8), np.empty(0, np.uint64))
    assert (place.pages_bytes, place.pages_offset) == (0, OFFSET + len(taken))
    assert place.checksums_offset is None
    assert place.bare_head_xxh3 is None
    assert place.head_xxh3 == xxhash.xxh3_64_hexdigest(taken)
    assert place.tail_xxh3 == xxhash.xxh3_64_hexdigest(b"")


def test_pages_are_handed_on_in_pieces_and_told_of(monkeypatch):
    monkeypatch.setattr(row_sink, "PIECE_BYTES", 100)
    told = []

    class Told(Callback):
        def relative_update(self, inc=1):
            told.append(inc)

    place, taken, _ = send(POOL, SUMS, progress=Told())
    assert told == [100] * 7 + [53]
    assert taken[place.pages_offset - OFFSET :][: POOL.nbytes] == POOL.tobytes()


def test_pages_are_held_by_reference_until_they_are_sent():
    pool = POOL.copy()
    sink = RowSink(offset=OFFSET, skip_bytes=0, pool=pa.py_buffer(pool))
    sink.write(b"12345678")
    sink.write(pa.py_buffer(pool))
    pool[:] = 0
    kept = Kept()
    list(sink.send(kept, NoOpCallback()))
    assert b"".join(kept) == b"12345678" + bytes(POOL.nbytes)


def test_it_is_a_file_that_is_only_written():
    sink = RowSink(offset=0, skip_bytes=0, pool=pa.py_buffer(b""))
    assert (sink.readable(), sink.writable(), sink.seekable(), sink.closed) == (False, True, False, False)
    assert sink.flush() is sink.close() is None
