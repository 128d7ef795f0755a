"""The calls that refusals suggest are pasted as they stand, and what comes of them is the tensor that was meant."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hurray_arrow import BlockPagedTensor, InvariantError, element_type

SHAPE = (7, 5, 3, 11)
#: Small whole numbers, so that integers, floats and values of four bits hold them all.
VALUES = (np.arange(np.prod(SHAPE)) % 7).astype(np.float16).reshape(SHAPE)
BITS = VALUES.astype(ml_dtypes.bfloat16).view(np.uint16)
TABLE = np.array([5, 2, 6, 5, 0, 2], np.uint32)
SEQ_PTR = np.array([0, 3, 3, 5, 6], np.uint32)
WIDE = TABLE.astype(np.int64) + np.array([0, 2**32, 0, 0, 0, 0])
PACKED = element_type("int4").pack(VALUES.astype("int4"))
SHAPED = {"page_shape": SHAPE[1:], "num_pages": SHAPE[0]}


def build(arguments: dict[str, Any]) -> BlockPagedTensor:
    given = {"page_pool": VALUES, "block_table": TABLE, "seq_ptr": SEQ_PTR, "kv_role": "key", "total_tokens": 20}
    return BlockPagedTensor.from_arrays(**{**given, **arguments})


def paste(error: InvariantError, arguments: dict[str, Any]) -> None:
    """Do what each problem says behind its last colon, as an argument of the same name."""
    for problem in error.problems:
        call = problem.message.rpartition(": ")[2]
        name, _, place = problem.where.partition("[")
        text = call if call.startswith(f"{name}=") else f"{name}=[{call}]" if place else f"{name}={call}"
        given = {"block_table": TABLE, "seq_ptr": SEQ_PTR, **arguments}
        names = {**given, "np": np, "element_type": element_type}
        arguments.update(eval(f"dict({text})", names))  # noqa: S307  the messages are ours


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_table": TABLE.astype(np.int64), "seq_ptr": SEQ_PTR.astype(np.int64)},
        {"block_table": TABLE.astype(">i8"), "seq_ptr": SEQ_PTR.astype(">u4")},
        {"block_table": TABLE.astype(float), "seq_ptr": SEQ_PTR.astype(np.uint64)},
        {"block_table": TABLE.tolist(), "seq_ptr": tuple(SEQ_PTR.tolist())},
        {"block_table": TABLE.tobytes(), "seq_ptr": memoryview(SEQ_PTR)},
        {"block_table": np.repeat(TABLE, 2)[::2].astype(np.int64), "seq_ptr": np.ma.array(SEQ_PTR)},
        {"page_pool": VALUES.astype(">f2")},
        {"page_pool": VALUES.astype(np.float64), "element_type": "float16"},
        {"page_pool": VALUES.astype(">f8"), "element_type": "float16"},
        {"page_pool": VALUES.tolist(), "element_type": "float16"},
        {"page_pool": VALUES.view("V2"), "element_type": "float16"},
        {"page_pool": VALUES.astype(ml_dtypes.float8_e5m2), "element_type": "float16"},
        {"page_pool": np.asfortranarray(VALUES)},
        {"page_pool": VALUES, "element_type": "float16", **SHAPED},
        {"page_pool": VALUES.tobytes(), "element_type": "float16", **SHAPED},
    ],
)
def test_the_suggested_calls_give_what_was_meant(wrong):
    wrong = dict(wrong)
    for _ in range(3):
        try:
            tensor = build(wrong)
        except InvariantError as error:
            paste(error, wrong)
        else:
            break
    assert tensor.equals(build({}))


@pytest.mark.parametrize(
    ("wrong", "values", "name"),
    [
        ({"page_pool": BITS.view(np.int16), "element_type": "bfloat16"}, VALUES, "bfloat16"),
        ({"page_pool": BITS.view(np.int16).astype(">i2"), "element_type": "bfloat16"}, VALUES, "bfloat16"),
        ({"page_pool": VALUES, "element_type": "float8_e4m3"}, VALUES, "float8_e4m3"),
        ({"page_pool": VALUES.astype("float8_e5m2"), "element_type": "float8_e4m3"}, None, "float8_e4m3"),
        ({"page_pool": VALUES, "element_type": "int8"}, VALUES, "int8"),
        ({"page_pool": VALUES > 3}, VALUES > 3, "bool"),
        ({"page_pool": VALUES.astype("int4")}, VALUES, "int4"),
        ({"page_pool": VALUES.astype(np.int64), "element_type": "int4"}, VALUES, "int4"),
        ({"page_pool": VALUES.astype("int4"), "element_type": "int4", **SHAPED}, VALUES, "int4"),
        ({"page_pool": PACKED.view(np.int8), "element_type": "int4", **SHAPED}, VALUES, "int4"),
    ],
)
def test_the_suggested_calls_keep_values(wrong, values, name):
    expected = wrong["page_pool"] if values is None else values
    wrong = dict(wrong)
    with pytest.raises(InvariantError) as caught:
        build(wrong)
    paste(caught.value, wrong)
    tensor = build(wrong)
    assert tensor.element_type.name == name
    assert (tensor.values_of_pages().astype(np.float32) == expected.astype(np.float32)).all()


def test_bits_or_numbers_is_left_to_the_caller():
    with pytest.raises(InvariantError) as caught:
        build({"page_pool": VALUES.view(np.uint16), "element_type": "float16"})
    bits, numbers = caught.value.problems[0].message.rpartition(": ")[2].split(", ")
    assert (eval(bits.partition(" ")[0], {"page_pool": VALUES.view(np.uint16)}) == VALUES).all()  # noqa: S307
    whole = VALUES.astype(np.uint16)
    assert (eval(numbers.partition(" ")[0], {"page_pool": whole, "np": np}) == VALUES).all()  # noqa: S307


@pytest.mark.parametrize(
    "seq_ptr", [SEQ_PTR, SEQ_PTR.astype(np.int64), SEQ_PTR.tolist()], ids=["uint32", "int64", "list"]
)
@pytest.mark.parametrize("index_type", [None, "uint32", "uint64"])
@pytest.mark.parametrize("kind", ["int64", "uint64", "list"])
def test_ids_that_uint32_does_not_hold_stay_whole(kind, index_type, seq_ptr):
    table = {"int64": WIDE, "uint64": WIDE.astype(np.uint64), "list": WIDE.tolist()}[kind]
    wrong = {"block_table": table, "seq_ptr": seq_ptr, "index_type": index_type}
    for _ in range(3):
        with pytest.raises(InvariantError) as caught:
            build(wrong)
        if caught.value.codes == ["page_id_out_of_range"]:
            break
        paste(caught.value, wrong)
    # The pool has no such page; that, and with the whole id, is what is said in the end.
    assert f"page id {2**32 + 2}" in str(caught.value)


def test_ids_of_lists_that_uint32_does_not_hold_name_the_index_type():
    lists = {"block_table": None, "seq_ptr": None, "block_tables": [[2**32]]}
    with pytest.raises(InvariantError, match="index_type='uint64'"):
        build(lists)
    with pytest.raises(InvariantError, match=f"page id {2**32}"):
        build({**lists, "index_type": "uint64"})


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ({"block_table": TABLE.astype(np.int64) - 1}, "-1"),
        ({"block_table": TABLE + 0.5}, "5.5"),
        ({"block_table": np.where(TABLE > 5, np.nan, TABLE)}, "nan"),
        ({"block_table": [3, -1]}, "-1"),
        ({"page_pool": VALUES * 100, "element_type": "int8"}, "600"),
        ({"page_pool": VALUES.astype(complex), "element_type": "float16"}, "complex"),
        ({"page_pool": VALUES * 100, "element_type": "int4"}, "none of int4"),
        ({"block_table": "abc"}, "str"),
        ({"block_table": 3}, "int"),
        ({"block_table": np.array([1, None])}, "object"),
        ({"block_table": [[1], [2, 3]]}, "list"),
        ({"page_pool": np.zeros(SHAPE, "V16"), "element_type": "float16"}, "V16"),
        ({"page_pool": VALUES.astype("S4"), "element_type": "float16"}, "bytes"),
        ({"page_pool": [VALUES], "element_type": "int4"}, "int4"),
    ],
)  # fmt: skip
def test_no_call_is_suggested_where_none_keeps_the_values(wrong, value):
    with pytest.raises(InvariantError) as caught:
        build(wrong)
    assert value in str(caught.value)
    assert not any(call in str(caught.value) for call in ("astype", "view(", "asarray", "pack("))


class Tensor:
    """What torch's tensors of bfloat16 are to numpy."""

    def __dlpack__(self):
        raise BufferError

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_tensors_that_numpy_cannot_take_are_sent_to_the_engines_arrays():
    with pytest.raises(InvariantError, match=r"engines\.arrays\.as_array\(page_pool\)"):
        build({"page_pool": Tensor()})


class Huge:
    """A file that is read when an array is made of it."""

    nbytes = 2**40

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it was read")


def test_large_files_are_not_read_for_a_message():
    with pytest.raises(InvariantError, match="Huge, expected a numpy array"):
        build({"page_pool": Huge(), "block_table": Huge()})
