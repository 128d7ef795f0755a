"""Pages for those who write: a private copy-on-write mapping, and nothing else of ours changes."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import psutil
import pytest

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.errors import CopyRequiredError, MissingDependencyError
from hurray_arrow.mappings import FileMapping, mapping_of, private_copy
from hurray_arrow.page_views import private_pages
from tests.sample import ALL_ELEMENT_TYPES, make_tensor
from tests.share.contents import anonymous_bytes, digest, large, lies_in, mappings_of

MIB = 1 << 20


@pytest.fixture
def shared():
    def of(*tensors):
        with share.publish(tensors) as sealed:
            return sealed.open()

    return of


def of_kind(permissions):
    return [entry for entry in mappings_of() if entry[2] == permissions]


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_pages_of_every_element_type_for_writing(shared, name):
    given = make_tensor(element_type=name, page_size=4)
    snapshot = shared(given)
    tensor = snapshot.read()
    pages = private_pages(tensor)
    assert (pages.dtype, pages.shape) == (tensor.page_pool.dtype, tensor.page_pool.shape)
    assert pages.tobytes() == given.page_pool.tobytes()
    assert lies_in(pages, of_kind("rw-p"))
    pages.view(np.uint8).reshape(-1)[...] ^= 0xFF
    assert tensor.equals(given)
    assert snapshot.read(verify=True).equals(given)
    assert digest(private_pages(tensor)) == digest(given.page_pool)


def test_nothing_is_copied_before_it_is_written(shared):
    given = large()
    tensor = shared(given).read()
    pages = private_pages(tensor)
    before = anonymous_bytes()
    assert digest(pages) == digest(given.page_pool)
    assert anonymous_bytes() - before < 8 * MIB  # the digest's own copy is gone again
    before = anonymous_bytes()
    pages[0] = 0
    assert anonymous_bytes() - before < MIB
    pages[...] = 0
    assert anonymous_bytes() - before > 12 * MIB


def test_the_mapping_and_its_descriptors_go_with_the_array(shared):
    tensor = shared(make_tensor()).read()
    gc.collect()
    before = psutil.Process().num_fds(), len(mappings_of())
    pages = private_pages(tensor)[2:4]
    assert len(of_kind("rw-p")) == 1
    del pages
    gc.collect()
    assert (psutil.Process().num_fds(), len(mappings_of())) == before
    del tensor
    gc.collect()
    assert mappings_of() == []


def test_a_file_is_not_written_either(tmp_path):
    path = tmp_path / "a.arrow"
    given = [make_tensor(), make_tensor(layer_index=2, element_type="int4")]
    ha.write_snapshot(path, given, page_align_bytes=64)
    before = path.read_bytes()
    with ha.open_snapshot(path) as snapshot:
        for tensor in snapshot.iter_tensors():
            private_pages(tensor)[...] = 1
    assert path.read_bytes() == before


def test_what_lies_in_no_mapping_of_ours(tmp_path):
    ha.write_snapshot(tmp_path / "a.arrow", [make_tensor()])
    with ha.open_snapshot(tmp_path / "a.arrow", mapped=False) as snapshot:
        for tensor in (make_tensor(), snapshot.read()):
            assert private_copy(tensor.page_pool) is None
            with pytest.raises(CopyRequiredError):
                private_pages(tensor)


def test_a_pool_without_pages(shared):
    tensor = shared(make_tensor(num_pages=0, block_tables=[[]], seq_lens=[0])).read()
    assert private_pages(tensor).shape == (0, 5, 3, 11)


def test_the_mapping_that_an_array_lies_in(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(251)) * 97)
    descriptor = os.open(path, os.O_RDONLY)
    mapping = FileMapping(descriptor, path.stat().st_size)
    os.close(descriptor)
    whole = np.frombuffer(mapping, np.uint8)
    assert mapping_of(whole) == (mapping, 0)
    assert mapping_of(whole[4099:5003]) == (mapping, 4099)
    assert mapping_of(whole[7:7]) is None
    assert mapping_of(np.zeros(3)) is None
    part = private_copy(whole[4099:5003])
    assert part.tobytes() == path.read_bytes()[4099:5003]
    assert not whole.flags.writeable
    del whole, mapping
    gc.collect()
    part[0] ^= 1
    assert mapping_of(part) is None
    assert path.read_bytes()[4099] == part[0] ^ 1


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint64", "complex64", "int4"])
def test_dlpack(shared, name):
    given = make_tensor(element_type=name)
    tensor = shared(given).read()
    array = np.from_dlpack(tensor)
    assert (array.dtype, array.shape) == (given.page_pool.dtype, given.page_pool.shape)
    assert array.tobytes() == given.page_pool.tobytes()
    assert lies_in(array, of_kind("rw-p"))
    assert tensor.__dlpack_device__() == (1, 0)
    del tensor
    gc.collect()
    assert array.tobytes() == given.page_pool.tobytes()


def test_dlpack_says_what_it_cannot_do(shared):
    with pytest.raises(BufferError, match=r"as_torch\(\)"):
        np.from_dlpack(shared(make_tensor(element_type="float8_e5m2")).read())
    with pytest.raises(CopyRequiredError):
        np.from_dlpack(make_tensor(element_type="float32"))


def test_torch_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for door in (ha.BlockPagedTensor.as_torch, ha.BlockPagedTensor.to_torch):
        with pytest.raises(MissingDependencyError) as caught:
            door(make_tensor())
        assert caught.value.extra == "torch"
