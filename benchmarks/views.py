"""The views: statistics of heads, sharing in SQL, decoded pages.

Run with ``python -m benchmarks views`` (``--quick`` for a sixteenth of the sizes).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from benchmarks.share import FOLDER
from hurray_arrow.views import open_view
from hurray_arrow.views.dataset import ViewDataset

CACHE = Path(__file__).parents[1] / "examples" / "data" / "smollm2_small.npz"


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield from norm_results(Path(folder), rounds)
        yield from sharing_results(Path(folder), scale, rounds)
        yield from page_results(Path(folder), scale, rounds)


def norm_results(folder: Path, rounds: int) -> Iterator[Measurement]:
    """Norms of the keys of all tokens by head, of the shipped cache ten times over, against numpy on the raw arrays."""
    with np.load(CACHE) as arrays:
        cache = dict(arrays)
    copies = 10
    num_pages = cache["key_pool"].shape[1]
    pools = np.tile(cache["key_pool"], (1, copies, 1, 1, 1))
    table = np.concatenate([cache["block_table"] + copy * num_pages for copy in range(copies)]).astype(np.uint32)
    pages = np.tile(np.diff(cache["seq_ptr"]), copies)
    seq_ptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.uint32)
    seq_lens = np.tile(cache["seq_lens"], copies)
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            pool, table, seq_ptr, seq_lens=seq_lens, element_type="bfloat16", kv_role="key", layer_index=int(layer)
        )
        for layer, pool in zip(cache["layer_index"], pools, strict=True)
    ]
    path = folder / "norms.arrow"
    ha.write_snapshot(path, tensors)
    lens = seq_lens.astype(np.int64)

    def ours() -> npt.NDArray[Any]:
        reader = snapshot.tokens(per_head=True, values="stats", kv_role="key", columns=["norm"])
        return np.asarray(reader.read_all()["norm"])

    def peer() -> npt.NDArray[Any]:
        token = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
        slot = table[np.repeat(seq_ptr[:-1].astype(np.int64), lens) + token // 16].astype(np.int64) * 16 + token % 16
        found = []
        for pool in pools:
            bits = pool.reshape(-1, *pool.shape[2:])[slot]
            numbers = (bits.astype(np.uint32) << 16).view(np.float32)
            found.append(np.sqrt(np.einsum("thd,thd->th", numbers, numbers)))
        return np.concatenate(found).reshape(-1)

    with ha.open_snapshot(path) as snapshot:
        np.testing.assert_allclose(ours(), peer(), rtol=1e-6)
        ours_s, peer_s = alternate(ours, peer, rounds=rounds, repeat=5)
    what = f"key norms by head, {len(tensors)} layers, {lens.sum()} tokens"
    yield Measurement(what, "numpy on the raw arrays", ours_s, peer_s, "time ≤ 1.5")
    path.unlink()


def sharing_results(folder: Path, scale: int, rounds: int) -> Iterator[Measurement]:
    """How many pages how many sequences share, over a million table entries, against numpy.unique."""
    num_seqs, pages_each, prefix = 2000 // scale, 500, 200
    rng = np.random.default_rng(5)
    num_pages = prefix * 20 + num_seqs * (pages_each - prefix)
    names = rng.permutation(num_pages).astype(np.uint32)
    own = names[prefix * 20 :].reshape(num_seqs, -1)
    prefixes = names[: prefix * 20].reshape(20, prefix)
    table = np.concatenate([prefixes[rng.integers(20, size=num_seqs)], own], axis=1).reshape(-1)
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((num_pages, 2, 1, 1), np.uint8),
        table,
        np.arange(0, table.size + 1, pages_each, dtype=np.uint32),
        seq_lens=[2 * pages_each] * num_seqs,
        kv_role="key",
        layer_index=0,
    )
    path = folder / "sharing.arrow"
    ha.write_snapshot(path, [tensor])
    query = 'select "references", count(*) from pages group by "references" order by "references"'

    def ours() -> object:
        connection.register("pages", ViewDataset(open_view(snapshot, "pages")))
        return connection.sql(query).fetchall()

    def peer() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        _, counts = np.unique(table, return_counts=True)
        return np.unique(counts, return_counts=True)

    with ha.open_snapshot(path) as snapshot, duckdb.connect() as connection:
        assert ours() == list(zip(*(counts.tolist() for counts in peer()), strict=True))  # noqa: S101  same answers
        ours_s, peer_s = alternate(ours, peer, rounds=rounds)
    yield Measurement(f"DuckDB: sharing of {table.size} entries", "numpy.unique", ours_s, peer_s, "time ≤ 3")
    path.unlink()


def page_results(folder: Path, scale: int, rounds: int) -> Iterator[Measurement]:
    """Decode bfloat16 pages, one batch after the other, against memcpy of as many float32."""
    num_pages = 8192 // scale
    rng = np.random.default_rng(2)
    pool = rng.integers(0, 2**16, (num_pages, 16, 8, 64), dtype=np.uint16)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool,
        block_tables=[list(range(num_pages))],
        seq_lens=[num_pages * 16],
        element_type="bfloat16",
        kv_role="key",
        layer_index=0,
    )
    path = folder / "pages.arrow"
    ha.write_snapshot(path, [tensor])
    source, copy = (np.ones(pool.size, np.float32) for _ in range(2))

    def ours() -> int:
        return sum(batch.num_rows for batch in snapshot.pages(values="float32", columns=["values"]))

    with ha.open_snapshot(path) as snapshot:
        ours_s, peer_s = alternate(ours, lambda: np.copyto(copy, source), rounds=rounds)
    what = f"pages as float32 from bfloat16, {source.nbytes >> 20} MiB"
    yield Measurement(what, "memcpy into memory at hand", ours_s, peer_s, "speed ≥ 0.5")
    path.unlink()
