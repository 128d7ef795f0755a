"""Our descriptor against the bytes that the reference implementation writes."""

from __future__ import annotations

import json
from typing import Any

import hurray
import pytest

from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle, Statistics
from hurray_arrow.elements import ELEMENT_TYPES, PrivateType, element_type
from hurray_arrow.quantization import OpaqueScheme, PerBlock, PerChannel, PerTensor
from tests.conformance import make_vectors

DOCUMENT = json.loads(make_vectors.VECTORS.read_text(encoding="utf-8"))
VECTORS = DOCUMENT["vectors"]
SCALE_TAGS = {"float16": 1, "bfloat16": 2, "float32": 3}


def our_quantization(scheme: dict[str, Any] | None) -> Any:
    if scheme is None:
        return None
    arguments = {name: value for name, value in scheme.items() if name != "scheme"}
    match scheme["scheme"]:
        case "per_tensor":
            return PerTensor(**arguments)
        case "per_channel":
            return PerChannel(**arguments)
        case "per_block":
            tag = SCALE_TAGS[arguments.pop("scale_type")]
            return PerBlock(axis=0, block_size=make_vectors.PAGE_SIZE, scale_type_tag=tag, **arguments)
    return OpaqueScheme({"nf4": 4, "mxfp": 5}[scheme["scheme"]], **arguments)


def ours(case: dict[str, Any]) -> BlockPagedDescriptor:
    """Build the case with our own constructors, from what was asked of pyhurray."""
    element = case["element_type"]
    private = PrivateType(**make_vectors.PRIVATE_TYPES[element]) if isinstance(element, int) else None
    statistics = case["statistics"]
    if statistics is not None:
        values = {
            name: make_vectors.float_of(value) if name in make_vectors.FLOATS else value
            for name, value in statistics.items()
        }
        statistics = Statistics.known(**values)
    handles = tuple(
        BufferHandle(
            byte_size=size,
            alignment=64 if size else 1,
            device_tag=make_vectors.DEVICES[case["device"]],
            memory_class=make_vectors.MEMORY_CLASSES[case["memory_class"]],
            sync_mode=case["sync_mode"],
        )
        for size in make_vectors.buffer_sizes(case)
    )
    return BlockPagedDescriptor(
        element_type=element_type(element, private=private),
        shape=tuple(case["shape"]),
        page_size=case["page_size"],
        num_pages=case["num_pages"],
        num_seqs=case["num_seqs"],
        kv_role=case["kv_role"],
        layer_index=case["layer_index"],
        index_type=case["index_type"],
        buffers=handles,
        quantization=our_quantization(case["quantization"]),
        statistics=statistics,
    )


def assert_same(case: dict[str, Any], raw: bytes) -> None:
    built = ours(case)
    assert built.encode() == raw, case
    decoded = BlockPagedDescriptor.decode(raw)
    assert decoded == built, case
    assert decoded.encode() == raw, case
    assert decoded.buffers[0].byte_size == decoded.pool_bytes, case


def test_corpus_is_whole():
    assert len(VECTORS) == DOCUMENT["provenance"]["count"] == 32 * 11 + (3 + 8 * 4 * 3) + 6
    assert {vector["case"]["element_type"] for vector in VECTORS} == {*ELEMENT_TYPES, *make_vectors.PRIVATE_TYPES}
    schemes = {(vector["case"]["quantization"] or {}).get("scheme") for vector in VECTORS}
    assert schemes == {None, "per_tensor", "per_channel", "per_block", "nf4", "mxfp"}
    assert len({vector["hex"] for vector in VECTORS}) == len(VECTORS), "two vectors are the same"


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_vector(number):
    assert_same(VECTORS[number]["case"], bytes.fromhex(VECTORS[number]["hex"]))


def test_pyhurray_still_writes_the_corpus():
    assert json.loads(make_vectors.document())["vectors"] == VECTORS


def test_full_matrix_in_both_directions():
    count = 0
    for case in make_vectors.full_matrix():
        raw = make_vectors.build(case)
        assert_same(case, raw)
        assert hurray.Descriptor.decode(ours(case).encode()).encode() == raw, case
        count += 1
    assert count == 32 * 2 * 11 * 3 * 3
