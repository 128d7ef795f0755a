"""Descriptor bytes, and descriptors built from fields of any value: refused by type, or the same again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hurray_arrow import BlockPagedTensor, Statistics
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from tests.fuzz.choices import Choices
from tests.fuzz.limits import bounded, promise, refused

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors.json"
#: An input's first byte: bytes as they are, or a script over the fields of a good descriptor.
RAW, FIELDS = 0, 1
#: A tensor is built where its buffers are no larger than this in all.
_SMALL_BYTES = 1 << 16
_NUMBERS = ("page_size", "num_pages", "num_seqs", "layer_index", "version_major", "version_minor", "paged_axis")
_OF_A_HANDLE = ("byte_size", "alignment", "device_tag", "sync_mode", "memory_class")
_STATISTICS = tuple(each.name for each in fields(Statistics))


@cache
def _vectors() -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(each["hex"]) for each in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"])


@cache
def _chosen() -> tuple[bytes, ...]:
    """Return one descriptor of each size: with and without each section."""
    return tuple({len(vector): vector for vector in _vectors()}.values())


def seeds() -> Iterator[bytes]:
    """Yield the reference implementation's descriptors, a few of them with every byte changed, and scripts."""
    yield from (bytes([RAW]) + vector for vector in _vectors())
    for number, vector in enumerate(_chosen()):
        for place in range(len(vector)):
            changed = bytes([vector[place] ^ (1, 0x80, 0xFF)[place % 3]])
            yield bytes([RAW]) + vector[:place] + changed + vector[place + 1 :]
        yield bytes([RAW]) + vector + b"\0"
        for field in range(8):
            yield from (bytes([FIELDS, number, field, edge, edge, 3, edge, 1]) for edge in range(0, 256, 15))


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
        prefix = refused(lambda: BlockPagedDescriptor.decode_prefix(raw + b"\x55\xaa"))
        if strict is not None:
            promise(strict == permissive and prefix == (strict, len(raw)), "three ways of decoding differ")
            promise(strict.validate() == [], "a decoded descriptor breaks rules")
        if permissive is not None:
            promise(permissive.encode() == raw, "encoded bytes differ from the decoded ones")
            _used(permissive)


def _with_fields(choices: Choices) -> None:
    descriptor = BlockPagedDescriptor.decode(choices.pick(_chosen()))
    while choices.more:
        found = refused(lambda descriptor=descriptor: _replaced(descriptor, choices), TypeError, OverflowError)
        descriptor = descriptor if found is None else found
    promise(BlockPagedDescriptor.decode(descriptor.encode()) == descriptor, "a descriptor does not come back")
    _used(descriptor)


def _replaced(descriptor: BlockPagedDescriptor, choices: Choices) -> BlockPagedDescriptor:
    """Return the descriptor with a field of any value; what may not be is refused when it is made."""
    match choices.below(8):
        case 0 | 1:
            name = choices.pick(_NUMBERS)
            return replace(descriptor, **{name: choices.integer(getattr(descriptor, name) or 0)})
        case 2:
            sizes: list[Any] = list(descriptor.shape)
            sizes[choices.below(3)] = choices.integer(7)
            return replace(descriptor, shape=tuple(sizes[: 4 - choices.below(2)]))
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
    return replace(descriptor, kv_role=choices.below(5), index_type=choices.below(16))


def _used(descriptor: BlockPagedDescriptor) -> None:
    promise(isinstance(hash(descriptor), int) and repr(descriptor), "no hash")
    page_class = page_class_of(descriptor)
    promise(page_class.page_elems == descriptor.page_elems, "page elements differ")
    sizes = [handle.byte_size for handle in descriptor.buffers]
    if sum(sizes) > _SMALL_BYTES:
        return
    buffers = [np.zeros(size, np.uint8) for size in sizes]
    tensor = refused(lambda: BlockPagedTensor.from_buffers(descriptor, buffers))
    if tensor is not None:
        promise(tensor.validate() == [], "a tensor that was built breaks rules")
        promise([buffer.nbytes for buffer in tensor.buffers] == sizes, "buffers of other sizes")
