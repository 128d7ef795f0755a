"""A real model's cache out of a snapshot, against computing it again.

Run with ``.venv-engines/bin/python -m benchmarks real_model``, after ``make test-engines`` has made that environment.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate

#: A prefill takes seconds, and the ratio is large.
MAX_ROUNDS = 3


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; the length of the prompt is divided by ``scale``."""
    # Before transformers is imported, so that nobody looks for a network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    example = importlib.import_module("examples.real_model.real_model")
    adapter = importlib.import_module("hurray_arrow.engines.transformers")
    dynamic_cache = importlib.import_module("transformers").DynamicCache
    model, tokenizer = example.load()
    text = tokenizer(example.topics["objects"] + example.topics["specialnames"]).input_ids[: 2048 // scale]

    def prefill() -> Any:
        cache = dynamic_cache(config=model.config)
        example.read(model, cache, text)
        return cache

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prefix.arrow"
        computed = prefill()
        ha.write_snapshot(path, adapter.export_cache(computed, page_size=16, token_ids=[text]))

        def restore() -> Any:
            with ha.open_snapshot(path) as snapshot:
                tensors = snapshot.iter_tensors(verify=True)
                return adapter.import_cache(tensors, expect=None, config=model.config).cache

        ours_s, peer_s = alternate(restore, prefill, rounds=min(rounds, MAX_ROUNDS))
        yield Measurement(
            f"open, verify and restore {len(text)} tokens of SmolLM2-135M",
            "prefill of the same tokens",
            ours_s,
            peer_s,
            "speed ≥ 10",
        )
        question = tokenizer("\n\nQuestion: What is an object?\nAnswer:").input_ids
        restored = example.answer(model, restore(), question)
        expected = example.answer(model, computed, question)
        same = sum(one == other for one, other in zip(restored, expected, strict=True))
        yield Count("greedy tokens after the restored prompt", f"{same} of {len(expected)} the same", "all")
