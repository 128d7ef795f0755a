"""compact, and what all operations have in common: groups, refusals, facts, memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.descriptor import Statistics
from hurray_arrow.errors import InvariantError, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES, make_tensor, sample_facts

PLAIN_FACTS = {name: fact for name, fact in sample_facts().items() if name != "page_positions"}
EVERY_OPERATION = {
    "select": lambda tensors: ops.select(tensors, [0]),
    "compact": ops.compact,
    "repage": lambda tensors: ops.repage(tensors, 2),
    "sanitize": ops.sanitize,
    "concat": lambda tensors: ops.concat([tensors]),
    "split_heads": lambda tensors: ops.split_heads(tensors, 1),
    "merge_heads": lambda tensors: ops.merge_heads([tensors]),
    "unfuse": lambda tensors: ops.unfuse(tensors, key_dim=1),
}


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_pages_in_use_stay_in_order_of_first_use(index_type):
    tensor = make_tensor(index_type=index_type, **sample_facts())
    result = ops.compact(tensor)
    # The sample's tables are [5, 2, 6], [], [5, 0] and [2].
    assert result.block_table.tolist() == [0, 1, 2, 0, 3, 1]
    assert result.block_table.dtype == index_type
    assert result.seq_ptr.tolist() == [0, 3, 3, 5, 6]
    assert result.page_pool.tobytes() == tensor.page_pool[[5, 2, 6, 0]].tobytes()
    assert result.sequences.equals(tensor.sequences)
    assert (result.total_tokens, result.layer_index, result.kv_role) == (tensor.total_tokens, 17, "value")


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_every_element_type_keeps_its_bits(name):
    tensor = make_tensor(element_type=name)
    result = ops.compact(tensor)
    assert cache_of([result]) == cache_of([tensor])
    assert result.num_pages == 4
    assert result.validate() == []


@pytest.mark.parametrize("quantization", [name for name in SCHEMES if name not in ("nf4", "mxfp")])
def test_parameters_follow(quantization):
    tensor = make_tensor(element_type="int8", quantization=quantization)
    result = ops.compact(tensor)
    assert result.quantization == tensor.quantization
    assert [result.dequantize(seq).tobytes() for seq in range(4)] == [
        tensor.dequantize(seq).tobytes() for seq in range(4)
    ]
    assert cache_of([result]) == cache_of([tensor])


def test_per_slot_parameters_are_those_of_the_page_before():
    scales = np.arange(28, dtype=np.float16)
    tensor = make_tensor(element_type="int8", quantization="per_block", quantization_buffers=[scales])
    result = ops.compact(tensor)
    expected = [20, 21, 22, 23, 8, 9, 10, 11, 24, 25, 26, 27, 0, 1, 2, 3]
    assert result.quantization_buffers[0].view(np.float16).tolist() == expected


def test_a_group_comes_out_with_one_table():
    key = make_tensor(kv_role="key", kv_group=7, layer_name="l.17")
    scales = make_tensor(element_type="float32", head_dim=1, component="scales", kv_role="key")
    results = ops.compact([key, scales])
    assert [result.component for result in results] == ["values", "scales"]
    assert [result.kv_group for result in results] == [7, None]
    assert results[0].layer_name == "l.17"
    assert results[0].sequences is results[1].sequences
    assert cache_of(results) == cache_of([key, scales])
    assert isinstance(ops.compact([key]), list)


@pytest.mark.parametrize("dropped", [True, False])
def test_statistics_stay_where_no_value_goes(dropped):
    statistics = Statistics(computed_mask=1, nnz=5)
    tables = [[1, 0], [2] if dropped else [2, 3]]
    tensor = make_tensor(num_pages=4, block_tables=tables, seq_lens=[9, 3], statistics=statistics)
    found = ops.compact(tensor).descriptor.statistics
    assert (found is None) is dropped


def test_the_result_is_ours():
    descriptor = replace(make_tensor().descriptor, version_minor=3, trailing=b"new")
    tensor = BlockPagedTensor.from_buffers(descriptor, make_tensor().buffers, original_descriptor=b"theirs")
    result = ops.compact(tensor)
    assert result.original_descriptor is None
    assert (result.descriptor.version_minor, result.descriptor.trailing) == (0, b"")


def test_new_memory_is_aligned_and_the_callers_is_left_alone():
    pool = np.arange(7 * 5 * 3 * 11, dtype=np.int16).reshape(7, 5, 3, 11)
    tensor = make_tensor(element_type="int16", page_pool=pool)
    before = pool.tobytes()
    result = ops.compact(tensor)
    pool[:] = -1
    assert result.page_pool[0].tobytes() == before[5 * 330 : 6 * 330]
    assert all(buffer.ctypes.data % 64 == 0 for buffer in (result.buffers[0], result.buffers[1]))
    assert pool.flags.writeable


def test_a_pool_without_bytes_may_have_any_number_of_pages():
    last = 2**63 + 11
    tensor = make_tensor(
        element_type="int4",
        num_heads=0,
        num_pages=last + 1,
        index_type="uint64",
        block_tables=[[last, 3], [3]],
        seq_lens=[8, 5],
        page_pool=np.empty(0, np.uint8),
    )
    for result in (ops.compact(tensor), ops.sanitize(tensor), ops.concat([tensor, ops.compact(tensor)])):
        assert result.block_table[:3].tolist() == [0, 1, 1]
        assert result.validate() == []
    assert ops.repage(tensor, 10).block_table.tolist() == [0, 1]


def test_an_empty_batch_and_an_empty_pool():
    tensor = make_tensor(num_pages=0, block_tables=[], seq_lens=[])
    for result in (ops.compact(tensor), ops.sanitize(tensor), ops.repage(tensor, 3), ops.select(tensor)):
        assert (result.num_pages, result.num_seqs, result.seq_ptr.tolist()) == (0, 0, [0])
    assert ops.concat([tensor, tensor]).num_seqs == 0


@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_permissive_tensors_are_refused(name):
    broken = make_tensor(block_tables=[[5, 7], [900]], seq_lens=[9, 4], permissive=True, kv_role="fused")
    with pytest.raises(InvariantError) as caught:
        EVERY_OPERATION[name](broken)
    assert caught.value.codes == ["page_id_out_of_range"] * 2


@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_no_tensors_are_refused(name):
    with pytest.raises(ValueError):
        EVERY_OPERATION[name]([])


@pytest.mark.parametrize(
    ("where", "changed"),
    [
        ("seq_ptr", {"block_tables": [[5, 2, 6], [5, 0], [], [2]], "seq_lens": [13, 10, 0, 4]}),
        ("block_table", {"block_tables": [[5, 2, 6], [], [5, 1], [2]]}),
        ("sequences", {"seq_lens": [13, 0, 9, 5]}),
        ("page_size", {"page_size": 4, "seq_lens": [11, 0, 8, 4]}),
    ],
)
def test_a_group_has_one_table(where, changed):
    with pytest.raises(InvariantError) as caught:
        ops.compact([make_tensor(), make_tensor(**changed)])
    assert set(caught.value.codes) == {"kv_group_mismatch"}
    assert f"tensors[1].{where}" in [problem.where for problem in caught.value.problems]


def test_group_numbers_that_differ_are_refused():
    with pytest.raises(InvariantError) as caught:
        ops.compact([make_tensor(kv_group=3), make_tensor(kv_group=5)])
    assert caught.value.codes == ["kv_group_mismatch"]


@pytest.mark.parametrize("quantization", ["nf4", "mxfp"])
@pytest.mark.parametrize("name", [name for name in EVERY_OPERATION if name not in ("select", "concat")])
def test_parameters_without_a_rule_are_refused(name, quantization):
    tensor = make_tensor(element_type="uint4", quantization=quantization, kv_role="fused")
    with pytest.raises(UnsupportedError):
        EVERY_OPERATION[name](tensor)
    # Where no page moves, they are carried.
    assert bytes(ops.select(tensor, [0]).buffers[3]) == bytes(tensor.buffers[3])


def test_buffers_that_no_scheme_names_are_refused():
    tensor = make_tensor(quantization_buffers=[np.zeros(3, np.uint8)])
    with pytest.raises(UnsupportedError):
        ops.compact(tensor)


def test_facts_go_with_compact():
    tensor = make_tensor(**PLAIN_FACTS)
    assert ops.compact(tensor).sequences is tensor.sequences


def test_pages_beyond_4_gib(tmp_path):
    # A sparse file: only the pages that are written take room.
    num_pages, last = 1_310_727, 1_310_725
    pool = np.memmap(tmp_path / "pool", np.uint8, "w+", shape=(num_pages, 16, 8, 32))
    pool[last, 13] = 7
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[3, last]], seq_lens=[31], kv_role="key")
    assert tensor.page_pool.nbytes > 2**32
    assert int(ops.compact(tensor).page_pool.sum()) == 7 * 256
    assert ops.repage(tensor, 32).page_pool[0, 16 + 13].tolist() == [[7] * 32] * 8
    assert ops.sanitize(tensor).page_pool[1, 13].tolist() == [[7] * 32] * 8
    assert ops.select(tensor, tokens=(27, 30)).page_pool[0, 2].tolist() == [[7] * 32] * 8
