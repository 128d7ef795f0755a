"""The faults of the field, one test each: what silently corrupted a cache elsewhere is right here, or refused.

The numbers are those of the project's list of known faults; the reports are named by repository and number.
"""

from __future__ import annotations

import numpy as np
import pytest

from hurray_arrow.engines import flashinfer, sglang, vllm
from hurray_arrow.engines.page_copies import reading_pages, writing_pages
from hurray_arrow.errors import LayoutError, SnapshotMismatchError, UnsupportedError
from hurray_arrow.schemes import PerTensor
from tests.engines import memory

PAGES, SLOTS, HEADS, DIM = 11, 5, 3, 7
ROWS, LENS = [[3, 8, 10], [8, 1]], [13, 6]


def bits(*shape, seed=1, dtype=np.uint16):
    return np.random.default_rng(seed).integers(0, 0xFFF0 if dtype == np.uint16 else 256, shape, dtype=dtype)


def dense(pages=PAGES, slots=SLOTS, heads=HEADS, dim=DIM, seed=1):
    return bits(pages, slots, heads, dim, seed=seed), bits(pages, slots, heads, dim, seed=seed + 100)


def export(arrays, layout, **changes):
    options = {
        "block_tables": ROWS,
        "seq_lens": LENS,
        "page_size": SLOTS,
        "element_type": "bfloat16",
        "head_dim": DIM,
        **changes,
    }
    return vllm.export_cache(arrays, layout=layout, **{k: v for k, v in options.items() if v is not None})


def tokens(pages, row, length):
    return np.concatenate([pages[page] for page in row])[:length] if row else pages[:0].reshape(0, *pages.shape[2:])


def refused(call, *args, **options):
    with pytest.raises(LayoutError) as caught:
        call(*args, **options)
    return caught.value.expected, caught.value.actual


# -- layout, strides, permutation --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "heads"), [(5, 2), (3, 3), (2, 2), (2, 5)])
@pytest.mark.parametrize("layout", ["2BNHD", "2BHND", "B2NHD", "B2HND", "BHNC", "BNHC"])
def test_fault_1_two_heads_and_as_many_heads_as_slots(slots, heads, layout):
    """LMCache 4463: shapes that fit two layouts. The name decides, and each gives the same tokens."""
    keys, values = dense(slots=slots, heads=heads)
    lens = [2 * slots + 1, slots + 1]
    arrays = {"l": memory.vllm(layout, keys, values)}
    key, value = export(arrays, layout, page_size=slots, seq_lens=lens, num_heads=heads)
    for seq, row in enumerate(ROWS):
        assert np.array_equal(key.gather(seq).view(np.uint16), tokens(keys, row, lens[seq]))
        assert np.array_equal(value.gather(seq).view(np.uint16), tokens(values, row, lens[seq]))


@pytest.mark.parametrize(
    ("held", "named", "expected", "actual"),
    [
        ("BHNC", "BNHC", "BNHC", "BHNC"),
        ("BNHC", "BHNC", "BHNC", "BNHC"),
        ("LHBNC", "LBHNC", "BHNC", "HBNC"),
        ("2BHND", "2BNHD", "2BNHD", "2BHND"),
        ("B2NHD", "B2HND", "B2HND", "B2NHD"),
    ],
)
def test_fault_1_strides_tell_layouts_of_equal_shape_apart(held, named, expected, actual):
    keys, values = dense(slots=3, heads=3)
    assert refused(export, {"l": memory.vllm(held, keys, values)}, named, page_size=3, seq_lens=[7, 4]) == (
        expected,
        actual,
    )


def test_fault_1_no_layout_is_no_call():
    with pytest.raises(TypeError, match="layout"):
        vllm.export_cache({"l": np.empty(0)}, block_tables=[], seq_lens=[], page_size=5)


def test_fault_2_the_page_size_is_said_and_checked():
    """LMCache 4253: HND read as NHD, block size found to be 1."""
    array = memory.flashinfer("B2HND", *dense())
    tables = {"kv_indptr": [0, 1], "kv_indices": [3], "kv_last_page_len": [1]}
    options = {"element_type": "bfloat16", **tables}
    assert refused(flashinfer.export_cache, {"l": array}, layout="B2NHD", page_size=SLOTS, **options) == (SLOTS, HEADS)
    assert refused(flashinfer.export_cache, {"l": array}, layout="B2HND", page_size=1, **options) == (1, SLOTS)
    wrong = {"layout": "B2HND", "page_size": SLOTS, **options}
    assert refused(flashinfer.export_cache, {"l": array}, num_heads=4, **wrong) == (4, HEADS)
    assert refused(flashinfer.export_cache, {"l": array}, head_dim=8, **wrong) == (8, DIM)


def test_fault_3_blocks_first_is_another_layout_than_keys_first():
    """LMCache 2494: code expected (2, B, …), the cache was (B, 2, …)."""
    blocks_first = memory.vllm("B2NHD", *dense())
    assert refused(export, {"l": blocks_first}, "2BNHD") == (2, PAGES)
    assert refused(export, {"l": memory.vllm("2BNHD", *dense())}, "B2NHD") == (2, PAGES)


def test_fault_4_views_that_are_not_contiguous_are_read_by_their_strides():
    """LMCache 2826: HND views taken for dense memory. Here pages are padded too, and the view starts inside."""
    keys, values = dense()
    c = np.concatenate([keys, values], axis=-1).transpose(0, 2, 1, 3)
    memory_words = np.full(4000, memory.GAP, np.uint16)
    page_words = HEADS * SLOTS * 2 * DIM + 13
    view = np.lib.stride_tricks.as_strided(
        memory_words[29:], c.shape, [2 * n for n in (page_words, SLOTS * 2 * DIM, 2 * DIM, 1)]
    )
    view[...] = c
    key, value = export({"l": view}, "BHNC")
    assert np.array_equal(key.gather(0).view(np.uint16), tokens(keys, ROWS[0], 13))
    assert np.array_equal(value.gather(1).view(np.uint16), tokens(values, ROWS[1], 6))


def test_fault_5_a_latent_has_no_heads_to_order():
    """LMCache 4798: a cache without heads flipped to HND."""
    latent = bits(PAGES, SLOTS, 13)
    assert refused(export, {"l": latent}, "BHNC") == ([4], 3)
    assert refused(export, {"l": latent[:, np.newaxis]}, "BHNC", head_dim=13, head_dim_v=0) == ("BNC", "BHNC")
    assert refused(export, {"l": latent}, "BNC", num_heads=2, head_dim=None) == (1, 2)
    for array in (latent, latent[:, np.newaxis]):
        (fused,) = export({"l": array}, "BNC", head_dim=None)
        assert (fused.kv_role, fused.num_heads, fused.head_dim) == ("fused", 1, 13)
        assert np.array_equal(fused.gather(0).view(np.uint16)[:, 0], tokens(latent, ROWS[0], 13))


def test_fault_6_head_dims_differ_by_layer_and_role():
    """LMCache 4358: 256 and 512 in one model."""
    narrow, wide = dense(dim=7), dense(dim=13, seed=5)
    uneven = (dense(dim=7)[0], dense(dim=11, seed=9)[1])
    arrays = {name: memory.vllm("BHNC", *pair) for name, pair in {"a": narrow, "b": wide, "c": uneven}.items()}
    dims = {"head_dim": {"a": 7, "b": 13, "c": 7}, "head_dim_v": {"a": 7, "b": 13, "c": 11}}
    tensors = export(arrays, "BHNC", **dims)
    assert [tensor.head_dim for tensor in tensors] == [7, 7, 13, 13, 7, 11]
    assert np.array_equal(tensors[5].gather(0).view(np.uint16), tokens(uneven[1], ROWS[0], 13))
    assert refused(export, arrays, "BHNC", head_dim=7) == (14, 26)
    assert refused(export, arrays, "BHNC", head_dim={"a": 7}) == ("b", ["a"])


def test_fault_7_the_layer_is_in_every_tensor():
    """LMCache 683: layers written under another's format."""
    pairs = [dense(seed=seed) for seed in (1, 2, 3)]
    arrays = {f"model.layers.{n + 40}": memory.vllm("BHNC", *pair) for n, pair in enumerate(pairs)}
    numbers = {name: n + 40 for n, name in enumerate(arrays)}
    tensors = export(arrays, "BHNC", layer_indices=numbers)
    assert [tensor.layer_index for tensor in tensors] == [40, 40, 41, 41, 42, 42]
    back = vllm.import_cache(reversed(tensors), layout="BHNC", expect=None)
    rows = [tensors[0].page_ids(seq).tolist() for seq in (0, 1)]
    again = export({name: back[name] for name in arrays}, "BHNC", block_tables=rows, layer_indices=numbers)
    assert all(one.equals(other) for one, other in zip(tensors, again, strict=True))


def test_fault_8_three_four_and_five_axes_by_their_names():
    """LMCache 2752: code insisted on four."""
    keys, values = dense()
    assert len(export({"l": memory.vllm("2BNHD", keys, values)}, "2BNHD")) == 2
    assert len(export({"l": memory.vllm("BHNC", keys, values)}, "BHNC")) == 2
    assert len(export({"l": bits(PAGES, SLOTS, 13)}, "BNC", head_dim=None)) == 1
    assert refused(export, {"l": memory.vllm("2BNHD", keys, values)}, "BHNC") == ([4], 5)
    assert refused(export, {"l": object()}, "BHNC") == ("an array", "object")


def test_fault_9_the_layout_is_recorded_at_capture():
    """vLLM 46204: a global default forced HND on a backend that was NHD."""
    arrays = {"a": memory.vllm("BHNC", *dense()), "b": memory.vllm("BNHC", *dense())}
    layout = {"a": "BHNC", "b": "BNHC"}
    tensors = export(arrays, layout)
    found = vllm.metadata(tensors, layout=layout, version="0.33.0")
    assert found["engine"]["source_layout"] == "BHNC, BNHC"
    assert refused(export, {"b": arrays["b"]}, "BHNC") == ("BHNC", "BNHC")


def test_fault_11_writes_are_not_lost_in_a_permuted_copy():
    """vLLM 30448: the permuted copy was written, the cache was not."""
    for layout in ("BHNC", "BLHNC", "LHBNC", "B2HND", "BHNC-cpu"):
        keys, values = dense()
        pool = {"l": memory.vllm(layout, *dense(seed=50))}
        tensors = export({"l": memory.vllm(layout, keys, values)}, layout)
        vllm.restore_into(
            pool,
            tensors,
            layout=layout,
            sequence=1,
            block_ids=[7, 2],
            page_size=SLOTS,
            expect=None,
            element_type="bfloat16",
        )
        key, value = export(pool, layout, block_tables=[[7, 2]], seq_lens=[6])
        assert np.array_equal(key.gather(0).view(np.uint16), tokens(keys, ROWS[1], 6)), layout
        assert np.array_equal(value.gather(0).view(np.uint16), tokens(values, ROWS[1], 6)), layout


def test_fault_12_packed_rows_come_out_dense():
    """vLLM 47783: a kernel could not read packed strides."""
    tensors = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    assert all(tensor.page_pool.flags.c_contiguous for tensor in tensors)


def test_fault_15_and_18_offsets_past_2_and_4_gib(tmp_path):
    """int32 strides and byte offsets above 2 GiB: a sparse file of 6 GiB, of which three pages are touched."""
    pages, slots, heads, dim = 6 * 2**30 // (2 * 16 * 8 * 128 * 2), 16, 8, 128
    pool = np.memmap(tmp_path / "pool", np.uint16, "w+", shape=(pages, heads, slots, 2 * dim))
    last = pages - 1
    row = [1, pages // 2, last]
    marks = bits(3, slots, heads, 2 * dim)
    for page, mark in zip(row, marks, strict=True):
        pool[page] = mark.transpose(1, 0, 2)
    key, value = vllm.export_cache(
        {"l": pool},
        layout="BHNC",
        block_tables=[row],
        seq_lens=[3 * slots],
        page_size=slots,
        element_type="bfloat16",
        head_dim=dim,
    )
    assert key.num_pages == value.num_pages == 3
    assert np.array_equal(key.page_pool.view(np.uint16), marks[..., :dim])
    assert np.array_equal(value.page_pool.view(np.uint16), marks[..., dim:])
    vllm.restore_into(
        {"l": pool},
        [key, value],
        layout="BHNC",
        sequence=0,
        block_ids=[last - 1, 3, last - 2],
        page_size=slots,
        expect=None,
        element_type="bfloat16",
    )
    assert np.array_equal(pool[last - 1], pool[1])
    assert np.array_equal(pool[last - 2], pool[last])
    assert not pool[last - 3].any()


def test_fault_16_and_17_ids_are_64_bits_wide():
    """FlashInfer 3136, vLLM 50427: products of 32-bit ids wrapped. Ids of the narrowest type name far pages here."""
    pages = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (2**31, 1, 1, 1), (0, 0, 0, 0))
    out = np.ones((2, 1, 1, 1), np.uint16)
    reading_pages([(pages, out)], page_ids=np.array([2**31 - 1, 2**30], np.int64)).run()
    assert not out.any()
    slots = np.array([[7 * 2**28 * 16]], np.int64)
    from hurray_arrow.engines.tables import of_req_to_token

    assert of_req_to_token(slots, [1], page_size=16).pages[0].tolist() == [7 * 2**28]


def test_fault_20_packed_grouped_query_heads_are_no_latent():
    """FlexKV 252, LMCache 4179: one region taken for MLA. Keys and values come apart, a latent stays one."""
    packed = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    assert [tensor.kv_role for tensor in packed] == ["key", "value"]
    assert refused(export, {"l": memory.vllm("BHNC", *dense())}, "BNC", head_dim=None) == (1, HEADS)
    assert refused(export, {"l": memory.vllm("BHNC", *dense())}, "BHNC", head_dim=None) == ("head_dim=", None)
    assert refused(vllm.import_cache, packed, layout="BNC", expect=None)[0] == [("fused", "values")]


def test_fault_20b_manager_blocks_of_several_kernel_blocks():
    """vLLM 51718: stride(0) is the kernel's block, tables name the manager's."""
    keys, values = dense(pages=12, slots=5)
    array = memory.vllm("BNHC", keys, values)
    # Blocks of 15 tokens are 3 pages of 5: block 2 is pages 6, 7 and 8.
    key, _ = export({"l": array}, "BNHC", block_tables=[[2, 0], [3]], seq_lens=[17, 4], block_size=15)
    assert key.block_table.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(key.gather(0).view(np.uint16), tokens(keys, [6, 7, 8, 0], 17))
    assert np.array_equal(key.gather(1).view(np.uint16), tokens(keys, [9], 4))
    assert refused(export, {"l": array}, "BNHC", block_size=12) == (5, 12)
    assert refused(export, {"l": array}, "BNHC", block_tables=[[4]], seq_lens=[1], block_size=15) == (12, 12)
    # The kernel's view spans other layers: 4 pages from one block to the next, of which 3 are this layer's.
    key, _ = export({"l": array}, "BNHC", block_tables=[[2]], seq_lens=[13], block_size=15, block_stride=4)
    assert np.array_equal(key.gather(0).view(np.uint16), tokens(keys, [8, 9, 10], 13))
    for stride in (2, 0, -3):
        options = {"block_tables": [[2]], "seq_lens": [13], "block_size": 15, "block_stride": stride}
        assert refused(export, {"l": array}, "BNHC", **options) == (3, stride)


# -- lengths, tables, padding, empties ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [0, -1, 10, 2**31 - 1])
def test_fault_21_padding_is_cut_by_length(pad):
    """vLLM 35431: padding is -1 or 0, by backend."""
    arrays = {"l": memory.vllm("BHNC", *dense())}
    padded = export(arrays, "BHNC", block_tables=memory.rectangle(ROWS, pad=pad))
    assert all(one.equals(other) for one, other in zip(padded, export(arrays, "BHNC"), strict=True))


def test_fault_21_minus_one_inside_the_length_is_refused():
    arrays = {"l": memory.vllm("BHNC", *dense())}
    assert refused(export, arrays, "BHNC", block_tables=[[3, -1, 10], [8, 1]]) == (PAGES, -1)
    slots = [*memory.slots_of([3, 8, 10], 13, 5), *memory.slots_of([8, 1], 6, 5)]
    slots[7] = -1
    assert refused(export, arrays, "BHNC", block_tables=None, slot_mapping=slots) == (42, -1)


def test_fault_22_stale_columns_are_not_read():
    """vLLM 39643: what an earlier request left behind the valid part."""
    table = memory.rectangle(ROWS, pad=0)
    table[0, 3:], table[1, 2:], table[2:] = 777, -5, 4
    arrays = {"l": memory.vllm("BHNC", *dense())}
    tensors = export(arrays, "BHNC", block_tables=table)
    assert all(one.equals(other) for one, other in zip(tensors, export(arrays, "BHNC"), strict=True))


def test_fault_23_nothing_beside_the_own_pages_is_written():
    """vLLM 43990: a zeroing routine wiped the next block. Gaps, neighbours and the rest of the last page stay."""
    words = np.full(6000, memory.GAP, np.uint16)
    page_words = HEADS * SLOTS * 2 * DIM + 3
    strides = [2 * n for n in (page_words, SLOTS * 2 * DIM, 2 * DIM, 1)]
    view = np.lib.stride_tricks.as_strided(words[17:], (PAGES, HEADS, SLOTS, 2 * DIM), strides)
    tensors = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    vllm.restore_into(
        {"l": view},
        tensors,
        layout="BHNC",
        sequence=0,
        block_ids=[4, 0, 9],
        page_size=SLOTS,
        expect=None,
        element_type="bfloat16",
    )
    assert np.array_equal(view[4, :, :, :DIM].transpose(1, 0, 2), dense()[0][3])
    view[[4, 0]] = memory.GAP
    view[9, :, :3] = memory.GAP
    assert (words == memory.GAP).all()


def test_fault_24_and_25_ids_are_checked_before_they_are_used():
    """vllm-rbln 1102, onnxruntime 32391: -1 and too large ids became places outside the memory."""
    arrays = {"l": memory.vllm("BHNC", *dense())}
    for page in (-1, PAGES, 2**40, -(2**40)):
        assert refused(export, arrays, "BHNC", block_tables=[[3, 8, page], [8, 1]]) == (PAGES, page)
    pool, tensors = {"l": memory.vllm("BHNC", *dense(seed=9))}, export(arrays, "BHNC")
    before = pool["l"].copy()
    for page, expected in ((PAGES, PAGES), (2**40, PAGES), (-1, 0)):
        options = {"sequence": 0, "page_size": SLOTS, "expect": None, "element_type": "bfloat16", "layout": "BHNC"}
        assert refused(vllm.restore_into, pool, tensors, block_ids=[1, page, 2], **options) == (expected, page)
    assert np.array_equal(pool["l"], before)


@pytest.mark.parametrize(("last", "actual"), [([6, 1], 6), ([0, 1], 0), ([3, -1], -1)])
def test_fault_26_last_page_len_is_1_to_page_size(last, actual):
    """FlashInfer 320: a last page longer than a page was not noticed."""
    options = {"kv_indptr": [0, 3, 5], "kv_indices": [3, 8, 10, 8, 1], "page_size": SLOTS, "element_type": "bfloat16"}
    arrays = {"l": memory.flashinfer("B2NHD", *dense())}
    assert refused(flashinfer.export_cache, arrays, layout="B2NHD", kv_last_page_len=last, **options) == (SLOTS, actual)


def test_fault_26_an_int64_length_is_refused():
    """FlashInfer 1654: an int64 kv_last_page_len gave zeros without an error."""
    options = {
        "kv_indptr": np.array([0, 3], np.int32),
        "kv_indices": np.array([3, 8, 10], np.int32),
        "page_size": SLOTS,
    }
    arrays = {"l": memory.flashinfer("B2NHD", *dense())}
    last = np.array([3], np.int64)
    wrong = refused(
        flashinfer.export_cache, arrays, layout="B2NHD", kv_last_page_len=last, element_type="bfloat16", **options
    )
    assert wrong == ("int32", "int64")


def test_fault_28_sequences_shorter_than_a_page():
    """FlashInfer 725."""
    keys, values = dense()
    key, value = export({"l": memory.vllm("BHNC", keys, values)}, "BHNC", block_tables=[[4], [0]], seq_lens=[1, 4])
    assert np.array_equal(key.gather(0).view(np.uint16), keys[4, :1])
    assert np.array_equal(value.gather(1).view(np.uint16), values[0, :4])
    pool = {"l": memory.vllm("BHNC", *dense(seed=8))}
    before = pool["l"].copy()
    vllm.restore_into(
        pool,
        [key, value],
        layout="BHNC",
        sequence=0,
        block_ids=[5],
        page_size=SLOTS,
        expect=None,
        element_type="bfloat16",
    )
    assert np.array_equal(pool["l"][5, :, 0, :DIM], keys[4, 0])
    pool["l"][5, :, 0] = before[5, :, 0]
    assert np.array_equal(pool["l"], before)


@pytest.mark.parametrize(("rows", "lens"), [([], []), ([[]], [0]), ([[], [2], []], [0, 3, 0])])
def test_fault_29_empty_batches_and_sequences(rows, lens):
    """FlashMLA 11, flash-attention 2470: crashes on zero-length sequences."""
    for layout in ("BHNC", "2BNHD", "BHNC-cpu"):
        tensors = export({"l": memory.vllm(layout, *dense())}, layout, block_tables=rows, seq_lens=lens)
        back = vllm.import_cache(tensors, layout=layout, expect=None)
        assert back["l"].shape[layout.startswith("2")] == len(lens) - lens.count(0) if lens else not back["l"].size
        for seq, length in enumerate(lens):
            blocks, pool = [6] * bool(length), {"l": memory.vllm(layout, *dense(seed=4))}
            restored = vllm.restore_into(
                pool,
                tensors,
                layout=layout,
                sequence=seq,
                block_ids=blocks,
                page_size=SLOTS,
                expect=None,
                element_type="bfloat16",
            )
            assert restored.num_tokens == length


@pytest.mark.parametrize("layout", ["BHNC", "BNHC", "BHNC-cpu", "2BNHD", "B2HND"])
def test_fault_29_a_pool_without_pages(layout):
    keys, values = dense(pages=0)
    (key, value) = export(
        {"l": memory.vllm(layout, keys, values)}, layout, block_tables=[[]], seq_lens=[0], pages="all"
    )
    assert (key.num_pages, value.num_pages, key.num_seqs) == (0, 0, 1)


def test_fault_30_a_chunk_of_the_prompt_is_not_the_prompt():
    """vLLM 16928: with chunked prefill only the first chunk was saved, the whole prompt was claimed."""
    arrays = {"l": memory.vllm("BHNC", *dense())}
    first_chunk = memory.slots_of([3, 8, 10], 8, 5)
    assert refused(export, arrays, "BHNC", block_tables=None, slot_mapping=first_chunk, seq_lens=[13]) == (13, 8)
    assert refused(export, arrays, "BHNC", block_tables=[[3, 8]], seq_lens=[13]) == (3, 2)
    tensors = export(arrays, "BHNC", seq_lens=[8, 6])
    pool = {"l": memory.vllm("BHNC", *dense())}
    options = {"layout": "BHNC", "page_size": SLOTS, "expect": None, "element_type": "bfloat16", "sequence": 0}
    assert refused(vllm.restore_into, pool, tensors, block_ids=[1, 2, 3], tokens=13, **options) == (13, 8)


def test_fault_33_and_34_groups_with_tables_and_page_sizes_of_their_own():
    """vLLM 42895, 54413: hybrid groups with different block sizes."""
    full, small = dense(), dense(pages=17, slots=2, heads=5, seed=7)
    arrays = {"a": memory.vllm("BHNC", *full), "b": memory.vllm("BNHC", *small), "c": memory.vllm("BHNC", *full)}
    groups = [
        vllm.cache_group(["a", "c"], block_tables=ROWS, seq_lens=LENS, page_size=5),
        vllm.cache_group(["b"], block_tables=[[1, 16, 3, 9, 11, 2, 7], [1, 4, 5]], seq_lens=LENS, page_size=2),
    ]
    options = {"layout": {"a": "BHNC", "b": "BNHC", "c": "BHNC"}, "element_type": "bfloat16", "head_dim": DIM}
    tensors = vllm.export_cache(arrays, groups=groups, **options)
    assert [(t.layer_name, t.kv_group, t.page_size) for t in tensors[::2]] == [("a", 0, 5), ("b", 1, 2), ("c", 0, 5)]
    assert np.array_equal(tensors[2].gather(1).view(np.uint16), tokens(small[0], [1, 4, 5], 6))
    pool = {name: np.full_like(array, memory.GAP) for name, array in arrays.items()}
    restored = vllm.restore_into(
        pool,
        tensors,
        layout=options["layout"],
        sequence=1,
        block_ids={0: [6, 5], 1: [10, 12, 0]},
        page_size={0: 5, 1: 2},
        expect=None,
        element_type="bfloat16",
    )
    assert {group: ids.tolist() for group, ids in restored.page_ids.items()} == {0: [6, 5], 1: [10, 12, 0]}
    assert np.array_equal(pool["b"][12, :, :, :DIM].transpose(1, 0, 2), small[0][4])
    assert np.array_equal(pool["c"][6, :, :, DIM:].transpose(1, 0, 2), full[1][8])
    assert refused(vllm.export_cache, arrays, groups=groups[:1], **options) == (["a", "b", "c"], ["a", "c"])
    twice = [groups[0], vllm.cache_group(["b", "c"], block_tables=[], seq_lens=[], page_size=2)]
    assert refused(vllm.export_cache, arrays, groups=twice, **options) == (["a", "b", "c"], ["a", "b", "c", "c"])


def test_fault_38_and_39_no_byte_of_another_request_leaves():
    """TensorRT-LLM 15018, 8813: orphaned blocks and unused slots were exported."""
    keys, values = dense()
    for pages in (keys, values):
        keep = np.zeros(pages.shape[:2], np.bool_)
        keep[[3, 8], :], keep[10, :3], keep[1, :1] = True, True, True
        pages[~keep] = 0xFFFF
    for layout in ("BHNC", "2BNHD", "B2HND", "BHNC-cpu"):
        for tensor in export({"l": memory.vllm(layout, keys, values)}, layout):
            assert tensor.num_pages == 4
            assert not (tensor.page_pool.view(np.uint16) == 0xFFFF).any(), layout


def test_fault_40_a_hole_is_named_by_its_page():
    """SGLang 26886: the first pages were missing, and later ones were of no use."""
    keys, values = dense()
    group = vllm.cache_group(
        ["l"],
        block_tables=[[0, 0, 4, 6]],
        seq_lens=[17],
        page_size=SLOTS,
        kind="sliding_window",
        window_tokens=7,
        null_block=0,
    )
    tensors = vllm.export_cache(
        {"l": memory.vllm("BHNC", keys, values)}, layout="BHNC", groups=[group], element_type="bfloat16", head_dim=DIM
    )
    assert tensors[0].sequences.page_positions[0].tolist() == [10, 15]
    assert tensors[0].positions(0).tolist() == list(range(10, 17))
    pool = {"l": memory.vllm("BHNC", *dense(seed=3))}
    before = pool["l"].copy()
    options = {"layout": "BHNC", "page_size": SLOTS, "expect": None, "element_type": "bfloat16", "sequence": 0}
    with pytest.raises(LayoutError, match="page 1 of the sequence") as caught:
        vllm.restore_into(pool, tensors, block_ids=[None, 2, 3, 5], **options)
    assert caught.value.expected == 5
    assert np.array_equal(pool["l"], before)
    restored = vllm.restore_into(pool, tensors, block_ids=[0, 0, 3, 5], null_block=0, **options)
    assert restored.page_ids[0].tolist() == [3, 5]
    assert np.array_equal(pool["l"][3, :, :, :DIM].transpose(1, 0, 2), keys[4])


def test_a_null_block_is_one_only_where_the_caller_says_so():
    """Block 0 of another engine, or of a group without a window, is a page like any other."""
    keys, values = dense()
    key, _ = export({"l": memory.vllm("BHNC", keys, values)}, "BHNC", block_tables=[[0, 3]], seq_lens=[8])
    assert np.array_equal(key.gather(0).view(np.uint16), tokens(keys, [0, 3], 8))
    options = {"block_tables": [[0, 3]], "seq_lens": [8], "page_size": 5}
    assert refused(vllm.cache_group, ["l"], null_block=0, **options) == (("sliding_window", "chunked"), "full")


# -- types, scales, quantization ---------------------------------------------------------------------------------------


def scaled(dim_k=8, dim_v=4):
    return bits(PAGES, HEADS, SLOTS, dim_k + 4 + dim_v + 4, dtype=np.uint8)


def test_fault_41_scales_per_token_and_head_stay_with_their_values():
    """vLLM 48412: offloading lost them."""
    array = scaled()
    options = {"element_type": "float8_e4m3", "head_dim": 8, "head_dim_v": 4}
    tensors = export({"l": array}, "BHNC-token_scales", **options)
    assert [(t.kv_role, t.component, str(t.element_type), t.head_dim) for t in tensors] == [
        ("key", "values", "float8_e4m3", 8),
        ("key", "scales", "float32", 1),
        ("value", "values", "float8_e4m3", 4),
        ("value", "scales", "float32", 1),
    ]
    raw = array[3].transpose(1, 0, 2)
    assert np.array_equal(tensors[0].gather(0)[:5].view(np.uint8), raw[..., :8])
    assert np.array_equal(tensors[1].gather(0)[:5].view(np.uint8), raw[..., 8:12])
    assert np.array_equal(tensors[2].gather(0)[:5].view(np.uint8), raw[..., 12:16])
    assert np.array_equal(tensors[3].gather(0)[:5].view(np.uint8), raw[..., 16:])
    pool = {"l": np.full_like(array, 0xEE)}
    restore = {
        "layout": "BHNC-token_scales",
        "page_size": SLOTS,
        "expect": None,
        "sequence": 0,
        "element_type": "float8_e4m3",
    }
    vllm.restore_into(pool, tensors, block_ids=[5, 1, 0], **restore)
    assert np.array_equal(pool["l"][[5, 1]], array[[3, 8]])
    assert np.array_equal(pool["l"][0, :, :3], array[10, :, :3])
    assert (pool["l"][0, :, 3:] == 0xEE).all()
    missing = refused(vllm.restore_into, pool, tensors[:3], block_ids=[5, 1, 0], **restore)
    assert set(missing[0]) - set(missing[1]) == {("value", "scales")}
    assert refused(export, {"l": array}, "BHNC-token_scales", **options, scales=(1.0, 1.0)) == (0, 2)


def test_fault_42_scales_of_8_bit_values_are_said():
    """vLLM 51691: a form without its quantization is unreadable."""
    keys, values = bits(PAGES, SLOTS, HEADS, 8, dtype=np.uint8), bits(PAGES, SLOTS, HEADS, 8, seed=3, dtype=np.uint8)
    arrays = {"l": memory.vllm("BHNC", keys, values)}
    options = {"element_type": "float8_e4m3", "head_dim": 8}
    assert refused(export, arrays, "BHNC", **options) == (2, 0)
    assert refused(export, arrays, "BHNC", **options, scales=0.5) == (2, 1)
    tensors = export(arrays, "BHNC", **options, scales=(0.1, np.float32(3.7)))
    assert [tensor.quantization for tensor in tensors] == [PerTensor(0.1), PerTensor(3.7)]
    pool = {"l": memory.vllm("BHNC", keys, values)}
    restore = {"layout": "BHNC", "page_size": SLOTS, "expect": None, "sequence": 0, "element_type": "float8_e4m3"}
    stored = (float(np.float32(0.1)), float(np.float32(3.7)))
    assert refused(vllm.restore_into, pool, tensors, block_ids=[5, 1, 0], **restore) == ((), stored)
    one = refused(vllm.restore_into, pool, tensors, block_ids=[5, 1, 0], **restore, scales=(1.0, 1.0))
    assert one == ((1.0, 1.0), stored)
    vllm.restore_into(pool, tensors, block_ids=[5, 1, 0], **restore, scales=(0.1, 3.7))
    assert np.array_equal(pool["l"][[5, 1]], memory.vllm("BHNC", keys, values)[[3, 8]])


def test_fault_43_records_are_never_read_as_values():
    """vLLM 38652: 656-byte records read as 576 float8."""
    array = bits(PAGES, SLOTS, 656, dtype=np.uint8)
    assert refused(export, {"l": array}, "BNC", element_type="float8_e4m3", head_dim=None, scales=1.0) == (
        "head_dim=",
        None,
    )
    assert refused(export, {"l": array}, "BNC", element_type="float8_e4m3", head_dim=576, scales=1.0) == (576, 656)
    records = "BNC-fp8_ds_mla"
    assert refused(export, {"l": array}, records, element_type="float8_e4m3", head_dim=None) == ("uint8", "float8_e4m3")
    (record,) = export({"l": array}, records, element_type="uint8", head_dim=None)
    assert (record.component, record.kv_role, record.page_pool.shape[1:]) == ("record.fp8_ds_mla", "fused", (5, 1, 656))
    assert np.array_equal(record.gather(1)[:, 0], tokens(array, ROWS[1], 6))
    back = vllm.import_cache([record], layout=records, expect=None)
    assert np.array_equal(back["l"][:2], array[[3, 8]])
    short = array[..., :576]
    assert refused(export, {"l": short}, records, element_type="uint8", head_dim=None) == (656, 576)


def test_fault_14_and_43_a_latent_and_its_indexer_move_together():
    """SGLang 38031: the indexer's pages and the latent's came apart."""
    arrays = {
        "mla": bits(PAGES, SLOTS, 656, dtype=np.uint8),
        "indexer": bits(PAGES, SLOTS, 132, seed=2, dtype=np.uint8),
    }
    layout = {"mla": "BNC-fp8_ds_mla", "indexer": "BNC-indexer"}
    tensors = export(arrays, layout, element_type="uint8", head_dim=None)
    assert [tensor.component for tensor in tensors] == ["record.fp8_ds_mla", "page.indexer"]
    pool = {name: np.full_like(array, 0xEE) for name, array in arrays.items()}
    options = {"layout": layout, "page_size": SLOTS, "expect": None, "sequence": 0, "element_type": "uint8"}
    one = {"mla": pool["mla"]}
    assert refused(vllm.restore_into, one, tensors, block_ids=[5, 1, 0], **options) == (["mla"], ["indexer", "mla"])
    assert refused(vllm.restore_into, pool, tensors[:1], block_ids=[5, 1, 0], **options)[1] == ["mla"]
    # Part of an indexer's page has no meaning: the last one is restored whole, and never from pages of another size.
    vllm.restore_into(pool, tensors, block_ids=[5, 1, 0], **options)
    assert np.array_equal(pool["indexer"][[5, 1, 0]], arrays["indexer"][[3, 8, 10]])
    assert np.array_equal(pool["mla"][0, :3], arrays["mla"][10, :3])
    assert (pool["mla"][0, 3:] == 0xEE).all()
    others = {name: np.full((40, 1, array.shape[2]), 0xEE, np.uint8) for name, array in arrays.items()}
    small = {**options, "page_size": 1}
    assert refused(vllm.restore_into, others, tensors, block_ids=list(range(13)), **small) == (
        [],
        [1, 2, 3, 4, 6, 7, 8, 9, 11, 12],
    )
    assert all((array == 0xEE).all() for array in others.values())


def test_fault_44_the_type_is_compared_and_not_only_the_size():
    """SGLang 33268: float8 bytes loaded as bfloat16."""
    tensors = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    pool = {"l": memory.vllm("BHNC", *dense())}
    options = {"layout": "BHNC", "page_size": SLOTS, "sequence": 0, "block_ids": [5, 1, 0]}
    for element in ("float16", "uint16"):
        wrong = refused(vllm.restore_into, pool, tensors, expect=None, element_type=element, **options)
        assert wrong == (element, "bfloat16")
    with pytest.raises(SnapshotMismatchError):
        vllm.restore_into(pool, tensors, expect={"element_type": "float16"}, element_type="bfloat16", **options)
    assert refused(export, {"l": np.zeros((PAGES, HEADS, SLOTS, 14), np.float32)}, "BHNC") == ("bfloat16", "float32")


def test_fault_50_bfloat16_never_goes_through_float32():
    """safetensors 436, datasets 4981: NaN payloads, -0.0 and subnormals keep their bits."""
    keys, values = dense()
    special = np.array([0x7F81, 0xFFFF, 0x8000, 0x0001, 0x807F, 0x7FC1, 0xFF80], np.uint16)
    keys[3, 0, 0], values[8, 2, 1] = special, special
    for layout in ("BHNC", "2BNHD", "BHNC-cpu"):
        key, value = export({"l": memory.vllm(layout, keys, values)}, layout)
        assert np.array_equal(key.gather(0)[0, 0].view(np.uint16), special)
        assert np.array_equal(value.gather(0)[7, 1].view(np.uint16), special)


def test_fault_51_float8_comes_as_bytes_that_are_named():
    """GPTQModel 2863: a float8 tensor cannot become numpy. SGLang holds it as uint8."""
    keys, values = (bits(PAGES * SLOTS, HEADS, 8, seed=seed, dtype=np.uint8) for seed in (1, 2))
    table = np.zeros((2, 20), np.int32)
    table[0, :13] = memory.slots_of([3, 8, 10], 13, 5)
    options = {"layout": "BNHD", "req_to_token": table, "seq_lens": [13], "page_size": 5}
    assert refused(sglang.export_cache, {"l": (keys, values)}, **options) == ("element_type=", "uint8")
    key, value = sglang.export_cache({"l": (keys, values)}, element_type="float8_e5m2", scales=(1.0, 0.25), **options)
    assert str(key.element_type) == "float8_e5m2"
    assert np.array_equal(value.gather(0).view(np.uint8), values[table[0, :13]])
    back = sglang.import_cache([key, value], layout="BNHD", expect=None)
    assert back["l"][0].dtype.name == "float8_e5m2"
    assert np.array_equal(back["l"][0][:13].view(np.uint8), keys[table[0, :13]])


def test_fault_56_equal_byte_counts_say_nothing():
    """vLLM 49440: two layouts of equal size; the size check passed and the output was wrong."""
    tensors = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    halves = np.zeros((PAGES, 2 * HEADS, SLOTS, DIM), np.uint16)
    same_size = np.zeros((PAGES, HEADS, SLOTS, 2 * DIM), np.uint16)
    assert halves.nbytes == same_size.nbytes
    options = {"layout": "BHNC", "page_size": SLOTS, "sequence": 0, "expect": None, "element_type": "bfloat16"}
    assert refused(vllm.restore_into, {"l": halves}, tensors, block_ids=[0, 1, 2], **options) == (HEADS, 2 * HEADS)


def test_layouts_that_are_known_and_not_handled_say_why():
    with pytest.raises(LayoutError, match="AMX"):
        export({"l": memory.vllm("BHNC", *dense())}, "BHNC-cpu_amx")


def test_pages_of_types_narrower_than_a_byte_are_not_engines_pages():
    with pytest.raises(UnsupportedError):
        export({"l": np.zeros((PAGES, HEADS, SLOTS, 14), np.uint8)}, "BHNC", element_type="int4")


def test_copies_write_only_what_is_named():
    pages = np.full((7, 2, 1, 3), 9, np.uint16)
    source = np.arange(4 * 6, dtype=np.uint16).reshape(4, 2, 1, 3)
    writing_pages([(pages, source)], page_ids=np.array([5, 6, 0, 2]), source_ids=np.array([1, 2, 0, 3])).run()
    assert pages[[5, 6, 0, 2]].tolist() == source[[1, 2, 0, 3]].tolist()
    assert (pages[[1, 3, 4]] == 9).all()
