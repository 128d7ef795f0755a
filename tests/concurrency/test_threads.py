"""One open snapshot, many threads; closed under them, or taken along into a forked child."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from hurray_arrow import SnapshotError, open_snapshot, open_snapshot_set, ops, write_snapshot
from hurray_arrow.snapshot import archive_rows
from tests.sample import make_tensor, sample_facts

# What Python says of forks with threads is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
#: How a snapshot can be open; archives have their pages in several rows, which threads of their own decode.
KINDS = [("share", True), ("share", False), ("archive", True), ("archive", False)]
THREADS, ROUNDS = 6, 8


def samples():
    return [make_tensor(layer_index=layer, num_pages=201, seed=layer, **sample_facts()) for layer in range(4)]


@pytest.fixture(params=KINDS, ids=["share", "share in memory", "archive", "archive in memory"])
def opened(request, tmp_path, monkeypatch):
    profile, mapped = request.param
    monkeypatch.setattr(archive_rows, "ONE_ROW_BYTES", 0)
    monkeypatch.setattr(archive_rows, "MAX_ROW_BYTES", 8 << 10)
    write_snapshot(tmp_path / "s.arrow", samples(), profile=profile)
    return lambda: open_snapshot(tmp_path / "s.arrow", mapped=mapped)


def test_many_threads_ask_one_snapshot_everything(opened):
    expected = samples()
    token_ids = expected[0].sequences.token_ids[0]
    with opened() as snapshot:
        pages = ops.compact(ops.select(expected[2], [2, 0]))

        def ask(number):
            layer = number % 4
            assert snapshot.read(layer_index=layer, verify=bool(number % 2)).equals(expected[layer])
            [partial] = snapshot.read_sequences([2, 0], layer_index=2).tensors
            assert partial.equals(pages)
            assert [tensor.layer_index for tensor in snapshot.iter_tensors()] == [0, 1, 2, 3]
            assert snapshot.match_prefix(token_ids).num_tokens >= 0
            assert snapshot.verify().num_tensors == 4
            return True

        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(ask, range(THREADS * ROUNDS)))


def test_closing_lets_reads_end_and_gives_no_other_files_bytes(opened, tmp_path):
    """The number of a closed descriptor is the next file's: nobody may read through it."""
    decoy = tmp_path / "decoy"
    decoy.write_bytes(b"\xa5" * (tmp_path / "s.arrow").stat().st_size)
    expected = samples()
    outcomes = []
    for _ in range(ROUNDS):
        snapshot = opened()
        started = threading.Barrier(THREADS + 1)

        def read(snapshot=snapshot, started=started):
            assert snapshot.read(layer_index=3).equals(expected[3])
            started.wait()
            for number in range(40):
                try:
                    same = snapshot.read(layer_index=number % 4).equals(expected[number % 4])
                    outcomes.append("same" if same else "OTHER BYTES")
                except SnapshotError as error:
                    outcomes.append("closed" if "closed" in str(error) else str(error))
                except Exception as error:  # noqa: BLE001 - named by the assertion
                    outcomes.append(repr(error))

        threads = [threading.Thread(target=read) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        started.wait()
        snapshot.close()
        decoys = [os.open(decoy, os.O_RDONLY) for _ in range(8)]
        for thread in threads:
            thread.join()
        for descriptor in decoys:
            os.close(descriptor)
    assert len(outcomes) == ROUNDS * THREADS * 40
    assert set(outcomes) <= {"same", "closed"}


def test_after_closing_there_is_the_mapping_or_an_error(opened):
    snapshot = opened()
    kept = snapshot.read(layer_index=1)
    snapshot.close()
    snapshot.close()
    assert kept.equals(samples()[1])
    is_mapped = snapshot._rows.source.is_mapped and snapshot.profile == "share"
    with nullcontext() if is_mapped else pytest.raises(SnapshotError, match=r"s\.arrow: the snapshot is closed"):
        assert snapshot.read(layer_index=2).equals(samples()[2])


def _in_child(read):
    """Return the exit code of a forked child that reads."""
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if read() else 3
        except BaseException:  # noqa: BLE001 - the exit code is all that a child can say
            code = 4
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_threads_of_its_own(opened):
    """The parent's are not there, and waiting for them would never end."""
    with opened() as snapshot:
        assert snapshot.read(layer_index=0).equals(samples()[0])
        assert _in_child(lambda: snapshot.read(layer_index=1).equals(samples()[1])) == 0
        assert snapshot.read(layer_index=2).equals(samples()[2])


def test_a_set_goes_into_a_forked_child_and_is_closed_like_its_members(tmp_path):
    ranges = [(0, 1), (1, 3)]
    parts = [ops.split_heads(tensor, ranges) for tensor in samples()]
    for member, heads in enumerate(ranges):
        metadata = {
            "set": {"id": "s", "member": member, "members": 2},
            "topology": {"tp_rank": member, "tp_size": 2, "head_range": list(heads)},
        }
        write_snapshot(tmp_path / f"c.m{member}.arrow", [part[member] for part in parts], metadata=metadata)
    snapshots = open_snapshot_set(str(tmp_path / "c.m*.arrow"))
    assert snapshots.read(layer_index=0).buffers[0].tobytes() == samples()[0].buffers[0].tobytes()
    in_child = _in_child(
        lambda: snapshots.read(layer_index=1).buffers[0].tobytes() == samples()[1].buffers[0].tobytes()
    )
    assert in_child == 0
    snapshots.close()
    with pytest.raises(SnapshotError):
        snapshots.read(layer_index=2)
