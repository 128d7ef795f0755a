"""The schemes: bytes, rules, parameter buffers and the arithmetic, against numbers worked out by hand."""

from __future__ import annotations

import struct

import hurray
import ml_dtypes
import numpy as np
import pytest

from hurray_arrow.errors import QuantizationError, UnsupportedError, WireFormatError
from hurray_arrow.quantization import (
    OpaqueScheme,
    PerBlock,
    PerChannel,
    PerTensor,
    decode_quantization,
    dequantize,
    split_parameters,
)

#: Scheme, name, and its section as the table of wire format 3 has it.
SECTIONS = [
    (PerTensor(0.5, -3), "per_tensor", "010100000000003ffdffffff00000000"),
    (PerChannel(2, 3, 4), "per_channel", "0201000002000000030000000400000003000000"),
    (PerChannel(1, 5), "per_channel", "020101000100000005000000ffffffff03000000"),
    (PerBlock(0, 16, 4, 3, 1), "per_block", "030100000000000010000000040000000300000001000000"),
    (PerBlock(0, 8, 3, None, 2), "per_block", "03010100000000000800000003000000ffffffff02000000"),
    (OpaqueScheme(4, 2, 64, 3), "nf4", "04010000020000004000000003000000"),
    (OpaqueScheme(5, 1, 32, 6), "mxfp", "05010000010000002000000006000000"),
]


@pytest.mark.parametrize(("scheme", "name", "section"), SECTIONS)
def test_bytes(scheme, name, section):
    raw = bytes.fromhex(section)
    assert scheme.encode() == raw
    assert len(raw) == scheme.size_bytes
    assert decode_quantization(raw) == scheme
    assert scheme.scheme == name
    assert scheme.scheme_tag == raw[0]
    longer = decode_quantization(raw + b"\x07\x00\xff")
    assert longer.extra == b"\x07\x00\xff"
    assert longer.encode() == raw + b"\x07\x00\xff"
    assert hurray.decode_quantization(raw).encode() == raw


def test_symmetric_follows_from_the_zero_points():
    assert PerChannel(1, 3).symmetric is True
    assert PerChannel(1, 3, 4).symmetric is False
    assert PerBlock(0, 8, 3).symmetric is True
    assert PerBlock(0, 8, 3, 3).symmetric is False


@pytest.mark.parametrize("bits", [0x3F800000, 0x00000001, 0x80000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x3E99999A])
def test_scale_keeps_its_bits(bits):
    raw = b"\1\1\0\0" + struct.pack("<Iii", bits, 2**31 - 1, 0)
    scheme = decode_quantization(raw)
    assert scheme.encode() == raw
    assert scheme.validate(page_size=4, buffer_count=3) == []


def test_scale_is_the_float32_of_the_wire():
    scheme = PerTensor(0.1)
    assert scheme.scale == float(np.float32(0.1)) != 0.1
    assert decode_quantization(scheme.encode()) == scheme


@pytest.mark.parametrize(
    ("section", "code", "offset", "name"),
    [
        ("", "quantization_length_invalid", 96, "quantization_length"),
        ("010100", "quantization_length_invalid", 96, "quantization_length"),
        ("010100000000003ffdffffff000000", "quantization_length_invalid", 96, "quantization_length"),
        ("03010000" + "00" * 19, "quantization_length_invalid", 96, "quantization_length"),
        ("00010000" + "00" * 20, "quantization_scheme_invalid", 100, "quantization.scheme_tag"),
        ("06010000" + "00" * 20, "quantization_scheme_invalid", 100, "quantization.scheme_tag"),
        ("f0010000" + "00" * 20, "quantization_scheme_invalid", 100, "quantization.scheme_tag"),
        ("ff010000" + "00" * 20, "quantization_scheme_invalid", 100, "quantization.scheme_tag"),
        ("010101000000003ffdffffff00000000", "quantization_flags_reserved", 102, "quantization.flags"),
        ("010100000000003ffdffffff00000100", "reserved_not_zero", 112, "quantization._reserved"),
        ("0201020002000000030000000400000003000000", "quantization_flags_reserved", 102, "quantization.flags"),
        ("0201000002000000030000000400000003000001", "reserved_not_zero", 117, "quantization._reserved"),
        ("04010100020000004000000003000000", "quantization_flags_reserved", 102, "quantization.flags"),
    ],
)
def test_broken_section(section, code, offset, name):
    with pytest.raises(WireFormatError) as caught:
        decode_quantization(bytes.fromhex(section), 100)
    assert (caught.value.codes, caught.value.offset_bytes, caught.value.field) == ([code], offset, name)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (PerTensor(float("nan")), [("quantization_scale_invalid", "scale")]),
        (PerTensor(float("-inf")), [("quantization_scale_invalid", "scale")]),
        (PerTensor(1e39), [("quantization_scale_invalid", "scale")]),
        (PerTensor(-0.0), [("quantization_scale_invalid", "scale")]),
        (PerTensor(1e-60), [("quantization_scale_invalid", "scale")]),
        (PerTensor(1.0, 2**31), [("field_out_of_range", "zero_point")]),
        (PerTensor(1.0, scheme_version=2), [("quantization_version_unsupported", "scheme_version")]),
        (PerTensor(1.0, scheme_version=0), [("quantization_version_unsupported", "scheme_version")]),
        (PerChannel(0, 3), [("quantization_axis_invalid", "axis")]),
        (PerChannel(3, 3), [("quantization_axis_invalid", "axis")]),
        (PerChannel(1, 2), [("quantization_buffer_index_invalid", "scale_buffer_index")]),
        (PerChannel(1, 5), [("quantization_buffer_index_invalid", "scale_buffer_index")]),
        (PerChannel(1, 3, 0), [("quantization_buffer_index_invalid", "zero_point_buffer_index")]),
        (PerChannel(1, 3, 5), [("quantization_buffer_index_invalid", "zero_point_buffer_index")]),
        (PerChannel(1, 3, 4, symmetric=True), [("quantization_zero_point_invalid", "zero_point_buffer_index")]),
        (PerChannel(1, 3, symmetric=False), [("quantization_zero_point_invalid", "zero_point_buffer_index")]),
        (PerChannel(1, 3, scale_type_tag=1), [("quantization_scale_type_invalid", "scale_type_tag")]),
        (PerBlock(1, 8, 3), [("quantization_axis_invalid", "axis")]),
        (PerBlock(0, 16, 3), [("quantization_block_size_invalid", "block_size")]),
        (PerBlock(0, 8, 3, scale_type_tag=4), [("quantization_scale_type_invalid", "scale_type_tag")]),
        (PerBlock(0, 8, 3, symmetric=False), [("quantization_zero_point_invalid", "zero_point_buffer_index")]),
        (
            PerBlock(2, 4, 1, 9, scale_type_tag=0, scheme_version=9),
            [
                ("quantization_version_unsupported", "scheme_version"),
                ("quantization_axis_invalid", "axis"),
                ("quantization_block_size_invalid", "block_size"),
                ("quantization_buffer_index_invalid", "scale_buffer_index"),
                ("quantization_buffer_index_invalid", "zero_point_buffer_index"),
                ("quantization_scale_type_invalid", "scale_type_tag"),
            ],
        ),
        (OpaqueScheme(6, 0, 64, 3), [("quantization_scheme_invalid", "scheme_tag")]),
        (OpaqueScheme(4, 3, 64, 3), [("quantization_axis_invalid", "axis")]),
        (OpaqueScheme(4, 0, 4, 3), [("quantization_block_size_invalid", "block_size")]),
        (OpaqueScheme(4, 0, 24, 3), [("quantization_block_size_invalid", "block_size")]),
        (OpaqueScheme(5, 0, 8, 3), [("quantization_block_size_invalid", "block_size")]),
        (OpaqueScheme(5, 0, 4096, 3), [("quantization_block_size_invalid", "block_size")]),
        (OpaqueScheme(5, 0, 0, 3), [("quantization_block_size_invalid", "block_size")]),
        (OpaqueScheme(5, 0, 32, 5), [("quantization_buffer_index_invalid", "scale_buffer_index")]),
    ],
)
def test_rules(scheme, expected):
    problems = scheme.validate(page_size=8, buffer_count=5)
    assert [(problem.code, problem.field) for problem in problems] == [
        (code, f"quantization.{name}") for code, name in expected
    ]


@pytest.mark.parametrize("page_size", [1, 6, 12])
def test_block_size_is_a_power_of_two(page_size):
    problems = PerBlock(0, page_size, 3).validate(page_size=page_size, buffer_count=4)
    assert [problem.code for problem in problems] == ["quantization_block_size_invalid"]


@pytest.mark.parametrize(
    ("scheme", "sizes"),
    [
        (PerTensor(1.0), {}),
        (PerChannel(1, 3), {3: 12}),
        (PerChannel(2, 4, 3), {4: 20, 3: 20}),
        (PerChannel(2, 3, 3), {3: 40}),
        (PerBlock(0, 8, 3, None, 1), {3: 112}),
        (PerBlock(0, 8, 4, 3, 2), {4: 112, 3: 224}),
        (PerBlock(0, 8, 3, 3, 3), {3: 448}),
        (OpaqueScheme(4, 0, 8, 3), {}),
    ],
)
def test_parameter_sizes(scheme, sizes):
    assert scheme.parameter_sizes((11, 3, 5), 7, 8) == sizes


def test_parameter_sizes_never_wrap():
    assert PerBlock(0, 8, 3).parameter_sizes((11, 3, 5), np.uint64(2**63), np.uint32(8)) == {3: 2**68}


def split(scheme, buffers):
    return split_parameters(scheme, buffers, shape=(11, 3, 5), num_pages=2, page_size=4)


def test_split_per_tensor():
    scales, zeros = split(PerTensor(0.25, -7), {})
    assert (scales.dtype, scales.shape, float(scales)) == (np.float32, (), 0.25)
    assert (zeros.dtype, zeros.shape, int(zeros)) == (np.int32, (), -7)


def test_split_separate_buffers_without_a_copy():
    raw_scales = np.array([0.5, -2, 3], "<f4").view(np.uint8)
    raw_zeros = np.array([7, -(2**31), 2**31 - 1], "<i4").view(np.uint8)
    scales, zeros = split(PerChannel(1, 4, 3), {3: raw_zeros, 4: raw_scales})
    assert scales.tolist() == [0.5, -2, 3]
    assert zeros.tolist() == [7, -(2**31), 2**31 - 1]
    assert scales.ctypes.data == raw_scales.ctypes.data
    assert zeros.ctypes.data == raw_zeros.ctypes.data


def test_split_shared_buffer():
    # [scales | zero points]; five float32 scales, then five int32 zero points.
    raw = np.concatenate([np.arange(1, 6, dtype="<f4").view(np.uint8), np.arange(5, 10, dtype="<i4").view(np.uint8)])
    scales, zeros = split(PerChannel(2, 3, 3), {3: raw})
    assert scales.tolist() == [1, 2, 3, 4, 5]
    assert zeros.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(("tag", "dtype"), [(1, np.float16), (2, ml_dtypes.bfloat16), (3, np.float32)])
def test_split_per_page_slot(tag, dtype):
    values = (np.arange(8) + 0.5).astype(dtype)
    scales, zeros = split(PerBlock(0, 4, 3, scale_type_tag=tag), {3: values.view(np.uint8)})
    assert scales.dtype == dtype
    assert scales.astype(np.float32).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert zeros is None


def test_split_keeps_the_bits_of_scales():
    raw = np.array([0x7FC0BEEF, 0x80000000, 0xFF800000], "<u4").view(np.uint8)
    scales, _ = split(PerChannel(1, 3), {3: raw})
    assert scales.tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    ("buffers", "code"),
    [
        ({3: np.zeros(12, np.uint8)}, "buffer_missing"),
        ({3: np.zeros(12, np.uint8), 4: np.zeros(11, np.uint8)}, "quantization_buffer_size"),
        ({3: np.zeros(8, np.uint8), 4: np.zeros(12, np.uint8)}, "quantization_buffer_size"),
    ],
)
def test_split_refuses_short_buffers(buffers, code):
    with pytest.raises(QuantizationError) as caught:
        split(PerChannel(1, 4, 3), buffers)
    assert caught.value.codes == [code]


def test_dequantize_per_tensor():
    values = np.array([[[-128, 127, 5]]], np.int8)
    got = dequantize(values, PerTensor(0.5, -3), scales=np.float32(0.5), zero_points=np.int32(-3))
    assert got.dtype == np.float32
    assert got.tolist() == [[[-62.5, 65, 4]]]


def test_dequantize_per_channel_against_a_loop():
    values = np.random.default_rng(1).integers(0, 256, (2, 7, 3, 5)).astype(np.uint8)
    for axis, size in ((1, 3), (2, 5)):
        scales = np.linspace(-1, 2, size, dtype=np.float32)
        zeros = np.arange(size, dtype=np.int32) * 11
        got = dequantize(values, PerChannel(axis, 3, 4), scales=scales, zero_points=zeros)
        for place in np.ndindex(*values.shape):
            channel = place[axis + 1]
            assert got[place] == scales[channel] * np.float32(int(values[place]) - int(zeros[channel])), place


def test_dequantize_per_page_slot_against_a_loop():
    values = np.random.default_rng(2).integers(-8, 8, (7, 4, 3, 5)).astype(ml_dtypes.int4)
    scales = np.linspace(-1, 2, 28, dtype=np.float16).reshape(7, 4)
    zeros = np.arange(28, dtype=np.int32).reshape(7, 4) - 9
    got = dequantize(values, PerBlock(0, 4, 3, 4, 1), scales=scales, zero_points=zeros)
    for place in np.ndindex(*values.shape):
        expected = np.float32(scales[place[:2]]) * np.float32(int(values[place]) - int(zeros[place[:2]]))
        assert got[place] == expected, place
    # The same slots one after another, as tokens.
    tokens = dequantize(
        values.reshape(28, 3, 5), PerBlock(0, 4, 3, 4, 1), scales=scales.reshape(28), zero_points=zeros.reshape(28)
    )
    assert tokens.tobytes() == got.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.float16])
def test_dequantize_floats(dtype):
    values = np.array([[[0.5, -1.5, 2]]], np.float32).astype(dtype)
    got = dequantize(values, PerTensor(0.25), scales=np.float32(0.25), zero_points=np.int32(0))
    assert got.tolist() == [[[0.125, -0.375, 0.5]]]
    got = dequantize(values, PerTensor(0.25, 2), scales=np.float32(0.25), zero_points=np.int32(2))
    assert got.tolist() == [[[-0.375, -0.875, 0]]]


def test_dequantize_is_exact_for_wide_integers():
    # 2²⁴ + 1 has no float32, but its distance to 2²⁴ has.
    values = np.array([[[2**24 + 1, -(2**31)]]], np.int32)
    zero = 2**24
    got = dequantize(values, PerTensor(2.0, zero), scales=np.float32(2), zero_points=np.int32(zero))
    assert got.tolist() == [[[2, -2 * (2**31 + 2**24)]]]
    small = np.array([[[100]]], np.uint8)
    got = dequantize(small, PerTensor(1.0, 2**24 + 1), scales=np.float32(1), zero_points=np.int32(2**24 + 1))
    assert got.tolist() == [[[-(2**24 - 99)]]]
    large = np.array([[[2**63 + 2**20]]], np.uint64)
    got = dequantize(large, PerTensor(1.0, 1), scales=np.float32(1), zero_points=np.int32(1))
    assert got.tolist() == [[[2.0**63]]]


def test_dequantize_does_not_touch_its_inputs():
    values = np.ones((1, 2, 3), np.float32)
    got = dequantize(values, PerTensor(3.0), scales=np.float32(3), zero_points=None)
    assert values.tolist() == [[[1, 1, 1], [1, 1, 1]]]
    assert not np.shares_memory(values, got)


@pytest.mark.parametrize("scheme", [OpaqueScheme(4, 0, 64, 3), OpaqueScheme(5, 0, 32, 3)])
def test_nf4_and_mxfp_are_not_dequantized(scheme):
    with pytest.raises(UnsupportedError, match=scheme.scheme):
        dequantize(np.zeros((1, 1, 1), np.uint8), scheme, scales=np.float32(1))
    with pytest.raises(UnsupportedError, match=scheme.scheme):
        split(scheme, {3: np.zeros(99, np.uint8)})


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "V16", "V3"])
def test_opaque_values_are_not_dequantized(dtype):
    with pytest.raises(UnsupportedError):
        dequantize(np.zeros((1, 1, 1), dtype), PerTensor(1.0), scales=np.float32(1))


def test_infinities_and_nan_are_answers_and_not_warnings():
    values = np.array([[[0, 2]]], np.float64) * 1e300
    got = dequantize(values, PerTensor(3e38), scales=np.float32(3e38))
    assert got.tolist() == [[[0, np.inf]]]
    got = dequantize(np.zeros((1, 1, 1), np.int8), PerChannel(1, 3), scales=np.array([np.inf], np.float32))
    assert np.isnan(got).tolist() == [[[True]]]


def test_extra_is_bytes():
    assert hash(PerTensor(1.0, extra=bytearray(b"x"))) == hash(PerTensor(1.0, extra=b"x"))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e4m3fn])
def test_zero_point_of_float_storage_is_subtracted_in_float32(dtype):
    zero = 2**24 + 2
    values = np.array([[[0.5, 8]]], np.float32).astype(dtype)
    got = dequantize(values, PerTensor(0.5, zero), scales=np.float32(0.5), zero_points=np.int32(zero))
    assert got.tolist() == [[[-(2**23) - 1, -(2**23) + 3]]]
