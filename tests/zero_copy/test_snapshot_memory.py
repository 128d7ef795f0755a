"""Where the memory of a tensor read from a snapshot lies, who keeps it alive, and what is not allocated."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts
from tests.share.contents import large as large_tensor

MIB = 1 << 20


def mappings_of(path):
    """The address ranges of this process that a file is mapped at."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, last = line.split(maxsplit=1)[0].split("-")
            ranges.append((int(first, 16), int(last, 16)))
    return ranges


def lies_in(array, ranges):
    start = array.ctypes.data
    return any(first <= start and start + array.nbytes <= last for first, last in ranges)


def offset_in(array, ranges):
    [first] = [first for first, last in ranges if first <= array.ctypes.data < last]
    return array.ctypes.data - first


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.arrow"


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_align_bytes", [64, 4096, 2 * MIB])
def test_pages_lie_inside_the_mapping_at_a_multiple(path, page_align_bytes):
    tensors = [
        make_tensor(**sample_facts()),
        make_tensor(element_type="int4", layer_index=3),  # pool_bytes
        make_tensor(element_type="complex128", layer_index=5, quantization="per_channel_heads"),
        large_tensor(),
    ]
    write_snapshot(path, tensors, page_align_bytes=page_align_bytes)
    with open_snapshot(path) as snapshot:
        ranges = mappings_of(path)
        assert len(ranges) == 1
        for tensor, found in zip(tensors, snapshot.iter_tensors(), strict=True):
            assert found.equals(tensor)
            assert lies_in(found.page_pool, ranges)
            assert offset_in(found.page_pool, ranges) % page_align_bytes == 0
            # The system maps files at memory pages, so more than those cannot be promised of an address.
            assert found.page_pool.ctypes.data % min(page_align_bytes, 4096) == 0
            for buffer in found.buffers[1:]:
                assert buffer.ctypes.data % 64 == 0


def test_everything_is_read_only(path):
    write_snapshot(path, [make_tensor(**sample_facts(), quantization="per_channel_heads")])
    with open_snapshot(path) as snapshot:
        found = snapshot.read()
        for array in (found.page_pool, found.block_table, found.seq_ptr, *found.quantization_buffers, *found.buffers):
            assert not array.flags.writeable
            with pytest.raises(ValueError):
                array[...] = 0
        with pytest.raises(ValueError):
            found.page_pool.flags.writeable = True


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_pages_of_every_element_type_are_views_of_the_file(path, name):
    tensor = make_tensor(element_type=name, page_size=4)
    write_snapshot(path, [tensor])
    with open_snapshot(path) as snapshot:
        found = snapshot.read()
        assert lies_in(found.page_pool, mappings_of(path))
        assert found.equals(tensor)


@pytest.mark.parametrize("name", ["bfloat16", "complex128", "float128", "int4"])
def test_without_a_mapping_pages_are_new_memory_that_is_as_aligned(path, name):
    tensors = [make_tensor(element_type=name, seed=seed, layer_index=seed, page_size=4) for seed in (3, 5, 7)]
    write_snapshot(path, tensors)
    with open_snapshot(path, mapped=False) as snapshot:
        assert mappings_of(path) == []
        for tensor, found in zip(tensors, snapshot.iter_tensors(), strict=True):
            assert found.equals(tensor)
            assert all(buffer.ctypes.data % 64 == 0 for buffer in found.buffers)
            assert not found.page_pool.flags.writeable


# -- lifetime ---------------------------------------------------------------------------------------------------------


def digest(array):
    return hashlib.sha256(array).hexdigest()


def test_pages_outlive_the_snapshot_its_file_and_its_replacement(path):
    tensor, other = large_tensor(), large_tensor(seed=5)
    expected = digest(tensor.page_pool)
    write_snapshot(path, [tensor])
    with open_snapshot(path) as snapshot:
        found = snapshot.read()
    pool, part = found.page_pool, found.page_pool[509 - 3 :, 2:]
    del snapshot, found
    gc.collect()
    assert digest(pool) == expected
    write_snapshot(path, [other], overwrite=True)
    assert digest(pool) == expected
    with open_snapshot(path) as snapshot:
        assert digest(snapshot.read().page_pool) == digest(other.page_pool)
    path.unlink()
    assert digest(pool) == expected
    del pool
    gc.collect()
    assert part.tobytes() == tensor.page_pool[509 - 3 :, 2:].tobytes()


def test_a_snapshot_may_be_written_over_the_file_it_is_read_from(path):
    tensors = [large_tensor(seed=seed) for seed in (3, 5)]
    write_snapshot(path, tensors)
    with open_snapshot(path) as snapshot:
        found = list(snapshot.iter_tensors())
        write_snapshot(path, found[::-1], overwrite=True)
        assert all(map(BlockPagedTensor.equals, found, tensors))
    with open_snapshot(path) as snapshot:
        assert all(map(BlockPagedTensor.equals, snapshot.iter_tensors(), tensors[::-1]))


def test_the_mapping_goes_when_its_last_view_goes(path):
    write_snapshot(path, [large_tensor(), make_tensor()])
    snapshot = open_snapshot(path)
    pool = snapshot.read(layer_index=3).page_pool[5]
    snapshot.close()
    del snapshot
    gc.collect()
    assert lies_in(pool, mappings_of(path))
    del pool
    gc.collect()
    assert mappings_of(path) == []


def test_reading_leaves_no_file_open(path):
    write_snapshot(path, [make_tensor()])
    process = psutil.Process()
    before = process.num_fds()
    for mapped in (True, False):
        for _ in range(3):
            with open_snapshot(path, mapped=mapped) as snapshot:
                snapshot.read()
    with pytest.raises(LookupError), open_snapshot(path, mapped=False) as snapshot:
        snapshot.read(layer_index=99)
    gc.collect()
    assert process.num_fds() == before


# -- counters ---------------------------------------------------------------------------------------------------------


class Counted:
    """Bytes that Python and Arrow allocate in a block."""

    def __enter__(self):
        gc.collect()
        self._arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        self.python_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.arrow_bytes = pa.total_allocated_bytes() - self._arrow


@pytest.mark.parametrize("trusted", [False, True])
def test_opening_and_reading_allocates_no_page(path, trusted):
    write_snapshot(path, [large_tensor(), make_tensor()])
    with Counted() as counted:
        snapshot = open_snapshot(path, trusted=trusted)
        entries = snapshot.entries
        found = snapshot.read(layer_index=3)
    assert [entry.num_pages for entry in entries] == [509, 7]
    assert found.page_pool.nbytes > 16 * MIB
    assert counted.arrow_bytes < 64 << 10
    assert counted.python_bytes < MIB
    snapshot.close()


def test_verifying_allocates_no_page(path):
    write_snapshot(path, [large_tensor()])
    with open_snapshot(path) as snapshot, Counted() as counted:
        report = snapshot.verify()
    assert report.page_bytes > 16 * MIB
    assert counted.arrow_bytes < 64 << 10
    assert counted.python_bytes < MIB


def test_without_a_mapping_exactly_the_row_is_allocated(path):
    tensors = [large_tensor(), large_tensor(num_pages=17, seed=5)]
    write_snapshot(path, tensors)
    with open_snapshot(path, mapped=False) as snapshot:
        for number, entry in enumerate(snapshot.entries):
            with Counted() as counted:
                found = snapshot.read(layer_index=entry.layer_index)
            assert found.equals(tensors[number])
            # 64 for the place in the file, 64 for Arrow's rounding; the first tensor keeps its group's tables.
            assert entry.stored_bytes <= counted.arrow_bytes <= entry.stored_bytes + 64 + 64
            assert counted.python_bytes < MIB
            del found


def test_writing_copies_no_page(path):
    tensor = large_tensor()
    with Counted() as counted:
        write_snapshot(path, [tensor])
    assert counted.python_bytes < 3 * MIB
    assert counted.arrow_bytes < 64 << 10


def peak_of(program, *arguments):
    """Run a program that prints the growth of its peak memory, in bytes."""
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "import hurray_arrow as ha\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n" + program
    )
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_the_peak_of_writing_stays_far_below_the_pages(path):
    """384 MiB of zeros that are nowhere in memory until they are read: page by page they count as the input."""
    program = """
pool = np.zeros((384, 64, 32, 256), np.int16)
tensor = ha.BlockPagedTensor.from_arrays(pool, block_tables=[[5, 2]], seq_lens=[77], kv_role="key")
pool.sum()
before = peak()
ha.write_snapshot(sys.argv[1], [tensor])
print(peak() - before)
"""
    assert peak_of(program, path) < 64 * MIB
    assert path.stat().st_size > 384 * MIB
    program = """
before = peak()
with ha.open_snapshot(sys.argv[1]) as snapshot:
    tensor = snapshot.read()
    assert tensor.gather(0).shape == (77, 32, 256)
print(peak() - before)
"""
    assert peak_of(program, path) < 64 * MIB
    path.unlink()


# -- other processes --------------------------------------------------------------------------------------------------


def test_a_spawned_process_reads_the_same_bytes(path):
    tensor = large_tensor()
    write_snapshot(path, [tensor, make_tensor(**sample_facts())])
    program = f"""
import hashlib, sys
import hurray_arrow as ha
with ha.open_snapshot(sys.argv[1]) as snapshot:
    first = snapshot.read(layer_index=3)
    print(hashlib.sha256(first.page_pool).hexdigest(), hashlib.sha256(first.gather(0)).hexdigest())
    print(snapshot.read(layer_index=17).sequences.tenant, {os.getpid()} != __import__("os").getpid())
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.split() == [digest(tensor.page_pool), digest(tensor.gather(0))]
    assert second == "('t1', 't2', None, 't2') True"


def test_a_write_through_the_mapping_is_refused_by_the_system_too(path):
    """The mapping itself is read-only: not even code that ignores numpy's flag writes into the file."""
    write_snapshot(path, [large_tensor()])
    program = """
import ctypes, sys
import hurray_arrow as ha
pool = ha.open_snapshot(sys.argv[1]).read().page_pool
ctypes.memset(pool.ctypes.data, 0, 1)
"""
    before = digest(path.read_bytes())
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=False)
    assert done.returncode == -11  # SIGSEGV
    assert digest(path.read_bytes()) == before


def test_pages_that_are_also_another_buffer_are_refused(path):
    """The sink knows the pages by their address, so that it would take the block table for them."""
    pool = np.array([5, 2, 4, 5, 0, 2], np.uint32).reshape(6, 1, 1, 1)
    seq_ptr = np.array([0, 6], np.uint32)
    shared = BlockPagedTensor.from_arrays(pool, pool.reshape(-1), seq_ptr, seq_lens=[6], kv_role="key")
    with pytest.raises(SnapshotError):
        write_snapshot(path, [shared])
    assert not path.exists()
    apart = BlockPagedTensor.from_arrays(pool, pool.reshape(-1).copy(), seq_ptr, seq_lens=[6], kv_role="key")
    write_snapshot(path, [apart])
    with open_snapshot(path) as snapshot:
        assert snapshot.read(verify=True).equals(apart)
