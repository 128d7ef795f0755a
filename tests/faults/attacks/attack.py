"""What an attack is: a file or stream that is made to harm whoever reads it, and the rule that stops it."""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hurray_arrow import write_snapshot, write_stream
from tests.faults import hostile_archives
from tests.faults.forgery import Forgery
from tests.faults.outcome import SAME
from tests.faults.small import METADATA, PAGE_ALIGN_BYTES, small_tensors, write_small
from tests.faults.stream_forgery import StreamForgery

#: What becomes of a file that is right: it is taken, and shown so that it harms nobody.
TAKEN = SAME
INCOMPLETE, UNSUPPORTED = "SnapshotIncompleteError", "UnsupportedError"


@dataclass(frozen=True)
class Attack:
    """One file or stream.

    ``tries`` is what it tries, ``stopped_by`` the code of the problem that it ends in, ``at`` whether that is in
    opening it, reading it or verifying it, and ``make`` gives its bytes, always the same.
    """

    name: str
    group: str
    tries: str
    stopped_by: str
    at: str
    make: Callable[[], bytes]
    is_stream: bool = False


ATTACKS: dict[str, Attack] = {}


def attack(
    group: str, tries: str, *, stopped_by: str, at: str = "open", name: str = "", is_stream: bool = False
) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Register what a function makes."""

    def add(make: Callable[[], bytes]) -> Callable[[], bytes]:
        own = name or make.__name__
        assert own not in ATTACKS
        ATTACKS[own] = Attack(own, group, tries, stopped_by, "" if stopped_by == TAKEN else at, make, is_stream)
        return make

    return add


def forged(
    base: Callable[[], bytes], group: str, tries: str, *, stopped_by: str, at: str = "open", name: str = ""
) -> Callable[[Callable[[Forgery], None]], Callable[[Forgery], None]]:
    """Register what a function makes of an intact snapshot; its hashes are right again."""

    def add(change: Callable[[Forgery], None]) -> Callable[[Forgery], None]:
        def make() -> bytes:
            forgery = Forgery(base())
            change(forgery)
            return forgery.content()

        attack(group, tries, stopped_by=stopped_by, at=at, name=name or change.__name__)(make)
        return change

    return add


def forged_stream(
    group: str, tries: str, *, stopped_by: str
) -> Callable[[Callable[[Forgery], None]], Callable[[Forgery], None]]:
    """Register what a function makes of an intact stream."""

    def add(change: Callable[[Forgery], None]) -> Callable[[Forgery], None]:
        def make() -> bytes:
            forgery = StreamForgery(stream())
            change(forgery)
            return forgery.content()

        attack(group, tries, stopped_by=stopped_by, at="read", name=change.__name__, is_stream=True)(make)
        return change

    return add


def written(write: Callable[[Path], None]) -> bytes:
    """Return the bytes of a file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.arrow")
        write(path)
        return path.read_bytes()


@functools.cache
def share() -> bytes:
    """Return the intact snapshot of tests/faults/small.py."""
    return written(write_small)


@functools.cache
def one() -> bytes:
    """Return a snapshot of one of its tensors."""
    metadata = {**METADATA, "groups": []}
    options = {"page_align_bytes": PAGE_ALIGN_BYTES, "metadata": metadata}
    return written(lambda path: write_snapshot(path, small_tensors()[:1], **options))


@functools.cache
def archive() -> bytes:
    """Return it as an archive of byte planes, the pages of a tensor in several rows."""
    return written(hostile_archives.write_cut)


@functools.cache
def stream() -> bytes:
    sink = io.BytesIO()
    write_stream(sink, small_tensors(), metadata=METADATA)
    return sink.getvalue()
