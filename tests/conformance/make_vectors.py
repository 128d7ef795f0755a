"""Write ``vectors.json``: descriptors as the reference implementation (pyhurray) writes them.

Run from the repository's root, with pyhurray installed::

    python tests/conformance/make_vectors.py

The file holds each element type with each scheme, the other axes turning along; :func:`full_matrix` is the whole
product, which the tests build when they run. A case is plain JSON: what was asked for, never what our code decodes.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hurray

VECTORS = Path(__file__).with_name("vectors.json")

# All different, so that two swapped fields cannot look right; page_size is a power of two for scheme 0x03.
TOKENS, HEADS, HEAD_DIM, PAGE_SIZE, PAGES, SEQS, LOGICAL_PAGES = 11, 3, 5, 8, 7, 2, 4

ELEMENT_TYPES = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float8_e4m3",
    "float8_e5m2",
    "float8_e8m0",
    "float4_e2m1",
    "float6_e2m3",
    "float6_e3m2",
    "float128",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "complex64",
    "complex128",
]
#: Private types by tag: the arguments of the extension-type section.
PRIVATE_TYPES: dict[int, dict[str, Any]] = {
    0xF0: {"bit_width": 1},
    0xF1: {"bit_width": 2, "is_signed": True},
    0xF3: {"bit_width": 4},
    0xF5: {"bit_width": 8, "is_float": True, "sign_bits": 1, "exponent_bits": 4, "mantissa_bits": 3},
    0xF7: {"bit_width": 24, "is_float": True, "exponent_bits": 11, "mantissa_bits": 13, "has_nan": True},
    0xFE: {"bit_width": 80, "is_float": True, "sign_bits": 1, "exponent_bias": 16383, "has_nan": True, "has_inf": True},
}
TYPES: list[str | int] = [*ELEMENT_TYPES, *PRIVATE_TYPES]

#: Scheme and its arguments; the sizes of the parameter buffers follow from them.
SCHEMES: list[dict[str, Any] | None] = [
    None,
    {"scheme": "per_tensor", "scale": -0.0078125, "zero_point": -3},
    {"scheme": "per_tensor", "scale": 1.401298464324817e-45, "zero_point": 2147483647},
    {"scheme": "per_channel", "axis": 1, "scale_buffer_index": 3},
    {"scheme": "per_channel", "axis": 2, "scale_buffer_index": 4, "zero_point_buffer_index": 3},
    {"scheme": "per_channel", "axis": 1, "scale_buffer_index": 3, "zero_point_buffer_index": 3},
    {"scheme": "per_block", "scale_buffer_index": 3, "scale_type": "float16"},
    {"scheme": "per_block", "scale_buffer_index": 4, "zero_point_buffer_index": 3, "scale_type": "bfloat16"},
    {"scheme": "per_block", "scale_buffer_index": 3, "zero_point_buffer_index": 3, "scale_type": "float32"},
    {"scheme": "nf4", "axis": 2, "block_size": 64, "scale_buffer_index": 3},
    {"scheme": "mxfp", "axis": 0, "block_size": 32, "scale_buffer_index": 3},
]
#: Statistics; floats as the hex of their eight bytes, so that a NaN keeps its payload in JSON.
STATISTICS: list[dict[str, Any] | None] = [
    None,
    {"nnz": 2**63 + 1, "nm_n": 2, "nm_m": 4},
    {
        "sparsity_ratio": "000000000000d03f",
        "value_min": "010000000000f4ff",
        "value_max": "efbeaddeaddef47f",
        "value_abs_max": "000000000000f07f",
        "value_mean": "0000000000000080",
        "value_stddev": "0100000000000000",
        "has_nan": True,
        "has_inf": False,
    },
]
FLOATS = ("sparsity_ratio", "value_min", "value_max", "value_abs_max", "value_mean", "value_stddev")
ROLES = ("key", "value", "fused")
INDEX_TYPES = ("uint32", "uint64")
LAYERS = (None, 0, 31, 2**32 - 2)
DEVICES = {"cpu": 0, "cuda": 1, "rocm": 2, "metal": 3, "vulkan": 4, "webgpu": 5, "hexagon": 6, "level_zero": 7}
DEVICES["opencl"] = 8
MEMORY_CLASSES = {"standard": 0, "host_pinned": 1, "unified": 2, "peer": 3}


def case(**changes: Any) -> dict[str, Any]:
    """Return what to build."""
    return {
        "element_type": "float16",
        "shape": [TOKENS, HEADS, HEAD_DIM],
        "page_size": PAGE_SIZE,
        "num_pages": PAGES,
        "num_seqs": SEQS,
        "kv_role": "key",
        "layer_index": 3,
        "index_type": "uint32",
        "quantization": None,
        "statistics": None,
        "device": "cpu",
        "memory_class": "standard",
        "sync_mode": 0,
    } | changes


def full_matrix() -> Iterator[dict[str, Any]]:
    """Yield element type × index type × scheme × kv_role × statistics."""
    axes = itertools.product(TYPES, INDEX_TYPES, SCHEMES, ROLES, STATISTICS)
    for number, (element, index_type, scheme, role, statistics) in enumerate(axes):
        yield case(
            element_type=element,
            index_type=index_type,
            quantization=scheme,
            kv_role=role,
            statistics=statistics,
            layer_index=LAYERS[number % len(LAYERS)],
        )


def devices() -> Iterator[dict[str, Any]]:
    """Yield every device with every memory class and sync mode, without CPU and peer, which never pair."""
    for device, memory_class, sync_mode in itertools.product(DEVICES, MEMORY_CLASSES, (0, 1, 2)):
        if device == "cpu" and (memory_class == "peer" or sync_mode):
            continue
        yield case(device=device, memory_class=memory_class, sync_mode=sync_mode, element_type="bfloat16")


def shapes() -> Iterator[dict[str, Any]]:
    """Yield the empty and the odd ones."""
    yield case(num_seqs=0, shape=[0, HEADS, HEAD_DIM])
    yield case(num_pages=0, shape=[0, HEADS, HEAD_DIM])
    yield case(shape=[TOKENS, 0, HEAD_DIM], element_type="int4")
    yield case(shape=[TOKENS, HEADS, 0], index_type="uint64")
    yield case(page_size=1, num_pages=13, element_type="float6_e2m3")
    yield case(page_size=2**31 + 1, num_pages=0, element_type="uint2")


def stored() -> Iterator[dict[str, Any]]:
    """Yield the cases of the file: each element type with each scheme, the other axes turning along."""
    for number, (element, scheme) in enumerate(itertools.product(TYPES, SCHEMES)):
        yield case(
            element_type=element,
            quantization=scheme,
            index_type=INDEX_TYPES[number // 3 % 2],
            kv_role=ROLES[number % 3],
            statistics=STATISTICS[number // 2 % 3],
            layer_index=LAYERS[number % 4],
        )
    yield from devices()
    yield from shapes()


def float_of(text: str) -> float:
    """Return the float whose eight bytes are written in hex."""
    return struct.unpack("<d", bytes.fromhex(text))[0]


def buffer_sizes(wanted: dict[str, Any]) -> list[int]:
    """Return the sizes in bytes of the buffers 0, 1, 2, …"""
    _, heads, head_dim = wanted["shape"]
    pool_elems = wanted["num_pages"] * wanted["page_size"] * heads * head_dim
    index_bytes = 8 if wanted["index_type"] == "uint64" else 4
    logical = LOGICAL_PAGES if wanted["num_seqs"] and wanted["num_pages"] else 0
    element = wanted["element_type"]
    if isinstance(element, int):
        pool_bytes = hurray.ExtensionType(**PRIVATE_TYPES[element]).buffer_size_bytes(pool_elems)
    else:
        pool_bytes = hurray.buffer_size_bytes(getattr(hurray.dtype, element), pool_elems)
    sizes = [pool_bytes, logical * index_bytes, (wanted["num_seqs"] + 1) * index_bytes]
    scheme = wanted["quantization"]
    if scheme is None or scheme["scheme"] == "per_tensor":
        return sizes
    count = wanted["shape"][scheme["axis"]] if scheme["scheme"] == "per_channel" else wanted["num_pages"] * PAGE_SIZE
    parameters = dict.fromkeys(range(3, scheme["scale_buffer_index"] + 1), 0)
    parameters[scheme["scale_buffer_index"]] += count * (2 if scheme.get("scale_type", "float32") != "float32" else 4)
    if "zero_point_buffer_index" in scheme:
        parameters[scheme["zero_point_buffer_index"]] += count * 4
    return sizes + [parameters[index] for index in sorted(parameters)]


def quantization(scheme: dict[str, Any] | None) -> Any:
    """Return pyhurray's scheme."""
    if scheme is None:
        return None
    scales, zeros = scheme.get("scale_buffer_index"), scheme.get("zero_point_buffer_index")
    if scheme["scheme"] == "per_tensor":
        return hurray.PerTensorAffine(scheme["scale"], scheme["zero_point"])
    if scheme["scheme"] == "per_channel":
        if zeros is None:
            return hurray.PerChannelAffine.symmetric(scheme["axis"], scales)
        return hurray.PerChannelAffine.asymmetric(scheme["axis"], scales, zeros)
    if scheme["scheme"] == "per_block":
        scale_type = getattr(hurray.dtype, scheme["scale_type"])
        if zeros is None:
            return hurray.PerBlockAffine.symmetric(0, PAGE_SIZE, scales, scale_type)
        return hurray.PerBlockAffine.asymmetric(0, PAGE_SIZE, scales, zeros, scale_type)
    kind = {"nf4": hurray.NF4, "mxfp": hurray.MXFP}[scheme["scheme"]]
    return kind(scheme["axis"], scheme["block_size"], scales)


def tensor(wanted: dict[str, Any]) -> hurray.Tensor:
    """Return pyhurray's tensor of a case, its buffers all zeros."""
    element = wanted["element_type"]
    private = isinstance(element, int)
    sizes = buffer_sizes(wanted)
    statistics = wanted["statistics"]
    if statistics is not None:
        values = {name: float_of(value) if name in FLOATS else value for name, value in statistics.items()}
        statistics = hurray.Statistics(**values)
    return hurray.Tensor(
        bytes(sizes[0]),
        hurray.Dtype.from_tag(element) if private else getattr(hurray.dtype, element),
        wanted["shape"],
        hurray.Device(wanted["device"], memory_class=wanted["memory_class"]),
        aux_buffers=[bytes(size) for size in sizes[1:]],
        layout=hurray.BlockPagedLayout(
            page_size=wanted["page_size"],
            num_pages=wanted["num_pages"],
            paged_axis=0,
            num_seqs=wanted["num_seqs"],
            kv_role=wanted["kv_role"],
            layer_index=wanted["layer_index"],
            block_table_index_type=wanted["index_type"],
        ),
        quantization=quantization(wanted["quantization"]),
        statistics=statistics,
        extension_type=hurray.ExtensionType(**PRIVATE_TYPES[element]) if private else None,
    )


def build(wanted: dict[str, Any]) -> bytes:
    """Return the descriptor's bytes as pyhurray writes them."""
    raw = bytearray(tensor(wanted).descriptor.encode())
    if wanted["sync_mode"]:
        # Python's door of pyhurray has no sync mode, so it goes in as bytes and through decode and encode.
        for index in range(len(buffer_sizes(wanted))):
            raw[85 + 16 * index + 13] = wanted["sync_mode"]
        raw = bytearray(hurray.Descriptor.decode(bytes(raw)).encode())
    return bytes(raw)


def document() -> str:
    """Return the text of the file."""
    vectors = [json.dumps({"hex": build(wanted).hex(), "case": wanted}) for wanted in stored()]
    provenance = {
        "made_by": "tests/conformance/make_vectors.py",
        "reference": f"pyhurray {version('pyhurray')} (module hurray)",
        "how": "hurray.Tensor(…).descriptor.encode(); a sync mode goes through hurray.Descriptor.decode(…).encode()",
        "count": len(vectors),
    }
    lines = ",\n".join(vectors)
    return f'{{"provenance": {json.dumps(provenance, ensure_ascii=False)},\n"vectors": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    VECTORS.write_text(document(), encoding="utf-8")
    sys.stdout.write(f"{VECTORS.name}: {VECTORS.stat().st_size} bytes\n")
