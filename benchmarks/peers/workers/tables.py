"""A cache as two Arrow tables, as somebody without an extension type would make them: pages, and sequences."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.peers.cache import MODEL, Array, Cache

SHAPE = "page_shape"


def pages_table(cache: Cache) -> pa.Table:
    """Make a column per tensor and a row per page, around the pools; a page is bytes, as Arrow has no bfloat16."""
    columns = {}
    for key, pool in cache.pools.items():
        dtype = pa.binary(pool[0].nbytes)
        columns[key.name] = pa.FixedSizeBinaryArray.from_buffers(dtype, len(pool), [None, pa.py_buffer(pool)])
    shape = "x".join(map(str, cache.pools[cache.keys[0]].shape[1:]))
    return pa.table(columns).replace_schema_metadata({"model": MODEL, SHAPE: shape})


def sequences_table(cache: Cache) -> pa.Table:
    """Make a row per sequence: the ids of its pages, and its tokens."""
    offsets, values = pa.array(cache.seq_ptr.astype(np.int32)), pa.array(np.array(cache.block_table))
    return pa.table(
        {"page_ids": pa.ListArray.from_arrays(offsets, values), "num_tokens": pa.array(np.array(cache.seq_lens))}
    )


def pages_of(table: pa.Table, name: str, schema: pa.Schema) -> Array:
    """Return a column as pages: where Arrow has it, or put together where it has several pieces."""
    shape = [int(size) for size in schema.metadata[SHAPE.encode()].split(b"x")]
    pieces = []
    for chunk in table[name].chunks:
        start, count = chunk.offset * chunk.type.byte_width, len(chunk) * int(np.prod(shape))
        pieces.append(np.frombuffer(chunk.buffers()[1], np.uint16, count, start).reshape(len(chunk), *shape))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
