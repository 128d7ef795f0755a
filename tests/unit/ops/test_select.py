"""select: exactly the stored positions in the range, of the sequences named."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.descriptor import Statistics
from hurray_arrow.errors import InvariantError, UnknownSequenceLengthError, UnsupportedError
from hurray_arrow.sequences import MediaSpan
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts

PLAIN_FACTS = {name: fact for name, fact in sample_facts().items() if name != "page_positions"}


def same_memory(one, other):
    return one.page_pool.ctypes.data == other.page_pool.ctypes.data


def positions(tensor):
    return [list(sequence) for sequence in cache_of([tensor])]


def test_sequences_by_place_and_by_id_without_a_copy():
    tensor = make_tensor(**sample_facts())
    result = ops.select(tensor, ["ß-d", 0])
    assert same_memory(result, tensor)
    assert result.num_pages == 7
    assert result.block_table.tolist() == [2, 5, 2, 6]
    assert result.seq_ptr.tolist() == [0, 1, 4]
    assert result.total_tokens == 17
    facts = result.sequences
    assert (facts.ids, facts.adapter, facts.tenant) == (("ß-d", "s-a"), ("lora-3", None), ("t2", "t1"))
    assert facts.seq_lens.tolist() == [4, 13]
    assert [each.tolist() for each in facts.page_positions] == [[10], [0, 15, 26]]
    assert facts.token_ids[0].tolist() == [0, 1, 2, 3]
    assert facts.media is None


@pytest.mark.parametrize("which", [2, "s-c", np.int64(2), [2], np.array([2]), ("s-c",)])
def test_one_or_several(which):
    assert ops.select(make_tensor(**PLAIN_FACTS), which).sequences.media == (
        (MediaSpan(1, 2, "sha256:aa"), MediaSpan(3, 1, "sha256:bb")),
    )


def test_a_sequence_may_be_taken_twice_and_none_at_all():
    tensor = make_tensor()
    assert ops.select(tensor, [3, 3]).block_table.tolist() == [2, 2]
    assert ops.select(tensor, []).seq_ptr.tolist() == [0]


def test_ranges_that_begin_at_a_page_copy_no_page():
    tensor = make_tensor()
    result = ops.select(tensor, tokens=(5, 12))
    assert same_memory(result, tensor)
    assert result.block_table.tolist() == [2, 6, 0]
    assert result.seq_ptr.tolist() == [0, 2, 2, 3, 3]
    assert result.sequences.seq_lens.tolist() == [7, 0, 5, 0]
    starts = result.sequences.page_positions
    assert (starts[0].tolist(), starts[1], starts[2].tolist(), starts[3]) == ([5, 10], None, [5], None)
    assert cache_of([result]) == [{p: v for p, v in seq.items() if 5 <= p < 12} for seq in cache_of([tensor])]


def test_ranges_from_the_start_need_no_positions():
    result = ops.select(make_tensor(), tokens=slice(None, 6))
    assert result.sequences.page_positions is None
    assert result.sequences.seq_lens.tolist() == [6, 0, 6, 4]
    assert result.block_table.tolist() == [5, 2, 5, 0, 2]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_a_range_that_begins_inside_a_page_is_laid_anew(name):
    tensor = make_tensor(element_type=name)
    result = ops.select(tensor, [0, 2], tokens=(3, 12))
    assert not same_memory(result, tensor)
    assert [each.tolist() for each in result.sequences.page_positions] == [[3, 8], [3, 8]]
    assert result.sequences.seq_lens.tolist() == [9, 7]
    assert cache_of([result]) == [{p: v for p, v in cache_of([tensor])[seq].items() if 3 <= p < 12} for seq in (0, 2)]


def test_pages_that_are_laid_anew_are_still_shared():
    tensor = make_tensor(block_tables=[[5, 2, 6], [5, 2, 3]], seq_lens=[15, 13])
    result = ops.select(tensor, tokens=(2, None))
    # Slots 2 to 6 and 7 to 11: the second group reaches into the pages in which the sequences part.
    assert result.block_table.tolist() == [0, 1, 2, 0, 3, 4]
    assert result.num_pages == 5


def test_one_range_per_sequence():
    tensor = make_tensor(**sample_facts())
    result = ops.select(tensor, [0, 2, 3], tokens=[range(15, 28), None, (0, 0)])
    assert positions(result) == [[15, 16, 17, 18, 19, 26, 27], list(range(10)), []]
    assert result.sequences.media == (None, tensor.sequences.media[2], None)
    assert result.sequences.token_ids[0].tolist() == tensor.sequences.token_ids[0][:28].tolist()


def test_positions_go_over_holes():
    tensor = make_tensor(**sample_facts())
    assert positions(ops.select(tensor, 0, tokens=(5, 27))) == [[15, 16, 17, 18, 19, 26]]
    assert positions(ops.select(tensor, 0, tokens=(27, 2**70))) == [[27, 28]]
    assert positions(ops.select(tensor, 0, tokens=(7, 12))) == [[]]
    assert ops.select(tensor, 0, tokens=(7, 12)).block_table.size == 0


def test_a_new_page_cannot_hold_a_hole():
    tensor = make_tensor(**sample_facts())
    with pytest.raises(InvariantError) as caught:
        ops.select(tensor, 0, tokens=(4, 27))
    assert caught.value.codes == ["page_positions_invalid"]
    assert caught.value.problems[0].where == "page_positions[0]"


def test_token_ids_and_media_before_the_range_stay():
    spans = [MediaSpan(1, 2, "a"), MediaSpan(5, 6, "b"), MediaSpan(11, 1, "c")]
    tensor = make_tensor(block_tables=[[1, 4, 3]], seq_lens=[13], token_ids=[range(100, 113)], media=[spans])
    result = ops.select(tensor, tokens=(5, 8))
    assert result.sequences.token_ids[0].tolist() == list(range(100, 108))
    assert result.sequences.media == ((MediaSpan(1, 2, "a"), MediaSpan(5, 3, "b")),)


def test_lengths_that_are_not_known():
    tensor = make_tensor(seq_lens=[13, 0, None, 4], total_tokens=27)
    assert ops.select(tensor, [2, 3]).total_tokens == 14
    assert ops.select(tensor, [0, 3], tokens=(0, 7)).total_tokens == 11
    for call in (lambda: ops.select(tensor, 2, tokens=(0, 3)), lambda: ops.select(tensor, [2, 2])):
        with pytest.raises(UnknownSequenceLengthError):
            call()
    two = make_tensor(seq_lens=[13, 0, None, None], total_tokens=27)
    assert ops.select(two, [3, 1, 2]).total_tokens == 14
    with pytest.raises(UnknownSequenceLengthError):
        ops.select(two, [2])


def test_what_does_not_exist_is_refused():
    tensor = make_tensor(**{**PLAIN_FACTS, "ids": ["a", "b", "b", None]})
    for which, error in ((4, IndexError), (-1, IndexError), ("c", KeyError), ("b", ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            ops.select(tensor, which)
    with pytest.raises(KeyError):
        ops.select(make_tensor(), "a")


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ((3, 2), ValueError),
        ((-1, 2), ValueError),
        (slice(0, 9, 2), ValueError),
        (range(0, 9, 3), ValueError),
        ([(0, 1)], ValueError),
        ([0, 1, 2, 3], TypeError),
        (5, TypeError),
    ],
)
def test_what_is_no_range_is_refused(tokens, error):
    with pytest.raises(error):
        ops.select(make_tensor(), tokens=tokens)


def test_whole_pages_are_only_taken_whole():
    tensor = make_tensor(component="page.indexer")
    assert ops.select(tensor, tokens=(5, 7)).block_table.tolist() == [2, 0]
    with pytest.raises(UnsupportedError):
        ops.select(tensor, tokens=(6, 7))


def test_statistics_stay_where_every_sequence_does():
    tensor = make_tensor(statistics=Statistics(computed_mask=1, nnz=5))
    assert ops.select(tensor, [3, 2, 1, 0]).descriptor.statistics is not None
    assert ops.select(tensor, [3, 2, 1]).descriptor.statistics is None
    assert ops.select(tensor, tokens=(0, 99)).descriptor.statistics is None
