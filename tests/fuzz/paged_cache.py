"""A cache whose every slot holds its own number, and what tables mean by a plain loop over their numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hurray_arrow import BlockPagedTensor
from tests.fuzz.choices import Choices
from tests.fuzz.limits import promise

#: The (page, slot) of each token of each sequence.
Places: TypeAlias = list[list[tuple[int, int]]]

HEADS, DIM, MAX_PAGES = 2, 3, 9
DTYPES = (np.int32, np.int64, np.uint32, np.uint8, np.uint64, np.int16, np.float32, np.bool_)
I32 = np.iinfo(np.int32)


class Cache:
    """A pool whose every slot holds its own number, and what the script says of its sequences."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        sizes = choices.number()
        self.page_size = sizes if sizes < 200 else choices.integer()
        if not -3000 < self.page_size < 3000:
            self.page_size %= 7
        self.num_pages = choices.below(MAX_PAGES)
        self.num_seqs = choices.below(5)
        slots = self.num_pages * max(self.page_size, 0)
        shape = (self.num_pages, max(self.page_size, 0), HEADS, DIM)
        self.keys = (np.arange(slots * HEADS * DIM).reshape(shape) % 60000).astype(np.uint16)
        self.values = self.keys + np.uint16(5000)

    def length(self) -> int:
        kind = self.choices.number()
        most = max(self.num_pages * self.page_size, 1)
        return kind % (most + 2) if kind < 236 else self.choices.integer()

    def page(self) -> int:
        kind = self.choices.number()
        return kind % (self.num_pages + 1) if kind > 24 else self.choices.integer()

    def row(self, count: int) -> list[int]:
        """Return page ids, mostly distinct ones."""
        if self.choices.below(4) == 3 or not self.num_pages:
            return [self.page() for _ in range(count)]
        first, step = self.choices.below(self.num_pages), self.choices.pick((1, 1, 2, self.num_pages - 1))
        return [(first + n * step) % self.num_pages for n in range(count)]

    def slot(self, before: int | None) -> int:
        kind = self.choices.number()
        if before is not None and kind > 20:
            return before + 1
        return kind * self.page_size if kind > 8 else self.choices.integer()

    def held(self, numbers: list[int]) -> Any:
        """Return numbers as a caller may hold them: a list, an array of any width that holds them."""
        dtype = self.choices.pick((None, None, *DTYPES))
        if dtype is None:
            return numbers
        try:
            return np.array(numbers, dtype)
        except OverflowError:
            return numbers


def compare(cache: Cache, tensors: list[BlockPagedTensor] | None, expected: Places | None) -> None:
    """Compare exported tokens with the (page, slot) that the loop found; ``None`` where it refuses."""
    if expected is None:
        promise(tensors is None, "tables were taken that mean nothing")
        return
    promise(tensors is not None, "tables were refused that mean something")
    for tensor in tensors or ():
        pool = cache.keys if tensor.kv_role == "key" else cache.values
        promise(tensor.validate() == [] and tensor.num_seqs == len(expected), "an exported tensor breaks rules")
        for seq, places in enumerate(expected):
            found = tensor.gather(seq)
            wanted = [pool[page, slot] for page, slot in places]
            promise(
                len(found) == len(wanted) and all(map(np.array_equal, found, wanted)), f"sequence {seq}: other tokens"
            )


def places_by_rows(cache: Cache, rows: list[Any], lens: list[int], *, absent: int | None = None) -> Places | None:
    """Find each token's page and slot by a loop over rows of page ids."""
    if cache.page_size < 1 or len(rows) < len(lens) or any(not 0 <= length < 2**63 for length in lens):
        return None
    found = []
    for row, length in zip(rows, lens, strict=False):
        pages = -(-length // cache.page_size)
        ids = [int(page) for page in list(row)[:pages]]
        real = [page for page in ids if page != absent]
        if len(ids) < pages or any(not 0 <= page < cache.num_pages for page in real) or len(set(real)) < len(real):
            return None
        tokens = [(ids[t // cache.page_size], t % cache.page_size) for t in range(length)]
        found.append([place for place in tokens if place[0] != absent])
    return found


def is_integers(held: Any) -> bool:
    return not isinstance(held, np.ndarray) or held.dtype.kind in "iu"


def some_slots(cache: Cache, count: int) -> list[int]:
    slots: list[int] = []
    for _ in range(count):
        slots.append(cache.slot(slots[-1] if slots else None))
    return slots


def places_by_slots(cache: Cache, rows: list[list[int]] | None) -> Places | None:
    """Find pages by slots: whole pages from their slot 0 on, one slot after the other."""
    if rows is None or cache.page_size < 1:
        return None
    size = cache.page_size
    for row in rows:
        for t, slot in enumerate(row):
            follows = slot % size == 0 if t % size == 0 else slot == row[t - 1] + 1
            if not 0 <= slot < 2**63 or not follows or slot // size >= cache.num_pages:
                return None
        if len({slot // size for slot in row}) < -(-len(row) // size):
            return None
    return [[divmod(slot, size) for slot in row] for row in rows]


def in_i32(numbers: list[int]) -> bool:
    return all(I32.min <= number <= I32.max for number in numbers)


def in_i64(number: int) -> bool:
    return -(2**63) <= number < 2**63


def places_by_indptr(cache: Cache, indptr: list[int], indices: list[int], last: list[int]) -> Places | None:
    size = cache.page_size
    if size < 1 or len(indptr) != len(last) + 1 or not all(map(in_i64, (*indptr, *indices, *last))):
        return None
    if indptr[0] != 0 or sorted(indptr) != indptr or indptr[-1] > len(indices):
        return None
    rows, lens = [], []
    for start, end, filled in zip(indptr[:-1], indptr[1:], last, strict=True):
        if not 1 <= filled <= size and not (start == end and filled == 0):
            return None
        if start == end and filled not in (0, size):
            return None
        rows.append(indices[start:end])
        lens.append((end - start - 1) * size + filled if end > start else 0)
    return places_by_rows(cache, rows, lens)
