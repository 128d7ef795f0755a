"""Operations on tensors: how close moving pages comes to moving memory.

Run with ``python -m benchmarks ops`` (``--quick`` for a sixteenth of the sizes), or as
``python -m benchmarks.ops --size MIB``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import hurray_arrow as ha
from benchmarks.measure import Count, Measurement, alternate
from hurray_arrow import ops

MIB = 1 << 20
SIZE_MIB = 512
SEQUENCES = 16


def results(*, scale: int, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table; sizes are divided by ``scale``."""
    yield from of_size(SIZE_MIB // scale, rounds=rounds)


def of_size(size_mib: int, *, rounds: int) -> Iterator[Measurement | Count]:
    """Yield the lines of the table for pools of this size."""
    for num_heads in (8, 1):
        yield from repage_results(size_mib, num_heads, rounds=rounds)
        yield from compact_results(size_mib, num_heads, rounds=rounds)
    yield select_result(size_mib)


def cache(size_mib: int, *, num_heads: int, used: float = 1.0) -> ha.BlockPagedTensor:
    """Make a bfloat16 pool whose pages lie in any order; ``used`` of them belong to a sequence."""
    num_pages = size_mib * MIB // (16 * num_heads * 128 * 2)
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 2**16, (num_pages, 16, num_heads, 128), dtype=np.uint16)
    pages = rng.permutation(num_pages)[: int(num_pages * used)].astype(np.uint32)
    rows = np.array_split(pages, SEQUENCES)
    # Each last page is partial, as in a real cache.
    lens = [row.size * 16 - 5 for row in rows]
    return ha.BlockPagedTensor.from_arrays(
        pool, block_tables=rows, seq_lens=lens, element_type="bfloat16", kv_role="key"
    )


def repage_results(size_mib: int, num_heads: int, *, rounds: int) -> Iterator[Measurement]:
    """Repage 16 → 32 and back, against copying the pool's memory."""
    tensor = cache(size_mib, num_heads=num_heads)
    raw = tensor.buffers[0]
    in_use = np.zeros_like(raw)
    work = f"repage 16 → 32, {size_mib} MiB, pages {num_heads * 4} KiB"
    ours_s, peer_s = alternate(lambda: ops.repage(tensor, 32), raw.copy, rounds=rounds)
    yield Measurement(work, "memcpy into new memory", ours_s, peer_s, "speed ≥ 0.4")
    ours_s, peer_s = alternate(lambda: ops.repage(tensor, 32), lambda: np.copyto(in_use, raw), rounds=rounds)
    yield Measurement(work, "memcpy into memory in use", ours_s, peer_s, "", "for comparison")
    back = ops.repage(tensor, 32)
    ours_s, peer_s = alternate(lambda: ops.repage(back, 16), raw.copy, rounds=rounds)
    yield Measurement(work.replace("16 → 32", "32 → 16"), "memcpy into new memory", ours_s, peer_s, "speed ≥ 0.4")


def compact_results(size_mib: int, num_heads: int, *, rounds: int) -> Iterator[Measurement]:
    """Compact a pool of which half is in use, against numpy.take of those pages."""
    tensor = cache(size_mib, num_heads=num_heads, used=0.5)
    wanted = tensor.block_table.astype(np.intp)
    words = tensor.page_pool.view(np.uint16)
    ours_s, peer_s = alternate(lambda: ops.compact(tensor), lambda: np.take(words, wanted, axis=0), rounds=rounds)
    work = f"compact, {size_mib} MiB, half in use, pages {num_heads * 4} KiB"
    yield Measurement(work, "numpy.take of those pages", ours_s, peer_s, "time ≤ 1.2")


def select_result(size_mib: int) -> Count:
    """Select sequences and ranges that begin at pages: no byte of the pool is copied."""
    tensor = cache(size_mib, num_heads=8)
    chosen = ops.select(tensor, [3, 5], tokens=(64, 999))
    same = chosen.page_pool.ctypes.data == tensor.page_pool.ctypes.data
    return Count(
        "select, ranges from a page's start", "0 page bytes copied" if same else "COPIED", "0 page bytes copied"
    )


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops", description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE_MIB, metavar="MIB", help="size of the pools")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds of each pair")
    arguments = parser.parse_args()
    for line in of_size(arguments.size, rounds=arguments.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
