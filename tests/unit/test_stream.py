"""Streams through pipes, sockets and files that take or give little at a time."""

from __future__ import annotations

import gc
import io
import json
import os
import socket
import struct
import threading
import tracemalloc
import weakref
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
import xxhash

import hurray_arrow as ha
from hurray_arrow.arrow.small_columns import small_xxh3
from hurray_arrow.snapshot.pipes import PipeSink, PipeSource
from tests.faults.small import METADATA, small_tensors
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor, sample_facts

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "index.schema.json").read_text())


def sent(tensors, **options):
    sink = io.BytesIO()
    ha.write_stream(sink, tensors, **options)
    return sink.getvalue()


def is_same(found, expected):
    names = ("layer_name", "component", "original_descriptor")
    return found.equals(expected) and all(getattr(found, name) == getattr(expected, name) for name in names)


def index_of(stream):
    reader = pa.ipc.open_stream(stream)
    while True:
        batch, pairs = reader.read_next_batch_with_custom_metadata()
        if not batch.num_rows:
            return json.loads(pairs[b"hurray_arrow.index"])


def test_what_comes_is_what_went():
    tensors = small_tensors()
    reader = ha.read_stream(io.BytesIO(sent(tensors, metadata=METADATA)))
    assert reader.metadata["model"] == METADATA["model"]
    assert (reader.metadata["profile"], reader.metadata["page_align_bytes"]) == ("share", 64)
    assert reader.schema.names[:2] == ["tensor_index", "layer_index"]
    assert not reader.complete
    found = list(reader)
    assert (reader.complete, reader.num_tensors, len(found)) == (True, 4, 4)
    assert all(map(is_same, found, tensors))
    assert [tensor.kv_group for tensor in found] == [0, 0, 1, 2]
    assert all(tensor.page_pool.ctypes.data % 64 == 0 for tensor in found)
    assert all(buffer.ctypes.data % 64 == 0 for tensor in found for buffer in tensor.buffers if buffer.nbytes)
    assert next(reader, None) is None


@pytest.mark.parametrize("element", ALL_ELEMENT_TYPES)
def test_every_element_type(element):
    tensor = make_tensor(element_type=element, **sample_facts())
    [found] = ha.read_stream(io.BytesIO(sent([tensor])))
    assert is_same(found, tensor)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme(scheme):
    tensor = make_tensor(element_type="int8", quantization=scheme, index_type="uint64")
    [found] = ha.read_stream(io.BytesIO(sent([tensor])))
    assert is_same(found, tensor)


def test_arrow_reads_a_stream_as_it_reads_any():
    table = pa.ipc.open_stream(sent(small_tensors())).read_all()
    assert table.column("component").to_pylist() == ["values", "scales", "values", "values"]
    assert table.column("page_pool").to_pylist()[0] is not None


def test_no_tensors():
    reader = ha.read_stream(io.BytesIO(sent([])))
    assert list(reader) == []
    assert reader.complete


class Trickle(io.RawIOBase):
    """Gives and takes 7 bytes at most; knows how many were taken of it."""

    def __init__(self, data=b""):
        self.data = io.BytesIO(data)
        self.calls = 0

    def readable(self):
        return True

    def writable(self):
        return True

    def readinto(self, target):
        self.calls += 1
        return self.data.readinto(memoryview(target)[:7])

    def write(self, data):
        self.calls += 1
        return self.data.write(bytes(data[:7]))


def test_short_reads_and_short_writes_are_looped():
    expected = small_tensors()
    sink = Trickle()
    ha.write_stream(sink, expected)
    stream = sink.data.getvalue()
    assert sink.calls >= len(stream) // 7
    source = Trickle(stream + b"behind")
    assert all(map(is_same, ha.read_stream(source), expected))
    assert source.data.read() == b"behind"


class OnlyRead:
    """What some HTTP responses are."""

    def __init__(self, data):
        self._data = io.BytesIO(data)
        self.asked = []

    def read(self, size):
        self.asked.append(size)
        return self._data.read(min(size, 11))


def test_a_source_that_only_reads_is_not_read_behind_the_end():
    expected = small_tensors()
    source = OnlyRead(sent(expected) + sent(expected[:1]) + b"behind")
    assert all(map(is_same, ha.read_stream(source), expected))
    [again] = ha.read_stream(source)
    assert is_same(again, expected[0])
    assert source.read(99) == b"behind"
    assert -1 not in source.asked


def test_through_a_pipe_and_what_lies_behind_it():
    expected = small_tensors()
    reading, writing = os.pipe()

    def send():
        with os.fdopen(writing, "wb", buffering=0) as sink:
            ha.write_stream(sink, expected)
            sink.write(b"behind")

    thread = threading.Thread(target=send)
    thread.start()
    with os.fdopen(reading, "rb", buffering=0) as source, ha.read_stream(source) as reader:
        found = list(reader)
        assert source.read(99) == b"behind"
    thread.join()
    assert all(map(is_same, found, expected))


def test_through_a_socket_each_tensor_arrives_before_the_next_is_made():
    expected = small_tensors()[::2]
    here, there = socket.socketpair()
    arrived = threading.Event()

    def tensors():
        yield expected[0]
        assert arrived.wait(30)
        yield expected[1]

    plan = ha.SchemaPlan.of(expected)
    thread = threading.Thread(target=lambda: ha.write_stream(there, tensors(), plan=plan))
    thread.start()
    with here, there:
        here.settimeout(30)
        reader = ha.read_stream(here)
        assert is_same(next(reader), expected[0])
        arrived.set()
        assert is_same(next(reader), expected[1])
        assert next(reader, None) is None
        thread.join()


def test_nothing_is_written_of_what_is_refused_at_once():
    sink = io.BytesIO()
    tensors = small_tensors()
    with pytest.raises(ha.UnsupportedError):
        ha.write_stream(sink, tensors, plan=ha.SchemaPlan.of(tensors[1:2]))
    with pytest.raises(ValueError, match="metadata keys"):
        ha.write_stream(sink, tensors, metadata={"modle": {}})
    with pytest.raises(ValueError, match="encoding"):
        ha.write_stream(sink, tensors, plan=ha.SchemaPlan.of(tensors, encoding="byte_planes"))
    assert sink.getvalue() == b""


def test_a_refused_tensor_leaves_an_incomplete_stream():
    first, *_ = small_tensors()
    sink = io.BytesIO()
    with pytest.raises(ha.InvariantError) as error:
        ha.write_stream(sink, [first, first])
    assert error.value.codes == ["tensor_key_duplicate"]
    reader = ha.read_stream(io.BytesIO(sink.getvalue()))
    assert is_same(next(reader), first)
    with pytest.raises(ha.SnapshotIncompleteError, match="1 tensor came whole"):
        next(reader)


def test_listed_companions_have_to_come():
    tensors = small_tensors()[:1]
    with pytest.raises(ha.SnapshotError, match="'scales' is missing"):
        sent(tensors, metadata=METADATA)
    assert ha.read_stream(io.BytesIO(sent(tensors, metadata=METADATA, partial=True))).metadata["partial"] is True


def test_expectations():
    stream = sent(small_tensors(), metadata=METADATA)
    ha.read_stream(io.BytesIO(stream), expect={"model.revision": "9f2c"})
    with pytest.raises(ha.SnapshotMismatchError) as error:
        ha.read_stream(io.BytesIO(stream), expect={"model.revision": "other"})
    assert (error.value.field, error.value.found) == ("model.revision", "9f2c")


def test_pages_without_checksums_are_said_to_be_unverified():
    reader = ha.read_stream(io.BytesIO(sent(small_tensors(), checksums=False)))
    assert len(list(reader)) == 4
    assert [str(problem.code) for problem in reader.unverified] == ["unverified"] * 4


def test_a_file_is_no_stream(tmp_path):
    path = tmp_path / "s.arrow"
    ha.write_snapshot(path, small_tensors())
    with path.open("rb") as file, pytest.raises(ha.SnapshotCorruptError) as error:
        ha.read_stream(file)
    assert error.value.codes == ["arrow_invalid"]


def test_an_arrow_stream_of_others_is_no_snapshot():
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int8())])) as writer:
        writer.write_batch(pa.record_batch({"a": pa.array([5], pa.int8())}))
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.read_stream(io.BytesIO(sink.getvalue()))
    assert error.value.codes == ["metadata_invalid"]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("descriptor", pa.duration("s")),
        ("kv_group", pa.list_(pa.uint32())),
        ("tensor_index", pa.utf8()),
        ("block_table", pa.list_(pa.list_(pa.uint16()))),
        ("page_pool", pa.list_(pa.list_(pa.uint16(), 6))),
        ("page_pool_1", pa.large_list(pa.uint16())),
        ("pool_bytes", pa.large_list(pa.uint8())),
    ],
)
def test_a_column_of_another_type_is_refused_before_any_row(column, kind):
    schema = pa.ipc.open_stream(sent(small_tensors())).schema
    other = schema.set(schema.get_field_index(column), pa.field(column, kind))
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.read_stream(io.BytesIO(other.serialize().to_pybytes()))
    assert error.value.codes == ["arrow_schema"]
    assert error.value.problems[0].where == column


def test_a_column_of_the_future_is_ignored():
    schema = pa.ipc.open_stream(sent(small_tensors())).schema.append(pa.field("page_pool_note", pa.duration("s")))
    assert ha.read_stream(io.BytesIO(schema.serialize().to_pybytes())).schema == schema


def test_a_reader_that_failed_stays_failed():
    reader = ha.read_stream(io.BytesIO(sent(small_tensors())[:-300]))
    with pytest.raises(ha.SnapshotIncompleteError, match="4 tensors came whole"):
        list(reader)
    with pytest.raises(ha.SnapshotError, match="earlier read failed"):
        next(reader)


@pytest.mark.parametrize("answer", [None, 0, -1, 10**9, "7"])
def test_a_sink_that_does_not_count_is_refused(answer):
    class Sink:
        def write(self, _):
            return answer

    with pytest.raises(ha.SnapshotError, match="says that it took"):
        ha.write_stream(Sink(), small_tensors())


def test_a_source_that_does_not_count_is_refused():
    class Source:
        def readinto(self, _):
            return None

    with pytest.raises(ha.SnapshotError, match="says that it gave None"):
        ha.read_stream(Source())
    with pytest.raises(TypeError):
        PipeSource(object())
    with pytest.raises(TypeError):
        PipeSink(object())


def test_a_source_that_fails_says_how_much_came():
    class Source(Trickle):
        def readinto(self, target):
            count = super().readinto(target)
            if not count:
                raise ConnectionResetError(104, "reset by peer")
            return count

    reader = ha.read_stream(Source(sent(small_tensors())[:-20]))
    with pytest.raises(
        ha.SnapshotIncompleteError, match="4 tensors came whole, then reading failed: Connection"
    ) as error:
        list(reader)
    assert isinstance(error.value.__cause__, ConnectionResetError)


def test_a_broken_pipe_is_the_callers_to_see():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as sink, pytest.raises(BrokenPipeError):
        ha.write_stream(sink, small_tensors())


def large(layer_index):
    """16 MiB of pages, tables of a few bytes."""
    pool = np.full((64, 128, 4, 256), layer_index, np.int16)
    return ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[3, 5], [5]], seq_lens=[131, 7], token_ids=[range(131), None], kv_role="key",
        layer_index=layer_index,
    )  # fmt: skip


def test_memory_is_bounded_by_one_tensor():
    plan = ha.SchemaPlan.of([large(0)])
    stream = sent((large(layer) for layer in range(5)), plan=plan)
    one = large(0).page_pool.nbytes
    reader = ha.read_stream(io.BytesIO(stream))
    gone = weakref.ref(next(reader).page_pool.base)
    gc.collect()
    assert gone() is None
    del gone
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(4):
        assert next(reader).layer_index is not None
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert one < peak < 1.1 * one
    assert next(reader, None) is None


def test_pages_are_not_copied_on_the_way_in():
    tensor = large(3)
    stream = sent([tensor])
    reader = ha.read_stream(io.BytesIO(stream))
    tracemalloc.start()
    found = next(reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.equals(tensor)
    assert peak < 1.1 * tensor.page_pool.nbytes


def test_the_index_is_what_its_schema_says():
    index = index_of(sent(small_tensors()))
    jsonschema.validate(index, SCHEMA)
    assert index["kind"] == "stream"
    places = {"offset", "metadata_bytes", "body_bytes", "pages_offset", "head_xxh3", "row_xxh3"}
    assert all(not places & set(row) for row in index["rows"])
    broken = {**index, "rows": [{**index["rows"][0], "offset": 8}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**index, "kind": "file"}, SCHEMA)


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_the_index_of_a_file_is_what_the_schema_says_too(tmp_path, profile):
    path = tmp_path / "s.arrow"
    ha.write_snapshot(path, small_tensors(), profile=profile)
    reader = pa.ipc.open_file(path)
    _, pairs = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
    index = json.loads(pairs[b"hurray_arrow.index"])
    jsonschema.validate(index, SCHEMA)
    assert (index["kind"], "small_xxh3" in index["rows"][0]) == ("file", False)
    del index["rows"][0]["offset"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(index, SCHEMA)


# -- small_xxh3 --------------------------------------------------------------------------------------------------------


def buffers_digest(*buffers):
    return xxhash.xxh3_64(b"".join(struct.pack("<Q", len(each)) + each for each in buffers)).hexdigest()


def int32s(*values):
    return np.array(values, "<i4").tobytes()


def test_small_xxh3_by_hand():
    """Every kind of buffer, written out; page columns are not looked at. pyarrow fills a null struct with zeros."""
    batch = pa.record_batch(
        {
            "number": pa.array([7], pa.uint32()),
            "text": pa.array(["né"], pa.utf8()),
            "none": pa.array([None], pa.utf8()),
            "large": pa.array([b"xyz"], pa.large_binary()),
            "lists": pa.array([[[5, 2], [], [9]]], pa.list_(pa.list_(pa.uint32()))),
            "nothing": pa.array([None], pa.list_(pa.uint8())),
            "structs": pa.array([[{"a": 3, "b": True}, None, {"a": None, "b": False}]]),
            "pairs": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
            "nulls": pa.array([None], pa.null()),
            "page_pool": pa.array([[1.5]], pa.large_list(pa.float32())),
            "page_pool_12": pa.array([[1.5]], pa.large_list(pa.float32())),
            "pool_bytes": pa.array([b"pool"], pa.large_binary()),
            "page_pool_x": pa.array([3], pa.int8()),
        }
    )
    expected = buffers_digest(
        b"", np.array([7], "<u4").tobytes(),
        b"", int32s(0, 3), "né".encode(),
        b"\0", int32s(0, 0), b"",
        b"", np.array([0, 3], "<i8").tobytes(), b"xyz",
        b"", int32s(0, 3), b"", int32s(0, 2, 2, 3), b"", int32s(5, 2, 9),
        b"\0", int32s(0, 0), b"", b"",
        b"", int32s(0, 3), b"\5", b"\3", np.array([3, 0, 0], "<i8").tobytes(), b"", b"\1",
        b"", b"", b"\1\2",
        b"", b"\3",
    )  # fmt: skip
    assert small_xxh3(batch) == expected


def test_small_xxh3_does_not_depend_on_slices():
    columns = {
        "number": pa.array([3, None, 7, 11], pa.int16()),
        "flags": pa.array([True, None, False, True]),
        "text": pa.array(["a", "bc", None, "def"]),
        "lists": pa.array([[1], None, [2, 3, 5], []], pa.large_list(pa.uint8())),
        "structs": pa.array([[{"a": 1}], [], [{"a": None}, {"a": 2}, None], None]),
        "pairs": pa.array([[1, 2], [3, 5], None, [7, 11]], pa.list_(pa.int8(), 2)),
        "maps": pa.array([[(1, 2)], [], [(3, 4), (5, 6)], None], pa.map_(pa.int8(), pa.int16())),
        "tags": pa.array([b"abc", b"def", b"ghi", b"jkl"], pa.binary(3)),
    }
    batch = pa.record_batch(columns)
    for number in range(4):
        piece = batch.slice(number, 1)
        rows = piece.to_pylist()
        alone = pa.record_batch({name: pa.array([rows[0][name]], batch.schema.field(name).type) for name in columns})
        assert small_xxh3(piece) == small_xxh3(alone)
    assert len({small_xxh3(batch.slice(number, 1)) for number in range(4)}) == 4


def test_small_xxh3_survives_ipc():
    tensors = small_tensors()
    batches = list(pa.ipc.open_stream(sent(tensors)))
    stated = [row["small_xxh3"] for row in index_of(sent(tensors))["rows"]]
    assert [small_xxh3(batch) for batch in batches[:4]] == stated


def test_small_xxh3_of_a_type_that_has_none():
    with pytest.raises(ha.UnsupportedError):
        small_xxh3(pa.record_batch({"view": pa.array(["a"], pa.string_view())}))
