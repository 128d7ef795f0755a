"""A reader of snapshots made from docs/format.md alone: prints for each file a line of JSON, or why it is refused."""

import base64
import json
import struct
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import zstandard
from xxhash import xxh3_64_hexdigest as xxh3
from xxhash import xxh3_64_intdigest

#: Bits of an element by its tag; private types say it themselves.
TAGS = {1: "20", 2: "4A4B", 4: "434849", 6: "4445", 8: "1011404142", 16: "01021213", 32: "031415", 64: "04161750"}
BITS = {tag: bits for bits, tags in (TAGS | {128: "4651"}).items() for tag in bytes.fromhex(tags)}
FIELDS = "tag layout rank num_tokens num_heads head_dim byte_offset page_size num_pages axis num_seqs role layer"


def canonical(field):
    kind, notes = field.type, {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    extension = [notes.get("ARROW:extension:name"), notes.get("ARROW:extension:metadata")]
    name = str(kind).partition("<")[0] if kind.num_fields else str(kind)
    children = [canonical(kind.field(number)) for number in range(kind.num_fields)]
    return [field.name, field.nullable, name, getattr(kind, "list_size", None), *extension, children]


def index_of(pairs, schema):
    assert b"hurray_arrow.index_xxh3" in (pairs or {}), "incomplete"
    stored = pairs.get(b"hurray_arrow.index") or pairs[b"hurray_arrow.index.zst"]
    assert xxh3(stored).encode() == pairs[b"hurray_arrow.index_xxh3"], "hash of the index"
    if b"hurray_arrow.index.zst" in pairs:
        stored = zstandard.decompress(base64.b64decode(stored), max_output_size=256 << 20)
    index = json.loads(stored)
    tensors = {row["tensor_index"] for row in index["rows"]}
    assert (index["num_rows"], index["num_tensors"]) == (len(index["rows"]), len(tensors)), "the index"
    pairs = sorted([key.decode(), value.decode()] for key, value in schema.metadata.items())
    document = [pairs, [canonical(field) for field in schema]]
    found = xxh3(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())
    assert index["schema_xxh3"] == found, "hash of the schema"
    assert (schema.metadata[b"hurray_arrow.format"], index["version"]) == (b"1", 1), "another version"
    return index


def footer_places(data):
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = data[len(data) - 10 - size :]
    (table,) = struct.unpack_from("<I", footer)
    vtable = table - struct.unpack_from("<i", footer, table)[0]
    field = table + struct.unpack_from("<H", footer, vtable + 10)[0]
    vector = field + struct.unpack_from("<I", footer, field)[0]
    count = struct.unpack_from("<I", footer, vector)[0]
    return list(struct.iter_unpack("<qi4xq", footer[vector + 4 : vector + 4 + 24 * count]))


def read_rows(data):
    """Yield the rows of a file by its index, each checked by its hashes."""
    file = pa.ipc.open_file(data)
    end, pairs = file.get_batch_with_custom_metadata(file.num_record_batches - 1)
    index = index_of(pairs if end.num_rows == 0 else None, file.schema)
    places = [(row["offset"], row["metadata_bytes"], row["body_bytes"]) for row in index["rows"]]
    assert footer_places(data)[:-1] == places, "the footer"
    for row, (offset, *sizes) in zip(index["rows"], places, strict=True):
        stored = data[offset : offset + sum(sizes)]
        if "row_xxh3" in row:
            assert xxh3(stored) == row["row_xxh3"], "row_xxh3"
        else:
            start, end = row["pages_offset"] - offset, row["pages_offset"] - offset + row["pages_bytes"]
            hashes = xxh3(stored[:start]), xxh3(stored[end:])
            assert hashes == (row["head_xxh3"], row["tail_xxh3"]), "head_xxh3 or tail_xxh3"
        yield pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(stored)), file.schema)


def values(array):
    raw, width = np.frombuffer(array.buffers()[1] or b"", np.uint8), array.type.bit_width // 8
    return raw[array.offset * width : (array.offset + len(array)) * width]


def row_of(batch):
    """Return the small columns of a row as Python values, its pages as bytes, and its tables as arrays."""
    batch.validate(full=True)
    row = dict(zip(batch.schema.names, batch.columns, strict=True))
    [name] = [name for name, column in row.items() if name.startswith("p") and "pool" in name and column[0].is_valid]
    pages, lists = row[name][0], row["block_table"][0].values
    if name == "pool_bytes":
        pool = np.frombuffer(pages.as_py(), np.uint8)
    else:
        planes = pages.values.flatten() if pa.types.is_struct(pages.values.type) else [pages.values]
        pool = np.stack([values(plane.flatten()) for plane in planes], axis=-1).reshape(-1)
    small = {name: column[0].as_py() for name, column in row.items() if "pool" not in name and name != "block_table"}
    if lists is not None:
        seq_ptr = np.asarray(lists.offsets if len(lists) else [0])
        small["tables"] = seq_ptr - seq_ptr[0], np.asarray(lists.flatten())
    return {**small, "pool": pool, "cut": name != "pool_bytes"}


def tensor_of(rows, group):
    """Join the rows of a tensor, check them against its descriptor, and say what they are."""
    rows.sort(key=lambda row: (row["page_offset"], row["descriptor"] is None))
    first, raw = rows[0], rows[0]["descriptor"]
    assert (raw[:5], int.from_bytes(raw[6:10], "little")) == (b"HRRY\x01", len(raw)), "the descriptor"
    fields = dict(zip(FIELDS.split(), struct.unpack_from("<BBI3QQIQIIBI", raw, 14), strict=True))
    bits = BITS.get(fields["tag"]) or struct.unpack_from("<I", raw, len(raw) - 20)[0]
    page_elems = fields["page_size"] * fields["num_heads"] * fields["head_dim"]
    elems, pool = fields["num_pages"] * page_elems, np.concatenate([row["pool"] for row in rows])
    assert len(pool) == (-(-elems // 4) * 3 if bits == 6 else -(-elems * bits // 8)), "size of the pool"
    stated = ["key", "value", "fused"].index(first["kv_role"]), first["layer_index"] is None
    assert stated == (fields["role"], fields["layer"] == 0xFFFFFFFF), "columns and descriptor"
    seq_ptr, block_table = group["tables"] = group.get("tables", first.get("tables"))
    assert (len(seq_ptr), seq_ptr[-1]) == (fields["num_seqs"] + 1, len(block_table)), "seq_ptr"
    assert not len(block_table) or block_table.max() < fields["num_pages"], "page ids"
    piece_bytes = page_elems * bits // 8 if first["cut"] else 1 << 20
    if first["page_checksums"] is not None:
        stored = [one for row in rows for one in row["page_checksums"]]
        pieces = [pool[start : start + piece_bytes] for start in range(0, len(pool), piece_bytes)]
        assert stored == [xxh3_64_intdigest(piece) for piece in pieces], "page checksums"
    sequences = group["sequences"] = group.get("sequences", first["sequences"])
    tokens = []
    for (start, end), sequence in zip(pairwise(seq_ptr), sequences, strict=True):
        lone = fields["num_tokens"] if len(sequences) == 1 else None
        count = lone if sequence["num_tokens"] is None else sequence["num_tokens"]
        if first["cut"] and bits % 8 == 0 and count is not None:
            slots = pool.reshape(-1, piece_bytes)[block_table[start:end]].tobytes()
            tokens.append(xxh3(slots[: count * piece_bytes // fields["page_size"]]))
    return {
        "key": [first[name] for name in ("kv_group", "layer_index", "layer_name", "kv_role", "component")],
        "descriptors": [raw.hex(), (first["original_descriptor"] or b"").hex()],
        "pool": xxh3(pool),
        "tables": [seq_ptr.tolist(), block_table.tolist(), sequences],
        "parameters": [xxh3(buffer) for buffer in first["quantization_buffers"] or ()],
        "tokens": tokens,
    }


def read(rows):
    """Return what all tensors are, from rows in any order."""
    by_tensor, groups = {}, {}
    for row in map(row_of, rows):
        by_tensor.setdefault(row["tensor_index"], []).append(row)
    return [tensor_of(rows, groups.setdefault(rows[0]["kv_group"], {})) for _, rows in sorted(by_tensor.items())]


if __name__ == "__main__":
    for path in sys.argv[1:]:
        try:
            found = read(read_rows(memoryview(pa.memory_map(path).read_buffer())))
        except AssertionError as refusal:
            found = str(refusal)
        sys.stdout.write(json.dumps(found) + "\n")
