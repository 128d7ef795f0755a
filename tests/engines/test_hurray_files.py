"""HRRYFILE containers: what goes in comes out, by pyhurray alone as well; other layouts are refused by name."""

from __future__ import annotations

import json
import os
import stat
import struct

import hurray
import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.engines.hurray_files import FACTS_KEY, read_container, write_container
from hurray_arrow.errors import InvariantError, SnapshotCorruptError, UnsupportedError
from tests.conformance import make_vectors
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor, sample_facts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.hrry"


def tensors():
    return [
        make_tensor(**sample_facts()),
        make_tensor(layer_index=3, layer_name="model.3.attn", component="scales", element_type="float32", kv_group=4),
        make_tensor(
            layer_index=5, element_type="int4", index_type="uint64", seq_lens=[13, None, 10, None], total_tokens=27
        ),
    ]


def test_what_goes_in_comes_out(path):
    given = tensors()
    write_container(path, given, metadata={"tenant": "t-7", "user": {"n": 2**60}}, kv={"arch": "x", "layers": 3})
    found = read_container(path)
    assert list(found.tensors) == ["layers.17.value.values", "model.3.attn.value.scales", "layers.5.value.values"]
    for one, other in zip(given, found.tensors.values(), strict=True):
        assert other.equals(one)
        assert other.kv_group == one.kv_group
    assert found.metadata == {"tenant": "t-7", "user": {"n": str(2**60)}}
    assert found.kv == {"arch": "x", "layers": 3}
    assert found.skipped == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["cache.hrry"]  # noqa: PTH208


@pytest.mark.parametrize("quantization", SCHEMES)
def test_every_scheme(path, quantization):
    given = make_tensor(quantization=quantization, element_type="int8", index_type="uint64")
    write_container(path, {"any name": given})
    assert read_container(path).tensors["any name"].equals(given)


def test_every_element_type(path):
    given = {name: make_tensor(element_type=name, page_size=4) for name in ALL_ELEMENT_TYPES}
    write_container(path, given)
    found = read_container(path).tensors
    assert [name for name, tensor in given.items() if not tensor.equals(found[name])] == []


def test_pyhurray_reads_it_alone(path):
    given = make_tensor(**sample_facts())
    write_container(path, {"k": given})
    loaded = hurray.load(str(path))["k"]
    assert loaded.descriptor.encode() == given.descriptor.encode()
    assert [np.asarray(loaded.buffer(i)).tobytes() for i in range(3)] == [b.tobytes() for b in given.buffers]


def test_a_container_and_a_snapshot_hold_the_same(path, tmp_path):
    given = tensors()
    ha.write_snapshot(tmp_path / "a.arrow", given)
    with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
        write_container(path, snapshot.iter_tensors(), metadata=snapshot.metadata)
    found = read_container(path)
    ha.write_snapshot(tmp_path / "b.arrow", found.tensors.values())
    with ha.open_snapshot(tmp_path / "b.arrow") as snapshot:
        assert all(a.equals(b) for a, b in zip(given, snapshot.iter_tensors(verify=True), strict=True))
    assert found.metadata["profile"] == "share"


def test_a_container_of_others_has_no_facts(path):
    theirs = make_vectors.tensor(make_vectors.case(num_seqs=0, shape=[0, 3, 5], device="cuda"))
    hurray.save(str(path), {"a": theirs}, kv={"x": 1})
    found = read_container(path)
    assert found.tensors["a"].sequences.seq_lens is None
    # What was a device's is in memory now; the producer's bytes are kept.
    assert found.tensors["a"].original_descriptor == theirs.descriptor.encode()
    assert (found.metadata, found.kv) == ({}, {"x": 1})


def test_other_layouts_are_refused_by_name_or_skipped_and_listed(path):
    block_paged = make_vectors.tensor(make_vectors.case(num_seqs=0, shape=[0, 3, 5]))
    sparse = hurray.sparse_coo(np.array([1.5, 2.5], np.float32), np.array([[0], [3]], np.uint64), (7,), copy=True)
    hurray.save(str(path), {"w": hurray.zeros((4, 3), dtype=hurray.float32), "kv": block_paged, "s": sparse})
    with pytest.raises(UnsupportedError) as caught:
        read_container(path)
    assert "'w' (RowMajorLayout)" in str(caught.value)
    assert "'s' (CooLayout)" in str(caught.value)
    found = read_container(path, skip_other_layouts=True)
    assert list(found.tensors) == ["kv"]
    assert found.skipped == {"w": "RowMajorLayout", "s": "CooLayout"}


def test_an_existing_file_is_replaced_only_on_demand(path):
    write_container(path, [make_tensor()])
    with pytest.raises(FileExistsError):
        write_container(path, [make_tensor(seed=5)])
    assert read_container(path).tensors["layers.17.value.values"].equals(make_tensor())
    write_container(path, [make_tensor(seed=5)], overwrite=True)
    assert read_container(path).tensors["layers.17.value.values"].equals(make_tensor(seed=5))


def test_two_tensors_of_one_name(path):
    with pytest.raises(InvariantError) as caught:
        write_container(path, [make_tensor(), make_tensor()])
    assert caught.value.codes == ["tensor_key_duplicate"]
    assert not list(path.parent.iterdir())


def test_a_failed_write_leaves_nothing(path):
    with pytest.raises((hurray.FileError, hurray.UnsupportedError, TypeError, ValueError)):
        write_container(path, [make_tensor()], kv={"bad": object()})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 1}', '{"metadata": {}, "sequences": [{"ids": 3}], "tensors": {}, "version": 1}', "1"],
)
def test_facts_that_cannot_be_read(path, text):
    hurray.save(str(path), {}, kv={FACTS_KEY: text})
    with pytest.raises(InvariantError) as caught:
        read_container(path)
    assert caught.value.codes == ["metadata_invalid"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_name", 3), ("component", None), ("component", ["x"]), ("kv_group", "a"), ("kv_group", -1)],
)
def test_facts_of_another_type(path, key, value):
    write_container(path, {"k": make_tensor()})
    facts = json.loads(hurray.load_kv(str(path))[FACTS_KEY])
    facts["tensors"]["k"][key] = value
    hurray.save(str(path), hurray.load(str(path)), kv={FACTS_KEY: json.dumps(facts)})
    with pytest.raises(InvariantError) as caught:
        read_container(path)
    assert caught.value.codes == ["metadata_invalid"]


#: Places in the trailer, and in an entry of the index behind its name.
TRAILER = {"index_offset": -40, "index_bytes": -32, "kv_offset": -24, "kv_bytes": -16}
ENTRY = {"descriptor_offset": 0, "descriptor_bytes": 8, "data_offset": 12}


def damaged(content, place, value, kind="<Q"):
    """Return a container with one number changed and the index' checksum left out."""
    changed = bytearray(content)
    struct.pack_into(kind, changed, place % len(content), value)
    # Bit 2 of the flags says that there is a checksum.
    changed[12] &= ~4
    struct.pack_into("<I", changed, len(content) - 12, 0)
    return bytes(changed)


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**40, 2**32 - 1, 1 << 20])
def test_sizes_beyond_the_end_are_refused_before_pyhurray_asks_for_so_much_memory(path, value):
    """pyhurray 0.1 ends the process."""
    write_container(
        path, {"k": make_tensor(quantization="per_channel_dims", element_type="int8")}, kv={"list": ["a", "b"]}
    )
    content = path.read_bytes()
    index_offset, _, kv_offset, kv_bytes = struct.unpack_from("<QQQI", content, len(content) - 40)
    descriptor = content.index(b"HRRY\x01", 64)
    handles = content.index(struct.pack("<QI", make_tensor(element_type="int8").buffers[0].nbytes, 64), descriptor)
    array = content.index(b"list\x07\x01", kv_offset, kv_offset + kv_bytes) + 6
    places = [(place, "<I" if name == "kv_bytes" else "<Q") for name, place in TRAILER.items()]
    places += [(index_offset + 8 + 3 + at, "<I" if name == "descriptor_bytes" else "<Q") for name, at in ENTRY.items()]
    places += [
        (index_offset, "<Q"),
        (kv_offset, "<I"),
        (array, "<I"),
        (array + 4, "<I"),
        (handles, "<Q"),
        (handles + 16, "<Q"),
    ]
    assert len(places) == 13
    for place, kind in places:
        if not value % 2 ** (8 * struct.calcsize(kind)):
            continue
        path.write_bytes(damaged(content, place, value % 2 ** (8 * struct.calcsize(kind)), kind))
        with pytest.raises(SnapshotCorruptError) as caught:
            read_container(path)
        assert set(caught.value.codes) <= {"footer_invalid", "index_invalid"}, place
    path.write_bytes(damaged(content, 16, 0, "<I"))
    with pytest.raises(SnapshotCorruptError):
        read_container(path)
    path.write_bytes(damaged(content, 40, 0))
    assert list(read_container(path).tensors) == ["k"]


def test_buffers_that_lie_on_each_other_do_not_add_up(path):
    """A megabyte that a thousand tensors name would be a gigabyte in memory."""
    large = hurray.Tensor(bytes(1 << 16), hurray.uint8, [1 << 16])
    hurray.save(str(path), {f"t{n}": large for n in range(3)})
    content = bytearray(path.read_bytes())
    (index_offset,) = struct.unpack_from("<Q", content, len(content) - 40)
    # Every entry becomes the first one's: names of two bytes, 32 bytes behind each.
    first = content[index_offset + 12 : index_offset + 44]
    for n in range(1, 3):
        content[index_offset + 12 + 36 * n : index_offset + 44 + 36 * n] = first
    path.write_bytes(damaged(bytes(content[: 1 << 17]) + bytes(content[index_offset:]), -40, 1 << 17))
    with pytest.raises(SnapshotCorruptError) as caught:
        read_container(path, skip_other_layouts=True)
    assert caught.value.codes == ["index_invalid"]


def test_a_descriptor_that_is_none(path):
    write_container(path, {"k": make_tensor()})
    content = path.read_bytes()
    path.write_bytes(damaged(content, content.index(b"HRRY\x01", 64), 0, "<I"))
    with pytest.raises(SnapshotCorruptError) as caught:
        read_container(path)
    assert caught.value.codes == ["index_invalid"]


def test_facts_of_a_newer_version(path):
    hurray.save(str(path), {}, kv={FACTS_KEY: '{"version": 2}'})
    with pytest.raises(UnsupportedError):
        read_container(path)


def test_a_file_that_is_no_container(path):
    path.write_bytes(b"nothing")
    with pytest.raises(OSError):
        read_container(path)
