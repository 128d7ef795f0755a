"""What lies under a URL: which files, how large, and what changes when one of them is replaced."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import fsspec

from hurray_arrow.snapshot.files import PathLike, Source
from hurray_arrow.snapshot.listing import find_files, glob_files
from hurray_arrow.snapshot.remote import open_range
from hurray_arrow.snapshot.sets import is_glob
from hurray_arrow.snapshot.stores import Place, locate, shown

#: Names of files under a folder or prefix that are taken for snapshots.
PATTERN = "*.arrow"
#: What stores call that which changes whenever the content does, the surest first.
_TAGS = ("ETag", "etag", "e_tag", "generation", "content_hash", "md5", "checksum")
#: What only says when a file was written, and which file of that name it is.
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "ino")


class Listed(NamedTuple):
    """One file under a URL.

    Parameters
    ----------
    url
        Its path or URL; a character that is no text is written as an escape.
    file_bytes
        Its size, ``None`` where the store does not say.
    identity
        What changes when the file is replaced: its entity tag, else its time and number. ``None`` where the store says
        nothing of the kind, and nobody can tell whether it is still the same.
    path, options
        What opens it.
    """

    url: str
    file_bytes: int | None
    identity: str | None
    path: str
    options: Mapping[str, Any]

    def open(self) -> Source:
        """Open it for reading in ranges, into memory of ours: a mapping would end the process if somebody cut it."""
        return open_range(self.path, **self.options, mapped=False)


class Folder:
    """A folder, a bucket's prefix, a glob, or one file: what snapshots are looked for under.

    Parameters
    ----------
    url
        A path or URL; ``*``, ``?`` and ``[…]`` make it a glob.
    storage_options, filesystem
        As in :func:`~hurray_arrow.open_snapshot`.
    pattern
        Names of files that count under a folder; of a glob everything counts that it matches.

    Attributes
    ----------
    url
        As catalogues name it: absolute, and without passwords.

    Raises
    ------
    MissingDependencyError, ValueError
        As :func:`~hurray_arrow.open_snapshot`.
    """

    def __init__(
        self,
        url: PathLike,
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
        pattern: str = PATTERN,
    ) -> None:
        self._pattern = pattern
        self._is_glob = is_glob(url)
        # In a chain of filesystems only the outermost knows the path.
        by_url = filesystem is None and "::" not in os.fspath(url)
        place = locate(url, storage_options=storage_options, filesystem=filesystem)
        self.url = url_of(place)
        self._place: str | Place = place if isinstance(place, Place) else _absolute(place)
        self._named_by_url = by_url
        self._options: Mapping[str, Any] = {}
        if isinstance(place, Place):
            self._options = {"storage_options": storage_options} if by_url else {"filesystem": place.filesystem}

    def files(self) -> list[Listed]:
        """Return the files, by URL; names that begin with a dot are those of unfinished ones and count for nothing.

        Raises
        ------
        FileNotFoundError
            There are none.
        PermissionError, SnapshotError
            As the system or the store says.
        """
        found = glob_files(self._place) if self._is_glob else find_files(self._place)
        files = [self._listed(path, info) for path, info in found.items() if self._counts(path)]
        if not files:
            raise FileNotFoundError(errno.ENOENT, "no snapshot is there", self.url)
        return sorted(files, key=lambda file: file.url)

    def _counts(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if not name or name.startswith("."):
            return False
        # A file that is named itself counts, whatever its name is.
        named = self._place.path if isinstance(self._place, Place) else self._place
        return self._is_glob or path == named or fnmatchcase(name, self._pattern)

    def _listed(self, path: str, info: Mapping[str, Any]) -> Listed:
        opened = url = path
        if isinstance(self._place, Place):
            full = self._place.filesystem.unstrip_protocol(path)
            opened, url = full if self._named_by_url else path, shown(full)
        size = info.get("size")
        return Listed(_text(url), None if size is None else int(size), _identity(info), opened, self._options)


def url_of(place: str | Place) -> str:
    """Return the one name of a place that catalogues use: absolute, without passwords, and text whatever it is."""
    if isinstance(place, Place):
        return _text(shown(place.filesystem.unstrip_protocol(place.path)))
    return _text(_absolute(place))


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - a glob is no path, and Path keeps its ".."


def _identity(info: Mapping[str, Any]) -> str | None:
    tags = [f"{name}={info[name]}" for name in _TAGS if info.get(name)]
    times = [f"{name}={info[name]}" for name in _TIMES if info.get(name)]
    return (tags[0] if tags else " ".join(times)) or (f"created={info['created']}" if info.get("created") else None)


def _text(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
