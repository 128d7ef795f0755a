"""Sealed memory: what nobody can change, in two processes."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys
import tracemalloc
import weakref

import psutil
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow import share
from hurray_arrow.errors import (
    InvariantError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotIncompleteError,
    SnapshotMismatchError,
)
from tests.sample import make_tensor
from tests.share.contents import MIB, digest, digests, large, lies_in, mappings_of, tensors
from tests.share.processes import ROOT, TIMEOUT_S, child, finish, kill, line_of

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        theirs.settimeout(20)
        yield ours, theirs


def memory_file(data, seals=0):
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def message(size):
    return struct.pack("<8sQ", b"hurraySM", size)


# -- one process ------------------------------------------------------------------------------------------------------


def test_published_tensors_come_back(pair):
    given = tensors()
    with share.publish(given, metadata={"user": {"from": "t-7"}}) as sealed:
        sealed.send(pair[0])
        assert sealed.size_bytes == os.fstat(sealed.fileno()).st_size > 16 * MIB
    snapshot = share.receive(pair[1], expect={"user.from": "t-7"})
    assert [a.equals(b) for a, b in zip(given, snapshot.iter_tensors(verify=True), strict=True)] == [True] * 4
    assert snapshot.verify().unverified == ()
    assert snapshot.metadata["user"] == {"from": "t-7"}


def test_a_receiver_may_be_gone_as_soon_as_it_has_all(pair, monkeypatch):
    given, received = make_tensor(), []
    send_fds = socket.send_fds

    def receive_at_once(*arguments):
        sent = send_fds(*arguments)
        received.append(share.receive(pair[1]))
        pair[1].close()
        return sent

    monkeypatch.setattr(socket, "send_fds", receive_at_once)
    with share.publish([given]) as sealed:
        sealed.send(pair[0])
    assert received[0].read().equals(given)


def test_all_four_seals_are_set():
    with share.publish([make_tensor()]) as sealed:
        assert fcntl.fcntl(sealed.fileno(), fcntl.F_GET_SEALS) & SEALS == SEALS


def test_nothing_writes_cuts_or_grows_it():
    with share.publish([make_tensor()]) as sealed:
        descriptor, size = sealed.fileno(), sealed.size_bytes
        attempts = [
            lambda: os.pwrite(descriptor, b"x", size - 1),
            lambda: os.pwrite(descriptor, b"x", size),
            lambda: os.ftruncate(descriptor, size - 1),
            lambda: os.ftruncate(descriptor, size + 1),
            lambda: mmap.mmap(descriptor, size),
            lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
        ]
        for attempt in attempts:
            with pytest.raises(PermissionError):
                attempt()
        assert sealed.open().verify().num_tensors == 1


def test_pages_are_the_shared_memory_itself_and_read_only(pair):
    with share.publish([large()]) as sealed:
        sealed.send(pair[0])
    snapshot = share.receive(pair[1])
    pool = snapshot.read().page_pool
    assert lies_in(pool, mappings_of())
    assert {permissions for _, _, permissions in mappings_of()} == {"r--p"}
    assert not pool.flags.writeable
    with pytest.raises(ValueError):
        pool.flags.writeable = True


def test_views_outlive_everything_and_the_memory_goes_with_the_last(pair):
    given = large()
    sealed = share.publish([given])
    sealed.send(pair[0])
    snapshot = share.receive(pair[1])
    part = snapshot.read().page_pool[5]
    snapshot.close()
    sealed.close()
    del snapshot, sealed
    gc.collect()
    assert digest(part) == digest(given.page_pool[5])
    assert lies_in(part, mappings_of())
    del part
    gc.collect()
    assert mappings_of() == []


def test_receiving_allocates_no_page(pair):
    with share.publish([large(), make_tensor()]) as sealed:
        sealed.send(pair[0])
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    snapshot = share.receive(pair[1])
    found = snapshot.read(layer_index=3)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.page_pool.nbytes > 16 * MIB
    assert python < MIB
    assert pa.total_allocated_bytes() - arrow < 64 << 10


def test_a_closed_one_has_no_descriptor():
    sealed = share.publish([make_tensor()])
    descriptor = sealed.fileno()
    sealed.close()
    sealed.close()
    with pytest.raises(ValueError):
        sealed.fileno()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_it_closes_itself_when_it_is_forgotten():
    sealed = share.publish([make_tensor()])
    descriptor, gone = sealed.fileno(), weakref.ref(sealed)
    del sealed
    gc.collect()
    assert gone() is None
    with pytest.raises(OSError):
        os.fstat(descriptor)


GROUPS = [{"kind": "full", "page_size": 5, "layer_names": ["a"], "components": ["values", "scales"]}]


@pytest.mark.parametrize(
    ("names", "metadata", "error"),
    [
        (["a", "a"], {}, InvariantError),
        (["a"], {"no such key": 1}, ValueError),
        (["a"], {"groups": GROUPS}, SnapshotError),
    ],
    ids=["duplicate", "metadata", "companion missing"],
)
def test_what_cannot_be_published_leaves_no_memory(names, metadata, error):
    gc.collect()
    before = psutil.Process().num_fds()
    with pytest.raises(error):
        share.publish([make_tensor(layer_name=name) for name in names], metadata=metadata)
    gc.collect()
    assert psutil.Process().num_fds() == before
    assert mappings_of() == []


def test_descriptors_go_through_unix_sockets_only():
    with share.publish([make_tensor()]) as sealed, socket.socket() as sock, pytest.raises(ValueError):
        sealed.send(sock)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_peer_that_says_nothing(pair):
    pair[0].close()
    with pytest.raises(SnapshotIncompleteError):
        share.receive(pair[1])


@pytest.mark.parametrize("cut", [1, 15])
def test_a_peer_that_dies_in_the_middle(pair, cut):
    gc.collect()
    before = psutil.Process().num_fds()
    descriptor = memory_file(b"x", SEALS)
    socket.send_fds(pair[0], [message(1)[:cut]], [descriptor])
    pair[0].close()
    os.close(descriptor)
    with pytest.raises(SnapshotIncompleteError):
        share.receive(pair[1])
    assert psutil.Process().num_fds() == before - 1


def test_a_message_in_pieces_is_taken(pair):
    with share.publish([make_tensor()]) as sealed:
        whole = message(sealed.size_bytes)
        socket.send_fds(pair[0], [whole[:3]], [sealed.fileno()])
        for byte in whole[3:]:
            pair[0].send(bytes([byte]))
    assert len(share.receive(pair[1]).entries) == 1


def test_no_descriptor_and_two_and_too_many(pair):
    with share.publish([make_tensor()]) as sealed:
        gc.collect()
        before = psutil.Process().num_fds()
        for count in (0, 2, 16, 40):
            socket.send_fds(pair[0], [message(sealed.size_bytes)], [sealed.fileno()] * count)
            with pytest.raises(SnapshotMismatchError) as caught:
                share.receive(pair[1])
            assert caught.value.field == "descriptors"
        assert psutil.Process().num_fds() == before


def test_another_protocol(pair):
    pair[0].sendall(b"GET / HTTP/1.0\r\n")
    with pytest.raises(SnapshotMismatchError) as caught:
        share.receive(pair[1])
    assert caught.value.field == "message"


@pytest.mark.parametrize(
    "missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL, SEALS]
)
def test_a_descriptor_without_all_seals(pair, missing):
    with share.publish([make_tensor()]) as sealed:
        data = os.pread(sealed.fileno(), sealed.size_bytes, 0)
    descriptor = memory_file(data, SEALS & ~missing)
    socket.send_fds(pair[0], [message(len(data))], [descriptor])
    with pytest.raises(SnapshotMismatchError) as caught:
        share.receive(pair[1])
    assert caught.value.field == "seals"
    assert len(caught.value.found) == (0 if missing == SEALS else 3)
    with pytest.raises(SnapshotMismatchError):
        share.open_sealed(descriptor)
    os.close(descriptor)


def test_a_file_a_pipe_and_a_socket_are_not_sealed(pair, tmp_path):
    ha.write_snapshot(tmp_path / "file", [make_tensor()])
    size = (tmp_path / "file").stat().st_size
    read_end, write_end = os.pipe()
    with (tmp_path / "file").open("rb") as file:
        for descriptor in (file.fileno(), read_end, pair[0].fileno()):
            socket.send_fds(pair[0], [message(size)], [descriptor])
            with pytest.raises(SnapshotMismatchError) as caught:
                share.receive(pair[1])
            assert caught.value.field == "seals"
    os.close(read_end)
    os.close(write_end)


def test_another_size_than_was_sent(pair):
    with share.publish([make_tensor()]) as sealed:
        for size in (sealed.size_bytes - 1, sealed.size_bytes + 1):
            socket.send_fds(pair[0], [message(size)], [sealed.fileno()])
            with pytest.raises(SnapshotMismatchError) as caught:
                share.receive(pair[1])
            assert caught.value.field == "size_bytes"
            assert (caught.value.expected, caught.value.found) == (size, sealed.size_bytes)


def test_sealed_bytes_that_are_no_snapshot(pair):
    with share.publish([make_tensor()]) as sealed:
        data = os.pread(sealed.fileno(), sealed.size_bytes, 0)
    damaged = bytearray(data)
    damaged[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    for content, error in (
        (b"nothing of the kind", SnapshotIncompleteError),
        (data[:-1], SnapshotIncompleteError),
        (data[: len(data) // 2], SnapshotIncompleteError),
        (bytes(damaged), SnapshotIncompleteError),
        (b"", SnapshotIncompleteError),
    ):
        descriptor = memory_file(content, SEALS)
        socket.send_fds(pair[0], [message(len(content))], [descriptor])
        with pytest.raises(error):
            share.receive(pair[1])
        os.close(descriptor)


def test_a_flipped_page_is_found():
    given = make_tensor()
    with share.publish([given]) as sealed:
        data = bytearray(os.pread(sealed.fileno(), sealed.size_bytes, 0))
    data[data.index(given.page_pool.tobytes()) + 77] ^= 4
    descriptor = memory_file(data, SEALS)
    snapshot = share.open_sealed(descriptor, size_bytes=len(data))
    os.close(descriptor)
    with pytest.raises(SnapshotCorruptError) as caught:
        snapshot.read(verify=True)
    assert caught.value.codes == ["page_checksum"]


def test_expectations_are_asked(pair):
    with share.publish([make_tensor()], metadata={"model": {"name": "m", "revision": "9f2c"}}) as sealed:
        sealed.send(pair[0])
    with pytest.raises(SnapshotMismatchError) as caught:
        share.receive(pair[1], expect={"model.revision": "77aa"})
    assert caught.value.field == "model.revision"


# -- two processes ----------------------------------------------------------------------------------------------------

READER = """
import tracemalloc, pyarrow as pa
from hurray_arrow import share
snapshot = share.receive(peer)
anonymous, arrow = contents.anonymous_bytes(), pa.total_allocated_bytes()
found = snapshot.read(layer_index=3)
int(found.page_pool[7].view(np.uint16).sum())
say(contents.lies_in(found.page_pool, contents.mappings_of()))
say(found.page_pool.ctypes.data % 4096)
say(pa.total_allocated_bytes() - arrow < 1 << 16)
say(all(contents.digests([tensor])[0] == expected for tensor, expected in zip(snapshot.iter_tensors(), sys.argv[2:])))
# Every page was read, and none of them became memory of this process alone.
say(contents.anonymous_bytes() - anonymous < 4 << 20)
"""


def test_another_process_maps_the_same_pages():
    given = tensors()
    with share.publish(given) as sealed, child(READER, *digests(given)) as (process, sock):
        sealed.send(sock)
        sealed.close()
        assert finish(process) == ["True", "0", "True", "True", "True"]


def test_the_other_process_cannot_change_them():
    program = """
import fcntl, mmap
[descriptor] = socket.recv_fds(peer, 16, 1)[1]
size = os.fstat(descriptor).st_size
for attempt in (lambda: os.ftruncate(descriptor, 1), lambda: os.pwrite(descriptor, b"x", 99),
                lambda: mmap.mmap(descriptor, size), lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 1),
                lambda: os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_TRUNC)):
    try:
        attempt()
    except PermissionError:
        say("refused")
"""
    given = make_tensor()
    with share.publish([given]) as sealed, child(program) as (process, sock):
        sealed.send(sock)
        assert finish(process) == ["refused"] * 5
        assert sealed.open().read(verify=True).equals(given)


def test_the_reader_survives_the_publisher():
    program = """
share.publish(contents.tensors()).send(peer)
say("sent")
sys.stdin.read()
"""
    with child(program) as (process, sock):
        snapshot = share.receive(sock)
        assert line_of(process) == "sent"
        pool = snapshot.read(layer_index=3).page_pool
        kill(process)
    assert digest(pool) == digest(large().page_pool)
    assert digests(snapshot.iter_tensors(verify=True)) == digests(tensors())


def test_what_was_sent_survives_a_publisher_that_died_before_anybody_received():
    with child('share.publish([contents.large()]).send(peer)\nsay("sent")\nsys.stdin.read()') as (process, sock):
        assert line_of(process) == "sent"
        kill(process)
        assert digests(share.receive(sock).iter_tensors(verify=True)) == digests([large()])


def test_the_publisher_survives_the_reader():
    given = large()
    program = """
pool = share.receive(peer).read().page_pool
say(contents.digest(pool))
sys.stdin.read()
"""
    with share.publish([given]) as sealed, child(program) as (process, sock):
        sealed.send(sock)
        assert line_of(process) == digest(given.page_pool)
        kill(process)
        assert sealed.open().read(verify=True).equals(given)


def test_a_publisher_that_dies_half_way_sends_nothing():
    program = """
from hurray_arrow.arrow import SchemaPlan
from hurray_arrow.share.memory_file import MemoryFile
output = MemoryFile()
tensors = contents.tensors()
writer = ha.SnapshotWriter(output, plan=SchemaPlan.of(tensors))
writer.write(tensors[0])
socket.send_fds(peer, [b"hurraySM" + output.position.to_bytes(8, "little")], [output.fileno()])
say("half")
sys.stdin.read()
"""
    with child(program) as (process, sock):
        assert line_of(process) == "half"
        kill(process)
        with pytest.raises(SnapshotMismatchError) as caught:
            share.receive(sock)
        assert caught.value.field == "seals"


def test_a_child_has_the_descriptor_only_if_it_is_passed_on():
    code = """
import sys
from hurray_arrow import share
from tests.share.contents import digests
print(*digests(share.open_sealed(int(sys.argv[1])).iter_tensors()))
"""
    given = make_tensor()
    with share.publish([given]) as sealed:
        descriptor = sealed.fileno()
        for passed, status, said in (([descriptor], 0, digest(given.page_pool)), ([], 1, "")):
            command = [sys.executable, "-c", code, str(descriptor)]
            done = subprocess.run(
                command, pass_fds=passed, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            assert (done.returncode, done.stdout.strip()) == (status, said)


def test_two_hundred_hand_overs_leak_nothing():
    program = """
import gc
for number in range(200):
    snapshot = share.receive(peer)
    found = snapshot.read(layer_index=3)
    say(found.page_pool[-1, -1, -1, -1].view(np.uint16))
    del snapshot, found
    if number in (20, 199):
        gc.collect()
        say(len(os.listdir("/proc/self/fd")))
        say(contents.anonymous_bytes())
        say(len(contents.mappings_of()))
"""
    given = large(num_pages=37)
    last = str(given.page_pool[-1, -1, -1, -1].view("uint16"))
    # What tests before this one left behind would go sometime on the way.
    gc.collect()
    children, ours = [], []
    with child(program) as (process, sock):
        for number in range(200):
            with share.publish([given]) as sealed:
                sealed.send(sock)
            assert line_of(process) == last
            if number in (20, 199):
                children.append([int(line_of(process)) for _ in range(3)])
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
                ours.append([psutil.Process().num_fds(), peak, len(mappings_of())])
    for (descriptors, memory, mappings), (descriptors_later, memory_later, mappings_later) in (children, ours):
        assert descriptors_later == descriptors
        assert mappings_later == mappings == 0
        # 179 times 1.2 MiB would be 208 MiB.
        assert memory_later - memory < 8 * MIB


def test_arguments_of_another_kind_are_named():
    with pytest.raises(TypeError, match="sock: str, expected a connected Unix socket"):
        share.receive("cache.sock")
    with pytest.raises(TypeError, match="one BlockPagedTensor, expected several"):
        share.allocate(make_tensor())
    with pytest.raises(TypeError, match=r"expected \(page_size, num_heads, head_dim\)"):
        share.tensor_spec(
            num_pages=5, page_shape=(4, 3), element_type="float16", block_tables=[[0]], seq_lens=[4], kv_role="key"
        )
