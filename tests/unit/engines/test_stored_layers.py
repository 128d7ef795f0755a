"""Stored tensors as what a layout needs: one key each, one group each, the right types, nothing missing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hurray_arrow.engines import vllm
from hurray_arrow.engines.stored_layers import stored_groups
from hurray_arrow.errors import LayoutError, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor

PAGES, SLOTS, HEADS, DIM = 4, 5, 3, 8


def tensor(kv_role="key", *, heads=HEADS, dim=DIM, dtype=np.float16, tables=([0, 1], [2]), lens=(8, 3), **changes):
    pool = np.random.default_rng(1).integers(0, 9, (PAGES, SLOTS, heads, dim)).astype(dtype)
    options = {"layer_name": "l", "kv_group": 0, "block_tables": tables, "seq_lens": lens, **changes}
    return BlockPagedTensor.from_arrays(pool, kv_role=kv_role, **options)


def refused(tensors, layout="BHNC", error=LayoutError, **options):
    with pytest.raises(error) as caught:
        vllm.import_cache(tensors, layout=layout, expect=None, **options)
    return (caught.value.expected, caught.value.actual) if error is LayoutError else None


def test_groups_by_number_or_by_tables():
    named = [
        tensor(kv_group=3),
        tensor("value", kv_group=3),
        tensor(layer_name="m", kv_group=1, tables=([3], []), lens=(5, 0)),
    ]
    assert [(group.kv_group, list(group.layers)) for group in stored_groups(named)] == [(1, ["m"]), (3, ["l"])]
    bare = [dataclasses.replace(each, kv_group=None) for each in named]
    assert [(group.kv_group, list(group.layers)) for group in stored_groups(bare)] == [(0, ["l"]), (1, ["m"])]


def test_tables_of_a_group_are_the_same():
    assert refused([tensor(), tensor("value", tables=([0, 2], [1]))]) == (0, 0)


def test_keys_are_unique():
    assert refused([tensor(), tensor()]) == (1, 2)
    assert refused([tensor(), tensor("value", kv_group=1)]) == (1, ["l"])


def test_heads_types_and_pools_agree():
    assert refused([tensor(), tensor("value", heads=4)]) == (1, [3, 4])
    assert refused([tensor(), tensor("value", dtype=np.float32)]) == ("float16", "float32")
    smaller = BlockPagedTensor.from_arrays(
        np.zeros((3, SLOTS, HEADS, DIM), np.float16),
        kv_role="value",
        layer_name="l",
        kv_group=0,
        block_tables=([0, 1], [2]),
        seq_lens=(8, 3),
    )
    assert refused([tensor(), smaller]) == (1, [3, 4])


def test_scales_of_another_type_are_no_scales():
    values = [tensor(role, dtype=np.int8) for role in ("key", "value")]
    scales = [
        tensor("key", dim=1, dtype=np.float16, component="scales"),
        tensor("value", dim=1, dtype=np.float32, component="scales"),
    ]
    assert refused([*values, *scales], "BHNC-token_scales") == ("float32", "float16")
    scales[0] = tensor("key", dim=2, dtype=np.float32, component="scales")
    assert refused([*values, *scales], "BHNC-token_scales") == ("float32", "float32")
    scales[0] = tensor("key", dim=1, dtype=np.float32, component="scales")
    array = vllm.import_cache([*values, *scales], layout="BHNC-token_scales", expect=None)["l"]
    assert array.shape == (PAGES, HEADS, SLOTS, 2 * DIM + 8)
    assert refused(values, "BHNC-token_scales")[1] == [("key", "values"), ("value", "values")]


def test_companions_without_a_place_are_not_dropped():
    extra = tensor("key", dim=1, dtype=np.float32, component="scales")
    expected, actual = refused([tensor(), tensor("value"), extra])
    assert set(actual) - set(expected) == {("key", "scales")}


def test_values_below_a_byte_are_not_engines_values():
    packed = [
        BlockPagedTensor.from_arrays(
            np.zeros(PAGES * SLOTS * HEADS * DIM // 2, np.uint8),
            kv_role=role,
            element_type="int4",
            page_shape=(SLOTS, HEADS, DIM),
            num_pages=PAGES,
            layer_name="l",
            kv_group=0,
            block_tables=([0, 1], [2]),
            seq_lens=(8, 3),
        )
        for role in ("key", "value")
    ]
    refused(packed, error=UnsupportedError)
