"""What a cache belongs to: expectations, config digests, prefixes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.identity import check_expected, config_digest, match_prefix, model_metadata, rope_of, tensor_facts
from hurray_arrow.prefixes import PrefixGroup, match_groups, stored_prefixes
from tests.prefix_groups import ADAPTERS, TENANTS, only, random_groups

METADATA = {
    "model": {
        "name": "tiny",
        "revision": "9f2c",
        "config_digest": "sha256:aa",
        "rope": {"rope_type": "default", "rope_theta": 10000, "applied": True},
    },
    "engine": {"kv_cache_dtype": "bfloat16", "source_layout": "BHSD"},
    "topology": {"head_range": [3, 7]},
    "adapter": "french",
    "tenant": "t-17",
}


@pytest.mark.parametrize(
    "expect",
    [
        None,
        {},
        {"model.name": "tiny", "model.revision": "9f2c", "model.config_digest": "sha256:aa"},
        {"model.rope": {"rope_type": "default", "rope_theta": 10000.0, "applied": True}},
        {"model.rope.rope_theta": 10000},
        {"topology.head_range": (3, 7)},
        {"engine.kv_cache_dtype": "bfloat16", "engine.source_layout": "BHSD"},
        {"adapter": "french", "tenant": "t-17"},
    ],
)
def test_what_is_as_expected_passes(expect):
    check_expected(METADATA, expect)


@pytest.mark.parametrize(
    ("field", "expected", "found"),
    [
        ("model.name", "huge", "tiny"),
        ("model.revision", "9f2d", "9f2c"),
        ("model.config_digest", "sha256:ab", "sha256:aa"),
        ("model.rope.rope_theta", 500000, 10000),
        ("model.rope", {"rope_type": "default", "rope_theta": 10000}, METADATA["model"]["rope"]),
        ("model.rope.applied", False, True),
        ("topology.head_range", (0, 4), [3, 7]),
        ("engine.kv_cache_dtype", "float16", "bfloat16"),
        ("engine.source_layout", "BSHD", "BHSD"),
        ("adapter", "german", "french"),
        ("adapter", None, "french"),
        ("tenant", "t-18", "t-17"),
        ("tenant", None, "t-17"),
        ("model.weights", "v2", None),
        ("model.name.first", "t", None),
        ("set.id", "x", None),
        ("model.weights", None, None),
    ],
)
def test_what_differs_or_is_absent_is_refused_with_both_values(field, expected, found):
    with pytest.raises(ha.SnapshotMismatchError) as caught:
        check_expected(METADATA, {"model.name": "tiny", field: expected})
    assert (caught.value.field, caught.value.expected, caught.value.found) == (field, expected, found)


@pytest.mark.parametrize(
    ("field", "meant"),
    [("revision", "model.revision"), ("modle.name", "model.name"), ("pagesize", "page_size"), ("note", None)],
)
def test_a_name_that_is_not_quite_right_is_put_right(field, meant):
    metadata = {"model": {"name": "toy", "revision": "r1"}, "user": {"note": "mine"}}
    with pytest.raises(ha.SnapshotMismatchError) as caught:
        check_expected(metadata, {field: "x"}, facts={"page_size": 5})
    assert getattr(caught.value, "__notes__", []) == ([f"did you mean {meant}?"] if meant else [])


def test_no_adapter_and_no_tenant_can_be_expected():
    check_expected({}, {"adapter": None, "tenant": None})


def test_large_integers_equal_the_strings_that_json_keeps():
    check_expected({"user": {"seed": str(2**60 + 1)}}, {"user.seed": 2**60 + 1})
    with pytest.raises(ha.SnapshotMismatchError):
        check_expected({"user": {"seed": str(2**60 + 1)}}, {"user.seed": 2**60})


def tensor(role="key", *, dtype=np.float16, page_size=3, **facts):
    pool = np.arange(5 * page_size * 2 * 7).reshape(5, page_size, 2, 7).astype(dtype)
    return ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[4, 1], [4]], seq_lens=[page_size + 1, 2], kv_role=role, layer_index=0, **facts
    )


def test_tensor_facts_go_before_the_metadata():
    facts = tensor_facts([tensor(), tensor("value")])
    assert facts == {
        "element_type": "float16",
        "page_shape": [3, 2, 7],
        "page_size": 3,
        "num_heads": 2,
        "head_dim": 7,
    }
    check_expected({}, {"element_type": "float16", "page_shape": (3, 2, 7), "adapter": None}, facts=facts)
    with pytest.raises(ha.SnapshotMismatchError) as caught:
        check_expected({"element_type": "float32"}, {"element_type": "float32"}, facts=facts)
    assert caught.value.found == "float16"


def test_tensors_that_differ_equal_no_expectation():
    facts = tensor_facts([tensor(), tensor("value", dtype=np.float32)])
    assert facts["element_type"] == ["float16", "float32"]
    with pytest.raises(ha.SnapshotMismatchError):
        check_expected({}, {"element_type": "float16"}, facts=facts)


def test_one_foreign_sequence_is_enough_to_refuse():
    mixed = [tensor(adapter=["a", "b"], tenant=["t", None])]
    facts = tensor_facts(mixed, {"tenant": "t"})
    assert (facts["adapter"], facts["tenant"]) == (["a", "b"], "t")
    check_expected({"tenant": "t"}, {"tenant": "t"}, facts=facts)
    with pytest.raises(ha.SnapshotMismatchError):
        check_expected({}, {"adapter": "a"}, facts=facts)
    assert tensor_facts(mixed)["tenant"] == ["t", None]
    assert tensor_facts(mixed, sequences=[1])["adapter"] == "b"
    assert "tenant" not in tensor_facts(mixed, sequences=[1])


# -- configs -------------------------------------------------------------------------------------------------------

CONFIG = {
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "_name_or_path": "/somebody/else",
    "transformers_version": "4.1",
}
DIGEST = "sha256:8e2cd321ef2666bc9750893ed2e3d8db3a031463ccbdbf4df1329abecd63b0bd"


def test_the_digest_is_the_same_in_every_process():
    code = f"from hurray_arrow.identity import config_digest; print(config_digest({CONFIG!r}))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("1", "2")
    }
    # Written down: a digest that changes makes every stored snapshot a mismatch.
    assert runs == {config_digest(CONFIG)} == {DIGEST}


@pytest.mark.parametrize(
    "change",
    [
        {"_name_or_path": "elsewhere"},
        {"transformers_version": "9.9"},
        {"use_cache": False},
        {"max_position_embeddings": 8192},
        {"temperature": 0.7},
        {"head_dim": 6},
        {"rope_theta": 10000},
        {"torch_dtype": None, "dtype": "bfloat16"},
        {"dtype": "torch.bfloat16"},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_scaling": None, "sliding_window": None, "attention_bias": False},
        {"layer_types": ["full_attention"] * 3},
        {"partial_rotary_factor": 1.0},
    ],
    ids=str,
)
def test_what_does_not_decide_keys_and_values_leaves_the_digest_alone(change):
    assert config_digest({**CONFIG, **change}) == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2"},
        {"vocab_size": 258},
        {"hidden_size": 28},
        {"num_hidden_layers": 4},
        {"num_attention_heads": 6},
        {"num_key_value_heads": 4},
        {"head_dim": 8},
        {"rms_norm_eps": 1e-6},
        {"rope_theta": 500000.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}},
        {"sliding_window": 13},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"torch_dtype": "float32"},
        {"attention_bias": True},
        {"partial_rotary_factor": 0.5},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
    ids=str,
)
def test_what_decides_keys_and_values_changes_the_digest(change):
    assert config_digest({**CONFIG, **change}) != DIGEST


def test_the_file_of_quantized_weights_is_no_property_of_them():
    one, other = ({"quant_method": "gguf", "gguf_file": name} for name in ("a.gguf", "b.gguf"))
    assert config_digest({**CONFIG, "quantization_config": one}) == config_digest(
        {**CONFIG, "quantization_config": other}
    )


def test_a_config_object_is_read_through_to_dict():
    class Config:
        _commit_hash = "c0ffee"

        def to_dict(self):
            return CONFIG

    assert config_digest(Config()) == DIGEST
    assert model_metadata(Config(), name="tiny") == {
        "name": "tiny",
        "revision": "c0ffee",
        "config_digest": DIGEST,
        "rope": {"rope_type": "default", "rope_theta": 10000, "applied": True},
    }
    assert model_metadata(Config(), revision="r2", rope_applied=False)["revision"] == "r2"
    with pytest.raises(TypeError):
        config_digest(object())


def test_the_language_model_of_a_larger_config_counts():
    outer = {"model_type": "llava", "text_config": CONFIG, "vision_config": {"hidden_size": 99}}
    assert config_digest(outer) == DIGEST


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({"model_type": "gpt2", "n_embd": 12}, {}),
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 500000}),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.5}, "max_position_embeddings": 99},
            {"rope_type": "linear", "rope_theta": 10000, "factor": 2.5},
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2}, "max_position_embeddings": 99},
            {"rope_type": "dynamic", "rope_theta": 10000, "factor": 2, "max_position_embeddings": 99},
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
            },
        ),
    ],
)
def test_rope_is_found_under_old_and_new_names(config, rope):
    assert rope_of(config) == rope


# -- prefixes ------------------------------------------------------------------------------------------------------

TOKENS = np.arange(100, 111, dtype=np.uint32)


def stored(*token_ids, **facts):
    facts.setdefault("seq_lens", [len(ids) for ids in token_ids])
    return ha.Sequences(token_ids=token_ids, **facts)


def test_the_longest_prefix_is_exact_to_the_token():
    sequences = stored(TOKENS[:4], [*TOKENS[:7], 9, 9], TOKENS[:6], ids=["a", "b", "c"])
    assert match_prefix(sequences, TOKENS, page_size=3) == (1, 7, "b")
    assert match_prefix(sequences, TOKENS, page_size=3, page_aligned=True) == (1, 6, "b")
    assert match_prefix(sequences, TOKENS[:5], page_size=3) == (1, 5, "b")
    assert match_prefix(sequences, [9, *TOKENS], page_size=3) == (None, 0, None)
    assert match_prefix(sequences, [], page_size=3) == (None, 0, None)
    assert match_prefix(ha.Sequences(), TOKENS, page_size=3) == (None, 0, None)


def test_a_match_never_crosses_adapter_or_tenant():
    sequences = stored(TOKENS, TOKENS[:9], TOKENS[:5], adapter=["x", None, None], tenant=["t", "t", None])
    assert match_prefix(sequences, TOKENS, page_size=3) == (2, 5, None)
    assert match_prefix(sequences, TOKENS, page_size=3, tenant="t") == (1, 9, None)
    assert match_prefix(sequences, TOKENS, page_size=3, tenant="t", adapter="x") == (0, 11, None)
    assert match_prefix(sequences, TOKENS, page_size=3, adapter="x") == (None, 0, None)


def test_only_tokens_that_are_stored_count():
    assert match_prefix(stored(TOKENS, seq_lens=[None]), TOKENS, page_size=3) == (None, 0, None)
    holes = stored(TOKENS, page_positions=[[0, 3, 8]], seq_lens=[8])
    assert match_prefix(holes, TOKENS, page_size=3) == (0, 6, None)
    assert match_prefix(stored(TOKENS, page_positions=[[3, 6]], seq_lens=[5]), TOKENS, page_size=3).num_tokens == 0
    partial = stored(TOKENS, page_positions=[[0, 3]], seq_lens=[5])
    assert match_prefix(partial, TOKENS, page_size=3) == (0, 5, None)


IMAGE = ha.MediaSpan(4, 3, "sha256:cat")


@pytest.mark.parametrize(
    ("has", "given", "num_tokens"),
    [
        ([IMAGE], None, 4),
        ([IMAGE], [ha.MediaSpan(4, 3, "sha256:dog")], 4),
        ([IMAGE], [ha.MediaSpan(3, 3, "sha256:cat")], 3),
        ([IMAGE], [IMAGE], 11),
        (None, [IMAGE], 4),
        ([IMAGE, ha.MediaSpan(9, 1, "b")], [IMAGE, ha.MediaSpan(9, 1, "c")], 9),
    ],
)
def test_a_match_stops_before_media_that_are_not_the_same(has, given, num_tokens):
    sequences = stored(TOKENS, media=[has])
    assert match_prefix(sequences, TOKENS, page_size=3, media=given) == (0, num_tokens, None)


def test_a_match_never_ends_inside_media():
    sequences = stored(TOKENS[:6], media=[[IMAGE]], seq_lens=[6])
    assert match_prefix(sequences, TOKENS, page_size=3, media=[IMAGE]).num_tokens == 4
    whole = stored(TOKENS[:8], media=[[IMAGE]])
    assert match_prefix(whole, TOKENS, page_size=3, media=[IMAGE]).num_tokens == 8
    assert match_prefix(whole, TOKENS, page_size=3, media=[IMAGE], page_aligned=True).num_tokens == 3


def test_every_group_has_to_hold_what_its_layers_look_at():
    full = PrefixGroup(stored(TOKENS), 3)
    window = ha.Sequences(seq_lens=[6], page_positions=[[5, 8]])
    assert match_groups([full, PrefixGroup(window, 3)], TOKENS).num_tokens == 0
    # The next token looks at itself and 4 before it: positions 5 … 8 are stored, so 9 tokens and more are usable.
    with_window = [full, PrefixGroup(window, 3, window_tokens=5)]
    assert match_groups(with_window, TOKENS) == (0, 11, None)
    assert match_groups(with_window, TOKENS[:9]) == (0, 9, None)
    assert match_groups(with_window, TOKENS[:8]) == (None, 0, None)
    assert match_groups(with_window, TOKENS, page_aligned=True) == (0, 9, None)
    # A window of 1 looks at nothing that is stored; one of 0 is a window that nobody set.
    assert match_groups([full, PrefixGroup(window, 3, window_tokens=1)], TOKENS[:5]) == (0, 5, None)
    assert match_groups([full, PrefixGroup(window, 3, window_tokens=0)], TOKENS[:5]).num_tokens == 0


@pytest.mark.parametrize("seed", range(20))
def test_matches_agree_with_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 2, rng.integers(0, 13)).astype(np.uint32) for _ in range(7)]
    prompt = rng.integers(0, 2, 11).astype(np.uint32)
    names = [rng.choice(["a", "b"]) for _ in prompts]
    found = match_prefix(stored(*prompts, tenant=names), prompt, page_size=3, tenant="a")
    lengths = []
    for ids, name in zip(prompts, names, strict=True):
        n = 0
        while name == "a" and n < min(len(ids), len(prompt)) and ids[n] == prompt[n]:
            n += 1
        lengths.append(n)
    assert found.num_tokens == max(lengths)
    assert found.sequence == (lengths.index(max(lengths)) if max(lengths) else None)


@pytest.mark.parametrize("seed", range(40))
def test_stored_prefixes_are_those_that_match_whole(seed):
    """What is listed is found when it is asked for, and nothing that is a step or the longest is left out."""
    rng = np.random.default_rng(seed)
    groups = random_groups(rng)
    listed = {each.sequence: each for each in stored_prefixes(groups, step_tokens=4)}
    facts = groups[0].sequences
    for s in range(4):
        alone = only(groups, s)
        token_ids, media = facts.token_ids and facts.token_ids[s], facts.media and facts.media[s]
        whole = [
            (adapter, tenant, n)
            for adapter in ADAPTERS
            for tenant in TENANTS
            for n in range(1, 0 if token_ids is None else token_ids.size + 1)
            if match_groups(alone, token_ids[:n], adapter=adapter, tenant=tenant, media=media).num_tokens == n
        ]
        expected = [n for _, _, n in whole if n % 4 == 0 or n == max(n for _, _, n in whole)]
        assert len({(adapter, tenant) for adapter, tenant, _ in whole}) <= 1
        assert (s in listed) == bool(whole)
        if whole:
            found = listed[s]
            assert found.lengths.tolist() == expected
            assert (found.adapter, found.tenant) == whole[0][:2]
            assert np.array_equal(found.token_ids, token_ids)
            assert found.media == tuple(media or ())


@pytest.mark.parametrize("positions", [[], [0]])
def test_fewer_positions_than_the_tokens_take_pages_are_refused(positions):
    """As a forged snapshot may have them, whose facts are asked and no tensor."""
    sequences = ha.Sequences(token_ids=[TOKENS[:5]], seq_lens=[5], page_positions=[positions])
    with pytest.raises(ha.InvariantError, match=f"{len(positions)} positions, 5 tokens take 2 pages of 3") as caught:
        match_prefix(sequences, TOKENS, page_size=3)
    assert caught.value.codes == ["page_positions_invalid"]


def test_positions_at_the_end_of_uint64_are_no_prefix():
    far = ha.Sequences(token_ids=[TOKENS], seq_lens=[5], page_positions=[[0, 2**64 - 4]])
    [found] = stored_prefixes([PrefixGroup(far, 3, window_tokens=2)], step_tokens=2)
    assert found.lengths.tolist() == [2, 3]


def test_a_snapshot_matches_over_all_its_groups(tmp_path):
    pool = np.arange(7 * 3 * 2 * 5, dtype=np.float32).reshape(7, 3, 2, 5)
    facts = {"token_ids": [TOKENS, TOKENS[:5]], "ids": ["long", "short"]}
    made = [
        ha.BlockPagedTensor.from_arrays(
            pool,
            block_tables=[[6, 0, 2, 3], [6, 5]],
            seq_lens=[11, 5],
            kv_role="key",
            layer_index=0,
            kv_group=0,
            **facts,
        ),
        ha.BlockPagedTensor.from_arrays(
            pool,
            block_tables=[[1, 4], [2, 3]],
            seq_lens=[6, 5],
            page_positions=[[5, 8], None],
            kv_role="key",
            layer_index=1,
            kv_group=1,
            **facts,
        ),
    ]
    groups = [{"kind": "full"}, {"kind": "sliding_window", "window_tokens": 5}]
    ha.write_snapshot(tmp_path / "a.arrow", made, metadata={"groups": groups, "tenant": "t-17"})
    with ha.open_snapshot(tmp_path / "a.arrow", expect={"tenant": "t-17"}) as snapshot:
        assert snapshot.match_prefix(TOKENS, tenant="t-17") == (0, 11, "long")
        assert snapshot.match_prefix(TOKENS[:7], tenant="t-17") == (1, 5, "short")
        assert snapshot.match_prefix(TOKENS[:7], tenant="t-17", page_aligned=True) == (1, 3, "short")
        assert snapshot.match_prefix(TOKENS) == (None, 0, None)
    with pytest.raises(ha.SnapshotMismatchError):
        ha.open_snapshot(tmp_path / "a.arrow", expect={"tenant": "t-18"})
