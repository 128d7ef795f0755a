"""Snapshots in a bucket, and what an answer from them needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hurray_arrow as ha
from hurray_arrow.snapshot.tail import read_footer
from tests.stores.servers import Store

PAGES, PAGE_SIZE, HEADS, DIMS = 127, 16, 3, 83


def tensors(number: int, *, dims: tuple[int, ...] = (DIMS, DIMS)) -> list[ha.BlockPagedTensor]:
    """Keys of layers 2, 5, …, 1 MiB each for 83 dims; sequences share a page, one is empty."""
    rng = np.random.default_rng(number)
    tables = [list(range(53)), [], [0, *range(53, PAGES)]]
    lens = [53 * PAGE_SIZE - 5, 0, (PAGES - 52) * PAGE_SIZE]
    return [
        ha.BlockPagedTensor.from_arrays(
            rng.integers(0, 1 << 14, (PAGES, PAGE_SIZE, HEADS, head_dim), dtype=np.uint16),
            block_tables=tables,
            seq_lens=lens,
            ids=["a", "b", f"own-{number}"],
            element_type="bfloat16",
            kv_role="key",
            layer_index=2 + 3 * place,
        )
        for place, head_dim in enumerate(dims)
    ]


def write(store: Store, folder: Path, names: list[str], **more: Any) -> list[str]:
    """Put snapshots into the bucket; gives their URLs. The last of them stays in the folder as ``a.arrow``."""
    data = {}
    for number, name in enumerate(names):
        ha.write_snapshot(folder / "a.arrow", tensors(number, **more), overwrite=True)
        data[store.url(name)] = (folder / "a.arrow").read_bytes()
    store.raw.pipe(data)
    store.raw.invalidate_cache()
    store.proxy.reset()
    return list(data)


def needed_bytes(path: Path, layer_index: int) -> int:
    """Count what an answer from all pages of one layer needs of a file: its end, the tables, the row."""
    with ha.open_snapshot(path) as snapshot:
        rows: Any = snapshot._rows
        places = {own[0].layer_index: own[0] for own in rows._places.values()}
        end: int = rows.source.size - read_footer(rows.source)[-1].offset
        row, first = places[layer_index], places[min(places)]
        tables = first.block.end - first.offset - first.pages_bytes if row is not first else 0
        return int(end + row.block.end - row.offset + tables)


def counted(store: Store) -> tuple[int, int]:
    """Return the requests that read since the last reset, and the bytes that came."""
    reads = store.proxy.reads()
    return len(reads), sum(request.answer_bytes for request in reads)


def arrow(dataset: Any) -> pa.Table:
    """Return all rows; Ray's own way to one Arrow table."""
    tables = [table for table in dataset.iter_batches(batch_format="pyarrow", batch_size=None) if table.num_rows]
    return pa.concat_tables(tables) if tables else pa.table({})
