"""pyhurray's tensors and ours in one process: the same descriptor bytes and the same pages, both ways."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import hurray
import numpy as np
import psutil
import pytest

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.engines.hurray import to_hurray
from hurray_arrow.errors import CopyRequiredError, InvariantError, MissingDependencyError, UnsupportedError
from tests.conformance import make_vectors
from tests.sample import ALL_ELEMENT_TYPES, SCHEMES, make_tensor, sample_facts
from tests.share.contents import MIB, large, lies_in, mappings_of

FACTS = ("layer_name", "component", "kv_group")


@pytest.fixture
def shared():
    with share.publish([large(), make_tensor(**sample_facts(), quantization="per_channel_heads")]) as sealed:
        return sealed.open()


def bytes_of(tensor):
    return [np.asarray(tensor.buffer(index)).tobytes() for index in range(tensor.buffer_count)]


def own(tensor):
    return [buffer.tobytes() for buffer in tensor.buffers]


# -- descriptors ------------------------------------------------------------------------------------------------------


def on_the_cpu():
    """One case of every element type × index type × scheme, and every shape that pyhurray builds."""
    seen = {}
    for case in make_vectors.full_matrix():
        seen.setdefault((case["element_type"], case["index_type"], str(case["quantization"])), case)
    return [*seen.values(), *make_vectors.shapes()]


def test_descriptor_bytes_are_identical_both_ways_for_all_that_pyhurray_builds():
    count = 0
    for case in on_the_cpu():
        theirs = make_vectors.tensor(case)
        wire = theirs.descriptor.encode()
        ours = ha.BlockPagedTensor.from_hurray(theirs, permissive=True)
        assert ours.descriptor.encode() == wire, case
        assert ours.original_descriptor is None
        assert own(ours) == bytes_of(theirs)
        count += 1
        if not ours.problems:
            again = to_hurray(ours)
            assert again.descriptor.encode() == wire, case
            assert bytes_of(again) == own(ours)
    assert count == len(make_vectors.TYPES) * 2 * len(make_vectors.SCHEMES) + len(list(make_vectors.shapes()))


@pytest.mark.parametrize("quantization", SCHEMES)
@pytest.mark.parametrize("index_type", ["uint32", "uint64"])
def test_our_tensors_of_every_scheme(quantization, index_type):
    given = make_tensor(quantization=quantization, index_type=index_type, element_type="int8")
    theirs = to_hurray(given)
    assert theirs.descriptor.encode() == given.descriptor.encode()
    assert bytes_of(theirs) == own(given)
    facts = {name: getattr(given, name) for name in FACTS}
    assert ha.BlockPagedTensor.from_hurray(theirs, sequences=given.sequences, **facts).equals(given)


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_our_tensors_of_every_element_type(name):
    given = make_tensor(element_type=name, page_size=4)
    theirs = to_hurray(given)
    assert theirs.descriptor.encode() == given.descriptor.encode()
    assert bytes_of(theirs) == own(given)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_pages_are_the_mapped_ones_and_none_is_copied(shared):
    given = shared.read(layer_index=3)
    gc.collect()
    anonymous = psutil.Process().memory_info().rss
    tracemalloc.start()
    theirs = hurray.from_hurray(given)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pages = np.asarray(theirs.buffer(0))
    assert pages.nbytes > 16 * MIB
    assert lies_in(pages, mappings_of())
    assert pages.ctypes.data % 64 == 0
    assert python < MIB
    assert psutil.Process().memory_info().rss - anonymous < MIB
    assert pages.tobytes() == given.page_pool.tobytes()


def test_a_stray_write_reaches_nobody(shared):
    given = shared.read(layer_index=17)
    before = own(given)
    theirs = hurray.from_hurray(given)
    for index in range(theirs.buffer_count):
        buffer = np.asarray(theirs.buffer(index))
        assert buffer.flags.writeable  # pyhurray knows no other
        buffer[...] = 7
    assert own(given) == before
    shared.verify()
    assert shared.read(layer_index=17).equals(given)
    again = hurray.from_hurray(shared.read(layer_index=17))
    assert bytes_of(again) == before


def test_small_buffers_are_aligned_copies(shared):
    given = shared.read(layer_index=17)
    shifted = np.empty(given.block_table.nbytes + 128, np.uint8)
    start = -shifted.ctypes.data % 64 + 4
    table = shifted[start : start + given.block_table.nbytes]
    table[...] = given.buffers[1]
    given = ha.BlockPagedTensor.from_buffers(given.descriptor, [given.buffers[0], table, *given.buffers[2:]])
    theirs = hurray.from_hurray(given)
    assert bytes_of(theirs) == own(given)
    for buffer, mine in zip(ha.BlockPagedTensor.from_hurray(theirs).buffers[1:], given.buffers[1:], strict=True):
        assert buffer.ctypes.data % 64 == 0
        assert not np.shares_memory(buffer, mine)


def test_pages_that_are_not_aligned_are_refused_and_copied_on_demand():
    memory = np.empty(make_tensor().page_pool.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 2
    pool = memory[start : start + make_tensor().page_pool.nbytes].view(np.uint16).reshape(7, 5, 3, 11)
    pool[...] = make_tensor().page_pool.view(np.uint16)
    given = make_tensor(page_pool=pool)
    with pytest.raises(CopyRequiredError):
        hurray.from_hurray(given)
    with pytest.raises(CopyRequiredError):
        to_hurray(given, copy=False)
    assert bytes_of(to_hurray(given)) == own(make_tensor())


def test_aligned_pages_of_the_heap_are_shared():
    memory = np.empty(make_tensor().page_pool.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    pool = memory[start : start + make_tensor().page_pool.nbytes].view(np.uint16).reshape(7, 5, 3, 11)
    theirs = hurray.from_hurray(make_tensor(page_pool=pool))
    pool[...] = 0xABCD
    assert np.asarray(theirs.buffer(0)).view(np.uint16).tolist() == [0xABCD] * pool.size


def test_their_pages_are_ours_too_and_read_only():
    theirs = make_vectors.tensor(make_vectors.case())
    ours = ha.BlockPagedTensor.from_hurray(theirs, permissive=True)
    assert ours.page_pool.ctypes.data == np.asarray(theirs.buffer(0)).ctypes.data
    assert not ours.page_pool.flags.writeable
    np.asarray(theirs.buffer(0))[3] = 99
    assert ours.buffers[0][3] == 99


# -- lifetimes --------------------------------------------------------------------------------------------------------


def test_what_they_made_keeps_the_pages_and_lets_them_go(shared):
    theirs = hurray.from_hurray(shared.read(layer_index=3))
    expected = large().page_pool.tobytes()
    shared.close()
    del shared
    gc.collect()
    assert np.asarray(theirs.buffer(0)).tobytes() == expected
    view = np.asarray(theirs.buffer(0))
    del theirs
    gc.collect()
    assert view.tobytes() == expected


def test_a_tensor_and_what_was_handed_out_go_together(shared):
    given = shared.read(layer_index=3)
    gone = weakref.ref(given)
    theirs = hurray.from_hurray(given)
    twice = hurray.from_hurray(given)
    # Not through np.asarray, which pyhurray 0.1 lets leak.
    places = [ha.BlockPagedTensor.from_hurray(one).page_pool.ctypes.data for one in (theirs, twice)]
    assert places[0] == places[1] != given.page_pool.ctypes.data
    del given, theirs
    gc.collect()
    assert gone() is not None
    del twice
    gc.collect()
    assert gone() is None


def test_a_capsule_nobody_takes_is_released(shared):
    given = shared.read(layer_index=3)
    gone = weakref.ref(given)
    capsule = given.__hurray__()
    assert 'capsule object "hurray_tensor"' in repr(capsule)
    del given
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_ours_keeps_theirs():
    theirs = make_vectors.tensor(make_vectors.case())
    expected = bytes_of(theirs)
    ours = ha.BlockPagedTensor.from_hurray(theirs, permissive=True)
    part = ours.page_pool[1:3]
    del theirs
    gc.collect()
    assert own(ours) == expected
    del ours
    gc.collect()
    assert part.tobytes() == expected[0][part.nbytes // 2 : part.nbytes // 2 + part.nbytes]


def test_two_hundred_hand_overs_leak_nothing(shared):
    def go():
        for _ in range(100):
            given = shared.read(layer_index=17)
            assert hurray.from_hurray(given).buffer_count == 5
            given.__hurray__()
            ha.BlockPagedTensor.from_hurray(given)
            del given
        gc.collect()
        return psutil.Process().num_fds(), len(mappings_of()), sys.getrefcount(None)

    first, second = go(), go()
    assert second[:2] == first[:2]
    assert abs(second[2] - first[2]) < 100


def test_a_capsule_at_the_end_of_the_interpreter():
    """Its destructor runs when modules are half gone: nothing of Python may be needed."""
    code = """
import hurray
from hurray_arrow import share
from tests.sample import make_tensor
tensor = share.publish([make_tensor()]).open().read()
capsule = tensor.__hurray__()
theirs = hurray.from_hurray(tensor)
import builtins
builtins.kept = [capsule, theirs, tensor]
print("end")
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_broken_tensor_is_not_handed_out():
    table = np.array([0, 2, 1, 3], np.uint32)
    given = ha.BlockPagedTensor.from_arrays(
        np.zeros((4, 5, 3, 11), np.float32),
        table,
        np.array([0, 4], np.uint32),
        seq_lens=[17],
        kv_role="key",
    )
    table[2] = 4
    for hand_out in (hurray.from_hurray, to_hurray):
        with pytest.raises(InvariantError) as caught:
            hand_out(given)
        assert caught.value.codes == ["page_id_out_of_range"]
    permissive = ha.BlockPagedTensor.from_buffers(given.descriptor, given.buffers, permissive=True)
    with pytest.raises(InvariantError):
        permissive.__hurray__()


def test_other_things_are_refused():
    with pytest.raises(TypeError):
        ha.BlockPagedTensor.from_hurray(np.zeros(3))
    with pytest.raises(UnsupportedError):
        ha.BlockPagedTensor.from_hurray(hurray.zeros((4, 4), dtype=hurray.float32))
    on_a_device = make_vectors.tensor(make_vectors.case(device="cuda"))
    with pytest.raises(UnsupportedError):
        ha.BlockPagedTensor.from_hurray(on_a_device)
    broken = make_vectors.tensor(make_vectors.case())
    with pytest.raises(InvariantError) as caught:
        ha.BlockPagedTensor.from_hurray(broken)
    assert "seq_ptr_end" in caught.value.codes


class Foreign:
    """Somebody's object whose capsule is not the protocol's."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __hurray__(self):
        return self.capsule


def test_a_foreign_capsule_and_one_that_was_taken_are_refused(shared):
    given = shared.read(layer_index=17)
    name = b"something_else"
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    taken = given.__hurray__()
    hurray.from_hurray(Foreign(taken))
    for capsule in (new(1, name, None), taken):
        with pytest.raises(ValueError):
            ha.BlockPagedTensor.from_hurray(Foreign(capsule))


def test_pyhurray_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "hurray", None)
    from hurray_arrow.engines import hurray as door

    door._library.cache_clear()
    with pytest.raises(MissingDependencyError) as caught:
        make_tensor().__hurray__()
    assert caught.value.extra == "hurray"
    with pytest.raises(MissingDependencyError):
        ha.BlockPagedTensor.from_hurray(3)
