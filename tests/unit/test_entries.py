from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow.snapshot.entries import SELECTORS, entries_of, one_entry, select_entries
from hurray_arrow.snapshot.index import Index, IndexRow
from hurray_arrow.spec import KvRole


def row(tensor_index, *, page_offset=0, num_pages=7, offset=1024, **fields):
    """An index row; every size is another prime."""
    known = {
        "layer_index": 17,
        "layer_name": None,
        "kv_role": "key",
        "component": "values",
        "kv_group": 0,
        "num_seqs": 4,
        "element_type": "bfloat16",
        "page_shape": (5, 3, 11),
        "encoding": "plain",
        "index_type": "uint32",
        "metadata_bytes": 1031 + page_offset,
        "body_bytes": 2053 + page_offset,
    }
    place = {"tensor_index": tensor_index, "page_offset": page_offset, "num_pages": num_pages, "offset": offset}
    return IndexRow(**place, **(known | fields))


ENTRIES = entries_of(
    [
        row(0, layer_index=2),
        row(1, layer_index=2, kv_role="value"),
        row(2, layer_index=3, layer_name="model.3"),
        row(3, layer_index=3, layer_name="model.3", kv_role="value", kv_group=1),
        row(4, layer_index=None, layer_name="encoder", kv_role="fused", component="scales", kv_group=1),
        row(5, layer_index=None, kv_role="fused", component="state.ssm", kv_group=2),
    ]
)


def numbers(entries):
    return [entry.tensor_index for entry in entries]


def test_one_entry_per_tensor_whatever_the_order_of_rows():
    rows = [
        row(1, layer_index=5, page_offset=0, num_pages=11),
        row(0, page_offset=3, num_pages=2),
        row(1, layer_index=5, page_offset=11, num_pages=13),
        row(0, page_offset=0, num_pages=3),
    ]
    first, second = entries_of(rows)
    assert (first.tensor_index, first.num_pages, first.num_rows) == (0, 5, 2)
    assert first.stored_bytes == 1031 + 2053 + 1034 + 2056
    assert (second.tensor_index, second.num_pages, second.layer_index) == (1, 24, 5)
    assert entries_of(rows[::-1]) == (first, second)
    assert entries_of([]) == ()


def test_an_entry_says_what_the_index_says():
    [entry] = entries_of([row(3, layer_name="model.17", num_pages=13, element_type="int4", index_type="uint64")])
    assert entry.key == (0, 17, "model.17", "key", "values")
    assert entry.key == row(3, layer_name="model.17").key
    assert entry.layer == (17, "model.17")
    assert (entry.page_shape, entry.num_seqs, entry.num_pages) == ((5, 3, 11), 4, 13)
    assert (entry.element_type, entry.index_type, entry.encoding) == ("int4", "uint64", "plain")


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"layer_index": 3}, [2, 3]),
        ({"layer_index": [3, 2], "kv_role": "value"}, [1, 3]),
        ({"layer_index": range(3)}, [0, 1]),
        ({"layer_index": 99}, []),
        ({"layer_index": []}, []),
        ({"layer_name": "model.3"}, [2, 3]),
        ({"layer_name": ("encoder", "model.3")}, [2, 3, 4]),
        ({"kv_role": {"key", "fused"}}, [0, 2, 4, 5]),
        ({"kv_group": 1}, [3, 4]),
        ({"kv_group": (0, 2), "kv_role": "key"}, [0, 2]),
        ({"component": "values", "kv_group": 1}, [3]),
        ({"component": ["scales", "state.ssm"]}, [4, 5]),
    ],
)
def test_selectors_take_one_value_or_several(selectors, expected):
    assert numbers(select_entries(ENTRIES, **selectors)) == expected


def test_numbers_select_layers_whatever_integer_they_are():
    assert numbers(select_entries(ENTRIES, layer_index=np.int64(3))) == [2, 3]
    assert numbers(select_entries(ENTRIES, layer_index=np.array([2, 3]), kv_role="key")) == [0, 2]


def test_roles_are_members_too():
    assert numbers(select_entries(ENTRIES, layer_index=3, kv_role=KvRole.VALUE)) == [3]
    assert numbers(select_entries(ENTRIES, kv_role=[KvRole.KEY, "fused"])) == [0, 2, 4, 5]


@pytest.mark.parametrize(
    "selectors",
    [
        {"layer_index": "3"},
        {"layer_index": 3.0},
        {"layer_index": slice(0, 4)},
        {"layer_index": [2, "3"]},
        {"kv_group": "0"},
        {"layer_name": 3},
        {"component": b"values"},
        {"layer": 3},
    ],
)
def test_what_no_snapshot_can_have_is_no_empty_snapshot(selectors):
    with pytest.raises(TypeError) as caught:
        select_entries(ENTRIES, **selectors)
    assert next(iter(selectors)) in str(caught.value)


@pytest.mark.parametrize("role", ["Key", "k", "keys", ("key", "values"), "", b"key", 0, ["key", None]])
def test_a_role_that_does_not_exist_is_no_empty_snapshot(role):
    with pytest.raises(ValueError):
        select_entries(ENTRIES, kv_role=role)


def test_exactly_one_or_an_error_that_lists_the_matches():
    assert one_entry(select_entries(ENTRIES, layer_index=3, kv_role="key")).tensor_index == 2
    with pytest.raises(LookupError) as caught:
        one_entry(select_entries(ENTRIES, layer_index=3))
    assert all(str(ENTRIES[number]) in str(caught.value) for number in (2, 3))
    assert str(ENTRIES[0]) not in str(caught.value)
    with pytest.raises(LookupError):
        one_entry([])


def test_a_long_list_of_matches_is_cut_and_counted():
    many = entries_of([row(number, layer_index=number) for number in range(53)])
    with pytest.raises(LookupError) as caught:
        one_entry(list(many))
    text = str(caught.value)
    assert "53" in text
    assert "33 more" in text
    assert len(text.splitlines()) == 22


def test_an_entry_reads_as_its_key():
    assert str(ENTRIES[2]) == "tensor 2: layer 3 (model.3) key values, kv_group 0"
    assert str(ENTRIES[5]) == "tensor 5: no layer fused state.ssm, kv_group 2"
    assert len({str(entry) for entry in ENTRIES}) == len(ENTRIES)


def test_every_selector_is_a_field_of_the_key():
    assert set(SELECTORS) <= set(ENTRIES[0]._fields)
    assert len(SELECTORS) == len(ENTRIES[0].key)


def test_sizes_beyond_what_json_numbers_hold_come_back():
    rows = (row(3, num_pages=2**53 + 1, num_seqs=2**60, body_bytes=2**62 + 8, metadata_bytes=8, offset=2**53 + 8),)
    pairs = {key.encode(): value.encode() for key, value in Index(rows, "0" * 16).custom_metadata().items()}
    assert b'"num_pages":"9007199254740993"' in pairs[b"hurray_arrow.index"]
    found = Index.from_custom_metadata(pairs, url="", file_bytes=0)
    assert found.rows == rows
    [entry] = entries_of(found.rows)
    assert (entry.num_pages, entry.stored_bytes) == (2**53 + 1, 2**62 + 16)
