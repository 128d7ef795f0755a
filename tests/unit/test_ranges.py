"""Plans of byte ranges: what is joined, what is cut, and that the model prefers the cheaper plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hurray_arrow.snapshot.ranges import MAX_RANGE_BYTES, modelled_seconds, plan_ranges


def pieces(*pairs):
    return np.array(pairs, np.int64).reshape(-1, 2)


def test_neighbours_are_one_range_and_distant_pieces_are_not():
    wanted = pieces((0, 10), (10, 7), (40, 5), (1000, 3))
    assert plan_ranges(wanted, gap_bytes=0).tolist() == [[0, 17], [40, 5], [1000, 3]]
    assert plan_ranges(wanted, gap_bytes=22).tolist() == [[0, 17], [40, 5], [1000, 3]]
    assert plan_ranges(wanted, gap_bytes=23).tolist() == [[0, 45], [1000, 3]]


def test_long_runs_are_cut_at_pieces_for_several_streams():
    page = 3 << 20
    wanted = pieces(*[(number * page, page) for number in range(11)])
    plan = plan_ranges(wanted, gap_bytes=0)
    assert len(plan) > 3
    assert plan[:, 1].max() <= MAX_RANGE_BYTES + page
    assert plan[:, 1].sum() == 11 * page


def test_a_gap_below_nothing_is_refused():
    """It would ask for every page by itself."""
    with pytest.raises(ValueError, match="gap_bytes=-1"):
        plan_ranges(np.array([[0, 8]]), gap_bytes=-1)


def test_nothing_wanted_is_nothing_asked():
    assert len(plan_ranges(pieces())) == 0
    assert modelled_seconds(pieces()) == 0


@pytest.mark.parametrize(("distance", "requests"), [(40_000, 1), (200 << 20, 7)])
def test_the_model_joins_what_is_close_and_leaves_what_is_far(distance, requests):
    wanted = pieces(*[(number * distance, 32_768) for number in range(7)])
    assert len(plan_ranges(wanted)) == requests


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 3000)), max_size=40), st.integers(0, 9000))
def test_every_piece_lies_in_one_range_and_no_byte_is_asked_twice(steps, gap):
    offset, wanted = 0, []
    for skip, size in steps:
        wanted.append((offset + skip, size))
        offset += skip + size
    plan = plan_ranges(pieces(*wanted), gap_bytes=gap)
    ends = plan[:, 0] + plan[:, 1]
    assert (plan[1:, 0] >= ends[:-1]).all()
    for start, size in wanted:
        assert ((plan[:, 0] <= start) & (start + size <= ends)).sum() == 1
    assert (plan[1:, 0] - ends[:-1] > gap).all() or plan[:, 1].max() > 0
