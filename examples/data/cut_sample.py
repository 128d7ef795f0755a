"""Cut `smollm2_small.npz` from the whole paged cache of SmolLM2-135M: fewer layers, shorter sequences, the same values.

A causal model's cache of a shorter text is the beginning of its cache of the longer one, so a sequence is shortened by
leaving out its last tokens: what remains is the real cache of those tokens. Pages that nobody names any more are
dropped and the others numbered anew in their old order. The same source gives the same bytes.

    python examples/data/cut_sample.py path/to/smollm2_paged_bf16.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LAYERS = (0, 7, 14, 22, 29)
#: Source sequence -> tokens kept: two share the 256-token prefix and go on, one is only the prefix, one shares nothing.
KEPT_TOKENS = {0: 331, 2: 307, 3: 256, 5: 37}
KEPT_UNREFERENCED_PAGES = 3
PAGE_SIZE = 16


def cut(source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the small cache.

    Parameters
    ----------
    source
        The arrays of the whole cache: ``key_pool`` and ``value_pool`` uint16 [layers, pages, slots, heads, dims],
        ``block_table``, ``seq_ptr``, ``seq_lens``, ``token_ids``, ``unreferenced_pages``.

    Returns
    -------
    dict[str, np.ndarray]
        New arrays of the same names, and ``layer_index`` uint32 [layers].
    """
    token_ptr = np.concatenate([[0], np.cumsum(source["seq_lens"])]).astype(np.int64)
    tables, tokens = [], []
    for seq, num_tokens in KEPT_TOKENS.items():
        first_page = int(source["seq_ptr"][seq])
        tables.append(source["block_table"][first_page : first_page + -(-num_tokens // PAGE_SIZE)])
        tokens.append(source["token_ids"][token_ptr[seq] : token_ptr[seq] + num_tokens])

    unreferenced = source["unreferenced_pages"][:KEPT_UNREFERENCED_PAGES]
    pages = np.unique(np.concatenate([*tables, unreferenced]))
    pools = np.ix_(np.array(LAYERS), pages)
    return {
        "layer_index": np.array(LAYERS, dtype=np.uint32),
        "key_pool": source["key_pool"][pools],
        "value_pool": source["value_pool"][pools],
        "block_table": np.searchsorted(pages, np.concatenate(tables)).astype(np.uint32),
        "seq_ptr": np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.uint32),
        "seq_lens": np.array(list(KEPT_TOKENS.values()), dtype=np.uint64),
        "token_ids": np.concatenate(tokens).astype(np.uint32),
        "unreferenced_pages": np.searchsorted(pages, unreferenced).astype(np.uint32),
    }


def main(source: Path, target: Path) -> None:
    """Read the whole cache from `source`, write the small one to `target`.

    Parameters
    ----------
    source, target
        Paths of the two .npz files.
    """
    with np.load(source) as arrays:
        small = cut(dict(arrays))
    np.savez_compressed(target, allow_pickle=False, **small)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} path/to/smollm2_paged_bf16.npz")
    main(Path(sys.argv[1]), Path(__file__).with_name("smollm2_small.npz"))
