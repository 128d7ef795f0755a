"""Ten thousand snapshots opened, read and closed leave nothing behind: no memory, no descriptor, no mapping."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from unittest import mock

import pytest

from hurray_arrow import HurrayArrowError, open_snapshot, open_snapshot_set, ops, share, write_snapshot
from hurray_arrow.snapshot import archive_rows
from tests.faults.children import run_cases
from tests.sample import make_tensor

#: How often the commonest is done, and each of the others.
TEN_THOUSAND, OFTEN, WARM_UP = 10_000, 300, 100
#: What may stay of all of them: less than a page of memory for every hundred.
LEFT_BYTES = 2 << 20


def one_tensor():
    return make_tensor(num_pages=3, page_size=2, num_heads=1, head_dim=5, block_tables=[[2, 0]], seq_lens=[3])


def write_files(folder):
    """One of each kind that can be opened, and of each kind that cannot."""
    path = folder / "share.arrow"
    write_snapshot(path, [one_tensor()], page_align_bytes=64)
    content = path.read_bytes()
    with mock.patch.object(archive_rows, "ONE_ROW_BYTES", 0):
        write_snapshot(folder / "archive.arrow", [one_tensor()], profile="archive")
    flipped = bytearray(content)
    with open_snapshot(path) as snapshot:
        flipped[snapshot._rows._places[0][0].offset + 100] ^= 1
    (folder / "cut.arrow").write_bytes(content[:-20])
    (folder / "empty.arrow").touch()
    (folder / "index.arrow").write_bytes(content.replace(b'"num_rows"', b'"num_cows"'))
    (folder / "row.arrow").write_bytes(flipped)
    for member, part in enumerate(ops.split_heads(make_tensor(), 3)):
        said = {
            "set": {"id": "s", "member": member, "members": 3},
            "topology": {"head_range": [member, member + 1], "tp_rank": member, "tp_size": 3},
        }
        write_snapshot(folder / f"set.m{member}.arrow", [part], metadata=said)


def kinds(folder):
    """What is done again and again, by name."""

    def read(name, **how):
        with open_snapshot(folder / name, **how) as snapshot:
            snapshot.read()

    def fail(name, **how):
        with pytest.raises((HurrayArrowError, FileNotFoundError)):
            read(name, **how)

    def read_set():
        with open_snapshot_set(str(folder / "set.m*.arrow")) as snapshots:
            snapshots.read()

    def receive():
        with sealed.open() as snapshot:
            snapshot.read()

    def publish():
        with share.publish([one_tensor()]) as own, own.open() as snapshot:
            snapshot.read()

    sealed = share.publish([one_tensor()])
    return {
        "share": lambda: read("share.arrow"),
        "in memory": lambda: read("share.arrow", mapped=False),
        "archive": lambda: read("archive.arrow"),
        "not closed": lambda: open_snapshot(folder / "share.arrow").read(),
        "in memory, not closed": lambda: open_snapshot(folder / "archive.arrow", mapped=False).read_sequences(0),
        "recovered": lambda: read("cut.arrow", recover=True),
        "cut": lambda: fail("cut.arrow"),
        "empty": lambda: fail("empty.arrow"),
        "missing": lambda: fail("missing.arrow"),
        "damaged index": lambda: fail("index.arrow"),
        "damaged row": lambda: fail("row.arrow"),
        "damaged row in memory": lambda: fail("row.arrow", mapped=False),
        "not as expected": lambda: fail("share.arrow", expect={"model.revision": "x"}),
        "set": read_set,
        "sealed, opened": receive,
        "sealed, published": publish,
        "written over": lambda: write_snapshot(folder / "w.arrow", [one_tensor()], overwrite=True),
    }


def again_and_again(argument, names, started):
    """Return what each kind left: kilobytes of memory, descriptors, mappings, threads."""
    folder = Path(argument)
    done = kinds(folder)
    left = {}
    for number, name in enumerate(names):
        started(number)
        count = TEN_THOUSAND if name == "share" else OFTEN
        for _ in range(WARM_UP):
            done[name]()
        before = _held()
        for _ in range(count):
            done[name]()
        left[name] = [now - then for now, then in zip(_held(), before, strict=True)]
    return left


def _held():
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident, threads = (int(re.search(rf"{what}:\s+(\d+)", status)[1]) for what in ("VmRSS", "Threads"))
    maps = Path("/proc/self/maps").read_text()
    files = sum(".arrow" in line or "memfd" in line for line in maps.splitlines())
    return resident << 10, sum(1 for _ in Path("/proc/self/fd").iterdir()), files, threads


@pytest.mark.long
def test_ten_thousand_opens_leave_nothing(tmp_path):
    write_files(tmp_path)
    names = list(kinds(tmp_path))
    left = {}
    for part in run_cases(again_and_again, str(tmp_path), names, timeout_seconds=900):
        left |= part
    assert left.keys() == set(names)
    assert {name: each[1:3] for name, each in left.items() if any(each[1:3])} == {}
    # pyarrow begins its own when it needs them, and keeps them.
    assert {name: each[3] for name, each in left.items() if each[3] > 8} == {}
    assert {name: each[0] for name, each in left.items() if each[0] > LEFT_BYTES} == {}
