"""Engines' tables: lengths decide, ids are checked, what lies behind is not read."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow.engines import tables
from hurray_arrow.errors import LayoutError


def pages(found):
    return [ids.tolist() for ids in found.pages]


def refused(call, *args, **options):
    with pytest.raises(LayoutError) as caught:
        call(*args, **options)
    return caught.value.expected, caught.value.actual


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint8])
def test_rectangular_tables_are_cut_by_length(dtype):
    table = np.array([[3, 8, 10, 7], [5, 7, 7, 7], [0, 1, 7, 7], [9, 9, 9, 9]], dtype)
    found = tables.of_block_tables(table, np.array([13, 0, 6], dtype), page_size=5)
    assert pages(found) == [[3, 8, 10], [], [0, 1]]
    assert found.seq_lens.tolist() == [13, 0, 6]
    assert found.positions == (None, None, None)


@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 9, 10, 11])
def test_pages_are_counted_up(tokens):
    found = tables.of_block_tables([[1, 2, 3]], [tokens], page_size=5)
    assert pages(found) == [[1, 2, 3][: -(-tokens // 5)]]


def test_lists_and_generators_are_tables_too():
    rows = ([3, np.int64(8)], np.array([2], np.int32))
    assert pages(tables.of_block_tables(rows, (n for n in (6, 2)), page_size=5)) == [[3, 8], [2]]


def test_stale_entries_need_not_be_numbers_of_pages():
    assert pages(tables.of_block_tables([[3, 2**200, "x"]], [5], page_size=5)) == [[3]]
    table = np.array([[3, 2**64 - 1]], np.uint64)
    assert pages(tables.of_block_tables(table, [5], page_size=5)) == [[3]]


@pytest.mark.parametrize(
    ("table", "lens", "wrong"),
    [
        ([[1, 2]], [11], (3, 2)),
        ([[1, 2]], [5, 5], (2, 1)),
        ([[1, 2]], [-1], (0, -1)),
        ([[1, 2]], [5.0], ("integers", ["float"])),
        ([[1, 2]], [True], ("integers", ["bool"])),
        ([[1.5, 2]], [5], ("integers", ["float"])),
        ([[2**63]], [5], ("int64", "larger")),
        (np.zeros((1, 2)), [5], ("integers [n]", "float64 [1]")),
        (np.array([[2**63]], np.uint64), [5], (2**63 - 1, 2**63)),
        ([[1]], np.zeros((1, 1), np.int32), ("integers [n]", "int32 [1, 1]")),
    ],
)
def test_wrong_tables_are_refused(table, lens, wrong):
    assert refused(tables.of_block_tables, table, lens, page_size=5) == wrong


@pytest.mark.parametrize(("ids", "actual"), [([0, 4], None), ([0, 5], 5), ([-1, 0], -1), ([2**40], 2**40)])
def test_ids_are_checked_against_the_pool(ids, actual):
    found = tables.of_block_tables([ids], [5 * len(ids)], page_size=5)
    if actual is None:
        found.check_ids(5)
    else:
        assert refused(found.check_ids, 5) == (5, actual)


@pytest.mark.parametrize(
    ("found", "twice"),
    [
        (tables.of_block_tables([[1], [3, 2, 0, 2]], [5, 17], page_size=5), 2),
        # Null blocks that nobody named, and a ring.
        (tables.of_block_tables([[7, 7, 7, 4]], [17], page_size=5), 7),
        (tables.of_slot_mapping([0, 8, 8, 3], [1, 3], page_size=1), 8),
        (tables.of_req_to_token(np.array([[2, 3, 1, 2, 9]]), [4], page_size=1), 2),
        (tables.of_indptr([0, 1, 4], [2, 3, 5, 3], [4, 1], page_size=5), 3),
    ],
)
def test_a_page_holds_one_range_of_positions(found, twice):
    assert refused(found.check_ids, 9) == ("distinct", twice)
    apart = tables.PageTables(tuple(np.unique(ids) for ids in found.pages), found.seq_lens, 5, found.positions)
    apart.check_ids(9)


def test_absent_pages_become_positions():
    found = tables.of_block_tables([[0, 4, 0, 6, 9], [3, 2], [0, 0], [5, 0]], [23, 8, 9, 7], page_size=5, absent=0)
    assert pages(found) == [[4, 6, 9], [3, 2], [], [5]]
    assert [None if p is None else p.tolist() for p in found.positions] == [[5, 15, 20], None, [], [0]]
    assert found.seq_lens.tolist() == [13, 8, 0, 5]


def test_blocks_split_into_pages():
    found = tables.of_block_tables([[2, 0], [3]], [17, 4], page_size=15).split(3)
    assert (pages(found), found.page_size) == ([[6, 7, 8, 0], [9]], 5)
    spanning = tables.of_block_tables([[2, 0]], [17], page_size=15).split(3, block_stride=7)
    assert pages(spanning) == [[14, 15, 16, 0]]


@pytest.mark.parametrize("block", [-(2**63), 2**62, 2**63 - 1])
def test_a_block_beyond_all_memory_does_not_come_round_to_another(block):
    found = tables.of_block_tables([[block]], [1], page_size=10)
    assert refused(found.split, 2, block_stride=4) == ((2**63 - 3) // 4, block)


def test_blocks_that_overlap_are_refused():
    assert refused(tables.of_block_tables([], [], page_size=10).split, 5, block_stride=4) == (5, 4)


@pytest.mark.parametrize("page_size", [0, -1, 2**32])
def test_every_table_is_of_pages_of_some_size(page_size):
    no_ints = np.zeros(0, np.int32)
    for call, arguments in (
        (tables.of_block_tables, ([], [])),
        (tables.of_slot_mapping, ([], [])),
        (tables.of_req_to_token, (np.zeros((1, 1), np.int32), [])),
        (tables.of_indptr, (np.zeros(1, np.int32), no_ints, no_ints)),
    ):
        assert refused(call, *arguments, page_size=page_size) == (1, page_size)


def test_blocks_with_absent_ones_split_too():
    found = tables.of_block_tables([[0, 2, 4]], [39], page_size=15, absent=0).split(3)
    assert pages(found) == [[6, 7, 8, 12, 13]]
    assert found.positions[0].tolist() == [15, 20, 25, 30, 35]
    assert found.seq_lens.tolist() == [24]


def slots(row, tokens, size=5):
    return [row[t // size] * size + t % size for t in range(tokens)]


def test_slots_become_pages():
    mapping = [*slots([3, 8, 10], 13), *slots([8, 1], 6), -1, -1]
    found = tables.of_slot_mapping(np.array(mapping, np.int64), [13, 0, 6], page_size=5)
    assert pages(found) == [[3, 8, 10], [], [8, 1]]
    assert pages(tables.of_slot_mapping([7, 2, 9], [3], page_size=1)) == [[7, 2, 9]]


@pytest.mark.parametrize(
    ("place", "slot", "expected"),
    [(0, 16, 16), (4, 20, 19), (5, 41, 41), (7, -1, 42), (12, 53, 52), (0, -5, -5)],
)
def test_slots_that_do_not_follow_each_other_are_refused(place, slot, expected):
    mapping = slots([3, 8, 10], 13)
    mapping[place] = slot
    wrong = refused(tables.of_slot_mapping, mapping, [13], page_size=5)
    assert wrong == (expected, slot)


def test_a_mapping_of_a_chunk_is_refused():
    assert refused(tables.of_slot_mapping, slots([3, 8], 8), [5, 4], page_size=5) == (9, 8)


def test_request_rows():
    table = np.full((5, 17), 999, np.int32)
    table[4, :13], table[2, :6] = slots([3, 8, 10], 13), slots([8, 1], 6)
    found = tables.of_req_to_token(table, [13, 0, 6], page_size=5, rows=[4, 0, 2])
    assert pages(found) == [[3, 8, 10], [], [8, 1]]
    table[0, :6] = slots([8, 1], 6)
    assert pages(tables.of_req_to_token(table, [6], page_size=5)) == [[8, 1]]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"seq_lens": [3], "rows": [5]}, (5, 5)),
        ({"seq_lens": [3], "rows": [-1]}, (5, -1)),
        ({"seq_lens": [3], "rows": [0, 1]}, (1, 2)),
        ({"seq_lens": [18], "rows": [0]}, (18, 17)),
    ],
)
def test_wrong_request_rows_are_refused(options, wrong):
    assert refused(tables.of_req_to_token, np.zeros((5, 17), np.int32), page_size=1, **options) == wrong


def test_a_request_table_is_integers_of_two_axes():
    assert refused(tables.of_req_to_token, np.zeros(5, np.int32), [3], page_size=5) == (2, 1)
    assert refused(tables.of_req_to_token, np.zeros((5, 5)), [3], page_size=5) == (2, 2)


def indptr(kv_indptr, kv_indices, last, page_size=5):
    return tables.of_indptr(kv_indptr, kv_indices, last, page_size=page_size)


@pytest.mark.parametrize("as_list", [True, False])
def test_compressed_rows(as_list):
    parts = [[0, 3, 3, 5], [3, 8, 10, 8, 1, 77], [3, 0, 1]]
    found = indptr(*(parts if as_list else [np.array(part, np.int32) for part in parts]))
    assert pages(found) == [[3, 8, 10], [], [8, 1]]
    assert found.seq_lens.tolist() == [13, 0, 6]


def test_an_empty_sequence_may_have_a_last_page_of_page_size():
    assert indptr([0, 0], [], [5]).seq_lens.tolist() == [0]
    assert indptr([0], [], []).num_seqs == 0


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        (([0, 2], [1, 2], [6]), (5, 6)),
        (([0, 2], [1, 2], [0]), (5, 0)),
        (([0, 0], [1, 2], [3]), (5, 3)),
        (([0, 3], [1, 2], [1]), (3, 2)),
        (([1, 2], [1, 2], [1]), (0, 1)),
        (([0, 2, 1], [1, 2], [1, 1]), (2, 1)),
        (([0, 2], [1, 2], [1, 1]), (3, 2)),
        ((np.array([0, 2], np.int64), [1, 2], [1]), ("int32", "int64")),
        (([0, 2], np.array([1, 2], np.uint32), [1]), ("int32", "uint32")),
        (([0, 2], [1, 2], np.array([1], np.int64)), ("int32", "int64")),
    ],
)
def test_wrong_compressed_rows_are_refused(parts, wrong):
    assert refused(indptr, *parts) == wrong
