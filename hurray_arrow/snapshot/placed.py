"""A tensor with its place in the snapshot that is being written.

Spec: snapshot format, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.spec import INDEX_TYPE_NAMES
from hurray_arrow.tensor import BlockPagedTensor


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A checked tensor and where it goes.

    Parameters
    ----------
    tensor
        The tensor.
    tensor_index, kv_group
        Its place in snapshot order, and its group.
    with_tables
        Whether it carries block table and sequences; the later tensors of a kv_group do not.
    """

    tensor: BlockPagedTensor
    tensor_index: int
    kv_group: int
    with_tables: bool

    def index_row(self, encoding: str, **place: Any) -> IndexRow:
        """Return the index row of one of its rows; ``place`` has what depends on the row."""
        tensor, descriptor = self.tensor, self.tensor.descriptor
        values: dict[str, Any] = {
            "tensor_index": self.tensor_index,
            "layer_index": tensor.layer_index,
            "layer_name": tensor.layer_name,
            "kv_role": tensor.kv_role,
            "component": tensor.component,
            "kv_group": self.kv_group,
            "page_offset": 0,
            "num_pages": descriptor.num_pages,
            "num_seqs": descriptor.num_seqs,
            "element_type": descriptor.element_type.name,
            "page_shape": descriptor.page_shape,
            "encoding": encoding,
            "index_type": INDEX_TYPE_NAMES[descriptor.index_type],
        }
        return IndexRow(**values | place)
