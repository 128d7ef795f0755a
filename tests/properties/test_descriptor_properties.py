"""Descriptors of every kind round trip; broken bytes end in typed errors, and as the reference implementation says."""

from __future__ import annotations

import struct

import hurray
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle, Statistics
from hurray_arrow.elements import ELEMENT_TYPES, PrivateType, element_type
from hurray_arrow.errors import Problem, UnsupportedError, WireFormatError
from hurray_arrow.quantization import OpaqueScheme, PerBlock, PerChannel, PerTensor
from hurray_arrow.spec import Flag, IndexType, KvRole
from tests.conformance.differences import REFUSED_BY_US_ONLY, is_known

bits32 = st.integers(0, 2**32 - 1)
sizes = st.one_of(st.integers(0, 2**64 - 2), st.integers(0, 40))
float64 = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0])
byte = st.integers(0, 255)
extras = st.one_of(st.just(b""), st.binary(max_size=9))

private_types = st.builds(
    PrivateType,
    bit_width=st.one_of(st.sampled_from([1, 2, 4]), st.integers(1, 2**29 - 1).map(lambda n: 8 * n)),
    is_float=byte,
    is_signed=byte,
    sign_bits=byte,
    exponent_bits=byte,
    mantissa_bits=byte,
    exponent_bias=bits32,
    has_nan=byte,
    has_inf=byte,
)
element_types = st.one_of(
    st.sampled_from(sorted(ELEMENT_TYPES)).map(element_type),
    st.builds(lambda tag, private: element_type(tag, private=private), st.integers(0xF0, 0xFE), private_types),
)
statistics = st.one_of(
    st.none(),
    st.builds(
        Statistics,
        computed_mask=st.integers(0, 63),
        nnz=st.integers(0, 2**64 - 1),
        sparsity_ratio=float64,
        value_min=float64,
        value_max=float64,
        value_abs_max=float64,
        value_mean=float64,
        value_stddev=float64,
        nm_n=byte,
        nm_m=byte,
        has_nan=byte,
        has_inf=byte,
    ),
)


@st.composite
def quantizations(draw, page_size: int, buffer_count: int):
    """Any scheme that fits the page size and the buffers, or none."""
    extra = draw(extras)
    kinds = ["none", "per_tensor"]
    if buffer_count > 3:
        kinds += ["per_channel", "nf4", "mxfp"]
        if page_size >= 2 and page_size & (page_size - 1) == 0:
            kinds.append("per_block")
    index = st.integers(3, max(3, buffer_count - 1))
    zeros = draw(st.one_of(st.none(), index))
    match draw(st.sampled_from(kinds)):
        case "none":
            return None
        case "per_tensor":
            scale = draw(st.floats(width=32, allow_nan=False, allow_infinity=False).filter(bool))
            return PerTensor(scale, draw(st.integers(-(2**31), 2**31 - 1)), extra=extra)
        case "per_channel":
            return PerChannel(draw(st.sampled_from([1, 2])), draw(index), zeros, extra=extra)
        case "per_block":
            return PerBlock(0, page_size, draw(index), zeros, draw(st.sampled_from([1, 2, 3])), extra=extra)
        case "nf4":
            return OpaqueScheme(4, draw(st.integers(0, 2)), 2 ** draw(st.integers(3, 31)), draw(index), extra=extra)
    return OpaqueScheme(5, draw(st.integers(0, 2)), 2 ** draw(st.integers(4, 11)), draw(index), extra=extra)


@st.composite
def buffer_tables(draw):
    """Three or more handles on one device, whose memory class fits it."""
    device = draw(st.one_of(st.integers(0, 8), st.integers(0xF0, 0xFE)))
    classes = [0, 1, 2] + [3] * (device != 0) + [0xF0, 0xFE] * (device >= 0xF0)
    memory_class = draw(st.sampled_from(classes))
    handles = []
    for _ in range(draw(st.integers(3, 7))):
        size = draw(st.one_of(st.just(0), sizes))
        handles.append(
            BufferHandle(
                byte_size=size,
                alignment=2 ** draw(st.integers(6 if size else 0, 31)),
                device_tag=device,
                sync_mode=draw(st.integers(0, 2)) if device else 0,
                memory_class=memory_class,
            )
        )
    return tuple(handles)


@st.composite
def descriptors(draw):
    """Any valid descriptor."""
    page_size = draw(st.one_of(st.sampled_from([1, 2, 16, 2**31]), st.integers(1, 2**32 - 1)))
    buffers = draw(buffer_tables())
    minor = draw(st.sampled_from([0, 0, 1, 255]))
    return BlockPagedDescriptor(
        element_type=draw(element_types),
        shape=draw(st.tuples(sizes, sizes, sizes)),
        page_size=page_size,
        num_pages=draw(st.integers(0, 2**64 - 1)),
        num_seqs=draw(bits32),
        kv_role=draw(st.sampled_from(KvRole)),
        layer_index=draw(st.one_of(st.none(), st.integers(0, 2**32 - 2))),
        index_type=draw(st.sampled_from(IndexType)),
        buffers=buffers,
        quantization=draw(quantizations(page_size, len(buffers))),
        statistics=draw(statistics),
        version_minor=minor,
        trailing=draw(st.binary(max_size=20)) if minor else b"",
    )


def reference_accepts(raw: bytes) -> bool:
    try:
        hurray.Descriptor.decode(raw)
    except hurray.InvalidDescriptorError:
        return False
    return True


@given(descriptors(), st.binary(max_size=5))
def test_round_trip(descriptor, rest):
    raw = descriptor.encode()
    again = BlockPagedDescriptor.decode(raw)
    assert again == descriptor
    assert hash(again) == hash(descriptor)
    assert again.encode() == raw
    assert BlockPagedDescriptor.decode_prefix(raw + rest) == (descriptor, len(raw))
    assert reference_accepts(raw)


def is_kept_by_reference(descriptor: BlockPagedDescriptor) -> bool:
    # pyhurray writes bytes that stand for a boolean as 0 or 1 and drops what it does not know.
    private, known = descriptor.element_type.private, descriptor.statistics
    flags = [known.has_nan, known.has_inf] if known else []
    flags += [private.is_float, private.is_signed, private.has_nan, private.has_inf] if private else []
    return all(flag in (0, 1) for flag in flags) and not descriptor.trailing


@given(descriptors().filter(is_kept_by_reference))
def test_reference_encodes_the_same(descriptor):
    raw = descriptor.encode()
    assert hurray.Descriptor.decode(raw).encode() == raw


def check_against_reference(raw: bytes) -> str:
    """Decode broken bytes; return how they ended."""
    try:
        problems = problems_of(raw)
    except UnsupportedError:
        return "other layout"
    if not problems:
        assert BlockPagedDescriptor.decode(raw).encode() == raw
        assert reference_accepts(raw)
        return "accepted"
    for problem in problems:
        assert problem.offset_bytes is not None, problem
        assert 0 <= problem.offset_bytes <= len(raw), problem
        assert problem.field, problem
    if not reference_accepts(raw):
        return "refused"
    assert all(is_known(problem.code, problem.field) for problem in problems), problems
    return "refused by us only"


def problems_of(raw: bytes) -> tuple[Problem, ...]:
    try:
        BlockPagedDescriptor.decode(raw)
    except WireFormatError as error:
        return error.problems
    return ()


@settings(max_examples=300)
@given(descriptors(), st.data())
def test_mutated_bytes(descriptor, data):
    raw = bytearray(descriptor.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.one_of(byte, st.sampled_from([0, 1, 255])))
    check_against_reference(bytes(raw))


@given(descriptors(), st.data())
def test_cut_bytes(descriptor, data):
    raw = descriptor.encode()
    end = check_against_reference(raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert end in ("refused", "refused by us only")


@given(st.binary(max_size=300))
@example(b"")
@example(b"HRRY")
def test_any_bytes(raw):
    check_against_reference(raw)
    check_against_reference(b"HRRY\1\0" + struct.pack("<II", 10 + len(raw), Flag(0)) + raw)


def test_every_single_bit_flip():
    """Every bit of descriptors that together have every section; each listed difference is met."""
    ends: dict[str, int] = {}
    met = set()
    for raw in samples():
        for bit in range(8 * len(raw)):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            end = check_against_reference(bytes(flipped))
            ends[end] = ends.get(end, 0) + 1
            if end == "refused by us only":
                met |= {problem.code for problem in problems_of(bytes(flipped))}
    assert min(ends.values()) > 5, ends
    assert set(ends) == {"accepted", "refused", "refused by us only", "other layout"}
    # A rank takes eight more bytes, so it is not one flip away.
    assert {code for code, _, _ in REFUSED_BY_US_ONLY} - met == {"rank_invalid"}


def test_another_rank_is_refused_by_us_only():
    raw = next(samples())
    header = raw[:6] + struct.pack("<I", len(raw) + 8) + raw[10:16] + struct.pack("<I", 4)
    longer = header + raw[20:44] + struct.pack("<Q", 2) + raw[44:]
    assert check_against_reference(longer) == "refused by us only"
    assert [problem.code for problem in problems_of(longer)] == ["rank_invalid"]


def samples():
    """Descriptors that together have every section."""
    handles = tuple(BufferHandle(byte_size=size, device_tag=1) for size in (840, 16, 12, 112, 224))
    host = tuple(BufferHandle(byte_size=size, memory_class=1) for size in (840, 16, 12))
    common = {"shape": (11, 3, 5), "page_size": 8, "num_pages": 7, "num_seqs": 2, "kv_role": KvRole.VALUE}
    known = Statistics.known(nnz=1)
    private = element_type(0xF3, private=PrivateType(8))
    for scheme in (
        PerBlock(0, 8, 3, 4),
        PerBlock(0, 8, 3),
        PerChannel(1, 3),
        OpaqueScheme(4, 2, 64, 3),
        PerTensor(0.5),
    ):
        yield BlockPagedDescriptor(
            element_type=private, buffers=handles, quantization=scheme, statistics=known, **common
        ).encode()
    # One flip away from the dynamic dimension, and from a composite-member section that pyhurray reads.
    common["shape"] = (2**64 - 2, 3, 5)
    trailing = bytes(16) + b"xyz"
    kind = element_type("int8")
    yield BlockPagedDescriptor(element_type=kind, buffers=host, version_minor=1, trailing=trailing, **common).encode()
