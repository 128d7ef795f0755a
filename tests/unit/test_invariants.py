from __future__ import annotations

import sys

import numpy as np
import pytest

from hurray_arrow.errors import SHOWN_OF_A_KIND, InvariantError
from hurray_arrow.invariants import (
    check_page_ids,
    validate_page_ids,
    validate_parameters,
    validate_pool_padding,
    validate_tables,
    validate_total_tokens,
)
from hurray_arrow.quantization import OpaqueScheme, PerBlock, PerChannel, PerTensor
from hurray_arrow.sequence_rules import validate_sequences
from hurray_arrow.sequences import MediaSpan, Sequences
from tests.sample import INDEX_TYPES


def found(problems):
    return [(str(problem.code), problem.where) for problem in problems]


def tables(table, seq_ptr, *, index_type="uint32", num_pages=7, num_seqs=None):
    problems = validate_tables(
        np.array(table, index_type),
        np.array(seq_ptr, index_type),
        num_pages=num_pages,
        num_seqs=len(seq_ptr) - 1 if num_seqs is None else num_seqs,
    )
    return found(problems)


def sequences(facts, seq_ptr, *, page_size=5, total_tokens=13, num_seqs=None):
    num_seqs = len(seq_ptr) - 1 if num_seqs is None else num_seqs
    facts = Sequences(**facts)
    ptr = np.array(seq_ptr, np.uint32)
    return found(validate_sequences(facts, ptr, num_seqs=num_seqs, page_size=page_size, total_tokens=total_tokens))


@pytest.mark.parametrize("index_type", INDEX_TYPES)
class TestTables:
    @pytest.mark.parametrize(
        ("table", "seq_ptr", "expected"),
        [
            ([5, 2, 6], [0, 2, 2, 3], []),
            ([], [0], []),
            ([], [0, 0, 0], []),
            ([5, 2, 6], [1, 2, 3], [("seq_ptr_start", "seq_ptr[0]")]),
            ([5, 2, 6], [0, 2, 2], [("seq_ptr_end", "seq_ptr[2]")]),
            ([5, 2, 6], [0, 2, 4], [("seq_ptr_end", "seq_ptr[2]")]),
            (
                [5, 2, 6],
                [0, 2, 1, 3, 2, 3],
                [("seq_ptr_decreasing", "seq_ptr[2]"), ("seq_ptr_decreasing", "seq_ptr[4]")],
            ),
            ([5, 7, 6], [0, 3], [("page_id_out_of_range", "block_table[1]")]),
        ],
    )
    def test_each_rule(self, table, seq_ptr, expected, index_type):
        assert tables(table, seq_ptr, index_type=index_type) == expected

    def test_all_broken_rules_come_at_once(self, index_type):
        assert tables([7, 0, 9], [2, 1, 4], index_type=index_type, num_seqs=3) == [
            ("seq_ptr_size", "seq_ptr"),
            ("seq_ptr_start", "seq_ptr[0]"),
            ("seq_ptr_end", "seq_ptr[2]"),
            ("seq_ptr_decreasing", "seq_ptr[1]"),
            ("page_id_out_of_range", "block_table[0]"),
            ("page_id_out_of_range", "block_table[2]"),
        ]

    def test_seq_ptr_without_entries(self, index_type):
        assert tables([], [], index_type=index_type, num_seqs=0) == [("seq_ptr_size", "seq_ptr")]

    def test_the_largest_id_of_the_type(self, index_type):
        largest = np.iinfo(index_type).max
        for num_pages, expected in ((largest + 1, []), (largest, [("page_id_out_of_range", "block_table[1]")])):
            assert tables([3, largest], [0, 2], index_type=index_type, num_pages=num_pages) == expected

    def test_a_pool_without_pages_has_no_valid_id(self, index_type):
        assert tables([0], [0, 1], index_type=index_type, num_pages=0) == [("page_id_out_of_range", "block_table[0]")]


def test_values_above_int64_are_compared_as_they_are():
    assert tables([2**63, 2**64 - 1], [0, 2], index_type="uint64", num_pages=2**63 + 1) == [
        ("page_id_out_of_range", "block_table[1]")
    ]
    assert tables([3], [0, 2**63, 2**64 - 1], index_type="uint64") == [("seq_ptr_end", "seq_ptr[2]")]
    assert tables([3], [0, 2**64 - 1, 1], index_type="uint64") == [("seq_ptr_decreasing", "seq_ptr[2]")]


def test_negative_ids_of_a_signed_array_are_out_of_range():
    assert found(validate_page_ids(np.array([3, -1, 2]), num_pages=2**40)) == [
        ("page_id_out_of_range", "block_table[1]")
    ]


def test_a_run_of_ids_is_named_by_its_place():
    ids = np.array([3, 8], np.uint32)
    assert found(validate_page_ids(ids, num_pages=7, name="page_ids", first=40)) == [
        ("page_id_out_of_range", "page_ids[41]")
    ]
    with pytest.raises(InvariantError) as caught:
        check_page_ids(ids, num_pages=7)
    assert caught.value.codes == ["page_id_out_of_range"]


def test_the_first_hundred_of_a_kind_and_their_count():
    table = np.full(307, 7, np.uint32)
    table[13] = 0
    problems = validate_tables(table, np.array([0, 307], np.uint32), num_pages=7, num_seqs=1)
    assert len(problems) == SHOWN_OF_A_KIND + 1
    assert [problem.where for problem in problems[:14:13]] == ["block_table[0]", "block_table[14]"]
    assert problems[-1].where == "block_table"
    assert problems[-1].message.startswith("306 ")
    exactly = validate_tables(table[:101], np.array([0, 101], np.uint32), num_pages=7, num_seqs=1)
    assert len(exactly) == SHOWN_OF_A_KIND


def test_a_message_says_place_value_bound_and_rule():
    (problem,) = validate_page_ids(np.array([64], np.uint32), num_pages=64, first=17)
    assert str(problem) == "block_table[17]: page id 64, expected < num_pages 64 (Storage Invariants 3)"


def test_entries_are_not_looped_over():
    # Lines of Python that run, not seconds: benchmarks measure those.
    table = np.arange(100_000, dtype=np.uint32) % 8191
    seq_ptr = np.arange(0, 100_001, 10, dtype=np.uint32)
    facts = Sequences(seq_lens=np.full(10_000, 49, np.uint64))
    lines = 0

    def count(*_):
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        problems = validate_tables(table, seq_ptr, num_pages=8191, num_seqs=10_000)
        problems += validate_sequences(facts, seq_ptr, num_seqs=10_000, page_size=5, total_tokens=490_000)
    finally:
        sys.settrace(before)
    assert problems == []
    assert 0 < lines < 1000


@pytest.mark.parametrize(
    ("last_bytes", "used_bits", "broken"),
    [
        ([0xFF], 8, False),
        ([0x0F], 4, False),
        ([0x1F], 4, True),
        ([0xFF, 0x01], 9, False),
        ([0xFF, 0x03], 9, True),
        ([0x3F, 0x00, 0x00], 6, False),  # one 6-bit element in its group of three bytes
        ([0x7F, 0x00, 0x00], 6, True),
        ([0x3F, 0x01, 0x00], 6, True),
        ([0x3F, 0x00, 0x80], 6, True),
        ([], 0, False),
    ],
)
def test_unused_bits_are_zero(last_bytes, used_bits, broken):
    problems = validate_pool_padding(np.array(last_bytes, np.uint8), used_bits=used_bits)
    assert [str(problem.code) for problem in problems] == ["page_pool_padding"] * broken


def test_tokens_need_slots_and_products_are_python_integers():
    assert validate_total_tokens(15, total_logical_pages=3, page_size=5) == []
    assert found(validate_total_tokens(16, total_logical_pages=3, page_size=5)) == [
        ("total_tokens_exceed_pages", "descriptor.shape[0]")
    ]
    assert validate_total_tokens(2**64 - 2, total_logical_pages=2**33, page_size=2**32 - 1) == []


@pytest.mark.parametrize(
    ("scheme", "sizes", "expected"),
    [
        (None, [3], []),
        (PerTensor(0.5), [], []),
        (OpaqueScheme(0x04, 2, 8, 3), [19], []),
        (PerChannel(1, 3, 4), [12, 12], []),
        (PerChannel(1, 4, 3), [12, 11], ["buffers[4]"]),
        (PerChannel(2, 3), [43], ["buffers[3]"]),
        (PerBlock(0, 4, 3, 4), [112, 112], []),
        (PerBlock(0, 4, 3, 4, scale_type_tag=0x01), [112, 111], ["buffers[3]", "buffers[4]"]),
        (PerBlock(0, 4, 3, 3), [112], ["buffers[3]"]),
    ],
)
def test_parameters_have_the_size_of_their_scheme(scheme, sizes, expected):
    problems = validate_parameters(scheme, sizes, shape=(21, 3, 11), num_pages=7, page_size=4)
    assert found(problems) == [("quantization_buffer_size", where) for where in expected]


def test_sizes_beyond_64_bits():
    (problem,) = validate_parameters(PerBlock(0, 2**31, 3), [0], shape=(0, 0, 0), num_pages=2**40, page_size=2**31)
    assert str(2**73) in problem.message


class TestSequences:
    @pytest.mark.parametrize(
        ("lens", "expected"),
        [
            ([8, 0, 5], []),
            ([8, None, 5], []),
            ([8, None, None], []),
            ([8, 1, 4], [("seq_len_exceeds_pages", "seq_lens[1]")]),
            ([11, 0, 2], [("seq_len_exceeds_pages", "seq_lens[0]")]),
            ([8, 0, 4], [("seq_lens_sum", "seq_lens")]),
            ([9, None, 5], [("seq_lens_sum", "seq_lens")]),
            ([None, 0, 3], []),
            # The others would need more slots than their pages have.
            ([None, 0, 2], [("seq_lens_sum", "seq_lens")]),
            ([7, None, None], [("seq_lens_sum", "seq_lens")]),
            ([8, 0], [("sequence_facts_size", "seq_lens")]),
            ([0, 0, 2**64 - 1], [("seq_len_exceeds_pages", "seq_lens[2]"), ("seq_lens_sum", "seq_lens")]),
        ],
    )
    def test_lengths(self, lens, expected):
        assert sequences({"seq_lens": lens}, [0, 2, 2, 3]) == expected

    def test_lengths_beside_a_falling_seq_ptr(self):
        assert sequences({"seq_lens": [8, 1, 4]}, [0, 2, 1, 3]) == [("seq_len_exceeds_pages", "seq_lens[1]")]

    @pytest.mark.parametrize("fact", ["seq_lens", "ids", "token_ids", "page_positions", "adapter", "tenant", "media"])
    def test_a_fact_has_an_entry_per_sequence(self, fact):
        entry = {"seq_lens": 1, "token_ids": [1], "page_positions": [0], "media": ()}.get(fact, "x")
        for size in (2, 4):
            assert sequences({fact: [entry] * size}, [0, 2, 2, 3]) == [("sequence_facts_size", fact)]

    @pytest.mark.parametrize(
        ("positions", "expected"),
        [
            ([[0, 5], [], [0]], []),
            ([None, None, [77]], []),
            ([[7, 12], None, None], []),
            ([[7, 11], None, None], [("page_positions_invalid", "page_positions[0][1]")]),
            ([[7, 7], None, None], [("page_positions_invalid", "page_positions[0][1]")]),
            ([[9, 3], None, [3]], [("page_positions_invalid", "page_positions[0][1]")]),
            ([[9], None, None], [("page_positions_invalid", "page_positions[0]")]),
            ([None, [4], None], [("page_positions_invalid", "page_positions[1]")]),
            ([None, None, [2**64 - 5]], []),
            ([None, None, [2**64 - 4]], [("page_positions_invalid", "page_positions[2][0]")]),
            ([[2**64 - 1, 4], None, None], [("page_positions_invalid", "page_positions[0][1]")] * 1
             + [("page_positions_invalid", "page_positions[0][0]")]),
        ],
    )  # fmt: skip
    def test_page_positions(self, positions, expected):
        assert sequences({"page_positions": positions}, [0, 2, 2, 3]) == expected

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            ({"seq_lens": [8, 0, 5], "token_ids": [[1] * 8, [], [2] * 5]}, []),
            ({"seq_lens": [8, 0, 5], "token_ids": [[1] * 7, [], [2] * 6]}, ["token_ids[0]", "token_ids[2]"]),
            ({"seq_lens": [8, None, 5], "token_ids": [None, [1], None]}, ["token_ids[1]"]),
            ({"token_ids": [[1] * 10, None, [2] * 5]}, []),
            ({"token_ids": [[1] * 11, None, [2] * 5]}, ["token_ids[0]"]),
            # With absent pages the list may go on naming tokens that are not stored, but not fewer than are.
            ({"seq_lens": [8, 0, 5], "token_ids": [[1] * 99, None, None], "page_positions": [[0, 50], None, None]}, []),
            (
                {"seq_lens": [8, 0, 5], "token_ids": [[1] * 7, None, None], "page_positions": [[0, 50], None, None]},
                ["token_ids[0]"],
            ),
        ],
    )
    def test_token_ids(self, facts, expected):
        assert sequences(facts, [0, 2, 2, 3]) == [("token_ids_size", where) for where in expected]

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            ({"seq_lens": [8, 0, 5], "media": [[MediaSpan(6, 2, "a")], None, [MediaSpan(0, 5, "b")]]}, []),
            (
                {"seq_lens": [8, 0, 5], "media": [[MediaSpan(7, 2, "a")], [MediaSpan(0, 1, "c")], None]},
                ["media[0]", "media[1]"],
            ),
            ({"media": [[MediaSpan(99, 2, "a")], None, None]}, []),
            (
                {
                    "seq_lens": [8, 0, 5],
                    "media": [[MediaSpan(99, 2, "a")], None, None],
                    "page_positions": [[0, 95], None, None],
                },
                [],
            ),
        ],
    )
    def test_media(self, facts, expected):
        assert sequences(facts, [0, 2, 2, 3]) == [("media_span_invalid", where) for where in expected]

    def test_one_sequence_has_the_length_of_the_batch(self):
        assert sequences({"token_ids": [[1] * 13]}, [0, 3]) == []
        assert sequences({"token_ids": [[1] * 12]}, [0, 3]) == [("token_ids_size", "token_ids[0]")]
        assert sequences({"media": [[MediaSpan(13, 1, "a")]]}, [0, 3]) == [("media_span_invalid", "media[0]")]

    def test_no_sequences(self):
        assert sequences({}, [0], total_tokens=0) == []
        assert sequences({"ids": ["x"]}, [0], total_tokens=0) == [("sequence_facts_size", "ids")]

    def test_many_of_a_kind_are_counted(self):
        problems = sequences({"seq_lens": [6] * 300}, range(301), total_tokens=1800)
        assert len(problems) == SHOWN_OF_A_KIND + 1
        assert problems[-1] == ("seq_len_exceeds_pages", "seq_lens")
        media = [[MediaSpan(5, 1, "a")]] * 300
        assert len(sequences({"seq_lens": [5] * 300, "media": media}, range(301), total_tokens=1500)) == 101
