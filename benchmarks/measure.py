"""Measure two ways of doing the same work in turn, and give the ratio of their medians.

Machines are shared and noisy: a number alone says nothing, a ratio within one run of alternating rounds says something.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table: medians in seconds, and how ours compares with the peer's."""

    work: str
    against: str
    ours_s: float
    peer_s: float
    target: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """Ours over the peer's time; below 1 is faster than the peer."""
        return self.ours_s / self.peer_s

    @property
    def speed(self) -> float:
        """Ours over the peer's speed; above 1 is faster than the peer."""
        return self.peer_s / self.ours_s

    def __str__(self) -> str:
        times = f"{self.ours_s * 1e3:9.2f} ms  {self.peer_s * 1e3:9.2f} ms"
        note = f"  ({self.note})" if self.note else ""
        ratios = f"time x{self.ratio:<6.2f} speed x{self.speed:<6.2f}"
        return f"{self.work:64} {self.against:32} {times}  {ratios} {self.target}{note}"


@dataclass(frozen=True, slots=True)
class Count:
    """One line of the table that is a number and not a time, such as bytes."""

    work: str
    found: str
    target: str

    def __str__(self) -> str:
        return f"{self.work:64} {self.found:32} {self.target}"


def alternate(ours: Work, peer: Work, *, rounds: int, repeat: int = 1) -> tuple[float, float]:
    """Run both in turn, each once unmeasured, and return the medians in seconds of one call."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side, work in enumerate((ours, peer)):
            gc.collect()
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            if number:
                times[side].append((time.perf_counter() - start) / repeat)
    return statistics.median(times[0]), statistics.median(times[1])
