"""Damage of more than a bit, files that are something else, and things that are no files."""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from hurray_arrow import (
    HurrayArrowError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    UnsupportedError,
    open_snapshot,
    write_snapshot,
)
from tests.faults.children import limit_memory, run_cases
from tests.faults.outcome import SAME, Original, outcome_of
from tests.faults.small import METADATA, small_tensors, write_small
from tests.sample import make_tensor

NUM_DAMAGED = 700


@pytest.fixture(scope="module")
def snapshot_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("garbage") / "s.arrow"
    write_small(path)
    return path


def damage(content: bytes, seed: int) -> tuple[str, bytes]:
    """Return content with one piece damaged, and how."""
    rng = random.Random(seed)
    data = bytearray(content)
    size = rng.choice([2, 3, 8, 16, 64, 512])
    start = rng.randrange(len(data) - size)
    other = rng.randrange(len(data) - size)
    how = rng.choice(["garbage", "zeros", "ones", "swapped", "copied", "removed", "inserted"])
    piece = data[start : start + size]
    match how:
        case "garbage":
            data[start : start + size] = rng.randbytes(size)
        case "zeros":
            data[start : start + size] = bytes(size)
        case "ones":
            data[start : start + size] = b"\xff" * size
        case "swapped":
            data[start : start + size], data[other : other + size] = data[other : other + size], piece
        case "copied":
            data[other : other + size] = piece
        case "removed":
            del data[start : start + size]
        case "inserted":
            data[start:start] = rng.randbytes(size)
    return how, bytes(data)


def damage_and_look(argument, share, started):
    path, content = argument
    original = Original.of(path)
    damaged_path = path.with_name(f"damaged-{os.getpid()}.arrow")
    damaged_path.write_bytes(content)
    assert outcome_of(damaged_path, original) == SAME
    limit_memory(2 * len(content))
    counts = Counter()
    for number, seed in enumerate(share):
        started(number)
        how, damaged = damage(content, seed)
        damaged_path.write_bytes(damaged)
        counts[how, outcome_of(damaged_path, original)] += damaged != content
        try:
            # What comes back from recovery cannot be proved to be right; it must come back, or be refused by type.
            with open_snapshot(damaged_path, recover=True) as snapshot:
                counts["recovered", len(list(snapshot.entries))] += 1
        except HurrayArrowError:
            counts["recovered", None] += 1
    return counts


def test_pieces_of_garbage(snapshot_path):
    content = snapshot_path.read_bytes()
    counts = sum(
        run_cases(damage_and_look, (snapshot_path, content), range(NUM_DAMAGED), timeout_seconds=1500), Counter()
    )
    kinds = {how for how, _ in counts} - {"recovered"}
    assert len(kinds) == 7
    for how in kinds:
        found = sum(count for (kind, outcome), count in counts.items() if kind == how and outcome != SAME)
        assert found > 30, how
    # Only the schema message, the end batch's header and the magic are uncovered: a quarter of this small file.
    same = sum(count for (_, outcome), count in counts.items() if outcome == SAME)
    assert 0 < same < 0.35 * NUM_DAMAGED
    assert {outcome for how, outcome in counts if how == "removed"} <= {SAME} | {
        outcome for _, outcome in counts if outcome not in {None, SAME}
    }


def test_appended_bytes_are_refused(snapshot_path, tmp_path):
    path = tmp_path / "s.arrow"
    for extra in (b"\0", b"ARROW1", b"\n" * 4096):
        path.write_bytes(snapshot_path.read_bytes() + extra)
        with pytest.raises((SnapshotIncompleteError, SnapshotCorruptError)):
            open_snapshot(path)


def test_two_snapshots_in_one_file_are_refused(snapshot_path, tmp_path):
    other = tmp_path / "other.arrow"
    write_snapshot(other, small_tensors()[2:], metadata={"id": METADATA["id"]}, page_align_bytes=64)
    path = tmp_path / "both.arrow"
    for first, second in ((snapshot_path, other), (other, snapshot_path)):
        path.write_bytes(first.read_bytes() + second.read_bytes())
        with pytest.raises((SnapshotIncompleteError, SnapshotCorruptError)):
            open_snapshot(path)


def test_an_exchanged_row_is_found_though_it_is_a_row_of_a_snapshot(tmp_path):
    paths = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    for path, seed in zip(paths, (3, 5), strict=True):
        write_snapshot(
            path, [make_tensor(seed=seed), make_tensor(seed=seed, layer_index=3)], metadata=METADATA | {"groups": []}
        )
    originals = [Original.of(path) for path in paths]
    place = originals[0].places[1][0]
    assert place.block == originals[1].places[1][0].block
    content = bytearray(paths[0].read_bytes())
    content[place.offset : place.block.end] = paths[1].read_bytes()[place.offset : place.block.end]
    paths[0].write_bytes(content)
    assert outcome_of(paths[0], originals[0]) == "read: row_checksum"
    # Pages alone, which no row hash covers.
    content = bytearray(paths[1].read_bytes())
    pages = slice(place.pages_offset, place.pages_offset + place.pages_bytes)
    content[pages] = content[pages][::-1]
    paths[1].write_bytes(content)
    assert outcome_of(paths[1], originals[1]) == "verify: page_checksum"


def test_pages_exchanged_with_each_other_are_found(tmp_path):
    path = tmp_path / "s.arrow"
    write_snapshot(path, [make_tensor()])
    original = Original.of(path)
    place = original.places[0][0]
    page_bytes = place.pages_bytes // 7
    content = bytearray(path.read_bytes())
    one, two = (slice(place.pages_offset + n * page_bytes, place.pages_offset + (n + 1) * page_bytes) for n in (2, 5))
    content[one], content[two] = content[two], content[one]
    path.write_bytes(content)
    with open_snapshot(path) as snapshot:
        with pytest.raises(SnapshotCorruptError) as caught:
            snapshot.verify()
        assert [(p.code, p.where) for p in caught.value.problems] == [
            ("page_checksum", "tensor 0.page_pool[2]"),
            ("page_checksum", "tensor 0.page_pool[5]"),
        ]
        with pytest.raises(SnapshotCorruptError) as caught:
            snapshot.read(verify=True)
        assert caught.value.codes == ["page_checksum"] * 2
        with pytest.raises(SnapshotCorruptError):
            list(snapshot.iter_tensors(verify=True))


def feather(path):
    pd.DataFrame({"page_pool": [1.5, 2.5], "descriptor": ["a", "b"]}).to_feather(path)


def compressed_feather(path):
    pyarrow.feather.write_feather(pa.table({"a": np.arange(10_000)}), path, compression="zstd")


def batches_without_an_index(path):
    table = pa.table({"tensor_index": pa.array([0], pa.uint32())})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def end_batch_without_an_index(path):
    schema = pa.schema([pa.field("tensor_index", pa.uint32())])
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([], pa.uint32())], schema=schema))


def no_batches(path):
    with pa.ipc.new_file(path, pa.schema([pa.field("a", pa.int8())])):
        pass


def numpy_archive(path):
    with path.open("wb") as file:
        np.savez(file, a=np.arange(7))


def stream(path):
    table = pa.table({"tensor_index": pa.array([0], pa.uint32())})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


FOREIGN = {
    "empty": (lambda path: path.write_bytes(b""), SnapshotIncompleteError),
    "one byte": (lambda path: path.write_bytes(b"A"), SnapshotIncompleteError),
    "magic": (lambda path: path.write_bytes(b"ARROW1\0\0" + b"ARROW1"), SnapshotIncompleteError),
    "text": (lambda path: path.write_text("hello\n" * 999), SnapshotIncompleteError),
    "zeros": (lambda path: path.write_bytes(bytes(9999)), SnapshotIncompleteError),
    "parquet": (lambda path: pd.DataFrame({"a": [1]}).to_parquet(path), SnapshotIncompleteError),
    "npz": (numpy_archive, SnapshotIncompleteError),
    "feather": (feather, SnapshotIncompleteError),
    "compressed feather": (compressed_feather, SnapshotIncompleteError),
    "batches": (batches_without_an_index, SnapshotIncompleteError),
    "empty last batch": (end_batch_without_an_index, SnapshotIncompleteError),
    "no batches": (no_batches, (SnapshotIncompleteError, SnapshotCorruptError)),
    "stream": (stream, SnapshotIncompleteError),
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others(name, mapped, tmp_path):
    write, error = FOREIGN[name]
    path = tmp_path / "foreign"
    write(path)
    with pytest.raises(error) as caught:
        open_snapshot(path, mapped=mapped)
    assert caught.value.url == str(path)
    # Recovery finds no tensors, or not even a schema.
    try:
        with open_snapshot(path, recover=True, mapped=mapped) as snapshot:
            assert snapshot.entries == ()
            assert snapshot.unverified
    except SnapshotIncompleteError:
        pass


@pytest.mark.parametrize("mapped", [True, False])
def test_what_is_no_file(tmp_path, mapped):
    with pytest.raises(IsADirectoryError):
        open_snapshot(tmp_path, mapped=mapped)
    with pytest.raises(FileNotFoundError):
        open_snapshot(tmp_path / "missing", mapped=mapped)
    write_small(tmp_path / "s.arrow")
    with pytest.raises(NotADirectoryError):
        open_snapshot(tmp_path / "s.arrow" / "below", mapped=mapped)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotIncompleteError):
        open_snapshot(tmp_path / "pipe", mapped=mapped)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError):
        open_snapshot(tmp_path / "loop", mapped=mapped)


def test_another_version_of_the_format_is_unsupported(snapshot_path, tmp_path):
    path = tmp_path / "s.arrow"
    content = snapshot_path.read_bytes()
    key = b"hurray_arrow.format"
    at = content.rindex(key)
    # The value lies before or after its key in the footer; it is the only "1" with its length.
    value = b"\x01\0\0\x001\0\0\0"
    places = [i for i in (content.rfind(value, 0, at), content.find(value, at)) if i > 0]
    near = min(places, key=lambda i: abs(i - at))
    path.write_bytes(content[: near + 4] + b"2" + content[near + 5 :])
    with pytest.raises(UnsupportedError):
        open_snapshot(path)
