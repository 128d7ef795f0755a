from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hurray_arrow.errors import InvariantError
from hurray_arrow.sequences import MediaSpan, Sequences, known_sequences
from tests.sample import sample_facts


def codes(call, **arguments):
    with pytest.raises(InvariantError) as caught:
        call(**arguments)
    return caught.value.codes


def test_unknown_lengths_are_marked_and_not_made_up():
    facts = Sequences(seq_lens=[7, None, 0, None])
    assert facts.seq_lens.tolist() == [7, 0, 0, 0]
    assert facts.seq_lens_known.tolist() == [True, False, True, False]
    assert [facts.length(s) for s in range(4)] == [7, None, 0, None]
    assert facts.recorded_tokens() == 7


def test_the_mask_marks_lengths_of_an_array_and_their_values_are_forgotten():
    facts = Sequences(seq_lens=np.array([7, 99, 5], np.int64), seq_lens_known=[True, False, True])
    assert [facts.length(s) for s in range(3)] == [7, None, 5]
    assert facts.equals(Sequences(seq_lens=[7, None, 5]))


def test_a_list_and_its_mask_both_count():
    assert Sequences(seq_lens=[None, 3, 4], seq_lens_known=[True, False, True]).seq_lens_known.tolist() == [
        False,
        False,
        True,
    ]


def test_a_full_mask_and_an_empty_one_become_plain_knowledge():
    assert Sequences(seq_lens=[3, 4], seq_lens_known=[True, True]).seq_lens_known is None
    nothing = Sequences(seq_lens=[None, None], ids=[None, None], token_ids=[None], media=[None])
    assert nothing.equals(Sequences())
    assert nothing.sizes() == {}


def test_an_empty_fact_stays_so_that_its_size_can_be_checked():
    assert Sequences(ids=[], seq_lens=[]).sizes() == {"seq_lens": 0, "ids": 0}


def test_sums_do_not_wrap():
    assert Sequences(seq_lens=[2**64 - 1, 2**64 - 1, 2**63]).recorded_tokens() == 2 * (2**64 - 1) + 2**63


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16, np.uint64, ">i4"])
def test_integers_of_any_width_are_taken_by_value(dtype):
    facts = Sequences(seq_lens=np.array([5, 3], dtype), token_ids=[np.array([1, 2], dtype), None])
    assert facts.seq_lens.tolist() == [5, 3]
    assert facts.token_ids[0].tolist() == [1, 2]
    assert (facts.seq_lens.dtype, facts.token_ids[0].dtype) == (np.uint64, np.uint32)


def test_fitting_arrays_are_read_only_views_and_the_callers_stays_writable():
    lens = np.array([5, 3], np.uint64)
    facts = Sequences(seq_lens=lens)
    assert facts.seq_lens.ctypes.data == lens.ctypes.data
    assert not facts.seq_lens.flags.writeable
    assert lens.flags.writeable


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"seq_lens": [3, -1]}, "field_out_of_range"),
        ({"seq_lens": np.array([3, -1])}, "field_out_of_range"),
        ({"seq_lens": [2**64]}, "field_out_of_range"),
        ({"seq_lens": [-1, 2**64 - 1]}, "field_out_of_range"),
        ({"token_ids": [[2**32]]}, "field_out_of_range"),
        ({"token_ids": [np.array([2**32])]}, "field_out_of_range"),
        ({"page_positions": [None, [-7]]}, "field_out_of_range"),
        ({"seq_lens": [1.0]}, "buffer_dtype"),
        ({"token_ids": [1, 2]}, "buffer_dtype"),
        ({"seq_lens": np.array([1.5])}, "buffer_dtype"),
        ({"seq_lens": np.array([[1], [2]])}, "buffer_dtype"),
        ({"seq_lens": np.ma.array([1, 2], mask=[0, 1])}, "buffer_dtype"),
        ({"seq_lens": [1, 2], "seq_lens_known": [True]}, "sequence_facts_size"),
    ],
)
def test_integers_that_do_not_fit_are_refused(facts, code):
    assert codes(Sequences, **facts) == [code]


@pytest.mark.parametrize(
    "facts",
    [
        {"seq_lens": 7},
        {"ids": [7]},
        {"ids": "ab"},
        {"tenant": [b"x"]},
        {"adapter": [None, 1]},
        {"media": [[(1, 2, "x")]]},
    ],
)
def test_other_things_than_the_fact_are_refused(facts):
    with pytest.raises(TypeError, match=next(iter(facts))):
        Sequences(**facts)


def test_a_fact_that_there_is_not_is_named():
    with pytest.raises(TypeError, match="seqlens"):
        known_sequences(None, {"seqlens": [7]})


def test_a_media_span_fits_into_uint64():
    assert MediaSpan(2**64 - 3, 2, "d").num_tokens == 2
    assert codes(MediaSpan, first_token=2**64 - 3, num_tokens=3, digest="d") == ["media_span_invalid"]
    assert codes(MediaSpan, first_token=-1, num_tokens=3, digest="d") == ["media_span_invalid"]
    with pytest.raises(TypeError, match="digest"):
        MediaSpan(0, 1, b"d")
    with pytest.raises(TypeError):
        MediaSpan(0.5, 1, "d")


def test_numpy_integers_in_a_span_become_python_integers():
    span = MediaSpan(np.uint64(3), np.int8(2), "d")
    assert type(span.first_token) is type(span.num_tokens) is int


@pytest.mark.parametrize(
    "change",
    [
        {"seq_lens": [13, 0, 10, 5]},
        {"seq_lens": [13, 0, 10, None]},
        {"ids": ["s-a", "", "s-c", "ß-d"]},
        {"token_ids": [None, [], None, [0, 1, 2, 3]]},
        {"page_positions": [[0, 15, 27], None, None, [10]]},
        {"adapter": None},
        {"tenant": ["t1", "t2", None, None]},
        {"media": [None, (), [MediaSpan(1, 2, "sha256:aa"), MediaSpan(3, 1, "sha256:bc")], None]},
        {"media": [None, None, [MediaSpan(1, 2, "sha256:aa"), MediaSpan(3, 1, "sha256:bb")], None]},
    ],
)
def test_equal_means_every_fact(change):
    assert Sequences(**sample_facts()).equals(Sequences(**sample_facts()))
    assert not Sequences(**sample_facts()).equals(Sequences(**(sample_facts() | change)))


def test_replace_keeps_the_other_facts():
    facts = dataclasses.replace(Sequences(**sample_facts()), adapter=None)
    assert facts.equals(Sequences(**(sample_facts() | {"adapter": None})))


def test_repr_has_no_values():
    text = repr(Sequences(**sample_facts()))
    assert "token_ids[4]" in text
    assert not any(secret in text for secret in ("s-a", "t1", "lora", "sha256"))
