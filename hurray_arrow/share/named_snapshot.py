"""Snapshots under a name in shared memory: for systems without memory files, and for readers that know only a path.

What no file can promise, a sealed memory file does: whoever may write the file can change it under its readers, and who
truncates it kills them.

Spec: snapshot format, section 5, "share"; flock(2).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hurray_arrow.errors import SnapshotError
from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.opening import open_snapshot
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.writer import DEFAULT_PAGE_ALIGN_BYTES, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor

_RAM_DISK = Path("/dev/shm")  # noqa: S108 - Linux's shared memory; names are random and files 0600
#: Names say nothing of what is inside.
_PREFIX, _SUFFIX = "hurray-", ".arrow"


class NamedSnapshot:
    """A snapshot file that is removed by who published it: on :meth:`close`, or when this object or its process ends.

    A process that is killed leaves the file behind; :func:`is_stale` tells by the lock that died with it.

    Attributes
    ----------
    path
        The file, for :func:`hurray_arrow.open_snapshot` in any process.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._close = weakref.finalize(self, _remove, path, lock, os.getpid())

    def open(self, *, expect: Mapping[str, Any] | None = None, trusted: bool = False) -> Snapshot:
        """Open it in this process; as :func:`hurray_arrow.open_snapshot`."""
        return open_snapshot(self.path, expect=expect, trusted=trusted)

    def close(self) -> None:
        """Remove the file; who has it open keeps it. A forked child only lets go."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<NamedSnapshot {str(self.path)!r}{'' if self._close.alive else ', removed'}>"


def publish_file(
    tensors: Iterable[BlockPagedTensor],
    *,
    folder: PathLike | None = None,
    metadata: Mapping[str, Any] | None = None,
    page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
    checksums: bool = True,
    partial: bool = False,
    sanitize: bool = False,
    mode: int = 0o600,
) -> NamedSnapshot:
    """Write tensors to a file with a random name that lives as long as its owner.

    Parameters
    ----------
    tensors
        The tensors in snapshot order.
    folder
        Where; ``None`` takes the system's shared memory, or its folder for temporary files where it has none.
    metadata, page_align_bytes, checksums, partial, sanitize, mode
        As of :func:`hurray_arrow.write_snapshot`.

    Returns
    -------
    NamedSnapshot
        The file's owner. The file has its name only when it is complete.

    Raises
    ------
    InvariantError, SnapshotError, ValueError, OSError
        As :func:`hurray_arrow.write_snapshot`; nothing is left.

    Examples
    --------
    >>> with ha.share.publish_file([keys, values]) as published:
    ...     ha.open_snapshot(published.path).read(kv_role="key").equals(keys)
    True
    """
    if folder is None:
        folder = _RAM_DISK if _RAM_DISK.is_dir() else tempfile.gettempdir()
    output = _OwnedFile(Path(folder) / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}", mode=mode)
    try:
        write_snapshot(
            output,
            tensors,
            metadata=metadata,
            page_align_bytes=page_align_bytes,
            checksums=checksums,
            partial=partial,
            sanitize=sanitize,
        )
    except BaseException:
        output.discard()
        raise
    return NamedSnapshot(output.path, output.lock)


def is_stale(path: PathLike) -> bool:
    """Say whether a file that :func:`publish_file` made, complete or half-written, has lost its owner.

    Parameters
    ----------
    path
        The file; any other that nobody has locked counts as stale.

    Returns
    -------
    bool
        Whether nobody holds its lock any more.

    Raises
    ------
    FileNotFoundError, PermissionError
        As the system says.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_stale(folder: PathLike | None = None) -> list[Path]:
    """Remove what killed publishers left in a folder: snapshots and half-written ones that have lost their owner.

    Parameters
    ----------
    folder
        As of :func:`publish_file`.

    Returns
    -------
    list of Path
        What was removed. Those who have it open keep it.
    """
    if folder is None:
        folder = _RAM_DISK if _RAM_DISK.is_dir() else tempfile.gettempdir()
    removed = []
    for pattern in (f"{_PREFIX}*{_SUFFIX}", f".{_PREFIX}*{_SUFFIX}.*.tmp"):
        for path in sorted(Path(folder).glob(pattern)):
            try:
                if is_stale(path):
                    path.unlink()
                    removed.append(path)
            except (FileNotFoundError, PermissionError):
                # Its owner, or another tidier, was faster; or it is another user's.
                continue
    return removed


class _OwnedFile(AtomicFile):
    """An atomic file with a lock on it from its first moment, which goes on with the file when it gets its name.

    The lock is on a descriptor that is only read: the owner keeps no way to write what it published.
    """

    def __init__(self, path: Path, *, mode: int) -> None:
        super().__init__(path, mode=mode)
        self.lock = os.open(self._temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not os.fstat(self.lock).st_nlink:
                raise SnapshotError("somebody removed the file as stale before it was locked", url=str(path))
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        super().discard()
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
    os.close(lock)
