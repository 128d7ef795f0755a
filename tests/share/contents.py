"""What is shared in these tests, the same in every process."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import make_tensor, sample_facts

MIB = 1 << 20


def large(num_pages=509, seed=3):
    """About 16 MiB in pages of 33,000 bytes: no multiple of a memory page."""
    pool = np.random.default_rng(seed).integers(0, 2**16, (num_pages, 20, 3, 275), dtype=np.uint16)
    return BlockPagedTensor.from_arrays(
        pool,
        block_tables=[[5, 2, num_pages - 1], [], [7]],
        seq_lens=[53, 0, 11],
        element_type="bfloat16",
        kv_role="key",
        layer_index=seed,
    )


def tensors():
    """A large one, one with every fact, one whose pool cannot be cut into pages, and one with parameters."""
    return [
        large(),
        make_tensor(**sample_facts()),
        make_tensor(element_type="int4", layer_index=5),
        make_tensor(element_type="float64", layer_index=7, quantization="per_channel_heads"),
    ]


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8)).hexdigest()


def digests(all_tensors):
    return [digest(tensor.page_pool) for tensor in all_tensors]


def mappings_of(name="/memfd:hurray_arrow"):
    """The address ranges of this process that a file is mapped at, and their permissions."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            addresses, permissions = line.split()[:2]
            first, last = addresses.split("-")
            ranges.append((int(first, 16), int(last, 16), permissions))
    return ranges


def lies_in(array, ranges):
    start = array.ctypes.data
    return any(first <= start and start + array.nbytes <= last for first, last, _ in ranges)


def anonymous_bytes():
    """Memory of this process that is backed by no file, in bytes: what a copy would add to."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
