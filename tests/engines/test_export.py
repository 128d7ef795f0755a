"""What an export shares, copies and says of itself, and the engines' own forms that the contract does not have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.engines import flashinfer, lmcache, sglang, tensorrt_llm, vllm
from hurray_arrow.errors import (
    CopyRequiredError,
    InvariantError,
    LayoutError,
    SnapshotMismatchError,
    UnsupportedError,
)
from hurray_arrow.schemes import PerBlock, PerChannel, PerTensor
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor
from tests.engines import memory

PAGES, SLOTS, HEADS, DIM = 11, 5, 3, 7
ROWS, LENS = [[3, 8, 10], [], [8, 1]], [13, 0, 6]


def bits(*shape, seed=1, dtype=np.uint16):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


def dense(seed=1):
    return bits(PAGES, SLOTS, HEADS, DIM, seed=seed), bits(PAGES, SLOTS, HEADS, DIM, seed=seed + 100)


def export(arrays, layout, **changes):
    options = {"block_tables": ROWS, "seq_lens": LENS, "page_size": SLOTS, "element_type": "bfloat16", "head_dim": DIM}
    return vllm.export_cache(arrays, layout=layout, **{**options, **changes})


def refused(call, *args, **options):
    with pytest.raises(LayoutError) as caught:
        call(*args, **options)
    return caught.value.expected, caught.value.actual


def address(array):
    return array.__array_interface__["data"][0]


# -- views and copies --------------------------------------------------------------------------------------------------


def test_a_whole_nhd_pool_is_shared_byte_for_byte():
    pool = memory.vllm("2BNHD", *dense())
    tensors = export({"l": pool}, "2BNHD", pages="all", copy=False)
    assert [address(tensor.page_pool) - address(pool) for tensor in tensors] == [0, pool.nbytes // 2]
    assert [tensor.num_pages for tensor in tensors] == [PAGES, PAGES]
    assert all(not tensor.page_pool.flags.writeable for tensor in tensors)
    assert pool.flags.writeable
    assert export({"l": pool}, "2BNHD", pages="all", copy=True)[0].equals(tensors[0])
    assert not np.shares_memory(export({"l": pool}, "2BNHD", pages="all", copy=True)[0].page_pool, pool)


@pytest.mark.parametrize("layout", ["BHNC", "BNHC", "B2NHD", "2BHND", "BHNC-cpu"])
def test_what_cannot_be_shared_is_copied_or_refused(layout):
    array = memory.vllm(layout, *dense())
    with pytest.raises(CopyRequiredError):
        export({"l": array}, layout, pages="all", copy=False)
    tensors = export({"l": array}, layout, pages="all")
    assert not any(np.shares_memory(tensor.page_pool, array) for tensor in tensors)


def test_referenced_pages_are_always_new():
    with pytest.raises(CopyRequiredError):
        export({"l": memory.vllm("2BNHD", *dense())}, "2BNHD", copy=False)
    assert refused(export, {"l": memory.vllm("2BNHD", *dense())}, "2BNHD", pages="some")[1] == "some"


def test_pairs_share_too():
    k_buffer, v_buffer = memory.sglang("BNHD", *dense())
    table = np.array([memory.slots_of([3, 8, 10], 13, 5)], np.int32)
    options = {"req_to_token": table, "seq_lens": [13], "page_size": 5, "element_type": "bfloat16"}
    key, value = sglang.export_cache({"l": (k_buffer, v_buffer)}, layout="BNHD", pages="all", copy=False, **options)
    assert (address(key.page_pool), address(value.page_pool)) == (address(k_buffer), address(v_buffer))
    assert key.num_pages == PAGES


def test_a_large_export_and_its_pages_in_no_order():
    """More pages than are copied at a time, referenced in no order, in both dense and strided memory."""
    keys, values = bits(400, 4, 8, 64), bits(400, 4, 8, 64, seed=2)
    row = np.random.default_rng(4).permutation(400)[:333].tolist()
    for layout in ("BHNC", "2BNHD", "BNHC"):
        array = memory.vllm(layout, keys, values)
        key, value = export({"l": array}, layout, block_tables=[row], seq_lens=[1330], page_size=4, head_dim=64)
        assert np.array_equal(key.page_pool.view(np.uint16)[:332], keys[row[:332]])
        assert np.array_equal(value.gather(0).view(np.uint16), values[row].reshape(-1, 8, 64)[:1330])


def test_facts_of_the_sequences_come_along():
    ids = [list(range(13)), [], [5] * 6]
    tensors = export(
        {"l": memory.vllm("BHNC", *dense())}, "BHNC", ids=["a", None, "c"], token_ids=ids, tenant=["t"] * 3
    )
    assert all(tensor.sequences is tensors[0].sequences for tensor in tensors)
    assert tensors[1].sequences.token_ids[2].tolist() == [5] * 6
    with pytest.raises(InvariantError):
        export({"l": memory.vllm("BHNC", *dense())}, "BHNC", token_ids=[[1], [], []])


def test_tables_are_said_once():
    arrays, group = (
        {"l": memory.vllm("BHNC", *dense())},
        vllm.cache_group(["l"], block_tables=ROWS, seq_lens=LENS, page_size=5),
    )
    assert refused(export, arrays, "BHNC", groups=[group])[0] == "groups"
    assert refused(vllm.export_cache, arrays, layout="BHNC", block_tables=ROWS)[1] == ["block_tables"]
    both = {"seq_lens": LENS, "page_size": 5, "block_tables": ROWS, "slot_mapping": [0]}
    assert refused(vllm.cache_group, ["l"], **both) == (1, 2)
    assert refused(vllm.cache_group, ["l"], seq_lens=LENS, page_size=5) == (1, 0)
    assert refused(vllm.cache_group, ["l"], kind="state", **{**both, "slot_mapping": None})[1] == "state"


def test_layers_of_a_group_have_one_number_of_pages():
    arrays = {"a": memory.vllm("BHNC", *dense()), "b": memory.vllm("BHNC", *dense())[:9]}
    assert refused(export, arrays, "BHNC")[1] == {"a": 11, "b": 9}


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["model.layers.0.attn", "model.layers.1.attn"], None),
        (["a", "b.7.c.9"], None),
        # Sorted as text, of a later rank, of a model of which some layers have no keys.
        (["layers.0.attn", "layers.10.attn", "layers.2.attn"], (10, 1)),
        (["layers.12.attn", "layers.13.attn"], (12, 0)),
        (["layers.0.attn", "layers.3.attn"], (3, 1)),
    ],
)
def test_layers_are_numbered_in_order_where_their_names_agree(names, wrong):
    arrays = {name: memory.vllm("BHNC", *dense(seed=seed)) for seed, name in enumerate(names)}
    if wrong is None:
        assert [tensor.layer_index for tensor in export(arrays, "BHNC")] == [0, 0, 1, 1]
    else:
        assert refused(export, arrays, "BHNC") == wrong
    said = {name: 40 + place for place, name in enumerate(names)}
    found = export(arrays, "BHNC", layer_indices=said)
    assert [tensor.layer_index for tensor in found[::2]] == list(said.values())
    assert refused(export, arrays, "BHNC", layer_indices=dict([said.popitem()]))[0] == names


def test_an_export_without_layers():
    assert vllm.export_cache({}, layout="BHNC", block_tables=[], seq_lens=[], page_size=5) == []


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_metadata_of_a_hybrid_cache(tmp_path):
    arrays = {"a": memory.vllm("BHNC", *dense()), "b": memory.vllm("BHNC", *dense(seed=5))}
    groups = [
        vllm.cache_group(["b"], block_tables=ROWS, seq_lens=LENS, page_size=5),
        vllm.cache_group(
            ["a"],
            block_tables=[[0, 8, 10], [], [8, 1]],
            seq_lens=LENS,
            page_size=5,
            kind="sliding_window",
            window_tokens=7,
            null_block=0,
        ),
    ]
    tensors = vllm.export_cache(arrays, layout="BHNC", groups=groups, element_type="bfloat16", head_dim=DIM)
    found = vllm.metadata(
        tensors,
        layout="BHNC",
        groups=groups,
        version="0.33.0",
        kv_cache_dtype="auto",
        topology={"tp_rank": 1, "tp_size": 2},
    )
    assert found == {
        "engine": {
            "name": "vllm",
            "version": "0.33.0",
            "source_layout": "BHNC",
            "kv_cache_dtype": "bfloat16",
            "source_device": "cpu",
        },
        "groups": [
            {"kind": "full", "page_size": 5, "layer_names": ["b"], "components": ["values"]},
            {
                "kind": "sliding_window",
                "window_tokens": 7,
                "page_size": 5,
                "layer_names": ["a"],
                "components": ["values"],
            },
        ],
        "topology": {"tp_rank": 1, "tp_size": 2},
    }
    write_snapshot(tmp_path / "s.arrow", tensors, metadata=found)
    with open_snapshot(tmp_path / "s.arrow") as snapshot:
        back = vllm.import_cache(
            snapshot.iter_tensors(),
            layout="LHBNC",
            expect={"engine.source_layout": "BHNC", "topology.tp_rank": 1},
            metadata=snapshot.metadata,
        )
    assert np.array_equal(back["b"][:2, :, :, :DIM].transpose(0, 2, 1, 3).view(np.uint16), dense(seed=5)[0][[3, 8]])
    assert refused(vllm.metadata, tensors, layout="BHNC", groups=groups[:1]) == (2, 1)


def test_metadata_lists_only_what_every_layer_of_a_group_has():
    arrays = {"mla": bits(PAGES, SLOTS, 656, dtype=np.uint8), "idx": bits(PAGES, SLOTS, 132, dtype=np.uint8)}
    layout = {"mla": "BNC-fp8_ds_mla", "idx": "BNC-indexer"}
    tensors = export(arrays, layout, element_type=None, head_dim=None)
    found = vllm.metadata(tensors, layout=layout, kv_cache_dtype="fp8_ds_mla")
    assert found["groups"] == [{"kind": "full", "page_size": 5, "layer_names": ["mla", "idx"], "components": []}]
    assert (found["engine"]["source_layout"], found["engine"]["kv_cache_dtype"]) == (
        "BNC-fp8_ds_mla, BNC-indexer",
        "fp8_ds_mla",
    )


# -- imports -----------------------------------------------------------------------------------------------------------


def test_a_layout_without_room_for_two_widths_refuses_them():
    array = np.concatenate([dense()[0], bits(PAGES, SLOTS, HEADS, 2)], axis=-1).transpose(0, 2, 1, 3)
    tensors = export({"l": array}, "BNHC", head_dim_v=2)
    assert refused(vllm.import_cache, tensors, layout="2BNHD", expect=None) == (DIM, 2)
    assert vllm.import_cache(tensors, layout="BHNC-cpu", expect=None)["l"].shape == (4, HEADS, SLOTS, DIM + 2)


@pytest.mark.parametrize("arrays", [[np.zeros((5, 3, 4, 8))], np.zeros((5, 3, 4, 8))])
def test_a_cache_without_names_is_refused(arrays):
    for call in (
        lambda: vllm.export_cache(arrays, layout="BHNC", head_dim=4, page_size=4, block_tables=[[0]], seq_lens=[3]),
        lambda: vllm.restore_into(
            arrays, [], layout="BHNC", head_dim=4, page_size=4, sequence=0, block_ids=[], expect=None
        ),
    ):
        with pytest.raises(LayoutError, match=r"expected \{layer_name: array\}"):
            call()


@pytest.mark.parametrize("page_size", [0, -4, 4.0, "4"])
def test_a_page_size_that_is_none_is_refused(page_size):
    cache = {"layer.0": np.zeros((5, 3, 4, 8), np.float16)}
    with pytest.raises(LayoutError, match=r"page_size .*, expected an integer from 1"):
        vllm.export_cache(cache, layout="BHNC", head_dim=4, page_size=page_size, block_tables=[[0]], seq_lens=[3])
    with pytest.raises(LayoutError, match=r"page_size .*, expected an integer from 1"):
        lmcache.export_cache([], layout="2LTC", layer_names=["layer.0"], num_heads=2, page_size=page_size)


def test_import_refuses_what_the_tensors_are_not():
    tensors = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    for changes, wrong in (
        ({"element_type": "float16"}, ("float16", "bfloat16")),
        ({"num_heads": 4}, (4, 3)),
        ({"head_dim_v": 6}, (6, 7)),
        ({"scales": (1.0, 1.0)}, ((1.0, 1.0), ())),
        ({"layout": {"x": "BHNC"}}, ("l", ["x"])),
    ):
        assert refused(vllm.import_cache, tensors, **{"layout": "BHNC", "expect": None, **changes}) == wrong
    with pytest.raises(TypeError, match="expect"):
        vllm.import_cache(tensors, layout="BHNC")
    assert refused(vllm.import_cache, tensors[:1], layout="BHNC", expect=None)[1] == [("key", "values")]
    renamed = [tensors[0], dataclasses.replace(tensors[1], kv_group=1)]
    assert refused(vllm.import_cache, renamed, layout="BHNC", expect=None) == (1, ["l"])
    assert vllm.import_cache([], layout="BHNC", expect=None) == {}


def test_scales_go_into_the_descriptor_and_come_back():
    keys, values = (bits(PAGES, SLOTS, HEADS, 8, seed=seed, dtype=np.uint8) for seed in (1, 2))
    arrays = {name: memory.vllm("BNHC", keys, values) for name in "ab"}
    scales = {"a": (0.5, 0.25), "b": (np.array([3.0], np.float32)[0], np.float32(0.1))}
    tensors = export(arrays, "BNHC", element_type="float8_e4m3", head_dim=8, scales=scales)
    assert [t.quantization for t in tensors] == [
        PerTensor(0.5),
        PerTensor(0.25),
        PerTensor(3.0),
        PerTensor(np.float32(0.1)),
    ]
    back = vllm.import_cache(tensors, layout="BHNC", expect=None)
    assert back["a"].dtype.name == "float8_e4m3fn"
    assert np.array_equal(back["b"][0].view(np.uint8), memory.vllm("BHNC", keys, values)[3])


# -- FlashInfer --------------------------------------------------------------------------------------------------------


def test_flashinfers_page_table_is_what_it_was():
    tables = {
        "kv_indptr": np.array([0, 3, 3, 5], np.int32),
        "kv_indices": np.array([0, 1, 2, 1, 3], np.int32),
        "kv_last_page_len": np.array([3, 0, 1], np.int32),
    }
    array = memory.flashinfer("B2HND", *dense())
    key, _ = flashinfer.export_cache({"l": array}, layout="B2HND", page_size=5, element_type="bfloat16", **tables)
    found = flashinfer.page_table(key)
    for name, expected in tables.items():
        assert getattr(found, name).dtype == np.int32
        assert getattr(found, name).tolist() == expected.tolist()


def test_flashinfers_page_table_of_no_sequences():
    none = np.zeros(0, np.int32)
    tables = {"kv_indptr": np.zeros(1, np.int32), "kv_indices": none, "kv_last_page_len": none}
    array = memory.flashinfer("B2HND", *dense())
    key, _ = flashinfer.export_cache({"l": array}, layout="B2HND", page_size=5, element_type="bfloat16", **tables)
    assert [part.tolist() for part in flashinfer.page_table(key)] == [[0], [], []]


def test_flashinfers_page_table_has_no_absent_pages():
    key, _ = export({"l": memory.vllm("BHNC", *dense())}, "BHNC")
    longer = dataclasses.replace(key, sequences=key.sequences.__class__(seq_lens=[8, 0, 11 - 1]), permissive=True)
    assert refused(flashinfer.page_table, longer) == ([2, 0, 2], [3, 0, 2])
    holes = key.sequences.__class__(seq_lens=LENS, page_positions=[[0, 5, 20], [], [0, 5]])
    assert refused(flashinfer.page_table, dataclasses.replace(key, sequences=holes)) == (None, "page_positions")


def test_a_latent_pair_is_one_tensor_and_parts_again():
    ckv, kpe = bits(PAGES, SLOTS, 8), bits(PAGES, SLOTS, 3, seed=2)
    tables = {"kv_indptr": [0, 3], "kv_indices": [3, 8, 10], "kv_last_page_len": [3], "page_size": 5}
    (fused,) = flashinfer.export_cache({"l": (ckv, kpe)}, layout="BNC", element_type="bfloat16", **tables)
    assert (fused.kv_role, fused.head_dim) == ("fused", 11)
    assert np.array_equal(fused.gather(0).view(np.uint16)[:5, 0], np.concatenate([ckv[3], kpe[3]], axis=-1))
    back = flashinfer.import_cache([fused], layout="BNC", expect=None, head_dim=8)
    assert np.array_equal(back["l"][0][:2].view(np.uint16), ckv[[3, 8]])
    assert np.array_equal(back["l"][1][:2].view(np.uint16), kpe[[3, 8]])
    assert refused(flashinfer.import_cache, [fused], layout="BNC", expect=None) == (11, None)
    # The same latent in vLLM's one array.
    (latent,) = vllm.import_cache([fused], layout="BNC", expect=None).values()
    assert np.array_equal(latent[0].view(np.uint16), np.concatenate([ckv[3], kpe[3]], axis=-1))
    pool = (np.zeros((4, 5, 8), np.uint16), np.zeros((4, 5, 3), np.uint16))
    flashinfer.restore_into(
        {"l": pool},
        [fused],
        layout="BNC",
        sequence=0,
        block_ids=[3, 1, 0],
        page_size=5,
        expect=None,
        element_type="bfloat16",
        head_dim=8,
    )
    assert np.array_equal(pool[0][[3, 1]], ckv[[3, 8]])
    assert np.array_equal(pool[1][[3, 1]], kpe[[3, 8]])


# -- SGLang, TensorRT-LLM ----------------------------------------------------------------------------------------------


def test_sglangs_latent_and_records():
    table = np.array([memory.slots_of([3, 8, 10], 13, 5)], np.int32)
    tables = {"req_to_token": table, "seq_lens": [13], "page_size": 5}
    latent = bits(PAGES * SLOTS, 1, 13)
    (fused,) = sglang.export_cache({"l": latent}, layout="BNC", element_type="bfloat16", **tables)
    assert np.array_equal(fused.gather(0).view(np.uint16), latent[table[0]])
    records = bits(PAGES * SLOTS, 1, 656, dtype=np.uint8)
    (record,) = sglang.export_cache({"l": records}, layout="BNC-dsa", **tables)
    assert record.component == "record.fp8_ds_mla"
    back = sglang.import_cache([record], layout="BNC-dsa", expect=None)
    assert np.array_equal(back["l"][:13], records[table[0]])
    # The same records in vLLM's shape.
    assert vllm.import_cache([record], layout="BNC-fp8_ds_mla", expect=None)["l"].shape == (3, 5, 656)


def test_sglang_takes_blocks_or_slots():
    pair = memory.sglang("BNHD", *dense())
    options = {"layout": "BNHD", "sequence": 0, "page_size": 5, "expect": None}
    assert refused(sglang.restore_into, {"l": pair}, [], **options) == (1, 0)
    assert refused(sglang.restore_into, {"l": pair}, [], block_ids=[1], token_slots=[1], **options) == (1, 2)
    assert refused(sglang.restore_into, {"l": pair}, [], token_slots=[3], **options) == (3, 3)


def test_tensorrt_llms_blocks_are_powers_of_two():
    options = {"layout": "B2NHD", "block_ids": [], "seq_lens": []}
    assert refused(tensorrt_llm.export_cache, {}, tokens_per_block=5, **options) == ("a power of two", 5)
    latent = bits(PAGES, 1, 4, 1, 13)
    (fused,) = tensorrt_llm.export_cache(
        {"l": latent}, layout="BNC", block_ids=[[3, 0]], seq_lens=[6], tokens_per_block=4, element_type="bfloat16"
    )
    assert np.array_equal(fused.gather(0).view(np.uint16)[:4, 0], latent[3, 0, :, 0])


# -- LMCache -----------------------------------------------------------------------------------------------------------


def chunks_of(layout, tokens, *, seed=1, layers=2, chunk=8):
    """A sequence's values [2, L, T, C] and the chunks that LMCache makes of them."""
    values = bits(1 if layout[0] == "1" else 2, layers, tokens, HEADS * DIM, seed=seed)
    shaped = {
        "2LTC": values,
        "1LTC": values,
        "2TC": values[:, 0],
        "T2C": values[:, 0].transpose(1, 0, 2),
    }[layout]
    axis = layout.index("T")
    cuts = range(0, tokens, chunk)
    return values, [np.ascontiguousarray(np.take(shaped, range(c, min(c + chunk, tokens)), axis=axis)) for c in cuts]


@pytest.mark.parametrize("layout", list(lmcache.LAYOUTS))
def test_lmcaches_chunks_become_pages_and_chunks_again(layout):
    layers = ["a", "b"] if "L" in layout else ["a"]
    first, chunks = chunks_of(layout, 19, layers=len(layers))
    second, others = chunks_of(layout, 8, seed=3, layers=len(layers))
    heads = 1 if layout[0] == "1" else HEADS
    tensors = lmcache.export_cache(
        [chunks, [], others],
        layout=layout,
        layer_names=layers,
        num_heads=heads,
        page_size=5,
        element_type="bfloat16",
        ids=["x", None, "z"],
    )
    roles = ["fused"] if layout[0] == "1" else ["key", "value"]
    assert [(t.layer_name, t.kv_role) for t in tensors] == [(name, role) for name in layers for role in roles]
    for place, tensor in enumerate(tensors):
        layer, role = divmod(place, len(roles))
        assert np.array_equal(tensor.gather(0).view(np.uint16).reshape(19, -1), first[role, layer])
        assert tensor.token_count(1) == 0
        assert np.array_equal(tensor.gather(2).view(np.uint16).reshape(8, -1), second[role, layer])
    back = lmcache.import_cache(tensors, layout=layout, sequence="x", chunk_tokens=8, expect=None)
    assert len(back) == len(chunks) == 3
    for one, other in zip(back, chunks, strict=True):
        assert one.flags.c_contiguous
        assert np.array_equal(one.view(np.uint16), other)
    with pytest.raises(SnapshotMismatchError):
        lmcache.import_cache(tensors, layout=layout, sequence=0, chunk_tokens=8, expect={"model.name": "m"})


def test_lmcaches_sequences_without_tokens_and_chunks_without_content():
    options = {"layer_names": ["a"], "layout": "2TC", "page_size": 5, "element_type": "uint16"}
    _, chunks = chunks_of("2TC", 8, layers=1)
    tensors = lmcache.export_cache([[], [each.view(np.uint16) for each in chunks]], num_heads=HEADS, **options)
    assert lmcache.import_cache(tensors, layout="2TC", sequence=0, chunk_tokens=3, expect=None) == []
    key, _ = lmcache.export_cache([[np.zeros((2, 7, 0), np.uint16)]], num_heads=4, **options)
    assert (key.descriptor.shape, key.num_pages) == ((7, 4, 0), 2)


@pytest.mark.parametrize("layout", list(lmcache.LAYOUTS))
def test_lmcaches_values_of_8_bits_keep_their_scales(layout):
    layers = ["a", "b"] if "L" in layout else ["a"]
    _, chunks = chunks_of(layout, 19, layers=len(layers))
    chunks = [each.astype(np.uint8) for each in chunks]
    given = {name: (0.5,) if layout[0] == "1" else (0.5, 0.25 + place) for place, name in enumerate(layers)}
    options = {
        "layout": layout,
        "layer_names": layers,
        "num_heads": 1,
        "page_size": 5,
        "element_type": "float8_e4m3",
    }
    assert refused(lmcache.export_cache, [chunks], **options) == (len(given["a"]), 0)
    tensors = lmcache.export_cache([chunks], scales=given, **options)
    assert [tensor.quantization for tensor in tensors] == [PerTensor(each) for name in layers for each in given[name]]
    cut = {"layout": layout, "sequence": 0, "chunk_tokens": 8, "expect": None}
    for scales in (None, given):
        back = lmcache.import_cache(tensors, scales=scales, **cut)
        assert [each.tobytes() for each in back] == [each.tobytes() for each in chunks]
    other = {name: (2.0,) * len(each) for name, each in given.items()}
    assert refused(lmcache.import_cache, tensors, scales=other, **cut) == (other["a"], given["a"])


def test_what_lmcaches_chunks_have_no_place_for_is_refused():
    def stored(kv_role, element_type="uint16", heads=HEADS, **changes):
        size_bytes = ELEMENT_TYPES[element_type].size_bytes(PAGES * 4 * heads * 6)
        return BlockPagedTensor.from_arrays(
            np.zeros(size_bytes, np.uint8),
            block_tables=[[3, 1]],
            kv_role=kv_role,
            element_type=element_type,
            page_shape=(4, heads, 6),
            num_pages=PAGES,
            layer_index=0,
            seq_lens=[7],
            **changes,
        )

    cut = {"layout": "2LTC", "sequence": 0, "chunk_tokens": 4, "expect": None}
    by_slot = {"quantization": PerBlock(0, 4, 3), "quantization_buffers": [np.ones(PAGES * 4, np.float32)]}
    by_head = {"quantization": PerChannel(1, 3), "quantization_buffers": [np.ones(HEADS, np.float32)]}
    for changes in (by_slot, by_head, {"quantization": PerTensor(0.5, 3)}, {"element_type": "int4"}):
        with pytest.raises(UnsupportedError):
            lmcache.import_cache([stored(role, **changes) for role in ("key", "value")], **cut)
    # numpy would make float32 of the first pair, and one C of 12 elements of the last.
    for changes, wrong in (
        ({"element_type": "bfloat16"}, ("uint16", "bfloat16")),
        ({"heads": HEADS + 1}, (1, [HEADS, HEADS + 1])),
    ):
        assert refused(lmcache.import_cache, [stored("key"), stored("value", **changes)], **cut) == wrong


def test_wrong_chunks_are_refused():
    _, chunks = chunks_of("2LTC", 19)
    options = {
        "layout": "2LTC",
        "layer_names": ["a", "b"],
        "num_heads": HEADS,
        "page_size": 5,
        "element_type": "bfloat16",
    }
    for given, changes, wrong in (
        ([chunks[:1] + chunks[2:] + chunks[:1]], {}, (8, [8, 3, 8])),
        ([[chunks[0][:1]]], {}, (2, 1)),
        ([chunks], {"layer_names": ["a"]}, (1, 2)),
        ([chunks], {"num_heads": 4}, (4, 21)),
        ([chunks], {"layout": "NHD"}, (list(lmcache.LAYOUTS), "NHD")),
        ([chunks], {"layout": "2TC"}, (1, 2)),
        ([chunks], {"page_size": 0}, (1, 0)),
        ([[chunks[0][0]]], {}, (4, 3)),
        ([chunks], {"element_type": None}, ("element_type=", "uint16")),
        ([[]], {}, (1, 0)),
        ([chunks, [chunks[0][..., :20]]], {}, (["bfloat16", 21], ["bfloat16", 20])),
    ):
        assert refused(lmcache.export_cache, given, **{**options, **changes}) == wrong
    tensors = lmcache.export_cache([chunks], **options)
    cut = {"sequence": 0, "chunk_tokens": 8, "expect": None}
    assert refused(lmcache.import_cache, tensors, layout="2TC", **cut) == (1, 2)
    assert refused(lmcache.import_cache, tensors, layout="1LTC", **cut)[0] == [("fused", "values")]
    assert refused(lmcache.import_cache, tensors, layout="2LTC", **{**cut, "chunk_tokens": 0}) == (1, 1)
