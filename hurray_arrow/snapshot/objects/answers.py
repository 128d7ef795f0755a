"""What a store answers to a request for a range: is it the range, and are all of its bytes there."""

from __future__ import annotations

import re

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.stores import TruncatedBodyError


class Filler:
    """Takes the chunks of one body into memory of exactly its size."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._done = 0

    def take(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises
        ------
        SnapshotError
            More bytes than were asked for.
        """
        end = self._done + len(chunk)
        if end > len(self._view):
            raise SnapshotError(f"{end} bytes came, {len(self._view)} were asked for")
        self._view[self._done : end] = chunk
        self._done = end

    def finish(self) -> None:
        """Check that all came.

        Raises
        ------
        TruncatedBodyError
            Fewer bytes than were asked for.
        """
        if self._done != len(self._view):
            raise TruncatedBodyError(f"{self._done} bytes came, {len(self._view)} were asked for")


def total_of_content_range(value: str | None) -> int | None:
    """Return the size of the whole object from a Content-Range such as ``bytes 0-63/1024``."""
    total = (value or "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def check_start(value: str | None, start: int) -> None:
    """Refuse a Content-Range of other bytes than were asked for; a cache between us and the store may mix them up.

    Raises
    ------
    SnapshotError
        The range starts elsewhere.
    """
    found = re.match(r"\s*bytes\s+(\d+)-", value or "", re.ASCII | re.IGNORECASE)
    if found and int(found[1]) != start:
        raise SnapshotError(f"the answer is {value!r:.80}, asked for was a range that starts at {start}")
