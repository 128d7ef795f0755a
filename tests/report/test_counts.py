"""The numbers behind the pictures are those of a plain loop, on samples in which no two of them are the same."""

from __future__ import annotations

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.report import page_cells, sharing_map
from hurray_arrow.report.group import Group
from hurray_arrow.report.last_pages import LastPages
from hurray_arrow.report.page_cells import PageMap
from hurray_arrow.report.sharing_map import SharingMap
from tests.sample import BLOCK_TABLES, make_tensor, sample_facts


def opened(*tensors):
    ha.write_snapshot("memory://report/counts", tensors, overwrite=True)
    return ha.open_snapshot("memory://report/counts")


def group_of(*tensors, kv_group=0):
    with opened(*tensors) as snapshot:
        return Group.of(snapshot, kv_group)


def many(num_seqs=53, num_pages=401, page_size=7, seed=3):
    """Sequences that share a prefix of different lengths, some of them with a page twice, some empty."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(num_pages).tolist()
    prefix, rest = ids[:31], iter(ids[31:])
    tables = [
        prefix[: int(rng.integers(0, 31))] + [next(rest) for _ in range(int(rng.integers(0, 7)))]
        for _ in range(num_seqs)
    ]
    tables[5], tables[11] = [], [*tables[11], tables[11][0]]
    lens = [max(0, page_size * len(table) - int(rng.integers(0, page_size))) for table in tables]
    pool = np.zeros((num_pages, page_size, 1, 2), np.float32)
    return ha.BlockPagedTensor.from_arrays(pool, block_tables=tables, seq_lens=lens, kv_role="key"), tables, lens


def test_pages_are_free_of_one_sequence_or_shared():
    tensor, tables, _ = many()
    group = group_of(tensor)
    sharers = [sum(page in table for table in tables) for page in range(401)]
    assert group.kinds.tolist() == [min(number, 2) for number in sharers]
    assert group.kind_counts == tuple(sum(min(number, 2) == kind for number in sharers) for kind in range(3))
    assert group.pages_of.tolist() == [len(set(table)) for table in tables]
    assert group.shared_pages_of.tolist() == [sum(sharers[page] > 1 for page in set(table)) for table in tables]


@pytest.mark.parametrize("most_cells", [1, 13, 400, 401, 2048])
def test_cells_are_neighbouring_pages(monkeypatch, most_cells):
    monkeypatch.setattr(page_cells, "MOST_CELLS", most_cells)
    tensor, tables, _ = many()
    group = group_of(tensor)
    found = PageMap(group)
    assert found.num_cells <= most_cells
    first = [next((s for s, table in enumerate(tables) if page in table), None) for page in range(401)]
    owned = [sum(owner == s for owner in first) for s in range(53)]
    colored = sorted(sorted(range(53), key=lambda s: -owned[s])[:8])
    assert found.sequences.tolist() == colored
    for cell in range(found.num_cells):
        pages = range(cell * found.cell_pages, min((cell + 1) * found.cell_pages, 401))
        assert found.kinds[cell].tolist() == [sum(group.kinds[page] == kind for page in pages) for kind in range(3)]
        owners = [colored.index(first[p]) if first[p] in colored else 8 for p in pages if first[p] is not None]
        dominant = max(range(9), key=owners.count) if owners else -1
        assert found.ranks[cell] == dominant


def test_sums_of_a_map_are_those_of_the_pool():
    tensor, *_ = many()
    group = group_of(tensor)
    rows = PageMap(group).table().rows
    assert [int(text) for text in rows[0][1:]] == list(group.kind_counts)
    assert [sum(int(row[kind]) for row in rows[1:]) for kind in (1, 2, 3)] == list(group.kind_counts)
    assert (rows[1][0], rows[-1][0]) == ("0–6", "399–400")


@pytest.mark.parametrize("at_once", [2, 1 << 16])
def test_sharing_counts_pages_in_common(monkeypatch, at_once):
    monkeypatch.setattr(sharing_map, "_PAGES_AT_ONCE", at_once)
    tensor, tables, _ = many()
    found = SharingMap(group_of(tensor))
    sets = [set(table) for table in tables]
    shared = {page for page in range(401) if sum(page in pages for pages in sets) > 1}
    most = sorted(range(53), key=lambda s: -len(sets[s] & shared))[:24]
    assert found.sequences.tolist() == sorted(most)
    rest = [sets[s] for s in range(53) if s not in most]
    for place, sequence in enumerate(sorted(most)):
        for other_place, other in enumerate(sorted(most)):
            assert found.pages[place, other_place] == len(sets[sequence] & sets[other] & shared)
        assert found.with_others[place] == len(sets[sequence] & set().union(*rest))
    assert found.num_sharing == sum(bool(pages & shared) for pages in sets)


def test_the_sample_tensor_by_hand():
    group = group_of(make_tensor(**sample_facts()))
    assert group.kinds.tolist() == [1, 0, 2, 0, 0, 2, 1]
    sharing = SharingMap(group)
    assert sharing.sequences.tolist() == [0, 2, 3]
    assert sharing.pages.tolist() == [[2, 1, 1], [1, 1, 0], [1, 0, 1]]
    assert sharing.with_others.tolist() == [0, 0, 0]
    assert [group.name_of(sequence) for sequence in range(4)] == ["s-a", "", "s-c", "ß-d"]
    assert [row[:2] for row in group.table().rows] == [("0", "s-a"), ("2", "s-c"), ("3", "ß-d"), ("1 other", "–")]
    assert group.table().rows[0][2:] == ("13", "3", "2")


def test_last_pages_are_filled_by_what_the_length_leaves():
    tensor, _, lens = many()
    found = LastPages(group_of(tensor))
    fills = [(tokens - 1) % 7 + 1 for tokens in lens if tokens]
    assert found.sequences.tolist() == [fills.count(fill) for fill in range(1, 8)]
    assert found.unused_slots == sum(7 - fill for fill in fills)
    assert found.labels == ["1", "2", "3", "4", "5", "6", "7"]
    assert found.reserved_pages == 0


def test_pages_behind_the_last_token_are_reserved():
    tensor = make_tensor(block_tables=[[5, 2, 6], [0, 1], [4]], seq_lens=[3, 0, 5])
    found = LastPages(group_of(tensor))
    assert found.reserved_pages == 2 + 2
    assert found.sequences.tolist() == [0, 0, 1, 0, 1]


def test_lengths_that_nobody_recorded_are_left_out_and_said():
    tensor = make_tensor(seq_lens=None, total_tokens=27)
    group = group_of(tensor)
    assert group.num_unknown == 4
    assert LastPages(group).num_filled == 0
    assert {row[2] for row in group.table().rows} == {"–"}


def test_large_pages_have_bars_of_several_fills():
    pool = np.zeros((3, 100, 1, 1), np.int8)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[0], [1], [2, 2]], seq_lens=[1, 97, 200], kv_role="key"
    )
    found = LastPages(group_of(tensor))
    assert len(found.bars) == 25
    assert {label: number for label, number in zip(found.labels, found.sequences.tolist(), strict=True) if number} == {
        "1–4": 1,
        "97–100": 2,
    }


def test_groups_have_their_own_tables():
    first = make_tensor(layer_index=1)
    second = make_tensor(layer_index=2, num_pages=11, block_tables=[[10, 9]], seq_lens=[8])
    assert group_of(first, second, kv_group=1).kind_counts == (9, 2, 0)
    with pytest.raises(LookupError), opened(first) as snapshot:
        Group.of(snapshot, 3)


def test_pages_without_bytes_can_be_claimed_without_end():
    pool = np.zeros((2**40, 4, 0, 3), np.float32)
    tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=BLOCK_TABLES, seq_lens=[9, 0, 7, 3], kv_role="key")
    with opened(tensor) as snapshot, pytest.raises(ha.UnsupportedError):
        Group.of(snapshot, 0)
