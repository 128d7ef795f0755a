"""Fill in place: an engine writes its pages into the memory that is shared."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import socket

import numpy as np
import psutil
import pytest

from hurray_arrow import open_snapshot, ops, share
from hurray_arrow.errors import InvariantError, SnapshotError, SnapshotMismatchError, UnknownSequenceLengthError
from tests.sample import ALL_ELEMENT_TYPES, make_tensor, sample_facts
from tests.share.contents import MIB, digest, large, lies_in, mappings_of, tensors
from tests.share.processes import child, finish, kill, line_of


def fill(allocation, given):
    for number, tensor in enumerate(given):
        allocation.page_pool(number)[...] = tensor.page_pool


def stored(sealed):
    return os.pread(sealed.fileno(), sealed.size_bytes, 0)


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("page_align_bytes", [64, 4096, 2 * MIB])
def test_a_filled_snapshot_is_a_published_one(checksums, page_align_bytes):
    given = tensors()
    options = {"checksums": checksums, "page_align_bytes": page_align_bytes, "metadata": {"user": {"from": "t"}}}
    with share.allocate(given, **options) as allocation:
        fill(allocation, given)
        sealed = allocation.seal()
    with sealed, share.publish(given, **options) as published:
        ours, theirs = stored(sealed), stored(published)
        snapshot = sealed.open(expect={"user.from": "t"})
        report = snapshot.verify()
    assert bool(report.unverified) is not checksums
    assert all(a.equals(b) for a, b in zip(given, snapshot.iter_tensors(), strict=True))
    # The snapshots' ids, times and what hashes them differ, and nothing else: not a page, not a checksum.
    assert len(ours) == len(theirs)
    start = ours.index(given[0].page_pool.tobytes())
    rows_end = ours.rindex(given[-1].page_pool.tobytes()) + given[-1].page_pool.nbytes
    assert ours[start:rows_end] == theirs[start:rows_end]


def test_many_pages_have_the_hash_without_checksums_that_a_writer_gives_them(tmp_path):
    given = make_tensor(num_pages=300, page_size=16, num_heads=1, head_dim=256)
    with share.allocate([given]) as allocation:
        fill(allocation, [given])
        sealed = allocation.seal()
    path = tmp_path / "s.arrow"
    with sealed:
        path.write_bytes(stored(sealed))
    with open_snapshot(path, mapped=False) as snapshot:
        [row] = snapshot._rows._places[0]
        assert row.bare_head_xxh3 is not None
        found = snapshot.read_sequences(2, gap_bytes=0)
        snapshot.verify()
    assert found.tensors[0].equals(ops.compact(ops.select(given, 2)))


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_every_element_type(name):
    given = make_tensor(element_type=name, **sample_facts())
    facts = {
        "kv_role": given.kv_role,
        "layer_index": given.layer_index,
        "block_table": given.block_table,
        "seq_ptr": given.seq_ptr,
        "sequences": given.sequences,
    }
    spec = share.tensor_spec(
        num_pages=7,
        page_shape=(5, 3, 11),
        element_type=given.element_type,
        private=given.element_type.private,
        **facts,
    )
    assert not spec.buffers[0].any()
    with share.allocate([spec]) as allocation:
        pool = allocation.page_pool(0)
        assert pool.dtype == given.page_pool.dtype
        assert pool.shape == given.page_pool.shape
        assert pool.flags.writeable
        assert pool.tobytes() == bytes(pool.nbytes)
        pool[...] = given.page_pool
        del pool
        with allocation.seal() as sealed:
            assert sealed.open().read(verify=True).equals(given)


def test_pages_nobody_wrote_are_zeros():
    with share.allocate([make_tensor()]) as allocation, allocation.seal() as sealed:
        found = sealed.open().read(verify=True)
    assert found.page_pool.tobytes() == bytes(found.page_pool.nbytes)


def test_a_pool_without_pages():
    spec = make_tensor(num_pages=0, block_tables=[[], []], seq_lens=[0, 0])
    with share.allocate([spec, make_tensor(layer_index=2)]) as allocation:
        assert [pool.shape for pool in allocation.page_pools()] == [(0, 5, 3, 11), (7, 5, 3, 11)]
        with allocation.seal() as sealed:
            assert sealed.open().verify().num_tensors == 2


def test_specs_are_checked_like_tensors():
    common = {"num_pages": 7, "page_shape": (5, 3, 11), "element_type": "bfloat16", "kv_role": "key"}
    with pytest.raises(InvariantError) as caught:
        share.tensor_spec(**common, block_tables=[[7]], seq_lens=[3])
    assert caught.value.codes == ["page_id_out_of_range"]
    with pytest.raises(UnknownSequenceLengthError):
        share.tensor_spec(**common, block_tables=[[3]])
    with pytest.raises(InvariantError) as caught:
        share.allocate([share.tensor_spec(**common, block_tables=[[3]], seq_lens=[3])] * 2)
    assert caught.value.codes == ["tensor_key_duplicate"]


def test_what_the_metadata_lists_is_asked_before_anybody_fills():
    groups = [{"kind": "full", "page_size": 5, "layer_names": ["a", "b"], "components": ["values"]}]
    gc.collect()
    before = psutil.Process().num_fds()
    with pytest.raises(SnapshotError):
        share.allocate([make_tensor(layer_name="a")], metadata={"groups": groups})
    gc.collect()
    assert psutil.Process().num_fds() == before
    with share.allocate([make_tensor(layer_name="a")], metadata={"groups": groups}, partial=True) as allocation:
        allocation.seal().close()


# -- who may write, and until when ------------------------------------------------------------------------------------


def test_views_are_the_shared_memory_itself():
    given = [large(), make_tensor()]
    with share.allocate(given) as allocation:
        pools = allocation.page_pools()
        ranges = mappings_of()
        assert {permissions for _, _, permissions in ranges} == {"rw-s"}
        assert all(lies_in(pool, ranges) for pool in pools)
        del pools
        allocation.seal().close()


def test_views_that_are_alive_are_counted_and_refused():
    given = [large(num_pages=11), make_tensor()]
    with share.allocate(given) as allocation:
        views = dict(enumerate(allocation.page_pools()))
        for number, tensor in enumerate(given):
            views[number][...] = tensor.page_pool
        views["slice of the first"] = views[0][3, 1:]
        views["the first again"] = allocation.page_pool(0)
        views["another type"] = views[1].view(np.uint16).reshape(-1)[5:]
        views["memoryview"] = memoryview(views["another type"])
        assert allocation.num_views == 3
        for gone, left in (
            (0, 3),
            (1, 3),
            ("slice of the first", 2),
            ("another type", 2),
            ("memoryview", 1),
            ("the first again", 0),
        ):
            with pytest.raises(SnapshotError) as caught:
                allocation.seal()
            assert f"{allocation.num_views} writable views" in str(caught.value)
            del views[gone]
            assert allocation.num_views == left
        with allocation.seal() as sealed:
            snapshot = sealed.open()
            assert all(a.equals(b) for a, b in zip(given, snapshot.iter_tensors(verify=True), strict=True))


def test_a_view_in_a_cycle_is_collected_first():
    with share.allocate([make_tensor()]) as allocation:
        holder = [allocation.page_pool(0)]
        holder.append(holder)
        del holder
        allocation.seal().close()


def test_sealed_memory_is_not_written_any_more():
    with share.allocate([make_tensor()]) as allocation:
        sealed = allocation.seal()
        with pytest.raises(SnapshotError):
            allocation.page_pool(0)
        with pytest.raises(SnapshotError):
            allocation.seal()
    with sealed:
        with pytest.raises(PermissionError):
            mmap.mmap(sealed.fileno(), sealed.size_bytes)
        with pytest.raises(PermissionError):
            os.pwrite(sealed.fileno(), b"x", 5000)
        assert sealed.open().verify().num_tensors == 1


def test_a_writable_mapping_elsewhere_is_the_systems_ebusy_and_never_a_weaker_seal():
    given = make_tensor()
    gc.collect()
    before = psutil.Process().num_fds()
    with share.allocate([given]) as allocation:
        descriptor = os.dup(allocation._output.fileno())
        other = mmap.mmap(descriptor, 4096)
        with pytest.raises(OSError) as system:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert system.value.errno == errno.EBUSY
        with pytest.raises(SnapshotError) as caught:
            allocation.seal()
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EBUSY
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & 0xF == 0
    with pytest.raises(SnapshotMismatchError):
        share.open_sealed(descriptor)
    other.close()
    os.close(descriptor)
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_set_padding_bits_are_found_and_may_be_mended():
    given = make_tensor(element_type="int4", page_size=5)  # 7 × 165 elements: half a byte is left over
    with share.allocate([given]) as allocation:
        allocation.page_pool(0)[...] = 0xFF
        with pytest.raises(InvariantError) as caught:
            allocation.seal()
        assert caught.value.codes == ["page_pool_padding"]
        allocation.page_pool(0)[...] = given.page_pool
        with allocation.seal() as sealed:
            assert sealed.open().read(verify=True).equals(given)


# -- what is left when it goes wrong ----------------------------------------------------------------------------------


def test_an_unsealed_allocation_leaves_nothing():
    gc.collect()
    before = psutil.Process().num_fds()
    given = make_tensor()
    with share.allocate([given]) as allocation:
        pool = allocation.page_pool(0)
        pool[...] = given.page_pool
    with pytest.raises(SnapshotError):
        allocation.seal()
    assert pool.tobytes() == given.page_pool.tobytes()  # views keep their memory all the same
    del pool
    gc.collect()
    assert mappings_of() == []
    assert psutil.Process().num_fds() == before


def test_an_unsealed_one_does_not_open():
    with share.allocate([make_tensor()]) as allocation:
        descriptor = os.dup(allocation._output.fileno())
    with pytest.raises(SnapshotMismatchError):
        share.open_sealed(descriptor)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 15)
    with pytest.raises(SnapshotError):
        share.open_sealed(descriptor)
    os.close(descriptor)


def test_no_second_copy_of_the_pages_at_any_moment():
    """The pages count as shared memory of files; anything beside them would be anonymous."""
    program = """
import threading
# What a first time takes is not what is counted.
share.allocate([contents.make_tensor()]).seal().open().verify()
spec = share.tensor_spec(num_pages=2048, page_shape=(16, 8, 256), element_type="bfloat16", kv_role="key",
                         block_tables=[range(2048)], seq_lens=[2048 * 16])
most, ended = [contents.anonymous_bytes()], threading.Event()
def watch():
    while not ended.wait(0.002):
        most.append(contents.anonymous_bytes())
watcher = threading.Thread(target=watch)
watcher.start()
with share.allocate([spec]) as allocation:
    say(max(most) - most[0] < 8 << 20)
    pool = allocation.page_pool(0)
    for page in pool:
        page.view(np.uint16)[...] = 0x3f80
    del pool, page
    sealed = allocation.seal()
snapshot = sealed.open()
snapshot.verify()
ended.set()
watcher.join()
say(snapshot.read().page_pool.nbytes >> 20)
say(max(most) - most[0] < 16 << 20)
"""
    with child(program) as (process, _):
        assert finish(process) == ["True", "128", "True"]


def test_a_filler_that_is_killed_leaves_nothing_and_sends_nothing():
    program = """
with share.allocate(contents.tensors()) as allocation:
    allocation.page_pool(0)[...] = 1
    say("filling")
    sys.stdin.read()
"""
    with child(program) as (process, sock):
        assert line_of(process) == "filling"
        kill(process)
        with pytest.raises(SnapshotError):
            share.receive(sock)


def test_another_process_fills_and_hands_over():
    program = """
given = contents.large()
with share.allocate([given]) as allocation:
    allocation.page_pool(0)[...] = given.page_pool
    allocation.seal().send(peer)
"""
    with child(program) as (process, sock):
        found = share.receive(sock).read(verify=True)
        assert finish(process) == []
    assert digest(found.page_pool) == digest(large().page_pool)


def test_a_forked_writer_is_ebusy():
    program = """
with share.allocate([contents.make_tensor()]) as allocation:
    pool = allocation.page_pool(0)
    pid = os.fork()
    if not pid:
        peer.recv(1)
        os._exit(0)
    del pool
    try:
        allocation.seal()
    except ha.SnapshotError as error:
        say(error.__cause__.errno)
say("end")
sys.stdin.readline()
os.waitpid(pid, 0)
"""
    with child(program) as (process, sock):
        assert line_of(process) == str(errno.EBUSY)
        assert line_of(process) == "end"
        sock.send(b"x")
        process.stdin.write("\n")
        assert finish(process) == []


def test_two_hundred_fills_leak_nothing():
    given = make_tensor()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        gc.collect()
        before = psutil.Process().num_fds()
        for _ in range(200):
            with share.allocate([given]) as allocation:
                allocation.page_pool(0)[...] = given.page_pool
                with allocation.seal() as sealed:
                    sealed.send(ours)
            assert np.array_equal(share.receive(theirs).read().page_pool.view("u2"), given.page_pool.view("u2"))
        gc.collect()
        assert psutil.Process().num_fds() == before
        assert mappings_of() == []
