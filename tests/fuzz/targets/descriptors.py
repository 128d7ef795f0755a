"""Descriptor bytes: refused by type, or the same bytes again, and a tensor where the sizes allow one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hurray_arrow import BlockPagedTensor
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.descriptor import BlockPagedDescriptor
from tests.fuzz.limits import bounded, promise, refused

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors.json"
#: A tensor is built where its buffers are no larger than this in all.
_SMALL_BYTES = 1 << 16


def seeds() -> Iterator[bytes]:
    """Yield the reference implementation's descriptors, and a few of them with every byte changed."""
    vectors = [bytes.fromhex(each["hex"]) for each in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]]
    yield from vectors
    # By their sizes: with and without each section.
    chosen = {len(vector): vector for vector in vectors}
    for vector in chosen.values():
        for place in range(len(vector)):
            yield vector[:place] + bytes([vector[place] ^ (1, 0x80, 0xFF)[place % 3]]) + vector[place + 1 :]


def run(data: bytes) -> None:
    """Decode strictly, permissively and as a prefix; what is decoded encodes to the same bytes."""
    with bounded(len(data)):
        strict = refused(lambda: BlockPagedDescriptor.decode(data))
        permissive = refused(lambda: BlockPagedDescriptor.decode(data, permissive=True))
        prefix = refused(lambda: BlockPagedDescriptor.decode_prefix(data + b"\x55\xaa"))
        if strict is not None:
            promise(strict == permissive and prefix == (strict, len(data)), "three ways of decoding differ")
            promise(strict.validate() == [], "a decoded descriptor breaks rules")
        if permissive is None:
            return
        promise(permissive.encode() == data, "encoded bytes differ from the decoded ones")
        promise(isinstance(hash(permissive), int) and repr(permissive), "no hash")
        page_class = page_class_of(permissive)
        promise(page_class.page_elems == permissive.page_elems, "page elements differ")
        _tensor(permissive)


def _tensor(descriptor: BlockPagedDescriptor) -> None:
    sizes = [handle.byte_size for handle in descriptor.buffers]
    if sum(sizes) > _SMALL_BYTES:
        return
    buffers = [np.zeros(size, np.uint8) for size in sizes]
    tensor = refused(lambda: BlockPagedTensor.from_buffers(descriptor, buffers))
    if tensor is not None:
        promise(tensor.validate() == [], "a tensor that was built breaks rules")
        promise([buffer.nbytes for buffer in tensor.buffers] == sizes, "buffers of other sizes")
