"""Catalogues: which of very many snapshots hold a prompt, and what bringing a catalogue up to date costs.

Run with ``python -m benchmarks catalog`` (``--quick`` for a sixteenth of the sizes).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from benchmarks.share import FOLDER
from hurray_arrow.catalog import build_catalog, find_prefix, open_catalog
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.contents import Prefixes
from hurray_arrow.catalog.digests import PrefixHasher
from hurray_arrow.catalog.document import Document
from hurray_arrow.catalog.writer import CatalogWriter
from hurray_arrow.snapshot.files import AtomicFile

KEY = bytes(range(32))
STEP_TOKENS, PROMPT_TOKENS = 16, 4096
#: Steps of each snapshot, and how many of them half of all snapshots have in common: a system prompt.
STEPS, SHARED_STEPS = 128, 32


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        yield from find_results(Path(folder), 100_000 // scale, rounds)
        yield from build_results(Path(folder), 2_000 // scale)


def find_results(folder: Path, num_files: int, rounds: int) -> Iterator[Measurement | Count]:
    """Ask for a prompt whose system prompt half of all snapshots hold, and whose first 2,000 tokens one holds."""
    prompt = np.random.default_rng(3).integers(0, 50_000, PROMPT_TOKENS, dtype=np.uint32)
    path = folder / "many.parquet"
    write_synthetic(path, prompt, num_files)
    with open_catalog(path) as catalogue:
        highs = [run.high.copy() for run in catalogue.runs("steps")]
    hasher = PrefixHasher(KEY, step_tokens=STEP_TOKENS)
    steps = list(range(STEP_TOKENS, PROMPT_TOKENS + 1, STEP_TOKENS))
    wanted = hasher.digests(prompt, steps, adapter=None, tenant=None, media=())[:, 0]

    def ours() -> None:
        found = find_prefix(path, prompt, key=KEY)
        assert len(found) == 100  # noqa: S101  the answer is right
        assert (found[0].num_tokens, found[1].num_tokens) == (2000, SHARED_STEPS * STEP_TOKENS)  # noqa: S101

    def peer() -> int:
        return sum(int(np.isin(high, wanted).sum()) for high in highs)

    ours_s, peer_s = alternate(ours, peer, rounds=rounds)
    num_digests = sum(map(len, highs))
    what = f"find {PROMPT_TOKENS} tokens in {num_files} snapshots, {num_digests} digests"
    yield Measurement(what, "numpy.isin over all digests", ours_s, peer_s, "well under 1 s", f"{ours_s * 1e3:.0f} ms")
    path.unlink()


def write_synthetic(path: Path, prompt: np.ndarray, num_files: int) -> None:
    """Write a catalogue as a build over so many snapshots would: random digests, and the prompt's in half of them."""
    hasher = PrefixHasher(KEY, step_tokens=STEP_TOKENS)
    rng = np.random.default_rng(5)
    lengths = np.arange(1, STEPS + 1, dtype=np.uint64) * np.uint64(STEP_TOKENS)
    shared = hasher.digests(prompt, lengths.tolist(), adapter=None, tenant=None, media=())
    writer = CatalogWriter(AtomicFile(path), rows="snapshots", step_tokens=STEP_TOKENS)
    for number in range(num_files):
        digests = rng.integers(0, 2**64, (STEPS, 2), dtype=np.uint64)
        if number % 2:
            digests[:SHARED_STEPS] = shared[:SHARED_STEPS]
        if number == num_files // 3:
            digests[: 2000 // STEP_TOKENS] = shared[: 2000 // STEP_TOKENS]
        index, sequence = np.full(STEPS, number, np.uint32), np.zeros(STEPS, np.uint32)
        writer.add_prefixes(Prefixes(digests[:, 0], digests[:, 1], index, sequence, lengths))
    for start in range(0, num_files, 10_000):
        numbers = range(start, min(start + 10_000, num_files))
        rows = [
            {"file_index": n, "url": f"s3://bucket/cache/{n:07}.arrow", "snapshot_id": f"{n:032x}"} for n in numbers
        ]
        writer.add_rows(pa.Table.from_pylist(rows, schema=SCHEMAS["snapshots"]))
    writer.publish(
        Document(
            url="s3://bucket/cache",
            rows="snapshots",
            num_files=num_files,
            created="2026-01-02T03:04:05Z",
            producer={"name": "benchmark", "version": "1"},
            step_tokens=STEP_TOKENS,
            key_check=hasher.check,
        )
    )


def build_results(folder: Path, num_files: int) -> Iterator[Count]:
    """Build a catalogue over small snapshots on a disk, change a few, and bring it up to date."""
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    for number in range(num_files):
        write_small(snapshots / f"{number}.arrow", number)
    destination = folder / "catalog.parquet"
    for what, changed in (("build", 0), ("nothing new", 0), ("ten changed", 10)):
        for number in range(changed):
            write_small(snapshots / f"{number}.arrow", number)
        start = time.perf_counter()
        report = build_catalog(snapshots, destination=destination, key=KEY)
        seconds = time.perf_counter() - start
        found = f"{seconds:.2f} s, {report.num_read} read, {report.requests} ranges"
        yield Count(f"catalogue of {num_files} snapshots on a disk: {what}", found, "")


def write_small(path: Path, seed: int) -> None:
    """Write a snapshot of two layers and 300 tokens."""
    rng = np.random.default_rng(seed)
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            rng.integers(0, 2**16, (20, 16, 2, 8), dtype=np.uint16),
            block_tables=[list(range(19))],
            seq_lens=[300],
            token_ids=[rng.integers(0, 50_000, 300)],
            element_type="bfloat16",
            kv_role=role,
            layer_index=layer,
            kv_group=layer,
        )
        for layer in range(2)
        for role in ("key",)
    ]
    ha.write_snapshot(path, tensors, overwrite=True)
