"""A reader of streams made from docs/format.md alone, as page_reader.py is one of files."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from page_reader import index_of, read, values, xxh3


def buffers(array):
    """Yield what small_xxh3 hashes of an array."""
    kind, count = array.type, len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    yield np.packbits(array.is_valid(), bitorder="little").tobytes() if array.null_count else b""
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from buffers(array.field(number))
    elif kind.num_fields or kind in (pa.utf8(), pa.large_binary()):
        width = np.int64 if pa.types.is_large_list(kind) or kind == pa.large_binary() else np.int32
        offsets = np.zeros(1, width)
        if count:
            offsets = np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + count + 1]
        yield (offsets - offsets[0]).tobytes()
        if kind.num_fields:
            yield from buffers(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        else:
            yield bytes(array.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    else:
        yield values(array).tobytes()


def read_rows(data):
    """Yield the rows of a stream; the end batch proves them."""
    stream, hashes = pa.ipc.open_stream(data), []
    for batch, pairs in stream.iter_batches_with_custom_metadata():
        if not batch.num_rows:
            index = index_of(pairs, stream.schema)
            assert hashes == [row["small_xxh3"] for row in index["rows"]], "small_xxh3"
            return
        columns = zip(batch.schema.names, batch.columns, strict=True)
        small = [column for name, column in columns if not name.startswith(("page_pool", "pool_bytes"))]
        parts = [struct.pack("<Q", len(part)) + part for column in small for part in buffers(column)]
        hashes.append(xxh3(b"".join(parts)))
        yield batch
    raise AssertionError("incomplete")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        try:
            found = read(read_rows(Path(path).read_bytes()))
        except AssertionError as refusal:
            found = str(refusal)
        sys.stdout.write(json.dumps(found) + "\n")
