"""Snapshots that were written long ago are read as they were meant, and today's writer still writes them so."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from hurray_arrow import SnapshotError, open_snapshot
from tests.compat import make_golden
from tests.compat.make_golden import CASES, FIXED
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES

GOLDEN = Path(__file__).parent / "golden"
MANIFEST = json.loads((GOLDEN / make_golden.MANIFEST).read_text())
#: zstd may compress the same bytes to others in another version: these are compared by what they hold.
COMPRESSED = {"archive", "archive_floats", "archive_plain", "archive_rows", "long_index"}


def test_the_corpus_is_whole_and_untouched():
    assert len(CASES) >= 22
    assert {path.stem for path in GOLDEN.glob("*.arrow")} == set(CASES) == set(MANIFEST)
    for name, entry in MANIFEST.items():
        content = (GOLDEN / f"{name}.arrow").read_bytes()
        assert xxhash.xxh3_64_hexdigest(content) == entry["xxh3"], f"{name}: a golden file never changes"
        assert len(content) < make_golden.MAX_BYTES


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_golden_file_holds_what_was_written(name, mapped):
    tensors, options = CASES[name]
    expected = tensors()
    with open_snapshot(GOLDEN / f"{name}.arrow", mapped=mapped) as snapshot:
        assert {key: snapshot.metadata[key] for key in FIXED} == FIXED
        assert snapshot.profile == options.get("profile", "share")
        report = snapshot.verify()
        assert report.num_tensors == len(snapshot.entries) == len(expected)
        assert bool(report.unverified) == (name == "no_checksums")
        for key, value in options.get("metadata", {}).items():
            if key not in FIXED and key != "user":
                assert snapshot.metadata[key] == value
        if name == "partial":
            with pytest.raises(SnapshotError) as caught:
                snapshot.read()
            assert caught.value.codes == ["companion_missing"]
            return
        found = list(snapshot.iter_tensors())
    for one, other in zip(found, expected, strict=True):
        assert one.equals(other)
        assert one.descriptor.encode() == other.descriptor.encode()
        assert [buffer.tobytes() for buffer in one.buffers] == [buffer.tobytes() for buffer in other.buffers]
        for fact in ("layer_name", "component", "original_descriptor"):
            assert getattr(one, fact) == getattr(other, fact)


@pytest.mark.parametrize("name", CASES)
def test_todays_writer_writes_the_same(name, tmp_path):
    path = tmp_path / f"{name}.arrow"
    make_golden.write(name, path)
    golden = GOLDEN / f"{name}.arrow"
    same_pyarrow = MANIFEST[name]["pyarrow"].partition(".")[0] == pa.__version__.partition(".")[0]
    if same_pyarrow and name not in COMPRESSED:
        assert path.read_bytes() == golden.read_bytes()
        return
    # Another pyarrow may lay its flatbuffers out in another way: then everything that the format fixes is the same.
    new, old = pa.ipc.open_file(path), pa.ipc.open_file(golden)
    assert new.schema.equals(old.schema, check_metadata=True)
    assert new.num_record_batches == old.num_record_batches
    for number in range(new.num_record_batches):
        # As bytes, because NaN is not equal to itself.
        assert new.get_batch(number).serialize() == old.get_batch(number).serialize()
    with open_snapshot(path) as one, open_snapshot(golden) as other:
        listed = [[entry._replace(stored_bytes=0) for entry in snapshot.entries] for snapshot in (one, other)]
    assert listed[0] == listed[1]


def test_the_cases_cover_the_format():
    snapshots = {name: open_snapshot(GOLDEN / f"{name}.arrow") for name in CASES}
    entries = [entry for snapshot in snapshots.values() for entry in snapshot.entries]
    assert {entry.element_type for entry in entries} == set(ALL_ELEMENT_TYPES)
    assert {entry.index_type for entry in entries} == set(INDEX_TYPES)
    assert {entry.kv_role for entry in entries} == {"key", "value", "fused"}
    assert {entry.encoding for entry in entries} == {"plain", "byte_planes"}
    assert {entry.num_pages for entry in entries} >= {0, 3, 5, 7}
    assert {entry.kv_group for entry in entries} >= {0, 1, 2, 3}
    assert {snapshot.profile for snapshot in snapshots.values()} == {"share", "archive"}
    assert any(entry.num_rows > 1 for entry in entries)
    for snapshot in snapshots.values():
        snapshot.close()
