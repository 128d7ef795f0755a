"""Engines' tables: block tables, slot mappings, rows of slots, compressed rows, chunks, and blocks to restore into.

Each is taken or refused as a plain loop over its numbers says, and what is exported has the tokens that the loop finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hurray_arrow import BlockPagedTensor, LayoutError, MediaSpan
from hurray_arrow.engines import flashinfer, lmcache, padded_batch, sglang, tensorrt_llm, vllm
from tests.fuzz.choices import Choices
from tests.fuzz.limits import bounded, check_error, promise, refused
from tests.fuzz.paged_cache import (
    DIM,
    HEADS,
    I32,
    MAX_PAGES,
    Cache,
    compare,
    in_i32,
    in_i64,
    is_integers,
    places_by_indptr,
    places_by_rows,
    places_by_slots,
    some_slots,
)


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


def _rows(cache: Cache) -> list[Any]:
    count = cache.num_seqs + cache.choices.pick((0, 0, 0, 0, 0, 0, 1, -1))
    return [cache.held(cache.row(cache.choices.below(6))) for _ in range(count)]


def _vllm(choices: Choices) -> None:
    cache = Cache(choices)
    lens, rows = cache.held([cache.length() for _ in range(cache.num_seqs)]), _rows(cache)
    null_block = choices.pick((None, None, 0, 1))
    is_windowed = null_block is not None
    group = _taken(
        lambda: vllm.cache_group(
            ["a"],
            seq_lens=lens,
            page_size=cache.page_size,
            block_tables=rows,
            kind="sliding_window" if is_windowed else "full",
            null_block=null_block,
            window_tokens=7 if is_windowed else None,
        )
    )
    arrays = {"a": np.stack([cache.keys, cache.values])}
    tensors = None
    if group is not None:
        pages = choices.pick(("referenced", "all"))
        tensors = _taken(
            lambda: vllm.export_cache(arrays, layout="2BNHD", groups=[group], element_type="uint16", pages=pages)
        )
    usable = is_integers(lens) and all(is_integers(row) for row in rows[: len(lens)])
    compare(cache, tensors, places_by_rows(cache, rows, list(map(int, lens)), absent=null_block) if usable else None)
    for tensor in tensors or ():
        table = _taken(lambda tensor=tensor: flashinfer.page_table(tensor))
        promise(table is None or table.kv_indices.tolist() == tensor.block_table.tolist(), "other pages")
    if tensors:
        _restore(cache, tensors)


def _vllm_blocks(choices: Choices) -> None:
    """Blocks of several pages, apart from each other."""
    cache = Cache(choices)
    ratio, stride = choices.pick((1, 2, 3, 0, -1)), choices.pick((None, None, 2, 4, 5, 8, 0, -1))
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
    compare(cache, tensors, places_by_rows(cache, pages, lens))


def _vllm_slots(choices: Choices) -> None:
    cache = Cache(choices)
    lens = [cache.length() for _ in range(cache.num_seqs)]
    total = sum(length for length in lens if 0 <= length < 60)
    slots = cache.held(some_slots(cache, min(total + choices.pick((0, 0, 0, 0, 1, 2, -1)), 80)))
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
    fits = all(0 <= length < 2**63 for length in lens) and sum(lens) <= len(slots) and is_integers(slots)
    for length in lens if fits else ():
        rows.append([int(slot) for slot in slots[start : start + length]])
        start += length
    # What lies behind the last token is padding, but it has to be numbers.
    fits = fits and all(in_i64(int(slot)) for slot in slots)
    compare(cache, tensors, places_by_slots(cache, rows if fits else None))


def _sglang(choices: Choices) -> None:
    cache = Cache(choices)
    lens = [cache.length() for _ in range(cache.num_seqs)]
    columns = choices.below(20)
    table = np.array([some_slots(cache, columns) for _ in range(cache.num_seqs + 1)], object)
    held = np.clip(table, I32.min, I32.max).astype(np.int32) if table.size else np.zeros((1, columns), np.int32)
    which = None if choices.flag() else [cache.page() for _ in range(cache.num_seqs + choices.pick((0, 0, 0, 1)))]
    given = choices.pick((held, held, held, held.astype(np.float32), held.reshape(-1)))
    flat = tuple(each.reshape(-1, HEADS, DIM) for each in (cache.keys, cache.values))
    tensors = _taken(
        lambda: sglang.export_cache(
            {"a": flat},
            layout="BNHD",
            req_to_token=given,
            seq_lens=lens,
            page_size=cache.page_size,
            req_pool_indices=which,
            element_type="uint16",
        )
    )
    numbers = list(range(cache.num_seqs)) if which is None else which
    fits = given is held and len(numbers) == len(lens) and all(0 <= number < len(held) for number in numbers)
    fits = fits and all(0 <= length <= columns for length in lens)
    rows = [held[number, :length].tolist() for number, length in zip(numbers, lens, strict=True)] if fits else None
    compare(cache, tensors, places_by_slots(cache, rows))
    if tensors:
        _restore_slots(cache, tensors)


def _restore_slots(cache: Cache, tensors: list[BlockPagedTensor]) -> None:
    """Write a sequence into slots of a fresh pool: refused and untouched, or each token in its slot."""
    choices, size = cache.choices, cache.page_size
    if size > 64:
        return
    sequence = choices.below(tensors[0].num_seqs + 1)
    tokens = tensors[0].token_count(sequence) if sequence < tensors[0].num_seqs else 3
    slots = some_slots(cache, tokens + choices.pick((0, 0, 0, 0, 1, -1)))
    pools = tuple(np.full((cache.num_pages * size, HEADS, DIM), 0xFFFF, np.uint16) for _ in range(2))
    # Mostly by slots; by blocks, by both, by neither.
    by_slots = choices.pick((1, 1, 1, 1, 1, 2, 3, 0))
    restored = _restored(
        sglang,
        pools,
        tensors,
        layout="BNHD",
        sequence=sequence,
        token_slots=slots if by_slots & 1 else None,
        block_ids=[slot // size for slot in slots[::size]] if by_slots & 2 else None,
        page_size=size if choices.below(8) != 7 else {"a": size},
    )
    expected = tuple(map(np.copy, pools)) if restored is None else tuple(np.full_like(pool, 0xFFFF) for pool in pools)
    for tensor in tensors if restored is not None else ():
        for slot, values in zip(slots, tensor.gather(sequence), strict=True):
            expected[0 if tensor.kv_role == "key" else 1][slot] = values
    touched = restored is None and any((pool != 0xFFFF).any() for pool in pools)
    promise(not touched and all(map(np.array_equal, pools, expected)), "other slots were written")


def _flashinfer(choices: Choices) -> None:
    cache = Cache(choices)
    counts = [choices.below(4) for _ in range(cache.num_seqs)]
    indptr = [0, *np.cumsum(counts).tolist()]
    if choices.below(8) == 7 and indptr:
        indptr[choices.below(len(indptr))] = choices.integer(3)
    indices = cache.row(choices.below(12))
    last = [choices.integer() if choices.below(8) == 7 else 1 + choices.below(max(cache.page_size, 1)) for _ in counts]
    last = [0 if not count and choices.flag() else length for count, length in zip(counts, last, strict=True)]
    last = last[: len(last) - choices.pick((0, 0, 0, 1))]
    dtype = choices.pick((np.int32, np.int32, np.int32, np.int64))
    held = [np.array(part, dtype) if choices.flag() and in_i32(part) else part for part in (indptr, indices, last)]
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
    is_wide = any(isinstance(part, np.ndarray) and part.dtype != np.int32 for part in held)
    compare(cache, tensors, None if is_wide else places_by_indptr(cache, indptr, indices, last))
    for tensor in tensors or ():
        table = refused(lambda tensor=tensor: flashinfer.page_table(tensor))
        promise(table is not None and table.kv_indptr.tolist() == indptr, "the tables do not come back")


def _tensorrt(choices: Choices) -> None:
    cache = Cache(choices)
    lens = cache.held([cache.length() for _ in range(cache.num_seqs)])
    columns = choices.below(5)
    rows = [cache.row(columns) for _ in range(cache.num_seqs + choices.below(2))]
    held = np.array(rows, np.int32) if rows and all(map(in_i32, rows)) else rows
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
    usable = is_integers(lens) and cache.page_size > 0 and not cache.page_size & (cache.page_size - 1)
    compare(cache, tensors, places_by_rows(cache, rows, list(map(int, lens))) if usable else None)


def _lmcache(choices: Choices) -> None:
    """Chunks of tokens: as many as they say, or refused."""
    page_size, layout = choices.below(6), choices.pick(("2LTC", "T2C", "2TC", "1LTC", "x"))
    layers, heads = choices.below(3), choices.below(4)
    chunks = []
    for _ in range(choices.below(4)):
        sizes = [choices.below(5) for _ in range(choices.below(3))]
        axes = {"2": 2, "1": 1, "L": layers, "C": choices.pick((4, 4, 6, 0))}
        shape = [[axes.get(axis, size) for axis in layout] for size in sizes]
        for each in shape if choices.below(8) == 7 else ():
            each[choices.below(len(each))] += 1
            each.extend([1] * choices.below(2))
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
    _taken(lambda: padded_batch.token_columns(np.ones((batch, columns)), [1], batch=batch, columns=columns), TypeError)
    if found is None:
        return
    ids: Any = np.arange(24).reshape(choices.pick(((4, 6), (6, 4), (1, 24), (24, 1), (24,))))[: batch or None]
    given = {"token_ids": ids} if choices.below(8) else {}
    cut = _taken(lambda: padded_batch.cut_token_ids(given, found, columns=columns))
    if cut and ids.ndim == 2:
        wanted = [ids[row][each].tolist() for row, each in enumerate(found)]
        promise([each.tolist() for each in cut["token_ids"]] == wanted, "other token ids than those of the columns")
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
    blocks: Any = [
        None if choices.below(16) == 15 else choices.integer(2) if choices.below(8) == 7 else choices.below(num_pages)
        for _ in range(choices.below(9))
    ]
    if choices.below(16) == 15:
        blocks = 5
    restored = _restored(
        vllm,
        pool,
        tensors,
        layout="2BNHD",
        sequence=sequence,
        block_ids=blocks,
        page_size=page_size,
        block_size=page_size * ratio,
        block_stride=stride,
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


def _restored(engine: Any, pool: Any, tensors: list[BlockPagedTensor], **how: Any) -> Any:
    return _taken(
        lambda: engine.restore_into({"a": pool}, tensors, expect=None, element_type="uint16", **how),
        IndexError,
        KeyError,
    )


def _taken(call: Callable[[], Any], *also: type[Exception]) -> Any:
    try:
        return refused(call, *also)
    except LayoutError as error:
        check_error(error)
        return None


def _mistaken(choices: Choices) -> None:
    """Tables given twice or not at all, and tensors that FlashInfer has no place for."""
    cache = Cache(choices)
    given = {"block_tables": [[0]], "slot_mapping": [0], "null_block": 0, "seq_lens": [1], "page_size": 2, "groups": []}
    some = {name: value for name, value in given.items() if choices.flag()}
    arrays = {"a": np.stack([cache.keys, cache.values])}
    _taken(lambda: vllm.export_cache(arrays, layout="2BNHD", element_type="uint16", **some), TypeError)
    some.pop("groups", None)
    _taken(lambda: vllm.cache_group(["a"], **{"seq_lens": [1], "page_size": 2, **some}), TypeError)
    rows = [cache.row(choices.below(4)) for _ in range(cache.num_seqs)]
    tensor = refused(
        lambda: BlockPagedTensor.from_arrays(
            cache.keys,
            block_tables=rows,
            seq_lens=[cache.length() if choices.below(4) else None for _ in rows],
            token_ids=[[7] * choices.below(20) if choices.below(4) else None for _ in rows],
            media=[[MediaSpan(choices.below(9), choices.below(9), "d")] if choices.flag() else None for _ in rows],
            page_positions=[[cache.page_size * n for n in range(len(row))] if choices.flag() else None for row in rows],
            kv_role="key",
        ),
        TypeError,
    )
    if tensor is not None:
        table = _taken(lambda: flashinfer.page_table(tensor))
        promise(table is None or table.kv_indices.tolist() == tensor.block_table.tolist(), "other pages")


ENGINES: tuple[Callable[[Choices], None], ...] = (
    *(_vllm, _vllm_blocks, _vllm_slots, _sglang, _flashinfer, _tensorrt, _lmcache, _rectangle, _mistaken),
)
