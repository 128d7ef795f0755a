"""What a cache belongs to: expectations, the digest of a model's configuration, the longest stored prefix.

Keys and values of another model, revision, RoPE setting, adapter or tenant have the right shape and size, so nothing
but a comparison of names finds them.

Spec: snapshot format, section 3 (``expect``) and section 2 (``sequences``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from hurray_arrow import _json
from hurray_arrow.errors import SnapshotMismatchError
from hurray_arrow.prefixes import PrefixMatch, match_prefix
from hurray_arrow.sequences import Sequences
from hurray_arrow.tensor import BlockPagedTensor

__all__ = [
    "KV_PROPERTIES",
    "SEQUENCE_FACTS",
    "TENSOR_FACTS",
    "PrefixMatch",
    "agreed_facts",
    "check_expected",
    "config_digest",
    "match_prefix",
    "model_metadata",
    "rope_of",
    "stated_by_sequences",
    "tensor_facts",
]

#: What tensors say of themselves.
TENSOR_FACTS = ("element_type", "page_shape", "page_size", "num_heads", "head_dim")
#: What sequences say of themselves, and the metadata of those that say nothing.
SEQUENCE_FACTS = ("adapter", "tenant")

#: Fields of which None says something: the base model, nobody's cache. Expecting it refuses a cache that names one.
_NONE_IS_A_VALUE = frozenset(SEQUENCE_FACTS)

# -- expectations ------------------------------------------------------------------------------------------------------


def check_expected(
    metadata: Mapping[str, Any], expect: Mapping[str, Any] | None, *, facts: Mapping[str, Any] | None = None
) -> None:
    """Refuse a cache that is not what the caller expects.

    Parameters
    ----------
    metadata
        The snapshot's metadata, ``{}`` where there is none.
    expect
        Expected values by dotted name: ``model.name``, ``model.revision``, ``model.config_digest``, ``model.rope``,
        ``model.rope.rope_theta``, ``adapter``, ``tenant``, ``topology.head_range``, ``engine.kv_cache_dtype``, or any
        other place in the metadata; and the names of ``facts``. ``None`` expects nothing.
    facts
        What is known otherwise, by name, such as :func:`tensor_facts`; goes before the metadata.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent. ``adapter`` and ``tenant`` may be expected to be ``None``, which
        refuses a cache that names one; expecting ``None`` of any other field is a mismatch.

    Notes
    -----
    A mapping is compared as a whole: an expected ``model.rope`` without ``factor`` differs from a found one with it.

    Examples
    --------
    >>> from hurray_arrow.identity import check_expected
    >>> check_expected({"model": {"name": "toy"}, "tenant": None}, {"model.name": "toy", "tenant": None})
    >>> check_expected({"model": {"name": "toy"}}, {"model.name": "other"})
    Traceback (most recent call last):
    hurray_arrow.errors.SnapshotMismatchError: model.name: expected 'other', the snapshot has 'toy'

    Spec: snapshot format, section 3.
    """
    for field, expected in (expect or {}).items():
        if facts is not None and field in facts:
            found = facts[field]
        else:
            found = metadata
            for part in field.split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
        if found is None and expected is None and field in _NONE_IS_A_VALUE:
            continue
        if found is None or _plain(found) != _plain(expected):
            error = SnapshotMismatchError(field=field, expected=expected, found=found)
            if found is None and (meant := _meant(field, [*(facts or {}), *_names(metadata)])):
                error.add_note(f"did you mean {meant}?")
            raise error


def _names(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Give the dotted names of what the metadata says; what is under ``user`` is nobody else's."""
    for key, value in metadata.items():
        if prefix or key != "user":
            yield prefix + key
            if isinstance(value, Mapping):
                yield from _names(value, f"{prefix}{key}.")


def _meant(field: str, names: list[str]) -> str | None:
    from difflib import get_close_matches

    inner = [name for name in names if name.endswith(f".{field}")]
    return next(iter(inner or get_close_matches(field, names, 1, 0.8)), None)


def _plain(value: Any) -> Any:
    """Give a value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, int) and abs(value) >= _json.FIRST_INEXACT_INTEGER:
        return str(value)
    return value


def tensor_facts(
    tensors: Iterable[BlockPagedTensor],
    metadata: Mapping[str, Any] | None = None,
    *,
    sequences: Iterable[int] | None = None,
) -> dict[str, Any]:
    """Give what tensors say of themselves, for :func:`check_expected`.

    Parameters
    ----------
    tensors
        The tensors; companions count for ``adapter`` and ``tenant`` only.
    metadata
        Its ``adapter`` and ``tenant`` stand for sequences that name none.
    sequences
        The sequences whose ``adapter`` and ``tenant`` count; ``None`` for all.

    Returns
    -------
    dict
        ``element_type`` str, ``page_shape`` ``[page_size, num_heads, head_dim]``, ``page_size``, ``num_heads``,
        ``head_dim``, ``adapter`` and ``tenant``: the value where all agree, else the list of all, which equals no
        single value. A fact that nobody states is left out.

    Spec: snapshot format, section 2.
    """
    tensors = list(tensors)
    values = [tensor.descriptor for tensor in tensors if tensor.component == "values"]
    found: dict[str, Iterable[Any]] = {
        "element_type": (descriptor.element_type.name for descriptor in values),
        "page_shape": (descriptor.page_shape for descriptor in values),
        "page_size": (descriptor.page_size for descriptor in values),
        "num_heads": (descriptor.num_heads for descriptor in values),
        "head_dim": (descriptor.head_dim for descriptor in values),
    }
    # Tensors of a group mostly share one object.
    known = {id(tensor.sequences): (tensor.sequences, tensor.num_seqs) for tensor in tensors}
    which = None if sequences is None else list(sequences)
    for name in SEQUENCE_FACTS:
        found[name] = stated_by_sequences(name, known.values(), metadata=metadata or {}, which=which)
    return agreed_facts(found)


def stated_by_sequences(
    name: str,
    sequences: Iterable[tuple[Sequences, int]],
    *,
    metadata: Mapping[str, Any],
    which: Collection[int] | None = None,
) -> list[str | None]:
    """Give the adapter or tenant of every sequence.

    Parameters
    ----------
    name
        One of :data:`SEQUENCE_FACTS`.
    sequences
        Facts and number of the sequences of each group.
    metadata
        Its value stands for sequences that name none.
    which
        The sequences that count; ``None`` for all.

    Returns
    -------
    list of str or None
        One for each, groups one after the other.
    """
    general = metadata.get(name)
    return [
        general if entries is None or entries[s] is None else entries[s]
        for facts, num_seqs in sequences
        for entries in [getattr(facts, name)]
        for s in (range(num_seqs) if which is None else which)
    ]


def agreed_facts(found: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """Give of each fact the value where all agree, else the list of all, which equals no single value.

    Parameters
    ----------
    found
        Of each fact what every tensor or sequence says.

    Returns
    -------
    dict
        Without facts that nobody states.
    """
    stated: dict[str, Any] = {}
    for name, entries in found.items():
        distinct = [list(entry) if isinstance(entry, tuple) else entry for entry in dict.fromkeys(entries)]
        if len(distinct) > 1:
            stated[name] = distinct
        elif distinct and distinct[0] is not None:
            stated[name] = distinct[0]
    return stated


# -- a model's configuration -------------------------------------------------------------------------------------------

#: The properties of a transformers config that decide keys and values. What is not here does not enter the digest:
#: names, paths, versions, generation settings and whatever else an instance or an installation adds.
KV_PROPERTIES = (
    *("model_type", "dtype", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "layer_types"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "activation"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layernorm_epsilon"),
    *("attention_bias", "mlp_bias", "use_bias", "bias", "qkv_bias", "use_qkv_bias", "qk_norm", "use_qk_norm"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "query_pre_attn_scalar", "scale_emb"),
    *("scale_depth", "clip_qkv", "attn_logit_softcapping", "attn_temperature_tuning", "floor_scale", "attn_scale"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "alibi", "position_embedding_type", "parallel_attn"),
    *("parallel_residual", "use_parallel_residual", "new_decoder_architecture", "multi_query", "num_kv_heads"),
    *("sliding_window", "sliding_window_pattern", "attention_chunk_size", "no_rope_layers", "no_rope_layer_interval"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "num_kv_shared_layers"),
    *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step"),
    *("moe_layer_freq", "mlp_only_layers", "moe_layers", "interleave_moe_layer_step", "norm_topk_prob", "n_group"),
    *("topk_group", "topk_method", "scoring_func", "routed_scaling_factor", "quantization_config"),
)
#: Older names of the same properties.
_OLDER_NAMES = {
    "torch_dtype": "dtype",
    "n_layer": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}
#: Kinds of RoPE whose angles do not depend on the longest sequence that a server allows.
_LENGTH_FREE_ROPE = frozenset({"default", "linear"})


def config_digest(config: Any) -> str:
    """Compute a digest of the properties of a model's configuration that decide keys and values.

    Parameters
    ----------
    config
        A transformers ``PreTrainedConfig``, or its ``to_dict()``. The language model's part is taken of a config that
        has several. Take the loaded config on both sides: a raw ``config.json`` may leave defaults out.

    Returns
    -------
    str
        ``sha256:`` and 64 hex digits, over the canonical JSON of :data:`KV_PROPERTIES` and :func:`rope_of`. The same in
        every process; what is absent, ``None``, ``False`` or empty is the same too, so that a property that a newer
        library adds switched off changes nothing.

    Notes
    -----
    The digest covers the configuration and not the weights: expect ``model.revision`` beside it.

    Spec: snapshot format, section 3, ``model.config_digest``.
    """
    stated = _config_dict(config)
    content = {name: stated.get(name) for name in KV_PROPERTIES}
    heads = content["num_attention_heads"]
    if content["num_key_value_heads"] is None:
        content["num_key_value_heads"] = heads
    if content["head_dim"] is None and heads and content["hidden_size"]:
        content["head_dim"] = content["hidden_size"] // heads
    if content["dtype"] is not None:
        content["dtype"] = str(content["dtype"]).removeprefix("torch.")
    if set(content["layer_types"] or ()) <= {"full_attention"}:
        content["layer_types"] = None
    if isinstance(content["quantization_config"], Mapping):
        # Which file the weights came from says nothing of them; the revision does.
        quantized = content["quantization_config"].items()
        content["quantization_config"] = {name: value for name, value in quantized if not name.endswith("_file")}
    content["rope"] = rope_of(stated)
    text = _json.dumps({"config_digest": 1, **_content(content)})
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def rope_of(config: Any) -> dict[str, Any]:
    """Give the rotary position parameters of a model's configuration, under the names that transformers gives them.

    Parameters
    ----------
    config
        As of :func:`config_digest`; older configs, with ``rope_theta`` and ``rope_scaling``, give the same.

    Returns
    -------
    dict
        ``rope_type``, ``rope_theta``, and what scaling adds; by layer type where layers differ. Empty without RoPE.
        ``max_position_embeddings`` is there only where the angles depend on it.

    Spec: snapshot format, section 3, ``model.rope``.
    """
    stated = _config_dict(config)
    given = stated.get("rope_parameters")
    if not given:
        given = {**(stated.get("rope_scaling") or {})}
        if stated.get("rope_theta") is None and not given:
            return {}
    if any(isinstance(value, Mapping) for value in given.values()):
        by_layer = {kind: _rope(value, stated) for kind, value in given.items() if isinstance(value, Mapping)}
        return {kind: value for kind, value in by_layer.items() if value}
    return _rope(given, stated)


def model_metadata(
    config: Any, *, name: str | None = None, revision: str | None = None, rope_applied: bool = True
) -> dict[str, Any]:
    """Give the ``model`` part of a snapshot's metadata.

    Parameters
    ----------
    config
        As of :func:`config_digest`.
    name
        The model's name. Not taken from the config, where it may be a path on somebody's disk.
    revision
        Which weights: a commit, a digest, a version. ``None`` takes the commit that the config was loaded from.
    rope_applied
        Whether stored keys are already rotated, as those of every engine here are.

    Returns
    -------
    dict
        ``name``, ``revision``, ``config_digest``, ``rope`` with ``applied``; without what nobody knows.

    Spec: snapshot format, section 3.
    """
    rope = rope_of(config)
    known = {
        "name": name,
        "revision": revision if revision is not None else getattr(config, "_commit_hash", None),
        "config_digest": config_digest(config),
        "rope": {**rope, "applied": rope_applied} if rope else None,
    }
    return {key: value for key, value in known.items() if value is not None}


def _config_dict(config: Any) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        if not hasattr(config, "to_dict"):
            raise TypeError(f"config: expected a mapping or a transformers config, got {type(config).__name__}")
        config = config.to_dict()
    text = config.get("text_config")
    # An older name counts only where the newer one says nothing.
    stated = {_OLDER_NAMES[name]: value for name, value in config.items() if name in _OLDER_NAMES}
    stated |= {name: value for name, value in config.items() if value is not None or name not in stated}
    return {**stated, **_config_dict(text)} if isinstance(text, Mapping) else stated


def _rope(given: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    rope = {name: value for name, value in given.items() if name != "type"}
    rope["rope_type"] = given.get("rope_type") or given.get("type") or "default"
    for name in ("rope_theta", "partial_rotary_factor", "rope_local_base_freq"):
        rope.setdefault(name, stated.get(name))
    if rope["rope_type"] not in _LENGTH_FREE_ROPE:
        for name in ("max_position_embeddings", "original_max_position_embeddings"):
            rope.setdefault(name, stated.get(name))
    if rope["partial_rotary_factor"] == 1:
        del rope["partial_rotary_factor"]
    return dict(_content(rope))


def _content(value: Any) -> Any:
    """Give a value without what says nothing; numbers that are equal look equal."""
    if isinstance(value, Mapping):
        items = {str(key): _content(item) for key, item in value.items()}
        return {
            key: item for key, item in items.items() if item is not None and item is not False and item not in ({}, [])
        }
    if isinstance(value, (list, tuple)):
        return [_content(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
