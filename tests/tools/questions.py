"""The five questions of docs/tools, answered by numpy on the arrays of the shipped cache."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hurray_arrow as ha

PAGES = Path(__file__).parents[2] / "docs" / "tools"
CACHE = Path(__file__).parents[2] / "examples" / "data" / "smollm2_small.npz"


def arrays() -> dict[str, Any]:
    with np.load(CACHE) as file:
        return dict(file)


def write_cache(path: Path) -> None:
    cache = arrays()
    token_ids = np.split(cache["token_ids"], np.cumsum(cache["seq_lens"])[:-1].astype(int))
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            pools[place],
            cache["block_table"],
            cache["seq_ptr"],
            seq_lens=cache["seq_lens"],
            token_ids=token_ids,
            element_type="bfloat16",
            kv_role=role,
            layer_index=int(layer),
        )
        for place, layer in enumerate(cache["layer_index"])
        for role, pools in (("key", cache["key_pool"]), ("value", cache["value_pool"]))
    ]
    ha.write_snapshot(path, tensors)


def keys_of_tokens(cache: dict[str, Any], place: int) -> np.ndarray:
    """Keys of all tokens of all sequences in a layer, float32 [tokens, heads, dims], by a plain loop."""
    pool = (cache["key_pool"][place].astype(np.uint32) << 16).view(np.float32)
    slots = []
    for seq, tokens in enumerate(cache["seq_lens"].tolist()):
        table = cache["block_table"][cache["seq_ptr"][seq] :]
        slots += [pool[table[token // 16], token % 16] for token in range(tokens)]
    return np.stack(slots)


def answers() -> list[list[tuple[Any, ...]]]:
    cache = arrays()
    tables = np.split(cache["block_table"], cache["seq_ptr"][1:-1])
    named = Counter(page for table in tables for page in set(table.tolist()))
    sharing = sorted(Counter(named[page] for page in range(31)).items())
    layers = cache["layer_index"].tolist()
    keys = [keys_of_tokens(cache, place) for place in range(len(layers))]
    norms = [np.linalg.norm(each, axis=-1) for each in keys]
    outliers = [
        (layer, head, norm[:, head].max() / norm[:, head].mean())
        for layer, norm in zip(layers, norms, strict=True)
        for head in range(3)
    ]
    steps = [np.abs(each).max(axis=(0, 2)) / 127 for each in keys]
    filled = dict.fromkeys(range(31), 0)
    for table, tokens in zip(tables, cache["seq_lens"].tolist(), strict=True):
        for place, page in enumerate(table.tolist()):
            filled[page] = max(filled[page], min(16, tokens - 16 * place))
    dead = 1 - sum(filled.values()) / (31 * 16)
    first = int(cache["seq_lens"][0])
    lengths = np.linalg.norm(keys[layers.index(14)][:first].reshape(first, -1), axis=-1)
    longest = np.argsort(-lengths)[:3]
    return [
        sharing,
        sorted(outliers, key=lambda row: -row[2])[:3],
        [(layer, step.max(), step.mean()) for layer, step in zip(layers, steps, strict=True)],
        [("key", dead), ("value", dead)],
        [(int(t), int(cache["token_ids"][t]), lengths[t]) for t in longest],
    ]


def check_page(tool: str, expected: list[list[tuple[Any, ...]]]) -> None:
    """Run the code of a page of docs/tools, in a folder that has the cache, and compare its five answers."""
    text = (PAGES / f"{tool}.md").read_text()
    assert f"hurray-arrow[{tool}]" in text
    names: dict[str, object] = {}
    found: list[Any] = []
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        exec(compile(block, f"{tool}.md block {number}", "exec"), names)  # noqa: S102  the page is ours
        if "answer" in names:
            found.append(names.pop("answer"))
    assert len(found) == 5
    for ours, numpys in zip(found, expected, strict=True):
        assert len(ours) == len(numpys)
        cells = [pair for rows in zip(ours, numpys, strict=True) for pair in zip(*rows, strict=True)]
        assert all(one == (two if isinstance(two, str) else pytest.approx(two, rel=1e-5)) for one, two in cells), ours
