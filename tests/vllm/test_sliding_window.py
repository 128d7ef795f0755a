"""A Gemma in vLLM: two groups of layers, pages that the engine has dropped behind the window, bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM

import hurray_arrow as ha
from hurray_arrow.engines import vllm
from hurray_arrow.identity import model_metadata
from tests.vllm.running_engine import BLOCK_SIZE, engine
from tests.vllm.tiny_models import VOCABULARY, computed_cache, gemma

pytestmark = pytest.mark.vllm

WINDOW = 70
PROMPT = [(7 * place + place * place) % VOCABULARY for place in range(6 * BLOCK_SIZE + 19)]
MAX_TOKENS = 60


def cache_groups(running, request):
    """Give vLLM's groups with the block tables of its manager, which knows of dropped blocks what workers do not."""
    groups = []
    for group, blocks in zip(running.groups, running.manager.get_block_ids(request.request_id), strict=True):
        window = getattr(group.kv_cache_spec, "sliding_window", None)
        groups.append(
            vllm.cache_group(
                group.layer_names,
                block_tables=[blocks],
                seq_lens=[request.num_computed_tokens],
                page_size=group.kv_cache_spec.block_size,
                kind="sliding_window" if window else "full",
                window_tokens=window,
                null_block=0 if window else None,
            )
        )
    return groups


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = gemma(tmp_path_factory.mktemp("gemma"))
    with engine(model, dtype="bfloat16") as running:
        running.add("a", PROMPT, MAX_TOKENS)
        for _ in range(8):
            running.llm.llm_engine.step()
        request = running.running()["a"]
        groups = cache_groups(running, request)
        token_ids = list(request.all_token_ids)[: request.num_computed_tokens]
        tensors = vllm.export_cache(
            running.arrays, layout="BHNC-cpu", groups=groups, head_dim=48, ids=["a"], token_ids=[token_ids]
        )
        config = running.llm.llm_engine.model_config.hf_config
        metadata = {
            **vllm.metadata(tensors, layout="BHNC-cpu", groups=groups),
            "model": model_metadata(config, name="tiny", revision="seed 11"),
        }
        path = tmp_path_factory.mktemp("snapshots") / "windows.arrow"
        ha.write_snapshot(path, tensors, metadata=metadata)
        [output] = running.finish().values()
    return model, path, output


def test_dropped_pages_are_absent_and_everything_else_is_whole(saved):
    _, path, _ = saved
    with ha.open_snapshot(path) as snapshot:
        assert snapshot.verify().unverified == ()
        kinds = [(group["kind"], group.get("window_tokens")) for group in snapshot.metadata["groups"]]
        # vLLM makes groups of equally many layers, here of one.
        assert sorted(kinds, key=str) == [("full", None), *[("sliding_window", WINDOW)] * 2]
        assert [entry.layer_index for entry in snapshot.entries] == [0, 0, 1, 1, 2, 2]
        assert all(entry.layer_name.split(".")[2] == str(entry.layer_index) for entry in snapshot.entries)
        tensors = {tensor.layer_name: tensor for tensor in snapshot.iter_tensors(kv_role="key")}
    full, *windows = [tensors[f"model.layers.{number}.self_attn.attn"] for number in (1, 0, 2)]
    stored = full.token_count(0)
    assert full.positions(0).tolist() == list(range(stored))
    # The last step's own window may begin in the middle of a page, of which all is kept.
    first = (stored - 1 - WINDOW + 1) // BLOCK_SIZE * BLOCK_SIZE
    assert first > 2 * BLOCK_SIZE
    for tensor in windows:
        assert tensor.positions(0).tolist() == list(range(first, stored))


def test_keys_and_values_are_those_that_the_model_computes(saved):
    model, path, _ = saved
    with ha.open_snapshot(path) as snapshot:
        tensors = list(snapshot.iter_tensors())
    token_ids = tensors[0].sequences.token_ids[0].tolist()
    expected = computed_cache(Gemma3ForCausalLM, model, token_ids)
    for tensor in tensors:
        number = int(tensor.layer_name.split(".")[2])
        wanted = expected[number][tensor.kv_role == "value"].numpy()[tensor.positions(0)]
        found = tensor.gather(0).astype(np.float32)
        assert found.shape == wanted.shape
        # bfloat16 has 8 bits, and errors add up over the layers; another token's row is not nearly as close.
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).mean() < 0.02 * scale
        assert np.abs(np.roll(found, 1, axis=0) - wanted).mean() > 0.1 * scale


@pytest.fixture(scope="module")
def continued(saved):
    """The tokens of a fresh engine whose computed cache was overwritten; in the second round restored."""
    model, path, _ = saved
    found = {}
    with engine(model, dtype="bfloat16") as fresh, ha.open_snapshot(path) as snapshot:
        fresh.generate([2, 7, 1, 8] * 30, 2)
        tensors = list(snapshot.iter_tensors(verify=True))
        known = tensors[0].sequences.token_ids[0].tolist()
        first = {tensor.kv_group: int(tensor.positions(0)[0]) // BLOCK_SIZE for tensor in tensors}
        for restore in (False, True):
            assert fresh.llm.reset_prefix_cache()
            fresh.add("a", known, MAX_TOKENS + len(PROMPT) - len(known))
            fresh.llm.llm_engine.step()
            blocks = fresh.manager.get_block_ids(fresh.running()["a"].request_id)
            for group, ids in zip(fresh.groups, blocks, strict=True):
                for name in group.layer_names:
                    pages = fresh.arrays[name][ids]
                    noise = torch.randn(pages.shape, generator=torch.Generator().manual_seed(5)) * 3
                    fresh.arrays[name][ids] = noise.to(pages.dtype)
            if restore:
                vllm.restore_into(
                    fresh.arrays,
                    tensors,
                    layout="BHNC-cpu",
                    sequence="a",
                    # This engine has not dropped these blocks yet; what is stored has nothing for them.
                    block_ids={n: [0] * first[n] + ids[first[n] :] for n, ids in enumerate(blocks)},
                    page_size=dict.fromkeys(range(len(blocks)), BLOCK_SIZE),
                    null_block=0,
                    head_dim=48,
                    metadata=snapshot.metadata,
                    expect={"model.revision": "seed 11", "element_type": "bfloat16"},
                )
            [answer] = fresh.finish().values()
            found[restore] = (known + answer)[len(PROMPT) :]
    return found


def test_a_fresh_engine_goes_on_with_the_same_tokens_from_the_window_alone(saved, continued):
    assert len(set(saved[2])) > 5
    assert continued[True] == saved[2]


def test_without_restoring_the_tokens_are_others(saved, continued):
    assert continued[False] != saved[2]
