"""The arithmetic of block tables against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow.ops.page_table import NOTHING, entry_fills, first_use, page_fills, regroup
from hurray_arrow.ops.parameters import lay_parameters, read_parameters
from hurray_arrow.ops.ranges import half_open, is_half_open
from tests.sample import make_tensor


@pytest.mark.parametrize("scale", [1, 2**40])
def test_values_are_numbered_by_first_use(scale):
    entries = np.array([7, 3, 7, 0, 3, 5], np.uint64) * np.uint64(scale)
    values, numbers = first_use(entries)
    assert (values // np.uint64(scale)).tolist() == [7, 3, 0, 5]
    assert numbers.tolist() == [0, 1, 0, 2, 1, 3]
    assert values.dtype == np.uint64


def test_an_empty_table_has_no_values():
    values, numbers = first_use(np.empty(0, np.uint32))
    assert (values.size, numbers.size) == (0, 0)


def test_fills():
    fills = entry_fills(np.array([0, 3, 3, 5], np.uint32), np.array([7, 0, 5]), page_size=5)
    assert fills.tolist() == [5, 2, 0, 5, 0]
    assert page_fills(np.array([2, 0, 1, 0, 2]), fills, num_pages=4).tolist() == [5, 0, 5, 0]


def test_slots_fall_into_new_pages_from_where_a_sequence_starts():
    table, seq_ptr = np.array([9, 4, 9, 6], np.uint32), np.array([0, 2, 4], np.uint32)
    made = regroup(table, seq_ptr, page_size=6, starts=np.array([3, 3]), ends=np.array([12, 10]), new_page_size=6)
    assert made.move.unit_slots == 3
    # In units of three slots: page 9 is units 18 and 19, page 4 is 8 and 9, page 6 is 12 and 13.
    assert made.move.units.tolist() == [[19, 8], [9, NOTHING], [19, 12], [13, NOTHING]]
    assert made.block_table.tolist() == [0, 1, 2, 3]
    assert made.seq_ptr.tolist() == [0, 2, 4]


def test_a_row_is_the_longest_that_begins_with_it():
    # One page of each length, shortest first: all lie in the last.
    table, seq_ptr = np.array([5, 5, 3, 5, 3, 8, 5, 7], np.uint64), np.array([0, 1, 3, 6, 8], np.uint64)
    ends = np.array([1, 2, 3, 2])
    made = regroup(table, seq_ptr, page_size=1, starts=np.zeros(4, np.int64), ends=ends, new_page_size=3)
    assert made.move.units.tolist() == [[5, 3, 8], [5, 7, NOTHING]]
    assert made.block_table.tolist() == [0, 0, 0, 1]


def test_ranges_are_half_open():
    assert half_open(slice(3, None), where="") == (3, None)
    assert half_open((None, 7), where="") == (0, 7)
    assert half_open(range(2, 5), where="") == (2, 5)
    assert [is_half_open(value) for value in ((1, 2), (1, 2, 3), [1, 2], ((1, 2), (3, 4)), None)] == [
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("quantization", ["none", "per_tensor"])
def test_schemes_without_parameter_buffers_have_nothing_to_lay(quantization):
    tensor = make_tensor(element_type="int8", quantization=quantization)
    assert read_parameters(tensor) == ()
    assert lay_parameters(tensor, ()) == ()
