"""What a copy of a snapshot will be, before any page is read: its schema, its sizes, its metadata.

Every operation decides by tables alone where pages go, so a tensor without bytes goes through it first, one per
kv_group.

Spec: snapshot format, sections 2 and 3; operations as of :mod:`hurray_arrow.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hurray_arrow import ops
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.rows import Tables
from hurray_arrow.arrow.schema import SchemaPlan, table_storage_name
from hurray_arrow.elements import ELEMENT_TYPES, ElementType
from hurray_arrow.ops.select import Positions, Which
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.sets import SnapshotSet
from hurray_arrow.spec import UINT32_MAX, IndexType
from hurray_arrow.tensor import BlockPagedTensor

Source: TypeAlias = Snapshot | SnapshotSet

#: What a copy says anew.
OF_THE_FILE = ("id", "created", "producer", "profile", "page_align_bytes", "requires", "partial")
#: Groups whose pages are no runs of tokens; repaging leaves them as they are.
_NO_RUNS_OF_TOKENS = ("state", "opaque")


@dataclass(frozen=True, slots=True)
class Steps:
    """What happens to every tensor on the way.

    Parameters
    ----------
    sequences, tokens, repage, sanitize
        As of :func:`~hurray_arrow.snapshot.transform.copy_snapshot`.
    """

    sequences: Which | Sequence[Which] | None
    tokens: Positions
    repage: int | None
    sanitize: bool

    @property
    def selects(self) -> bool:
        """Whether sequences or tokens are chosen."""
        return self.sequences is not None or self.tokens is not None

    def selected(self, tensor: BlockPagedTensor) -> BlockPagedTensor:
        """Return what is chosen of a tensor, compact: a copy must not hold the pages of others' sequences."""
        return ops.compact(ops.select(tensor, self.sequences, tokens=self.tokens)) if self.selects else tensor

    def relaid(self, tensor: BlockPagedTensor, *, repage: int | None) -> BlockPagedTensor:
        """Return what was chosen in pages of another size and sanitized, where that is asked for."""
        if repage is not None:
            tensor = ops.repage(tensor, repage)
        return ops.sanitize(tensor) if self.sanitize else tensor


@dataclass(frozen=True, slots=True)
class _Copied:
    """A tensor of the copy, without its tables."""

    element_type: ElementType
    page_shape: tuple[int, int, int]
    num_pages: int

    @property
    def page_bytes(self) -> int:
        page_size, num_heads, head_dim = self.page_shape
        return self.element_type.size_bytes(self.num_pages * page_size * num_heads * head_dim)

    def page_class(self, encoding: str) -> PageClass:
        return PageClass(self.element_type.name, self.element_type.bits, self.page_shape).encoded(encoding)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What the copy's tensors will be.

    Parameters
    ----------
    tensors
        In snapshot order.
    table_storage
        Of the copy's schema.
    page_sizes
        New page sizes of the groups that are repaged.
    """

    tensors: tuple[_Copied, ...]
    table_storage: str
    page_sizes: Mapping[int, int]

    @classmethod
    def of(cls, source: Source, entries: Sequence[Entry], steps: Steps) -> CopyPlan:
        """Plan the copy of some tensors of a snapshot or a set.

        Raises
        ------
        LookupError, InvariantError, UnknownSequenceLengthError
            As the operations say, before anything is written.
        """
        groups = source.metadata.get("groups", [])
        first = {entry.kv_group: entry for entry in reversed(entries)}
        page_sizes = {
            kv_group: steps.repage
            for kv_group in first
            if steps.repage is not None
            and (kv_group >= len(groups) or groups[kv_group].get("kind") not in _NO_RUNS_OF_TOKENS)
        }
        relaid = {
            kv_group: steps.relaid(
                steps.selected(without_bytes(entry, source.group_tables(kv_group))), repage=page_sizes.get(kv_group)
            )
            for kv_group, entry in first.items()
        }
        tensors = []
        for entry in entries:
            tables = relaid[entry.kv_group]
            page_shape = (tables.page_size, *entry.page_shape[1:])
            tensors.append(_Copied(_element_type(source, entry), page_shape, tables.num_pages))
        wide = any(entry.index_type == "uint64" for entry in entries)
        wide = wide or any(tensor.num_pages > UINT32_MAX for tensor in relaid.values())
        entries_of = [len(tensor.block_table) for tensor in relaid.values()]
        storage = table_storage_name([IndexType.UINT64 if wide else IndexType.UINT32], entries_of)
        return cls(tuple(tensors), storage, page_sizes)

    @property
    def num_pages(self) -> int:
        """Pages of all tensors."""
        return sum(tensor.num_pages for tensor in self.tensors)

    @property
    def page_bytes(self) -> int:
        """Bytes of all pages, before any encoding."""
        return sum(tensor.page_bytes for tensor in self.tensors)

    def schema_plan(self, encoding: str) -> SchemaPlan:
        """Return what the copy's schema decides."""
        classes = dict.fromkeys(tensor.page_class(encoding) for tensor in self.tensors)
        return SchemaPlan(
            tuple(page_class for page_class in classes if page_class.fits_a_column), self.table_storage, encoding
        )


def copied_metadata(source: Source, entries: Sequence[Entry], *, page_sizes: Mapping[int, int]) -> dict[str, Any]:
    """Return the metadata of a copy, unknown keys included: what the copy says anew is left out.

    Parameters
    ----------
    source
        What is copied.
    entries
        The tensors that are copied: ``groups`` then lists no layer that was left out.
    page_sizes
        New page sizes of groups.
    """
    metadata = {key: value for key, value in source.metadata.items() if key not in OF_THE_FILE}
    if "groups" not in metadata:
        return metadata
    kept = {(entry.kv_group, entry.layer_name) for entry in entries}
    left_out = {(entry.kv_group, entry.layer_name) for entry in source.entries} - kept
    metadata["groups"] = groups = [dict(group) for group in metadata["groups"]]
    for kv_group, group in enumerate(groups):
        if "layer_names" in group:
            group["layer_names"] = [name for name in group["layer_names"] if (kv_group, name) not in left_out]
        if "page_size" in group and kv_group in page_sizes:
            group["page_size"] = page_sizes[kv_group]
    return metadata


def without_bytes(entry: Entry, tables: Tables) -> BlockPagedTensor:
    """Return a tensor of a group's tables, checked, whose pages take no memory.

    Raises
    ------
    InvariantError
        The tables break the specification.
    """
    return BlockPagedTensor.from_arrays(
        np.empty((entry.num_pages, entry.page_shape[0], 1, 0), np.uint8),
        tables.block_table.astype(np.uint64),
        tables.seq_ptr.astype(np.uint64),
        sequences=tables.sequences,
        # Where lengths are not known nobody asks for their sum: operations on tokens are refused then.
        total_tokens=tables.sequences.recorded_tokens(),
        kv_role="fused",
    )


def _element_type(source: Source, entry: Entry) -> ElementType:
    if entry.element_type in ELEMENT_TYPES:
        return ELEMENT_TYPES[entry.element_type]
    # What a private type is stands in the descriptor.
    holder = source if isinstance(source, Snapshot) else source.first_holder(entry)
    match = next(each for each in holder.entries if each.key == entry.key)
    return holder.checked_tensor(match)[0].element_type
