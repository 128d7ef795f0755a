"""Engines: export of a cache, and restoring a sequence into a running pool.

Run with ``python -m benchmarks engines`` (``--quick`` for a sixteenth of the sizes).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Count, Measurement, alternate
from hurray_arrow.engines import vllm

MIB = 1 << 20
SLOTS, HEADS, DIM = 16, 8, 128
LAYERS = 8
PAGE_BYTES = SLOTS * HEADS * DIM * 2


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    yield from export_results(scale, rounds)
    yield from shared_results(scale)
    yield from restore_results(scale, rounds)


def export_results(scale: int, rounds: int) -> Iterator[Measurement]:
    """Export a vLLM HND cache against numpy's own transpose-copy of the same views, all pages and a half of them."""
    num_pages = 512 * MIB // scale // (2 * PAGE_BYTES)
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 2**16, (num_pages, HEADS, SLOTS, 2 * DIM), dtype=np.uint16)
    keys, values = pool.transpose(0, 2, 1, 3)[..., :DIM], pool.transpose(0, 2, 1, 3)[..., DIM:]

    def export(row: list[int], pages: str) -> object:
        return vllm.export_cache(
            {"layer": pool},
            layout="BHNC",
            block_tables=[row],
            seq_lens=[len(row) * SLOTS],
            page_size=SLOTS,
            element_type="bfloat16",
            head_dim=DIM,
            pages=pages,
        )

    rows = list(range(num_pages))
    work, peer = f"export vLLM HND, {pool.nbytes >> 20} MiB", "numpy transpose-copy of the same view"

    def transpose() -> object:
        return np.ascontiguousarray(keys), np.ascontiguousarray(values)

    for pages in ("all", "referenced"):
        ours_s, peer_s = alternate(lambda pages=pages: export(rows, pages), transpose, rounds=rounds)  # type: ignore[misc]  # a default binds the loop's value
        yield Measurement(f"{work}, {pages} pages", peer, ours_s, peer_s, "speed ≥ 0.9")
    half = rng.permutation(num_pages)[: num_pages // 2]

    def take() -> object:
        return np.ascontiguousarray(keys[half]), np.ascontiguousarray(values[half])

    listed = half.tolist()
    ours_s, peer_s = alternate(lambda: export(listed, "referenced"), take, rounds=rounds)
    yield Measurement(
        f"{work}, half of the pages in no order", "numpy indexing and transpose-copy", ours_s, peer_s, "speed ≥ 0.9"
    )


def shared_results(scale: int) -> Iterator[Count]:
    """Count the page bytes that an export of an NHD cache copies."""
    num_pages = 512 * MIB // scale // (2 * PAGE_BYTES)
    pool = np.zeros((2, num_pages, SLOTS, HEADS, DIM), np.uint16)
    tensors = vllm.export_cache(
        {"layer": pool},
        layout="2BNHD",
        block_tables=[list(range(num_pages))],
        seq_lens=[num_pages * SLOTS],
        page_size=SLOTS,
        element_type="bfloat16",
        pages="all",
    )
    copied = sum(tensor.page_pool.nbytes for tensor in tensors if not np.shares_memory(tensor.page_pool, pool))
    yield Count(f"export NHD (2, B, N, H, D), {pool.nbytes >> 20} MiB, all pages", f"{copied} page bytes copied", "0")


def restore_results(scale: int, rounds: int) -> Iterator[Measurement]:
    """Restore 5 % of a pool of 8 layers, its pages in no order, against a memcpy of each of these pages."""
    num_pages = 2048 * MIB // scale // (2 * PAGE_BYTES) // LAYERS
    count = num_pages // 20
    rng = np.random.default_rng(2)
    source = rng.integers(0, 2**16, (LAYERS, 2, count, SLOTS, HEADS, DIM), dtype=np.uint16)
    tensors = vllm.export_cache(
        {f"layer.{number}": layer for number, layer in enumerate(source)},
        layout="2BNHD",
        block_tables=[list(range(count))],
        seq_lens=[count * SLOTS],
        page_size=SLOTS,
        element_type="bfloat16",
        pages="all",
    )
    blocks = rng.permutation(num_pages)[:count].tolist()
    for layout, shape in (
        ("2BNHD", (LAYERS, 2, num_pages, SLOTS, HEADS, DIM)),
        ("BNHC", (LAYERS, num_pages, SLOTS, HEADS, 2 * DIM)),
        ("BHNC", (LAYERS, num_pages, HEADS, SLOTS, 2 * DIM)),
    ):
        pool = np.full(shape, 7, np.uint16)
        views = pool.transpose(0, 1, 3, 2, 4) if layout == "BNHC" else pool
        destination = {f"layer.{number}": view for number, view in enumerate(views)}

        def restore(destination: dict[str, np.ndarray] = destination, layout: str = layout) -> object:
            return vllm.restore_into(
                destination,
                tensors,
                layout=layout,
                sequence=0,
                block_ids=blocks,
                page_size=SLOTS,
                expect=None,
                element_type="bfloat16",
            )

        # A page of this layout in memory, keys and values together where they lie so, and as many bytes to copy there.
        paged = pool.reshape(LAYERS * (2 if layout == "2BNHD" else 1), num_pages, -1).view(np.uint8)
        dense = source.reshape(paged.shape[0], count, -1).view(np.uint8)
        pairs = [
            (paged[part, block], dense[part, place])
            for part in range(paged.shape[0])
            for place, block in enumerate(blocks)
        ]

        def copy(pairs: list[tuple[np.ndarray, np.ndarray]] = pairs) -> None:
            for page, new in pairs:
                np.copyto(page, new)

        ours_s, peer_s = alternate(restore, copy, rounds=rounds)
        size = LAYERS * count * 2 * PAGE_BYTES >> 20
        work = f"restore_into {layout}, {size} MiB in {LAYERS} layers, 5 % of a pool"
        yield Measurement(work, "memcpy of each of these pages", ours_s, peer_s, "time ≤ 1.3")
