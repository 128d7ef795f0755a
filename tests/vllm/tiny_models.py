"""Model folders that vLLM loads: random weights from a seed, large enough that every token depends on the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

VOCABULARY = 257


def llama(folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.4,
        dtype="float32",
    )
    return _save(LlamaForCausalLM, config, folder)


def gemma(folder: Path) -> Path:
    """Layers with a window of 70 tokens and one without, and a head size that takes the CPU backend's other kernel."""
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=48,
        sliding_window=70,
        query_pre_attn_scalar=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=1024,
        # Tied to its embeddings, a model of random weights repeats its last token for ever.
        tie_word_embeddings=False,
        initializer_range=0.4,
        dtype="float32",
    )
    return _save(Gemma3ForCausalLM, config, folder)


def _save(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(11)
    kind(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def computed_cache(kind: Any, folder: Path, token_ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values ``[tokens, heads, head_dim]`` of each layer, as transformers computes them from the weights."""
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    # A cache without a config keeps every token in layers with a window, too.
    cache = DynamicCache()
    model(input_ids=torch.tensor([token_ids]), past_key_values=cache, use_cache=True)
    return [(layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)) for layer in cache.layers]
