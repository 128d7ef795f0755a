"""A Llama in vLLM: what is exported is what attention computes, and another engine goes on from it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import hurray_arrow as ha
from hurray_arrow.engines import vllm
from hurray_arrow.identity import config_digest, model_metadata
from tests.vllm.running_engine import BLOCK_SIZE, engine
from tests.vllm.tiny_models import VOCABULARY, computed_cache, llama

pytestmark = pytest.mark.vllm

SHARED = [(7 * place + place * place) % VOCABULARY for place in range(2 * BLOCK_SIZE)]
PROMPTS = {
    "a": SHARED + [(5 * place + 3) % VOCABULARY for place in range(23)],
    "b": SHARED + [(11 * place + 1) % VOCABULARY for place in range(41)],
}
MAX_TOKENS = 40
LAYERS = [f"model.layers.{number}.self_attn.attn" for number in range(3)]


@dataclass
class Saved:
    model: Path
    snapshot: Path
    expect: dict[str, str]
    outputs: dict[str, list[int]]
    blocks: dict[str, list[int]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two requests that share a prefix, exported while both are being answered."""
    model = llama(tmp_path_factory.mktemp("llama"))
    with engine(model, dtype="float32") as running:
        running.generate([3, 1, 4, 1, 5] * 11, 2)
        for name, prompt in PROMPTS.items():
            running.add(name, prompt, MAX_TOKENS)
            running.llm.llm_engine.step()
        for _ in range(6):
            running.llm.llm_engine.step()
        requests = running.running()
        batch = running.runner.input_batch
        rows = [batch.req_id_to_index[requests[name].request_id] for name in PROMPTS]
        table = batch.block_table[0].get_numpy_array()[rows]
        blocks = {name: running.manager.get_block_ids(requests[name].request_id)[0] for name in PROMPTS}
        for name, row in zip(PROMPTS, table, strict=True):
            assert row[: len(blocks[name])].tolist() == blocks[name]
        lens = [requests[name].num_computed_tokens for name in PROMPTS]
        tokens = [list(requests[name].all_token_ids) for name in PROMPTS]
        [group] = running.groups
        tensors = vllm.export_cache(
            running.arrays,
            layout="BHNC-cpu",
            block_tables=table,
            seq_lens=lens,
            page_size=BLOCK_SIZE,
            head_dim=group.kv_cache_spec.head_size,
            ids=list(PROMPTS),
            token_ids=[ids[:count] for ids, count in zip(tokens, lens, strict=True)],
        )
        config = running.llm.llm_engine.model_config.hf_config
        metadata = {
            **vllm.metadata(tensors, layout="BHNC-cpu"),
            "model": model_metadata(config, name="tiny", revision="seed 11"),
        }
        path = tmp_path_factory.mktemp("snapshots") / "mid_flight.arrow"
        ha.write_snapshot(path, tensors, metadata=metadata)
        # The engine goes on: what is stored must not change with it.
        outputs = running.finish()
    expect = {"model.name": "tiny", "model.revision": "seed 11", "model.config_digest": config_digest(config)}
    return Saved(model, path, expect, outputs, blocks)


def test_the_snapshot_is_whole_and_says_what_it_is(saved):
    with ha.open_snapshot(saved.snapshot, expect=saved.expect) as snapshot:
        assert snapshot.verify().unverified == ()
        assert [entry.layer_name for entry in snapshot.entries] == [name for name in LAYERS for _ in "kv"]
        tensor = snapshot.read(layer_name=LAYERS[1], kv_role="value")
        assert snapshot.metadata["engine"]["source_layout"] == "BHNC-cpu"
    assert saved.blocks["a"][:2] == saved.blocks["b"][:2]
    assert saved.blocks["a"][2] != saved.blocks["b"][2]
    assert tensor.shared_pages().size == 2
    distinct = {*saved.blocks["a"][: -(-tensor.token_count(0) // BLOCK_SIZE)], *saved.blocks["b"]}
    assert tensor.num_pages == len(distinct)
    for place, name in enumerate(PROMPTS):
        answered = saved.outputs[name]
        known = (PROMPTS[name] + answered)[: tensor.token_count(place)]
        assert len(known) > len(PROMPTS[name]) + 5
        assert tensor.sequences.token_ids[place].tolist() == known


@pytest.mark.parametrize("sequence", [0, 1])
def test_keys_and_values_are_those_that_the_model_computes(saved, sequence):
    with ha.open_snapshot(saved.snapshot) as snapshot:
        token_ids = snapshot.read(layer_name=LAYERS[0], kv_role="key").sequences.token_ids[sequence].tolist()
        expected = computed_cache(LlamaForCausalLM, saved.model, token_ids)
        for name, (keys, values) in zip(LAYERS, expected, strict=True):
            for role, wanted in (("key", keys), ("value", values)):
                found = snapshot.read(layer_name=name, kv_role=role).gather(sequence)
                assert found.shape == (len(token_ids), 2, 32)
                np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-3, atol=2e-3)


def overwrite(arrays, blocks):
    for array in arrays.values():
        array[blocks] = torch.randn(array[blocks].shape, generator=torch.Generator().manual_seed(5)) * 3


@pytest.fixture(scope="module")
def continued(saved):
    """Each request's tokens from a fresh engine whose computed cache was overwritten; in the second round restored."""
    found = {}
    with (
        engine(saved.model, dtype="float32") as fresh,
        ha.open_snapshot(saved.snapshot, expect=saved.expect) as snapshot,
    ):
        fresh.generate([2, 7, 1, 8] * 30, 2)
        tensors = list(snapshot.iter_tensors(verify=True))
        for restore, (place, name) in itertools.product((False, True), enumerate(PROMPTS)):
            assert fresh.llm.reset_prefix_cache()
            known = tensors[0].sequences.token_ids[place].tolist()
            fresh.add(name, known, MAX_TOKENS + len(PROMPTS[name]) - len(known))
            fresh.llm.llm_engine.step()
            request = fresh.running()[name]
            [blocks] = fresh.manager.get_block_ids(request.request_id)
            assert blocks != saved.blocks[name]
            assert request.num_computed_tokens == len(known)
            overwrite(fresh.arrays, blocks)
            if restore:
                vllm.restore_into(
                    fresh.arrays,
                    tensors,
                    layout="BHNC-cpu",
                    sequence=name,
                    block_ids=blocks,
                    page_size=BLOCK_SIZE,
                    head_dim=32,
                    metadata=snapshot.metadata,
                    expect=saved.expect,
                )
            [answer] = fresh.finish().values()
            found[restore, name] = (known + answer)[len(PROMPTS[name]) :]
    return found


@pytest.mark.parametrize("name", PROMPTS)
def test_a_fresh_engine_goes_on_with_the_same_tokens(saved, continued, name):
    assert len(set(saved.outputs[name])) > 5
    assert continued[True, name] == saved.outputs[name]


@pytest.mark.parametrize("name", PROMPTS)
def test_without_restoring_the_tokens_are_others(saved, continued, name):
    """Otherwise the test above would say nothing: the engine really reads the pages that were overwritten."""
    assert continued[False, name] != saved.outputs[name]
