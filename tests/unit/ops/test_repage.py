"""repage: the same tokens in pages of another size."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.errors import InvalidDescriptorError, InvariantError, QuantizationError, UnsupportedError
from hurray_arrow.ops import columns, pages
from hurray_arrow.sequences import MediaSpan
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, make_tensor


def numbered(page_size, num_pages=7, **overrides):
    """A tensor of int16 whose one element of a slot is the slot's number."""
    pool = np.arange(num_pages * page_size, dtype=np.int16).reshape(num_pages, page_size, 1, 1)
    return make_tensor(
        element_type="int16", num_heads=1, head_dim=1, page_size=page_size, page_pool=pool, num_pages=7, **overrides
    )


def rows(tensor):
    return tensor.page_pool.reshape(tensor.num_pages, tensor.page_size).tolist()


def test_to_smaller_pages():
    tensor = numbered(4, block_tables=[[6, 2], [6, 5]], seq_lens=[7, 5])
    result = ops.repage(tensor, 2)
    assert rows(result) == [[24, 25], [26, 27], [8, 9], [10, 11], [20, 21]]
    assert result.block_table.tolist() == [0, 1, 2, 3, 0, 1, 4]
    assert result.seq_ptr.tolist() == [0, 4, 7]


def test_to_larger_pages():
    tensor = numbered(2, block_tables=[[6, 2, 1], [6, 2, 1, 3], [6, 4]], seq_lens=[5, 8, 4])
    result = ops.repage(tensor, 4)
    # The first sequence ends in page 1, with which the second goes on: they share both pages.
    assert rows(result) == [[12, 13, 4, 5], [2, 3, 6, 7], [12, 13, 8, 9]]
    assert result.block_table.tolist() == [0, 1, 0, 1, 2]
    assert result.seq_ptr.tolist() == [0, 2, 4, 5]


def test_a_shorter_sequence_shares_with_a_longer_one_that_comes_later():
    tensor = numbered(2, block_tables=[[6], [6, 2]], seq_lens=[2, 3])
    result = ops.repage(tensor, 6)
    assert rows(result) == [[12, 13, 4, 5, 0, 0]]
    assert result.block_table.tolist() == [0, 0]


def test_sizes_without_a_common_divisor():
    tensor = numbered(3, block_tables=[[4, 1, 5]], seq_lens=[8])
    result = ops.repage(tensor, 5)
    assert rows(result) == [[12, 13, 14, 3, 4], [5, 15, 16, 0, 0]]


def test_back_and_forth_keeps_what_is_shared():
    tensor = make_tensor(page_size=16, block_tables=[[5, 2], [5, 2, 6], [5, 0], [5]], seq_lens=[32, 41, 19, 7])
    there = ops.repage(ops.repage(ops.repage(tensor, 1), 128), 32)
    back = ops.repage(there, 16)
    # Only the third sequence parts from the others inside a page of 128, so that page 5 is stored for it once more.
    assert back.block_table.tolist() == [0, 1, 0, 1, 2, 3, 4, 0]
    assert there.num_pages == 3
    assert cache_of([back]) == cache_of([tensor]) == cache_of([there])


@pytest.mark.parametrize("index_type", INDEX_TYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 10, 16, 32])
def test_companions_and_parameters_move_with_their_slots(size, index_type):
    common = {"index_type": index_type, "page_size": 8, "kv_role": "key"}
    scheme = "per_block_one_buffer" if size in (2, 16, 32) else "per_channel_heads"
    group = [
        make_tensor(element_type="int4", quantization=scheme, **common),
        make_tensor(element_type="float32", head_dim=1, component="scales", **common),
    ]
    results = ops.repage(group, size)
    assert cache_of(results) == cache_of(group)
    assert [result.page_size for result in results] == [size, size]
    assert all(result.validate() == [] for result in results)
    if scheme == "per_block_one_buffer":
        assert results[0].quantization.block_size == size


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_every_element_type_keeps_its_bits(name, size):
    tensor = make_tensor(element_type=name)
    assert cache_of([ops.repage(tensor, size)]) == cache_of([tensor])


def test_the_same_size_gives_the_tensors_back():
    group = [make_tensor(), make_tensor(kv_role="key")]
    assert all(a is b for a, b in zip(ops.repage(group, 5), group, strict=True))
    assert ops.repage(group[0], np.int64(5)) is group[0]


def test_pages_behind_the_last_token_are_left_out_where_the_length_is_known():
    tables = {"block_tables": [[3, 1], [4, 5, 6]]}
    tensor = numbered(2, **tables, seq_lens=[2, 0])
    assert ops.repage(tensor, 1).block_table.tolist() == [0, 1]
    unknown = numbered(2, **tables, seq_lens=[2, None], total_tokens=5)
    result = ops.repage(unknown, 1)
    assert result.seq_ptr.tolist() == [0, 2, 8]
    assert result.page_pool.reshape(-1).tolist() == [6, 7, 8, 9, 10, 11, 12, 13]
    assert result.sequences.length(1) is None


def test_absent_pages_stay_absent():
    facts = {
        "seq_lens": [11],
        "page_positions": [[0, 4, 20]],
        "token_ids": [range(23)],
        "media": [[MediaSpan(9, 3, "m")]],
        "ids": ["a"],
    }
    tensor = numbered(4, block_tables=[[2, 5, 1]], **facts)
    result = ops.repage(tensor, 2)
    assert result.sequences.page_positions[0].tolist() == [0, 2, 4, 6, 20, 22]
    wide = ops.repage(tensor, 8)
    assert wide.sequences.page_positions[0].tolist() == [0, 20]
    assert rows(wide) == [[8, 9, 10, 11, 20, 21, 22, 23], [4, 5, 6, 7, 0, 0, 0, 0]]
    for each in (result, wide):
        assert cache_of([each]) == cache_of([tensor])
        assert each.sequences.token_ids[0].tolist() == list(range(23))
        assert each.sequences.media == ((MediaSpan(9, 3, "m"),),)
        assert each.sequences.ids == ("a",)


def test_a_page_cannot_hold_a_hole():
    tensor = numbered(4, block_tables=[[2], [2, 5]], seq_lens=[4, 8], page_positions=[None, [0, 8]])
    for size in (3, 8, 16):
        with pytest.raises(InvariantError) as caught:
            ops.repage(tensor, size)
        assert caught.value.codes == ["page_positions_invalid"]
        assert caught.value.problems[0].where == "page_positions[1]"


@pytest.mark.parametrize("size", [1, 3, 12])
def test_a_size_that_the_scheme_cannot_say_is_refused(size):
    with pytest.raises(QuantizationError) as caught:
        ops.repage(make_tensor(element_type="int8", quantization="per_block"), size)
    assert caught.value.codes == ["quantization_block_size_invalid"]


@pytest.mark.parametrize("size", [0, -4, 2**32])
def test_a_size_that_no_page_has_is_refused(size):
    with pytest.raises(InvalidDescriptorError) as caught:
        ops.repage(make_tensor(), size)
    assert caught.value.codes == ["page_size_invalid"]


def test_whole_pages_are_not_cut():
    with pytest.raises(UnsupportedError):
        ops.repage([make_tensor(), make_tensor(component="page.indexer")], 10)


@pytest.mark.parametrize("name", ["bool", "int4", "float6_e2m3", "private_0xF1", "uint8", "float128"])
def test_slots_that_no_page_fills_are_zero(name):
    tensor = make_tensor(element_type=name, num_heads=1, head_dim=3, block_tables=[[4, 2]], seq_lens=[10])
    result = ops.repage(tensor, 7)
    bits = 3 * tensor.element_type.bits
    whole = int.from_bytes(result.buffers[0].tobytes(), "little")
    assert whole >> 7 * bits != 0
    assert whole >> 10 * bits == 0
    assert result.num_pages == 2


@pytest.mark.parametrize("name", ["bool", "int4", "float6_e2m3", "private_0xF1"])
def test_packed_pools_are_worked_on_in_pieces(name, monkeypatch):
    monkeypatch.setattr(pages, "_UNPACKED_AT_ONCE_ELEMS", 1)
    monkeypatch.setattr(columns, "_UNPACKED_AT_ONCE_ELEMS", 1)
    tables = {"num_pages": 23, "block_tables": [range(22, 0, -1), [3, 11]], "seq_lens": [107, 6], "kv_role": "fused"}
    tensor = make_tensor(element_type=name, **tables)
    other = make_tensor(element_type=name, seed=5, **tables)
    assert cache_of([ops.repage(tensor, 3)]) == cache_of([tensor])
    assert cache_of([ops.sanitize(tensor)]) == cache_of([tensor])
    assert cache_of([ops.concat([tensor, other])]) == cache_of([tensor]) + cache_of([other])
    merged = ops.merge_heads(ops.split_heads(tensor, 3))
    assert bytes(merged.buffers[0]) == bytes(tensor.buffers[0])
