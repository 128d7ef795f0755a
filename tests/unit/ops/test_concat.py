"""concat: batches one after the other, pages that are the same stored once."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.errors import InvariantError, QuantizationError, UnsupportedError
from hurray_arrow.quantization import PerTensor
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor, sample_facts

PLAIN_FACTS = {name: fact for name, fact in sample_facts().items() if name != "page_positions"}


def filled(pages, **overrides):
    """A tensor of uint8 pages of 3 slots, one element each."""
    pool = np.array(pages, np.uint8).reshape(len(pages), 3, 1, 1)
    common = {"element_type": "uint8", "num_heads": 1, "head_dim": 1, "page_size": 3, "num_pages": len(pages)}
    return make_tensor(page_pool=pool, **common, **overrides)


def rows(tensor):
    return tensor.page_pool.reshape(tensor.num_pages, -1).tolist()


def test_batches_over_the_same_memory_copy_no_page():
    tensor = make_tensor(**sample_facts())
    other = ops.select(tensor, [3, 1])
    result = ops.concat([tensor, other])
    assert result.page_pool.ctypes.data == tensor.page_pool.ctypes.data
    assert result.block_table.tolist() == [5, 2, 6, 5, 0, 2, 2]
    assert result.seq_ptr.tolist() == [0, 3, 3, 5, 6, 7, 7]
    assert result.sequences.ids == ("s-a", None, "s-c", "ß-d", "ß-d", None)
    assert result.sequences.seq_lens.tolist() == [13, 0, 10, 4, 4, 0]
    assert result.total_tokens == 31


def test_several_pools_are_laid_one_after_the_other():
    one = filled([[1, 2, 3], [4, 5, 6], [7, 8, 9]], block_tables=[[2, 0]], seq_lens=[6], ids=["a"])
    two = filled([[11, 12, 13], [14, 15, 16]], block_tables=[[1], [1, 0]], seq_lens=[2, 5], tenant=["t", None])
    result = ops.concat([one, two, one])
    assert rows(result) == [[7, 8, 9], [1, 2, 3], [14, 15, 16], [11, 12, 13]]
    assert result.block_table.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert result.seq_ptr.tolist() == [0, 2, 3, 5, 7]
    assert result.sequences.ids == ("a", None, None, "a")
    assert result.sequences.tenant == (None, "t", None, None)
    assert cache_of([result]) == cache_of([one]) + cache_of([two]) + cache_of([one])


def test_equal_pages_are_stored_once_when_asked():
    one = filled([[1, 2, 3], [4, 5, 6]], block_tables=[[0, 1]], seq_lens=[5])
    two = filled([[4, 5, 99], [1, 2, 3], [4, 5, 6]], block_tables=[[1, 0], [1, 2]], seq_lens=[5, 6])
    assert ops.concat([one, two]).num_pages == 5
    result = ops.concat([one, two], share_equal_pages=True)
    # Page [4, 5, 99] is filled to its second slot, as [4, 5, 6] of the first batch is; the full [4, 5, 6] is another.
    assert rows(result) == [[1, 2, 3], [4, 5, 6], [4, 5, 6]]
    assert result.block_table.tolist() == [0, 1, 0, 1, 0, 2]
    assert cache_of([result]) == cache_of([one]) + cache_of([two])


def test_equal_pages_of_one_pool_are_found_too():
    tensor = filled([[1, 2, 3], [1, 2, 3], [4, 4, 4]], block_tables=[[0], [1, 2]], seq_lens=[3, 6])
    assert ops.concat([tensor]).page_pool.ctypes.data == tensor.page_pool.ctypes.data
    assert ops.concat([tensor], share_equal_pages=True).block_table.tolist() == [0, 0, 1]
    different = filled([[1, 2, 3], [1, 2, 4]], block_tables=[[0], [1]], seq_lens=[3, 3])
    shared = ops.concat([different], share_equal_pages=True)
    assert shared.page_pool.ctypes.data == different.page_pool.ctypes.data


def test_pages_of_unknown_fill_are_compared_whole():
    one = filled([[1, 2, 3], [1, 2, 0]], block_tables=[[0], [1]], seq_lens=[None, None], total_tokens=4)
    assert ops.concat([one], share_equal_pages=True).block_table.tolist() == [0, 1]
    two = filled([[1, 2, 3], [1, 2, 3]], block_tables=[[0], [1]], seq_lens=[None, None], total_tokens=4)
    assert ops.concat([two], share_equal_pages=True).block_table.tolist() == [0, 0]


def test_pages_are_equal_in_every_tensor_of_the_group_or_not_at_all():
    tables = {"block_tables": [[0], [1]], "seq_lens": [3, 3]}
    key = filled([[1, 2, 3], [1, 2, 3]], kv_role="key", **tables)
    value = filled([[7, 8, 9], [7, 8, 8]], kv_role="value", **tables)
    assert ops.concat([[key, value]], share_equal_pages=True)[0].block_table.tolist() == [0, 1]
    assert ops.concat([[key, key]], share_equal_pages=True)[0].block_table.tolist() == [0, 0]


def test_parameters_of_slots_belong_to_the_page():
    scales = np.array([1, 2, 3, 4, 1, 2, 3, 5], np.float16)
    pool = np.zeros((2, 4, 3, 11), np.int8)
    tables = {"num_pages": 2, "block_tables": [[0], [1]], "page_pool": pool, "quantization_buffers": [scales]}
    full = make_tensor(element_type="int8", quantization="per_block", seq_lens=[4, 4], **tables)
    part = make_tensor(element_type="int8", quantization="per_block", seq_lens=[3, 3], **tables)
    assert ops.concat([full], share_equal_pages=True).num_pages == 2
    assert ops.concat([part], share_equal_pages=True).num_pages == 1


def test_whole_pages_are_compared_whole():
    tables = {"block_tables": [[0], [1]], "seq_lens": [2, 2]}
    tensor = filled([[1, 2, 3], [1, 2, 4]], component="page.indexer", **tables)
    assert ops.concat([tensor], share_equal_pages=True).num_pages == 2


def test_a_checksum_that_agrees_by_chance_is_not_enough(monkeypatch):
    from hurray_arrow.ops import page_bytes

    class Constant:
        def update(self, data):
            assert len(data) == 3

        def intdigest(self):
            return 1

    monkeypatch.setattr(page_bytes.xxhash, "xxh3_64", Constant)
    tensor = filled([[1, 2, 3], [1, 2, 4], [1, 2, 4]], block_tables=[[0, 1, 2]], seq_lens=[9])
    assert ops.concat([tensor], share_equal_pages=True).block_table.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
@pytest.mark.parametrize("share", [False, True])
def test_every_element_type_keeps_its_bits(name, share):
    batches = [make_tensor(element_type=name, seed=seed) for seed in (11, 12, 11)]
    result = ops.concat(batches, share_equal_pages=share)
    assert cache_of([result]) == [sequence for batch in batches for sequence in cache_of([batch])]
    assert result.num_pages == (8 if share else 12)


@pytest.mark.parametrize("quantization", [name for name in SCHEMES if name not in ("nf4", "mxfp")])
def test_parameters_follow(quantization):
    batches = [make_tensor(element_type="int8", quantization=quantization, seed=seed) for seed in (11, 12)]
    result = ops.concat(batches)
    assert cache_of([result]) == [sequence for batch in batches for sequence in cache_of([batch])]
    expected = [batch.dequantize(seq).tobytes() for batch in batches for seq in range(4)]
    assert [result.dequantize(seq).tobytes() for seq in range(8)] == expected


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("kv_role", {"kv_role": "key"}),
        ("layer_index", {"layer_index": 3}),
        ("layer_name", {"layer_name": "l"}),
        ("component", {"component": "scales"}),
        ("element_type", {"element_type": "uint16"}),
        ("page_size", {"page_size": 7, "seq_lens": [1, 0, 1, 1]}),
        ("num_heads", {"num_heads": 2}),
        ("head_dim", {"head_dim": 13}),
    ],
)
def test_batches_that_differ_are_refused_with_both_values(field, changed):
    one, other = make_tensor(), make_tensor(**changed)
    with pytest.raises(InvariantError) as caught:
        ops.concat([one, other])
    problem = caught.value.problems[0]
    assert (problem.code, problem.field) == ("tensor_mismatch", field)
    assert str(getattr(one, field)) in problem.message
    assert str(getattr(other, field)) in problem.message


@pytest.mark.parametrize(
    ("scheme", "changed"),
    [
        ("per_tensor", {"quantization": PerTensor(0.36, -3)}),
        ("per_tensor", {"quantization": PerTensor(0.37, -2)}),
        ("per_tensor", {"quantization": None}),
        ("per_channel_dims", {"quantization_buffers": [np.ones(11, np.float32)]}),
    ],
)
def test_nothing_is_requantized(scheme, changed):
    one = make_tensor(element_type="int8", quantization=scheme)
    fields = {"quantization": one.quantization, "quantization_buffers": list(one.quantization_buffers)}
    other = type(one).from_arrays(
        one.page_pool,
        one.block_table,
        one.seq_ptr,
        kv_role="value",
        layer_index=17,
        **PLAIN_FACTS,
        **{**fields, **changed},
    )
    with pytest.raises(QuantizationError) as caught:
        ops.concat([one, other])
    assert caught.value.codes == ["quantization_mismatch"]


def test_parameters_without_a_rule_stay_where_no_page_moves():
    tensor = make_tensor(element_type="uint4", quantization="nf4")
    assert ops.concat([tensor, tensor]).num_seqs == 8
    again = make_tensor(element_type="uint4", quantization="nf4")
    with pytest.raises(UnsupportedError):
        ops.concat([tensor, again])


def test_groups_of_other_sizes_and_mixtures_are_refused():
    tensor = make_tensor()
    with pytest.raises(InvariantError) as caught:
        ops.concat([[tensor], [tensor, tensor]])
    assert caught.value.codes == ["tensor_mismatch"]
    with pytest.raises(TypeError):
        ops.concat([tensor, [tensor]])
    with pytest.raises(ValueError):
        ops.concat([])


def test_a_single_sequence_brings_its_length():
    one = make_tensor(block_tables=[[3, 1]], seq_lens=None, total_tokens=7)
    assert ops.concat([one, one]).sequences.seq_lens.tolist() == [7, 7]
    unknown = make_tensor(seq_lens=None, total_tokens=27)
    assert [ops.concat([one, unknown]).sequences.length(seq) for seq in range(5)] == [7, None, None, None, None]


def test_index_types_are_widened_only_where_needed():
    far = 2**32 + 5
    wide = make_tensor(
        num_heads=0,
        num_pages=far + 1,
        index_type="uint64",
        block_tables=[[far]],
        seq_lens=[5],
        page_pool=np.empty((far + 1, 5, 0, 11), "<u2"),
    )
    narrow = make_tensor(num_heads=0, num_pages=far + 1, block_tables=[[3]], seq_lens=[5], page_pool=wide.page_pool)
    assert ops.concat([narrow, narrow]).block_table.dtype == np.uint32
    both = ops.concat([narrow, wide])
    assert (both.block_table.dtype, both.block_table.tolist()) == (np.uint64, [3, far])
