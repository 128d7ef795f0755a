"""The fields of a tensor, and what its descriptor says by itself.

Spec: block-paged layout, Buffer Table and Additional Descriptor Fields.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import ElementType
from hurray_arrow.errors import Problem
from hurray_arrow.intake import as_bytes
from hurray_arrow.quantization import Quantization
from hurray_arrow.sequences import Sequences
from hurray_arrow.spec import KV_ROLE_NAMES

Bytes: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[Any]

_COMPARED_AT_ONCE_BYTES = 2**24


class TensorFields:
    """What every part of :class:`hurray_arrow.tensor.BlockPagedTensor`, which sets the fields, stands on."""

    __slots__ = ()

    descriptor: BlockPagedDescriptor
    page_pool: npt.NDArray[Any]
    block_table: IndexArray
    seq_ptr: IndexArray
    quantization_buffers: tuple[Bytes, ...]
    sequences: Sequences
    layer_name: str | None
    component: str
    kv_group: int | None
    problems: tuple[Problem, ...]

    @property
    def element_type(self) -> ElementType:
        """The element type."""
        return self.descriptor.element_type

    @property
    def kv_role(self) -> str:
        """``key``, ``value`` or ``fused``."""
        return KV_ROLE_NAMES[self.descriptor.kv_role]

    @property
    def layer_index(self) -> int | None:
        """The layer; ``None`` where the tensor belongs to no layer."""
        return self.descriptor.layer_index

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self.descriptor.page_size

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.descriptor.num_pages

    @property
    def num_heads(self) -> int:
        """Heads."""
        return self.descriptor.num_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.descriptor.head_dim

    @property
    def num_seqs(self) -> int:
        """Sequences."""
        return self.descriptor.num_seqs

    @property
    def total_tokens(self) -> int:
        """Stored tokens of all sequences."""
        return self.descriptor.total_tokens

    @property
    def quantization(self) -> Quantization | None:
        """The quantization scheme, if any."""
        return self.descriptor.quantization

    @property
    def buffers(self) -> tuple[Bytes, ...]:
        """All buffers in the descriptor's order, as read-only uint8 views ``[bytes]``."""
        return (*map(as_bytes, (self.page_pool, self.block_table, self.seq_ptr)), *self.quantization_buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers together."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All buffers as the arrays that they are."""
        return (self.page_pool, self.block_table, self.seq_ptr, *self.quantization_buffers)

    def equals(self, other: TensorFields) -> bool:
        """Say whether both are the same tensor: descriptor bytes, every buffer byte, facts, layer_name, component.

        Bytes are compared and not numbers, so that NaN equals itself and 0.0 differs from -0.0.
        """
        return (
            (self.layer_name, self.component) == (other.layer_name, other.component)
            and self.descriptor.encode() == other.descriptor.encode()
            # An empty batch has no sequences to know anything of.
            and (self.num_seqs == 0 or self.sequences.equals(other.sequences))
            and all(map(_same_bytes, self.buffers, other.buffers))
        )

    def __repr__(self) -> str:
        # No values, token ids or tenants: these are secrets, and this goes into logs.
        layer = self.layer_name or ("no layer" if self.layer_index is None else f"layer {self.layer_index}")
        scheme = "" if self.quantization is None else f", {self.quantization.scheme}"
        component = "" if self.component == "values" else f" {self.component}"
        wrong = f", {len(self.problems)} problems" if self.problems else ""
        return (
            f"<BlockPagedTensor {self.kv_role}{component} of {layer}: {self.element_type}{scheme}, "
            f"{self.num_pages} pages [{self.page_size}, {self.num_heads}, {self.head_dim}], {self.num_seqs} sequences, "
            f"{self.total_tokens} tokens, {self.nbytes} bytes{wrong}>"
        )


def _same_bytes(one: Bytes, other: Bytes) -> bool:
    """Say whether two buffers hold the same bytes."""
    # In pieces, because numpy builds an array of the answers.
    step = _COMPARED_AT_ONCE_BYTES
    return one.size == other.size and all(
        np.array_equal(one[start : start + step], other[start : start + step]) for start in range(0, one.size, step)
    )
