"""torch tensors of shared pages: the same memory, and a write changes the caller's copy only."""

from __future__ import annotations

import gc
import hashlib
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.errors import CopyRequiredError, UnsupportedError
from tests.sample import ALL_ELEMENT_TYPES, make_tensor

pytestmark = pytest.mark.engines

WITHOUT = {"float128", "private_0xF7", "private_0xFE"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def shared():
    def of(*tensors):
        with share.publish(tensors) as sealed:
            return sealed.open()

    return of


def raw(view):
    return view.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", [name for name in ALL_ELEMENT_TYPES if name not in WITHOUT])
def test_every_element_type_that_torch_has(shared, name):
    given = make_tensor(element_type=name, page_size=4)
    view = shared(given).read().as_torch()
    element = given.element_type
    assert view.dtype == (torch.uint8 if element.is_packed else getattr(torch, element.dtype.name))
    assert tuple(view.shape) == given.page_pool.shape
    assert raw(view) == given.page_pool.tobytes()
    assert raw(given.to_torch()) == given.page_pool.tobytes()


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_types_that_torch_does_not_have(shared, name):
    with pytest.raises(UnsupportedError):
        shared(make_tensor(element_type=name)).read().as_torch()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "float32"])
def test_a_write_changes_the_callers_copy_only(shared, name):
    given = make_tensor(element_type=name, num_pages=97, block_tables=[[5, 2, 96]], seq_lens=[13])
    snapshot = shared(given)
    tensor = snapshot.read()
    view, other = tensor.as_torch(), tensor.as_torch()
    view.fill_(1)
    assert raw(view) != raw(other) == given.page_pool.tobytes()
    assert tensor.equals(given)
    assert snapshot.read(verify=True).equals(given)


def test_a_write_reaches_no_file(tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(path, [make_tensor()])
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with ha.open_snapshot(path) as snapshot:
        view = snapshot.read().as_torch()
        view.zero_()
        assert not view.any()
    del view
    gc.collect()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_write_reaches_no_other_process():
    given = make_tensor()
    program = """
import sys, torch
from hurray_arrow import share
snapshot = share.open_sealed(int(sys.argv[1]))
view = snapshot.read().as_torch()
view.fill_(3)
assert (view == 3).all()
assert snapshot.verify().num_tensors == 1
"""
    with share.publish([given]) as sealed:
        mine = sealed.open().read()
        descriptor = sealed.fileno()
        command = [sys.executable, "-c", program, str(descriptor)]
        subprocess.run(command, pass_fds=[descriptor], cwd=ROOT, check=True, timeout=120)
        assert mine.equals(given)
        assert sealed.open().read(verify=True).equals(given)


def test_nothing_is_copied_until_it_is_written(shared):
    """16 MiB: a page of the system's at a time becomes this process's own."""
    pool = np.random.default_rng(3).integers(0, 2**16, (512, 16, 4, 256), dtype=np.uint16)
    given = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[511]], seq_lens=[9], element_type="bfloat16", kv_role="key"
    )
    tensor = shared(given).read()

    def own_bytes():
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    view = tensor.as_torch()
    before = own_bytes()
    int(view.view(torch.uint8)[::16].sum())
    assert own_bytes() - before < 4 << 20
    view.zero_()
    assert own_bytes() - before > 12 << 20
    assert tensor.equals(given)


def test_a_view_outlives_the_tensor_and_the_snapshot(shared):
    given = make_tensor()
    view = shared(given).read().as_torch()
    gc.collect()
    assert raw(view) == given.page_pool.tobytes()
    view[0] = 0
    assert raw(view[1:]) == given.page_pool[1:].tobytes()


def test_pages_in_no_mapping_are_copied_only_on_demand():
    given = make_tensor()
    with pytest.raises(CopyRequiredError):
        given.as_torch()
    copy = given.to_torch()
    copy.zero_()
    assert given.equals(make_tensor())


def test_a_pool_without_pages(shared):
    spec = make_tensor(num_pages=0, block_tables=[[]], seq_lens=[0])
    assert tuple(shared(spec).read().as_torch().shape) == (0, 5, 3, 11)


@pytest.mark.parametrize("name", ["float16", "float32", "int8", "complex64"])
def test_dlpack_is_of_a_private_mapping_too(shared, name):
    given = make_tensor(element_type=name)
    tensor = shared(given).read()
    view = torch.from_dlpack(tensor)
    assert raw(view) == given.page_pool.tobytes()
    view.fill_(1)
    array = np.from_dlpack(tensor)
    array.flags.writeable and array.fill(2)
    assert tensor.equals(given)
    assert tensor.__dlpack_device__() == (1, 0)


def test_dlpack_says_what_it_cannot_do(shared):
    with pytest.raises(BufferError):
        np.from_dlpack(shared(make_tensor()).read())
    with pytest.raises(CopyRequiredError):
        np.from_dlpack(make_tensor(element_type="float32"))


def test_an_engine_fills_shared_memory_from_torch():
    given = make_tensor(element_type="float32")
    source = torch.from_numpy(given.page_pool.copy())
    with share.allocate([given]) as allocation:
        target = torch.from_numpy(allocation.page_pool(0))
        target.copy_(source)
        assert allocation.num_views == 1
        with pytest.raises(ha.SnapshotError):
            allocation.seal()
        del target
        with allocation.seal() as sealed:
            assert sealed.open().read(verify=True).equals(given)
            with pytest.raises(PermissionError):
                mmap.mmap(sealed.fileno(), sealed.size_bytes)
