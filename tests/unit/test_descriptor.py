"""The descriptor: the specification's worked example, every refusal with code, offset and field, and user errors."""

from __future__ import annotations

import dataclasses
import pickle
import struct

import numpy as np
import pytest

from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle, Statistics
from hurray_arrow.elements import PrivateType, element_type
from hurray_arrow.errors import InvalidDescriptorError, QuantizationError, UnsupportedError, WireFormatError
from hurray_arrow.quantization import OpaqueScheme, PerBlock, PerChannel, PerTensor
from hurray_arrow.spec import Flag, IndexType, KvRole

#: wire format 1: "The worked example of the layout specification … is these 133 bytes".
WORKED_EXAMPLE = bytes.fromhex(
    "4852525901008500000000000000010a030000000900000000000000020000000000000008000000000000000000000000000000"
    "040000000500000000000000000000000200000000030000000000000000000003"
    "800200000000000040000000000000000c0000000000000040000000000000000c000000000000004000000000000000"
)


def worked_example(**changes):
    fields = {
        "element_type": element_type("float16"),
        "shape": (9, 2, 8),
        "page_size": 4,
        "num_pages": 5,
        "num_seqs": 2,
        "kv_role": KvRole.KEY,
        "layer_index": 3,
        "index_type": IndexType.UINT32,
        "buffers": tuple(BufferHandle(byte_size=size) for size in (640, 12, 12)),
    }
    return BlockPagedDescriptor(**fields | changes)


def handles(*sizes, **others):
    return tuple(BufferHandle(byte_size=size, **others) for size in sizes)


def quantized():
    """int8, asymmetric per block, statistics: quantization_length at 165, payload at 169, statistics at 193."""
    return worked_example(
        element_type="int8",
        buffers=handles(320, 12, 12, 80, 80),
        quantization=PerBlock(0, 4, 3, 4),
        statistics=Statistics.known(nnz=7, has_nan=0, has_inf=1),
    )


def private():
    """A private type on a GPU: the extension-type section is at 133."""
    return worked_example(
        element_type=element_type(0xF3, private=PrivateType(16, is_float=1, sign_bits=1)),
        buffers=handles(640, 12, 12, device_tag=1, sync_mode=2),
    )


def test_worked_example():
    assert len(WORKED_EXAMPLE) == 133
    assert worked_example().encode() == WORKED_EXAMPLE
    assert BlockPagedDescriptor.decode(WORKED_EXAMPLE) == worked_example()


def test_worked_example_derives_its_sizes():
    descriptor = BlockPagedDescriptor.decode(WORKED_EXAMPLE)
    assert (descriptor.total_tokens, descriptor.num_heads, descriptor.head_dim) == (9, 2, 8)
    assert descriptor.page_shape == (4, 2, 8)
    assert (descriptor.page_elems, descriptor.pool_elems, descriptor.pool_bytes) == (64, 320, 640)
    assert (descriptor.index_dtype, descriptor.total_logical_pages) == (np.dtype("<u4"), 3)
    wide = worked_example(index_type="uint64", buffers=handles(640, 24, 24))
    assert (wide.index_dtype, wide.total_logical_pages) == (np.dtype("<u8"), 3)
    assert worked_example().flags == 0
    assert quantized().flags == Flag.QUANTIZATION | Flag.STATISTICS
    assert private().flags == Flag.EXTENSION_TYPE


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda raw: memoryview(np.frombuffer(raw, "i1"))])
def test_decode_takes_bytes_like(kind):
    assert BlockPagedDescriptor.decode(kind(WORKED_EXAMPLE)) == worked_example()


def test_sizes_are_python_integers_that_never_wrap():
    descriptor = worked_example(
        shape=(np.uint64(9), np.uint32(2**31), np.int64(2**31)), page_size=np.uint32(2**31), num_pages=np.uint64(2**63)
    )
    assert descriptor.pool_bytes == 2 ** (63 + 31 + 31 + 31 + 1)
    assert all(type(size) is int for size in (*descriptor.shape, descriptor.page_size, descriptor.num_pages))


def test_names_stand_for_members():
    named = worked_example(element_type="float16", kv_role="key", index_type="uint32", shape=[9, 2, 8])
    assert named == worked_example()
    assert named.kv_role is KvRole.KEY
    assert worked_example(kv_role=2).kv_role is KvRole.FUSED


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


#: Which descriptor, offset of the bytes to write, the bytes, then code, offset and field of the refusal.
REFUSALS = [
    ("example", 0, b"hRRY", "bad_magic", 0, "magic"),
    ("example", 3, b"Z", "bad_magic", 0, "magic"),
    ("example", 4, b"\2", "version_unsupported", 4, "version_major"),
    ("example", 4, b"\0", "version_unsupported", 4, "version_major"),
    ("example", 6, u32(19), "descriptor_length_invalid", 6, "descriptor_length"),
    ("example", 6, u32(134), "truncated", 6, "descriptor_length"),
    ("example", 6, u32(2**32 - 1), "truncated", 6, "descriptor_length"),
    ("example", 6, u32(132), "truncated", 132, "buffers[2]._reserved"),
    ("example", 6, u32(130), "truncated", 130, "buffers[2].sync_mode"),
    ("example", 10, u32(32), "flags_reserved", 10, "flags"),
    ("example", 10, u32(2**31), "flags_reserved", 10, "flags"),
    ("example", 10, u32(1), "truncated", 133, "quantization_length"),
    ("example", 10, u32(2), "shard_present", 10, "flags"),
    ("example", 10, u32(4), "extension_flag_mismatch", 10, "flags"),
    ("example", 10, u32(16), "composite_member_present", 10, "flags"),
    ("example", 14, b"\0", "element_type_invalid", 14, "type_tag"),
    ("example", 14, b"\x47", "element_type_invalid", 14, "type_tag"),
    ("example", 14, b"\xef", "element_type_invalid", 14, "type_tag"),
    ("example", 14, b"\xff", "element_type_invalid", 14, "type_tag"),
    ("example", 14, b"\xf0", "extension_flag_mismatch", 10, "flags"),
    ("example", 15, b"\0", "layout_tag_invalid", 15, "layout_tag"),
    ("example", 15, b"\x0c", "layout_tag_invalid", 15, "layout_tag"),
    ("example", 15, b"\xff", "layout_tag_invalid", 15, "layout_tag"),
    ("example", 16, u32(2), "rank_invalid", 16, "rank"),
    ("example", 16, u32(0), "rank_invalid", 16, "rank"),
    ("example", 16, u32(65), "rank_invalid", 16, "rank"),
    ("example", 20, u64(2**64 - 1), "dynamic_dimension", 20, "shape[0]"),
    ("example", 28, u64(2**64 - 1), "dynamic_dimension", 28, "shape[1]"),
    ("example", 36, u64(2**64 - 1), "dynamic_dimension", 36, "shape[2]"),
    ("example", 51, b"\1", "byte_offset_not_zero", 44, "byte_offset"),
    ("example", 52, u32(0), "page_size_invalid", 52, "page_size"),
    ("example", 64, u32(1), "paged_axis_invalid", 64, "paged_axis"),
    ("example", 72, b"\3", "kv_role_invalid", 72, "kv_role"),
    ("example", 72, b"\xff", "kv_role_invalid", 72, "kv_role"),
    ("example", 77, b"\2", "index_type_invalid", 77, "block_table_index_type"),
    ("example", 78, b"\1", "reserved_not_zero", 78, "_reserved"),
    ("example", 83, b"\x80", "reserved_not_zero", 78, "_reserved"),
    ("example", 84, b"\4", "truncated", 133, "buffers[3].byte_size"),
    ("example", 93, u32(32), "buffer_alignment_invalid", 93, "buffers[0].alignment"),
    ("example", 93, u32(0), "buffer_alignment_invalid", 93, "buffers[0].alignment"),
    ("example", 109, u32(96), "buffer_alignment_invalid", 109, "buffers[1].alignment"),
    ("example", 98, b"\1", "sync_mode_invalid", 98, "buffers[0].sync_mode"),
    ("example", 130, b"\3", "sync_mode_invalid", 130, "buffers[2].sync_mode"),
    ("example", 100, b"\1", "reserved_not_zero", 100, "buffers[0]._reserved"),
    ("example", 132, b"\1", "reserved_not_zero", 132, "buffers[2]._reserved"),
    ("example", 113, b"\1", "buffer_device_mismatch", 113, "buffers[1].device_tag"),
    ("example", 131, b"\2", "buffer_device_mismatch", 131, "buffers[2].memory_class"),
    ("private", 98, b"\3", "sync_mode_invalid", 98, "buffers[0].sync_mode"),
    ("private", 10, u32(0), "extension_flag_mismatch", 10, "flags"),
    ("private", 14, b"\x11", "extension_flag_mismatch", 10, "flags"),
    ("private", 133, u32(0), "extension_type_invalid", 133, "extension_type.bit_width"),
    ("private", 133, u32(6), "extension_type_invalid", 133, "extension_type.bit_width"),
    ("private", 133, u32(12), "extension_type_invalid", 133, "extension_type.bit_width"),
    ("private", 137, b"\2", "extension_type_invalid", 137, "extension_type.packing_factor"),
    ("private", 144, b"\1", "reserved_not_zero", 143, "extension_type._reserved"),
    ("private", 151, b"\1", "reserved_not_zero", 151, "extension_type._reserved2"),
    ("quantized", 165, u32(23), "quantization_length_invalid", 165, "quantization_length"),
    ("quantized", 165, u32(3), "quantization_length_invalid", 165, "quantization_length"),
    ("quantized", 165, u32(97), "quantization_length_invalid", 165, "quantization_length"),
    ("quantized", 165, u32(2**32 - 1), "quantization_length_invalid", 165, "quantization_length"),
    ("quantized", 169, b"\0", "quantization_scheme_invalid", 169, "quantization.scheme_tag"),
    ("quantized", 169, b"\x06", "quantization_scheme_invalid", 169, "quantization.scheme_tag"),
    ("quantized", 169, b"\xf1", "quantization_scheme_invalid", 169, "quantization.scheme_tag"),
    ("quantized", 170, b"\2", "quantization_version_unsupported", 170, "quantization.scheme_version"),
    ("quantized", 171, b"\2", "quantization_flags_reserved", 171, "quantization.flags"),
    ("quantized", 172, b"\x80", "quantization_flags_reserved", 171, "quantization.flags"),
    ("quantized", 171, b"\1", "quantization_zero_point_invalid", 185, "quantization.zero_point_buffer_index"),
    ("quantized", 173, u32(1), "quantization_axis_invalid", 173, "quantization.axis"),
    ("quantized", 177, u32(8), "quantization_block_size_invalid", 177, "quantization.block_size"),
    ("quantized", 52, u32(8), "quantization_block_size_invalid", 177, "quantization.block_size"),
    ("quantized", 181, u32(2), "quantization_buffer_index_invalid", 181, "quantization.scale_buffer_index"),
    ("quantized", 181, u32(5), "quantization_buffer_index_invalid", 181, "quantization.scale_buffer_index"),
    ("quantized", 185, u32(5), "quantization_buffer_index_invalid", 185, "quantization.zero_point_buffer_index"),
    ("quantized", 185, b"\xff" * 4, "quantization_zero_point_invalid", 185, "quantization.zero_point_buffer_index"),
    ("quantized", 189, b"\4", "quantization_scale_type_invalid", 189, "quantization.scale_type_tag"),
    ("quantized", 191, b"\1", "reserved_not_zero", 190, "quantization._reserved"),
    ("quantized", 193, u32(64), "statistics_invalid", 193, "statistics.computed_mask"),
    ("quantized", 197, b"\1", "reserved_not_zero", 197, "statistics._reserved"),
    ("quantized", 264, b"\1", "reserved_not_zero", 261, "statistics._reserved2"),
]
DESCRIPTORS = {"example": worked_example, "private": private, "quantized": quantized}


def overwritten(raw, offset, new):
    assert offset + len(new) <= len(raw)
    return raw[:offset] + new + raw[offset + len(new) :]


@pytest.mark.parametrize(("which", "at", "new", "expected"), [(*row[:3], row[3:]) for row in REFUSALS])
def test_refusal(which, at, new, expected):
    raw = DESCRIPTORS[which]().encode()
    assert BlockPagedDescriptor.decode(raw).encode() == raw
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(overwritten(raw, at, new))
    assert [(problem.code, problem.offset_bytes, problem.field) for problem in caught.value.problems] == [expected]
    assert (caught.value.offset_bytes, caught.value.field) == expected[1:]


@pytest.mark.parametrize(
    ("device", "sync", "memory", "code", "name"),
    [
        (9, 0, 0, "device_tag_invalid", "device_tag"),
        (0xEF, 0, 0, "device_tag_invalid", "device_tag"),
        (0xFF, 0, 0, "device_tag_invalid", "device_tag"),
        (1, 3, 0, "sync_mode_invalid", "sync_mode"),
        (0, 2, 0, "sync_mode_invalid", "sync_mode"),
        (0, 0, 3, "memory_class_invalid", "memory_class"),
        (1, 0, 4, "memory_class_invalid", "memory_class"),
        (1, 0, 0xFF, "memory_class_invalid", "memory_class"),
        (1, 0, 0xF0, "memory_class_invalid", "memory_class"),
    ],
)
def test_refused_place(device, sync, memory, code, name):
    raw = worked_example().encode()
    for index in range(3):
        raw = overwritten(raw, 85 + 16 * index + 12, bytes([device, sync, memory]))
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(raw)
    assert caught.value.codes == [code] * 3
    expected = [f"buffers[{index}].{name}" for index in range(3)]
    assert [problem.field for problem in caught.value.problems] == expected
    place = 12 + ["device_tag", "sync_mode", "memory_class"].index(name)
    assert [problem.offset_bytes for problem in caught.value.problems] == [85 + place, 101 + place, 117 + place]


@pytest.mark.parametrize(("device", "memory"), [(0, 1), (0, 2), (1, 3), (8, 0), (0xF0, 0), (0xFE, 0xF3), (0xF1, 3)])
def test_accepted_place(device, memory):
    descriptor = worked_example(buffers=handles(640, 12, 12, device_tag=device, memory_class=memory))
    assert BlockPagedDescriptor.decode(descriptor.encode()) == descriptor


def test_too_few_buffers():
    raw = worked_example().encode()
    raw = overwritten(overwritten(raw, 84, b"\2")[:117], 6, u32(117))
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(raw)
    assert (caught.value.codes, caught.value.offset_bytes) == (["buffer_count_too_small"], 84)


def test_no_buffers_at_all():
    raw = overwritten(overwritten(worked_example().encode(), 84, b"\0")[:85], 6, u32(85))
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(raw)
    assert caught.value.codes == ["buffer_count_too_small"]


def test_all_refusals_at_once_in_the_order_of_the_bytes():
    raw = quantized().encode()
    for offset, new in ((52, u32(0)), (72, b"\7"), (44, b"\1"), (93, u32(3)), (173, u32(2)), (14, b"\0")):
        raw = overwritten(raw, offset, new)
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(raw)
    assert [(problem.code, problem.offset_bytes) for problem in caught.value.problems] == [
        ("element_type_invalid", 14),
        ("byte_offset_not_zero", 44),
        ("page_size_invalid", 52),
        ("kv_role_invalid", 72),
        ("buffer_alignment_invalid", 93),
        ("quantization_axis_invalid", 173),
        ("quantization_block_size_invalid", 177),
    ]


@pytest.mark.parametrize("which", DESCRIPTORS)
def test_truncated_at_every_byte(which):
    raw = DESCRIPTORS[which]().encode()
    for length in range(len(raw)):
        with pytest.raises(WireFormatError) as caught:
            BlockPagedDescriptor.decode(raw[:length])
        assert caught.value.codes == ["truncated"], length
        # And where the header says that the shorter length is the whole one.
        if length >= 20:
            with pytest.raises(WireFormatError) as caught:
                BlockPagedDescriptor.decode(overwritten(raw[:length], 6, u32(length)))
            assert caught.value.codes[-1] in ("truncated", "quantization_length_invalid"), length
            assert caught.value.problems[-1].offset_bytes <= length


def test_bytes_after_the_descriptor():
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(WORKED_EXAMPLE + b"page")
    assert (caught.value.codes, caught.value.offset_bytes, caught.value.field) == (["trailing_data"], 133, "trailing")
    assert BlockPagedDescriptor.decode_prefix(WORKED_EXAMPLE + b"page") == (worked_example(), 133)


def test_bytes_after_the_last_section_of_minor_version_0():
    raw = overwritten(WORKED_EXAMPLE + b"later", 6, u32(138))
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(raw)
    assert (caught.value.codes, caught.value.offset_bytes, caught.value.field) == (["trailing_data"], 133, "trailing")


@pytest.mark.parametrize("minor", [1, 255])
def test_newer_minor_version_is_kept_without_loss(minor):
    raw = quantized().encode()
    # A scheme with three more bytes, and a section that nobody knows.
    raw = overwritten(raw[:193], 165, u32(27)) + b"abc" + raw[193:] + b"unknown"
    raw = overwritten(overwritten(raw, 5, bytes([minor])), 6, u32(len(raw)))
    descriptor = BlockPagedDescriptor.decode(raw)
    assert descriptor.version_minor == minor
    assert descriptor.quantization == PerBlock(0, 4, 3, 4, extra=b"abc")
    assert descriptor.statistics == quantized().statistics
    assert descriptor.trailing == b"unknown"
    assert descriptor.encode() == raw


def test_padded_quantization_section_of_minor_version_0_is_kept():
    raw = quantized().encode()
    raw = overwritten(raw[:193], 165, u32(26)) + b"\0\1" + raw[193:]
    raw = overwritten(raw, 6, u32(len(raw)))
    descriptor = BlockPagedDescriptor.decode(raw)
    assert descriptor.quantization == PerBlock(0, 4, 3, 4, extra=b"\0\1")
    assert descriptor.encode() == raw


@pytest.mark.parametrize(
    ("tag", "name"),
    [(1, "row-major"), (3, "strided"), (7, "CSR"), (9, "CSF"), (11, "composite"), (0x40, "Hilbert"), (0xF2, "private")],
)
def test_another_layout(tag, name):
    # The rest of a foreign descriptor is not ours to judge.
    raw = overwritten(WORKED_EXAMPLE, 15, bytes([tag]) + b"\xff" * 4)
    with pytest.raises(UnsupportedError, match=name):
        BlockPagedDescriptor.decode(raw)


def test_permissive_lets_the_paged_axis_pass():
    raw = overwritten(WORKED_EXAMPLE, 64, u32(2))
    descriptor = BlockPagedDescriptor.decode(raw, permissive=True)
    assert descriptor.paged_axis == 2
    assert [(problem.code, problem.field) for problem in descriptor.validate()] == [
        ("paged_axis_invalid", "paged_axis")
    ]
    assert descriptor.encode() == raw
    changed = dataclasses.replace(descriptor, layer_index=None)
    assert changed.permissive
    descriptor.check()
    with pytest.raises(InvalidDescriptorError):
        dataclasses.replace(descriptor, permissive=False)


@pytest.mark.parametrize(
    ("which", "at", "new", "expected"),
    [(*row[:3], row[3:]) for row in REFUSALS if row[3] != "paged_axis_invalid"],
)
def test_permissive_lets_nothing_else_pass(which, at, new, expected):
    with pytest.raises(WireFormatError) as caught:
        BlockPagedDescriptor.decode(overwritten(DESCRIPTORS[which]().encode(), at, new), permissive=True)
    assert [(problem.code, problem.offset_bytes, problem.field) for problem in caught.value.problems] == [expected]
    assert (caught.value.offset_bytes, caught.value.field) == expected[1:]


def test_statistics_keep_every_bit():
    bits = [0x7FF4DEADDEADBEEF, 0xFFF8000000000001, 0x8000000000000000, 1, 0xFFF0000000000000, 0x7FF8000000000000]
    section = struct.pack("<IIQ6Q4B4x", 63, 0, 2**64 - 1, *bits, 2, 4, 1, 7)
    raw = quantized().encode()[:193] + section
    descriptor = BlockPagedDescriptor.decode(raw)
    assert descriptor.encode() == raw
    assert descriptor == BlockPagedDescriptor.decode(raw)
    other = Statistics(*dataclasses.astuple(descriptor.statistics)[:4], 0.0)
    assert other != Statistics(*dataclasses.astuple(descriptor.statistics)[:4], -0.0)
    assert descriptor.statistics != 3


def test_statistics_that_are_known():
    known = Statistics.known(value_min=-1.5, value_max=2, value_abs_max=2.0, nm_n=2, nm_m=4)
    assert known.computed_mask == 0b010100
    assert known == Statistics.known(value_min=-1.5, value_max=2.0, value_abs_max=2.0, nm_n=2, nm_m=4)
    assert type(known.value_max) is float
    assert Statistics.known().computed_mask == 0
    assert Statistics.known(nnz=0).computed_mask == 1
    with pytest.raises(InvalidDescriptorError) as caught:
        Statistics.known(value_mean=1.0)
    assert caught.value.codes == ["statistics_invalid"]
    with pytest.raises(TypeError):
        Statistics.known(median=1.0)
    raw = worked_example(statistics=known).encode()
    assert raw[133:137] == b"\x14\0\0\0"
    assert struct.unpack("<3d", raw[157:181]) == (-1.5, 2.0, 2.0)


def test_private_flags_keep_the_producers_byte():
    raw = overwritten(private().encode(), 138, b"\7")
    descriptor = BlockPagedDescriptor.decode(raw)
    assert descriptor.element_type.private.is_float == 7
    assert descriptor.encode() == raw


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shape": (9, 2)}, [("rank_invalid", "rank")]),
        ({"shape": (-1, 2, 2**64)}, [("field_out_of_range", "shape[0]"), ("field_out_of_range", "shape[2]")]),
        ({"shape": (9, 2**64 - 1, 8)}, [("dynamic_dimension", "shape[1]")]),
        ({"page_size": 0}, [("page_size_invalid", "page_size")]),
        ({"page_size": 2**32}, [("page_size_invalid", "page_size")]),
        ({"num_pages": 2**64}, [("field_out_of_range", "num_pages")]),
        ({"num_pages": -1}, [("field_out_of_range", "num_pages")]),
        ({"num_seqs": 2**32}, [("field_out_of_range", "num_seqs")]),
        ({"layer_index": 2**32 - 1}, [("field_out_of_range", "layer_index")]),
        ({"layer_index": -1}, [("field_out_of_range", "layer_index")]),
        ({"kv_role": "keys"}, [("kv_role_invalid", "kv_role")]),
        ({"kv_role": 3}, [("kv_role_invalid", "kv_role")]),
        ({"index_type": "int32"}, [("index_type_invalid", "block_table_index_type")]),
        ({"index_type": 2}, [("index_type_invalid", "block_table_index_type")]),
        ({"paged_axis": 1}, [("paged_axis_invalid", "paged_axis")]),
        ({"buffers": handles(640, 12)}, [("buffer_count_too_small", "buffer_count")]),
        ({"buffers": handles(*[64] * 256)}, [("field_out_of_range", "buffer_count")]),
        ({"buffers": handles(640, 12, 2**64)}, [("field_out_of_range", "buffers[2].byte_size")]),
        ({"buffers": handles(640, 12, 0, alignment=1)[2:] * 3}, []),
        (
            {"buffers": (*handles(640, 12), BufferHandle(byte_size=12, alignment=2**32))},
            [("buffer_alignment_invalid", "buffers[2].alignment")],
        ),
        ({"version_major": 2}, [("version_unsupported", "version_major")]),
        ({"version_minor": 256}, [("field_out_of_range", "version_minor")]),
        ({"trailing": b"x"}, [("trailing_data", "trailing")]),
        ({"statistics": Statistics(64)}, [("statistics_invalid", "statistics.computed_mask")]),
        ({"statistics": Statistics(nm_n=256)}, [("field_out_of_range", "statistics.nm_n")]),
        (
            {"page_size": 0, "kv_role": "x", "num_seqs": -1, "quantization": PerTensor(0.0)},
            [
                ("page_size_invalid", "page_size"),
                ("field_out_of_range", "num_seqs"),
                ("kv_role_invalid", "kv_role"),
                ("quantization_scale_invalid", "quantization.scale"),
            ],
        ),
    ],
)
def test_construction_reports_everything(changes, expected):
    if not expected:
        worked_example(**changes)
        return
    with pytest.raises(InvalidDescriptorError) as caught:
        worked_example(**changes)
    assert [(problem.code, problem.field) for problem in caught.value.problems] == expected


@pytest.mark.parametrize(
    "scheme", [PerChannel(0, 3), PerBlock(0, 8, 3), PerChannel(1, 4), OpaqueScheme(5, 0, 8, 3), PerTensor(float("nan"))]
)
def test_broken_scheme_is_a_quantization_error(scheme):
    with pytest.raises(QuantizationError):
        worked_example(buffers=handles(640, 12, 12, 80), quantization=scheme)


def test_block_size_may_exceed_the_tokens():
    descriptor = worked_example(
        element_type="int8",
        page_size=16,
        buffers=handles(1280, 12, 12, 320),
        quantization=PerBlock(0, 16, 3),
    )
    assert descriptor.total_tokens == 9
    assert BlockPagedDescriptor.decode(descriptor.encode()) == descriptor


def test_extra_buffers_are_kept():
    # The reference implementation writes them, so they are carried; the layout gives them no meaning.
    descriptor = worked_example(buffers=handles(640, 12, 12, 5, 0, 7))
    assert BlockPagedDescriptor.decode(descriptor.encode()) == descriptor


def test_descriptor_is_immutable():
    descriptor = worked_example()
    with pytest.raises(dataclasses.FrozenInstanceError):
        descriptor.page_size = 8
    assert hash(descriptor) == hash(worked_example())
    assert dataclasses.replace(descriptor, page_size=8) != descriptor


@pytest.mark.parametrize("which", DESCRIPTORS)
def test_descriptor_travels_between_processes(which):
    descriptor = DESCRIPTORS[which]()
    again = pickle.loads(pickle.dumps(descriptor))  # noqa: S301 - our own bytes
    assert again == descriptor
    assert again.encode() == descriptor.encode()


def test_wrong_python_types_are_type_errors():
    for changes in ({"page_size": 4.0}, {"shape": (9, 2, "8")}, {"num_pages": None}):
        with pytest.raises(TypeError):
            worked_example(**changes)
