"""A snapshot that ends early, at whichever byte, is refused; recovery gives back its whole rows and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from hurray_arrow import HurrayArrowError, SnapshotCorruptError, SnapshotIncompleteError, open_snapshot
from tests.faults.outcome import Original, code_of, is_same, outcome_of
from tests.faults.small import NUM_TENSORS, write_small


@pytest.fixture(scope="module")
def snapshot_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("truncation") / "s.arrow"
    write_small(path)
    return path


@pytest.mark.parametrize("mapped", [True, False])
def test_truncated_at_every_byte_it_is_incomplete(snapshot_path, tmp_path, mapped):
    content = snapshot_path.read_bytes()
    path = tmp_path / "cut.arrow"
    path.write_bytes(content)
    counts = Counter()
    with path.open("r+b") as file:
        for size in reversed(range(len(content))):
            file.truncate(size)
            with pytest.raises(HurrayArrowError) as caught:
                open_snapshot(path, mapped=mapped)
            counts[code_of(caught.value)] += 1
    assert counts == {"SnapshotIncompleteError": len(content)}


def test_recovery_of_every_prefix_gives_whole_rows_only(snapshot_path, tmp_path):
    original = Original.of(snapshot_path)
    content = snapshot_path.read_bytes()
    with open_snapshot(snapshot_path) as snapshot:
        ends = [place.block.end for (place,) in snapshot._rows._places.values()]
        schema_end = snapshot._rows._places[0][0].offset
    assert len(ends) == NUM_TENSORS
    path = tmp_path / "cut.arrow"
    seen = Counter()
    # Every row's boundary to the byte, and in between in steps that meet every offset within 8 bytes.
    sizes = {size + near for size in (schema_end, *ends) for near in range(-9, 10)} | set(range(1, len(content), 41))
    for size in sorted(sizes):
        path.write_bytes(content[:size])
        if size < schema_end:
            with pytest.raises(SnapshotIncompleteError):
                open_snapshot(path, recover=True)
            seen["nothing"] += 1
            continue
        with open_snapshot(path, recover=True) as snapshot:
            whole = sum(end <= size for end in ends)
            assert [entry.tensor_index for entry in snapshot.entries] == list(range(whole)), size
            if whole == 1:
                # The keys are there and their scales are not: half of a layer is not given out.
                with pytest.raises(SnapshotCorruptError) as caught:
                    snapshot.read()
                assert caught.value.codes == ["companion_missing"]
            else:
                assert all(map(is_same, snapshot.iter_tensors(), original.tensors)), size
            assert snapshot.metadata == original.metadata
            assert {problem.code for problem in snapshot.unverified} == {"unverified"}
            seen[whole] += 1
    assert set(seen) == {"nothing", *range(NUM_TENSORS + 1)}


def test_the_whole_file_is_not_recovered_but_opened(snapshot_path):
    original = Original.of(snapshot_path)
    assert outcome_of(snapshot_path, original) == "same"
    with open_snapshot(snapshot_path, recover=True) as snapshot:
        assert snapshot.unverified == ()
