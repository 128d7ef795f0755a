"""fuse and unfuse: keys and values of a head, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import ops
from hurray_arrow.errors import InvariantError, QuantizationError, UnsupportedError
from hurray_arrow.quantization import PerTensor
from tests.paged_model import cache_of
from tests.sample import ALL_ELEMENT_TYPES, codes_of, make_tensor, sample_facts


def pair(**overrides):
    common = {**sample_facts(overrides.get("page_size", 5)), **overrides}
    return make_tensor(kv_role="key", head_dim=7, **common), make_tensor(kv_role="value", seed=3, **common)


def test_keys_come_first_in_every_head():
    pool = np.arange(2 * 3 * 2, dtype=np.int16).reshape(1, 2, 3, 2)
    tables = {"num_pages": 1, "block_tables": [[0]], "seq_lens": [2], "page_size": 2, "element_type": "int16"}
    key = make_tensor(kv_role="key", head_dim=2, page_pool=pool, **tables)
    value = make_tensor(kv_role="value", head_dim=1, page_pool=-pool[..., :1].copy(), **tables)
    fused = ops.fuse(key, value)
    assert (fused.kv_role, fused.head_dim) == ("fused", 3)
    assert fused.page_pool.tolist() == [[[[0, 1, 0], [2, 3, -2], [4, 5, -4]], [[6, 7, -6], [8, 9, -8], [10, 11, -10]]]]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_every_element_type_is_packed_and_taken_apart(name):
    key, value = pair(element_type=name)
    fused = ops.fuse(key, value)
    bits = key.element_type.bits
    for seq in range(4):
        both = fused.gather(seq)
        assert codes_of(both[:, :, :7], bits) == codes_of(key.gather(seq), bits)
        assert codes_of(both[:, :, 7:], bits) == codes_of(value.gather(seq), bits)
    halves = ops.unfuse(fused, key_dim=7)
    for old, new in zip((key, value), halves, strict=True):
        assert new.equals(ops.select(old))


@pytest.mark.parametrize("key_dim", [0, 7])
def test_a_half_may_have_no_dimensions(key_dim):
    tensor = make_tensor(kv_role="fused", head_dim=7)
    key, value = ops.unfuse(tensor, key_dim=key_dim)
    assert (key.head_dim, value.head_dim) == (key_dim, 7 - key_dim)
    assert bytes(ops.fuse(key, value).buffers[0]) == bytes(tensor.buffers[0])


@pytest.mark.parametrize("name", ["per_tensor", "per_channel_heads", "per_channel_dims", "per_block_one_buffer"])
def test_parameters_follow_dimensions(name):
    key, value = pair(element_type="int8", quantization=name, page_size=4)
    fused = ops.fuse(key, value)
    for seq in range(4):
        both = fused.dequantize(seq)
        assert both[:, :, :7].tobytes() == key.dequantize(seq).tobytes()
        assert both[:, :, 7:].tobytes() == value.dequantize(seq).tobytes()
    for old, new in zip((key, value), ops.unfuse(fused, key_dim=7), strict=True):
        assert new.equals(ops.select(old))


def test_groups_are_fused_pair_by_pair():
    keys = [make_tensor(kv_role="key", layer_index=layer, seed=layer) for layer in (3, 5)]
    values = [make_tensor(kv_role="value", layer_index=layer, seed=layer + 1) for layer in (3, 5)]
    fused = ops.fuse(keys, values)
    assert [tensor.layer_index for tensor in fused] == [3, 5]
    again = ops.unfuse(fused, key_dim=11)
    assert cache_of(again[0]) == cache_of(keys)
    assert cache_of(again[1]) == cache_of(values)


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("kv_role", {"kv_role": "key"}),
        ("layer_index", {"layer_index": None}),
        ("element_type", {"element_type": "float16"}),
        ("num_heads", {"num_heads": 2}),
        ("num_pages", {"num_pages": 8}),
        ("component", {"component": "scales"}),
    ],
)
def test_pairs_that_differ_are_refused(field, changed):
    with pytest.raises(InvariantError) as caught:
        ops.fuse(make_tensor(kv_role="key"), make_tensor(**{"kv_role": "value", **changed}))
    assert [(problem.code, problem.field) for problem in caught.value.problems] == [("tensor_mismatch", field)]


def test_halves_have_one_table():
    key, value = pair()
    for changed in (ops.select(value, [0, 1, 3, 2]), make_tensor(kv_role="value"), ops.repage(make_tensor(), 7)):
        with pytest.raises(InvariantError) as caught:
            ops.fuse(key, changed)
        assert set(caught.value.codes) == {"kv_group_mismatch"}


def test_nothing_is_requantized():
    scale = {"element_type": "int8", "quantization_buffers": []}
    key = make_tensor(kv_role="key", **scale)
    value = type(key).from_arrays(
        key.page_pool,
        key.block_table,
        key.seq_ptr,
        kv_role="value",
        layer_index=17,
        quantization=PerTensor(0.5),
        sequences=key.sequences,
    )
    with pytest.raises(QuantizationError) as caught:
        ops.fuse(key, value)
    assert caught.value.codes == ["quantization_mismatch"]
    heads = {"element_type": "int8", "quantization": "per_channel_heads"}
    other = [np.ones(3, np.float32), np.ones(3, np.int32)]
    with pytest.raises(QuantizationError) as refused:
        ops.fuse(make_tensor(kv_role="key", **heads), make_tensor(quantization_buffers=other, **heads))
    assert refused.value.codes == ["quantization_mismatch"]


def test_what_is_no_pair_is_refused():
    key, value = pair()
    with pytest.raises(TypeError):
        ops.fuse([key], value)
    with pytest.raises(InvariantError) as caught:
        ops.fuse([key], [value, value])
    assert caught.value.codes == ["tensor_mismatch"]
    whole = [make_tensor(kv_role=role, component="page.scales") for role in ("key", "value")]
    with pytest.raises(UnsupportedError):
        ops.fuse(*whole)
    with pytest.raises(UnsupportedError):
        ops.unfuse(make_tensor(kv_role="fused", component="page.scales"), key_dim=1)


@pytest.mark.parametrize(
    ("role", "key_dim", "field"), [("key", 3, "kv_role"), ("fused", 12, "head_dim"), ("fused", -1, "head_dim")]
)
def test_what_cannot_be_taken_apart_is_refused(role, key_dim, field):
    with pytest.raises(InvariantError) as caught:
        ops.unfuse(make_tensor(kv_role=role), key_dim=key_dim)
    assert [(problem.code, problem.field) for problem in caught.value.problems] == [("tensor_mismatch", field)]
