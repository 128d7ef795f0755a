"""Every target on a part of its seeds and kept inputs, and on what hypothesis makes of them; and that targets can fail.

A child process for each target: a crash or a hang is a failure that names the input. `make fuzz` is the same under
libFuzzer, for as long as one likes.
"""

from __future__ import annotations

import hashlib
import random
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hurray_arrow import HurrayArrowError
from hurray_arrow._wire import Reader
from hurray_arrow.arrow import ipc_layout, metadata, page_class
from hurray_arrow.arrow.rows import Row
from hurray_arrow.engines import hurray_files
from hurray_arrow.engines import tables as engine_tables
from hurray_arrow.snapshot import archive_source, index, row_source, stream_reader
from tests.faults.children import limit_memory, run_cases
from tests.fuzz import branches, limits
from tests.fuzz.all_targets import CORPORA, TARGETS, kept
from tests.fuzz.limits import BrokenPromiseError, bounded, check_error

#: By target: how many inputs, and how many examples of hypothesis; about a minute in all.
SHARES = {
    "descriptors": (600, 400),
    "extensions": (200, 300),
    "metadata": (200, 300),
    "index": (300, 300),
    "layouts": (400, 300),
    "share": (120, 60),
    "archives": (100, 50),
    "streams": (200, 100),
    "rewrites": (80, 40),
    "sets": (80, 30),
    "catalogues": (150, 100),
    "tables": (500, 400),
    "containers": (120, 60),
}
#: A child may take this much more address space than it has, whatever an input is; what an input may take is far less.
ROOM_BYTES = 2 << 30


def inputs_of(name, count=None):
    """Return a target's inputs in an order that has nothing to do with what they are, or the first of them."""
    found = {*TARGETS[name].seeds(), *kept(name)}
    return sorted(found, key=lambda data: hashlib.sha1(data, usedforsecurity=False).digest())[:count]


def replay(name, share, started):
    limit_memory(ROOM_BYTES)
    for number, data in enumerate(share):
        started(number)
        _try(name, data)
    if SHARES[name][1]:
        _with_hypothesis(name)
    return len(share)


def _try(name, data):
    try:
        TARGETS[name].run(data)
    except Exception as error:
        raise AssertionError(f"{data.hex()}: {type(error).__name__}: {error}") from error


def _with_hypothesis(name):
    seeds = inputs_of(name, 200)

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=SHARES[name][1],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(st.binary(max_size=80), changed(seeds)))
    def run(data):
        _try(name, data)

    run()


@st.composite
def changed(draw, seeds):
    """An input of which a piece is replaced, left out or put in, and another input's end may follow."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 4))] = draw(st.binary(max_size=6))
    if draw(st.booleans()):
        data += draw(st.sampled_from(seeds))[2:]
    return bytes(data[:4096])


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name):
    share = inputs_of(name, SHARES[name][0])
    assert len(share) > 50
    assert run_cases(replay, name, share, timeout_seconds=600, processes=1) == [len(share)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_at_all_breaks_a_promise(name):
    share = inputs_of(name)
    assert sum(run_cases(replay, name, share, timeout_seconds=6000)) == len(share)


def test_corpora_stay_small():
    names = {path.stem for path in CORPORA.glob("*.txt")}
    assert names <= set(TARGETS)
    assert sum(path.stat().st_size for path in CORPORA.iterdir()) < 1_000_000
    for name in names:
        lines = (CORPORA / f"{name}.txt").read_text().splitlines()
        assert len(set(lines)) == len(lines) == len(kept(name))
        assert max(map(len, lines)) <= 2 * 4096


# -- how far the targets reach -----------------------------------------------------------------------------------------

#: Targets that take a few seconds, and reach what they are there for by themselves.
QUICK = ("extensions", "metadata", "index", "tables")


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_target_reaches_its_decoders(name, tmp_path):
    counts = branches.measure([name], tmp_path)
    assert branches.percent(counts) >= 95, "\n".join(branches.table(counts, missed=True))


@pytest.mark.exhaustive
def test_targets_reach_the_branches_of_all_decoders(tmp_path):
    counts = branches.measure(TARGETS, tmp_path)
    assert len(counts) > 50
    assert branches.percent(counts) >= 95, "\n".join(branches.table(counts, missed=True))


def test_what_is_not_counted_is_of_decoders():
    assert set(branches.NOT_DECODING) <= {module for target in TARGETS.values() for module in target.decoders}


# -- a target that cannot fail proves nothing --------------------------------------------------------------------------


def flips(name):
    """Inputs that flip one byte after another, from where the small columns of the second base begin."""
    first = {"share": 5250, "archives": 6150, "streams": 2500}[name]
    return [bytes([1, 1, 0, place % 256, place // 256, 0, 0x10]) for place in range(first, 16_000)]


def changes(name):
    """A target's inputs, each with one byte changed."""
    rng = random.Random(11)
    for data in inputs_of(name) * 4:
        made = bytearray(data)
        made[rng.randrange(len(made))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        yield bytes(made)


def blocks_beyond_all_memory(_name):
    """Scripts of blocks that are several pages apart; now and then an id times that is another page's."""
    rng = random.Random(5)
    for _ in range(100_000):
        yield bytes([1, 2, 5, 1, 1, rng.choice([3, 5])]) + rng.randbytes(9)


def finds(name, inputs):
    """Say whether a target finds a fault with one of the inputs."""
    for data in inputs:
        try:
            TARGETS[name].run(data)
        except Exception:  # noqa: BLE001 - a planted fault may show itself in any way
            return True
    return False


def _take_anything(monkeypatch):
    monkeypatch.setattr(Reader, "zeros", lambda self, size, field, **_: self.take(size, field))


def _forget_hashes(monkeypatch):
    monkeypatch.setattr(row_source, "hash_problems", lambda *_: [])
    monkeypatch.setattr(archive_source, "hash_problems", lambda *_: [])


def _forget_page_checksums(monkeypatch):
    monkeypatch.setattr("hurray_arrow.snapshot.verification.page_problems", lambda *_, **__: [])


def _believe_the_index(monkeypatch):
    monkeypatch.setattr(index, "index_problems", lambda *_, **__: [])


def _believe_streams(monkeypatch):
    monkeypatch.setattr(stream_reader, "_row_problems", lambda *_: [])


def _let_ids_come_round(monkeypatch):
    steps = np.arange(64, dtype=np.int64)
    monkeypatch.setattr(
        engine_tables,
        "pages_of_blocks",
        lambda ids, *, ratio, block_stride: ids[:, np.newaxis] * block_stride + steps[:ratio],
    )


def _let_errors_out(monkeypatch):
    for module in (ipc_layout, page_class, metadata):
        for name in ("IpcLayoutError", "ExtensionMetadataError", "SnapshotCorruptError"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, **__: KeyError("planted"))


def _believe_facts(monkeypatch):
    monkeypatch.setattr(hurray_files, "_text", lambda value: value)


def _swap_rows(monkeypatch):
    read = Row.read.__func__
    monkeypatch.setattr(
        Row, "read", classmethod(lambda cls, batch, number, **more: read(cls, batch, max(number - 1, 0), **more))
    )


@pytest.mark.parametrize(
    ("name", "plant", "inputs"),
    [
        ("descriptors", _take_anything, changes),
        ("extensions", _let_errors_out, changes),
        ("metadata", _let_errors_out, changes),
        ("index", _believe_the_index, inputs_of),
        ("share", _forget_hashes, flips),
        ("share", _forget_page_checksums, flips),
        ("archives", _forget_hashes, flips),
        ("streams", _believe_streams, flips),
        ("streams", _let_errors_out, flips),
        ("tables", _let_ids_come_round, blocks_beyond_all_memory),
        ("rewrites", _swap_rows, inputs_of),
        ("containers", _believe_facts, inputs_of),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_a_fault_is_found(name, plant, inputs, monkeypatch):
    tried = inputs(name)
    plant(monkeypatch)
    assert finds(name, tried)


def _take_seconds(seconds):
    with bounded(0):
        stop = time.process_time() + seconds
        while time.process_time() < stop:
            pass


def test_memory_and_time_are_watched(monkeypatch):
    with pytest.raises(BrokenPromiseError), bounded(1 << 20):
        np.ones(80 << 20, np.uint8)
    with pytest.raises(BrokenPromiseError), bounded(1 << 20):
        pa.allocate_buffer(pa.default_memory_pool().max_memory() + (160 << 20))
    with bounded(100 << 20):
        np.ones(80 << 20, np.uint8)
    monkeypatch.setattr(limits, "SECONDS", 0.02)
    with pytest.raises(BrokenPromiseError):
        _take_seconds(0.05)


@pytest.mark.parametrize("message", ["", "x" * 60_000])
def test_messages_are_watched(message):
    with pytest.raises(BrokenPromiseError):
        check_error(HurrayArrowError(message))
