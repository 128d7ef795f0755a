"""A real model goes on from a restored cache exactly as if nothing had happened."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, StaticCache
from transformers.cache_utils import QuantizedCache

import hurray_arrow as ha
from hurray_arrow.engines.transformers import cache_metadata, export_cache, import_cache
from hurray_arrow.identity import config_digest, model_metadata, rope_of

pytestmark = pytest.mark.engines

PAGE_SIZE = 7
STEPS = 6
#: Every kernel gets the same shapes and values on both ways, on one thread: the logits are equal to the bit.
WINDOW = 13


def llama(dtype=torch.float32, **changes):
    torch.manual_seed(5)
    sizes = {"hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 6}
    config = LlamaConfig(vocab_size=97, num_key_value_heads=2, max_position_embeddings=128, **sizes | changes)
    return LlamaForCausalLM(config).to(dtype).eval()


def sliding(dtype=torch.float32, **changes):
    torch.manual_seed(6)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4}
    settings = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": kinds, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=97, max_position_embeddings=128, **sizes, **settings | changes)
    return Qwen2ForCausalLM(config).to(dtype).eval()


MODELS = {"llama": llama, "sliding": sliding}


def prompts(*lengths, seed=3):
    """Give token ids and mask of a batch, padded on the left."""
    rng = np.random.default_rng(seed)
    columns = max(lengths)
    ids, mask = np.zeros((len(lengths), columns), np.int64), np.zeros((len(lengths), columns), np.int64)
    for row, length in enumerate(lengths):
        ids[row, columns - length :] = rng.integers(1, 97, length)
        mask[row, columns - length :] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def new_cache(model, max_cache_len):
    if max_cache_len is None:
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=max_cache_len)


@torch.no_grad()
def run(model, cache, ids, mask):
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True)
    return out.logits[:, -1]


def go_on(model, cache, logits, mask, steps=STEPS):
    """Continue greedily; give tokens and logits of every step."""
    tokens, all_logits = [], []
    for _ in range(steps):
        token = logits.argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(token)], -1)
        logits = run(model, cache, token, mask)
        tokens.append(token)
        all_logits.append(logits)
    return torch.cat(tokens, -1), torch.stack(all_logits)


def snapshot_of(path, model, cache, *, name="tiny", revision="r1", **export):
    tensors = export_cache(cache, page_size=PAGE_SIZE, **export)
    metadata = cache_metadata(cache, config=model.config, name=name, revision=revision)
    ha.write_snapshot(path, tensors, metadata=metadata)
    return ha.open_snapshot(path)


@pytest.mark.parametrize("max_cache_len", [None, 64])
@pytest.mark.parametrize("lengths", [(23,), (5,), (9, 26, 17)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_on_as_without_the_detour(tmp_path, name, dtype, lengths, max_cache_len):
    model = MODELS[name](dtype)
    ids, mask = prompts(*lengths)
    cache = new_cache(model, max_cache_len)
    first = run(model, cache, ids, mask)
    with snapshot_of(tmp_path / "a.arrow", model, cache, attention_mask=mask, token_ids=ids) as snapshot:
        restored = import_cache(
            snapshot.iter_tensors(verify=True),
            expect={"model.name": "tiny", "model.config_digest": config_digest(model.config), "tenant": None},
            metadata=snapshot.metadata,
            config=model.config,
            max_cache_len=max_cache_len,
        )
        assert [entry.num_seqs for entry in snapshot.entries] == [len(lengths)] * 2 * model.config.num_hidden_layers
    assert restored.seq_lens == lengths
    assert torch.equal(restored.attention_mask, mask)
    assert type(restored.cache) is type(cache)
    expected_tokens, expected_logits = go_on(model, cache, first, mask, STEPS + PAGE_SIZE)
    tokens, logits = go_on(model, restored.cache, first, restored.attention_mask, STEPS + PAGE_SIZE)
    assert torch.equal(tokens, expected_tokens)
    assert torch.equal(logits, expected_logits)
    assert logits.std() > 0.01


@pytest.mark.parametrize("max_cache_len", [None, 64])
@pytest.mark.parametrize("name", MODELS)
def test_a_cache_that_generated_is_stored_with_what_it_holds(tmp_path, name, max_cache_len):
    """After generation: windows have dropped tokens one by one, static layers have rolled."""
    model = MODELS[name]()
    ids, mask = prompts(4, 11)
    cache = new_cache(model, max_cache_len)
    logits = run(model, cache, ids, mask)
    token = None
    for _ in range(17):
        token = logits.argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(token)], -1)
        logits = run(model, cache, token, mask)
    with snapshot_of(tmp_path / "a.arrow", model, cache, attention_mask=mask) as snapshot:
        restored = import_cache(snapshot.iter_tensors(), expect=None, config=model.config, max_cache_len=max_cache_len)
        if name == "sliding":
            window = snapshot.read(layer_index=2, kv_role="value")
            kept = WINDOW - 1 if max_cache_len is None else WINDOW
            assert [window.positions(s)[0] for s in (0, 1)] == [21 - kept, 28 - kept]
            assert snapshot.metadata["groups"] == [
                {"kind": "sliding_window", "window_tokens": WINDOW},
                {"kind": "full"},
            ]
    assert restored.seq_lens == (21, 28)
    expected = go_on(model, cache, logits, mask)
    found = go_on(model, restored.cache, logits, restored.attention_mask)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", MODELS)
def test_generate_takes_a_restored_cache(tmp_path, name):
    """As people use it: the whole prompt is passed, and only what the cache does not hold is computed."""
    model = MODELS[name]()
    ids, mask = prompts(15, 22)
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cache = DynamicCacheOf(model, ids[:, :-1], mask[:, :-1])
    exported = {"attention_mask": mask[:, :-1], "token_ids": ids}
    with snapshot_of(tmp_path / "a.arrow", model, cache, **exported) as snapshot:
        restored = import_cache(snapshot.iter_tensors(), expect=None, config=model.config)
    expected = model.generate(ids, attention_mask=mask, **settings)
    found = model.generate(ids, attention_mask=mask, cache=restored.cache, **settings)
    assert torch.equal(found, expected)
    assert restored.cache.get_seq_length() == 22 + 8


def test_only_tokens_are_exported_and_every_one_where_it_was():
    model = llama()
    ids, mask = prompts(9, 26)
    cache = StaticCache(config=model.config, max_cache_len=50)
    run(model, cache, ids, mask)
    for layer in cache.layers:
        # Nobody may see what lies in padding and behind the end.
        layer.keys[0, :, :17] = layer.keys[:, :, 26:] = 1e9
    tensors = export_cache(cache, page_size=PAGE_SIZE, attention_mask=mask, token_ids=ids, ids=["a", "b"])
    assert [(t.layer_index, t.kv_role, t.kv_group) for t in tensors][:3] == [
        (0, "key", 0),
        (0, "value", 0),
        (1, "key", 0),
    ]
    key = tensors[2]
    assert (key.page_size, key.num_heads, key.head_dim, key.num_pages) == (PAGE_SIZE, 2, 10, 2 + 4)
    assert np.array_equal(key.gather(0), cache.layers[1].keys[0, :, 17:26].transpose(0, 1).numpy())
    assert np.array_equal(key.gather(1), cache.layers[1].keys[1, :, :26].transpose(0, 1).numpy())
    assert all(abs(t.page_pool).max() < 1e8 for t in tensors)
    assert key.page_pool[1, 2:].max() == 0
    assert [list(entry) for entry in key.sequences.token_ids] == [ids[0, 17:].tolist(), ids[1].tolist()]
    assert key.sequences.ids == ("a", "b")


def test_padding_on_the_right_is_cut_by_length():
    model = llama()
    ids, _ = prompts(11, 11)
    cache = DynamicCache(config=model.config)
    run(model, cache, ids, torch.ones_like(ids))
    tensor = export_cache(cache, page_size=PAGE_SIZE, seq_lens=[4, 11])[1]
    assert (tensor.token_count(0), tensor.token_count(1), tensor.num_pages) == (4, 11, 3)
    assert np.array_equal(tensor.gather(0), cache.layers[0].values[0, :, :4].transpose(0, 1).numpy())


def test_a_shared_prefix_is_stored_once_and_restored_for_everybody(tmp_path):
    model = llama(torch.bfloat16)
    prefix, mask = prompts(16)
    cache = DynamicCache(config=model.config)
    run(model, cache, prefix, mask)
    cache.batch_repeat_interleave(3)
    tails, _ = prompts(5, 5, 5, seed=8)
    mask = torch.ones((3, 21), dtype=torch.int64)
    first = run(model, cache, tails, mask)
    whole = torch.cat([prefix.expand(3, -1), tails], -1)
    with snapshot_of(tmp_path / "a.arrow", model, cache, token_ids=whole, share_pages=True) as snapshot:
        key = snapshot.read(layer_index=1, kv_role="key")
        assert key.block_table.tolist() == [0, 1, 2, 0, 1, 3, 0, 1, 4]
        assert list(key.shared_pages()) == [0, 1]
        restored = import_cache(snapshot.iter_tensors(), expect=None, config=model.config)
        found, expected = go_on(model, restored.cache, first, mask), go_on(model, cache, first, mask)
        assert torch.equal(found[1], expected[1])
        # A new prompt with the prefix: only its own tokens are computed.
        prompt = [*prefix[0].tolist(), 90, 91, 92]
        match = snapshot.match_prefix(prompt)
        assert match == (0, 16, None)
        restored = import_cache(
            snapshot.iter_tensors(), expect=None, config=model.config, sequences=[match.sequence] * 2, tokens=16
        )
    assert restored.seq_lens == (16, 16)
    plain = DynamicCache(config=model.config)
    run(model, plain, prefix.expand(2, -1), torch.ones((2, 16), dtype=torch.int64))
    rest, mask = torch.tensor([prompt[16:]] * 2), torch.ones((2, 19), dtype=torch.int64)
    assert torch.equal(run(model, restored.cache, rest, mask), run(model, plain, rest, mask))


def test_windows_match_a_prefix_only_where_they_are_stored(tmp_path):
    model = sliding()
    ids, mask = prompts(30)
    cache = DynamicCache(config=model.config)
    run(model, cache, ids, mask)
    with snapshot_of(tmp_path / "a.arrow", model, cache, token_ids=ids) as snapshot:
        assert snapshot.match_prefix([*ids[0].tolist(), 5]) == (0, 30, None)
        assert snapshot.match_prefix(ids[0, :29].numpy()) == (None, 0, None)
        with pytest.raises(ha.LayoutError) as caught:
            import_cache(snapshot.iter_tensors(), expect=None, config=model.config, tokens=29)
        assert (caught.value.expected, caught.value.actual) == (29 - (WINDOW - 1), 30 - (WINDOW - 1))
        with pytest.raises(ha.LayoutError):
            # Without the config every layer would have to hold everything.
            import_cache(snapshot.iter_tensors(), expect=None)


def test_a_full_cache_becomes_windows_and_a_dynamic_one_static():
    model = sliding()
    ids, mask = prompts(8, 25)
    everything = DynamicCache()
    first = run(model, everything, ids, mask)
    tensors = export_cache(everything, page_size=PAGE_SIZE, attention_mask=mask)
    assert {tensor.kv_group for tensor in tensors} == {0}
    expected = go_on(model, DynamicCacheOf(model, ids, mask), first, mask)
    for max_cache_len in (None, 40):
        restored = import_cache(tensors, expect=None, config=model.config, max_cache_len=max_cache_len)
        found = go_on(model, restored.cache, first, restored.attention_mask)
        assert torch.equal(found[0], expected[0])
        # Another cache class hands the kernels other shapes.
        torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-4)


def DynamicCacheOf(model, ids, mask):  # noqa: N802 - reads as the class that it gives
    cache = DynamicCache(config=model.config)
    run(model, cache, ids, mask)
    return cache


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    model = llama()
    ids, _ = prompts(9, 9)
    cache = DynamicCache(config=model.config)
    run(model, cache, ids, torch.ones_like(ids))
    tensors = export_cache(cache, page_size=PAGE_SIZE, adapter=["french", None], tenant=["t-1", "t-2"])
    metadata = cache_metadata(cache, config=model.config, name="tiny", revision="r1")
    path = tmp_path_factory.mktemp("stored") / "a.arrow"
    ha.write_snapshot(path, tensors, metadata=metadata)
    return model, path


@pytest.mark.parametrize(
    ("expect", "sequence", "field"),
    [
        ({"model.revision": "r2"}, 0, "model.revision"),
        ({"model.name": "huge"}, 0, "model.name"),
        ({"adapter": "german"}, 0, "adapter"),
        ({"adapter": None}, 0, "adapter"),
        ({"adapter": "french"}, 1, "adapter"),
        ({"tenant": "t-2"}, 0, "tenant"),
        ({"tenant": "t-1"}, None, "tenant"),
        ({"topology.head_range": [0, 2]}, 0, "topology.head_range"),
        ({"engine.kv_cache_dtype": "bfloat16"}, 0, "engine.kv_cache_dtype"),
        ({"element_type": "bfloat16"}, 0, "element_type"),
        ({"page_shape": (16, 2, 10)}, 0, "page_shape"),
    ],
    ids=str,
)
def test_a_cache_of_something_else_is_refused(stored, expect, sequence, field):
    model, path = stored
    with ha.open_snapshot(path) as snapshot, pytest.raises(ha.SnapshotMismatchError) as caught:
        import_cache(
            snapshot.iter_tensors(), expect=expect, metadata=snapshot.metadata, config=model.config, sequences=sequence
        )
    assert caught.value.field == field
    assert caught.value.expected == expect[field]


def test_what_is_expected_of_the_right_sequence_passes(stored):
    model, path = stored
    with ha.open_snapshot(path, expect={"model.revision": "r1"}) as snapshot:
        restored = import_cache(
            snapshot.iter_tensors(),
            expect={
                **{f"model.{key}": value for key, value in model_metadata(model.config, name="tiny").items()},
                "engine.source_layout": "BHSD",
                "element_type": "float32",
                "page_shape": (PAGE_SIZE, 2, 10),
                "adapter": "french",
                "tenant": "t-1",
            },
            metadata=snapshot.metadata,
            config=model.config,
            sequences=0,
        )
    assert restored.seq_lens == (9,)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        {"rms_norm_eps": 1e-5},
        {"num_key_value_heads": 3},
    ],
    ids=str,
)
def test_another_config_is_refused_by_its_digest(stored, changes):
    model, path = stored
    other = LlamaConfig(**{**model.config.to_dict(), **changes})
    assert config_digest(other) != config_digest(model.config)
    with pytest.raises(ha.SnapshotMismatchError) as caught:
        ha.open_snapshot(path, expect={"model.config_digest": config_digest(other)})
    assert caught.value.found == config_digest(model.config)
    if "rope_parameters" in changes:
        with pytest.raises(ha.SnapshotMismatchError):
            ha.open_snapshot(path, expect={"model.rope": {**rope_of(other), "applied": True}})


def test_a_config_has_one_digest_however_it_was_loaded(stored, tmp_path):
    config = stored[0].config
    config.save_pretrained(tmp_path)
    assert (
        config_digest(LlamaConfig.from_pretrained(tmp_path)) == config_digest(config) == config_digest(config.to_dict())
    )


def test_layers_that_hold_more_are_refused_by_name():
    model = llama()
    cache = QuantizedCache("fp8", model.config)
    with pytest.raises(ha.UnsupportedError, match="Fp8QuantizedLayer"):
        export_cache(cache, page_size=PAGE_SIZE)
    with pytest.raises(ha.UnsupportedError, match="list"):
        export_cache([], page_size=PAGE_SIZE)


def test_what_does_not_fit_the_cache_is_refused(stored):
    model, _ = stored
    ids, mask = prompts(9, 9)
    cache = DynamicCacheOf(model, ids, mask)
    for arguments in (
        {"attention_mask": mask[:, 1:]},
        {"attention_mask": mask[:1]},
        {"attention_mask": mask * 2},
        {"seq_lens": [9]},
        {"seq_lens": [9, 10]},
        {"token_ids": ids[:, 1:]},
    ):
        with pytest.raises(ha.LayoutError):
            export_cache(cache, page_size=PAGE_SIZE, **arguments)
    with pytest.raises(TypeError):
        export_cache(cache, page_size=PAGE_SIZE, attention_mask=mask, seq_lens=[9, 9])
    with pytest.raises(ha.LayoutError):
        export_cache(DynamicCache(config=model.config), page_size=PAGE_SIZE)
    tensors = export_cache(cache, page_size=PAGE_SIZE)
    for arguments in (
        {"tensors": tensors[1:]},
        {"tensors": tensors[2:]},
        {"tensors": []},
        {"tokens": 10},
        {"tokens": 0},
        {"sequences": [0, 2]},
        {"sequences": []},
        {"max_cache_len": 8},
        {"config": llama(num_hidden_layers=4).config},
    ):
        with pytest.raises(ha.LayoutError):
            import_cache(**{"tensors": tensors, "expect": None, "config": model.config, **arguments})
    integers = ha.BlockPagedTensor.from_arrays(
        np.zeros((1, 3, 2, 5), np.int8), block_tables=[[0]], seq_lens=[2], kv_role="key", layer_index=0
    )
    with pytest.raises(ha.UnsupportedError):
        import_cache([integers], expect=None)
