"""Sets: what tensor- and pipeline-parallel ranks wrote of one batch, put together or refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.snapshot import member_name
from tests.sample import make_tensor, sample_facts

SET_ID = "4f0c1a52-0b9e-4c53-9c43-3f6d5b1f8e11"
#: 7 heads, shared out to three ranks.
RANGES = [(0, 2), (2, 3), (3, 7)]


def whole_tensors(layers=(0, 1), *, values_type="bfloat16", **overrides):
    """Keys, per-head scales and one value tensor a layer, all with 7 heads."""
    facts = {**sample_facts(), "num_heads": 7, **overrides}
    tensors = []
    for layer in layers:
        named = {"layer_index": layer, "layer_name": f"l.{layer}"}
        tensors += [
            make_tensor(kv_role="key", seed=layer, **named, **facts),
            make_tensor(
                kv_role="key", component="scales", element_type="float32", head_dim=1, seed=layer, **named, **facts
            ),
            make_tensor(kv_role="value", seed=7 + layer, element_type=values_type, **named, **facts),
        ]
    return tensors


def write_member(folder, tensors, member, members, **metadata):
    path = Path(folder, member_name("cache", member, members))
    metadata = {"model": {"name": "m", "revision": "r1"}, **metadata}
    given = {"id": SET_ID, "member": member, "members": members}
    ha.write_snapshot(path, tensors, metadata={"set": given, **metadata}, overwrite=True)
    return path


def topology(rank, ranges=RANGES, **more):
    return {"tp_rank": rank, "tp_size": len(ranges), "head_range": list(ranges[rank]), **more}


@pytest.fixture
def ranks():
    return list(zip(*(ops.split_heads(tensor, RANGES) for tensor in whole_tensors()), strict=True))


@pytest.fixture
def paths(tmp_path, ranks):
    return [write_member(tmp_path, tensors, rank, 3, topology=topology(rank)) for rank, tensors in enumerate(ranks)]


def same_values(found, expected):
    return (
        np.array_equal(found.buffers[0], expected.buffers[0])
        and found.sequences.equals(expected.sequences)
        and (found.layer_index, found.kv_role, found.component, found.num_heads)
        == (expected.layer_index, expected.kv_role, expected.component, expected.num_heads)
        and np.array_equal(found.block_table, expected.block_table)
        and np.array_equal(found.seq_ptr, expected.seq_ptr)
    )


def codes(error):
    return list(dict.fromkeys(error.value.codes))


def test_members_that_are_only_claimed_are_not_counted_through(tmp_path):
    """What a file says of its set is a number that anybody can write."""
    for member in (1, 3):
        write_member(tmp_path, [make_tensor(layer_index=member)], member, 10_000_000)
    with pytest.raises(ha.SnapshotIncompleteError, match=r"0 to 9999999 these are missing: 0, 2, 4, 5, .*21, …$"):
        ha.open_snapshot_set(str(tmp_path / "cache.m*.arrow"))


def test_a_set_reads_as_the_cache_that_was_split(tmp_path, paths):
    expected = whole_tensors()
    assert [path.name for path in paths] == ["cache.m0of3.arrow", "cache.m1of3.arrow", "cache.m2of3.arrow"]
    with ha.open_snapshot_set(str(tmp_path / "cache.m*.arrow")) as found:
        assert (found.id, len(found.members), len(found.entries)) == (SET_ID, 3, 6)
        assert all(map(same_values, found.iter_tensors(verify=True), expected))
        assert [entry.page_shape[1] for entry in found.entries] == [7] * 6
        assert [entry.tensor_index for entry in found.entries] == list(range(6))
        one = found.read(layer_index=1, kv_role="value", heads="merged")
        assert same_values(one, expected[5])
        assert one.page_pool.ctypes.data % 64 == 0
        parts = found.read(layer_index=1, kv_role="value", heads="members")
        assert [part.num_heads for part in parts] == [2, 1, 4]
        assert found.metadata["topology"] == {"head_range": [0, 7]}
        assert "set" not in found.metadata
        assert found.metadata["model"] == {"name": "m", "revision": "r1"}
    assert same_values(one, expected[5])
    sizes = [sum(entry.stored_bytes for entry in snapshot.entries) for snapshot in found.members]
    assert sum(entry.stored_bytes for entry in found.entries) == sum(sizes)


def test_the_metadata_decides_and_not_names_or_order(tmp_path, paths):
    names = ["z.arrow", "a.arrow", "m.bin"]
    moved = [path.rename(tmp_path / name) for path, name in zip(paths, names, strict=True)]
    with ha.open_snapshot_set(moved[::-1]) as found:
        assert [snapshot.metadata["set"]["member"] for snapshot in found.members] == [0, 1, 2]
        assert all(map(same_values, found.iter_tensors(), whole_tensors()))


def test_selectors_and_wrong_words(paths):
    with ha.open_snapshot_set(paths) as found:
        assert len(found.select(kv_role="value")) == 2
        with pytest.raises(LookupError, match="3 tensors match"):
            found.read(layer_index=0)
        with pytest.raises(ValueError, match="expected 'merged' or 'members'"):
            found.read(layer_index=0, kv_role="value", heads="all")


def test_members_are_fetched_at_the_same_time(paths, monkeypatch):
    barrier = threading.Barrier(3, timeout=30)
    read = ha.Snapshot.read

    def waiting(self, **selectors):
        barrier.wait()
        return read(self, **selectors)

    monkeypatch.setattr(ha.Snapshot, "read", waiting)
    with ha.open_snapshot_set(paths) as found:
        assert found.read(layer_index=0, kv_role="value").num_heads == 7
    assert barrier.n_waiting == 0


@pytest.mark.parametrize("there", [[0], [1, 2], [0, 2]])
def test_a_missing_member_is_named(paths, there):
    missing = ", ".join(str(member) for member in range(3) if member not in there)
    with pytest.raises(ha.SnapshotIncompleteError, match=f"0 to 2 these are missing: {missing}$"):
        ha.open_snapshot_set([paths[member] for member in there])


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        ha.open_snapshot_set(str(tmp_path / "cache.m*.arrow"))
    with pytest.raises(ValueError, match="no snapshots"):
        ha.open_snapshot_set([])


def test_a_member_twice(tmp_path, paths):
    copy = tmp_path / "copy.arrow"
    copy.write_bytes(paths[1].read_bytes())
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.open_snapshot_set([*paths, copy])
    assert codes(error) == ["set_member_duplicate"]
    assert str(copy) in str(error.value)
    assert str(paths[1]) in str(error.value)


@pytest.mark.parametrize(
    ("changed", "field", "found"),
    [
        ({"set": {"id": "other", "member": 1, "members": 3}}, "set.id", "other"),
        ({"set": {"id": SET_ID, "member": 1, "members": 4}}, "set.members", 4),
        ({"model": {"name": "m", "revision": "r2"}}, "model", {"name": "m", "revision": "r2"}),
        ({"adapter": "lora-3"}, "adapter", "lora-3"),
        ({"topology": {"tp_rank": 1}}, "topology.head_range", None),
    ],
)
def test_what_belongs_to_another(paths, ranks, *, changed, field, found):
    write_member(paths[1].parent, ranks[1], 1, 3, **{"topology": topology(1), **changed})
    with pytest.raises(ha.SnapshotMismatchError) as error:
        ha.open_snapshot_set(paths)
    assert (error.value.field, error.value.found) == (field, found)
    assert str(paths[1]) in error.value.__notes__[0]


def test_a_snapshot_of_no_set(tmp_path, paths):
    alone = tmp_path / "alone.arrow"
    ha.write_snapshot(alone, whole_tensors())
    with pytest.raises(ha.SnapshotMismatchError) as error:
        ha.open_snapshot_set([*paths, alone])
    assert (error.value.field, error.value.found) == ("set.id", None)


@pytest.mark.parametrize(
    "changed",
    [
        {"set": {"id": SET_ID, "member": 3, "members": 3}},
        {"set": {"id": SET_ID, "member": "1", "members": 3}},
        {"set": {"id": 5, "member": 1, "members": 3}},
        {"topology": {"head_range": [2]}},
        {"topology": {"head_range": [3, 2]}},
        {"topology": {"head_range": "2-3"}},
        {"topology": {"head_range": [2, 3], "head_replica": -1}},
        {"topology": {"head_range": [2, 3], "pp_rank": "0"}},
    ],
)
def test_metadata_that_means_nothing(tmp_path, paths, ranks, changed):
    write_member(tmp_path, ranks[1], 1, 3, **{"topology": topology(1), **changed})
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.open_snapshot_set(paths)
    assert codes(error) == ["metadata_invalid"]


@pytest.mark.parametrize("ranges", [[(0, 2), (2, 4), (3, 7)], [(0, 2), (3, 4), (4, 8)], [(1, 3), (3, 4), (4, 8)]])
def test_heads_with_a_gap_or_an_overlap(tmp_path, paths, ranks, ranges):
    for rank, tensors in enumerate(ranks):
        write_member(tmp_path, tensors, rank, 3, topology=topology(rank, ranges))
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.open_snapshot_set(paths)
    assert codes(error) == ["head_range_invalid"]


def test_heads_that_a_member_does_not_have(tmp_path, paths, ranks):
    ranges = [(0, 3), (3, 4), (4, 8)]
    for rank, tensors in enumerate(ranks):
        write_member(tmp_path, tensors, rank, 3, topology=topology(rank, ranges))
    with ha.open_snapshot_set(paths) as found, pytest.raises(ha.SnapshotCorruptError) as error:
        found.read(layer_index=0, kv_role="value")
    assert codes(error) == ["head_range_invalid"]


# -- replicas ----------------------------------------------------------------------------------------------------------


def replica(rank, copy):
    return topology(rank, [(0, 2), (2, 3), (3, 7), (3, 7)], head_replica=copy)


def write_replicas(folder, ranks, last, copy=1):
    tensors = [*ranks, last]
    return [
        write_member(folder, tensors[rank], rank, 4, topology=replica(rank, copy if rank == 3 else 0))
        for rank in range(4)
    ]


def other_values(tensor, page, offset):
    """Return the tensor with one byte changed: ``offset`` bytes into a page."""
    raw = tensor.buffers[0].copy()
    raw[page * raw.size // tensor.num_pages + offset] ^= 1
    pool = raw.view(tensor.page_pool.dtype).reshape(tensor.page_pool.shape)
    return replace(tensor, page_pool=pool)


def test_replicas_are_recognised_and_taken_once(tmp_path, ranks):
    paths = write_replicas(tmp_path, ranks, ranks[2])
    with ha.open_snapshot_set(paths) as found:
        assert all(map(same_values, found.iter_tensors(), whole_tensors()))
        assert found.entries[0].page_shape[1] == 7
        assert len(found.read(layer_index=0, kv_role="value", heads="members")) == 4


def test_replicas_that_differ_in_a_token(tmp_path, ranks):
    changed = [other_values(tensor, 5, 3) if tensor.kv_role == "value" else tensor for tensor in ranks[2]]
    paths = write_replicas(tmp_path, ranks, changed)
    with ha.open_snapshot_set(paths) as found:
        assert found.read(layer_index=0, kv_role="key", component="values").num_heads == 7
        with pytest.raises(ha.SnapshotCorruptError) as error:
            found.read(layer_index=0, kv_role="value")
    assert codes(error) == ["replica_mismatch"]


def test_the_same_replica_twice_is_an_overlap(tmp_path, ranks):
    paths = write_replicas(tmp_path, ranks, ranks[2], copy=0)
    with pytest.raises(ha.SnapshotCorruptError, match="member 2 and member 3 both have heads") as error:
        ha.open_snapshot_set(paths)
    assert codes(error) == ["head_range_invalid"]


def test_what_every_rank_has_whole_is_compared_and_taken_once(tmp_path):
    facts = {**sample_facts(), "layer_index": 3}
    values = make_tensor(kv_role="fused", num_heads=4, seed=5, **facts)
    indexer = make_tensor(kv_role="fused", component="indexer", num_heads=1, head_dim=3, element_type="uint8", **facts)
    shared = make_tensor(kv_role="fused", component="scales", num_heads=1, head_dim=1, element_type="float32", **facts)
    ranges = [(0, 1), (1, 4)]
    split = ops.split_heads([values, indexer, shared], ranges)
    paths = [write_member(tmp_path, part, rank, 2, topology=topology(rank, ranges)) for rank, part in enumerate(split)]
    with ha.open_snapshot_set(paths) as found:
        assert [entry.page_shape[1] for entry in found.entries] == [4, 1, 1]
        assert all(map(same_values, found.iter_tensors(), [values, indexer, shared]))
    two = ops.split_heads([values, indexer, shared], [(0, 2), (2, 4)])
    for rank, part in enumerate(two):
        write_member(tmp_path, part, rank, 2, topology=topology(rank, [(0, 2), (2, 4)]))
    with ha.open_snapshot_set(paths) as found:
        assert all(map(same_values, found.iter_tensors(), [values, indexer, shared]))
    write_member(
        tmp_path, [two[1][0], other_values(indexer, 2, 1), shared], 1, 2, topology=topology(1, [(0, 2), (2, 4)])
    )
    with ha.open_snapshot_set(paths) as found, pytest.raises(ha.SnapshotCorruptError) as error:
        found.read(component="indexer")
    assert codes(error) == ["replica_mismatch"]


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"block_tables": [[5, 2, 6], [], [5, 0], [4]]}, "block_table[5]"),
        ({"block_tables": [[5, 2], [6], [5, 0], [2]], "seq_lens": [10, 3, 10, 4], "token_ids": None,
          "page_positions": None, "media": None}, "seq_ptr[1]"),
        ({"seq_lens": [12, 0, 10, 4], "token_ids": None}, "sequences"),
        ({"tenant": ["t1", "t2", None, "t3"]}, "sequences"),
    ],
)  # fmt: skip
def test_tables_lengths_and_tokens_have_to_be_equal(tmp_path, paths, changed, where):
    other = [ops.split_heads(tensor, RANGES)[1] for tensor in whole_tensors(**changed)]
    write_member(tmp_path, other, 1, 3, topology=topology(1))
    with pytest.raises(ha.SnapshotCorruptError) as error:
        ha.open_snapshot_set(paths)
    assert codes(error) == ["kv_group_mismatch"]
    assert f"member 1.kv_group 0.{where}" in [problem.where for problem in error.value.problems]
    assert "t3" not in str(error.value)


def test_sizes_have_to_be_equal(tmp_path, paths):
    other = [ops.split_heads(tensor, RANGES)[1] for tensor in whole_tensors(values_type="float32")]
    write_member(tmp_path, other, 1, 3, topology=topology(1))
    with pytest.raises(ha.SnapshotCorruptError, match="'float32', member 0 has 'bfloat16'") as error:
        ha.open_snapshot_set(paths)
    assert codes(error) == ["tensor_mismatch"]


def test_a_member_without_a_layer_is_named(tmp_path, paths, ranks):
    write_member(tmp_path, ranks[1][:-1], 1, 3, topology=topology(1))
    with pytest.raises(ha.SnapshotIncompleteError, match="member 1 lacks 1 tensors"):
        ha.open_snapshot_set(paths)


# -- pipeline ranks ----------------------------------------------------------------------------------------------------


def test_layers_from_several_pipeline_ranks(tmp_path):
    expected = [*whole_tensors((0, 1)), *whole_tensors((2,))]
    ranges = [(0, 3), (3, 7)]
    groups = [{"kind": "full", "layer_names": names} for names in (["l.0", "l.1"], ["l.2"])]
    paths = []
    for pp_rank, layers in enumerate([(0, 1), (2,)]):
        split = zip(*(ops.split_heads(tensor, ranges) for tensor in whole_tensors(layers)), strict=True)
        for tp_rank, part in enumerate(split):
            at = topology(tp_rank, ranges, pp_rank=pp_rank, pp_size=2)
            paths.append(write_member(tmp_path, part, 2 * pp_rank + tp_rank, 4, topology=at, groups=[groups[pp_rank]]))
    with ha.open_snapshot_set(paths) as found:
        assert all(map(same_values, found.iter_tensors(), expected))
        assert len(found.entries) == 9
        assert found.metadata["groups"] == [{"kind": "full", "layer_names": ["l.0", "l.1", "l.2"]}]
        assert found.metadata["topology"] == {"head_range": [0, 7]}
    last = ops.split_heads(whole_tensors((2,)), ranges)[1]
    at = topology(1, ranges, pp_rank=1)
    write_member(tmp_path, last, 3, 4, topology=at, groups=[{"kind": "sliding_window", "window_tokens": 11}])
    with pytest.raises(ha.SnapshotMismatchError) as error:
        ha.open_snapshot_set(paths)
    assert error.value.field == "groups[0].kind"


def test_a_set_of_one_needs_no_head_range(tmp_path):
    path = write_member(tmp_path, whole_tensors(), 0, 1)
    with ha.open_snapshot_set(path) as found:
        assert all(map(same_values, found.iter_tensors(), whole_tensors()))


def test_names():
    assert member_name("cache", 0, 8) == "cache.m0of8.arrow"
    with pytest.raises(ValueError):
        member_name("cache", 8, 8)


def test_a_member_that_cannot_be_opened_closes_the_others(paths):
    paths[2].write_bytes(paths[2].read_bytes()[:-9])
    with pytest.raises(ha.SnapshotIncompleteError) as error:
        ha.open_snapshot_set(paths, mapped=False)
    assert str(paths[2]) in str(error.value)
    open_files = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not set(paths) & set(open_files)


def test_a_set_in_a_store(paths):
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in paths:
        memory.pipe(f"/sets/{path.name}", path.read_bytes())
    try:
        with ha.open_snapshot_set("memory://sets/cache.m*.arrow") as found:
            assert all(map(same_values, found.iter_tensors(verify=True), whole_tensors()))
        with ha.open_snapshot_set("/sets/*", filesystem=memory) as found:
            assert len(found.members) == 3
        with pytest.raises(FileNotFoundError):
            ha.open_snapshot_set("memory://sets/other*")
    finally:
        memory.rm("/sets", recursive=True)
