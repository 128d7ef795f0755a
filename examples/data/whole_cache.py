"""Write the whole cache that `smollm2_small.npz` was cut from to snapshots, read them again, compare, show them.

The cache is not in the repository; the README beside this script says which file it is. What there is to see is
asserted: 60 tensors come back as they went in, 9 of 102 pages are unreferenced, 16 are shared by 5 sequences.

    python examples/data/whole_cache.py path/to/smollm2_paged_bf16.npz
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import hurray_arrow as ha
from hurray_arrow.cli.demo import compare
from hurray_arrow.cli.output import console


def tensors_of(source: Path) -> list[ha.BlockPagedTensor]:
    """Return key and value of each layer.

    Parameters
    ----------
    source
        Path of the whole cache.
    """
    with np.load(source) as arrays:
        cache = dict(arrays)
    token_ids = np.split(cache["token_ids"], np.cumsum(cache["seq_lens"]).astype(np.int64)[:-1])
    return [
        ha.BlockPagedTensor.from_arrays(
            cache[f"{kv_role}_pool"][layer],
            cache["block_table"],
            cache["seq_ptr"],
            seq_lens=cache["seq_lens"],
            token_ids=token_ids,
            element_type="bfloat16",
            kv_role=kv_role,
            layer_index=layer,
        )
        for layer in range(len(cache["key_pool"]))
        for kv_role in ("key", "value")
    ]


def main(source: Path) -> None:
    """Write both profiles to a temporary folder, and show what came back.

    Parameters
    ----------
    source
        Path of the whole cache.
    """
    tensors = tensors_of(source)
    with tempfile.TemporaryDirectory() as folder:
        for profile in ("share", "archive"):
            path = Path(folder) / f"{profile}.arrow"
            ha.write_snapshot(path, tensors, profile=profile)
            assert compare(path, tensors, to=console())
    first = tensors[0]
    assert (len(tensors), first.num_pages, first.unreferenced_pages().size) == (60, 102, 9)
    assert first.shared_pages().size == 16
    assert set(first.sequences_per_page()[first.shared_pages()].tolist()) == {5}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} path/to/smollm2_paged_bf16.npz")
    main(Path(sys.argv[1]))
