"""Engines' tables: block tables, slot mappings, rows of slots, compressed rows, chunks, and blocks to restore into.

Each is taken or refused as a plain loop over its numbers says, and what is exported has the tokens that the loop finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hurray_arrow import BlockPagedTensor, LayoutError
from hurray_arrow.engines import flashinfer, lmcache, padded_batch, sglang, tensorrt_llm, vllm
from tests.fuzz.choices import Choices
from tests.fuzz.limits import bounded, check_error, promise, refused

HEADS, DIM, MAX_PAGES = 2, 3, 9
DTYPES = (np.int32, np.int64, np.uint32, np.uint8, np.uint64, np.int16, np.float32, np.bool_)
_I32 = np.iinfo(np.int32)


def seeds() -> Iterator[bytes]:
    """Yield tables of every engine: sizes, lengths and ids of all kinds."""
    for engine in range(len(ENGINES)):
        for way in range(24):
            sizes = [engine, 1 + way % 5, way % MAX_PAGES, way % 4]
            yield bytes(sizes + [(way * step + step) % 256 for step in range(1, 40)])
            yield bytes([*sizes, *[2] * 60])


def run(data: bytes) -> None:
    """Hand an engine's tables to its adapter."""
    choices = Choices(data)
    engine = choices.pick(ENGINES)
    with bounded(len(data)):
        engine(choices)


class Cache:
    """A pool whose every slot holds its own number, and what the script says of its sequences."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        sizes = choices.number()
        self.page_size = sizes if sizes < 200 else choices.integer()
        if not -(10**6) < self.page_size < 10**6:
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


def _compare(
    cache: Cache, tensors: list[BlockPagedTensor] | None, expected: list[list[tuple[int, int]]] | None
) -> None:
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


def _places(
    cache: Cache, rows: list[Any], lens: list[int], *, absent: int | None = None
) -> list[list[tuple[int, int]]] | None:
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


def _is_integers(held: Any) -> bool:
    return not isinstance(held, np.ndarray) or held.dtype.kind in "iu"


def _rows(cache: Cache) -> list[Any]:
    return [cache.held(cache.row(cache.choices.below(6))) for _ in range(cache.num_seqs)]


def _vllm(choices: Choices) -> None:
    cache = Cache(choices)
    lens, rows = cache.held([cache.length() for _ in range(cache.num_seqs)]), _rows(cache)
    null_block = choices.pick((None, None, 0, 1))
    group = _taken(
        lambda: vllm.cache_group(
            ["a"],
            seq_lens=lens,
            page_size=cache.page_size,
            block_tables=rows,
            kind="full" if null_block is None else "sliding_window",
            null_block=null_block,
            window_tokens=None if null_block is None else 7,
        )
    )
    arrays = {"a": np.stack([cache.keys, cache.values])}
    tensors = None
    if group is not None:
        pages = choices.pick(("referenced", "all"))
        tensors = _taken(
            lambda: vllm.export_cache(arrays, layout="2BNHD", groups=[group], element_type="uint16", pages=pages)
        )
    usable = _is_integers(lens) and all(_is_integers(row) for row in rows[: len(lens)])
    _compare(cache, tensors, _places(cache, rows, list(map(int, lens)), absent=null_block) if usable else None)
    if tensors:
        _restore(cache, tensors)


def _vllm_blocks(choices: Choices) -> None:
    """Blocks of several pages, apart from each other."""
    cache = Cache(choices)
    ratio, stride = choices.pick((1, 2, 3, 0, -1)), choices.pick((None, None, 2, 5, 0, -1))
    lens, rows = [cache.length() for _ in range(cache.num_seqs)], _rows(cache)
    block_size = cache.page_size * ratio
    tensors = _taken(
        lambda: vllm.export_cache(
            {"a": np.stack([cache.keys, cache.values])},
            layout="2BNHD",
            block_tables=rows,
            seq_lens=lens,
            page_size=cache.page_size,
            block_size=block_size,
            block_stride=stride,
            element_type="uint16",
        )
    )
    step = ratio if stride is None else stride
    if tensors is None or cache.page_size < 1 or ratio < 1 or step < ratio:
        promise(tensors is None, "blocks of no size, or that overlap, were taken")
        return
    pages = [
        [int(row[n // ratio]) * step + n % ratio for n in range(-(-length // cache.page_size))]
        for row, length in zip(rows, lens, strict=False)
    ]
    _compare(cache, tensors, _places(cache, pages, lens))


def _slots(cache: Cache, count: int) -> list[int]:
    slots: list[int] = []
    for _ in range(count):
        slots.append(cache.slot(slots[-1] if slots else None))
    return slots


def _by_slots(cache: Cache, rows: list[list[int]] | None) -> list[list[tuple[int, int]]] | None:
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


def _vllm_slots(choices: Choices) -> None:
    cache = Cache(choices)
    lens = [cache.length() for _ in range(cache.num_seqs)]
    total = sum(length for length in lens if 0 <= length < 60)
    slots = cache.held(_slots(cache, min(total + choices.below(3), 80)))
    tensors = _taken(
        lambda: vllm.export_cache(
            {"a": np.stack([cache.keys, cache.values])},
            layout="2BNHD",
            slot_mapping=slots,
            seq_lens=lens,
            page_size=cache.page_size,
            element_type="uint16",
        )
    )
    rows, start = [], 0
    fits = all(0 <= length < 2**63 for length in lens) and sum(lens) <= len(slots) and _is_integers(slots)
    for length in lens if fits else ():
        rows.append([int(slot) for slot in slots[start : start + length]])
        start += length
    # What lies behind the last token is padding, but it has to be numbers.
    fits = fits and all(_in_i64(int(slot)) for slot in slots)
    _compare(cache, tensors, _by_slots(cache, rows if fits else None))


def _sglang(choices: Choices) -> None:
    cache = Cache(choices)
    lens = [cache.length() for _ in range(cache.num_seqs)]
    columns = choices.below(20)
    table = np.array([_slots(cache, columns) for _ in range(cache.num_seqs + 1)], object)
    held = (
        np.clip(table.astype(object), _I32.min, _I32.max).astype(np.int32)
        if table.size
        else np.zeros((1, columns), np.int32)
    )
    which = None if choices.flag() else [cache.page() for _ in range(cache.num_seqs)]
    flat = tuple(each.reshape(-1, HEADS, DIM) for each in (cache.keys, cache.values))
    tensors = _taken(
        lambda: sglang.export_cache(
            {"a": flat},
            layout="BNHD",
            req_to_token=held,
            seq_lens=lens,
            page_size=cache.page_size,
            req_pool_indices=which,
            element_type="uint16",
        )
    )
    numbers = list(range(cache.num_seqs)) if which is None else which
    fits = all(0 <= length <= columns for length in lens) and all(0 <= number < len(held) for number in numbers)
    rows = [held[number, :length].tolist() for number, length in zip(numbers, lens, strict=True)] if fits else None
    _compare(cache, tensors, _by_slots(cache, rows))


def _flashinfer(choices: Choices) -> None:
    cache = Cache(choices)
    counts = [choices.below(4) for _ in range(cache.num_seqs)]
    indptr = [0, *np.cumsum(counts).tolist()]
    if choices.below(8) == 7 and indptr:
        indptr[choices.below(len(indptr))] = choices.integer(3)
    indices = cache.row(choices.below(12))
    last = [choices.integer() if choices.below(8) == 7 else 1 + choices.below(max(cache.page_size, 1)) for _ in counts]
    last = [0 if not count and choices.flag() else length for count, length in zip(counts, last, strict=True)]
    held = [np.array(part, np.int32) if choices.flag() and _in_i32(part) else part for part in (indptr, indices, last)]
    tensors = _taken(
        lambda: flashinfer.export_cache(
            {"a": (cache.keys, cache.values)},
            layout="BNHD",
            kv_indptr=held[0],
            kv_indices=held[1],
            kv_last_page_len=held[2],
            page_size=cache.page_size,
            element_type="uint16",
        )
    )
    _compare(cache, tensors, _by_indptr(cache, indptr, indices, last))
    for tensor in tensors or ():
        table = refused(lambda tensor=tensor: flashinfer.page_table(tensor))
        promise(table is not None and table.kv_indptr.tolist() == indptr, "the tables do not come back")


def _in_i32(numbers: list[int]) -> bool:
    return all(_I32.min <= number <= _I32.max for number in numbers)


def _in_i64(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _by_indptr(
    cache: Cache, indptr: list[int], indices: list[int], last: list[int]
) -> list[list[tuple[int, int]]] | None:
    size = cache.page_size
    if size < 1 or not all(map(_in_i64, (*indptr, *indices, *last))):
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
    return _places(cache, rows, lens)


def _tensorrt(choices: Choices) -> None:
    cache = Cache(choices)
    lens = cache.held([cache.length() for _ in range(cache.num_seqs)])
    columns = choices.below(5)
    rows = [cache.row(columns) for _ in range(cache.num_seqs + choices.below(2))]
    held = np.array(rows, np.int32) if rows and all(map(_in_i32, rows)) else rows
    tensors = _taken(
        lambda: tensorrt_llm.export_cache(
            {"a": np.stack([cache.keys, cache.values], axis=1)},
            layout="B2NHD",
            block_ids=held,
            seq_lens=lens,
            tokens_per_block=cache.page_size,
            element_type="uint16",
        )
    )
    usable = _is_integers(lens) and cache.page_size > 0 and not cache.page_size & (cache.page_size - 1)
    _compare(cache, tensors, _places(cache, rows, list(map(int, lens))) if usable else None)


def _lmcache(choices: Choices) -> None:
    """Chunks of tokens: as many as they say, or refused."""
    page_size, layout = choices.below(6), choices.pick(("2LTC", "T2C", "2TC", "1LTC", "x"))
    layers, heads = choices.below(3), choices.below(4)
    chunks = []
    for _ in range(choices.below(4)):
        sizes = [choices.below(5) for _ in range(choices.below(3))]
        axes = {"2": 2, "1": 1, "L": layers, "C": choices.pick((4, 4, 6, 0))}
        shape = [[axes.get(axis, size) for axis in layout] for size in sizes]
        chunks.append([np.arange(np.prod(each)).astype(np.uint16).reshape(each) for each in shape])
    names = [f"l{n}" for n in range(layers)]
    found = _taken(
        lambda: lmcache.export_cache(
            chunks, layout=layout, layer_names=names, num_heads=heads, page_size=page_size, element_type="uint16"
        )
    )
    for tensor in found or ():
        promise(tensor.validate() == [], "a tensor out of chunks breaks rules")
        for seq, parts in enumerate(chunks):
            tokens = sum(part.shape[layout.index("T")] for part in parts)
            promise(tensor.token_count(seq) == len(tensor.gather(seq)) == tokens, "as many rows as tokens")
    if found:
        chunk_tokens = choices.integer()
        _taken(
            lambda: lmcache.import_cache(
                found, layout=layout, sequence=choices.integer(), chunk_tokens=min(chunk_tokens, 2**40), expect=None
            ),
            KeyError,
            IndexError,
        )


def _rectangle(choices: Choices) -> None:
    """A batch as one rectangle: columns that are tokens."""
    batch, columns = choices.below(4), choices.below(6)
    lens = None if choices.flag() else [choices.integer(3) for _ in range(batch + choices.pick((0, 0, 0, 1)))]
    mask = None
    if lens is None and choices.flag():
        shape = (batch, columns + choices.pick((0, 0, 0, 1)))
        numbers = [choices.below(2) if choices.below(16) else 2 for _ in range(shape[0] * shape[1])]
        mask = np.array(numbers, np.int64).reshape(shape)
    found = _taken(lambda: padded_batch.token_columns(mask, lens, batch=batch, columns=columns))
    if found is None:
        return
    promise(len(found) == batch, "as many rows as sequences")
    for row, each in enumerate(found):
        wanted = columns if lens is None and mask is None else lens[row] if lens is not None else int(mask[row].sum())
        promise(len(each) == wanted and all(0 <= column < columns for column in each.tolist()), "other columns")


def _restore(cache: Cache, tensors: list[BlockPagedTensor]) -> None:
    """Write a sequence into a fresh pool: refused and untouched, or exactly its tokens in exactly their slots."""
    choices = cache.choices
    page_size, num_pages = 1 + choices.below(4), 1 + choices.below(6)
    ratio = choices.pick((1, 1, 1, 2, 3))
    stride = ratio + choices.pick((0, 0, 1, 3))
    pool = np.full((2, num_pages, page_size, HEADS, DIM), 0xFFFF, np.uint16)
    sequence = choices.below(len(tensors) + 2)
    blocks = [
        None if choices.below(16) == 15 else choices.integer(2) if choices.below(8) == 7 else choices.below(num_pages)
        for _ in range(choices.below(9))
    ]
    restored = _taken(
        lambda: vllm.restore_into(
            {"a": pool},
            tensors,
            layout="2BNHD",
            sequence=sequence,
            block_ids=blocks,
            page_size=page_size,
            block_size=page_size * ratio,
            block_stride=stride,
            expect=None,
            element_type="uint16",
        ),
        IndexError,
        KeyError,
    )
    expected = np.full_like(pool, 0xFFFF)
    if restored is not None:
        for tensor in tensors:
            role = 0 if tensor.kv_role == "key" else 1
            positions = tensor.positions(sequence).tolist()
            for position, values in zip(positions, tensor.gather(sequence), strict=True):
                block = blocks[position // page_size // ratio]
                # None: the engine keeps no block there, as behind a window.
                if block is not None:
                    page = block * stride + position // page_size % ratio
                    expected[role, page, position % page_size] = values
    promise(np.array_equal(pool, expected), "other slots were written than those of the tokens")


def _taken(call: Callable[[], Any], *also: type[Exception]) -> Any:
    try:
        return refused(call, *also)
    except LayoutError as error:
        check_error(error)
        return None


ENGINES: tuple[Callable[[Choices], None], ...] = (
    *(_vllm, _vllm_blocks, _vllm_slots, _sglang, _flashinfer, _tensorrt, _lmcache, _rectangle),
)
