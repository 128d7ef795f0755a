"""Listing a snapshot in a store takes two requests at most, and bytes within its allowance."""

from __future__ import annotations

import subprocess
import sys

import fsspec
import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.arrow.ipc_layout import TAIL_BYTES, footer_bytes_of
from hurray_arrow.snapshot import remote, tail
from hurray_arrow.snapshot.tail import read_tail

URL = "memory://tail/many.arrow"
NUM_TENSORS = 389


@pytest.fixture(scope="module")
def many():
    """Rows enough for a footer of 10 kB; the index is about twice as long, as it is for any number of rows."""
    rng = np.random.default_rng(5)
    ha.write_snapshot(
        URL,
        [
            ha.BlockPagedTensor.from_arrays(
                rng.normal(size=(3, 2, 1, 5)).astype(np.float32),
                block_tables=[[2, 0]],
                seq_lens=[3],
                kv_role="key",
                layer_index=layer,
                layer_name=f"model.layers.{layer}.self_attn.attn",
            )
            for layer in range(NUM_TENSORS)
        ],
        page_align_bytes=64,
        overwrite=True,
    )
    return fsspec.filesystem("memory").cat("/tail/many.arrow")


def listed(monkeypatch, *, first_bytes, allowed_bytes):
    monkeypatch.setattr(remote, "TAIL_BYTES", first_bytes)
    monkeypatch.setattr(tail, "_LISTING_BYTES", allowed_bytes)
    with ha.open_snapshot(URL) as snapshot:
        assert len(snapshot.entries) == NUM_TENSORS
        source = snapshot._rows.source
        return source.requests, source.fetched_bytes


def test_footer_and_index_come_in_two_requests_whatever_is_allowed(many, monkeypatch):
    footer = footer_bytes_of(many[-TAIL_BYTES:])
    with ha.open_snapshot(URL) as snapshot:
        needed = len(many) - read_tail(snapshot._rows.source).offset
    # Less than it takes at all, exactly what it takes, and plenty.
    for allowed in (footer, needed, 100 * footer):
        requests, fetched = listed(monkeypatch, first_bytes=1024, allowed_bytes=allowed)
        assert requests == 2
        assert fetched <= max(allowed, 3.5 * footer + TAIL_BYTES)
    assert listed(monkeypatch, first_bytes=needed, allowed_bytes=1)[0] == 1


@pytest.mark.parametrize("footer_bytes", [10_000, 100_000, 299_000])
def test_the_guess_keeps_within_what_listing_may_cost(footer_bytes):
    spare = tail._spare_bytes(10**9, footer_bytes)
    assert 2.5 * footer_bytes <= spare <= 2**20 - footer_bytes - TAIL_BYTES


def test_a_footer_that_says_it_is_the_file_brings_little_more():
    assert tail._spare_bytes(10**12, 10**11) == 64 << 20


OPENED_IN_A_STORE = """
import os
import numpy as np
import hurray_arrow as ha
from hurray_arrow.snapshot.tail import read_tail
from hurray_arrow.snapshot.remote import open_range

pool = np.ones((2, 2, 1, 1), np.float32)
tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=[[1]], seq_lens=[2], kv_role="key", layer_index=0)
ha.write_snapshot("memory://a.arrow", [tensor])
source = open_range("memory://a.arrow")
assert not source.is_mapped
before = len(os.listdir("/proc/self/task"))
read_tail(source)
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_thread_of_arrows_holds_on_to_what_the_end_of_a_file_says():
    """It might let the schema's types, which are Python's, go while the interpreter ends, and so abort the process."""
    done = subprocess.run([sys.executable, "-c", OPENED_IN_A_STORE], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
