"""Tensors with their place in the snapshot that is being written.

Spec: snapshot format, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hurray_arrow.arrow.row_batches import check_table_storage
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.errors import InvariantError, Problem, ProblemCode
from hurray_arrow.snapshot.groups import Groups
from hurray_arrow.snapshot.index import IndexRow, TensorKey
from hurray_arrow.spec import INDEX_TYPE_NAMES
from hurray_arrow.tensor import BlockPagedTensor

#: What tells tensors of one kv_group apart.
_NAMED = ("layer_index", "layer_name", "kv_role", "component")


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

    @property
    def key(self) -> TensorKey:
        """The tensor's key, unique in the snapshot."""
        tensor = self.tensor
        return (self.kv_group, tensor.layer_index, tensor.layer_name, tensor.kv_role, tensor.component)

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


class Placing:
    """Give tensors their place one after another, and refuse those that have none.

    Parameters
    ----------
    plan
        What the snapshot declared before its first row.
    """

    def __init__(self, plan: SchemaPlan) -> None:
        self._plan = plan
        self._groups = Groups()
        self._keys: set[TensorKey] = set()

    def place(self, tensor: BlockPagedTensor) -> PlacedTensor:
        """Check a tensor and return it with its place, which it takes when :meth:`keep` is called.

        Raises
        ------
        InvariantError
            The tensor breaks the specification; ``tensor_key_duplicate``; ``kv_group_mismatch``: its kv_group has other
            tables or sequences.
        UnsupportedError
            Its page class or table width was not declared.
        """
        tensor.check()
        self._plan.column_of(self._plan.page_class_of(tensor.descriptor))
        kv_group, is_first = self._groups.place(tensor)
        placed = PlacedTensor(tensor, len(self._keys), kv_group, is_first)
        if placed.key in self._keys:
            raise InvariantError(self._duplicate(placed))
        check_table_storage(tensor, self._plan.table_storage)
        return placed

    def _duplicate(self, placed: PlacedTensor) -> Problem:
        named = zip(("kv_group", *_NAMED), placed.key, strict=True)
        key = ", ".join(f"{name} {value!r}" for name, value in named if value is not None)
        message = f"a tensor with {key} is already written; {', '.join(_NAMED)} tell them apart"
        return Problem(ProblemCode.TENSOR_KEY_DUPLICATE, f"tensor {len(self._keys)}", message)

    def keep(self, placed: PlacedTensor) -> None:
        """Count a tensor as written."""
        self._groups.keep(placed.kv_group, placed.tensor)
        self._keys.add(placed.key)
