"""Ranges, norms and compressed sizes are numpy's, over exactly the slots that hold tokens."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.report import head_values
from hurray_arrow.report.figures import sized_values
from hurray_arrow.report.head_values import read_values
from hurray_arrow.report.sampling import sample_pages
from hurray_arrow.report.stored_sizes import StoredSizes
from hurray_arrow.report.value_figures import head_norm_tables, layer_table, magnitude_tables
from hurray_arrow.snapshot import archive_rows
from hurray_arrow.snapshot.partial import TensorPages
from tests.sample import make_tensor

PAGES, PAGE_SIZE, HEADS, DIM = 61, 5, 3, 11
#: Half of the pages, in no order; the last page of each sequence is partial.
TABLES = [[7, 3, 60, 22, 41], [], [3, 7, 9, 11], [58, 2, 30, 31, 32, 33, 34]]
LENS = [23, 0, 20, 31]
TABLES_OF_MANY = [list(range(3, 203)), [7, *range(300, 500)]]
MANY = [798, 803]


def opened(*tensors, **options):
    ha.write_snapshot("memory://report/values", tensors, overwrite=True, **options)
    return ha.open_snapshot("memory://report/values")


def pool_of(seed, dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(PAGES, PAGE_SIZE, HEADS, DIM)) * (1 + rng.random((1, 1, HEADS, 1)) * 9)
    return pool.astype(dtype)


def tensor_of(pool, layer_index=0, kv_role="key", **more):
    tables = {"block_tables": TABLES, "seq_lens": LENS, **more}
    return ha.BlockPagedTensor.from_arrays(pool, layer_index=layer_index, kv_role=kv_role, **tables)


def slots(pages=None):
    """Pairs of page and slot that hold a token, each once."""
    found = {
        (page, slot)
        for table, tokens in zip(TABLES, LENS, strict=True)
        for token, (page, slot) in enumerate((p, s) for p in table for s in range(PAGE_SIZE))
        if token < tokens
    }
    return sorted(pair for pair in found if pages is None or pair[0] in pages)


def check(found, pool, pages=None):
    at = np.array(slots(pages))
    held = pool[at[:, 0], at[:, 1]].astype(np.float64)
    norms = np.sqrt((held**2).sum(axis=-1))
    assert found.slots == len(at) * HEADS
    np.testing.assert_array_equal(found.lowest, held.min(axis=(0, 2)))
    np.testing.assert_array_equal(found.highest, held.max(axis=(0, 2)))
    np.testing.assert_allclose(found.mean_norm, norms.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.largest_norm, norms.max(axis=0), rtol=1e-5)


@pytest.mark.parametrize("profile", ["share", "archive"])
@pytest.mark.parametrize("at_once_bytes", [700, 8 << 20])
def test_all_pages_are_read_where_they_are_few(monkeypatch, profile, at_once_bytes):
    monkeypatch.setattr(head_values, "_AT_ONCE_BYTES", at_once_bytes)
    pools = [pool_of(3), pool_of(5)]
    tensors = [tensor_of(pools[0], 4), tensor_of(pools[1], 2, "value")]
    with opened(*tensors, profile=profile) as snapshot:
        values = read_values(snapshot)
    for found, pool in zip(values.tensors, pools, strict=True):
        assert (found.num_pages, found.num_filled, found.not_finite) == (14, 14, 0)
        check(found, pool)
    assert values.roles == ["key", "value"]
    assert values.labels == ["2", "4"]
    assert [each and each.entry.layer_index for each in values.by_layer("key")] == [None, 4]


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    pool = pool_of(7, np.float32)
    pool[7, 1, 0, 3], pool[7, 2, 0, 5], pool[60, 0, 2, 1] = np.nan, np.inf, -np.inf
    pool[3, 0, 1, 0] = 3e38  # finite, but its norm is not in float32
    pool[0], pool[41, 4] = np.nan, np.nan  # a page that nobody names, and a slot behind the last token
    with opened(tensor_of(pool)) as snapshot:
        [found] = read_values(snapshot).tensors
    assert found.not_finite == 4
    assert found.norms.tolist() == [len(slots()) - 2, len(slots()) - 1, len(slots()) - 1]
    assert found.highest[1] == np.float32(3e38)
    assert np.isfinite([*found.lowest, *found.highest, *found.mean_norm, *found.largest_norm]).all()


def test_heads_without_a_finite_number_have_none():
    pool = pool_of(7, np.float32)
    pool[:, :, 1] = np.nan
    with opened(tensor_of(pool)) as snapshot:
        values = read_values(snapshot)
    assert np.isnan(values.tensors[0].mean_norm).tolist() == [False, True, False]
    [table] = magnitude_tables(values)
    assert table.rows[0][2] == "–"


def test_quantized_values_are_what_they_stand_for():
    tensor = make_tensor(element_type="int8", quantization="per_channel_heads")
    with opened(tensor) as snapshot:
        [found] = read_values(snapshot).tensors
    numbers = np.concatenate([tensor.dequantize(sequence) for sequence in range(tensor.num_seqs)])
    np.testing.assert_allclose(found.lowest, numbers.min(axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.highest, numbers.max(axis=(0, 2)), rtol=1e-6)


def test_what_has_no_numbers_is_left_out_and_named():
    tensors = [
        make_tensor(layer_index=1),
        make_tensor(layer_index=2, element_type="complex64"),
        make_tensor(layer_index=3, element_type="uint8", quantization="nf4", seed=4),
        make_tensor(layer_index=4, head_dim=0),
        make_tensor(layer_index=1, component="scales", head_dim=1, element_type="float32"),
    ]
    with opened(*tensors) as snapshot:
        values = read_values(snapshot)
        assert [each.entry.layer_index for each in values.tensors] == [1]
        assert len(values.left_out) == 3
        assert [text.split(":")[0] for text in values.left_out] == ["tensor 1", "tensor 3", "tensor 2"]
        assert read_values(snapshot, kv_role="key").tensors == ()


def test_slots_of_unknown_length_are_not_guessed_at():
    with opened(tensor_of(pool_of(1), seq_lens=None, total_tokens=sum(LENS))) as snapshot:
        [found] = sized_values(snapshot, sample_bytes=1 << 20).tensors
    assert (found.num_pages, found.slots, found.plane_bytes) == (0, 0, [])


def test_layers_of_several_groups_do_not_become_one():
    other = tensor_of(pool_of(2), 4, block_tables=[[1]], seq_lens=[5], layer_name="window.4")
    unnamed = tensor_of(pool_of(2), None, "fused", layer_name="memory")
    with opened(tensor_of(pool_of(1), 4), other, unnamed) as snapshot:
        values = read_values(snapshot)
    assert values.labels == ["4 (group 0)", "4 (group 1)", "memory"]
    assert values.roles == ["key", "fused"]
    assert [row[0] for row in layer_table(values).rows] == values.labels


def test_a_tables_cells_are_the_heads():
    with opened(tensor_of(pool_of(1), 4), tensor_of(pool_of(2), 6)) as snapshot:
        values = read_values(snapshot)
    [magnitudes], [norms] = magnitude_tables(values), head_norm_tables(values)
    assert magnitudes.columns == ("layer", "head 0", "head 1", "head 2")
    assert [row[0] for row in norms.rows] == ["4", "6"]
    for row, each in zip(magnitudes.rows, values.tensors, strict=True):
        assert [float(text) for text in row[1:]] == pytest.approx(each.largest_magnitude.tolist(), rel=1e-3)
    for row, each in zip(norms.rows, values.tensors, strict=True):
        assert [float(text) for text in row[1:]] == pytest.approx(each.mean_norm.tolist(), rel=1e-3)


# -- samples ----------------------------------------------------------------------------------------------------------


def test_a_sample_is_spread_in_runs_and_always_the_same():
    fill = np.where(np.random.default_rng(1).random(10_000) < 0.7, 5, 0)
    sample = sample_pages(fill, run=16, most_pages=1000)
    again = sample_pages(fill.copy(), run=16, most_pages=1000)
    assert sample.page_ids.tolist() == again.page_ids.tolist()
    assert len(sample.page_ids) < sample.num_filled
    assert sample.num_filled == np.count_nonzero(fill)
    assert (fill[sample.page_ids] > 0).all()
    runs = np.unique(sample.page_ids // 16)
    assert len(runs) == 1000 // 16
    assert len(sample.page_ids) == np.count_nonzero(fill[np.isin(np.arange(10_000) // 16, runs)])
    # One run out of each part of the pool.
    assert (np.diff(np.r_[0, runs, 10_000 // 16]) <= 2 * 10_000 / 16 / len(runs) + 1).all()


@pytest.mark.parametrize(("most_pages", "expected"), [(0, 8), (7, 8), (16, 16), (39, 32), (40, 40), (10**9, 40)])
def test_at_least_a_run_and_at_most_all(most_pages, expected):
    fill = np.array([-1, 0, *[3] * 40, -1])
    assert len(sample_pages(np.r_[np.zeros(6), fill], run=8, most_pages=most_pages).page_ids) == expected


def test_nothing_filled_is_nothing_read():
    assert len(sample_pages(np.array([0, -1, 0]), run=8, most_pages=9).page_ids) == 0


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_a_sample_reads_its_pages_and_no_others(monkeypatch, profile):
    page_bytes = 2 * PAGE_SIZE * HEADS * DIM
    if profile == "archive":
        monkeypatch.setattr(archive_rows, "MAX_ROW_BYTES", 4 * page_bytes)
        monkeypatch.setattr(archive_rows, "ONE_ROW_BYTES", 64)
        monkeypatch.setattr("hurray_arrow.report.sampling.MAX_ROW_BYTES", 4 * page_bytes)
        monkeypatch.setattr("hurray_arrow.snapshot.archive_source.MAX_ROW_BYTES", 4 * page_bytes)
    else:
        monkeypatch.setattr("hurray_arrow.report.sampling._RUN_BYTES", 4 * page_bytes)
    seen = []
    read = TensorPages.read
    monkeypatch.setattr(TensorPages, "read", lambda self, ids: seen.append(ids.tolist()) or read(self, ids))
    pools = [pool_of(3), pool_of(5)]
    with opened(tensor_of(pools[0]), tensor_of(pools[1], 1), profile=profile) as snapshot:
        values = read_values(snapshot, sample_bytes=2 * 8 * page_bytes)
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert len({page // 4 for page in seen[0]}) == 2
        for found, pool in zip(values.tensors, pools, strict=True):
            assert (found.num_pages, found.num_filled) == (len(seen[0]), 14)
            check(found, pool, set(seen[0]))


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_an_archives_sizes_are_the_archives():
    with opened(tensor_of(pool_of(3)), tensor_of(pool_of(5), 1, "value"), profile="archive") as snapshot:
        values = sized_values(snapshot, sample_bytes=1 << 20)
        sizes = StoredSizes(snapshot, values)
        expected = [snapshot.plane_sizes(entry).stored_bytes for entry in snapshot.entries]
    assert [each.plane_bytes for each in sizes.tensors] == expected
    assert [each.raw_bytes for each in sizes.tensors] == [PAGES * PAGE_SIZE * HEADS * DIM * 2] * 2
    assert values.tensors[0].plane_bytes == []


@pytest.mark.parametrize("element_type", ["bfloat16", "float32", "int8", "int4"])
def test_other_snapshots_are_tried_out_as_archives(element_type):
    tensor = make_tensor(
        element_type=element_type, page_size=4, num_pages=509, block_tables=TABLES_OF_MANY, seq_lens=MANY
    )
    with opened(tensor) as snapshot:
        tried = StoredSizes(snapshot, sized_values(snapshot, sample_bytes=1 << 20))
    ha.copy_snapshot(
        "memory://report/values", "memory://report/small", profile="archive", sanitize=True, overwrite=True
    )
    with ha.open_snapshot("memory://report/small") as snapshot:
        small = StoredSizes(snapshot, sized_values(snapshot, sample_bytes=0))
    [found], [expected] = tried.tensors, small.tensors
    assert found.raw_bytes == expected.raw_bytes
    # The same pages in another order.
    assert found.plane_bytes == pytest.approx(expected.plane_bytes, rel=0.02)


@pytest.mark.parametrize(("element_type", "planes"), [("int8", 1), ("float32", 4), ("int4", 1)])
def test_every_type_has_its_planes(element_type, planes):
    with opened(make_tensor(element_type=element_type, page_size=4)) as snapshot:
        [found] = sized_values(snapshot, sample_bytes=1 << 20).tensors
    assert len(found.plane_bytes) == planes
    assert all(0 < each <= found.raw_bytes // planes + 8 for each in found.plane_bytes)
