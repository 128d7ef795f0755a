"""A memory file to write a snapshot into, and the seals that make it unchangeable.

Spec: Linux memfd_create(2), fcntl(2) "File Sealing".
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any, BinaryIO

from hurray_arrow.errors import SnapshotError, SnapshotMismatchError, UnsupportedError

#: By name, as messages list them: nobody may shrink, grow or write the file, or add seals.
SEALS = {
    "grow": getattr(fcntl, "F_SEAL_GROW", 0),
    "seal": getattr(fcntl, "F_SEAL_SEAL", 0),
    "shrink": getattr(fcntl, "F_SEAL_SHRINK", 0),
    "write": getattr(fcntl, "F_SEAL_WRITE", 0),
}
#: Named in fcntl.h and not in Python's os: no program is ever started from it.
_MFD_NOEXEC_SEAL = 0x8
_BUFFER_BYTES = 1 << 20


class MemoryFile:
    """Memory with a descriptor and no name; it goes when its last descriptor and mapping go.

    Raises
    ------
    UnsupportedError
        The system has no memory files (they are Linux's).
    """

    def __init__(self) -> None:
        self.path = "memory file"
        self._file: BinaryIO = os.fdopen(new_descriptor(), "w+b", buffering=_BUFFER_BYTES)
        self.position = 0

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object; returns its length in bytes."""
        written = self._file.write(data)
        self.position += written
        return written

    def skip(self, size_bytes: int) -> None:
        """Leave a hole: it reads as zeros, and takes memory when somebody writes into it."""
        self._file.seek(size_bytes, os.SEEK_CUR)
        self.position += size_bytes

    def overwrite(self, data: Any, offset: int) -> None:
        """Write a bytes-like object over what lies at an offset; what comes next goes to the end as before."""
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self.fileno(), view, offset)
            view, offset = view[written:], offset + written

    def lay_out(self) -> None:
        """Give the file the size that was written so far, a hole at its end included."""
        self._file.flush()
        os.ftruncate(self.fileno(), self.position)

    def publish(self) -> None:
        """Seal what was written.

        Raises
        ------
        SnapshotError
            The file has another size than was written, or is mapped for writing somewhere: the system's EBUSY.
        """
        self._file.flush()
        size = os.fstat(self.fileno()).st_size
        if size != self.position:
            raise SnapshotError(f"{size} bytes in memory, {self.position} were written", url=self.path)
        try:
            fcntl.fcntl(self.fileno(), fcntl.F_ADD_SEALS, sum(SEALS.values()))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise SnapshotError(
                "the system says EBUSY: the pages are mapped for writing, perhaps by a forked process, or a device "
                "still writes into them; a snapshot is sealed against writing or not at all",
                url=self.path,
            ) from error

    def discard(self) -> None:
        """Give the memory back."""
        # The buffered writer would flush into memory that is going away.
        self._file.raw.close()  # type: ignore[attr-defined]  # BinaryIO does not name the raw file

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._file.fileno()

    def take_descriptor(self) -> int:
        """Return a descriptor of the same memory that belongs to the caller, and close this file."""
        descriptor = os.dup(self.fileno())
        self._file.close()
        return descriptor


def new_descriptor() -> int:
    """Return the descriptor of a new, empty memory file that can be sealed and is closed on exec.

    Raises
    ------
    UnsupportedError
        The system has no memory files.
    """
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError("memory files need Linux; publish_file() shares a named file instead")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("hurray_arrow", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 6.3.
        return os.memfd_create("hurray_arrow", flags)


def check_sealed(descriptor: int) -> None:
    """Refuse a descriptor whose bytes somebody could still change, or cut away under a reader (SIGBUS).

    Raises
    ------
    SnapshotMismatchError
        ``.field`` is ``"seals"``.
    """
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        found = 0
    names = [name for name, bit in SEALS.items() if found & bit]
    if names != list(SEALS):
        raise SnapshotMismatchError(field="seals", expected=list(SEALS), found=names)
