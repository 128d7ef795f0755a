"""Which files lie under a folder, a prefix or a glob: all of them, or an error where somebody could not look.

fsspec's own ``find`` and ``glob``, and Python's, leave out every folder that cannot be listed without a word: a part of
a set or of a catalogue would be missing, and nobody would know.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from stat import S_ISDIR
from typing import Any, TypeAlias, TypeVar

from fsspec.asyn import sync_wrapper
from fsspec.utils import glob_translate

from hurray_arrow.snapshot.stores import Place, tried

#: What a filesystem says of a file: its size, its type, and what changes when it is replaced.
Info: TypeAlias = Mapping[str, Any]
Answer = TypeVar("Answer")

_S3, _GCS, _AZURE = "s3fs.core.S3FileSystem", "gcsfs.core.GCSFileSystem", "adlfs.spec.AzureBlobFileSystem"
_HTTP = "fsspec.implementations.http.HTTPFileSystem"


def find_files(place: str | Place) -> dict[str, Info]:
    """Return every file under a folder or prefix, or the one file that it is; links to folders are not followed.

    Raises
    ------
    FileNotFoundError
        There is no such folder or file.
    PermissionError, SnapshotError
        As the system or the store says, whichever folder it is about.
    """
    return _folders(place).below(_path(place))


def glob_files(place: str | Place) -> dict[str, Info]:
    """Return every file whose path a glob matches.

    ``*``, ``?`` and ``[…]`` stand for parts of one name, ``**`` for any number of folders. As in a shell, a name that
    begins with a dot has to be asked for by one: what is being written beside its name does not count.

    Raises
    ------
    PermissionError, SnapshotError
        As the system or the store says of a folder that the glob leads to. Where nothing is, nothing matches.
    ValueError
        ``**`` together with other characters.
    """
    folders, pattern = _folders(place), _path(place)
    first = folders.MAGIC.search(pattern)
    start = pattern.rfind("/", 0, first.start() if first else None) + 1
    root, parts = pattern[:start], pattern[start:].split("/")
    if any("**" in part for part in parts):
        return _match_tree(folders, root, pattern)
    reached = [root]
    for part in parts[:-1]:
        if folders.MAGIC.search(part):
            found = [each for folder in reached for each in _match_names(folders, folder, part)]
            reached = [path for path, info in found if info["type"] == "directory"]
        else:
            reached = [_joined(folder, part) for folder in reached]
    step = _match_names if folders.MAGIC.search(parts[-1]) else _named
    found = [each for folder in reached for each in step(folders, folder, parts[-1])]
    return {path: info for path, info in found if info["type"] != "directory"}


def _match_tree(folders: _Folders, root: str, pattern: str) -> dict[str, Info]:
    wanted = re.compile(glob_translate(pattern))
    part = pattern.rpartition("/")[2]
    try:
        found = folders.below(root)
    except FileNotFoundError:
        return {}
    return {path: info for path, info in found.items() if wanted.match(path) and _is_shown(path, part)}


def _match_names(folders: _Folders, folder: str, part: str) -> Iterator[tuple[str, Info]]:
    for path, info in folders.listed(folder, part):
        name = path.rpartition("/")[2]
        if path != folder.rstrip("/") and fnmatchcase(name, part) and _is_shown(path, part):
            yield path, info


def _is_shown(path: str, part: str) -> bool:
    return part.startswith(".") or not path.rpartition("/")[2].startswith(".")


def _named(folders: _Folders, folder: str, part: str) -> Iterator[tuple[str, Info]]:
    path = _joined(folder, part)
    try:
        yield path, folders.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _joined(folder: str, name: str) -> str:
    return f"{folder}{name}" if not folder or folder.endswith("/") else f"{folder}/{name}"


def _path(place: str | Place) -> str:
    return place.path if isinstance(place, Place) else place


def _folders(place: str | Place) -> _Folders:
    return _StoreFolders(place) if isinstance(place, Place) else _DiskFolders()


class _Folders(ABC):
    """Folders that can be listed."""

    MAGIC = re.compile(r"[*?[]")

    @abstractmethod
    def contents(self, folder: str, part: str) -> Iterable[tuple[str, Info]]:
        """Return what lies in a folder, at least all whose name a part of a glob matches; a file is its own content."""

    @abstractmethod
    def info(self, path: str) -> Info:
        """Say what a path is."""

    def listed(self, folder: str, part: str = "") -> Iterable[tuple[str, Info]]:
        """Return the contents of a folder, and nothing of one that is no longer there."""
        try:
            return list(self.contents(folder, part))
        except FileNotFoundError:
            return []

    def below(self, root: str) -> dict[str, Info]:
        """Return all files below a folder."""
        try:
            first = list(self.contents(root, ""))
        except FileNotFoundError:
            first = []
        if not first and not root.endswith("/"):
            # Some list nothing for a path that is a file itself.
            info = self.info(root)
            first = [(root, info)] if info["type"] != "directory" else []
        todo, files = [first], {}
        while todo:
            for path, info in todo.pop():
                if info["type"] != "directory":
                    files[path] = info
                elif path != root and not info.get("islink"):
                    todo.append(list(self.listed(path)))
        return files


class _DiskFolders(_Folders):
    """The system's."""

    def contents(self, folder: str, part: str) -> Iterable[tuple[str, Info]]:
        try:
            with os.scandir(folder or ".") as found:
                names = [entry.name for entry in found]
        except NotADirectoryError:
            return [(folder, self.info(folder))]
        wanted = [name for name in names if not part or fnmatchcase(name, part)]
        return self._looked_at(_joined(folder, name) for name in wanted)

    def _looked_at(self, paths: Iterable[str]) -> Iterator[tuple[str, Info]]:
        for path in paths:
            try:
                yield path, self.info(path)
            except FileNotFoundError:
                # It went between the two questions, as files do that are still being written.
                continue

    def info(self, path: str) -> Info:
        islink = os.path.islink(path)  # noqa: PTH114 - a path as the caller wrote it
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            # A link that leads nowhere is there, and is to be found when it is opened.
            status = os.lstat(path)
        kind = "directory" if S_ISDIR(status.st_mode) else "file"
        facts = {"size": status.st_size, "mtime": status.st_mtime, "ino": status.st_ino}
        return {"name": path, "type": kind, "islink": islink, **facts}


class _StoreFolders(_Folders):
    """A filesystem's of fsspec's."""

    def __init__(self, place: Place) -> None:
        self._place, self._kinds = place, place.kinds()
        if _HTTP in self._kinds:
            # A question mark begins the query of an address.
            self.MAGIC = re.compile(r"[*[]")
        place.filesystem.invalidate_cache()

    def contents(self, folder: str, part: str) -> Iterable[tuple[str, Info]]:
        filesystem, stem = self._place.filesystem, self._stem(part)
        if stem and _S3 in self._kinds:
            # s3fs's find() takes a depth and the beginning of names only since 2026.
            look = sync_wrapper(filesystem._lsdir, filesystem)  # noqa: SLF001
            infos = self._asked(look, folder.rstrip("/"), prefix=stem)
            # Older ones keep what was asked for as if it were all.
            filesystem.invalidate_cache(folder.rstrip("/"))
        else:
            by_stem = {"prefix": stem} if stem and _GCS in self._kinds else {}
            infos = self._asked(filesystem.ls, folder, detail=True, **by_stem)
        return ((info["name"].rstrip("/"), info) for info in infos)

    def info(self, path: str) -> Info:
        found: Info = self._asked(self._place.filesystem.info, path)
        return found

    def below(self, root: str) -> dict[str, Info]:
        if not self._kinds & {_S3, _GCS, _AZURE}:
            return super().below(root)
        # One request for a thousand objects, whatever folders they are in; these raise what fails.
        found = self._asked(self._place.filesystem.find, root, detail=True)
        # Of a path that is an object itself some say nothing but that.
        infos = found.items() if isinstance(found, dict) else ((path, None) for path in found)
        files = {path: info or self.info(path) for path, info in infos}
        if not files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._place.url)
        return {path: info for path, info in files.items() if info["type"] != "directory"}

    def _stem(self, part: str) -> str:
        """Return how the names begin that a part of a glob matches: these stores look for that themselves."""
        first = self.MAGIC.search(part)
        return part[: first.start()] if first else part

    def _asked(self, work: Callable[..., Any], path: str, **options: Any) -> Any:
        place = self._place
        return tried(lambda: work(path, **options), url=place.url, doing="list the snapshots", tries=place.tries)
