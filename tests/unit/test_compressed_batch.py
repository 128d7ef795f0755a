"""Compressed record batches: any Arrow reader gets back what pyarrow would have written, in no more bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow.arrow.compressed_batch import compressed_batch
from hurray_arrow.arrow.ipc_file import encoded_batch
from hurray_arrow.arrow.ipc_layout import batch_layout, encapsulated, message_kind

RNG = np.random.default_rng(3)
NOISE = RNG.integers(0, 256, 70_001, dtype=np.uint8)
# Each page, and each head of it, has numbers of its own size.
EXPONENTS = RNG.binomial(40, np.repeat(RNG.uniform(0.3, 0.7, 18), 4096)[:70_001]).astype(np.uint8)
ZSTD = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), allow_64bit=True)

BATCHES = {
    "empty": pa.record_batch([pa.array([], pa.int32()), pa.array([], pa.utf8())], names=["a", "b"]),
    "no columns": pa.record_batch([], names=[]),
    "nulls": pa.record_batch([pa.nulls(3, pa.list_(pa.int64())), pa.nulls(3, pa.utf8())], names=["a", "b"]),
    "small": pa.record_batch([pa.array([7]), pa.array(["seven"]), pa.array([[1, None, 3]])], names=["a", "b", "c"]),
    "noise": pa.record_batch([pa.array(NOISE), pa.array(EXPONENTS)], names=["noise", "exponents"]),
    "slices": pa.record_batch([pa.array(np.arange(5000.0)).slice(11, 700)], names=["a"]),
    "nested": pa.record_batch(
        [pa.array([{"x": [1, 2], "y": None}, None, {"x": [], "y": "z" * 4000}])],
        schema=pa.schema([("a", pa.struct([("x", pa.large_list(pa.uint16())), ("y", pa.large_utf8())]))]),
    ),
}


def written(batch, **options):
    return b"".join(bytes(part) for part in compressed_batch(batch, **options))


@pytest.mark.parametrize("name", list(BATCHES))
@pytest.mark.parametrize("exponents", [None, 0, 1, 3, 99])
def test_readers_get_the_batch_back(name, exponents):
    batch = BATCHES[name]
    message = pa.ipc.read_message(pa.py_buffer(written(batch, exponents=exponents)))
    found = pa.ipc.read_record_batch(message, batch.schema)
    found.validate(full=True)
    assert found.equals(batch)


@pytest.mark.parametrize("name", list(BATCHES))
def test_it_is_no_larger_than_pyarrows(name):
    # The header of a batch without columns may be 8 bytes longer.
    assert len(written(BATCHES[name])) <= encoded_batch(BATCHES[name], options=ZSTD).size + 8


@pytest.mark.parametrize("name", list(BATCHES))
def test_header_states_the_body_and_its_codec(name):
    data = written(BATCHES[name])
    flatbuffer = encapsulated(data)
    layout = batch_layout(flatbuffer)
    plain = batch_layout(encapsulated(memoryview(encoded_batch(BATCHES[name]))))
    assert layout.compression == 1
    assert (layout.num_rows, layout.nodes) == (plain.num_rows, plain.nodes)
    assert message_kind(flatbuffer) == (3, len(data) - 8 - len(flatbuffer))
    assert all(start % 8 == 0 for start, _ in layout.buffers)
    assert [size == 0 for _, size in layout.buffers] == [size == 0 for _, size in plain.buffers]


def test_noise_is_stored_as_it_is():
    data = written(BATCHES["noise"])
    layout = batch_layout(encapsulated(data))
    sizes = [size for _, size in layout.buffers]
    assert sizes[1] == 8 + NOISE.nbytes
    assert NOISE.tobytes() in data
    assert sizes[3] < 0.6 * EXPONENTS.nbytes


def test_exponents_are_smaller_by_their_own_compressor():
    layouts = [batch_layout(encapsulated(written(BATCHES["noise"], exponents=number))) for number in (None, 3)]
    assert layouts[1].buffers[3][1] < layouts[0].buffers[3][1]
    assert layouts[1].buffers[:3] == layouts[0].buffers[:3]
