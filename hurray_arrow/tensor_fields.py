"""The fields of a tensor, and what its descriptor says by itself.

Spec: block-paged layout, Buffer Table and Additional Descriptor Fields.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import ElementType
from hurray_arrow.intake import as_bytes
from hurray_arrow.quantization import Quantization
from hurray_arrow.sequences import Sequences
from hurray_arrow.spec import KV_ROLE_NAMES

Bytes: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[Any]


class TensorFields:
    """What every part of :class:`hurray_arrow.tensor.BlockPagedTensor`, which sets the fields, stands on."""

    __slots__ = ()

    descriptor: BlockPagedDescriptor
    page_pool: npt.NDArray[Any]
    block_table: IndexArray
    seq_ptr: IndexArray
    quantization_buffers: tuple[Bytes, ...]
    sequences: Sequences

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
