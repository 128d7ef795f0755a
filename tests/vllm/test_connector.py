"""The connector in examples/vllm_connector: one engine saves, a fresh one loads and goes on with the same tokens."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import hurray_arrow as ha
from tests.vllm.running_engine import BLOCK_SIZE, Engine, engine
from tests.vllm.tiny_models import VOCABULARY, gemma, llama

pytestmark = pytest.mark.vllm

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_connector"
#: Model, type of its cache, tokens of its window.
MODELS = {"full": (llama, "float32", None), "windows": (gemma, "float32", 70)}
PROMPT = [(7 * place + place * place) % VOCABULARY for place in range(5 * BLOCK_SIZE + 13)]
#: Shares four blocks and a half with it.
OTHER = PROMPT[: 4 * BLOCK_SIZE + 16] + [(3 * place + 2) % VOCABULARY for place in range(50)]
#: Shares two blocks with it.
SHORT = PROMPT[: 2 * BLOCK_SIZE] + [(13 * place + 9) % VOCABULARY for place in range(40)]
DAMAGED = [(17 * place + 4) % VOCABULARY for place in range(3 * BLOCK_SIZE + 5)]
MAX_TOKENS = 30


@pytest.fixture(scope="module", autouse=True)
def _on_path():
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


def connected(model, dtype, folder):
    """Give an engine with the connector, as the README starts one; its prompts are computed in chunks of two blocks."""
    return engine(
        model,
        dtype=dtype,
        max_num_batched_tokens=2 * BLOCK_SIZE,
        kv_transfer_config={
            "kv_connector": "SnapshotConnector",
            "kv_connector_module_path": "vllm_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "layout": "BHNC-cpu",
                "folder": str(folder),
                "model": {"name": "tiny", "revision": "seed 11"},
            },
        },
    )


def answer(running: Engine, prompt, tenant):
    output = running.generate(prompt, MAX_TOKENS, cache_salt=tenant)
    return list(output.outputs[0].token_ids), output.num_cached_tokens


def loaded_tokens(running):
    """Tokens that came from outside, as the engine's own metrics count them."""
    [found] = [metric for metric in running.llm.get_metrics() if metric.name == "vllm:external_prefix_cache_hits"]
    return found.value


def with_tokens(folder, token_ids):
    """Find the snapshot of a prompt."""
    for path in folder.glob("*.arrow"):
        with ha.open_snapshot(path) as snapshot:
            if snapshot.group_tables(0).sequences.token_ids[0].tolist() == token_ids:
                return path
    raise AssertionError("no snapshot has these tokens")


@dataclass
class Saved:
    model: Path
    dtype: str
    window: int | None
    folder: Path
    answers: dict[str, list[int]]


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """What the first engine answers, and what it leaves in the folder. Whoever is "x" must not help anybody else."""
    make, dtype, window = MODELS[request.param]
    model, folder = make(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("snapshots")
    with connected(model, dtype, folder) as running:
        answers = {}
        for name, prompt, tenant in (
            ("other", OTHER, "x"),
            ("short", SHORT, "y"),
            ("prompt", PROMPT, None),
            ("damaged", DAMAGED, None),
        ):
            answers[name], cached = answer(running, prompt, tenant)
            assert cached == 0
        assert loaded_tokens(running) == 0
    return Saved(model, dtype, window, folder, answers)


def test_what_was_saved_is_whole_and_says_whose_it_is(saved):
    assert len(list(saved.folder.glob("*.arrow"))) == 4
    with ha.open_snapshot(with_tokens(saved.folder, OTHER), expect={"model.revision": "seed 11"}) as snapshot:
        assert snapshot.verify().unverified == ()
        assert snapshot.match_prefix(OTHER, tenant="x").num_tokens == len(OTHER)
        assert snapshot.match_prefix(OTHER).num_tokens == 0
        assert snapshot.metadata["engine"]["version"].startswith("0.32")
        assert all(entry.layer_name.split(".")[2] == str(entry.layer_index) for entry in snapshot.entries)
        windows = {group.get("window_tokens") for group in snapshot.metadata["groups"]}
        first = {int(tensor.positions(0)[0]) for tensor in snapshot.iter_tensors(kv_role="key")}
    # The last chunk begins at 192: a window of 70 looks back to token 123, so three blocks of 32 are gone.
    assert (windows, first) == (({None, 70}, {0, 96}) if saved.window else ({None}, {0}))


def test_a_fresh_engine_loads_what_is_stored_and_goes_on_with_the_same_tokens(saved):
    assert all(len(set(tokens)) > 5 for tokens in saved.answers.values())
    with ha.open_snapshot(with_tokens(saved.folder, PROMPT)) as snapshot:
        metadata = {name: snapshot.metadata[name] for name in ("engine", "groups", "model")}
        metadata["model"] |= {"revision": "seed 12"}
        alien = saved.folder / "another_revision.arrow"
        ha.write_snapshot(alien, snapshot.iter_tensors(), metadata=metadata)
    damaged = with_tokens(saved.folder, DAMAGED)
    flip_a_byte(damaged)
    with connected(saved.model, saved.dtype, saved.folder) as fresh:
        # A window's keys are only there behind the prompt's beginning, so two blocks alone do not help.
        expected = 0 if saved.window else 2 * BLOCK_SIZE
        assert answer(fresh, SHORT, None) == (saved.answers["short"], expected)
        loaded = expected
        fresh.llm.reset_prefix_cache()
        assert answer(fresh, OTHER, None) == (saved.answers["other"], 4 * BLOCK_SIZE)
        loaded += 4 * BLOCK_SIZE
        assert loaded_tokens(fresh) == loaded
        # Four blocks are in the engine by now, and the fifth comes from the snapshot; or all do, because vLLM's own
        # prefix cache finds nothing where the window of OTHER has moved on.
        assert answer(fresh, PROMPT, None) == (saved.answers["prompt"], 5 * BLOCK_SIZE)
        loaded += 5 * BLOCK_SIZE if saved.window else BLOCK_SIZE
        assert loaded_tokens(fresh) == loaded
        assert answer(fresh, PROMPT, "somebody else") == (saved.answers["prompt"], 0)
        assert loaded_tokens(fresh) == loaded
        # Found by its tokens, refused by its checksums, computed.
        assert answer(fresh, DAMAGED, None) == (saved.answers["damaged"], 0)
        connector = fresh.core.scheduler.connector
        unused = {Path(url).name for url, snapshot in connector.snapshots.items() if snapshot is None}
        assert unused == {alien.name, damaged.name}
    # What was computed again was saved again.
    with ha.open_snapshot(damaged) as snapshot:
        assert snapshot.verify().unverified == ()


def flip_a_byte(path):
    with ha.open_snapshot(path) as snapshot:
        page = snapshot.read(kv_role="value", layer_index=1).page_pool[1].tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(page) + 5] ^= 0x10
    path.write_bytes(data)
