"""What a catalogue holds, what it reads for that, and that it is there whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import hurray_arrow as ha
from hurray_arrow.catalog import build_catalog, builder, find_prefix, listing, open_catalog
from hurray_arrow.catalog import writer as catalog_writer
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.document import DOCUMENT_KEY, HASH_KEY, Document
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.snapshot.files import FileRange
from tests.unit.catalog.samples import KEY, PROMPT, SECRETS, write

METADATA = {
    "created": "2026-03-04T05:06:07.25+02:00",
    "model": {"name": "toy", "revision": "r17", "config_digest": "sha256:aa"},
    "engine": {"name": "vllm", "version": "0.9", "source_layout": "NHD", "kv_cache_dtype": "fp8"},
    "groups": [{"kind": "full"}, {"kind": "sliding_window", "window_tokens": 6}],
    "topology": {"tp_rank": 1, "tp_size": 2, "pp_rank": 0, "pp_size": 1, "head_range": [2, 4], "head_replica": 0},
    "set": {"id": "s-1", "member": 1, "members": 2},
    "tenant": SECRETS[0],
    "adapter": SECRETS[1],
    "user": {"note": SECRETS[2]},
}


@pytest.fixture
def folder(tmp_path):
    """Three snapshots, one of them deeper and one an archive."""
    write(tmp_path / "cache" / "a.arrow", tokens=23, metadata=METADATA)
    write(tmp_path / "cache" / "b" / "b.arrow", tokens=42, profile="archive")
    write(tmp_path / "cache" / "c.arrow", tokens=11)
    return tmp_path / "cache"


@pytest.fixture
def destination(tmp_path):
    return tmp_path / "catalog.parquet"


def rows_of(path):
    return parquet.read_table(path).to_pylist()


def names_of(path):
    return {Path(row["url"]).name: row for row in rows_of(path)}


def counts(report):
    return report.num_read, report.num_kept, report.num_dropped, len(report.failures)


# -- what it holds ----------------------------------------------------------------------------------------------------


def test_a_row_per_snapshot(folder, destination):
    report = build_catalog(folder, destination=destination, key=KEY)
    assert (report.num_files, counts(report)) == (3, (3, 0, 0, 0))
    row = names_of(destination)["a.arrow"]
    with ha.open_snapshot(folder / "a.arrow") as snapshot:
        expected = {
            "file_index": 0,
            "url": str(folder / "a.arrow"),
            "file_bytes": (folder / "a.arrow").stat().st_size,
            "error": None,
            "snapshot_id": snapshot.metadata["id"],
            "created": datetime(2026, 3, 4, 3, 6, 7, 250_000),  # noqa: DTZ001 - as the column is, in UTC without saying so
            "profile": "share",
            "model_name": "toy",
            "model_revision": "r17",
            "model_config_digest": "sha256:aa",
            "engine_name": "vllm",
            "engine_version": "0.9",
            "engine_source_layout": "NHD",
            "engine_kv_cache_dtype": "fp8",
            "set_id": "s-1",
            "set_member": 1,
            "set_members": 2,
            "topology_tp_rank": 1,
            "topology_tp_size": 2,
            "topology_head_replica": 0,
            "head_start": 2,
            "head_stop": 4,
            "partial": None,
            "num_tensors": 4,
            "num_layers": 2,
            "num_seqs": 3,
            "num_tokens": 30,
            "stored_bytes": sum(entry.stored_bytes for entry in snapshot.entries),
            "layer_indexes": [3, 7],
            "kv_roles": ["key", "value"],
            "components": ["values"],
            "element_types": ["float32"],
            "group_kinds": ["full", "sliding_window"],
        }
    assert {name: row[name] for name in expected} == expected
    group = {"page_size": 5, "num_tensors": 2, "num_pages": 10, "num_seqs": 3, "num_tokens": 30}
    assert row["groups"] == [
        {"kv_group": 0, "kind": "full", "window_tokens": None, **group},
        {"kv_group": 1, "kind": "sliding_window", "window_tokens": 6, **group},
    ]
    archive = names_of(destination)["b.arrow"]
    assert (archive["profile"], archive["num_tokens"], archive["group_kinds"]) == ("archive", 49, [])


def test_a_row_per_tensor(folder, destination):
    build_catalog(folder, destination=destination, rows="tensors")
    rows = rows_of(destination)
    assert [row["file_index"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    with ha.open_snapshot(folder / "a.arrow") as snapshot:
        entries = [entry._asdict() for entry in snapshot.entries]
    for row, entry in zip(rows, entries, strict=False):
        assert (row["page_size"], row["num_heads"], row["head_dim"]) == entry.pop("page_shape")
        assert {name: row[name] for name in entry} == entry
    assert [(row["group_kind"], row["window_tokens"], row["num_tokens"]) for row in rows[1:3]] == [
        ("full", None, 30),
        ("sliding_window", 6, 30),
    ]
    assert [row["model_name"] for row in rows] == ["toy"] * 4 + [None] * 8


@pytest.mark.parametrize("rows", SCHEMAS)
def test_nothing_says_whose_it_is_or_what_was_asked(folder, destination, rows):
    build_catalog(folder, destination=destination, key=KEY, rows=rows)
    text = repr(rows_of(destination))
    bytes_there = destination.read_bytes()
    for secret in SECRETS:
        assert secret not in text
        assert secret.encode() not in bytes_there
    for number in range(0, 40, 3):
        assert str(PROMPT[number]) not in text
        assert PROMPT[number : number + 2].tobytes() not in bytes_there
    assert KEY not in bytes_there
    assert destination.stat().st_mode & 0o777 == 0o600


def test_metadata_that_is_no_such_value_is_null(tmp_path, destination):
    odd = {
        "created": "yesterday",
        "model": {"name": ["toy"], "revision": 7},
        "topology": {"tp_rank": -1, "tp_size": 2**32, "pp_rank": True, "pp_size": "3", "head_range": [1]},
        "set": {"id": "s", "member": "2", "members": 1.5},
    }
    write(tmp_path / "odd" / "a.arrow", metadata=odd)
    build_catalog(tmp_path / "odd", destination=destination)
    [row] = rows_of(destination)
    names = ("model_name", "model_revision", "topology_tp_rank", "topology_tp_size", "topology_pp_rank", "head_start")
    assert [row[name] for name in (*names, "set_members", "created")] == [None] * 8
    assert (row["topology_pp_size"], row["set_member"], row["set_id"]) == (3, 2, "s")


def test_lengths_that_nobody_recorded_and_no_tensors(tmp_path, destination):
    unknown = ha.BlockPagedTensor.from_arrays(
        np.zeros((3, 5, 2, 7), np.int8), block_tables=[[2, 0], [1]], seq_lens=[7, None], total_tokens=9, kv_role="key"
    )
    (tmp_path / "u").mkdir()
    ha.write_snapshot(tmp_path / "u" / "u.arrow", [unknown])
    ha.write_snapshot(tmp_path / "u" / "none.arrow", [])
    build_catalog(tmp_path / "u", destination=destination)
    rows = names_of(destination)
    assert (rows["u.arrow"]["num_tokens"], rows["u.arrow"]["num_seqs"]) == (None, 2)
    assert (rows["none.arrow"]["num_tokens"], rows["none.arrow"]["num_tensors"]) == (0, 0)
    build_catalog(tmp_path / "u", destination=destination, rows="tensors", rebuild=True)
    assert sorted(row["tensor_index"] is None for row in rows_of(destination)) == [False, True]
    assert counts(build_catalog(tmp_path / "u", destination=destination, rows="tensors")) == (0, 2, 0, 0)


# -- where it looks ---------------------------------------------------------------------------------------------------


def test_folders_globs_and_files(folder, destination, monkeypatch):
    (folder / ".d.arrow").write_bytes(b"unfinished")
    (folder / "readme.txt").write_bytes(b"no snapshot")
    own = folder / "catalog.parquet"
    for url, names in [
        (folder, ["a", "b", "c"]),
        (f"{folder}/", ["a", "b", "c"]),
        (f"file://{folder}", ["a", "b", "c"]),
        (folder / "*.arrow", ["a", "c"]),
        (folder / "**" / "b.arrow", ["b"]),
        (folder / "c.arrow", ["c"]),
    ]:
        build_catalog(url, destination=own, rebuild=True)
        assert [Path(row["url"]).stem for row in rows_of(own)] == names
    build_catalog(folder, destination=destination, pattern="[ab].*")
    assert sorted(names_of(destination)) == ["a.arrow", "b.arrow"]
    # The catalogue itself is none of what a glob finds, and of a relative path it makes no difference from where.
    monkeypatch.chdir(folder)
    build_catalog("*", destination="catalog.parquet", rebuild=True)
    assert sorted(names_of(own)) == ["a.arrow", "c.arrow", "readme.txt"]
    assert names_of(own)["readme.txt"]["error"] == "SnapshotIncompleteError"
    assert counts(build_catalog(folder / "*", destination=own)) == (0, 3, 0, 1)


@pytest.mark.parametrize("name", ["nowhere", "nowhere/*.arrow", "empty", "cache/*.parquet"])
def test_where_nothing_is_nothing_is_written(folder, destination, name):
    (folder.parent / "empty").mkdir()
    build_catalog(folder, destination=destination)
    before = destination.read_bytes()
    with pytest.raises(FileNotFoundError):
        build_catalog(folder.parent / name, destination=destination, rebuild=True)
    assert destination.read_bytes() == before


def test_a_folder_that_cannot_be_listed_is_not_left_out(folder, destination, monkeypatch):
    build_catalog(folder, destination=destination)
    real = os.scandir

    def refusing(path):
        if str(path).endswith("/b"):
            raise PermissionError(13, "no", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError):
        build_catalog(folder, destination=destination)
    assert sorted(names_of(destination)) == ["a.arrow", "b.arrow", "c.arrow"]


def test_a_filesystem_object_and_other_stores(folder, destination):
    memory = fsspec.filesystem("memory")
    try:
        for path in folder.rglob("*.arrow"):
            memory.pipe(f"/catalogued/{path.name}", path.read_bytes())
        build_catalog("memory://catalogued", destination="memory://out/catalog.parquet", key=KEY)
        [best, *_] = find_prefix("memory://out/catalog.parquet", PROMPT, key=KEY)
        assert best.url.startswith("memory://")
        with ha.open_snapshot(best.url) as snapshot:
            assert snapshot.match_prefix(PROMPT).num_tokens == best.num_tokens == 42
        build_catalog("/catalogued", filesystem=memory, destination=destination)
        assert counts(build_catalog("/catalogued/", filesystem=memory, destination=destination)) == (0, 3, 0, 0)
    finally:
        memory.store.clear()


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"ETag": '"a"', "LastModified": "x", "size": 3}, 'ETag="a"'),
        ({"etag": "b", "generation": "7"}, "etag=b"),
        ({"mtime": 1.5, "ino": 7, "created": 3.5}, "mtime=1.5 ino=7"),
        ({"created": "x"}, "created=x"),
        ({"size": 3}, None),
        ({"etag": "", "mtime": 0}, None),
    ],
)
def test_the_surest_sign_of_a_change_counts(info, expected):
    assert listing._identity(info) == expected


def test_names_that_are_no_text(folder, destination):
    name = os.fsdecode(b"\xff.arrow")
    (folder / "c.arrow").rename(folder / name)
    build_catalog(folder, destination=destination)
    assert "\\udcff.arrow" in {Path(row["url"]).name for row in rows_of(destination)}
    assert counts(build_catalog(folder, destination=destination)) == (0, 3, 0, 0)


# -- what is no snapshot ----------------------------------------------------------------------------------------------


def test_damaged_and_foreign_files_have_a_row(folder, destination):
    data = bytearray((folder / "c.arrow").read_bytes())
    (folder / "cut.arrow").write_bytes(data[:-40])
    data[data.index(b'"num_rows"') + 3] ^= 1
    (folder / "flipped.arrow").write_bytes(data)
    (folder / "text.arrow").write_text("not Arrow")
    (folder / "void.arrow").touch()
    for rows in SCHEMAS:
        report = build_catalog(folder, destination=destination, rows=rows, rebuild=True)
        found = {Path(failure.url).name: failure[1:] for failure in report.failures}
        assert found == {
            "cut.arrow": ("SnapshotIncompleteError", None),
            "flipped.arrow": ("SnapshotCorruptError", "index_checksum"),
            "text.arrow": ("SnapshotIncompleteError", None),
            "void.arrow": ("SnapshotIncompleteError", None),
        }
        table = names_of(destination)
        assert {name: (table[name]["error"], table[name]["error_code"]) for name in found} == found
        assert all(table[name]["snapshot_id"] is None for name in found)
        # The same bytes are the same the next time.
        assert counts(build_catalog(folder, destination=destination, rows=rows)) == (0, 7, 0, 4)
    with pytest.raises(ha.SnapshotError):
        build_catalog(folder, destination=destination, rows="tensors", on_error="raise", rebuild=True)


def test_damaged_tables_are_an_error_of_that_file(folder, destination):
    path = folder / "c.arrow"
    with ha.open_snapshot(path) as snapshot:
        place = snapshot._rows._places[0][0]
    data = bytearray(path.read_bytes())
    data[place.pages_offset - 9] ^= 1
    path.write_bytes(data)
    [failure] = build_catalog(folder, destination=destination).failures
    assert failure[1:] == ("SnapshotCorruptError", "row_checksum")


def test_a_number_that_no_column_holds_is_an_error_of_that_file(folder, destination, monkeypatch):
    from hurray_arrow.catalog import columns

    real = columns._of_snapshot
    monkeypatch.setattr(columns, "_of_snapshot", lambda *args: real(*args) | {"num_layers": 2**32})
    report = build_catalog(folder, destination=destination)
    assert {failure.error_code for failure in report.failures} == {"index_invalid"}
    monkeypatch.setattr(columns, "_of_snapshot", lambda *args: real(*args) | {"kv_roles": ["\ud800"]})
    assert len(build_catalog(folder, destination=destination, rebuild=True).failures) == 3


def test_what_a_store_refused_is_tried_again(folder, destination, monkeypatch):
    real = listing.Listed.open

    def failing(file):
        if file.url.endswith("c.arrow"):
            raise ha.SnapshotError("HTTP 503", url=file.url)
        if file.url.endswith("b.arrow"):
            raise FileNotFoundError(file.url)
        return real(file)

    with monkeypatch.context() as patch:
        patch.setattr(listing.Listed, "open", failing)
        report = build_catalog(folder, destination=destination)
    # What vanished since it was listed is not there.
    assert sorted(names_of(destination)) == ["a.arrow", "c.arrow"]
    assert (report.num_files, counts(report)) == (2, (2, 0, 0, 1))
    assert counts(build_catalog(folder, destination=destination)) == (2, 1, 0, 0)
    assert sorted(names_of(destination)) == ["a.arrow", "b.arrow", "c.arrow"]


# -- bringing up to date ----------------------------------------------------------------------------------------------


def test_only_what_is_new_or_changed_is_read(folder, destination):
    first = build_catalog(folder, destination=destination, key=KEY)
    assert first.requests > 0
    inode = destination.stat().st_ino
    again = build_catalog(folder, destination=destination, key=KEY)
    assert (counts(again), again.requests, again.fetched_bytes) == ((0, 3, 0, 0), 0, 0)
    assert destination.stat().st_ino == inode, "nothing to say, nothing written"

    (folder / "a.arrow").unlink()
    write(folder / "c.arrow", tokens=31)
    write(folder / "e.arrow", tokens=37)
    report = build_catalog(folder, destination=destination, key=KEY)
    assert (report.num_files, counts(report)) == (3, (2, 1, 1, 0))
    assert {name: row["num_tokens"] for name, row in names_of(destination).items()} == {
        "b.arrow": 49,
        "c.arrow": 38,
        "e.arrow": 44,
    }
    assert [row["file_index"] for row in rows_of(destination)] == [0, 1, 2]
    assert [(Path(m.url).name, m.num_tokens) for m in find_prefix(destination, PROMPT, key=KEY)] == [
        ("b.arrow", 42),
        ("e.arrow", 37),
        ("c.arrow", 31),
    ]


def test_one_that_only_went_is_dropped(folder, destination):
    build_catalog(folder, destination=destination, key=KEY)
    (folder / "b" / "b.arrow").unlink()
    report = build_catalog(folder, destination=destination, key=KEY)
    assert (counts(report), report.requests) == ((0, 2, 1, 0), 0)
    assert [m.num_tokens for m in find_prefix(destination, PROMPT, key=KEY)] == [11]
    whose = {"tenant": SECRETS[0], "adapter": SECRETS[1]}
    assert [m.num_tokens for m in find_prefix(destination, PROMPT, key=KEY, **whose)] == [23]


def test_where_nobody_says_whether_a_file_changed_it_is_read_again(folder, destination, monkeypatch):
    monkeypatch.setattr(listing, "_identity", lambda _info: None)
    build_catalog(folder, destination=destination)
    assert counts(build_catalog(folder, destination=destination)) == (3, 0, 0, 0)


@pytest.mark.parametrize("rows", SCHEMAS)
def test_many_updates_are_as_one_build(tmp_path, destination, rows, monkeypatch):
    """In row groups of three rows and runs of four digests, files come, change and go."""
    monkeypatch.setattr(catalog_writer, "GROUP_ROWS", 3)
    monkeypatch.setattr(catalog_writer, "RUN_ROWS", 4)
    folder = tmp_path / "cache"
    for number in range(13):
        write(folder / f"{number % 7}.arrow", tokens=9 + 5 * number)
        if number > 10:
            (folder / f"{(number - 3) % 7}.arrow").unlink(missing_ok=True)
        build_catalog(folder, destination=destination, key=KEY, rows=rows, step_tokens=8)
    whole = tmp_path / "whole.parquet"
    build_catalog(folder, destination=whole, key=KEY, rows=rows, step_tokens=8)
    with open_catalog(destination) as one, open_catalog(whole) as other:
        assert len(one.document.runs) == len(other.document.runs) > 3
        assert one._parquet.num_row_groups > 1

    def told(path):
        table = parquet.read_table(path).drop_columns(["file_index"])
        return table.sort_by([(name, "ascending") for name in ("url", "tensor_index") if name in table.column_names])

    assert told(destination).equals(told(whole))
    for size in range(1, PROMPT.size, 4):
        matches = [sorted(find_prefix(path, PROMPT[:size], key=KEY)) for path in (destination, whole)]
        assert matches[0] == matches[1]
    assert len(matches[0]) == len(list(folder.iterdir()))


# -- what does not go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ({}, {"rows": "tensors"}, "catalog_mismatch"),
        ({"key": KEY}, {"key": KEY, "step_tokens": 8}, "catalog_mismatch"),
        ({"key": KEY}, {"key": KEY[::-1]}, "catalog_key_mismatch"),
        ({"key": KEY}, {}, "catalog_key_mismatch"),
        ({}, {"key": KEY}, "catalog_key_mismatch"),
    ],
)
def test_another_catalogue_is_not_continued(folder, destination, first, then, code):
    build_catalog(folder, destination=destination, **first)
    before = destination.read_bytes()
    with pytest.raises(ha.CatalogError) as caught:
        build_catalog(folder, destination=destination, **then)
    assert caught.value.codes == [code]
    assert destination.read_bytes() == before
    assert counts(build_catalog(folder, destination=destination, rebuild=True, **then)) == (3, 0, 0, 0)


def test_steps_stay_as_they_are(folder, destination):
    build_catalog(folder, destination=destination, key=KEY, step_tokens=7)
    write(folder / "c.arrow", tokens=20)
    assert counts(build_catalog(folder, destination=destination, key=KEY)) == (1, 2, 0, 0)
    with open_catalog(destination) as catalogue:
        assert catalogue.document.step_tokens == 7


def test_of_another_folder_or_with_other_columns(folder, destination, monkeypatch):
    build_catalog(folder, destination=destination)
    with pytest.raises(ha.CatalogError) as caught:
        build_catalog(folder / "b", destination=destination)
    assert caught.value.codes == ["catalog_mismatch"]
    monkeypatch.setitem(SCHEMAS, "snapshots", SCHEMAS["snapshots"].append(pa.field("more", pa.utf8())))
    with pytest.raises(ha.CatalogError) as caught:
        build_catalog(folder, destination=destination)
    assert caught.value.codes == ["catalog_mismatch"]
    assert caught.value.problems[0].where == "columns"


@pytest.mark.parametrize("kind", ["text", "empty", "parquet", "cut", "snapshot"])
@pytest.mark.parametrize("rebuild", [False, True])
def test_what_is_no_catalogue_is_not_replaced(folder, destination, kind, rebuild):
    build_catalog(folder, destination=destination)
    whole = destination.read_bytes()
    if kind == "parquet":
        parquet.write_table(pa.table({"url": ["x"]}), destination)
    else:
        contents = {
            "text": b"some notes",
            "empty": b"",
            "cut": whole[:-9],
            "snapshot": (folder / "c.arrow").read_bytes(),
        }
        destination.write_bytes(contents[kind])
    before = destination.read_bytes()
    with pytest.raises(ha.CatalogError) as caught:
        build_catalog(folder, destination=destination, rebuild=rebuild)
    assert caught.value.codes == ["catalog_invalid"]
    assert destination.read_bytes() == before


@pytest.mark.parametrize("wrong", [{"rows": "pages"}, {"on_error": "ignore"}, {"at_once": 0}, {"key": b"short"}])
def test_arguments_that_are_none(folder, destination, wrong):
    with pytest.raises(ValueError):
        build_catalog(folder, destination=destination, **wrong)
    assert not destination.exists()


# -- what it costs ----------------------------------------------------------------------------------------------------


def test_no_page_is_read(tmp_path, destination, monkeypatch):
    """Every range that is read of a snapshot lies outside of its pages; the report counts them."""
    for number in range(3):
        write(tmp_path / "cache" / f"{number}.arrow", tokens=97, seed=number, page_align_bytes=4096)
    ranges: dict[str, list[tuple[int, int]]] = {}
    real = FileRange.read

    def noted(source, offset, size):
        ranges.setdefault(source.url, []).append((offset, size))
        return real(source, offset, size)

    monkeypatch.setattr(FileRange, "read", noted)
    report = build_catalog(tmp_path / "cache", destination=destination, key=KEY)
    monkeypatch.undo()
    requests = fetched_bytes = 0
    for path in (tmp_path / "cache").iterdir():
        with ha.open_snapshot(path) as snapshot:
            rows = [row for rows in snapshot._rows._places.values() for row in rows]
        assert len(rows) == 4
        for offset, size in ranges[str(path)]:
            for row in rows:
                assert offset + size <= row.pages_offset or offset >= row.pages_offset + row.pages_bytes
        requests += len(ranges[str(path)])
        fetched_bytes += sum(size for _, size in ranges[str(path)])
        # The first tensor of each of the two groups and no other: what is before and after its pages.
        touched = {
            row.tensor_index for row in rows for offset, size in ranges[str(path)] if row.offset == offset and size
        }
        assert touched == {0, 2}
    assert (report.requests, report.fetched_bytes) == (requests, fetched_bytes)


def test_no_more_is_begun_than_may_wait(tmp_path, destination, monkeypatch):
    for number in range(40):
        write(tmp_path / "cache" / f"{number:02}.arrow", tokens=5, seed=number)
    lock, running, begun, taken = threading.Lock(), 0, 0, 0
    most_running = most_waiting = 0
    real_read, real_add = builder.read_contents, builder._Build._add

    def read(file, **options):
        nonlocal running, begun, most_running, most_waiting
        with lock:
            running, begun = running + 1, begun + 1
            most_running, most_waiting = max(most_running, running), max(most_waiting, begun - taken)
        try:
            return real_read(file, **options)
        finally:
            with lock:
                running -= 1

    def add(build, found, writer, **options):
        nonlocal taken
        real_add(build, found, writer, **options)
        with lock:
            taken += 1

    monkeypatch.setattr(builder, "read_contents", read)
    monkeypatch.setattr(builder._Build, "_add", add)
    report = build_catalog(tmp_path / "cache", destination=destination, at_once=3)
    assert (report.num_files, begun) == (40, 40)
    assert most_running <= 3
    assert most_waiting <= 7
    assert [Path(row["url"]).stem for row in rows_of(destination)] == [f"{number:02}" for number in range(40)]


def test_progress_counts_files(folder, destination):
    callback = fsspec.Callback()
    build_catalog(folder, destination=destination, progress=callback)
    assert (callback.size, callback.value) == (3, 3)


# -- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_failure_leaves_the_old_catalogue_and_nothing_else(folder, destination, monkeypatch):
    build_catalog(folder, destination=destination, key=KEY)
    before = destination.read_bytes()
    write(folder / "c.arrow", tokens=31)
    (folder / "text.arrow").write_text("not Arrow")
    with pytest.raises(ha.SnapshotIncompleteError):
        build_catalog(folder, destination=destination, key=KEY, on_error="raise")
    monkeypatch.setattr(catalog_writer.parquet.ParquetWriter, "add_key_value_metadata", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_catalog(folder, destination=destination, key=KEY)
    assert destination.read_bytes() == before
    assert sorted(path.name for path in destination.parent.iterdir()) == ["cache", "catalog.parquet"]


KILLED = """
import os, sys
from hurray_arrow.catalog import build_catalog, builder
real = builder._Build._add
def add(build, found, writer, **options):
    real(build, found, writer, **options)
    if build._num_files == 4:
        writer._write_rows()
        os.kill(os.getpid(), 9)
builder._Build._add = add
build_catalog(sys.argv[1], destination=sys.argv[2])
"""


def test_a_killed_run_leaves_the_old_catalogue(folder, destination):
    build_catalog(folder, destination=destination)
    before = destination.read_bytes()
    for name in ("d", "e", "f"):
        write(folder / f"{name}.arrow", tokens=31)
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(destination)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert destination.read_bytes() == before
    assert counts(build_catalog(folder, destination=destination)) == (3, 3, 0, 0)


@pytest.mark.parametrize("text", [b"1", b"[]", b"null"])
def test_a_document_that_is_no_object_is_refused(text):
    """``1`` was taken for a version."""
    with pytest.raises(ha.CatalogError) as caught:
        Document.from_metadata({DOCUMENT_KEY: text, HASH_KEY: xxh3_hex(text).encode()}, url="c")
    assert caught.value.codes == ["catalog_invalid"]
