"""What a report reads, and how much it holds: counters and bytes, not clocks."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow import report
from hurray_arrow.report.head_values import read_values

PAGE_BYTES = 2 * 16 * 8 * 64
NUM_PAGES = 1024


@functools.cache
def written(profile, tensors):
    """16 MiB to a tensor, 16 KiB to a page, half of the pages in use."""
    rng = np.random.default_rng(5)
    pool = rng.integers(0x3C00, 0x4000, (NUM_PAGES, 16, 8, 64), dtype=np.uint16)
    used = rng.permutation(NUM_PAGES)[: NUM_PAGES // 2]
    some = [
        ha.BlockPagedTensor.from_arrays(
            pool,
            block_tables=[table.tolist() for table in np.array_split(used, 7)],
            seq_lens=[16 * len(table) - 3 for table in np.array_split(used, 7)],
            element_type="bfloat16",
            kv_role="key",
            layer_index=layer,
        )
        for layer in range(tensors)
    ]
    url = f"memory://report/big-{profile}-{tensors}"
    ha.write_snapshot(url, some, profile=profile, overwrite=True)
    return url


def stored(profile, tensors=4):
    return ha.open_snapshot(written(profile, tensors))


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_a_pool_is_drawn_from_its_tables(profile):
    with stored(profile, tensors=2) as snapshot:
        source = snapshot._rows.source
        before = source.requests, source.fetched_bytes
        for draw in (report.page_map, report.sharing, report.last_page_fill):
            draw(snapshot)
        assert source.requests - before[0] <= 3 * 2 + 1
        assert source.fetched_bytes - before[1] < 200_000


def test_values_from_a_store_cost_their_sample():
    sample_bytes = 4 << 20
    with stored("share") as snapshot:
        source = snapshot._rows.source
        before = source.requests, source.fetched_bytes
        values = read_values(snapshot, sample_bytes=sample_bytes, with_planes=True)
        read = sum(each.raw_bytes for each in values.tensors)
        assert sample_bytes / 3 < read <= sample_bytes  # half of the pages of a run hold nothing
        # Pages in no sequence lie among those that are read: fetching them costs less than another request does.
        assert source.fetched_bytes - before[1] < 2.5 * sample_bytes
        assert source.requests - before[0] < 4 * (sample_bytes / 4 / (256 << 10) + 3)


def test_values_from_an_archive_cost_whole_rows():
    with stored("archive", tensors=2) as snapshot:
        source = snapshot._rows.source
        [first, _] = snapshot.entries
        before = source.requests, source.fetched_bytes
        values = read_values(snapshot, sample_bytes=0)
        assert [each.num_pages for each in values.tensors] == [values.tensors[0].num_pages] * 2
        assert 0 < values.tensors[0].num_pages <= (8 << 20) // PAGE_BYTES
        # One of the two rows with pages of each tensor, and each tensor's first row.
        assert source.fetched_bytes - before[1] < 2 * (first.stored_bytes / 2 + 100_000)
        assert source.requests - before[0] <= 6


def test_a_report_says_that_it_is_a_sample(monkeypatch):
    monkeypatch.setattr("hurray_arrow.report.document._rendered", lambda picture: {**EMPTY, "title": picture.title})
    with stored("share", tensors=2) as snapshot:
        sampled = report.html(snapshot, sample_bytes=1 << 20)
        whole = report.html(snapshot, sample_bytes=1 << 30)
    assert "A sample: " in sampled
    assert "of the 1,024 pages that hold tokens" in sampled
    assert "Every page that holds tokens was read: 1,024 pages" in whole


EMPTY = {"caption": "", "alt": "", "tables": [], "sources": [{"media": "", "url": "data:,", "width": 1, "height": 1}]}

#: 10.7 GB of pages as holes of a sealed memory file; what is printed is bytes.
PROGRAM = """
import resource
import numpy as np
import hurray_arrow as ha
from hurray_arrow import report

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

pages = np.random.default_rng(3).permutation(10240)
tables = [table.tolist() for table in np.array_split(pages[:8192], 300)]
specs = [
    ha.share.tensor_spec(
        num_pages=10240, page_shape=(16, 8, 128), element_type="bfloat16", kv_role=role, layer_index=layer,
        block_tables=tables, seq_lens=[16 * len(table) - 5 for table in tables],
    )
    for layer in range(16) for role in ("key", "value")
]
with ha.share.allocate(specs, checksums=False) as allocation:
    sealed = allocation.seal()
with sealed.open() as snapshot:
    before = peak_bytes()
    text = report.html(snapshot)
    print(sum(entry.stored_bytes for entry in snapshot.entries), peak_bytes() - before, len(text))
"""


def test_ten_gigabytes_are_drawn_in_little_memory():
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stored_bytes, held_bytes, text_bytes = map(int, done.stdout.split())
    assert stored_bytes > 10e9
    assert held_bytes < 200e6
    assert text_bytes < 5e6
