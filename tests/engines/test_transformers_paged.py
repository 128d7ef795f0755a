"""The paged cache of continuous batching, taken out of a running manager."""

from __future__ import annotations

import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import hurray_arrow as ha
from hurray_arrow.engines.transformers import cache_metadata, export_paged_cache, import_cache

pytestmark = pytest.mark.engines

PAGE_SIZE = 7
WINDOW = 17
#: The manager runs the requests in one flat batch, so sums are taken in another order than in a batch of one.
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def llama():
    torch.manual_seed(5)
    sizes = {"hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 6}
    config = LlamaConfig(vocab_size=97, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    return LlamaForCausalLM(config).eval()


def sliding():
    torch.manual_seed(6)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4}
    window = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": kinds, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=97, max_position_embeddings=256, **sizes, **window)
    return Qwen2ForCausalLM(config).eval()


@contextmanager
def paused(model, prompts, *, generated):
    """Run requests until each has generated some tokens; give the paused cache and the requests' states."""
    settings = ContinuousBatchingConfig(
        page_size=PAGE_SIZE, num_blocks=120, max_batch_tokens=128, use_async_batching=False, use_cuda_graph=False
    )
    greedy = GenerationConfig(max_new_tokens=150, do_sample=False, eos_token_id=-1)
    with (
        torch.no_grad(),
        model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=settings, warmup=False
        ) as manager,
    ):
        for name, prompt in prompts.items():
            manager.add_request(prompt, request_id=name, max_new_tokens=150, streaming=True)
        counts: dict[str, int] = {}
        deadline = time.monotonic() + 60
        for output in manager:
            counts[output.request_id] = len(output.generated_tokens)
            if len(counts) == len(prompts) and min(counts.values()) >= generated:
                break
            assert time.monotonic() < deadline
        with manager.pause():
            states = dict(manager.batch_processor.scheduler.active_requests)
            yield manager.batch_processor.cache, states
        for name in prompts:
            manager.cancel_request(name)


def tokens_of(state):
    return [*state.initial_tokens, *state.generated_tokens]


@torch.no_grad()
def prefill(model, tokens):
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True).logits[:, -1]
    return cache, logits


@torch.no_grad()
def greedy(model, cache, token, steps):
    found = []
    for _ in range(steps):
        logits = model(input_ids=torch.tensor([[token]]), cache=cache, use_cache=True).logits[0, -1]
        token = int(logits.argmax())
        found.append(token)
    return found


def test_running_requests_are_exported_with_their_sharing(tmp_path):
    model = llama()
    prompts = {"a": list(range(1, 24)), "b": [*range(1, 20), 90, 91, 92], "c": [60, 61, 62]}
    with paused(model, prompts, generated=9) as (cache, states):
        lengths = {name: states[name].current_len() for name in ("b", "a")}
        tokens = {name: tokens_of(states[name]) for name in lengths}
        assert all(len(tokens[name]) >= length > 29 for name, length in lengths.items())
        tensors = export_paged_cache(
            cache, seq_lens=lengths, token_ids=[tokens[name][:length] for name, length in lengths.items()]
        )
        metadata = cache_metadata(cache, config=model.config, name="tiny")
        before = {name: cache.cache_allocators["full_attention"].block_table[name] for name in lengths}
        with pytest.raises(ha.LayoutError):
            export_paged_cache(cache, seq_lens={"nobody": 3})
        with pytest.raises(ha.LayoutError):
            export_paged_cache(cache, seq_lens={"c": 1000})
        # The pages as the engine reads them itself, by token.
        allocator = cache.cache_allocators["full_attention"]
        read = torch.tensor(allocator.get_read_indices("a", lengths["a"], 0))
        own = [view.index_select(0, read).numpy().copy() for view in allocator._kv_token_views[2]]
        table = torch.zeros(len(before["a"]), dtype=torch.int32)
        allocator.fill_block_table("a", lengths["a"], 0, table)
        by_kernel = [view[table.long()].flatten(0, 1) for view in allocator.get_cache_for_block_table(2)]
        assert np.array_equal(by_kernel[0][: lengths["a"]].numpy(), own[0])
    assert metadata["engine"]["source_layout"] == "BNHD"
    assert metadata["groups"] == [{"kind": "full"}]
    shared = len(set(before["a"]) & set(before["b"]))
    key, value = tensors[4:]
    assert (key.layer_index, key.kv_role, value.kv_role) == (2, "key", "value")
    assert list(key.shared_pages()) == list(range(shared))
    assert shared == 2
    assert key.sequences.ids == ("b", "a")
    assert np.array_equal(key.gather(1), own[0])
    assert np.array_equal(value.gather(1), own[1])
    ha.write_snapshot(tmp_path / "a.arrow", tensors, metadata=metadata)
    with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
        restored = import_cache(snapshot.iter_tensors(), expect=None, config=model.config, sequences=1)
    expected, _ = prefill(model, tokens["a"][: lengths["a"]])
    for found, layer in zip(restored.cache.layers, expected.layers, strict=True):
        torch.testing.assert_close(found.keys, layer.keys, **CLOSE)
        torch.testing.assert_close(found.values, layer.values, **CLOSE)
    # The manager's own next token, then those of a model that never stopped.
    following = tokens["a"][lengths["a"] :] or [int(prefill(model, tokens["a"])[1].argmax())]
    assert greedy(model, restored.cache, following[0], 8) == greedy(model, expected, following[0], 8)


@pytest.mark.parametrize("generated", [3, 21])
def test_a_ring_is_laid_out_in_the_order_of_positions(generated):
    model = sliding()
    prompts = {"a": list(range(1, 12)), "b": list(range(40, 45))}
    with paused(model, prompts, generated=generated) as (cache, states):
        lengths = {name: states[name].current_len() for name in prompts}
        tokens = {name: tokens_of(states[name]) for name in prompts}
        tensors = export_paged_cache(cache, seq_lens=lengths)
        metadata = cache_metadata(cache, config=model.config)
    assert sorted(metadata["groups"], key=str) == [
        {"kind": "full"},
        {"kind": "sliding_window", "window_tokens": WINDOW},
    ]
    window = next(tensor for tensor in tensors if tensor.layer_index == 2)
    assert metadata["groups"][window.kv_group]["kind"] == "sliding_window"
    for s, name in enumerate(prompts):
        expected, _ = prefill(model, tokens[name][: lengths[name]])
        stored = min(lengths[name], WINDOW)
        assert window.positions(s).tolist() == list(range(lengths[name] - stored, lengths[name]))
        restored = import_cache(tensors, expect=None, config=model.config, sequences=s)
        for found, layer in zip(restored.cache.layers, expected.layers, strict=True):
            torch.testing.assert_close(found.keys, layer.keys, **CLOSE)
            torch.testing.assert_close(found.values, layer.values, **CLOSE)
        token = tokens[name][lengths[name]] if len(tokens[name]) > lengths[name] else 3
        assert greedy(model, restored.cache, token, 8) == greedy(model, expected, token, 8)
