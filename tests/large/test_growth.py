"""No operation grows faster than linearly with what a snapshot holds: counted in lines run and in memory.

A cost of a + b × n grows ten times as much from 10 n to 100 n as from n to 10 n, one of n² a hundred times. The same
cases, larger and by time, are in benchmarks/scaling.py.
"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

import hurray_arrow
from benchmarks.scaling import AXES, WORKS, Case

SIZES = {
    "sequences": (10, 100, 1000),
    "tensors": (1, 10, 100),
    "kv_groups": (1, 10, 100),
    "pages": (60, 600, 6000),
    "table entries": (1000, 10_000, 100_000),
}
COUNTED = (str(Path(hurray_arrow.__file__).parent), __file__)
#: Ten is linear; what threads do when they wait for each other differs from run to run.
MOST_GROWTH = 11
FREE_STEPS, FREE_BYTES = 1000, 200_000


def steps_of(work):
    """Count the lines of this package, and of this module, that a call runs in all threads that it starts.

    A comprehension counts for each of its rounds.
    """
    steps = Counter()

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        if event == "line":
            steps[threading.get_ident()] += 1
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(before)
    return sum(steps.values())


def peak_of(work):
    """Return the most bytes that a call had allocated at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made = {}

    def of(axis):
        if axis.name not in made:
            folder = tmp_path_factory.mktemp("growth")
            made[axis.name] = [Case.make(axis, size, folder) for size in SIZES[axis.name]]
            # What is imported and cached at the first use is no part of the growth.
            for work in WORKS.values():
                work(made[axis.name][0])
        return made[axis.name]

    return of


def grows_too_fast(small, middle, large):
    return large - middle > MOST_GROWTH * max(middle - small, 0) + FREE_STEPS


def takes_too_much(middle, large):
    """Say whether memory grows too fast; it is that of one moment, so that a constant part may hide all others."""
    return large > MOST_GROWTH * middle + FREE_BYTES


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_cost_grows_linearly(cases, axis, name):
    work = WORKS[name]
    steps = [steps_of(lambda case=case: work(case)) for case in cases(axis)]
    assert not grows_too_fast(*steps), steps
    peaks = [peak_of(lambda case=case: work(case)) for case in cases(axis)[1:]]
    assert not takes_too_much(*peaks), peaks


def test_a_square_is_found():
    def compare_all(count):
        return [sum(1 for one in range(count) if one == other) for other in range(count)]

    counts = [steps_of(lambda size=size: compare_all(size)) for size in (3, 30, 300)]
    assert grows_too_fast(*counts), counts
    sums = [steps_of(lambda size=size: [one + 1 for one in range(size)]) for size in (100, 1000, 10_000)]
    assert not grows_too_fast(*sums), sums
    assert 9 < (sums[2] - sums[1]) / (sums[1] - sums[0]) < MOST_GROWTH
    assert takes_too_much(*(peak_of(lambda size=size: bytearray(100 * size * size)) for size in (30, 300)))
    assert not takes_too_much(*(peak_of(lambda size=size: bytearray(100 * size)) for size in (300, 3000)))


def test_every_axis_is_measured():
    assert SIZES.keys() == {axis.name for axis in AXES}
    assert all(axis.sizes[-1] == 1000 * axis.sizes[0] for axis in AXES)
    assert len(AXES) * len(WORKS) >= 75
