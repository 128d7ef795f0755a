"""Element types against the specification's table, and packing against a loop over bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hurray_arrow.elements import ELEMENT_TYPES, ElementType, PrivateType, element_type, validate_element_type
from hurray_arrow.errors import InvalidDescriptorError, InvariantError, UnsupportedError

#: Tag, name, bits and dtype as wire format 4 has them.
TABLE = [
    (0x01, "float16", 16, "float16"),
    (0x02, "bfloat16", 16, ml_dtypes.bfloat16),
    (0x03, "float32", 32, "float32"),
    (0x04, "float64", 64, "float64"),
    (0x10, "int8", 8, "int8"),
    (0x11, "uint8", 8, "uint8"),
    (0x12, "int16", 16, "int16"),
    (0x13, "uint16", 16, "uint16"),
    (0x14, "int32", 32, "int32"),
    (0x15, "uint32", 32, "uint32"),
    (0x16, "int64", 64, "int64"),
    (0x17, "uint64", 64, "uint64"),
    (0x20, "bool", 1, "bool"),
    (0x40, "float8_e4m3", 8, ml_dtypes.float8_e4m3fn),
    (0x41, "float8_e5m2", 8, ml_dtypes.float8_e5m2),
    (0x42, "float8_e8m0", 8, ml_dtypes.float8_e8m0fnu),
    (0x43, "float4_e2m1", 4, ml_dtypes.float4_e2m1fn),
    (0x44, "float6_e2m3", 6, ml_dtypes.float6_e2m3fn),
    (0x45, "float6_e3m2", 6, ml_dtypes.float6_e3m2fn),
    (0x46, "float128", 128, None),
    (0x48, "int4", 4, ml_dtypes.int4),
    (0x49, "uint4", 4, ml_dtypes.uint4),
    (0x4A, "int2", 2, ml_dtypes.int2),
    (0x4B, "uint2", 2, ml_dtypes.uint2),
    (0x50, "complex64", 64, "complex64"),
    (0x51, "complex128", 128, "complex128"),
]
PACKED = ["bool", "int4", "uint4", "int2", "uint2", "float4_e2m1", "float6_e2m3", "float6_e3m2"]
PRIVATE = {bits: element_type(0xF0 + bits, private=PrivateType(bits)) for bits in (1, 2, 4)}
PACKED_TYPES = [*map(element_type, PACKED), *PRIVATE.values()]


@pytest.mark.parametrize(("tag", "name", "bits", "dtype"), TABLE)
def test_table(tag, name, bits, dtype):
    found = element_type(tag)
    assert (found.tag, found.name, found.bits, str(found)) == (tag, name, bits, name)
    assert element_type(name) is found
    assert found.is_packed == (bits < 8)
    if dtype is None:
        assert found.dtype is None
        assert found.pool_dtype == np.dtype("V16")
    else:
        assert found.dtype == np.dtype(dtype)
        assert element_type(np.dtype(dtype)) is found
        assert element_type(np.dtype(dtype).type) is found
        assert found.pool_dtype == (np.uint8 if bits < 8 else np.dtype(dtype))
    if bits >= 8:
        assert found.pool_dtype.itemsize * 8 == bits


def test_table_is_whole():
    assert list(ELEMENT_TYPES) == [name for _, name, _, _ in TABLE]


@pytest.mark.parametrize("tag", [0x00, 0x05, 0x18, 0x21, 0x47, 0x4C, 0xEF, 0xFF, 256, -1])
def test_unassigned_tag(tag):
    with pytest.raises(InvalidDescriptorError) as caught:
        element_type(tag)
    assert caught.value.codes == ["element_type_invalid"]


@pytest.mark.parametrize("name", ["half", "private_0xEF", "private_0xFF", "private_0xF", "", "xprivate_0xF0"])
def test_unknown_name(name):
    with pytest.raises(InvalidDescriptorError, match="bfloat16") as caught:
        element_type(name)
    assert caught.value.codes == ["element_type_invalid"]


def test_none_is_not_float64():
    with pytest.raises(InvalidDescriptorError) as caught:
        element_type(None)
    assert caught.value.codes == ["element_type_invalid"]


def test_dtype_without_a_type():
    for dtype in (np.longdouble, "V16", "M8[s]", "S3", ml_dtypes.float8_e4m3fnuz, [("a", "u1")]):
        with pytest.raises(UnsupportedError):
            element_type(np.dtype(dtype))
    with pytest.raises(UnsupportedError, match="newbyteorder"):
        element_type(np.dtype(">f4"))


def test_private_type():
    private = PrivateType(24, is_float=True, sign_bits=1)
    found = element_type(0xF3, private=private)
    assert found == element_type("private_0xF3", private=private) == element_type(found)
    assert (found.name, found.bits, found.dtype, found.pool_dtype) == ("private_0xF3", 24, None, np.dtype("V3"))
    assert private.packing_factor == 1
    assert [PrivateType(bits).packing_factor for bits in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert private.encode().hex() == "18000000010100010000000000000000" + "00000000"


@pytest.mark.parametrize("tag", [0xF0, "private_0xFE"])
def test_private_type_needs_its_section(tag):
    with pytest.raises(InvalidDescriptorError) as caught:
        element_type(tag)
    assert caught.value.codes == ["extension_flag_mismatch"]


def test_section_belongs_to_its_type():
    assert element_type(PRIVATE[4], private=PrivateType(4)) is PRIVATE[4]
    for which in ("int8", element_type("int8"), PRIVATE[4]):
        with pytest.raises(InvalidDescriptorError) as caught:
            element_type(which, private=PrivateType(8))
        assert caught.value.codes == ["extension_flag_mismatch"]


def test_very_wide_private_type():
    kind = element_type(0xF0, private=PrivateType(2**32 - 8))
    assert kind.pool_dtype.itemsize == 2**29 - 1
    assert kind.size_bytes(2**64) == 2**64 * (2**29 - 1)


@pytest.mark.parametrize(
    ("private", "code", "name"),
    [
        (PrivateType(0), "extension_type_invalid", "bit_width"),
        (PrivateType(3), "extension_type_invalid", "bit_width"),
        (PrivateType(6), "extension_type_invalid", "bit_width"),
        (PrivateType(12), "extension_type_invalid", "bit_width"),
        (PrivateType(4, 1), "extension_type_invalid", "packing_factor"),
        (PrivateType(16, 2), "extension_type_invalid", "packing_factor"),
        (PrivateType(2**32), "field_out_of_range", "bit_width"),
        (PrivateType(8, sign_bits=256), "field_out_of_range", "sign_bits"),
        (PrivateType(8, exponent_bias=-1), "field_out_of_range", "exponent_bias"),
    ],
)
def test_broken_private_type(private, code, name):
    with pytest.raises(InvalidDescriptorError) as caught:
        element_type(0xF3, private=private)
    assert [(problem.code, problem.field) for problem in caught.value.problems] == [(code, f"extension_type.{name}")]


def test_forged_element_type():
    assert validate_element_type(element_type("int4")) == []
    assert validate_element_type(PRIVATE[4]) == []
    for forged in (ElementType(0x48, "int4", 8), ElementType(0x48, "four", 4), ElementType(0x47, "x", 8)):
        assert [problem.code for problem in validate_element_type(forged)] == ["element_type_invalid"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bool", [0, 1, 1, 1, 1, 1, 1, 1, 1, 2]),
        ("int4", [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
        ("uint2", [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]),
        ("float6_e2m3", [0, 3, 3, 3, 3, 6, 6, 6, 6, 9]),
        ("bfloat16", [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]),
        ("float128", [0, 16, 32, 48, 64, 80, 96, 112, 128, 144]),
    ],
)
def test_sizes(name, sizes):
    assert [element_type(name).size_bytes(count) for count in range(10)] == sizes


def test_sizes_never_wrap():
    count = np.uint64(2**64 - 1)
    assert element_type("complex128").size_bytes(count) == 16 * (2**64 - 1)
    assert element_type("float6_e3m2").size_bytes(count) == 2**62 * 3
    assert element_type("int4").page_bytes(np.uint64(2**63)) == 2**62


def test_page_bytes():
    assert [element_type("int4").page_bytes(elems) for elems in (0, 1, 6, 15)] == [0, None, 3, None]
    assert [element_type("float6_e2m3").page_bytes(elems) for elems in (2, 4, 12)] == [None, 3, 9]
    assert element_type("float32").page_bytes(7) == 28


def slow_codes(raw: np.ndarray, bits: int, count: int) -> list[int]:
    """Read the elements bit by bit."""
    stream = [int(byte) >> place & 1 for byte in raw for place in range(8)]
    return [sum(stream[element * bits + place] << place for place in range(bits)) for element in range(count)]


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 61, 64])
def test_packing_against_a_loop_over_bits(kind, count):
    random = np.random.default_rng(count)
    codes = random.integers(0, 1 << kind.bits, count).astype(np.uint8)
    values = codes if kind.dtype is None else codes.view(kind.dtype)
    raw = kind.pack(values)
    assert raw.dtype == np.uint8
    assert raw.size == kind.size_bytes(count)
    assert slow_codes(raw, kind.bits, count) == codes.tolist()
    assert not any(slow_codes(raw, 1, raw.size * 8)[count * kind.bits :]), "unused bits are 0"
    back = kind.unpack(raw, count)
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
def test_unpack_then_pack_gives_every_byte_pattern(kind):
    if kind.bits == 6:
        raw = np.random.default_rng(6).integers(0, 256, 3 * 4099).astype(np.uint8)
        raw[:768] = np.repeat(np.arange(256, dtype=np.uint8), 3)
    else:
        raw = np.arange(256, dtype=np.uint8)
    values = kind.unpack(raw, raw.size * 8 // kind.bits)
    assert kind.pack(values).tobytes() == raw.tobytes()


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
def test_any_range_and_any_gather(kind):
    raw = np.random.default_rng(kind.tag).integers(0, 256, 33).astype(np.uint8)
    total = 33 * 8 // kind.bits
    codes = slow_codes(raw, kind.bits, total)
    for start in range(12):
        for count in (0, 1, 3, 10, total - start):
            got = kind.unpack(raw, count, start=start)
            assert got.view(np.uint8).tolist() == codes[start : start + count], (start, count)
    indices = np.random.default_rng(1).integers(0, total, (5, 7))
    got = kind.unpack_at(raw, indices)
    assert got.shape == (5, 7)
    assert got.view(np.uint8).tolist() == [[codes[index] for index in row] for row in indices]
    assert kind.unpack_at(raw, np.array(total - 1)).shape == ()
    assert kind.unpack_at(raw, np.empty(0, np.int64)).size == 0


@pytest.mark.parametrize("kind", PACKED_TYPES, ids=str)
def test_no_read_out_of_bounds(kind):
    raw = np.full(3, 255, np.uint8)
    total = 24 // kind.bits
    with pytest.raises(IndexError):
        kind.unpack(raw, total + 1)
    with pytest.raises(IndexError):
        kind.unpack(raw, 1, start=total)
    with pytest.raises(IndexError):
        kind.unpack(raw, -1)
    with pytest.raises(IndexError):
        kind.unpack(raw, 1, start=-1)
    for index in (total, -1, 2**62):
        with pytest.raises(IndexError):
            kind.unpack_at(raw, np.array([0, index]))


def test_six_bit_group_cut_in_the_middle():
    # Three elements are 18 bits: a caller that holds just those three bytes less one gets what is whole.
    kind = element_type("float6_e2m3")
    raw = np.array([0xFF, 0x0F], np.uint8)
    assert kind.unpack(raw, 2).view(np.uint8).tolist() == [63, 63]
    with pytest.raises(IndexError):
        kind.unpack(raw, 3)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int4", [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]),
        ("uint4", list(range(16))),
        ("int2", [0, 1, -2, -1]),
        ("uint2", [0, 1, 2, 3]),
        ("bool", [0, 1]),
        ("float4_e2m1", [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]),
    ],
)
def test_values_have_their_sign(name, values):
    kind = element_type(name)
    raw = kind.pack(np.arange(len(values), dtype=np.uint8).view(kind.dtype))
    got = kind.unpack(raw, len(values)).astype(np.float32)
    assert got.tolist() == values
    assert np.signbit(got).tolist() == np.signbit(np.array(values, np.float32)).tolist()
    # And the other way: values that numpy computed, whose byte may have the sign in its high bits.
    assert kind.pack(np.array(values, np.float32).astype(kind.dtype)).tobytes() == raw.tobytes()


@pytest.mark.parametrize(("name", "bias", "mantissa_bits"), [("float6_e2m3", 1, 3), ("float6_e3m2", 3, 2)])
def test_six_bit_floats(name, bias, mantissa_bits):
    kind = element_type(name)
    expected = []
    for code in range(64):
        mantissa = code & ((1 << mantissa_bits) - 1)
        exponent = code >> mantissa_bits & ((1 << (5 - mantissa_bits)) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        size = fraction * 2 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2 ** (exponent - bias)
        expected.append(-size if code >> 5 else size)
    raw = kind.pack(np.arange(64, dtype=np.uint8).view(kind.dtype))
    assert kind.unpack(raw, 64).astype(np.float64).tolist() == expected


def test_pack_ignores_the_high_bits_of_a_value():
    assert element_type("int4").pack(np.array([0xF1, 0x0F, 0x52], np.uint8).view(ml_dtypes.int4)).tolist() == [0xF1, 2]


def test_pack_takes_any_shape_in_c_order():
    kind = element_type("uint4")
    values = np.arange(12, dtype=np.uint8).view(ml_dtypes.uint4).reshape(3, 4).T
    assert kind.pack(values).tolist() == [0x40, 0x18, 0x95, 0x62, 0x3A, 0xB7]


def test_pack_refuses_another_dtype():
    with pytest.raises(InvariantError, match=r"astype\('int4'\)") as caught:
        element_type("int4").pack(np.zeros(3, np.int8))
    assert caught.value.codes == ["buffer_dtype"]


def test_whole_bytes_are_not_packed():
    kind = element_type("bfloat16")
    for call in (
        lambda: kind.pack(np.zeros(1, kind.dtype)),
        lambda: kind.unpack(np.zeros(2, np.uint8), 1),
        lambda: kind.unpack_at(np.zeros(2, np.uint8), np.zeros(1, np.int64)),
    ):
        with pytest.raises(UnsupportedError):
            call()
