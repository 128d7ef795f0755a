"""What an archive's byte planes take is counted in the headers of its rows, and a header that lies is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow.arrow.page_buffers import page_buffers
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.snapshot import archive_rows, plane_sizes
from tests.sample import make_tensor


def archived(tensors, **options):
    ha.write_snapshot("memory://planes/a", tensors, profile="archive", overwrite=True, **options)
    return ha.open_snapshot("memory://planes/a")


def half_constant(**more):
    """An element's upper byte is always the same, its lower byte is noise."""
    pool = np.random.default_rng(5).integers(0, 256, (31, 5, 3, 11)).astype(np.uint16) + 0x3F00
    tables = {"block_tables": [list(range(31))], "seq_lens": [153]}
    return ha.BlockPagedTensor.from_arrays(pool, element_type="bfloat16", kv_role="key", **tables, **more)


def test_planes_are_told_apart():
    with archived([half_constant()]) as snapshot:
        [entry] = snapshot.entries
        found = snapshot.plane_sizes(entry)
        low, high = found.stored_bytes
        assert (found.num_pages, found.rows_read, found.num_rows) == (31, 1, 1)
        assert 31 * 5 * 3 * 11 <= low <= 31 * 5 * 3 * 11 + 64
        assert 0 < high < 100


@pytest.mark.parametrize(
    ("element_type", "planes"), [("int8", 1), ("float8_e4m3", 1), ("float32", 4), ("complex128", 16), ("int4", 1)]
)
def test_every_type_has_its_planes(element_type, planes):
    with archived([make_tensor(element_type=element_type), make_tensor(layer_index=3)]) as snapshot:
        first, second = (snapshot.plane_sizes(entry) for entry in snapshot.entries)
        assert len(first.stored_bytes) == planes
        assert len(second.stored_bytes) == 2
        assert all(first.stored_bytes)


def test_plain_pages_are_one_plane():
    with archived([half_constant()], encoding="plain") as snapshot:
        found = snapshot.plane_sizes(snapshot.entries[0])
        assert len(found.stored_bytes) == 1
        assert sum(found.stored_bytes) < snapshot.entries[0].stored_bytes


def test_rows_are_looked_at_at_equal_distances(monkeypatch):
    monkeypatch.setattr(archive_rows, "MAX_ROW_BYTES", 3 * 330)
    monkeypatch.setattr(archive_rows, "ONE_ROW_BYTES", 64)
    with archived([half_constant()]) as snapshot:
        [entry] = snapshot.entries
        assert entry.num_rows == 12
        source = snapshot._rows.source
        requests, fetched = source.requests, source.fetched_bytes
        some = snapshot.plane_sizes(entry, most_rows=4)
        assert (some.num_pages, some.rows_read, some.num_rows) == (10, 4, 11)  # the last row has one page
        assert source.requests - requests <= 4
        assert source.fetched_bytes - fetched < entry.stored_bytes / 2
        every = snapshot.plane_sizes(entry, most_rows=99)
        assert (every.num_pages, every.rows_read) == (31, 11)
        assert every.stored_bytes[0] > some.stored_bytes[0]


def test_where_nothing_is_compressed_there_is_nothing_to_say(tmp_path):
    path = tmp_path / "share.arrow"
    ha.write_snapshot(path, [make_tensor()])
    with ha.open_snapshot(path) as snapshot:
        assert snapshot.plane_sizes(snapshot.entries[0]) is None
    with archived([make_tensor(num_pages=0, block_tables=[], seq_lens=[])]) as snapshot:
        found = snapshot.plane_sizes(snapshot.entries[0])
        assert (found.stored_bytes, found.num_pages, found.num_rows) == ((), 0, 0)
    with archived([make_tensor(num_heads=0)]) as snapshot:
        found = snapshot.plane_sizes(snapshot.entries[0])
        assert (found.stored_bytes, found.num_pages, found.num_rows) == ((), 7, 1)


def test_buffers_of_unknown_columns_are_counted_or_refused():
    schema = SchemaPlan.of([make_tensor()]).arrow_schema()
    plain = page_buffers(schema)
    more = page_buffers(pa.schema([pa.field("new", pa.list_(pa.utf8())), *schema]))
    assert [[number + 5 for number in column] for column in plain] == [list(column) for column in more]
    with pytest.raises(ha.UnsupportedError):
        page_buffers(pa.schema([pa.field("new", pa.dictionary(pa.int8(), pa.utf8())), *schema]))


@pytest.mark.parametrize("change", ["cut", "first", "last", "negative"])
def test_a_header_that_does_not_fit_its_row_is_refused(monkeypatch, change):
    whole = plane_sizes.batch_layout

    def lying(flatbuffer):
        layout = whole(flatbuffer)
        buffers = list(layout.buffers)
        start, size = buffers[-1]
        first = next(number for number, (_, size) in enumerate(buffers) if size)
        if change == "cut":
            buffers = buffers[:3]
        elif change == "first":
            buffers[first] = (buffers[first][0], buffers[first][1] + 64)
        else:
            buffers[-1] = (start, size + 64 if change == "last" else -1)
        return dataclasses.replace(layout, buffers=tuple(buffers))

    with archived([half_constant()]) as snapshot:
        monkeypatch.setattr(plane_sizes, "batch_layout", lying)
        with pytest.raises(ha.SnapshotCorruptError) as caught:
            snapshot.plane_sizes(snapshot.entries[0])
        assert [problem.code for problem in caught.value.problems] == ["arrow_invalid"]
