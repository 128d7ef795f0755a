"""What each peer can express: tried where a program can try it, cited from its public format where not.

Bits are flipped in files and read again, the model's name is asked back, SQL is asked; what is measured anyway, such
as partial reads, is taken from there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.cache import MODEL, Cache
from benchmarks.peers.contenders import Contender
from benchmarks.peers.environments import python_of
from benchmarks.peers.places import LocalPlaces
from benchmarks.peers.protocol import Place
from benchmarks.peers.worker import PeerError, Worker

FLIPS = 32
CUT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of trying one contender.

    Parameters
    ----------
    versions
        Of the libraries that did the work.
    flips
        Of so many bits flipped in its files: ``noticed`` (an error), ``crashed`` (the process ended), ``silent`` (other
        pages without an error), ``unaffected`` (the same pages).
    cut
        What came of a file without its last 4096 bytes; one of the same words.
    keeps_model
        The model's name comes back without reading pages.
    refuses_model
        Opening for another model is refused by the library.
    has_sql
        SQL gave the tokens of the longest sequence.
    """

    contender: str
    versions: dict[str, str]
    flips: dict[str, int]
    cut: str
    keeps_model: bool
    refuses_model: bool
    has_sql: bool


def tried(contenders: Sequence[Contender], folder: Path, places: LocalPlaces) -> list[dict[str, object]]:
    """Try all contenders on a small cache."""
    return [asdict(try_one(contender, folder, places)) for contender in contenders]


def try_one(contender: Contender, folder: Path, places: LocalPlaces) -> Tried:
    """Write the cache, then look what the library makes of it, whole and damaged."""
    place = places.clear(contender.name)
    with Trial(contender, place, folder) as trial:
        trial.worker.ask("write", place, cache=str(folder))
        versions = trial.worker.ask("versions")["versions"]
        keeps = trial.worker.ask("model", place)["value"] == MODEL
        refuses = bool(trial.worker.ask("refuses", place, model="another")["value"])
        longest = trial.worker.ask("longest_by_sql", place)["value"]
        if trial.outcome() != "unaffected":
            raise AssertionError(f"{contender.name} does not read its own files")
        flips = Counter(trial.flipped())
        end = trial.cut()
    places.drop(contender.name)
    has_sql = longest == int(Cache(folder).seq_lens.max())
    return Tried(contender.name, versions, dict(flips), end, keeps, refuses, has_sql)


class Trial(AbstractContextManager["Trial"]):
    """A contender's files, damaged in one way after another.

    Parameters
    ----------
    contender
        Whose.
    place
        Where they lie.
    folder
        The cache that was written.
    """

    def __init__(self, contender: Contender, place: Place, folder: Path) -> None:
        self._contender, self._place, self._cache = contender, place, Cache(folder)
        self.worker = self._start()

    def _start(self) -> Worker:
        return Worker(self._contender, python_of(self._contender.environment))

    def __exit__(self, *_: object) -> None:
        self.worker.__exit__(None, None, None)

    def outcome(self) -> str:
        """Read everything with every check that the library has; say what came of it."""
        keys, folder = self._cache.keys, str(self._cache.folder)
        try:
            answer = self.worker.ask("verify", self._place, keys, cache=folder, check=True)
        except PeerError:
            if self.worker.is_alive:
                return "noticed"
            self.worker = self._start()
            return "crashed"
        return "unaffected" if answer["equal"] else "silent"

    def _files(self) -> list[Path]:
        return sorted(path for path in Path(self._place.folder).rglob("*") if path.is_file())

    def flipped(self) -> Iterator[str]:
        """Flip one bit after another, anywhere in the files."""
        files = self._files()
        sizes = [path.stat().st_size for path in files]
        rng = random.Random(7)
        for _ in range(FLIPS):
            [path] = rng.choices(files, sizes)
            at, bit = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
            flip(path, at, bit)
            yield self.outcome()
            flip(path, at, bit)

    def cut(self) -> str:
        """Cut the end off the largest file, and put it back."""
        path = max(self._files(), key=lambda path: path.stat().st_size)
        data = path.read_bytes()
        path.write_bytes(data[:-CUT_BYTES])
        found = self.outcome()
        path.write_bytes(data)
        return found


def flip(path: Path, at: int, bit: int) -> None:
    """Flip one bit of a file, or flip it back."""
    with path.open("r+b") as file:
        file.seek(at)
        [value] = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ bit]))
