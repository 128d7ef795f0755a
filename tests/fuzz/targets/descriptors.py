"""Descriptor bytes, and descriptors built from fields of any value: refused by type, or the same again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hurray_arrow import BlockPagedTensor, ElementType, PerBlock, PrivateType, Statistics, element_type
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.quantization import decode_quantization
from tests.fuzz.choices import EDGES, Choices
from tests.fuzz.limits import bounded, look_at_values, promise, refused
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors.json"
#: An input's first byte: bytes as they are, or a script over the fields of a good descriptor.
RAW, FIELDS = 0, 1
#: A tensor is built where its buffers are no larger than this in all.
_SMALL_BYTES = 1 << 16
_NUMBERS = ("page_size", "num_pages", "num_seqs", "layer_index", "version_major", "version_minor", "paged_axis")
_OF_A_HANDLE = ("byte_size", "alignment", "device_tag", "sync_mode", "memory_class")
_STATISTICS = tuple(each.name for each in fields(Statistics))
#: How many kinds of changes a script over fields has.
_EDITS = 11
#: Numbers of EDGES that fields meet their bounds at.
_BOUNDS = (0, 1, 3, 6, 9, 12, 13, 22, 25, 27, 33, 34, 35, 38)


@cache
def _vectors() -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(each["hex"]) for each in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"])


@cache
def _chosen() -> tuple[bytes, ...]:
    """Return one descriptor of each size: with and without each section."""
    return tuple({len(vector): vector for vector in _vectors()}.values())


@cache
def _bases() -> tuple[bytes, ...]:
    """Return the same, and small ones of every element type and of every scheme."""
    sizes: dict[str, Any] = {"num_pages": 4, "page_size": 4, "num_heads": 2, "head_dim": 3}
    facts: dict[str, Any] = {**sizes, "block_tables": [[3, 1], [2]], "seq_lens": [5, 3]}
    made = [make_tensor(element_type=name, **facts) for name in ALL_ELEMENT_TYPES]
    for scheme in SCHEMES[1:]:
        made += [make_tensor(element_type=name, quantization=scheme, **facts) for name in ("int8", "int4", "int64")]
    return (*_chosen(), *(tensor.descriptor.encode() for tensor in made))


def seeds() -> Iterator[bytes]:
    """Yield the reference implementation's descriptors, a few of them with every byte changed, and scripts."""
    yield from (bytes([RAW]) + vector for vector in _vectors())
    for number, vector in enumerate(_chosen()):
        for place in range(len(vector)):
            changed = bytes([vector[place] ^ (1, 0x80, 0xFF)[place % 3]])
            yield bytes([RAW]) + vector[:place] + changed + vector[place + 1 :]
        yield bytes([RAW]) + vector + b"\0"
        for name in range(6):
            yield from (bytes([FIELDS, number, 7, name, edge]) for edge in _BOUNDS)
        for field in range(_EDITS):
            yield from (bytes([FIELDS, number, field, edge, edge, 3, edge, 1]) for edge in range(0, 256, 15))
    for edge in range(len(EDGES)):
        yield from (bytes([FIELDS, 0, 3, 0, name, edge]) for name in range(len(_OF_A_HANDLE)))
        yield from (bytes([FIELDS, 0, 2, edge, axis, axis % 2]) for axis in range(3))
        yield from (bytes([FIELDS, number, 8, edge]) for number in range(len(_chosen())))
    # A private memory class, on the CPU and on a private device.
    private = [bytes([3, 0, name, 230, 0xF1, *[0] * 8]) for name in (2, 4)]
    yield from (bytes([FIELDS, 0]) + edits for edits in (private[1], private[0] + private[1]))
    vector = _chosen()[0]
    for place in range(24):
        for changed in (0, *(vector[place] ^ 1 << bit for bit in range(8))):
            yield bytes([RAW]) + vector[:place] + bytes([changed]) + vector[place + 1 :]
    for number, vector in enumerate(_bases()):
        yield bytes([FIELDS, number])
        scheme = BlockPagedDescriptor.decode(vector).quantization
        yield from [bytes([RAW]) + scheme.encode()] if scheme is not None else []


def run(data: bytes) -> None:
    """Decode strictly, permissively and as a prefix; what is decoded encodes to the same bytes."""
    choices = Choices(data)
    if choices.below(2) == FIELDS:
        with bounded(len(data)):
            _with_fields(choices)
        return
    raw = choices.rest()
    with bounded(len(raw)):
        strict = refused(lambda: BlockPagedDescriptor.decode(raw))
        permissive = refused(lambda: BlockPagedDescriptor.decode(raw, permissive=True))
        refused(lambda: decode_quantization(raw))
        prefix = refused(lambda: BlockPagedDescriptor.decode_prefix(raw + b"\x55\xaa"))
        if strict is not None:
            promise(strict == permissive and prefix == (strict, len(raw)), "three ways of decoding differ")
            promise(strict.validate() == [], "a decoded descriptor breaks rules")
        if permissive is not None:
            promise(permissive.encode() == raw, "encoded bytes differ from the decoded ones")
            _used(permissive)


def _with_fields(choices: Choices) -> None:
    descriptor = BlockPagedDescriptor.decode(choices.pick(_bases()))
    while choices.more:
        found = refused(lambda descriptor=descriptor: _replaced(descriptor, choices), TypeError, OverflowError)
        descriptor = descriptor if found is None else found
    promise(BlockPagedDescriptor.decode(descriptor.encode()) == descriptor, "a descriptor does not come back")
    _used(descriptor)


def _replaced(descriptor: BlockPagedDescriptor, choices: Choices) -> BlockPagedDescriptor:
    """Return the descriptor with a field of any value; what may not be is refused when it is made."""
    match choices.below(_EDITS):
        case 0 | 1:
            name = choices.pick(_NUMBERS)
            return replace(descriptor, **{name: choices.integer(getattr(descriptor, name) or 0)})
        case 2:
            sizes: list[Any] = list(descriptor.shape)
            sizes[choices.below(3)] = choices.integer(7)
            return replace(descriptor, shape=tuple(sizes[: 3 - choices.below(2)]))
        case 3:
            handles = list(descriptor.buffers)
            place, name = choices.below(len(handles)), choices.pick(_OF_A_HANDLE)
            handles[place] = replace(handles[place], **{name: choices.integer(getattr(handles[place], name))})
            return replace(descriptor, buffers=tuple(handles * choices.pick((1, 1, 1, 99))))
        case 4:
            given = {choices.pick(_STATISTICS): choices.integer(1) for _ in range(1 + choices.below(3))}
            made = Statistics(**given) if choices.flag() else Statistics.known(**given)
            promise(made == made and made != 1 and hash(made) == hash(made), "statistics are not themselves")  # noqa: PLR0124
            return replace(descriptor, statistics=made)
        case 5:
            return replace(descriptor, element_type=choices.pick(("int4", "uint8", "bfloat16", "bool", "complex128")))
        case 6:
            return replace(descriptor, trailing=choices.chunk(choices.below(4)), version_minor=choices.below(3))
        case 8 if isinstance(descriptor.quantization, PerBlock):
            size = choices.integer(4)
            return replace(descriptor, page_size=size, quantization=replace(descriptor.quantization, block_size=size))
        case 7 | 8 if descriptor.quantization is not None:
            scheme = descriptor.quantization
            name = choices.pick([each.name for each in fields(scheme) if each.name != "extra"])
            old = getattr(scheme, name)
            return replace(descriptor, quantization=replace(scheme, **{name: choices.integer(old or 0)}))
        case 9:
            kind = PrivateType(choices.pick((1, 2, 4, 8, 16, 3, 0, 300)), *(choices.integer(1) for _ in range(2)))
            return replace(descriptor, element_type=element_type(0xF1, private=kind))
        case 10:
            private = choices.pick((None, PrivateType(16), PrivateType(300)))
            refused(lambda: element_type(choices.pick((0xF1, 0x01)), private=private))
            refused(lambda: element_type(descriptor.element_type, private=private))
            made_up = ElementType(choices.pick((0x01, 0xF1, 0x7F)), "x", choices.pick((16, 8, 0)), private)
            return replace(descriptor, element_type=made_up)
    return replace(descriptor, kv_role=choices.below(5), index_type=choices.below(16))


def _used(descriptor: BlockPagedDescriptor) -> None:
    promise(isinstance(hash(descriptor), int) and repr(descriptor), "no hash")
    page_class = page_class_of(descriptor)
    promise(page_class.page_elems == descriptor.page_elems, "page elements differ")
    sizes = [handle.byte_size for handle in descriptor.buffers]
    if sum(sizes) > _SMALL_BYTES:
        return
    for filled, first in ((0, 0), (0x33, 0), (0, 1)):
        # The tables name page 0 for one sequence, whatever is in the pool and in a scheme's parameters.
        buffers = [np.full(size, 0 if number in (1, 2) else filled, np.uint8) for number, size in enumerate(sizes)]
        table, seq_ptr = (buffer[: len(buffer) // 8 * 8].view(descriptor.index_dtype) for buffer in buffers[1:3])
        seq_ptr[:1], seq_ptr[-1:] = first, len(table)
        tensor = refused(lambda buffers=buffers: BlockPagedTensor.from_buffers(descriptor, buffers))
        if tensor is None:
            continue
        promise(tensor.validate() == [], "a tensor that was built breaks rules")
        promise([buffer.nbytes for buffer in tensor.buffers] == sizes, "buffers of other sizes")
        look_at_values(tensor)
