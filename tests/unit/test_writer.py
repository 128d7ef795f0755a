"""What a writer puts into a file, checked against the format page with nothing but pyarrow, struct and xxhash.

Full disks, killed writers and rivals for the name: faults/test_atomic_writing.py.
"""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pyarrow as pa
import pytest
import xxhash
import zstandard
from fsspec.callbacks import Callback

from hurray_arrow import (
    BlockPagedTensor,
    InvariantError,
    SchemaPlan,
    SnapshotError,
    SnapshotWriter,
    UnsupportedError,
    open_snapshot,
    write_snapshot,
)
from tests.faults.forgery import RowBytes, schema_xxh3
from tests.sample import make_tensor, sample_facts

OTHER = {"block_tables": [[6, 0, 3], [2], [], [2, 1]], "seq_lens": [11, 4, 0, 9]}


def tensors():
    return [
        make_tensor(layer_index=5, kv_role="key", **sample_facts()),
        make_tensor(layer_index=5, element_type="float32", head_dim=1, component="scales", **sample_facts()),
        make_tensor(layer_index=None, element_type="int4", head_dim=12, quantization="per_channel_heads", **OTHER),
        make_tensor(layer_index=6, element_type="int2", **OTHER),
        make_tensor(layer_index=7, num_pages=0, block_tables=[[], [], []], seq_lens=[0, 0, 0]),
        make_tensor(layer_index=6, kv_role="key", **OTHER),
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.arrow"


def taken_apart(path):
    """Return the file's bytes, its pyarrow reader, its index and the end batch's custom metadata."""
    content = path.read_bytes()
    reader = pa.ipc.open_file(pa.BufferReader(content))
    end, pairs = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
    assert end.num_rows == 0
    if b"hurray_arrow.index" in pairs:
        text = pairs[b"hurray_arrow.index"]
    else:
        text = zstandard.decompress(base64.b64decode(pairs[b"hurray_arrow.index.zst"]))
    return content, reader, json.loads(text), pairs


def xxh3(data):
    return xxhash.xxh3_64_hexdigest(data)


@pytest.mark.parametrize("align", [64, 4096, 1 << 21])
def test_the_file_is_laid_out_as_the_format_page_says(path, align):
    written = tensors()
    write_snapshot(path, written, page_align_bytes=align)
    content, reader, index, pairs = taken_apart(path)
    rows = index["rows"]
    assert reader.num_record_batches == len(rows) + 1 == len(written) + 1
    assert (index["version"], index["kind"], index["num_rows"], index["num_tensors"]) == (1, "file", 6, 6)
    assert pairs[b"hurray_arrow.index_xxh3"].decode() == xxh3(pairs[b"hurray_arrow.index"])
    assert index["schema_xxh3"] == schema_xxh3(reader.schema)
    assert content[:8] == b"ARROW1\0\0"
    assert rows[0]["offset"] == 8 + reader.schema.serialize().size
    for number, (row, tensor) in enumerate(zip(rows, written, strict=True)):
        end = row["offset"] + row["metadata_bytes"] + row["body_bytes"]
        pages_end = row["pages_offset"] + row["pages_bytes"]
        assert row["head_xxh3"] == xxh3(content[row["offset"] : row["pages_offset"]])
        assert row["tail_xxh3"] == xxh3(content[pages_end:end])
        pool = tensor.buffers[0].tobytes()
        assert content[row["pages_offset"] : pages_end] == pool
        if pool:
            assert row["pages_offset"] % align == 0
        else:
            assert (row["pages_offset"], row["pages_bytes"]) == (end, 0)
        _, custom = reader.get_batch_with_custom_metadata(number)
        assert set(custom[b"hurray_arrow.pad"]) <= {ord("0")}
        assert len(custom[b"hurray_arrow.pad"]) < align
        following = rows[number + 1]["offset"] if number + 1 < len(rows) else None
        assert following in {None, end}, "rows lie one behind the other"
        everything = RowBytes(bytearray(content[row["offset"] : end]))
        assert everything.body == row["metadata_bytes"]


def test_every_page_has_its_checksum_where_the_index_says(path):
    written = tensors()
    write_snapshot(path, written)
    content, _, index, _ = taken_apart(path)
    for row, tensor in zip(index["rows"], written, strict=True):
        piece = tensor.element_type.page_bytes(tensor.descriptor.page_elems) or 1 << 20
        pieces = range(0, row["pages_bytes"], piece)
        stored = np.frombuffer(content, "<u8", len(pieces), row.get("checksums_offset", 0))
        at = row["pages_offset"]
        found = [xxhash.xxh3_64_intdigest(content[at + p : at + min(p + piece, row["pages_bytes"])]) for p in pieces]
        assert stored.tolist() == found
        assert ("checksums_offset" in row) == bool(found)


@pytest.mark.parametrize(
    ("num_pages", "head_dim", "checksums", "stated"),
    [(128, 128, True, True), (127, 130, True, False), (128, 127, True, False), (128, 128, False, False)],
)
def test_what_lies_before_many_pages_is_hashed_without_their_checksums_too(
    path, num_pages, head_dim, checksums, stated
):
    tensor = make_tensor(num_pages=num_pages, page_size=16, num_heads=4, head_dim=head_dim)
    write_snapshot(path, [tensor], checksums=checksums)
    content, _, index, _ = taken_apart(path)
    [row] = index["rows"]
    assert ("bare_head_xxh3" in row) == stated
    if stated:
        start, end = row["checksums_offset"], row["checksums_offset"] + 8 * num_pages
        assert row["offset"] + row["metadata_bytes"] <= start < end <= row["pages_offset"]
        assert row["bare_head_xxh3"] == xxh3(content[row["offset"] : start] + content[end : row["pages_offset"]])


def test_pieces_of_a_pool_that_cannot_be_cut_are_not_its_pages(path):
    tensor = make_tensor(element_type="int2", num_pages=129, page_size=1, num_heads=3, head_dim=50_001)
    write_snapshot(path, [tensor])
    assert "bare_head_xxh3" not in taken_apart(path)[2]["rows"][0]


def test_pool_bytes_has_one_checksum_per_mib(path):
    tensor = make_tensor(element_type="int2", num_pages=7, page_size=1, num_heads=3, head_dim=500_001)
    assert tensor.buffers[0].nbytes == 2_625_006
    write_snapshot(path, [tensor])
    batch = taken_apart(path)[1].get_batch(0)
    pool = tensor.buffers[0].tobytes()
    assert batch["page_checksums"].to_pylist() == [
        [xxhash.xxh3_64_intdigest(pool[start : start + (1 << 20)]) for start in (0, 1 << 20, 2 << 20)]
    ]
    with open_snapshot(path) as snapshot:
        assert snapshot.verify().page_bytes == len(pool)


def test_columns_hold_what_the_format_page_says(path):
    written = tensors()
    write_snapshot(path, written, metadata={"tenant": "t"})
    _, reader, index, _ = taken_apart(path)
    table = reader.read_all()
    assert reader.schema.metadata[b"hurray_arrow.format"] == b"1"
    assert json.loads(reader.schema.metadata[b"hurray_arrow.snapshot"])["tenant"] == "t"
    expected = {
        "tensor_index": [0, 1, 2, 3, 4, 5],
        "layer_index": [5, 5, None, 6, 7, 6],
        "layer_name": [None] * 6,
        "kv_role": ["key", "value", "value", "value", "value", "key"],
        "component": ["values", "scales", "values", "values", "values", "values"],
        "kv_group": [0, 0, 1, 1, 2, 1],
        "page_offset": [0] * 6,
        "descriptor": [tensor.descriptor.encode() for tensor in written],
        "original_descriptor": [None] * 6,
    }
    for name, values in expected.items():
        assert table[name].to_pylist() == values, name
        if name in index["rows"][0]:
            assert [row[name] for row in index["rows"]] == values
    # Tables and sequences are written once in a group.
    assert table["block_table"].is_null().to_pylist() == [False, True, False, True, False, True]
    assert table["sequences"].is_null().to_pylist() == [False, True, False, True, False, True]
    assert table["block_table"].to_pylist()[2] == OTHER["block_tables"]
    assert [s["num_tokens"] for s in table["sequences"].to_pylist()[2]] == OTHER["seq_lens"]
    # One page column per class in order of first use, and exactly one filled.
    assert reader.schema.names[13:] == ["page_pool", "page_pool_1", "page_pool_2", "pool_bytes"]
    filled = [[n for n in reader.schema.names[13:] if row[n] is not None] for row in table.to_pylist()]
    assert filled == [["page_pool"], ["page_pool_1"], ["page_pool_2"], ["pool_bytes"], ["page_pool"], ["page_pool"]]
    assert [len(parameters or ()) for parameters in table["quantization_buffers"].to_pylist()] == [0, 0, 2, 0, 0, 0]
    for row, tensor in zip(index["rows"], written, strict=True):
        assert row["num_pages"] == tensor.num_pages
        assert row["num_seqs"] == tensor.num_seqs
        assert row["element_type"] == tensor.element_type.name
        assert tuple(row["page_shape"]) == tensor.descriptor.page_shape
        assert (row["encoding"], row["index_type"]) == ("plain", "uint32")


def test_every_field_called_not_null_has_no_nulls(path):
    write_snapshot(path, tensors())

    def nulls(array, field, where):
        found = [where] if array.null_count and not field.nullable else []
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        if storage.type.num_fields:
            children = storage.flatten() if pa.types.is_struct(storage.type) else [storage.flatten()]
            for number, child in enumerate(children):
                inner = storage.type.field(number)
                found += nulls(child, inner, f"{where}.{inner.name}")
        return found

    reader = pa.ipc.open_file(path)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        assert [nulls(batch[field.name], field, field.name) for field in reader.schema] == [[]] * len(reader.schema)


def test_a_long_index_is_compressed(path):
    written = [make_tensor(layer_index=n, seed=n, head_dim=1) for n in range(60)]
    write_snapshot(path, written, page_align_bytes=64)
    pairs = taken_apart(path)[3]
    assert b"hurray_arrow.index" not in pairs
    assert pairs[b"hurray_arrow.index_xxh3"].decode() == xxh3(pairs[b"hurray_arrow.index.zst"])
    frame = base64.b64decode(pairs[b"hurray_arrow.index.zst"])
    assert zstandard.get_frame_parameters(frame).content_size > 16 << 10
    with open_snapshot(path) as snapshot:
        assert all(one.equals(other) for one, other in zip(snapshot.iter_tensors(), written, strict=True))


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_the_same_tensors_make_the_same_bytes(path, profile):
    metadata = {"id": "i", "created": "2025-01-02T03:04:05Z"}
    write_snapshot(path, tensors(), metadata=metadata, profile=profile)
    content = path.read_bytes()
    with SnapshotWriter(
        path,
        plan=SchemaPlan.of(tensors(), encoding="byte_planes" if profile == "archive" else "plain"),
        metadata=metadata,
        overwrite=True,
        profile=profile,
    ) as writer:
        for tensor in tensors():
            writer.write(tensor)
    assert path.read_bytes() == content


def test_index_types_decide_the_tables_width(path):
    for types, storage in ((("uint32", "uint32"), pa.list_), (("uint32", "uint64"), pa.large_list)):
        written = [make_tensor(index_type=kind, layer_index=n) for n, kind in enumerate(types)]
        write_snapshot(path, written, overwrite=True)
        kind = taken_apart(path)[1].schema.field("block_table").type.value_type.storage_type
        value = pa.uint32() if types[1] == "uint32" else pa.uint64()
        assert kind == storage(pa.field("item", value, nullable=False))
        with open_snapshot(path) as snapshot:
            found = list(snapshot.iter_tensors())
        assert [tensor.block_table.dtype for tensor in found] == list(types)
        assert all(one.equals(other) for one, other in zip(found, written, strict=True))


def test_what_was_not_declared_is_refused_before_anything_is_written(path):
    with SnapshotWriter(path, plan=SchemaPlan.of([make_tensor()])) as writer:
        (hidden,) = path.parent.iterdir()
        size = writer._file.position
        for tensor in (make_tensor(head_dim=13), make_tensor(element_type="uint16"), make_tensor(index_type="uint64")):
            with pytest.raises(UnsupportedError):
                writer.write(tensor)
            assert writer._file.position == size
        # What cannot be cut into pages needs no column of its own.
        writer.write(make_tensor(element_type="int2"))
        assert hidden.exists()
    with open_snapshot(path) as snapshot:
        assert snapshot.read().equals(make_tensor(element_type="int2"))


def test_groups(path):
    same, other = {"layer_index": 1}, {"layer_index": 2, **OTHER}
    written = [
        make_tensor(**same),
        make_tensor(**other),
        make_tensor(kv_role="key", **same),
        make_tensor(kv_role="key", **other, ids=["a", None, None, None]),
        make_tensor(kv_role="fused", kv_group=7, **same),
        make_tensor(kv_role="fused", **other),
    ]
    write_snapshot(path, written)
    with open_snapshot(path) as snapshot:
        assert [entry.kv_group for entry in snapshot.entries] == [0, 1, 0, 2, 7, 1]
        assert all(one.equals(two) for one, two in zip(snapshot.iter_tensors(), written, strict=True))


def test_a_key_is_taken_once(path):
    tensor = make_tensor(layer_index=1, layer_name="a")
    different = [
        make_tensor(layer_index=2, layer_name="a"),
        make_tensor(layer_index=1, layer_name="b"),
        make_tensor(layer_index=1),
        make_tensor(layer_index=1, layer_name="a", kv_role="key"),
        make_tensor(layer_index=1, layer_name="a", component="record.x"),
        make_tensor(layer_index=1, layer_name="a", kv_group=9),
    ]
    write_snapshot(path, [tensor, *different])
    with pytest.raises(InvariantError) as caught:
        write_snapshot(path, [tensor, *different, make_tensor(layer_index=1, layer_name="a", seed=5)], overwrite=True)
    assert caught.value.codes == ["tensor_key_duplicate"]
    with open_snapshot(path) as snapshot:
        assert len(snapshot.entries) == 7


def test_buffers_are_borrowed_only_until_write_returns(path):
    """An engine uses its memory again for the next layer, tables included."""
    pool, tables = make_tensor().page_pool.copy(), np.array([5, 2, 6, 0], np.uint32)
    seq_ptr = np.array([0, 1, 1, 4], np.uint32)

    def layer(number):
        return BlockPagedTensor.from_arrays(
            pool, tables, seq_ptr, total_tokens=15, kv_role="key", layer_index=number, element_type="bfloat16"
        )

    expected = []
    with SnapshotWriter(path, plan=SchemaPlan.of([layer(0)])) as writer:
        for number in range(3):
            pool.view(np.uint8)[...] = number + 1
            tables[...] = [number, 2, 6, 0]
            seq_ptr[1] = number
            seq_ptr[2] = number
            expected.append((pool.copy(), tables.copy(), seq_ptr.copy()))
            writer.write(layer(number))
            pool.view(np.uint8)[...] = tables[...] = 0
    with open_snapshot(path) as snapshot:
        snapshot.verify()
        for tensor, arrays in zip(snapshot.iter_tensors(), expected, strict=True):
            for found, wanted in zip((tensor.page_pool, tensor.block_table, tensor.seq_ptr), arrays, strict=True):
                assert found.tobytes() == wanted.tobytes()


def test_a_pool_that_is_its_own_block_table(path):
    """The sink knows the pages by their address, which here is that of the table too."""
    pool = np.array([3, 0, 2, 1], np.uint32).reshape(4, 1, 1, 1)
    tensor = BlockPagedTensor.from_arrays(
        pool, pool.reshape(-1), np.array([0, 4], np.uint32), kv_role="key", total_tokens=4
    )
    with pytest.raises(SnapshotError):
        write_snapshot(path, [tensor])
    assert list(path.parent.iterdir()) == []
    copied = BlockPagedTensor.from_arrays(
        pool, pool.reshape(-1).copy(), np.array([0, 4], np.uint32), kv_role="key", total_tokens=4
    )
    write_snapshot(path, [copied])
    with open_snapshot(path) as snapshot:
        snapshot.verify()
        assert snapshot.read().equals(tensor)


def test_without_checksums(path):
    written = tensors()
    write_snapshot(path, written, checksums=False)
    content, reader, index, _ = taken_apart(path)
    assert all("checksums_offset" not in row for row in index["rows"])
    assert reader.read_all()["page_checksums"].null_count == 6
    with open_snapshot(path) as snapshot:
        report = snapshot.verify()
        assert [problem.code for problem in report.unverified] == ["unverified"] * 5
        assert all(one.equals(other) for one, other in zip(snapshot.iter_tensors(), written, strict=True))
    at = index["rows"][0]["pages_offset"]
    path.write_bytes(content[:at] + b"\xa5" + content[at + 1 :])
    with open_snapshot(path) as snapshot:
        snapshot.verify()


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_progress_counts_page_bytes(path, profile):
    class Told(Callback):
        sizes, values = [], []

        def set_size(self, size):
            self.sizes.append(size)

        def relative_update(self, inc=1):
            self.values.append(inc)

    told = Told()
    told.sizes, told.values = [], []
    write_snapshot(path, tensors(), progress=told, profile=profile)
    total = sum(tensor.buffers[0].nbytes for tensor in tensors())
    assert told.sizes == [total]
    assert sum(told.values) == total
    assert len(told.values) >= 5


def test_producers_bytes_are_kept(path):
    original = make_tensor()
    longer = [*(buffer.tobytes() for buffer in original.buffers[:2]), original.buffers[2].tobytes() + b"\0" * 8]
    with pytest.warns(UserWarning, match="seq_ptr"):
        cut = BlockPagedTensor.from_buffers(original.descriptor, longer, strict=False, sequences=original.sequences)
    write_snapshot(path, [cut])
    with open_snapshot(path) as snapshot:
        found = snapshot.read()
    assert found.original_descriptor == cut.original_descriptor
    assert found.equals(cut)


@pytest.mark.parametrize(
    "arguments",
    [
        {"page_align_bytes": 96},
        {"page_align_bytes": 1 << 22},
        {"metadata": {"colour": "red"}},
        {"metadata": {"user": float("nan")}},
        {"profile": "keep"},
        {"encoding": "byte_planes"},
        {"profile": "archive", "encoding": "rot13"},
    ],
)
def test_wrong_arguments_leave_no_file(path, arguments):
    with pytest.raises(ValueError):
        write_snapshot(path, tensors(), **arguments)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"path": io.BytesIO()}, r"path: BytesIO, expected a path or a URL; write_stream\(\)"),
        ({"plan": []}, r"plan: list, expected SchemaPlan.of\(tensors\)"),
        ({"metadata": "toy"}, "metadata: str, expected a dict"),
    ],
)
def test_arguments_of_another_kind_are_named(tmp_path, how, said):
    arguments = {"path": tmp_path / "new.arrow", "plan": SchemaPlan.of([make_tensor()]), **how}
    with pytest.raises(TypeError, match=said):
        SnapshotWriter(**arguments)
    assert list(tmp_path.iterdir()) == []
