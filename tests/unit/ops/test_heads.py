"""split_heads and merge_heads: ranks of tensor parallelism."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.errors import InvariantError, QuantizationError, UnsupportedError
from hurray_arrow.intake import as_bytes
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, codes_of, make_tensor, sample_facts


def group(**overrides):
    """Keys with a scale per head, an indexer that all heads share, and a record of bytes."""
    common = {"kv_role": "key", **sample_facts(), **overrides}
    return [
        make_tensor(element_type="int8", **common),
        make_tensor(element_type="float32", head_dim=1, component="scales", **common),
        make_tensor(element_type="uint8", num_heads=1, head_dim=7, component="indexer", **common),
        make_tensor(element_type="uint8", num_heads=1, head_dim=13, component="record.mla", **common),
        make_tensor(element_type="float16", num_heads=1, head_dim=1, component="zero_points", **common),
    ]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
@pytest.mark.parametrize("ranges", [[(0, 1), (1, 3)], [(0, 2), (2, 2), (2, 3)], [(0, 3)]])
def test_heads_are_cut_and_joined_for_every_element_type(name, ranges):
    tensor = make_tensor(element_type=name, **sample_facts())
    parts = ops.split_heads(tensor, ranges)
    for part, (start, stop) in zip(parts, ranges, strict=True):
        assert part.num_heads == stop - start
        bits = tensor.element_type.bits
        for seq in range(4):
            assert codes_of(part.gather(seq), bits) == codes_of(tensor.gather(seq)[:, start:stop], bits)
    merged = ops.merge_heads(parts)
    assert bytes(merged.buffers[0]) == bytes(tensor.buffers[0])
    assert merged.equals(ops.select(tensor))


def test_parts_are_as_many_heads_each():
    parts = ops.split_heads(make_tensor(num_heads=6), 3)
    assert [part.num_heads for part in parts] == [2, 2, 2]
    assert ops.split_heads(make_tensor(num_heads=0), 4)[3].num_heads == 0


def test_fewer_heads_than_parts_are_replicated():
    tensor = make_tensor()
    parts = ops.split_heads(tensor, 6)
    for rank, part in enumerate(parts):
        assert part.page_pool.tobytes() == tensor.page_pool[:, :, rank // 2 : rank // 2 + 1].tobytes()
    ranges = [(rank // 2, rank // 2 + 1) for rank in range(6)]
    order = [4, 1, 0, 5, 3, 2]
    merged = ops.merge_heads([parts[rank] for rank in order], head_ranges=[ranges[rank] for rank in order])
    assert merged.page_pool.tobytes() == tensor.page_pool.tobytes()


def test_all_heads_are_a_view():
    tensor = make_tensor()
    part = ops.split_heads(tensor, 1)[0]
    assert part.page_pool.ctypes.data == tensor.page_pool.ctypes.data


def test_companions_follow_their_heads_or_go_to_every_rank():
    whole = group()
    parts = ops.split_heads(whole, [(0, 1), (1, 3)])
    assert [[tensor.num_heads for tensor in part] for part in parts] == [[1, 1, 1, 1, 1], [2, 2, 1, 1, 1]]
    assert parts[1][1].page_pool.tobytes() == whole[1].page_pool[:, :, 1:].tobytes()
    assert parts[1][2].page_pool.ctypes.data == whole[2].page_pool.ctypes.data
    merged = ops.merge_heads(parts[::-1], head_ranges=[(1, 3), (0, 1)])
    assert [bytes(tensor.buffers[0]) for tensor in merged] == [bytes(tensor.buffers[0]) for tensor in whole]
    assert cache_of(merged) == cache_of(whole)
    assert [tensor.component for tensor in merged] == [tensor.component for tensor in whole]


def test_what_every_rank_has_whole_has_to_be_equal():
    parts = ops.split_heads(group(), [(0, 2), (2, 3)])
    parts[1][2] = make_tensor(
        element_type="uint8", num_heads=1, head_dim=7, component="indexer", kv_role="key", seed=5, **sample_facts()
    )
    with pytest.raises(InvariantError) as caught:
        ops.merge_heads(parts)
    assert caught.value.codes == ["replica_mismatch"]


def test_replicas_are_compared_where_tokens_are():
    pool = np.array(make_tensor(element_type="int16", num_heads=1).page_pool)
    stale, wrong = pool.copy(), pool.copy()
    stale[6, 3:] += 1
    stale[1] += 1
    wrong[6, 2, 0, 10] += 1
    ranks = [make_tensor(element_type="int16", num_heads=1, page_pool=each) for each in (pool, stale, wrong)]
    ranges = [(0, 1), (0, 1)]
    assert ops.merge_heads(ranks[:2], head_ranges=ranges).page_pool.tobytes() == pool.tobytes()
    with pytest.raises(InvariantError) as caught:
        ops.merge_heads([ranks[0], ranks[2]], head_ranges=ranges)
    assert caught.value.codes == ["replica_mismatch"]


@pytest.mark.parametrize("name", ["per_channel_heads", "per_channel_dims", "per_tensor", "per_block_zero_points"])
def test_parameters_follow_heads(name):
    tensor = make_tensor(element_type="int8", quantization=name)
    parts = ops.split_heads(tensor, [(0, 2), (2, 3)])
    for part, (start, stop) in zip(parts, [(0, 2), (2, 3)], strict=True):
        assert part.validate() == []
        for seq in range(4):
            assert part.dequantize(seq).tobytes() == tensor.dequantize(seq)[:, start:stop].tobytes()
    assert ops.merge_heads(parts).equals(ops.select(tensor))


def test_replicas_have_equal_parameters():
    tensor = make_tensor(element_type="int8", quantization="per_channel_heads", num_heads=1)
    scales = np.array(tensor.quantization_buffers[0]).view(np.float32) * 2
    other = make_tensor(
        element_type="int8",
        quantization="per_channel_heads",
        num_heads=1,
        quantization_buffers=[scales, tensor.quantization_buffers[1]],
    )
    with pytest.raises(InvariantError) as caught:
        ops.merge_heads([tensor, other], head_ranges=[(0, 1), (0, 1)])
    assert caught.value.codes == ["replica_mismatch"]
    joined = ops.merge_heads([tensor, other])
    assert as_bytes(joined.quantization_buffers[0]).view(np.float32).tolist() == [scales[0] / 2, scales[0]]


@pytest.mark.parametrize(
    "ranges",
    [[(0, 1), (2, 3)], [(1, 3)], [(0, 2)], [(0, 2), (1, 3)], [(0, 3), (0, 1)], [(0, 4)], []],
)
def test_ranges_that_do_not_give_every_head_once_are_refused(ranges):
    with pytest.raises((InvariantError, ValueError)) as caught:
        ops.split_heads(make_tensor(), ranges)
    assert not ranges or caught.value.codes == ["head_range_invalid"]


@pytest.mark.parametrize(
    "ranges", [[(0, 1), (2, 4)], [(1, 2), (2, 4)], [(0, 1), (0, 2)], [(0, 2), (1, 3)], [(0, 1), (1, 2)]]
)
def test_parts_that_leave_gaps_or_overlap_are_refused(ranges):
    parts = ops.split_heads(make_tensor(), [(0, 1), (1, 3)])
    with pytest.raises(InvariantError) as caught:
        ops.merge_heads(parts, head_ranges=ranges)
    assert caught.value.codes == ["head_range_invalid"]


@pytest.mark.parametrize("parts", [2, 4, 5])
def test_heads_that_cannot_be_shared_out_are_refused(parts):
    with pytest.raises(InvariantError) as caught:
        ops.split_heads(make_tensor(), parts)
    assert caught.value.codes == ["head_range_invalid"]


def test_parts_have_one_table():
    one, other = make_tensor(), make_tensor(block_tables=[[5, 2, 3], [], [5, 0], [2]])
    for part in (other, make_tensor(token_ids=[range(13), None, None, None]), make_tensor(seq_lens=[13, 0, 9, 5])):
        with pytest.raises(InvariantError) as caught:
            ops.merge_heads([one, part])
        assert caught.value.codes == ["kv_group_mismatch"]


def test_parts_are_of_one_kind():
    for changed in ({"num_pages": 8}, {"element_type": "float16"}, {"kv_role": "key"}, {"head_dim": 5}):
        with pytest.raises(InvariantError) as caught:
            ops.merge_heads([make_tensor(), make_tensor(**changed)])
        assert caught.value.codes == ["tensor_mismatch"]
    quantized = [make_tensor(element_type="int8", quantization=name) for name in ("none", "per_tensor")]
    with pytest.raises(QuantizationError) as refused:
        ops.merge_heads(quantized)
    assert refused.value.codes == ["quantization_mismatch"]
    with pytest.raises(TypeError):
        ops.merge_heads([make_tensor(), [make_tensor()]])
    with pytest.raises(ValueError):
        ops.merge_heads([])
    with pytest.raises(ValueError):
        ops.merge_heads([make_tensor()], head_ranges=[(0, 1), (1, 3)])
    with pytest.raises(InvariantError) as sizes:
        ops.merge_heads([group(), group()[:2]])
    assert sizes.value.codes == ["tensor_mismatch"]


def test_companions_whose_heads_are_unclear_are_refused():
    odd = make_tensor(element_type="float32", num_heads=2, head_dim=1, component="scales")
    with pytest.raises(InvariantError) as caught:
        ops.split_heads([make_tensor(), odd], 3)
    assert caught.value.codes == ["tensor_mismatch"]
    with pytest.raises(UnsupportedError):
        ops.split_heads([make_tensor(), make_tensor(component="page.indexer")], 3)


def test_parts_by_number_take_companions_along():
    parts = ops.split_heads(group(), 3)
    assert [[tensor.num_heads for tensor in part] for part in parts] == [[1] * 5] * 3
    merged = ops.merge_heads(parts, head_ranges=[(0, 1), (1, None), slice(2, 3)])
    # One scale that all heads share cannot be told any more from one scale per head.
    assert [tensor.num_heads for tensor in merged] == [3, 3, 1, 1, 3]
    for count in (0, -2):
        with pytest.raises(ValueError):
            ops.split_heads(make_tensor(), count)


def test_parameters_of_dimensions_are_equal_in_all_parts():
    one = make_tensor(element_type="int8", quantization="per_channel_dims")
    buffers = [np.ones(11, np.float32)]
    other = make_tensor(element_type="int8", quantization="per_channel_dims", quantization_buffers=buffers)
    with pytest.raises(QuantizationError) as caught:
        ops.merge_heads([one, other])
    assert caught.value.codes == ["quantization_mismatch"]
