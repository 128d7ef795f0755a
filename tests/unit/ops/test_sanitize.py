"""sanitize: nothing is left but what sequences have stored."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.descriptor import Statistics
from hurray_arrow.errors import UnknownSequenceLengthError, UnsupportedError
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, make_tensor


def ones(**overrides):
    """A tensor of uint8 whose slot s of page p holds 10 p + s + 1, one element each."""
    pool = np.add.outer(np.arange(7) * 10, np.arange(5) + 1).astype(np.uint8).reshape(7, 5, 1, 1)
    return make_tensor(element_type="uint8", num_heads=1, head_dim=1, page_pool=pool, **overrides), pool


def test_slots_behind_the_last_token_are_zero():
    tensor, pool = ones()
    before = pool.copy()
    result = ops.sanitize(tensor)
    # Sequences hold 13, 0, 10 and 4 tokens; the last shares page 2 with the first, which fills it.
    assert result.page_pool.reshape(4, 5).tolist() == [
        [51, 52, 53, 54, 55],
        [21, 22, 23, 24, 25],
        [61, 62, 63, 0, 0],
        [1, 2, 3, 4, 5],
    ]
    assert result.block_table.tolist() == [0, 1, 2, 0, 3, 1]
    assert np.array_equal(pool, before)


def test_a_shared_page_keeps_its_largest_fill_whoever_comes_first():
    for lens in ([2, 4], [4, 2]):
        tensor, _ = ones(block_tables=[[6], [6]], seq_lens=lens)
        assert ops.sanitize(tensor).page_pool.reshape(-1).tolist() == [61, 62, 63, 64, 0]


def test_pages_that_no_token_reaches_are_zero_and_stay_in_the_table():
    tensor, _ = ones(block_tables=[[3, 1, 4]], seq_lens=[2])
    result = ops.sanitize(tensor)
    assert result.page_pool.reshape(3, 5).tolist() == [[31, 32, 0, 0, 0], [0] * 5, [0] * 5]
    assert result.block_table.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_every_element_type_is_cleared(name):
    tensor = make_tensor(element_type=name)
    result = ops.sanitize(tensor)
    assert cache_of([result]) == cache_of([tensor])
    slot_bits = 3 * 11 * tensor.element_type.bits
    whole = int.from_bytes(result.buffers[0].tobytes(), "little")
    # Pages 5, 2, 6 and 0: only page 6 has slots that no token fills, its last two.
    cleared = [slot for slot in range(20) if not whole >> slot * slot_bits & ((1 << slot_bits) - 1)]
    assert cleared == [13, 14]
    assert result.validate() == []


@pytest.mark.parametrize("quantization", ["per_block", "per_block_zero_points", "per_block_one_buffer"])
def test_parameters_of_cleared_slots_are_zero(quantization):
    tensor = make_tensor(element_type="int8", quantization=quantization)
    result = ops.sanitize(tensor)
    assert cache_of([result]) == cache_of([tensor])
    scales = result.quantization_buffers[result.quantization.scale_buffer_index - 3]
    width = {"per_block": 2}.get(quantization, 4)
    slots = scales[: 16 * width].reshape(16, width)
    # Lengths are 10, 0, 8 and 3, so that page 6, the third, holds two tokens in four slots.
    assert np.flatnonzero(~slots.any(axis=1)).tolist() == [10, 11]


def test_unknown_lengths_are_refused():
    for lens in ([13, None, 10, 4], None):
        tensor = make_tensor(seq_lens=lens, total_tokens=27)
        with pytest.raises(UnknownSequenceLengthError):
            ops.sanitize(tensor)


def test_one_sequence_has_all_tokens():
    tensor, _ = ones(block_tables=[[4, 2]], seq_lens=None, total_tokens=6)
    assert ops.sanitize(tensor).page_pool.reshape(-1).tolist() == [41, 42, 43, 44, 45, 21, 0, 0, 0, 0]


def test_whole_pages_are_only_taken_whole():
    tensor, _ = ones(component="page.indexer")
    with pytest.raises(UnsupportedError):
        ops.sanitize(tensor)
    full, _ = ones(component="page.indexer", block_tables=[[4, 2]], seq_lens=[10])
    assert ops.sanitize(full).page_pool.reshape(-1).tolist() == [41, 42, 43, 44, 45, 21, 22, 23, 24, 25]


@pytest.mark.parametrize(("last", "kept"), [(5, True), (4, False)])
def test_statistics_stay_where_no_slot_is_cleared(last, kept):
    tables = [list(range(7))]
    tensor, _ = ones(block_tables=tables, seq_lens=[30 + last], statistics=Statistics(computed_mask=1, nnz=5))
    assert (ops.sanitize(tensor).descriptor.statistics is not None) is kept
