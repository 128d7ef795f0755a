"""The rounds: every contender does the same work in turn, then once more in a process of its own to be counted."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import Cache, Key
from benchmarks.peers.contenders import Contender
from benchmarks.peers.environments import python_of
from benchmarks.peers.places import Places
from benchmarks.peers.protocol import Place
from benchmarks.peers.worker import Worker

WORKS = ("write", "tensor", "layer", "sequence", "whole")
#: Those that are done once more in a process of their own, in an order in which each finds its files.
COUNTED = WORKS


class WrongAnswerError(AssertionError):
    """A worker gave other bytes than were written."""


@dataclass
class Figures:
    """What was measured of one contender's one work at one kind of place.

    Parameters
    ----------
    seconds, cpu_seconds
        One of each per round; the second is what all threads of the process spent.
    peak_bytes
        What the resident set grew by, pages of mapped files included.
    counts
        ``requests``, ``received_bytes`` and ``sent_bytes`` of the store, ``disk_bytes`` read from the disk with
        nothing of the files in memory, ``size_bytes`` after writing.
    """

    contender: str
    place: str
    work: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Plan:
    """What to do.

    Parameters
    ----------
    contenders
        Who takes part.
    cache
        The folder of the input.
    warm_up
        The folder of a small input, on which every worker does everything once before the rounds.
    rounds
        At most so many.
    limit_s
        A contender's work is not repeated when all its rounds have taken longer than this.
    budget_s
        By kind of place: no further round begins that would take all of them beyond this.
    repeats
        Some pages are in a tensor of the input twice.
    """

    contenders: Sequence[Contender]
    cache: Path
    warm_up: Path
    rounds: int
    limit_s: float
    budget_s: Mapping[str, float]
    repeats: bool


def sequence_of(cache: Cache) -> int:
    """Return the longest sequence of the middle."""
    start = len(cache.seq_lens) // 2
    window = cache.seq_lens[start : start + 6]
    return start + int(window.argmax())


def question(work: str, cache: Cache) -> dict[str, Any]:
    """Return what a worker is asked for a work."""
    middle = cache.num_layers // 2
    if work == "tensor":
        return {"verb": "read", "keys": [Key(middle, "key")]}
    if work == "layer":
        return {"verb": "read", "keys": [key for key in cache.keys if key.layer == middle]}
    if work == "sequence":
        return {"verb": "sequence", "keys": cache.keys, "sequence": sequence_of(cache)}
    return {"verb": "write" if work == "write" else "read", "keys": cache.keys}


def measure(plan: Plan, places: Places) -> list[Figures]:
    """Measure everything at one kind of place."""
    figures = {
        (contender.name, work): Figures(contender.name, places.kind, work)
        for contender in plan.contenders
        for work in WORKS
    }
    with workers_of(plan.contenders) as workers:
        for name, worker in workers.items():
            small = places.clear(small_name(name))
            for work in WORKS:
                ask(worker, work, small, Cache(plan.warm_up), check=True)
        run_rounds(plan, places, workers, figures)
    for contender in plan.contenders:
        count(plan, places, contender, figures)
        places.drop(contender.name)
        places.drop(small_name(contender.name))
    return list(figures.values())


@contextlib.contextmanager
def workers_of(contenders: Sequence[Contender]) -> Iterator[dict[str, Worker]]:
    """Start a worker for each contender."""
    with contextlib.ExitStack() as stack:
        yield {
            contender.name: stack.enter_context(Worker(contender, python_of(contender.environment)))
            for contender in contenders
        }


def run_rounds(
    plan: Plan, places: Places, workers: Mapping[str, Worker], figures: Mapping[tuple[str, str], Figures]
) -> None:
    """Let the contenders take turns; each round begins with another one."""
    cache = Cache(plan.cache)
    where: dict[str, Place] = {}
    names = list(workers)
    begin = time.monotonic()
    for number in range(plan.rounds):
        next_s = sum(found.seconds[-1] for found in figures.values() if number and repeats(plan, found))
        if number and time.monotonic() - begin + next_s > plan.budget_s[places.kind]:
            break
        for work in WORKS:
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found = figures[name, work]
                if not repeats(plan, found):
                    continue
                if work == "write":
                    where[name] = places.clear(name)
                answer = ask(workers[name], work, where[name], cache, check=number == 0)
                found.seconds.append(answer["seconds"])
                found.cpu_seconds.append(answer["cpu_seconds"])
                if work == "write":
                    found.counts["size_bytes"] = places.size_bytes(where[name])
                say(f"{places.kind} {number + 1} {work} {name} {answer['seconds']:.3f} s")


def repeats(plan: Plan, found: Figures) -> bool:
    """Whether a work is done in the next round."""
    return sum(found.seconds) <= plan.limit_s


def ask(worker: Worker, work: str, place: Place, cache: Cache, *, check: bool) -> dict[str, Any]:
    """Let a worker do a work, and look at what it gave."""
    answer = worker.ask(**question(work, cache), place=place, cache=str(cache.folder), check=check)
    if check and work != "write" and not answer["equal"]:
        raise WrongAnswerError(f"{worker.contender.name}, {work}: other bytes than were written")
    return answer


def count(plan: Plan, places: Places, contender: Contender, figures: Mapping[tuple[str, str], Figures]) -> None:
    """Do every work once more, each in a new process, for its memory and for the bytes and requests it takes."""
    cache = Cache(plan.cache)
    place, small = places.clear(contender.name), places.clear(small_name(contender.name))
    for work in COUNTED:
        with Worker(contender, python_of(contender.environment)) as worker:
            # What a library imports or starts when it is first used is not the work's.
            ask(worker, work, small, Cache(plan.warm_up), check=False)
            with places.counted(place) as (counted_place, counts):
                answer = ask(worker, work, counted_place, cache, check=False)
        found = figures[contender.name, work]
        found.peak_bytes = answer["peak_bytes"]
        found.counts.update(counts)
        if places.kind == "local" and work != "write":
            found.counts["disk_bytes"] = answer["disk_bytes"]
        say(f"{places.kind} counted {work} {contender.name} {found.peak_bytes >> 20} MiB {found.counts}")


def small_name(name: str) -> str:
    """Return the place of a contender's small files."""
    return f"{name}-small"


def say(line: str) -> None:
    """Tell whoever waits."""
    print(line, file=sys.stderr, flush=True)
