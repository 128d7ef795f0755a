"""A row per tensor and physical page: who refers to it, how full it is, what it holds.

Spec: block-paged layout, Prefix Sharing and Partial trailing page; snapshot format section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.snapshot.archive_rows import MAX_ROW_BYTES
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.views.group_facts import UNKNOWN, GroupFacts
from hurray_arrow.views.selection import Selection
from hurray_arrow.views.values import (
    Int64Array,
    Scratch,
    check_mode,
    check_numbers,
    float32_pages,
    raw_layout,
    raw_pages,
    tensor_array,
    tensor_type,
)
from hurray_arrow.views.view import KEY_FIELDS, View, key_makers, with_nulls

#: Bytes of values in a batch, counted as float32.
BATCH_BYTES = 8 << 20
#: Bytes of pages that are fetched at a time where the file is not mapped.
WINDOW_BYTES = 64 << 20
_ROWS_AT_ONCE = 1 << 16
#: Tensors whose small columns are fetched together.
TENSORS_AT_ONCE = 8

_FIELDS = (
    pa.field("page_id", pa.uint64()),
    pa.field("references", pa.uint64()),
    pa.field("sequences", pa.uint64()),
    pa.field("first_sequence", pa.uint32()),
    pa.field("fill_tokens", pa.uint32()),
)


class PagesView(View):
    """A row per tensor and physical page; with a filter on sequences, the pages that those name.

    ``references`` counts the table entries that name the page, ``sequences`` the sequences, ``first_sequence`` is the
    first of them, ``fill_tokens`` the slots that hold a token of some sequence (null where lengths are not known).

    Parameters
    ----------
    selection, columns
        As of :class:`View`.
    values
        ``"raw"``: stored values; bits as unsigned integers for float16, bfloat16, float8 and types narrower than a
        byte; floats in pairs for complex ones, bytes for opaque ones. ``"float32"``: decoded, and dequantized where
        the tensor has a scheme. Both as ``arrow.fixed_shape_tensor`` ``[page_size, num_heads, head_dim]``.

    Raises
    ------
    UnsupportedError
        The tensors selected have pages of several shapes or types, or values of which there are no numbers; a page of
        no elements or of more than 2³¹ − 1; ``values="float16"`` or ``"fixed_size_binary"``, which tools mishandle.

    Spec: block-paged layout, Prefix Sharing.
    """

    NAME = "pages"

    def __init__(
        self,
        selection: Selection,
        *,
        columns: Iterable[str] | None = None,
        values: Literal["raw", "float32"] | None = None,
    ) -> None:
        check_mode(self.NAME, values, ("raw", "float32"))
        self.values = values
        self._type = _values_type(selection, values)
        super().__init__(selection, columns=columns)

    @property
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""
        values = [] if self._type is None else [pa.field("values", self._type)]
        return pa.schema([*KEY_FIELDS, *_FIELDS, *values])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make batches of about 8 MiB of values, or of 65,536 pages without."""
        if not self._wants(["values"]):
            for entry in self.selection.entries:
                facts = self.selection.facts(entry)
                ids = self._page_ids(entry, facts)
                for start in range(0, len(ids), _ROWS_AT_ONCE):
                    yield self._batch(_makers(entry, facts, ids[start : start + _ROWS_AT_ONCE]))
            return
        scratch = Scratch()
        for entry, pages, facts in self.selection.opened(at_once=TENSORS_AT_ONCE):
            step = max(1, BATCH_BYTES // (4 * pages.tensor.descriptor.page_elems))
            for window in windows(self._page_ids(entry, facts), pages.tensor):
                tensor = pages.read(window)
                for start in range(0, len(window), step):
                    ids = window[start : start + step]
                    values = {"values": lambda tensor=tensor, ids=ids: self._values(tensor, ids, scratch)}
                    yield self._batch({**_makers(entry, facts, ids), **values})

    def _page_ids(self, entry: Entry, facts: GroupFacts) -> Int64Array:
        start, stop = self.page_range or (0, facts.listed_pages)
        if self.selection.places is None:
            return np.arange(start, stop)
        rows = [facts.page_ids(sequence) for sequence in self.selection.places_of(entry, facts)]
        ids: Int64Array = np.unique(np.concatenate([*rows, facts.table[:0]]))
        return ids[(ids >= start) & (ids < stop)]

    def _values(self, tensor: BlockPagedTensor, page_ids: Int64Array, scratch: Scratch) -> pa.Array:
        raw = self.values == "raw"
        pages = raw_pages(tensor, page_ids) if raw else float32_pages(tensor, page_ids, scratch)
        return tensor_array(pages, self._type)


def windows(page_ids: Int64Array, tensor: BlockPagedTensor) -> Iterator[Int64Array]:
    """Cut ascending page ids where rows of an archive may end too, so that no row is decoded twice."""
    page_bytes = max(1, tensor.element_type.size_bytes(tensor.descriptor.page_elems))
    row_pages = max(1, MAX_ROW_BYTES // page_bytes)
    in_window = max(1, WINDOW_BYTES // (row_pages * page_bytes)) * row_pages
    numbers = page_ids // in_window
    for part in np.split(page_ids, np.flatnonzero(np.diff(numbers)) + 1):
        if len(part):
            yield part


def _makers(entry: Entry, facts: GroupFacts, ids: Int64Array) -> dict[str, Callable[[], Any]]:
    def nullable(counts: Int64Array) -> pa.Array:
        return with_nulls(counts[ids], counts[ids] == UNKNOWN, pa.uint32())

    return {
        **key_makers(entry, len(ids)),
        "page_id": lambda: ids,
        "references": lambda: facts.references[ids],
        "sequences": lambda: facts.sequences_per_page[ids],
        "first_sequence": lambda: nullable(facts.first_sequence),
        "fill_tokens": lambda: nullable(facts.fill_tokens),
    }


def _values_type(selection: Selection, values: str | None) -> pa.DataType | None:
    if values is None:
        return None
    if values == "float32":
        check_numbers("pages", selection.entries)
        return tensor_type("pages", np.dtype(np.float32), [entry.page_shape for entry in selection.entries])
    kinds = sorted({entry.element_type for entry in selection.entries})
    if len(kinds) > 1:
        raise UnsupportedError(
            f"pages: the tensors selected are of the types {', '.join(kinds)}, and a column of raw values has one: "
            f"select some with component=, kv_group=, layer_index= or kv_role="
        )
    dtype, tail = _layout(selection) if kinds else (np.dtype(np.float32), ())
    return tensor_type("pages", dtype, [(*entry.page_shape, *tail) for entry in selection.entries])


def _layout(selection: Selection) -> tuple[np.dtype[Any], tuple[int, ...]]:
    entry = selection.entries[0]
    found = ELEMENT_TYPES.get(entry.element_type)
    if found is None:
        # Only its descriptor says how wide a private type is.
        [pages] = selection.snapshot.open_tensors([entry])
        found = pages.tensor.element_type
    return raw_layout(found)
