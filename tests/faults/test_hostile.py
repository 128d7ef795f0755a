"""Hand-made hostile snapshots whose hashes are right: refused by the reader's other checks, never a crash or a hang.

They run in child processes that may allocate the file's size and 64 MiB, so that a crash is a failure with a name.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pyarrow as pa
import pytest

from hurray_arrow import HurrayArrowError, open_snapshot
from tests.faults.children import limit_memory, run_cases
from tests.faults.forgery import Forgery
from tests.faults.hostile import CASES, EXPECTED
from tests.faults.outcome import SAME, Original, outcome_of
from tests.faults.small import write_small

NUM_FUZZED = 800
#: What Arrow may allocate for any of these small files.
ARROW_BYTES = 4 << 20


@pytest.fixture(scope="module")
def snapshot_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "s.arrow"
    write_small(path)
    return path


def build(argument, share, started):
    path = argument
    built = {}
    for number, name in enumerate(share):
        started(number)
        forgery = Forgery(path.read_bytes())
        CASES[name](forgery)
        built[name] = forgery.content()
    return built


def look(argument, share, started):
    path, contents = argument
    original = Original.of(path)
    forged = path.with_name(f"forged-{os.getpid()}.arrow")
    forged.write_bytes(path.read_bytes())
    assert outcome_of(forged, original) == outcome_of(forged, original, mapped=False) == SAME
    limit_memory(max(map(len, contents.values())))
    outcomes = {}
    for number, name in enumerate(share):
        started(number)
        forged.write_bytes(contents[name])
        outcomes[name] = [_outcome(forged, original, mapped=mapped) for mapped in (True, False)]
        # Without its footer: nothing but what lies in the rows is left to go by.
        forged.write_bytes(contents[name][:-7])
        outcomes[name].append(_recovered(forged))
        # Arrow's own allocations fail softly at the limit, and would look like any other refusal.
        assert pa.default_memory_pool().max_memory() < ARROW_BYTES, name
    return outcomes


def _outcome(path, original, *, mapped):
    try:
        return outcome_of(path, original, mapped=mapped)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test names it with its case
        return f"{type(error).__name__}: {error}"


def _recovered(path):
    try:
        with open_snapshot(path, recover=True) as snapshot:
            found = list(snapshot.iter_tensors())
            assert all(tensor.validate() == [] for tensor in found)
            assert len(found) == len(snapshot.entries)
            assert snapshot.unverified
    except HurrayArrowError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"
    return "recovered"


def test_every_hostile_snapshot_ends_as_it_should(snapshot_path):
    assert len(CASES) > 300
    contents = {}
    # pyarrow writes these without looking, and may well crash on them, which would not be the reader's fault.
    for built in run_cases(build, snapshot_path, list(CASES), timeout_seconds=1500):
        contents |= built
    outcomes = {}
    for found in run_cases(look, (snapshot_path, contents), list(CASES), timeout_seconds=1500):
        outcomes |= found
    assert outcomes.keys() == CASES.keys()
    wrong = {
        name: (found, EXPECTED[name])
        for name, found in outcomes.items()
        if not {outcome.rpartition(": ")[2] for outcome in found[:2]} <= EXPECTED[name]
        or found[2] not in {"recovered", "refused"}
    }
    assert wrong == {}, "\n".join(f"{name}: {found}, expected {expected}" for name, (found, expected) in wrong.items())
    assert sum(found[:2] == [SAME, SAME] for found in outcomes.values()) < 40


def fuzz(argument, share, started):
    """Change bytes of a row at random, make the hashes right again, and read: by type or not at all."""
    path = argument
    intact = path.read_bytes()
    original = Original.of(path)
    forged = path.with_name(f"fuzzed-{os.getpid()}.arrow")
    counts = Counter()
    contents = []
    for seed in share:
        rng = random.Random(seed)
        forgery = Forgery(intact)
        forgery.patches[rng.randrange(len(forgery.batches))] = lambda row, rng=rng: garble(row, rng)
        contents.append(forgery.content())
    limit_memory(len(intact))
    for number, content in enumerate(contents):
        started(number)
        forged.write_bytes(content)
        try:
            counts[outcome_of(forged, original)] += 1
        except AssertionError:
            # Right hashes over other values: nothing can tell, and nothing must.
            counts["other values"] += 1
    return counts


def garble(row, rng):
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(row))
        match rng.randrange(4):
            case 0:
                row[place] ^= 1 << rng.randrange(8)
            case 1:
                row[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                place -= place % 4
                row[place : place + 4] = rng.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", bytes(4)])
            case _:
                place -= place % 8
                row[place : place + 8] = rng.choice([b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 5 + b"\1\0\0"])


def test_garbled_rows_with_right_hashes_never_crash(snapshot_path):
    counts = sum(run_cases(fuzz, snapshot_path, range(NUM_FUZZED), timeout_seconds=1500), Counter())
    assert counts.total() == NUM_FUZZED
    typed = sum(count for outcome, count in counts.items() if ": " in outcome)
    assert typed > NUM_FUZZED // 3
    assert {outcome.partition(":")[0] for outcome in counts} <= {"open", "read", "verify", SAME, "other values"}
