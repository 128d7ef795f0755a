"""A snapshot's part of an answer, cut into pieces of some ten MiB: tensors together, or pages of a large one.

Sizes are estimates from the index: how many tokens share a page, the index does not say.

Spec: snapshot format, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.snapshot.archive_rows import MAX_ROW_BYTES
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.pins import Pin
from hurray_arrow.views.pages import WINDOW_BYTES
from hurray_arrow.views.question import Question
from hurray_arrow.views.selection import wanted_sequences

#: Neighbours of one snapshot are read as one piece up to this weight: less is not worth opening it once more.
PIECE_BYTES = 32 << 20
#: Pages of a tensor that one piece reads, and bytes of rows that it gives.
_PART_BYTES = WINDOW_BYTES
_PART_ROWS_BYTES = 256 << 20
#: What a value of variable length is taken to be long.
_VARIABLE_BYTES = 24


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of the answer: of some tensors of one snapshot, or of some pages of one tensor.

    Parameters
    ----------
    pin
        The snapshot.
    tensors
        ``tensor_index`` of each tensor.
    page_range
        Which pages, half-open; ``None`` for all.
    num_rows
        Rows, exact for whole tables of tensors, sequences and pages, an estimate otherwise.
    size_bytes
        What the rows take in memory, estimated.
    weight_bytes
        That or what is fetched for them, whichever is more.
    """

    pin: Pin
    tensors: tuple[int, ...]
    page_range: tuple[int, int] | None
    num_rows: int
    size_bytes: int
    weight_bytes: int


def pieces_of(pin: Pin, entries: Sequence[Entry], question: Question, schema: pa.Schema) -> list[Piece]:
    """Cut what a snapshot answers into pieces.

    Parameters
    ----------
    pin
        The snapshot.
    entries
        Its tensors that the filters admit.
    question, schema
        What is asked, and the columns of the answer.
    """
    if question.view == "sequences":
        firsts: dict[int, Entry] = {}
        for entry in entries:
            firsts.setdefault(entry.kv_group, entry)
        entries = tuple(firsts.values())
    takes_values, row_bytes = question.takes_values(schema), _row_bytes(schema)
    parts = [part for entry in entries for part in _parts(pin, entry, question, row_bytes, takes_values=takes_values)]
    return list(_joined(parts))


def _parts(pin: Pin, entry: Entry, question: Question, row_bytes: int, *, takes_values: bool) -> Iterator[Piece]:
    share = _share(entry, question)
    num_rows = math.ceil(_num_rows(entry, question) * share)
    page_bytes = _page_bytes(entry)
    fetched = math.ceil((page_bytes or 0) * entry.num_pages * share) if takes_values else 0
    whole = Piece(pin, (entry.tensor_index,), None, num_rows, num_rows * row_bytes, max(fetched, num_rows * row_bytes))
    number = max(math.ceil(fetched / _PART_BYTES), math.ceil(whole.size_bytes / _PART_ROWS_BYTES))
    if number <= 1 or not page_bytes or question.view not in ("pages", "tokens"):
        yield whole
        return
    # An archive's rows are decoded as a whole: a part ends where one may end.
    row_pages = max(1, MAX_ROW_BYTES // page_bytes)
    step = max(1, entry.num_pages // (number * row_pages)) * row_pages
    for start in range(0, entry.num_pages, step):
        stop = min(start + step, entry.num_pages)
        part = (stop - start) / entry.num_pages
        rows = stop - start if num_rows == entry.num_pages else math.ceil(num_rows * part)
        size, weight = math.ceil(whole.size_bytes * part), math.ceil(whole.weight_bytes * part)
        yield replace(whole, page_range=(start, stop), num_rows=rows, size_bytes=size, weight_bytes=weight)


def _joined(parts: Iterable[Piece]) -> Iterator[Piece]:
    held: Piece | None = None
    for part in parts:
        if held is None:
            held = part
        elif held.page_range is part.page_range is None and held.weight_bytes + part.weight_bytes <= PIECE_BYTES:
            held = replace(
                held,
                tensors=held.tensors + part.tensors,
                num_rows=held.num_rows + part.num_rows,
                size_bytes=held.size_bytes + part.size_bytes,
                weight_bytes=held.weight_bytes + part.weight_bytes,
            )
        else:
            yield held
            held = part
    if held is not None:
        yield held


def _num_rows(entry: Entry, question: Question) -> int:
    page_size, num_heads, _ = entry.page_shape
    return {
        "tensors": 1,
        "sequences": entry.num_seqs,
        "pages": entry.num_pages,
        "tokens": entry.num_pages * page_size * (num_heads if question.options.get("per_head") else 1),
    }[question.view]


def _share(entry: Entry, question: Question) -> float:
    """Return how much of a tensor a filter on sequences leaves, as far as numbers of sequences say so."""
    sequence = question.filters.get("sequence")
    if sequence is None or question.view == "tensors":
        return 1.0
    return min(1.0, len(wanted_sequences(sequence)) / max(1, entry.num_seqs))


def _page_bytes(entry: Entry) -> int | None:
    element = ELEMENT_TYPES.get(entry.element_type)
    if element is None:
        # Only the descriptor says how wide a private type is.
        return None
    return element.size_bytes(math.prod(entry.page_shape))


def _row_bytes(schema: pa.Schema) -> int:
    return sum(map(_value_bytes, schema.types))


def _value_bytes(kind: pa.DataType) -> int:
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(math.prod(kind.shape)) * _value_bytes(kind.value_type)
    try:
        return int(-(-kind.bit_width // 8))
    except ValueError:
        return _VARIABLE_BYTES
