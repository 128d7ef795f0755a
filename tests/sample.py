"""Sample tensors that are asymmetric in every way, for all tests to share.

7 pages of 5 slots (4 for the per-block scheme, which needs a power of two), 3 heads, 11 dims, 4 sequences: the first
has a partial last page, the second is empty, the third shares page 5 with the first and the fourth shares page 2 with
it; nobody names pages 1, 3 and 4. Bytes are random and repeatable, and float pools begin with NaN payloads and -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hurray_arrow.elements import ELEMENT_TYPES, ElementType, PrivateType, element_type
from hurray_arrow.quantization import OpaqueScheme, PerBlock, PerChannel, PerTensor, Quantization
from hurray_arrow.sequences import MediaSpan
from hurray_arrow.tensor import BlockPagedTensor

NUM_PAGES, PAGE_SIZE, NUM_HEADS, HEAD_DIM = 7, 5, 3, 11
BLOCK_TABLES = ([5, 2, 6], [], [5, 0], [2])
UNREFERENCED = (1, 3, 4)
SHARED = (2, 5)

#: One private type of each kind of width: packed 8, 4 and 2 to a byte, one byte, and bytes that are no power of two.
PRIVATE_TYPES = {
    f"private_0x{tag:02X}": element_type(tag, private=PrivateType(bits, exponent_bits=1, exponent_bias=tag))
    for tag, bits in ((0xF0, 1), (0xF1, 2), (0xF2, 4), (0xF7, 8), (0xFE, 24))
}
ALL_ELEMENT_TYPES = {**ELEMENT_TYPES, **PRIVATE_TYPES}
INDEX_TYPES = ("uint32", "uint64")
#: Every scheme, with both shapes of zero points: none, a buffer of their own, and the scales' buffer.
SCHEMES = (
    "none",
    "per_tensor",
    "per_channel_heads",
    "per_channel_dims",
    "per_block",
    "per_block_zero_points",
    "per_block_one_buffer",
    "nf4",
    "mxfp",
)


def seq_lens_of(page_size: int) -> list[int]:
    """Lengths that fit BLOCK_TABLES: a partial last page, nothing, whole pages, a page but for one slot."""
    return [2 * page_size + (page_size + 1) // 2, 0, 2 * page_size, page_size - 1]


def random_pool(element: ElementType, *, num_pages: int, page_shape: Sequence[int], seed: int = 11) -> np.ndarray:
    """Random bytes as a pool of the element type: any bit pattern, but no unused bit set."""
    elems = num_pages * int(np.prod(page_shape))
    rng = np.random.default_rng([seed, element.tag])
    raw = rng.integers(0, 256, element.size_bytes(elems), dtype=np.uint8)
    used = elems * element.bits
    raw[-(-used // 8) :] = 0
    if used % 8:
        raw[used // 8] &= (1 << used % 8) - 1
    if element.is_packed:
        return raw
    pool = raw.view(element.pool_dtype)
    if element.name in ("float16", "bfloat16", "float32", "float64") and elems >= 3:
        width = element.bits // 8
        quiet_nan, signaling_nan = b"\xfe" * (width - 2) + b"\xff\x7f", b"\x01" + b"\x00" * (width - 3) + b"\x81\xff"
        specials = [quiet_nan, signaling_nan[-width:], b"\x00" * (width - 1) + b"\x80"]
        raw[: 3 * width] = np.frombuffer(b"".join(specials), np.uint8)
    return pool.reshape(num_pages, *page_shape)


def scheme(
    name: str, *, page_size: int, shape: Sequence[int], num_pages: int, seed: int = 13
) -> tuple[Quantization | None, list[Any]]:
    """Return a quantization scheme and its parameter buffers, by one of the names in SCHEMES."""
    rng = np.random.default_rng(seed)

    def scales(count: int) -> np.ndarray:
        return rng.uniform(0.01, 3, count).astype(np.float32)

    def zero_points(count: int) -> np.ndarray:
        return rng.integers(-9, 9, count, dtype=np.int32)

    slots = num_pages * page_size
    heads, dims = shape[1:]
    match name:
        case "none":
            return None, []
        case "per_tensor":
            return PerTensor(0.37, -3), []
        case "per_channel_heads":
            return PerChannel(1, 3, 4), [scales(heads), zero_points(heads)]
        case "per_channel_dims":
            return PerChannel(2, 3), [scales(dims)]
        case "per_block":
            return PerBlock(0, page_size, 3, scale_type_tag=0x01), [scales(slots).astype(np.float16)]
        case "per_block_zero_points":
            return PerBlock(0, page_size, 4, 3), [zero_points(slots), scales(slots)]
        case "per_block_one_buffer":
            return PerBlock(0, page_size, 3, 3), [scales(slots).tobytes() + zero_points(slots).tobytes()]
        case "nf4":
            return OpaqueScheme(0x04, 2, 8, 3), [rng.integers(0, 256, 19, dtype=np.uint8)]
        case "mxfp":
            return OpaqueScheme(0x05, 2, 16, 3), [rng.integers(0, 256, 23, dtype=np.uint8)]
    raise ValueError(name)


def make_tensor(
    *,
    element_type: str | ElementType = "bfloat16",
    index_type: str = "uint32",
    quantization: str = "none",
    num_pages: int = NUM_PAGES,
    page_size: int | None = None,
    num_heads: int = NUM_HEADS,
    head_dim: int = HEAD_DIM,
    seed: int = 11,
    **overrides: Any,
) -> BlockPagedTensor:
    """Build a sample tensor; ``overrides`` go to ``BlockPagedTensor.from_arrays``.

    ``quantization`` is one of SCHEMES, ``element_type`` one of ALL_ELEMENT_TYPES or an ElementType.
    """
    element = element_type if isinstance(element_type, ElementType) else ALL_ELEMENT_TYPES[element_type]
    if page_size is None:
        page_size = 4 if quantization.startswith("per_block") else PAGE_SIZE
    page_shape = (page_size, num_heads, head_dim)
    how, parameters = scheme(quantization, page_size=page_size, shape=(0, num_heads, head_dim), num_pages=num_pages)
    arguments: dict[str, Any] = {
        "block_tables": BLOCK_TABLES,
        "seq_lens": seq_lens_of(page_size),
        "kv_role": "value",
        "layer_index": 17,
        "index_type": index_type,
        "quantization": how,
        "quantization_buffers": parameters,
        "element_type": element,
    }
    if element.is_packed:
        arguments |= {"page_shape": page_shape, "num_pages": num_pages}
    for given, instead_of in (("block_table", "block_tables"), ("sequences", "seq_lens")):
        if given in overrides:
            del arguments[instead_of]
    if "page_pool" not in overrides:
        overrides["page_pool"] = random_pool(element, num_pages=num_pages, page_shape=page_shape, seed=seed)
    return BlockPagedTensor.from_arrays(**{**arguments, **overrides})


def sample_facts(page_size: int = PAGE_SIZE) -> dict[str, Any]:
    """Every fact about the sequences of a sample tensor, each unknown for at least one of them."""
    lens = seq_lens_of(page_size)
    rng = np.random.default_rng(29)
    return {
        "seq_lens": lens,
        "ids": ["s-a", None, "s-c", "ß-d"],
        "token_ids": [rng.integers(0, 2**32, lens[0], dtype=np.uint32), [], None, list(range(lens[3]))],
        "page_positions": [[0, 3 * page_size, 5 * page_size + 1], None, None, [2 * page_size]],
        "adapter": [None, None, "lora-7", "lora-3"],
        "tenant": ["t1", "t2", None, "t2"],
        "media": [None, (), [MediaSpan(1, 2, "sha256:aa"), MediaSpan(3, 1, "sha256:bb")], None],
    }


def element_code(tensor: BlockPagedTensor, flat: int) -> int:
    """Return the bits of one element of the pool as an integer, worked out without the package's own unpacking."""
    bits = tensor.element_type.bits
    whole = int.from_bytes(tensor.buffers[0].tobytes(), "little")
    return whole >> flat * bits & ((1 << bits) - 1)


def codes_of(values: np.ndarray, bits: int) -> list[int]:
    """Return values as gather gives them as the integers that their bits are."""
    raw = np.ascontiguousarray(values).tobytes()
    width = max(bits // 8, 1)
    return [int.from_bytes(raw[i : i + width], "little") & ((1 << bits) - 1) for i in range(0, len(raw), width)]


def expected_codes(tensor: BlockPagedTensor, seq: int, tokens: int) -> list[int]:
    """Return the codes of a sequence's tokens by the specification's formula in a plain loop."""
    bits = tensor.element_type.bits
    mask = (1 << bits) - 1
    whole = int.from_bytes(tensor.buffers[0].tobytes(), "little")
    width = tensor.num_heads * tensor.head_dim
    codes = []
    for t in range(tokens):
        phys_page = int(tensor.block_table[int(tensor.seq_ptr[seq]) + t // tensor.page_size])
        first = (phys_page * tensor.page_size + t % tensor.page_size) * width
        codes += [whole >> flat * bits & mask for flat in range(first, first + width)]
    return codes
