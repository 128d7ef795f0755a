"""The connector in examples/vllm_connector: one engine saves, a fresh one loads and goes on with the same tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.vllm.running_engine import BLOCK_SIZE, engine
from tests.vllm.tiny_models import VOCABULARY, gemma, llama

pytestmark = pytest.mark.vllm

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_connector"
MODELS = {"full": llama, "windows": gemma}
PROMPT = [(7 * place + place * place) % VOCABULARY for place in range(5 * BLOCK_SIZE + 13)]
#: Shares four blocks and a half with it.
OTHER = PROMPT[: 4 * BLOCK_SIZE + 16] + [(3 * place + 2) % VOCABULARY for place in range(50)]
MAX_TOKENS = 30


@pytest.fixture(scope="module", autouse=True)
def _on_path():
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


def connected(model, folder, *, revision="seed 11", **more):
    """Give an engine with the connector, as the README starts one."""
    return engine(
        model,
        kv_transfer_config={
            "kv_connector": "SnapshotConnector",
            "kv_connector_module_path": "vllm_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "layout": "BHNC-cpu",
                "folder": str(folder),
                "model": {"name": "tiny", "revision": revision},
            },
        },
        **more,
    )


def loaded_tokens(running):
    """What the engine's own metrics say: tokens that came from outside, of those that it asked for."""
    values = {metric.name: metric for metric in running.llm.get_metrics()}
    return values["vllm:external_prefix_cache_hits"].value, values["vllm:external_prefix_cache_queries"].value


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    model = MODELS[request.param](tmp_path_factory.mktemp("model"))
    folder = tmp_path_factory.mktemp("snapshots")
    with engine(model) as plain:
        expected = {name: plain.generate(ids, MAX_TOKENS).outputs[0].token_ids for name, ids in prompts()}
    with connected(model, folder) as running:
        output = running.generate(PROMPT, MAX_TOKENS)
        assert output.outputs[0].token_ids == expected["the same"]
        assert output.num_cached_tokens == 0
        assert loaded_tokens(running) == (0, len(PROMPT))
    return request.param, model, folder, expected


def prompts():
    return [("the same", PROMPT), ("another", OTHER)]


def test_a_fresh_engine_loads_what_is_stored_and_goes_on_with_the_same_tokens(saved):
    _, model, folder, expected = saved
    assert len(set(expected["the same"])) > 5
    with connected(model, folder) as fresh:
        output = fresh.generate(PROMPT, MAX_TOKENS)
        assert output.num_cached_tokens == 5 * BLOCK_SIZE
        assert output.outputs[0].token_ids == expected["the same"]
        assert loaded_tokens(fresh) == (5 * BLOCK_SIZE, len(PROMPT))
    assert len(list(folder.glob("*.arrow"))) == 1
