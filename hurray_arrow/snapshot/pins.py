"""A snapshot as it was when it was listed, for another thread or process to open: the same version, or an error.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

from hurray_arrow.errors import SnapshotChangedError
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.snapshot.opening import open_source, snapshot_of
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.remote import Known, open_place
from hurray_arrow.snapshot.stores import Place, locate, shown
from hurray_arrow.snapshot.tail import read_tail

#: A longer end is fetched once more instead of being carried about: that is a request, and the index of some hundred
#: rows.
MOST_TAIL_BYTES = 24 << 10


@dataclass(frozen=True)
class SnapshotPlace:
    """Where a snapshot lies.

    Parameters
    ----------
    path
        The path or URL.
    how
        ``storage_options`` and ``filesystem``, as of :func:`~hurray_arrow.open_snapshot`.

    Notes
    -----
    A pickle has both, so that it may have keys in it, and no connection.
    """

    path: str
    how: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        return f"SnapshotPlace({shown(self.path)!r})"

    @cached_property
    def _at(self) -> str | Place:
        # Looked up once: fsspec makes a filesystem for each thread that asks for one.
        return locate(self.path, **self.how)

    @classmethod
    def of(
        cls,
        path: PathLike,
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
    ) -> SnapshotPlace:
        """Return the place of a path or URL; a local path as other processes find it, whatever folder they are in.

        Raises
        ------
        MissingDependencyError, ValueError
            As :func:`~hurray_arrow.snapshot.stores.locate`.
        """
        found = cls(os.fspath(path), {"storage_options": storage_options, "filesystem": filesystem})
        return found if isinstance(found._at, Place) else cls(str(Path(found._at).absolute()), {})

    @property
    def url(self) -> str:
        """What errors and tables call it: without passwords and signatures."""
        return self._at if isinstance(self._at, str) else self._at.url

    def pinned(self) -> tuple[Snapshot, Pin]:
        """Open the snapshot, as :func:`~hurray_arrow.open_snapshot`, and say how to come back to this version of it."""
        source = open_place(self._at)
        try:
            tail = read_tail(source)
            snapshot = snapshot_of(source, tail)
        except BaseException:
            source.close()
            raise
        # What lies between the last pages and the end is at hand too, and would be a request of its own.
        small = max((_pages_end(row) for row in tail.index.rows), default=tail.offset)
        start = small if source.size - small <= MOST_TAIL_BYTES else tail.offset
        size = source.size - start
        carried = None
        if not source.is_mapped and size <= MOST_TAIL_BYTES:
            carried = source.read(start, size).to_pybytes()
        return snapshot, Pin(self, Known(source.version, size, carried), tail.metadata["id"])

    def reopened(self, known: Known) -> Snapshot:
        """Open what is known already; see :meth:`Pin.open`."""
        return open_source(open_place(self._at, known=known))

    def __reduce__(self) -> tuple[type[SnapshotPlace], tuple[str, Mapping[str, Any]]]:
        return type(self), (self.path, self.how)


def _pages_end(row: IndexRow) -> int:
    return row.block.end if row.pages_offset is None else row.pages_offset + (row.pages_bytes or 0)


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot in the version that somebody listed it in.

    Parameters
    ----------
    place
        Where it lies.
    known
        Version, and the end of the file where it is short.
    snapshot_id
        The metadata's ``id``, which every writing makes anew.
    """

    place: SnapshotPlace
    known: Known = field(repr=False)
    snapshot_id: str

    def lighter(self) -> Pin:
        """Return the pin without the end of the file."""
        return replace(self, known=self.known._replace(tail=None))

    def open(self) -> Snapshot:
        """Open the snapshot again: no request, or one where its end is long.

        Raises
        ------
        SnapshotChangedError
            It was replaced or deleted since it was listed; also later, when something is read.
        FileNotFoundError, PermissionError, SnapshotError
            As :func:`~hurray_arrow.open_snapshot`.
        """
        snapshot = self.place.reopened(self.known)
        if snapshot.metadata["id"] != self.snapshot_id:
            snapshot.close()
            raise SnapshotChangedError("it was overwritten since it was listed", url=self.place.url)
        return snapshot
