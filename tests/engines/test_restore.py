"""Restoring into a running pool: other page sizes, parts of a sequence, windows, and what is refused before a write."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hurray_arrow.engines import flashinfer, page_moves, vllm
from hurray_arrow.errors import LayoutError, SnapshotMismatchError, UnknownSequenceLengthError, UnsupportedError
from hurray_arrow.schemes import PerChannel
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor
from tests.engines import memory

HEADS, DIM, TOKENS = 3, 7, 37
FOREIGN = 0xFFFF


def values_of(tokens=TOKENS, seed=1):
    """Keys and values of a sequence by position, [tokens, heads, dim]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, FOREIGN, (2, tokens, HEADS, DIM), dtype=np.uint16)


def paged(values, *, page_size, row, num_pages):
    """Pages [2, B, N, H, D] that hold the values at a row's pages."""
    pages = np.full((2, num_pages, page_size, HEADS, DIM), FOREIGN, np.uint16)
    for token in range(values.shape[1]):
        pages[:, row[token // page_size], token % page_size] = values[:, token]
    return pages


def stored(page_size=5, *, values=None, layout="BHNC", **facts):
    values = values_of() if values is None else values
    row = list(np.random.default_rng(3).permutation(60)[: -(-values.shape[1] // page_size)])
    keys, vals = paged(values, page_size=page_size, row=row, num_pages=61)
    return vllm.export_cache(
        {"l": memory.vllm(layout, keys, vals)},
        layout=layout,
        block_tables=[row],
        seq_lens=[values.shape[1]],
        page_size=page_size,
        element_type="bfloat16",
        head_dim=DIM,
        **facts,
    )


def pool_of(page_size, num_pages=50, layout="BHNC"):
    foreign = np.full((num_pages, page_size, HEADS, DIM), FOREIGN, np.uint16)
    return {"l": memory.vllm(layout, foreign, foreign)}


def restore(pool, tensors, **changes):
    options = {"layout": "BHNC", "sequence": 0, "expect": None, "element_type": "bfloat16", **changes}
    return vllm.restore_into(pool, tensors, **options)


def keys_and_values(pool, page_size):
    array = pool["l"].transpose(0, 2, 1, 3)
    return np.stack([array[..., :DIM], array[..., DIM:]]).reshape(2, -1, HEADS, DIM), page_size


def check(pool, page_size, blocks, values, *, first=0, stop=TOKENS):
    """Every wanted position is at its slot, and every other slot is foreign."""
    slots, _ = keys_and_values(pool, page_size)
    used = [blocks[(p - first) // page_size] * page_size + p % page_size for p in range(first, stop)]
    assert np.array_equal(slots[:, used], values[:, first:stop])
    assert (np.delete(slots, used, axis=1) == FOREIGN).all()


def refused(pool, tensors, **options):
    before = {name: array.copy() for name, array in pool.items()}
    with pytest.raises(LayoutError) as caught:
        restore(pool, tensors, **options)
    assert all(np.array_equal(array, before[name]) for name, array in pool.items())
    return caught.value.expected, caught.value.actual


def blocks_for(tokens, page_size, num_pages=50):
    return np.random.default_rng(7).permutation(num_pages)[: -(-tokens // page_size)].tolist()


@pytest.mark.parametrize("engine_size", [1, 2, 3, 5, 8, 16, 40])
@pytest.mark.parametrize("stored_size", [1, 3, 5, 16, 40])
def test_page_sizes_may_differ(stored_size, engine_size):
    pool, blocks = pool_of(engine_size), blocks_for(TOKENS, engine_size)
    restored = restore(pool, stored(stored_size), block_ids=blocks, page_size=engine_size)
    assert restored.num_tokens == TOKENS
    assert restored.num_bytes == 2 * TOKENS * HEADS * DIM * 2
    assert restored.page_ids[0].tolist() == blocks
    check(pool, engine_size, blocks, values_of())


@pytest.mark.parametrize(("stored_size", "engine_size"), [(2, 3), (3, 2), (16, 40), (5, 5)])
def test_page_sizes_may_differ_where_slots_of_a_page_follow_each_other(stored_size, engine_size):
    foreign = np.full((50, engine_size, HEADS, DIM), FOREIGN, np.uint16)
    pool, blocks = {"l": memory.vllm("2BNHD", foreign, foreign)}, blocks_for(TOKENS, engine_size)
    tensors = stored(stored_size, layout="2BNHD")
    restore(pool, tensors, layout="2BNHD", block_ids=blocks, page_size=engine_size)
    used = [blocks[p // engine_size] * engine_size + p % engine_size for p in range(TOKENS)]
    slots = pool["l"].reshape(2, -1, HEADS, DIM)
    assert np.array_equal(slots[:, used], values_of())
    assert (np.delete(slots, used, axis=1) == FOREIGN).all()


def test_a_block_beyond_all_memory_does_not_come_round_to_another():
    options = {"page_size": 20, "block_size": 40, "block_ids": [2**63 - 1]}
    largest = (2**63 - 1 - 2) // 2
    assert refused(pool_of(20), stored(5), **options) == (largest, 2**63 - 1)


@pytest.mark.parametrize("tokens", [0, 1, 4, 5, 6, 36, 37])
@pytest.mark.parametrize("engine_size", [5, 4])
def test_the_first_tokens_only(tokens, engine_size):
    pool, blocks = pool_of(engine_size), blocks_for(tokens, engine_size)
    restored = restore(pool, stored(), block_ids=blocks, page_size=engine_size, tokens=tokens)
    assert restored.num_tokens == tokens
    check(pool, engine_size, blocks, values_of(), stop=tokens)


@pytest.mark.parametrize(("first", "stop"), [(10, 37), (20, 21), (35, 37), (5, 5)])
def test_positions_behind_a_prefix_that_the_engine_has(first, stop):
    pool, blocks = pool_of(5), blocks_for(stop - first, 5)
    assert restore(pool, stored(3), block_ids=blocks, page_size=5, tokens=range(first, stop)).num_tokens == stop - first
    check(pool, 5, blocks, values_of(), first=first, stop=stop)


def test_blocks_of_several_pages():
    pool = pool_of(4)
    restored = restore(pool, stored(5), block_ids=[7, 0, 2, 3], page_size=4, block_size=12)
    pages = [21, 22, 23, 0, 1, 2, 6, 7, 8, 9]
    assert restored.page_ids[0].tolist() == pages
    check(pool, 4, pages, values_of())
    pool = pool_of(4)
    restore(pool, stored(5), block_ids=[7, 0, 2, 3], page_size=4, block_size=12, block_stride=5)
    check(pool, 4, [35, 36, 37, 0, 1, 2, 10, 11, 12, 15], values_of())


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"tokens": 38, "block_ids": [0] * 8}, (38, 37)),
        ({"tokens": -1, "block_ids": []}, ("range(start, stop)", -1)),
        ({"tokens": range(10, 0, -1), "block_ids": []}, ("range(start, stop)", range(10, 0, -1))),
        ({"tokens": range(3, 9), "block_ids": [1, 2]}, (5, 3)),
        ({"tokens": (5, 10), "block_ids": [1]}, ("range(start, stop)", (5, 10))),
        ({"tokens": 5.0, "block_ids": [1]}, ("range(start, stop)", 5.0)),
        ({"block_ids": [0, 1, 2]}, (8, 3)),
        ({"block_ids": [0, 1, 2, 3, 4, 5, 6, 0]}, ("distinct", [0])),
        ({"block_ids": [0, 1, 2, 3, 4, 5, 6, 50]}, (50, 50)),
        ({"block_ids": [0, 1, 2, 3, 4, 5, 6, -1]}, (0, -1)),
        ({"block_ids": [0, 1, 2, 3, 4, 5, 6, 1.0]}, (0, 1.0)),
        ({"block_ids": 3}, ("a list", 3)),
        ({"block_ids": [[0, 1], [2, 3]]}, (0, [0, 1])),
        ({"block_ids": {1: [0]}}, ([0], [1])),
        ({"block_size": 7, "block_ids": [0]}, (5, 7)),
        ({"page_size": 0, "block_ids": [0]}, (0, 0)),
        ({"page_size": {1: 5}, "block_ids": [0]}, (0, [1])),
        ({"block_size": 10, "block_stride": 1, "block_ids": [0]}, (2, 1)),
        ({"sequence": 1, "block_ids": [0]}, (1, 1)),
        ({"sequence": "nobody", "block_ids": [0]}, (1, 0)),
        ({"layout": "BNHC", "block_ids": list(range(8))}, ("BNHC", "BHNC")),
        ({"num_heads": 4, "block_ids": list(range(8))}, (4, 3)),
        ({"head_dim": 8, "block_ids": list(range(8))}, (8, 7)),
        ({"scales": (1.0, 1.0), "block_ids": list(range(8))}, ((1.0, 1.0), ())),
        ({"element_type": None, "block_ids": list(range(8))}, ("element_type=", "uint16")),
    ],
)
def test_what_is_refused_before_the_first_write(changes, wrong):
    assert refused(pool_of(5), stored(), **{"page_size": 5, **changes}) == wrong


def test_a_read_only_pool_is_refused():
    pool = pool_of(5)
    pool["l"].flags.writeable = False
    assert refused(pool, stored(), block_ids=list(range(8)), page_size=5) == ("writable", "read-only")


def test_layers_are_those_that_are_stored():
    pool = pool_of(5)
    pool["other"] = pool["l"].copy()
    assert refused(pool, stored(), block_ids=list(range(8)), page_size=5) == (["l", "other"], ["l"])


def test_sequences_by_id():
    tensors = stored(ids=["s-1"])
    pool = pool_of(5)
    restore(pool, tensors, sequence="s-1", block_ids=list(range(8)), page_size=5)
    check(pool, 5, list(range(8)), values_of())


def test_expectations_are_asked_before_anything_else():
    tensors = stored(tenant=["t-1"])
    metadata = {"model": {"name": "m"}, "tenant": "everybody"}
    pool, options = pool_of(5), {"block_ids": list(range(8)), "page_size": 5, "metadata": metadata}
    for expect in ({"model.name": "n"}, {"model.revision": "r"}, {"tenant": "t-2"}, {"tenant": "everybody"}):
        with pytest.raises(SnapshotMismatchError):
            restore(pool, tensors, expect=expect, **options)
    with pytest.raises(TypeError, match="expect"):
        vllm.restore_into(pool, tensors, layout="BHNC", sequence=0, **options)
    assert (pool["l"] == FOREIGN).all()
    restore(pool, tensors, expect={"model.name": "m", "tenant": "t-1", "page_size": 5}, **options)
    check(pool, 5, list(range(8)), values_of())


def test_the_tenant_is_the_sequences_own():
    keys, values = paged(values_of(10), page_size=5, row=[0, 1], num_pages=2)
    tensors = vllm.export_cache(
        {"l": memory.vllm("BHNC", keys, values)},
        layout="BHNC",
        block_tables=[[0], [1]],
        seq_lens=[5, 5],
        page_size=5,
        element_type="bfloat16",
        head_dim=DIM,
        tenant=["one", "two"],
    )
    pool = pool_of(5)
    with pytest.raises(SnapshotMismatchError):
        restore(pool, tensors, sequence=0, block_ids=[3], page_size=5, expect={"tenant": "two"})
    restore(pool, tensors, sequence=1, block_ids=[3], page_size=5, expect={"tenant": "two"})
    check(pool, 5, [3], values_of(10), first=5, stop=10)


def window(null_block=0):
    values = values_of()
    keys, vals = paged(values, page_size=5, row=[1, 2, 3, 4, 5, 6, 7, 8], num_pages=9)
    group = vllm.cache_group(
        ["l"],
        block_tables=[[0, 0, 0, 4, 5, 0, 7, 8]],
        seq_lens=[TOKENS],
        page_size=5,
        kind="sliding_window",
        window_tokens=11,
        null_block=null_block,
    )
    return vllm.export_cache(
        {"l": memory.vllm("BHNC", keys, vals)}, layout="BHNC", groups=[group], element_type="bfloat16", head_dim=DIM
    )


def test_pages_behind_a_window_stay_where_they_are():
    tensors, values = window(), values_of()
    assert tensors[0].sequences.page_positions[0].tolist() == [15, 20, 30, 35]
    assert tensors[0].token_count(0) == 17
    pool = pool_of(5)
    restored = restore(pool, tensors, block_ids=[None, None, None, 40, 2, None, 9, 11], page_size=5)
    assert restored.page_ids[0].tolist() == [40, 2, 9, 11]
    slots, _ = keys_and_values(pool, 5)
    positions = [*range(15, 25), *range(30, 37)]
    used = [{3: 40, 4: 2, 6: 9, 7: 11}[p // 5] * 5 + p % 5 for p in positions]
    assert np.array_equal(slots[:, used], values[:, positions])
    assert (np.delete(slots, used, axis=1) == FOREIGN).all()


def test_an_engine_with_a_shorter_window_takes_fewer_pages():
    pool = pool_of(5)
    restored = restore(pool, window(), block_ids=[0, 0, 0, 0, 0, 0, 9, 11], null_block=0, page_size=5)
    assert restored.page_ids[0].tolist() == [9, 11]
    assert (pool["l"][[0, 1, 2]] == FOREIGN).all()


@pytest.mark.parametrize(
    ("blocks", "position"),
    [([None, None, 3, 40, 2, None, 9, 11], 10), ([None, None, None, 40, 2, 5, 9, 11], 25), ([1, *[None] * 7], 0)],
)
def test_a_page_that_is_absent_cannot_be_restored(blocks, position):
    assert refused(pool_of(5), window(), block_ids=blocks, page_size=5) == (position, None)


LEFT_OUT = ("a page id", None)


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("kind", [None, "full"])
def test_full_attention_gets_every_page(kind, place):
    """llama.cpp 26676: a restore reported success and had left pages out."""
    blocks = list(range(10, 18))
    blocks[place] = 0
    metadata = None if kind is None else {"groups": [{"kind": kind}]}
    options = {"block_ids": blocks, "null_block": 0, "page_size": 5, "metadata": metadata}
    assert refused(pool_of(5), stored(3), **options) == LEFT_OUT


@pytest.mark.parametrize("kind", ["sliding_window", "chunked"])
def test_what_a_window_has_passed_may_be_left_out(kind):
    pool, metadata = pool_of(5), {"groups": [{"kind": kind}]}
    restored = restore(pool, stored(3), block_ids=[None] * 6 + [4, 2], page_size=5, metadata=metadata)
    assert restored.page_ids[0].tolist() == [4, 2]
    slots, _ = keys_and_values(pool, 5)
    assert np.array_equal(slots[:, 20:25], values_of()[:, 30:35])
    assert np.array_equal(slots[:, 10:12], values_of()[:, 35:])
    for blocks in ([None] * 5 + [4, None, 2], [None] * 6 + [4, None], [4] + [None] * 7):
        assert refused(pool_of(5), stored(3), block_ids=blocks, page_size=5, metadata=metadata) == LEFT_OUT
    # At the border of a chunk nothing before it is looked at.
    assert restore(pool_of(5), stored(3), block_ids=[None] * 8, page_size=5, metadata=metadata).num_bytes == 0


def test_pages_that_are_stored_before_a_hole_are_no_windows():
    pool, full = pool_of(5), {"groups": [{"kind": "full"}]}
    restore(pool, window(), block_ids=[None, None, None, 40, 2, None, 9, 11], page_size=5, metadata=full)
    left_out = [None] * 6 + [9, 11]
    assert refused(pool_of(5), window(), block_ids=left_out, page_size=5, metadata=full) == LEFT_OUT
    restore(pool_of(5), window(), block_ids=left_out, page_size=5)


def test_a_window_at_another_page_size():
    pool = pool_of(2)
    blocks = [None] * 8 + list(range(20, 24)) + [None] * 3 + list(range(30, 34))
    restored = restore(pool, window(), block_ids=blocks, page_size=2)
    assert restored.page_ids[0].tolist() == [20, 21, 22, 23, 30, 31, 32, 33]
    slots, _ = keys_and_values(pool, 2)
    assert np.array_equal(slots[:, 40:48], values_of()[:, 16:24])
    blocks[7] = 49
    assert refused(pool_of(2), window(), block_ids=blocks, page_size=2) == (14, None)


def test_a_pool_may_take_back_what_was_exported_from_it():
    values = values_of()
    pages = paged(values, page_size=5, row=list(range(8)), num_pages=11)
    tensors = vllm.export_cache(
        {"l": pages},
        layout="2BNHD",
        block_tables=[list(range(8))],
        seq_lens=[TOKENS],
        page_size=5,
        element_type="bfloat16",
        pages="all",
        copy=False,
    )
    assert all(np.shares_memory(tensor.page_pool, pages) for tensor in tensors)
    blocks = [1, 2, 3, 4, 5, 6, 7, 8]
    restore({"l": pages}, tensors, layout="2BNHD", block_ids=blocks, page_size=5)
    slots = pages.reshape(2, -1, HEADS, DIM)
    assert np.array_equal(slots[:, 5 : 5 + TOKENS], values)


def test_an_error_while_writing_names_the_pages(monkeypatch):
    layers = {name: memory.vllm("BHNC", *paged(values_of(), page_size=5, row=range(8), num_pages=8)) for name in "abc"}
    tensors = vllm.export_cache(
        layers,
        layout="BHNC",
        block_tables=[list(range(8))],
        seq_lens=[TOKENS],
        page_size=5,
        element_type="bfloat16",
        head_dim=DIM,
    )
    writing = page_moves.writing_pages
    calls = []

    def fail_at_the_second(*args, **options):
        copies = writing(*args, **options)
        calls.append(args)
        return replace(copies, steps=[fail]) if len(calls) == 2 else copies

    def fail():
        raise OSError("the mapping is gone")

    monkeypatch.setattr(page_moves, "writing_pages", fail_at_the_second)
    pool = {name: pool_of(5)["l"] for name in layers}
    blocks = list(range(8, 0, -1))
    with pytest.raises(LayoutError, match="the mapping is gone") as caught:
        restore(pool, tensors, block_ids=blocks, page_size=5)
    assert caught.value.actual == {"a": blocks, "b": blocks}
    assert caught.value.expected == dict.fromkeys("abc", blocks)
    assert isinstance(caught.value.__cause__, OSError)
    assert not (pool["a"] == FOREIGN).all()
    assert (pool["c"] == FOREIGN).all()


def test_groups_that_share_memory_get_blocks_of_their_own():
    words = np.full((12, HEADS, 5, 2 * DIM), FOREIGN, np.uint16)
    arrays = {"a": words, "b": words}
    source = {
        n: memory.vllm("BHNC", *paged(values_of(10, s), page_size=5, row=[0, 1], num_pages=2))
        for s, n in enumerate("ab")
    }
    groups = [vllm.cache_group([name], block_tables=[[0, 1]], seq_lens=[10], page_size=5) for name in "ab"]
    tensors = vllm.export_cache(source, layout="BHNC", groups=groups, element_type="bfloat16", head_dim=DIM)
    assert refused(arrays, tensors, block_ids={0: [3, 4], 1: [4, 5]}, page_size=5) == ([], [4])
    restore(arrays, tensors, block_ids={0: [3, 4], 1: [6, 5]}, page_size=5)
    assert np.array_equal(words[6], source["b"][0])
    assert np.array_equal(words[3], source["a"][0])
    one_list = refused(arrays, tensors, block_ids=[3, 4], page_size=5)
    assert one_list == ([0, 1], [0])


def test_two_layers_are_not_written_to_one_place():
    """A layer given twice would keep what is written last; layers that share their keys and values are such a pair."""
    pages = {name: paged(values_of(10, seed), page_size=5, row=[0, 1], num_pages=2) for seed, name in enumerate("ab")}
    own = {name: memory.vllm("BHNC", *both) for name, both in pages.items()}
    options = {"block_tables": [[0, 1]], "seq_lens": [10], "page_size": 5, "element_type": "bfloat16"}
    differ = vllm.export_cache(own, layout="BHNC", head_dim=DIM, **options)
    shared = vllm.export_cache({"a": own["a"], "b": own["a"]}, layout="BHNC", head_dim=DIM, **options)
    pool = pool_of(5)["l"]
    expected = ("memory of its own", ["a key values", "b key values"])
    assert refused({"a": pool, "b": pool}, differ, block_ids=[3, 4], page_size=5) == expected
    restore({"a": pool, "b": pool}, shared, block_ids=[3, 4], page_size=5)
    check({"l": pool}, 5, [3, 4], values_of(10, 0), stop=10)
    # Keys and values of one array.
    pair = flashinfer.export_cache(
        {"a": tuple(pages["a"])},
        layout="BNHD",
        kv_indptr=[0, 2],
        kv_indices=[0, 1],
        kv_last_page_len=[5],
        page_size=5,
        element_type="bfloat16",
    )
    keys = np.full((7, 5, HEADS, DIM), FOREIGN, np.uint16)
    with pytest.raises(LayoutError, match="same memory"):
        flashinfer.restore_into(
            {"a": (keys, keys)},
            pair,
            layout="BNHD",
            sequence=0,
            block_ids=[3, 4],
            page_size=5,
            expect=None,
            element_type="bfloat16",
        )
    assert (keys == FOREIGN).all()


def test_quantization_that_no_engine_keeps_is_not_dropped():
    key, value = stored()
    scales = np.ones(HEADS, np.float32)
    key = BlockPagedTensor.from_arrays(
        key.page_pool,
        key.block_table,
        key.seq_ptr,
        kv_role="key",
        sequences=key.sequences,
        quantization=PerChannel(1, 3),
        quantization_buffers=[scales],
        layer_name="l",
        kv_group=0,
    )
    pool = pool_of(5)
    with pytest.raises(UnsupportedError):
        restore(pool, [key, value], block_ids=list(range(8)), page_size=5)
    assert (pool["l"] == FOREIGN).all()


@pytest.mark.parametrize("differ", [{"seq_lens": [17]}, {"page_positions": [[0, 5, 15, 20]]}, {"ids": ["b"]}], ids=str)
def test_sequences_that_differ_within_a_group_are_refused(differ):
    key, value = (
        BlockPagedTensor.from_arrays(
            np.zeros((6, 5, HEADS, DIM), np.uint16),
            block_tables=[[4, 0, 3, 1]],
            element_type="bfloat16",
            kv_role=role,
            layer_name="l",
            kv_group=0,
            **{"seq_lens": [19], "ids": ["a"], **facts},
        )
        for role, facts in (("key", {}), ("value", differ))
    )
    pool = pool_of(5)
    refused(pool, [key, value], block_ids=[7, 8, 9, 11], page_size=5)
    assert (pool["l"] == FOREIGN).all()


@pytest.mark.parametrize("pages", [1, 3, -2])
def test_layers_that_lie_on_each_other_are_refused(pages):
    tensors = [replace(tensor, layer_name=name) for name in ("a", "b") for tensor in stored()]
    memory_of_both = np.full((60, 5, HEADS, 2 * DIM), FOREIGN, np.uint16)
    pool = {
        "a": memory_of_both[5:55].transpose(0, 2, 1, 3),
        "b": memory_of_both[5 + pages : 55 + pages].transpose(0, 2, 1, 3),
    }
    wrong = refused(pool, tensors, layout="BNHC", block_ids=list(range(10, 18)), page_size=5)
    assert wrong == ("memory of its own", ["a key", "b key"])
    # Page by page between each other is how some engines keep layers.
    pairs = np.full((50, 2, 5, HEADS, 2 * DIM), FOREIGN, np.uint16)
    beside = {name: pairs[:, place].transpose(0, 2, 1, 3) for place, name in enumerate("ab")}
    assert restore(beside, tensors, layout="BLNHC", block_ids=list(range(8)), page_size=5).num_tokens == TOKENS


def test_an_unknown_length_is_not_guessed():
    key, value = stored()
    tensors = [
        BlockPagedTensor.from_arrays(
            tensor.page_pool,
            block_tables=[[0, 1], [2]],
            total_tokens=11,
            kv_role=tensor.kv_role,
            layer_name="l",
        )
        for tensor in (key, value)
    ]
    with pytest.raises(UnknownSequenceLengthError):
        restore(pool_of(5), tensors, block_ids=[0, 1], page_size=5)


def test_tensors_without_names_go_by_their_number_and_tables():
    key, value = stored()
    bare = [
        BlockPagedTensor.from_arrays(
            tensor.page_pool,
            tensor.block_table,
            tensor.seq_ptr,
            kv_role=tensor.kv_role,
            sequences=tensor.sequences,
            layer_index=31,
        )
        for tensor in (key, value)
    ]
    pool = {"31": pool_of(5)["l"]}
    restore(pool, bare, block_ids=list(range(8)), page_size=5)
    check({"l": pool["31"]}, 5, list(range(8)), values_of())
    twice = refused(pool, [*bare, bare[0]], block_ids=list(range(8)), page_size=5)
    assert twice == (1, 2)


def test_through_a_snapshot_file(tmp_path):
    """Out of one engine's pool, through a file, into another one's pool of another layout and page size."""
    tensors = stored(16, layout="BLNHC", ids=["s"])
    metadata = {"model": {"name": "m", "revision": "9f2c"}, **vllm.metadata(tensors, layout="BLNHC", version="0.33.0")}
    path = tmp_path / "cache.arrow"
    write_snapshot(path, tensors, metadata=metadata)
    pool, blocks = pool_of(3), blocks_for(TOKENS, 3)
    with open_snapshot(path) as snapshot:
        restore(
            pool,
            list(snapshot.iter_tensors()),
            sequence="s",
            block_ids=blocks,
            page_size=3,
            metadata=snapshot.metadata,
            expect={"model.revision": "9f2c", "engine.name": "vllm", "engine.source_layout": "BLNHC"},
        )
    check(pool, 3, blocks, values_of())
