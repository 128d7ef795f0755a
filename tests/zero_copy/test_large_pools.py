"""A pool of more than 2^32 stored values and more than 4 GiB in one row: no 32-bit number anywhere on its way."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow.snapshot import open_snapshot, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor

NUM_PAGES, PAGE_SIZE, NUM_HEADS, HEAD_DIM = 2053, 16, 8, 16411  # 2,100,608 bytes a page
POOL_BYTES = NUM_PAGES * PAGE_SIZE * NUM_HEADS * HEAD_DIM
NEEDED_BYTES = 6 << 30


@pytest.fixture
def roomy_folder(tmp_path):
    """A folder with room for the file, in memory where there is enough."""
    folders = [folder for folder in (Path("/dev/shm"), tmp_path) if folder.is_dir()]  # noqa: S108  a RAM disk
    roomy = [folder for folder in folders if shutil.disk_usage(folder).free >= NEEDED_BYTES]
    assert roomy, f"this test needs {NEEDED_BYTES} bytes of disk in one of {folders}"
    with tempfile.TemporaryDirectory(dir=roomy[0]) as folder:
        yield Path(folder)


@pytest.mark.long
def test_a_pool_beyond_32_bits_in_one_row(roomy_folder):
    assert POOL_BYTES > 2**32
    # Untouched zeros are no memory: only the few pages that get values are.
    pool = np.zeros((NUM_PAGES, PAGE_SIZE, NUM_HEADS, HEAD_DIM), np.uint8)
    rng = np.random.default_rng(17)
    marked = [0, 1021, 1022, 1023, 2044, 2045, NUM_PAGES - 1]  # around 2^31 and 2^32 bytes, and both ends
    for page in marked:
        pool[page] = rng.integers(0, 256, pool.shape[1:], dtype=np.uint8)
    tables = [marked[::-1], [], [NUM_PAGES - 1, 0]]
    lens = [7 * PAGE_SIZE - 5, 0, PAGE_SIZE + 3]
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=tables, seq_lens=lens, kv_role="fused", layer_index=3)
    path = roomy_folder / "large.arrow"
    write_snapshot(path, [tensor])
    assert path.stat().st_size > POOL_BYTES
    before = pa.total_allocated_bytes()
    with open_snapshot(path) as snapshot:
        found = snapshot.read()
        assert pa.total_allocated_bytes() - before < 1 << 20
        assert found.page_pool.shape == pool.shape
        assert found.page_pool.nbytes == POOL_BYTES
        for page in marked:
            assert np.array_equal(found.page_pool[page], pool[page])
        for seq in range(3):
            assert np.array_equal(found.gather(seq), tensor.gather(seq))
        assert found.element(2, 17, 7, 16410) == pool[0, 1, 7, 16410]
        [entry] = snapshot.entries
        assert entry.num_pages == NUM_PAGES
        assert entry.stored_bytes > 2**32
        report = snapshot.verify()
        assert (report.num_pages, report.page_bytes) == (NUM_PAGES, POOL_BYTES)
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    pages = table["page_pool"].chunk(0).values
    assert len(pages) == NUM_PAGES
    assert np.array_equal(pages.slice(NUM_PAGES - 1).to_pages()[0], pool[-1])
    assert np.array_equal(pages[2045].as_py(), pool[2045])
