from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow.arrow import facts
from hurray_arrow.arrow.facts import sequences_array, sequences_from_array
from hurray_arrow.arrow.schema import SEQUENCES_TYPE
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.sequences import FACT_NAMES, MediaSpan, Sequences
from tests.sample import sample_facts

COLUMNS = {"seq_lens": "num_tokens", "ids": "id"}


def there_and_back(sequences, num_seqs):
    array = sequences_array(sequences, num_seqs)
    array.validate(full=True)
    assert array.type == SEQUENCES_TYPE.value_type
    assert len(array) == num_seqs
    return sequences_from_array(array)


def test_every_fact_comes_back():
    sequences = Sequences(**sample_facts())
    assert set(sequences.sizes()) == set(FACT_NAMES)
    assert there_and_back(sequences, 4).equals(sequences)


@pytest.mark.parametrize("name", FACT_NAMES)
def test_each_fact_alone_and_all_but_it(name):
    known = sample_facts()
    alone = Sequences(**{name: known[name]})
    found = there_and_back(alone, 4)
    assert found.equals(alone)
    assert list(found.sizes()) == [name]
    del known[name]
    others = there_and_back(Sequences(**known), 4)
    assert others.equals(Sequences(**known))
    assert getattr(others, name) is None


@pytest.mark.parametrize("num_seqs", [0, 1, 7])
def test_knowing_nothing_comes_back_as_nothing(num_seqs):
    array = sequences_array(Sequences(), num_seqs)
    assert all(array.field(name).null_count == num_seqs for name in ("num_tokens", "id", "token_ids", "media"))
    assert sequences_from_array(array).sizes() == {}


def test_what_the_column_holds():
    array = sequences_array(Sequences(**sample_facts()), 4)
    [first, second, third, fourth] = array.to_pylist()
    assert [row["num_tokens"] for row in (first, second, third, fourth)] == [13, 0, 10, 4]
    assert [row["id"] for row in (first, second, third, fourth)] == ["s-a", None, "s-c", "ß-d"]
    assert (second["token_ids"], third["token_ids"], fourth["token_ids"]) == ([], None, [0, 1, 2, 3])
    assert (first["page_positions"], second["page_positions"]) == ([0, 15, 26], None)
    assert second["media"] == []
    assert third["media"][1] == {"first_token": 3, "num_tokens": 1, "digest": "sha256:bb"}


def test_unknown_lengths_are_null_and_zero_is_not():
    array = sequences_array(Sequences(seq_lens=[7, None, 0, 5]), 4)
    assert array.field("num_tokens").to_pylist() == [7, None, 0, 5]
    found = sequences_from_array(array)
    assert [found.length(seq) for seq in range(4)] == [7, None, 0, 5]


def test_the_largest_integers_come_back():
    top = 2**64 - 1
    sequences = Sequences(
        seq_lens=[top, 3],
        token_ids=[[2**32 - 1, 0], None],
        page_positions=[None, [5, top]],
        media=[[MediaSpan(top - 1, 1, "")], None],
    )
    found = there_and_back(sequences, 2)
    assert found.equals(sequences)
    assert found.page_positions[1].tolist() == [5, top]


@pytest.mark.parametrize(("start", "count"), [(1, 3), (2, 2), (3, 1), (0, 2), (1, 0)])
def test_slices_of_the_column(start, count):
    known = sample_facts()
    array = sequences_array(Sequences(**known), 4).slice(start, count)
    expected = Sequences(**{name: values[start : start + count] for name, values in known.items()})
    found = sequences_from_array(array)
    for name in FACT_NAMES:
        if count and getattr(expected, name) is not None:
            assert found.sizes()[name] == count
    assert found.equals(expected) or count == 0


def test_taken_and_concatenated_columns():
    known = sample_facts()
    array = sequences_array(Sequences(**known), 4)
    order = [3, 0, 2, 2]
    expected = Sequences(**{name: [values[place] for place in order] for name, values in known.items()})
    assert sequences_from_array(array.take(pa.array(order))).equals(expected)
    joined = pa.concat_arrays([array.slice(2), array.slice(0, 1)])
    order = [2, 3, 0]
    expected = Sequences(**{name: [values[place] for place in order] for name, values in known.items()})
    assert sequences_from_array(joined).equals(expected)


def test_null_lists_with_items_beneath_them_say_nothing():
    tokens = pa.ListArray.from_arrays(
        pa.array([0, 2, 5, 6], pa.int32()),
        pa.array([7, 8, 91, 92, 93, 9], pa.uint32()),
        mask=pa.array([False, True, False]),
    )
    array = pa.StructArray.from_arrays([tokens], names=["token_ids"])
    found = sequences_from_array(array)
    assert [None if ids is None else ids.tolist() for ids in found.token_ids] == [[7, 8], None, [9]]


def test_unknown_and_missing_fields():
    array = pa.array([{"num_tokens": 5, "later": "x"}, {"num_tokens": None, "later": "y"}])
    found = sequences_from_array(array)
    assert found.sizes() == {"seq_lens": 2}
    assert found.length(0) == 5


def test_token_ids_are_views():
    array = sequences_array(Sequences(**sample_facts()), 4)
    values = array.field("token_ids").values
    found = sequences_from_array(array).token_ids
    assert found[0].ctypes.data == values.buffers()[1].address
    assert found[3].ctypes.data == values.buffers()[1].address + 13 * 4
    assert not found[0].flags.writeable


@pytest.mark.parametrize("fact", ["token_ids", "page_positions"])
def test_more_than_the_offsets_hold_is_refused(fact, monkeypatch):
    monkeypatch.setattr(facts, "MAX_LIST_ITEMS", 6)
    fine = Sequences(**{fact: [[1, 2, 3], [4, 5, 6]]})
    assert there_and_back(fine, 2).equals(fine)
    with pytest.raises(UnsupportedError):
        sequences_array(Sequences(**{fact: [[1, 2, 3], [4, 5, 6, 7]]}), 2)


def test_the_bound_is_the_offsets():
    assert np.iinfo(np.int32).max == facts.MAX_LIST_ITEMS


def test_columns_are_named_as_the_format_says():
    fields = SEQUENCES_TYPE.value_type
    assert [fields.field(number).name for number in range(fields.num_fields)] == [
        COLUMNS.get(name, name) for name in FACT_NAMES
    ]
