"""What a worker is asked and what it answers: one line of JSON each, over its standard input and output.

A worker lives as long as the run, so that nobody's import is measured and rounds can alternate; for memory and bytes
it is started for one question. This module runs in the peers' environments: the standard library and numpy.
"""

from __future__ import annotations

import abc
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cache import Array, Cache, Key


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer's files lie: a folder, or a bucket of an S3 server."""

    folder: str = ""
    endpoint: str = ""
    bucket: str = ""
    access_key: str = ""
    secret_key: str = ""
    #: For libraries that know only local files: where they may put one before it goes, or after it came.
    scratch: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is a bucket."""
        return bool(self.endpoint)

    def path(self, name: str) -> Path:
        """Return where a file of that name lies, or is put in between."""
        return Path(self.scratch if self.is_remote else self.folder) / name


class Peer(abc.ABC):
    """One library's way with a cache; every call starts from the files, with nothing kept from the call before.

    Clients of a store may be kept: a process has one as long as it lives.
    """

    @abc.abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that do the work."""

    @abc.abstractmethod
    def write(self, place: Place, cache: Cache) -> None:
        """Write everything: pools, tables, lengths, and the model's name where the format has a place for it."""

    @abc.abstractmethod
    def read(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Return the pools of some tensors, all at the same time."""

    @abc.abstractmethod
    def read_sequence(self, place: Place, keys: Sequence[Key], sequence: int) -> Sequence[Array]:
        """Return the tokens of one sequence in order, of every tensor."""

    def verify(self, place: Place, keys: Sequence[Key]) -> Sequence[Array]:
        """Read some tensors with every check that the library has."""
        return self.read(place, keys)

    def model(self, place: Place) -> str | None:
        """Return the model's name out of the files without reading pages, ``None`` where none can be kept."""
        del place
        return None

    def refuses(self, place: Place, model: str) -> bool:
        """Whether the library refuses to open files of another model, when it is told which it wants."""
        del place, model
        return False

    def longest_by_sql(self, place: Place) -> int | None:
        """Ask for the tokens of the longest sequence in SQL, ``None`` where no engine reads the files."""
        del place
        return None


def serve(peer: Peer) -> None:
    """Answer questions until there are none; what libraries print goes to standard error."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = answer_to(peer, question)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def answer_to(peer: Peer, question: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked."""
    verb = question["verb"]
    if verb == "versions":
        return {"versions": peer.versions()}
    place = Place(**question["place"])
    if verb in ("model", "longest_by_sql"):
        return {"value": getattr(peer, verb)(place)}
    if verb == "refuses":
        return {"value": peer.refuses(place, question["model"])}
    cache = Cache(question["cache"])
    keys = [Key(**key) for key in question.get("keys", ())]
    if verb == "write":
        for pool in cache.pools.values():
            # So that the input is resident before, and not counted.
            checksum(pool)
        return measured(lambda: write(peer, place, cache))
    if verb == "sequence":
        sequence = question["sequence"]
        expected = [cache.gather(key, sequence) for key in keys] if question["check"] else None
        return measured(lambda: peer.read_sequence(place, keys, sequence), expected)
    expected = [cache.pools[key] for key in keys] if question["check"] else None
    return measured(lambda: (peer.verify if verb == "verify" else peer.read)(place, keys), expected)


def write(peer: Peer, place: Place, cache: Cache) -> list[Array]:
    """Write, and wait for the disk: some libraries do, and without it nobody knows what was measured."""
    peer.write(place, cache)
    if not place.is_remote:
        for path in Path(place.folder).rglob("*"):
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
    return []


def measured(work: Callable[[], Sequence[Array]], expected: Sequence[Array] | None = None) -> dict[str, Any]:
    """Time the work, with a look at every byte that it gives: what is only mapped has not been read."""
    gc.collect()
    held_bytes = reset_peak()
    read_bytes = disk_bytes()
    cpu, start = time.process_time(), time.perf_counter()
    arrays = work()
    total = sum(checksum(array) for array in arrays) & (1 << 64) - 1
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    answer = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": status_bytes("VmHWM") - held_bytes,
        "disk_bytes": disk_bytes() - read_bytes,
        "checksum": f"{total:016x}",
    }
    if expected is not None:
        answer["equal"] = len(arrays) == len(expected) and all(map(np.array_equal, arrays, expected))
    return answer


def checksum(array: Array) -> int:
    """Add up the array as 64-bit words, where it lies."""
    flat = array.reshape(-1).view(np.uint8)
    words = flat.view(np.uint64) if flat.nbytes % 8 == 0 and flat.ctypes.data % 8 == 0 else flat
    return int(words.sum(dtype=np.uint64))


def reset_peak() -> int:
    """Let the kernel forget the peak of the resident set, and return what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """Return a figure of this process that the kernel gives in kibibytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def disk_bytes() -> int:
    """Return what this process made the kernel read from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise KeyError("read_bytes")
