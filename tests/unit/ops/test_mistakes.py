"""What people hand to operations first, and that the message says what was expected instead."""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow import BlockPagedTensor, InvariantError, ops
from tests.sample import make_tensor


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ops.concat, "batches: one BlockPagedTensor"),
        (ops.merge_heads, "parts: one BlockPagedTensor"),
        (lambda keys: ops.compact([keys, np.zeros(3)]), r"tensors\[1\]: ndarray"),
        (lambda keys: ops.select(keys, [0], tokens=3), "tokens: 3"),
        (lambda keys: ops.repage(keys, 2.0), "page_size: 2.0"),
        (lambda keys: keys.gather("s-a"), r"ops.select\(\) takes ids"),
        (lambda keys: keys.page_ids("s-a"), "expected"),
    ],
)
def test_the_message_names_the_argument(call, said):
    with pytest.raises(TypeError, match=said):
        call(make_tensor())


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("layer_index", "3", "an integer, got str"),
        ("quantization", "per_tensor", "a scheme such as PerTensor, got str"),
        ("statistics", {"mean": 1.0}, "Statistics, got dict"),
    ],
)
def test_the_message_names_the_field(field, value, expected):
    pool = np.zeros((5, 4, 3, 2), np.float16)
    with pytest.raises(TypeError, match=f"{field}: expected {expected}"):
        BlockPagedTensor.from_arrays(pool, block_tables=[[0, 3]], seq_lens=[7], kv_role="key", **{field: value})


def test_tables_that_differ_are_named_by_the_first_entry_that_does():
    keys, values = make_tensor(), make_tensor(kv_role="value", block_tables=[[5, 2, 4], [], [5, 0], [2]])
    with pytest.raises(InvariantError) as caught:
        ops.fuse(keys, values)
    [problem] = caught.value.problems
    assert (problem.where, problem.message) == ("values.block_table", "entry 2 is 4, expected 6")
