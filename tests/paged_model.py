"""A paged cache as plain Python: which token of which sequence holds which bits, and what pages it takes.

Nothing here uses the package's own reading, gathering or table arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from hurray_arrow.quantization import PerBlock
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import expected_codes

#: Bits of one token in one tensor: its elements' codes, then its slot's parameters.
Token = tuple[tuple[int, ...], ...]
#: Position in the sequence → the token's bits in every tensor of the group.
Cache = list[dict[int, Token]]

_SCALE_BYTES = {0x01: 2, 0x02: 2, 0x03: 4}


def lengths(tensor: BlockPagedTensor) -> list[int]:
    """Stored tokens of every sequence, which all have to be known."""
    if tensor.num_seqs < 2:
        return [tensor.total_tokens] * tensor.num_seqs
    assert tensor.sequences.seq_lens is not None
    assert tensor.sequences.seq_lens_known is None
    return tensor.sequences.seq_lens.tolist()


def positions(tensor: BlockPagedTensor, seq: int) -> list[int]:
    """Position of every stored token of a sequence."""
    facts, size = tensor.sequences.page_positions, tensor.page_size
    starts = None if facts is None else facts[seq]
    return [t if starts is None else int(starts[t // size]) + t % size for t in range(lengths(tensor)[seq])]


def pages(tensor: BlockPagedTensor, seq: int) -> list[int]:
    """Page ids of a sequence."""
    return tensor.block_table.tolist()[int(tensor.seq_ptr[seq]) : int(tensor.seq_ptr[seq + 1])]


def slots(tensor: BlockPagedTensor, seq: int) -> list[int]:
    """Slot of the pool of every stored token of a sequence."""
    size, ids = tensor.page_size, pages(tensor, seq)
    return [ids[t // size] * size + t % size for t in range(lengths(tensor)[seq])]


def slot_parameters(tensor: BlockPagedTensor, slot: int) -> tuple[bytes, ...]:
    """Scale and zero point of a slot, as bytes out of the parameter buffers."""
    scheme = tensor.quantization
    if not isinstance(scheme, PerBlock):
        return ()
    width, total = _SCALE_BYTES[scheme.scale_type_tag], tensor.num_pages * tensor.page_size
    found = [bytes(tensor.buffers[scheme.scale_buffer_index])[slot * width : (slot + 1) * width]]
    index = scheme.zero_point_buffer_index
    if index is not None:
        offset = total * width if index == scheme.scale_buffer_index else 0
        found.append(bytes(tensor.buffers[index])[offset + slot * 4 : offset + (slot + 1) * 4])
    return tuple(found)


def tokens_of(tensor: BlockPagedTensor, seq: int) -> list[tuple]:
    """Bits of every stored token of a sequence in one tensor."""
    count = lengths(tensor)[seq]
    codes, width = expected_codes(tensor, seq, count), tensor.num_heads * tensor.head_dim
    where = slots(tensor, seq)
    return [(tuple(codes[t * width : (t + 1) * width]), *slot_parameters(tensor, where[t])) for t in range(count)]


def cache_of(group: Sequence[BlockPagedTensor]) -> Cache:
    """Read a group of tensors into the model."""
    first = group[0]
    columns = [[tokens_of(tensor, seq) for tensor in group] for seq in range(first.num_seqs)]
    return [
        dict(zip(positions(first, seq), zip(*columns[seq], strict=True), strict=True)) for seq in range(first.num_seqs)
    ]


def chunks(items: list, size: int) -> list[list]:
    """Cut a list into pieces, the last of them maybe shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def has_hole(where: list[int], page_size: int) -> bool:
    """Say whether pages of this size, filled one after the other, would hold a hole."""
    return any(chunk[-1] - chunk[0] != len(chunk) - 1 for chunk in chunks(where, page_size))


def distinct_pages(rows: list[tuple]) -> int:
    """Count pages that are needed: none twice, and none that is the beginning of another."""
    distinct = set(rows)
    return sum(not any(other != row and other[: len(row)] == row for other in distinct) for row in distinct)
