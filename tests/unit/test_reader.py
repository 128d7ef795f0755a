"""Reading snapshots: what is listed, what is mapped, what is copied, and what verify() says. Damage: faults/."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fsspec.callbacks import Callback

from hurray_arrow import (
    BlockPagedTensor,
    HurrayArrowError,
    SnapshotCorruptError,
    SnapshotMismatchError,
    UnsupportedError,
    copy_snapshot,
    open_snapshot,
    write_snapshot,
)
from hurray_arrow.snapshot.files import FileRange
from tests.faults.outcome import is_same
from tests.faults.small import METADATA, small_tensors
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES, make_tensor, sample_facts


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "s.arrow"
    write_snapshot(made, small_tensors(), metadata=METADATA, page_align_bytes=64)
    return made


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_the_length_of_a_single_sequence_is_total_tokens(tmp_path, profile):
    path, copy = tmp_path / "one.arrow", tmp_path / "copy.arrow"
    tensor = make_tensor(block_tables=[[3, 1]], seq_lens=None, total_tokens=13, token_ids=[range(13)], page_size=7)
    assert tensor.sequences.seq_lens is None
    write_snapshot(path, [tensor], profile=profile)
    copy_snapshot(path, copy, tokens=(0, 9))
    with open_snapshot(path) as snapshot, open_snapshot(copy) as copied:
        assert snapshot.match_prefix([*range(11), 99]).num_tokens == 11
        assert snapshot.group_tables(0).sequences.seq_lens.tolist() == [13]
        # The tensor is as it was written.
        assert snapshot.read().sequences.equals(tensor.sequences)
        assert np.array_equal(copied.read().gather(0), tensor.gather(0)[:9])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_what_was_written_is_read(tmp_path, scheme, index_type):
    path = tmp_path / "s.arrow"
    written = [
        make_tensor(element_type=name, index_type=index_type, quantization=scheme, layer_index=number, seed=number)
        for number, name in enumerate(("int8", "uint4") if scheme != "none" else ALL_ELEMENT_TYPES)
    ]
    facts = sample_facts(written[0].page_size)
    written.append(make_tensor(quantization=scheme, element_type="int8", index_type=index_type, **facts))
    write_snapshot(path, written)
    with open_snapshot(path) as snapshot:
        report = snapshot.verify()
        found = list(snapshot.iter_tensors())
    assert report.num_tensors == len(written)
    assert report.num_pages == sum(tensor.num_pages for tensor in written)
    assert report.page_bytes == sum(tensor.buffers[0].nbytes for tensor in written)
    assert report.unverified == ()
    for one, other in zip(found, written, strict=True):
        assert one.equals(other)
        assert one.descriptor.encode() == other.descriptor.encode()
        assert one.problems == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"block_tables": [], "seq_lens": []},
        {"block_tables": [[], [], []], "seq_lens": [0, 0, 0]},
        {"block_tables": [[], []], "seq_lens": [0, 0], "num_pages": 0},
        {"block_tables": [[3], [1, 2]], "seq_lens": [1, 2], "page_size": 1},
        {"num_heads": 0},
        {"head_dim": 0},
        {"head_dim": 1, "num_heads": 1, "page_size": 1, "num_pages": 1, "block_tables": [[0]], "seq_lens": [1]},
        {
            "element_type": "int2",
            "page_size": 3,
            "num_heads": 1,
            "head_dim": 1,
            "block_tables": [[6, 0]],
            "seq_lens": [4],
        },
        {"seq_lens": None, "total_tokens": 19},
    ],
    ids=str,
)
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("profile", ["share", "archive"])
def test_shapes_at_the_edge(tmp_path, changes, mapped, profile):
    path = tmp_path / "s.arrow"
    tensor = make_tensor(**changes)
    write_snapshot(path, [tensor], profile=profile)
    with open_snapshot(path, mapped=mapped) as snapshot:
        snapshot.verify()
        found = snapshot.read()
    assert found.equals(tensor)
    assert found.page_pool.shape == tensor.page_pool.shape
    assert found.page_pool.dtype == tensor.page_pool.dtype


def test_entries_say_what_is_there(path):
    with open_snapshot(path) as snapshot:
        entries = snapshot.entries
        assert snapshot.profile == "share"
        assert snapshot.url == str(path)
        assert snapshot.metadata["model"] == METADATA["model"]
        assert snapshot.unverified == ()
        assert "4 tensors" in repr(snapshot)
    assert [entry.tensor_index for entry in entries] == [0, 1, 2, 3]
    assert [entry.key for entry in entries] == [
        (0, 0, "l.0", "key", "values"),
        (0, 0, "l.0", "key", "scales"),
        (1, 17, None, "value", "values"),
        (2, None, None, "fused", "values"),
    ]
    assert [entry.page_shape for entry in entries] == [(2, 1, 3), (2, 1, 1), (2, 1, 3), (1, 1, 3)]
    assert [(entry.num_pages, entry.num_seqs, entry.num_rows) for entry in entries] == [
        (5, 3, 1),
        (5, 3, 1),
        (3, 2, 1),
        (3, 2, 1),
    ]
    assert [entry.element_type for entry in entries] == ["bfloat16", "float32", "bfloat16", "int4"]
    assert {(entry.index_type, entry.encoding) for entry in entries} == {("uint32", "plain")}
    assert sum(entry.stored_bytes for entry in entries) < path.stat().st_size


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"layer_index": 0}, [0, 1]),
        ({"layer_index": [17, 0]}, [0, 1, 2]),
        ({"layer_index": np.int64(17)}, [2]),
        ({"layer_name": "l.0", "component": "scales"}, [1]),
        ({"kv_role": ["value", "fused"]}, [2, 3]),
        ({"kv_group": {1, 2}, "kv_role": "fused"}, [3]),
        ({"component": "values"}, [0, 2, 3]),
        ({"layer_index": 9}, []),
        ({"layer_index": []}, []),
    ],
)
def test_selectors(path, selectors, expected):
    written = small_tensors()
    with open_snapshot(path) as snapshot:
        assert [entry.tensor_index for entry in snapshot.select(**selectors)] == expected
        found = list(snapshot.iter_tensors(**selectors))
        assert all(one.equals(written[number]) for one, number in zip(found, expected, strict=True))
        if len(expected) == 1:
            assert snapshot.read(**selectors).equals(written[expected[0]])
        else:
            with pytest.raises(LookupError) as caught:
                snapshot.read(**selectors)
            assert str(len(expected)) in str(caught.value)
            assert all(f"tensor {number}:" in str(caught.value) for number in expected)


def test_pages_are_views_of_the_mapping_and_small_buffers_are_aligned(path, monkeypatch):
    sources = []
    real = FileRange._take

    def take(self, *args, **keywords):
        real(self, *args, **keywords)
        sources.append(self)

    monkeypatch.setattr(FileRange, "_take", take)
    with open_snapshot(path) as snapshot:
        found = list(snapshot.iter_tensors())
        places = [snapshot._rows._places[entry.tensor_index][0] for entry in snapshot.entries]
    for tensor, place in zip(found, places, strict=True):
        assert tensor.page_pool.ctypes.data - sources[0].address == place.pages_offset
        for buffer in tensor.buffers[1:]:
            assert buffer.ctypes.data % 64 == 0
        for array in (tensor.page_pool, tensor.block_table, tensor.seq_ptr, *tensor.buffers):
            assert not array.flags.writeable
    # Tables of a group are the same memory for all of its tensors.
    assert found[0].block_table.ctypes.data == found[1].block_table.ctypes.data
    assert np.shares_memory(found[0].seq_ptr, found[1].seq_ptr)


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_outlive_the_snapshot_and_the_file(path, mapped):
    snapshot = open_snapshot(path, mapped=mapped)
    found = list(snapshot.iter_tensors())
    snapshot.close()
    snapshot.close()
    path.unlink()
    del snapshot
    gc.collect()
    assert all(map(is_same, found, [_grouped(tensor, n) for n, tensor in enumerate(small_tensors())]))


def _grouped(tensor, number):
    return replace(tensor, kv_group=[0, 0, 1, 2][number])


def test_listing_touches_no_row_and_reading_only_what_is_asked_for(path, monkeypatch):
    read = []
    real = FileRange.read

    def note(self, offset, size):
        read.append((offset, offset + size))
        return real(self, offset, size)

    with open_snapshot(path) as snapshot:
        places = [snapshot._rows._places[entry.tensor_index][0] for entry in snapshot.entries]
    monkeypatch.setattr(FileRange, "read", note)
    with open_snapshot(path, mapped=False) as snapshot:
        assert len(snapshot.entries) == 4
        assert min(start for start, end in read if end > start) >= places[-1].block.end
        read.clear()
        snapshot.read(kv_role="fused")
        assert touched(places, read) == {3}
        read.clear()
        # The second tensor of a group needs the first one's tables, and nothing of the others.
        snapshot.read(component="scales")
        assert touched(places, read) == {0, 1}


def touched(places, read):
    """Return the numbers of the rows that any of the ranges read lies in."""
    inside = ((n, place.offset, place.block.end) for n, place in enumerate(places))
    return {n for n, first, last in inside for start, end in read if start < last and end > first}


def test_expectations(path):
    for expect in ({}, None, {"model.revision": "9f2c"}, {"model.name": "m", "groups": METADATA["groups"]}):
        with open_snapshot(path, expect=expect) as snapshot:
            assert len(snapshot.entries) == 4
    for field, expected, found in (
        ("model.revision", "9f2d", "9f2c"),
        ("model.rope.theta", 1e4, None),
        ("tenant", "t1", None),
        ("model", {"name": "m"}, METADATA["model"]),
        ("model.name.first", "m", None),
    ):
        with pytest.raises(SnapshotMismatchError) as caught:
            open_snapshot(path, expect={field: expected})
        assert (caught.value.field, caught.value.expected, caught.value.found) == (field, expected, found)


def test_verifying_tells_everything_at_once(path):
    with open_snapshot(path) as snapshot:
        places = [snapshot._rows._places[entry.tensor_index][0] for entry in snapshot.entries]
    content = bytearray(path.read_bytes())
    page_bytes = places[0].pages_bytes // 5
    content[places[0].pages_offset + page_bytes] ^= 1
    content[places[0].pages_offset + 4 * page_bytes] ^= 1
    content[places[2].offset + 100] ^= 1
    path.write_bytes(content)
    with open_snapshot(path) as snapshot:
        with pytest.raises(SnapshotCorruptError) as caught:
            snapshot.verify()
        assert [(problem.code, problem.where) for problem in caught.value.problems] == [
            ("page_checksum", "tensor 0.page_pool[1]"),
            ("page_checksum", "tensor 0.page_pool[4]"),
            ("row_checksum", "tensor 2.head_xxh3"),
        ]
        assert caught.value.url == str(path)
        # What is whole can still be read; a damaged page is found where it is asked for.
        assert snapshot.read(component="scales").equals(small_tensors()[1])
        assert snapshot.read(kv_role="fused", verify=True).equals(small_tensors()[3])
        assert not snapshot.read(kv_role="key", component="values").equals(small_tensors()[0])
        with pytest.raises(SnapshotCorruptError):
            snapshot.read(kv_role="key", component="values", verify=True)
        with pytest.raises(SnapshotCorruptError):
            snapshot.read(kv_role="value")


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_of_many_damaged_pages_a_hundred_are_listed_and_all_are_counted(tmp_path, profile):
    """A small file must not become a large list."""
    path = tmp_path / "s.arrow"
    pool = np.arange(1013, dtype=np.uint8).reshape(1013, 1, 1, 1)
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[5]], seq_lens=[1], kv_role="key", element_type="uint8")
    write_snapshot(path, [tensor], profile=profile)
    with open_snapshot(path) as snapshot:
        rows = snapshot._rows.rows_of(0)
        snapshot._rows.rows_of = lambda _index: [replace(rows[0], page_checksums=np.arange(1013, dtype=np.uint64))]
        for check in (snapshot.verify, lambda: snapshot.read(verify=True)):
            with pytest.raises(SnapshotCorruptError) as caught:
                check()
            assert caught.value.codes == ["page_checksum"] * 101
            assert "1013" in caught.value.problems[-1].message


def test_trusting_a_file_skips_its_hashes(path):
    with open_snapshot(path) as snapshot:
        place = snapshot._rows._places[0][0]
    content = bytearray(path.read_bytes())
    # A hash in the pad of the row's header is wrong and nothing else.
    at = content.index(b"hurray_arrow.pad", place.offset)
    content[at] ^= 0x20
    path.write_bytes(content)
    with open_snapshot(path) as snapshot, pytest.raises(SnapshotCorruptError) as caught:
        snapshot.read(kv_role="key", component="values")
    assert caught.value.codes == ["row_checksum"]
    with open_snapshot(path, trusted=True) as snapshot:
        assert snapshot.read(kv_role="key", component="values").equals(small_tensors()[0])
        with pytest.raises(SnapshotCorruptError):
            snapshot.verify()


def test_progress_of_verifying_counts_what_is_stored(path):
    class Told(Callback):
        def set_size(self, size):
            self.total = size

    told = Told()
    with open_snapshot(path) as snapshot:
        snapshot.verify(progress=told)
        assert told.value == told.total == sum(entry.stored_bytes for entry in snapshot.entries)


def test_many_threads_read_one_snapshot(tmp_path):
    path = tmp_path / "s.arrow"
    written = [make_tensor(layer_index=number, seed=number) for number in range(11)]
    write_snapshot(path, written)
    with open_snapshot(path) as snapshot, ThreadPoolExecutor(8) as pool:
        numbers = [number % 11 for number in range(88)]
        found = list(pool.map(lambda number: snapshot.read(layer_index=number, verify=True), numbers))
    assert all(tensor.equals(written[number]) for tensor, number in zip(found, numbers, strict=True))


def test_the_order_of_tensors_is_the_writers(tmp_path):
    path = tmp_path / "s.arrow"
    order = [7, 3, 11, 0]
    write_snapshot(path, [make_tensor(layer_index=number) for number in order])
    with open_snapshot(path) as snapshot:
        assert [tensor.layer_index for tensor in snapshot.iter_tensors()] == order


def test_a_selector_that_cannot_be_is_an_error(path):
    with open_snapshot(path) as snapshot, pytest.raises(ValueError):
        snapshot.read(kv_role="keys")


def test_every_error_is_of_the_family():
    assert issubclass(SnapshotCorruptError, HurrayArrowError)
    assert issubclass(SnapshotCorruptError, OSError)
    assert issubclass(UnsupportedError, NotImplementedError)
    assert issubclass(SnapshotMismatchError, ValueError)
