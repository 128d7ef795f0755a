"""A row per tensor: what its descriptor says, its sizes, how its pages are shared and filled.

Spec: wire format 1; block-paged layout, Prefix Sharing; snapshot format sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from hurray_arrow.descriptor import BlockPagedDescriptor
from hurray_arrow.elements import PrivateType
from hurray_arrow.schemes import Quantization
from hurray_arrow.sections import BufferHandle, Statistics
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.views.group_facts import GroupFacts
from hurray_arrow.views.view import KEY_FIELDS, View

_ROWS_AT_ONCE = 64

_SCHEME = pa.struct(
    [
        ("scheme_tag", pa.uint8()),
        ("scheme_version", pa.uint8()),
        ("axis", pa.uint32()),
        ("block_size", pa.uint32()),
        ("scale", pa.float32()),
        ("zero_point", pa.int32()),
        ("scale_buffer_index", pa.uint32()),
        ("zero_point_buffer_index", pa.uint32()),
        ("scale_type_tag", pa.uint8()),
        ("symmetric", pa.bool_()),
        ("extra", pa.binary()),
    ]
)
_STATISTICS = pa.struct(
    [
        ("computed_mask", pa.uint32()),
        ("nnz", pa.uint64()),
        ("sparsity_ratio", pa.float64()),
        ("value_min", pa.float64()),
        ("value_max", pa.float64()),
        ("value_abs_max", pa.float64()),
        ("value_mean", pa.float64()),
        ("value_stddev", pa.float64()),
        ("nm_n", pa.uint8()),
        ("nm_m", pa.uint8()),
        ("has_nan", pa.uint8()),
        ("has_inf", pa.uint8()),
    ]
)
#: The bit of computed_mask that says whether a statistic is known.
_STATISTIC_BITS = {
    "nnz": 0,
    "sparsity_ratio": 1,
    "value_min": 2,
    "value_max": 2,
    "value_abs_max": 2,
    "value_mean": 3,
    "value_stddev": 3,
    "nm_n": 4,
    "nm_m": 4,
    "has_nan": 5,
    "has_inf": 5,
}
_PRIVATE = pa.struct([(each.name, pa.uint32()) for each in fields(PrivateType)])
_BUFFERS = pa.list_(pa.struct([(each.name, pa.uint64()) for each in fields(BufferHandle)]))

#: From the index alone: nothing else is read for these.
_LISTED: dict[str, tuple[pa.DataType, Callable[[Entry], Any]]] = {
    "element_type": (pa.utf8(), lambda entry: entry.element_type),
    "page_size": (pa.uint32(), lambda entry: entry.page_shape[0]),
    "num_heads": (pa.uint64(), lambda entry: entry.page_shape[1]),
    "head_dim": (pa.uint64(), lambda entry: entry.page_shape[2]),
    "num_pages": (pa.uint64(), lambda entry: entry.num_pages),
    "num_seqs": (pa.uint32(), lambda entry: entry.num_seqs),
    "index_type": (pa.utf8(), lambda entry: entry.index_type),
    "encoding": (pa.utf8(), lambda entry: entry.encoding),
    "num_rows": (pa.uint32(), lambda entry: entry.num_rows),
    "stored_bytes": (pa.uint64(), lambda entry: entry.stored_bytes),
}
#: From the descriptor.
_DESCRIBED: dict[str, tuple[pa.DataType, Callable[[BlockPagedDescriptor], Any]]] = {
    "version_major": (pa.uint8(), lambda descriptor: descriptor.version_major),
    "version_minor": (pa.uint8(), lambda descriptor: descriptor.version_minor),
    "element_bits": (pa.uint32(), lambda descriptor: descriptor.element_type.bits),
    "private_type": (_PRIVATE, lambda descriptor: _private(descriptor.element_type.private)),
    "total_tokens": (pa.uint64(), lambda descriptor: descriptor.total_tokens),
    "paged_axis": (pa.uint32(), lambda descriptor: descriptor.paged_axis),
    "total_logical_pages": (pa.uint64(), lambda descriptor: descriptor.total_logical_pages),
    "buffers": (_BUFFERS, lambda descriptor: [_fields(each) for each in descriptor.buffers]),
    "quantization": (pa.utf8(), lambda descriptor: descriptor.quantization and descriptor.quantization.scheme),
    "quantization_fields": (_SCHEME, lambda descriptor: _scheme(descriptor.quantization)),
    "statistics": (_STATISTICS, lambda descriptor: _statistics(descriptor.statistics)),
    "trailing": (pa.binary(), lambda descriptor: descriptor.trailing),
    "page_bytes": (pa.uint64(), lambda descriptor: descriptor.element_type.page_bytes(descriptor.page_elems)),
    "pool_bytes": (pa.uint64(), lambda descriptor: descriptor.pool_bytes),
    "buffer_bytes": (pa.uint64(), lambda descriptor: sum(each.byte_size for each in descriptor.buffers)),
}
#: From the tables.
_COUNTED: dict[str, tuple[pa.DataType, Callable[[GroupFacts], Any]]] = {
    "referenced_pages": (pa.uint64(), lambda facts: facts.sequences_per_named_page.size),
    "unreferenced_pages": (pa.uint64(), lambda facts: facts.num_pages - facts.sequences_per_named_page.size),
    "shared_pages": (pa.uint64(), lambda facts: int(np.count_nonzero(facts.sequences_per_named_page > 1))),
    "sharing_ratio": (pa.float64(), lambda facts: _ratio(facts.table.size, facts.sequences_per_named_page.size)),
}


class TensorsView(View):
    """A row per tensor.

    ``sharing_ratio`` is table entries per page that is referenced, ``fill_ratio`` stored tokens per slot of the table
    entries; null where there are none. ``group_kind`` and ``window_tokens`` are the metadata's.

    Spec: wire format 1; snapshot format sections 2 to 4.
    """

    NAME = "tensors"

    @property
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""
        kinds = {name: kind for table in (_LISTED, _DESCRIBED, _COUNTED) for name, (kind, _) in table.items()}
        own = [pa.field(name, kind) for name, kind in kinds.items()]
        rest = [
            pa.field("fill_ratio", pa.float64()),
            pa.field("group_kind", pa.utf8()),
            pa.field("window_tokens", pa.uint64()),
        ]
        return pa.schema([*KEY_FIELDS, *own, *rest])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make batches of 64 tensors; the index is enough for some columns, and no column needs pages."""
        rows: list[dict[str, Any]] = []
        for row in self._rows():
            rows.append(row)
            if len(rows) == _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=self.schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def _rows(self) -> Iterator[dict[str, Any]]:
        groups = self.selection.snapshot.metadata.get("groups", [])
        if not self._wants([*_DESCRIBED, *_COUNTED, "fill_ratio"]):
            yield from (self._listed(entry, groups) for entry in self.selection.entries)
            return
        for entry, pages, facts in self.selection.opened(at_once=_ROWS_AT_ONCE):
            row, descriptor = self._listed(entry, groups), pages.tensor.descriptor
            row |= {name: say(descriptor) for name, (_, say) in _DESCRIBED.items() if name in self.columns}
            row |= {name: say(facts) for name, (_, say) in _COUNTED.items() if name in self.columns}
            row["fill_ratio"] = _ratio(descriptor.total_tokens, facts.table.size * descriptor.page_size)
            yield row

    def _listed(self, entry: Entry, groups: list[Mapping[str, Any]]) -> dict[str, Any]:
        group = groups[entry.kv_group] if entry.kv_group < len(groups) else {}
        row = {field.name: getattr(entry, field.name) for field in KEY_FIELDS}
        row |= {name: say(entry) for name, (_, say) in _LISTED.items()}
        window = group.get("window_tokens")
        return row | {"group_kind": group.get("kind"), "window_tokens": None if window is None else int(window)}


def _ratio(part: int, whole: Any) -> float | None:
    return part / int(whole) if whole else None


def _fields(record: Any) -> dict[str, int]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _private(private: PrivateType | None) -> dict[str, int] | None:
    return None if private is None else _fields(private)


def _scheme(quantization: Quantization | None) -> dict[str, Any] | None:
    return None if quantization is None else {each.name: getattr(quantization, each.name, None) for each in _SCHEME}


def _statistics(statistics: Statistics | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    mask = statistics.computed_mask
    known = {name: getattr(statistics, name) for name, bit in _STATISTIC_BITS.items() if mask >> bit & 1}
    return {"computed_mask": mask, **known}
