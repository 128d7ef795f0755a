"""Copies of whole snapshots: what is kept, what is chosen, what changes on the way."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from fsspec.callbacks import Callback

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.snapshot import copy_snapshot
from hurray_arrow.snapshot.writer import SnapshotWriter
from tests.faults.small import METADATA, small_tensors
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts
from tests.unit.test_sets import RANGES, same_values, topology, whole_tensors, write_member


def is_same(found, expected):
    names = ("layer_name", "component", "original_descriptor")
    return found.equals(expected) and all(getattr(found, name) == getattr(expected, name) for name in names)


def read_all(path):
    with ha.open_snapshot(path) as snapshot:
        snapshot.verify()
        return list(snapshot.iter_tensors())


def metadata_of(path):
    with ha.open_snapshot(path) as snapshot:
        return snapshot.metadata


def layers(page_size=5):
    """Two layers with keys, scales and values, and one tensor that is of no layer."""
    facts = {**sample_facts(page_size), "page_positions": None, "page_size": page_size}
    tensors = []
    for layer in (3, 7):
        named = {"layer_index": layer, "layer_name": f"l.{layer}", **facts}
        tensors += [
            make_tensor(kv_role="key", seed=layer, **named),
            make_tensor(kv_role="key", component="scales", element_type="float32", head_dim=1, seed=layer, **named),
            make_tensor(kv_role="value", seed=7 + layer, **named),
        ]
    return [*tensors, make_tensor(kv_role="value", seed=29, layer_index=None, **facts)]


GROUPS = [{"kind": "full", "page_size": 5, "layer_names": ["l.3", "l.7"], "components": ["values"]}]


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "source.arrow"
    ha.write_snapshot(target, layers(), metadata={"groups": GROUPS, "model": {"name": "m"}, "tenant": "t-5"})
    return target


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.arrow"


def test_everything_is_kept(tmp_path, copy):
    source = tmp_path / "small.arrow"
    ha.write_snapshot(source, small_tensors(), metadata={**METADATA, "user": {"note": 5}}, page_align_bytes=128)
    report = copy_snapshot(source, copy)
    assert all(map(is_same, read_all(copy), small_tensors()))
    old, new = metadata_of(source), metadata_of(copy)
    assert {key for key in old if old[key] != new[key]} == {"id", "created"}
    assert (report.profile, report.num_tensors, report.unverified) == ("share", 4, ())
    assert report.num_pages == sum(tensor.num_pages for tensor in small_tensors())
    assert report.page_bytes == sum(tensor.buffers[0].nbytes for tensor in small_tensors())
    assert copy.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("element", ALL_ELEMENT_TYPES)
def test_share_to_archive_and_back(tmp_path, copy, element):
    tensor = make_tensor(element_type=element, **sample_facts())
    source, back = tmp_path / "source.arrow", tmp_path / "back.arrow"
    ha.write_snapshot(source, [tensor])
    assert copy_snapshot(source, copy, profile="archive").profile == "archive"
    assert metadata_of(copy)["profile"] == "archive"
    copy_snapshot(copy, back, profile="share")
    [found] = read_all(back)
    assert is_same(found, tensor)


def test_encodings_are_kept_or_chosen(path, copy, tmp_path):
    def encodings(target):
        with ha.open_snapshot(target) as snapshot:
            return {entry.encoding for entry in snapshot.entries}

    copy_snapshot(path, copy, profile="archive", encoding="plain")
    assert encodings(copy) == {"plain"}
    again = tmp_path / "again.arrow"
    copy_snapshot(copy, again)
    assert (metadata_of(again)["profile"], encodings(again)) == ("archive", {"plain"})
    copy_snapshot(copy, again, encoding="byte_planes", overwrite=True)
    assert encodings(again) == {"byte_planes"}
    copy_snapshot(again, copy, overwrite=True)
    assert encodings(copy) == {"byte_planes"}
    with pytest.raises(ValueError, match="byte_planes"):
        copy_snapshot(copy, again, profile="share", encoding="byte_planes", overwrite=True)


def test_layers(path, copy):
    copy_snapshot(path, copy, layer_index=7)
    assert all(map(is_same, read_all(copy), layers()[3:6]))
    assert metadata_of(copy)["groups"] == [{**GROUPS[0], "layer_names": ["l.7"]}]
    copy_snapshot(path, copy, layer_index=[7, 3], overwrite=True)
    assert len(read_all(copy)) == 6
    assert metadata_of(copy)["groups"] == GROUPS
    with pytest.raises(LookupError, match=r"\[5, 9\]; the snapshot has 3, 7, None"):
        copy_snapshot(path, copy, layer_index=[9, 3, 5], overwrite=True)
    with pytest.raises(TypeError, match="layer_index: '3'"):
        copy_snapshot(path, copy, layer_index="3", overwrite=True)
    assert len(read_all(copy)) == 6
    copy_snapshot(path, copy, layer_index=np.int64(7), overwrite=True)
    assert all(map(is_same, read_all(copy), layers()[3:6]))


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_sequences_and_tokens(path, copy, profile):
    report = copy_snapshot(path, copy, sequences=["s-c", 3], tokens=(0, 7), profile=profile)
    expected = [ops.compact(ops.select(tensor, ["s-c", 3], tokens=(0, 7))) for tensor in layers()]
    found = read_all(copy)
    assert all(map(is_same, found, expected))
    assert report.num_pages == sum(tensor.num_pages for tensor in found) == 7 * found[0].num_pages
    assert report.page_bytes == sum(tensor.buffers[0].nbytes for tensor in found)
    assert found[0].num_pages == 3
    assert found[0].sequences.ids == ("s-c", "ß-d")


def test_no_page_of_another_sequence_is_in_the_copy(path, copy):
    marks = {page: layers()[0].values_of_pages([page]).tobytes() for page in range(7)}
    copy_snapshot(path, copy, sequences=3)
    content = copy.read_bytes()
    assert [page for page, mark in marks.items() if mark in content] == [2]


@pytest.mark.parametrize("repage", [1, 3, 16])
def test_repage(path, copy, repage):
    report = copy_snapshot(path, copy, repage=repage)
    expected = [ops.repage(tensor, repage) for tensor in layers()]
    assert all(map(is_same, read_all(copy), expected))
    assert metadata_of(copy)["groups"][0]["page_size"] == repage
    assert report.num_pages == sum(tensor.num_pages for tensor in expected)


def test_groups_of_state_keep_their_pages(tmp_path, copy):
    state = make_tensor(
        page_size=1, num_pages=3, block_tables=[[2], [0]], seq_lens=[1, 1], page_positions=[[19], [23]],
        component="state.ssm", element_type="float32", kv_group=1, layer_index=1, kv_role="fused",
    )  # fmt: skip
    keys = make_tensor(kv_role="key", kv_group=0)
    source = tmp_path / "source.arrow"
    groups = [{"kind": "full", "page_size": 5}, {"kind": "state", "page_size": 1}]
    ha.write_snapshot(source, [keys, state], metadata={"groups": groups})
    copy_snapshot(source, copy, repage=2)
    found = read_all(copy)
    assert [tensor.page_size for tensor in found] == [2, 1]
    assert is_same(found[1], state)
    assert [group["page_size"] for group in metadata_of(copy)["groups"]] == [2, 1]


def test_sanitize(path, copy):
    copy_snapshot(path, copy, sanitize=True, profile="archive")
    assert all(map(is_same, read_all(copy), map(ops.sanitize, layers())))


def test_several_steps_at_once(path, copy):
    copy_snapshot(path, copy, sanitize=True, repage=3, sequences=[2, 0], layer_index=3)
    expected = [ops.sanitize(ops.repage(ops.compact(ops.select(tensor, [2, 0])), 3)) for tensor in layers()[:3]]
    assert all(map(is_same, read_all(copy), expected))


def test_unknown_lengths_refuse_sanitize_before_anything_is_written(tmp_path, copy):
    source = tmp_path / "source.arrow"
    ha.write_snapshot(source, [make_tensor(seq_lens=[12, None, 10, 4], total_tokens=26)])
    with pytest.raises(ha.UnknownSequenceLengthError):
        copy_snapshot(source, copy, sanitize=True)
    assert not copy.exists()
    copy_snapshot(source, copy, repage=3)
    assert is_same(read_all(copy)[0], ops.repage(read_all(source)[0], 3))


def test_writing_sanitized(tmp_path):
    target = tmp_path / "sanitized.arrow"
    told = Callback()
    ha.write_snapshot(target, layers(), sanitize=True, progress=told)
    assert all(map(is_same, read_all(target), map(ops.sanitize, layers())))
    assert told.value == told.size == sum(ops.sanitize(tensor).buffers[0].nbytes for tensor in layers())


def test_keys_of_a_newer_version_are_kept(tmp_path, copy):
    source = tmp_path / "newer.arrow"
    tensors = small_tensors()
    more = {
        "budget": {"tokens": 7},
        "topology": {"tp_rank": 3, "rack": "r"},
        "set": {"id": "x", "member": 3, "members": 5},
    }
    with SnapshotWriter(source, plan=ha.SchemaPlan.of(tensors), metadata=more, keep_unknown=True) as writer:
        for tensor in tensors:
            writer.write(tensor)
    copy_snapshot(source, copy)
    found = metadata_of(copy)
    assert {key: found[key] for key in more} == more
    assert found["producer"]["name"] == "hurray-arrow"
    with pytest.raises(ValueError, match="budget"):
        ha.write_snapshot(copy, tensors, metadata=more, overwrite=True)


def test_a_partial_snapshot_stays_partial(tmp_path, copy):
    source = tmp_path / "partial.arrow"
    ha.write_snapshot(source, small_tensors()[:1], metadata=METADATA, partial=True)
    copy_snapshot(source, copy)
    assert metadata_of(copy)["partial"] is True
    copy_snapshot(source, copy, sequences=[0], overwrite=True)
    assert metadata_of(copy)["partial"] is True


def test_over_itself(path):
    before = metadata_of(path)
    with pytest.raises(FileExistsError):
        copy_snapshot(path, path)
    assert metadata_of(path) == before
    copy_snapshot(path, path, overwrite=True, sanitize=True, profile="archive")
    assert all(map(is_same, read_all(path), map(ops.sanitize, layers())))
    assert metadata_of(path)["id"] != before["id"]
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_page_checksums_are_compared_on_the_way(path, copy):
    with ha.open_snapshot(path) as snapshot:
        place = snapshot._rows._places[2][0]
    content = bytearray(path.read_bytes())
    content[place.pages_offset + 3] ^= 4
    path.write_bytes(content)
    with pytest.raises(ha.SnapshotCorruptError) as error:
        copy_snapshot(path, copy)
    assert error.value.codes == ["page_checksum"]
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    copy_snapshot(path, copy, verify=False)
    assert len(read_all(copy)) == 7


def test_pages_without_checksums_are_told(tmp_path, copy):
    source = tmp_path / "source.arrow"
    ha.write_snapshot(source, layers(), checksums=False)
    report = copy_snapshot(source, copy)
    assert [str(problem.code) for problem in report.unverified] == ["unverified"] * 7
    assert len(copy_snapshot(source, copy, sequences=[0], overwrite=True).unverified) == 7


def test_expectations_and_open_sources(path, copy):
    with pytest.raises(ha.SnapshotMismatchError):
        copy_snapshot(path, copy, expect={"model.name": "other"})
    with ha.open_snapshot(path) as snapshot:
        with pytest.raises(ha.SnapshotMismatchError):
            copy_snapshot(snapshot, copy, expect={"model.name": "other"})
        with pytest.raises(ha.SnapshotMismatchError):
            # Some of the sequences are of others.
            copy_snapshot(snapshot, copy, expect={"model.name": "m", "tenant": "t-5"})
        copy_snapshot(snapshot, copy, expect={"model.name": "m", "element_type": "bfloat16"})
        assert len(list(snapshot.iter_tensors())) == 7
    with pytest.raises(TypeError, match="merge_heads"):
        copy_snapshot([path, path], copy)


def test_what_was_recovered_becomes_whole_again(path, copy):
    with ha.open_snapshot(path) as snapshot:
        end = snapshot._rows._places[6][0].block.end
    path.write_bytes(path.read_bytes()[:end])
    with ha.open_snapshot(path, recover=True) as snapshot:
        report = copy_snapshot(snapshot, copy, sequences=[0, 3])
        assert report.unverified == snapshot.unverified != ()
    assert all(map(is_same, read_all(copy), [ops.compact(ops.select(tensor, [0, 3])) for tensor in layers()]))
    assert metadata_of(copy)["tenant"] == "t-5"


def test_layers_of_one_name_and_none(tmp_path, copy):
    """A tensor of no layer beside one that differs in nothing else."""
    tensors = [make_tensor(seed=seed, layer_index=layer) for seed, layer in ((3, 5), (7, None))]
    source = tmp_path / "source.arrow"
    ha.write_snapshot(source, tensors)
    copy_snapshot(source, copy, sequences=[0, 1, 2, 3])
    assert all(map(is_same, read_all(copy), [ops.compact(tensor) for tensor in tensors]))


def test_merge_heads(tmp_path, copy):
    split = zip(*(ops.split_heads(tensor, RANGES) for tensor in whole_tensors()), strict=True)
    more = {"adapter": "lora", "groups": [{"kind": "full", "layer_names": ["l.0", "l.1"]}]}
    for rank, tensors in enumerate(split):
        write_member(tmp_path, tensors, rank, 3, topology=topology(rank, rack="r7"), **more)
    report = copy_snapshot(str(tmp_path / "cache.m*.arrow"), copy, merge_heads=True)
    assert all(map(same_values, read_all(copy), whole_tensors()))
    assert report.page_bytes == sum(tensor.buffers[0].nbytes for tensor in whole_tensors())
    found = metadata_of(copy)
    assert "set" not in found
    assert found["topology"] == {"rack": "r7", "head_range": [0, 7]}
    assert (found["adapter"], found["groups"]) == ("lora", more["groups"])
    copy_snapshot(str(tmp_path / "cache.m*.arrow"), copy, merge_heads=True, layer_index=1, sequences=0, overwrite=True)
    expected = [ops.compact(ops.select(tensor, 0)) for tensor in whole_tensors()[3:]]
    assert all(map(same_values, read_all(copy), expected))


def test_private_types_of_a_set(tmp_path, copy):
    tensor = make_tensor(element_type="private_0xFE", num_heads=4, layer_index=3)
    for rank, part in enumerate(ops.split_heads(tensor, 2)):
        write_member(tmp_path, [part], rank, 2, topology=topology(rank, [(0, 2), (2, 4)]))
    copy_snapshot(str(tmp_path / "cache.m*.arrow"), copy, merge_heads=True)
    assert same_values(read_all(copy)[0], tensor)


def test_progress_is_told_in_bytes_of_pages(path, copy):
    class Told(Callback):
        def __init__(self):
            super().__init__()
            self.values = []

        def call(self, *_, **__):
            self.values.append(self.value)

    told = Told()
    report = copy_snapshot(path, copy, repage=3, progress=told)
    assert told.size == told.values[-1] == report.page_bytes
    assert all(one <= other for one, other in pairwise(told.values))


def test_from_and_to_a_store(path):
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        copy_snapshot(path, "memory://copies/one.arrow", profile="archive")
        copy_snapshot("memory://copies/one.arrow", "memory://copies/two.arrow", profile="share")
        copy_snapshot(
            "/copies/two.arrow", "/copies/three.arrow", source_filesystem=memory, destination_filesystem=memory
        )
        assert all(map(is_same, read_all("memory://copies/three.arrow"), layers()))
        with pytest.raises(FileExistsError):
            copy_snapshot(path, "memory://copies/one.arrow")
    finally:
        memory.rm("/copies", recursive=True)


def test_memory_is_bounded_by_one_tensor(tmp_path, copy):
    """Archives are decoded into new memory; numpy tells tracemalloc of it."""
    one = 16 << 20
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            np.full((64, 128, 4, 256), layer, np.int16), block_tables=[[3, 5], [5]], seq_lens=[131, 7], kv_role="key",
            layer_index=layer,
        )
        for layer in range(5)
    ]  # fmt: skip
    source = tmp_path / "source.arrow"
    ha.write_snapshot(source, tensors, profile="archive")
    del tensors
    copy_snapshot(source, tmp_path / "warm.arrow", profile="share")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    copy_snapshot(source, copy, profile="share")
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert one < peak < 1.7 * one


def test_nothing_is_left_of_a_copy_that_is_killed(path, copy):
    """Killed before the name is taken: no copy, and the source as it was."""
    program = (
        "import sys, os, signal; from hurray_arrow.snapshot import copy_snapshot, transform\n"
        "class Killed(transform.SnapshotWriter):\n"
        "    def close(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "transform.SnapshotWriter = Killed\n"
        "copy_snapshot(sys.argv[1], sys.argv[2])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path), str(copy)], check=False, capture_output=True)
    assert done.returncode == -9
    assert not copy.exists()
    assert all(map(is_same, read_all(path), layers()))


def test_the_report_is_plain_data(path, copy):
    from dataclasses import asdict

    report = copy_snapshot(path, copy)
    assert json.loads(json.dumps(asdict(report)))["num_tensors"] == 7
