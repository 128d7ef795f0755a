"""Rows of a batch as pages and back, with numpy alone; without transformers the adapter says what to install."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.engines.padded_batch import column_rows, fill_columns, token_columns
from hurray_arrow.engines.token_rows import page_digests, page_rows
from hurray_arrow.engines.transformers import import_cache

PAGE_SIZE = 3


def rectangle(*, batch=3, heads=2, columns=11, head_dim=5):
    return np.arange(1, batch * heads * columns * head_dim + 1, dtype=np.uint16).reshape(
        batch, heads, columns, head_dim
    )


def paged(array, columns, *, first_positions=(0, 0, 0), keys=None):
    rows = column_rows(array, columns)
    lengths = [cols.size for cols in columns]
    return page_rows(
        [rows], lengths=lengths, first_positions=first_positions, page_size=PAGE_SIZE, page_keys=keys
    ), lengths


def tensor_of(result, lengths):
    return ha.BlockPagedTensor.from_arrays(
        result.pools[0].view(np.float16),
        block_tables=result.block_tables,
        seq_lens=lengths,
        page_positions=result.page_positions,
        kv_role="key",
        layer_index=0,
    )


def test_a_mask_says_which_columns_are_tokens():
    mask = np.zeros((3, 11), np.int64)
    mask[0, 4:] = mask[1, [0, 2, 9]] = 1
    columns = token_columns(mask, None, batch=3, columns=11)
    assert [cols.tolist() for cols in columns] == [[*range(4, 11)], [0, 2, 9], []]
    assert [c.size for c in token_columns(None, [11, 0, 5], batch=3, columns=11)] == [11, 0, 5]
    assert token_columns(None, [], batch=0, columns=11) == []
    assert [c.size for c in token_columns(None, None, batch=2, columns=4)] == [4, 4]
    array = rectangle()
    result, lengths = paged(array, columns)
    assert lengths == [7, 3, 0]
    assert [table.tolist() for table in result.block_tables] == [[0, 1, 2], [3], []]
    tensor = tensor_of(result, lengths)
    assert np.array_equal(tensor.gather(0).view(np.uint16), array[0, :, 4:].transpose(1, 0, 2))
    assert np.array_equal(tensor.gather(1).view(np.uint16), array[1][:, [0, 2, 9]].transpose(1, 0, 2))
    assert not result.pools[0][2, 1:].any()


def test_pages_are_shared_only_behind_shared_ones():
    array = rectangle(columns=8)
    array[1, :, :6] = array[0, :, :6]
    array[2, :, 3:6] = array[0, :, 3:6]
    columns = [np.arange(8)] * 3
    rows = column_rows(array, columns)
    keys = [page_digests([rows], s, tokens=8, first_position=0, page_size=PAGE_SIZE) for s in range(3)]
    assert [len(each) for each in keys] == [2, 2, 2]
    result, lengths = paged(array, columns, keys=keys)
    assert [table.tolist() for table in result.block_tables] == [[0, 1, 2], [0, 1, 3], [4, 5, 6]]
    tensor = tensor_of(result, lengths)
    for s in range(3):
        assert np.array_equal(tensor.gather(s).view(np.uint16), array[s].transpose(1, 0, 2))
    elsewhere = page_digests([rows], 0, tokens=8, first_position=3, page_size=PAGE_SIZE)
    assert not set(elsewhere) & set(keys[0])


def test_columns_are_filled_from_the_right_with_what_is_stored():
    array = rectangle(columns=8)
    result, lengths = paged(array, [np.arange(8)] * 3, first_positions=(4, 0, 0))
    tensor = tensor_of(result, lengths)
    assert tensor.positions(0).tolist() == list(range(4, 12))
    words = np.zeros((2, 2, 10, 5), np.uint16)
    fill_columns(words, tensor, [1, 0], lengths=[8, 12], needed=8)
    assert not words[:, :, :2].any()
    assert np.array_equal(words[0, :, 2:], array[1])
    assert np.array_equal(words[1, :, 2:], array[0])
    few = np.zeros((1, 2, 3, 5), np.uint16)
    fill_columns(few, tensor, [0], lengths=[10], needed=3)
    assert np.array_equal(few[0], array[0][:, 3:6])
    with pytest.raises(ha.LayoutError) as caught:
        fill_columns(words, tensor, [0], lengths=[12], needed=9)
    assert (caught.value.expected, caught.value.actual) == (3, 4)
    with pytest.raises(ha.LayoutError):
        fill_columns(words, tensor, [0], lengths=[13], needed=1)


def test_a_hole_is_not_filled():
    array = rectangle(columns=8)
    result, lengths = paged(array, [np.arange(8)] * 3)
    tensor = ha.BlockPagedTensor.from_arrays(
        result.pools[0].view(np.float16),
        block_tables=result.block_tables,
        seq_lens=lengths,
        page_positions=[[0, 3, 9], None, None],
        kv_role="key",
        layer_index=0,
    )
    words = np.zeros((1, 2, 11, 5), np.uint16)
    fill_columns(words, tensor, [0], lengths=[11], needed=2)
    assert np.array_equal(words[0, :, 9:], array[0][:, 6:])
    assert not words[0, :, :9].any()
    with pytest.raises(ha.LayoutError):
        fill_columns(words, tensor, [0], lengths=[11], needed=3)
    with pytest.raises(ha.LayoutError):
        fill_columns(words, tensor, [0], lengths=[8], needed=1)


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ha.MissingDependencyError) as caught:
        import_cache([], expect=None)
    assert caught.value.extra == "transformers"
