"""Snapshots in sealed memory, and how one goes to another process.

Spec: snapshot format, section 5, "share"; unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from hurray_arrow.errors import SnapshotIncompleteError, SnapshotMismatchError
from hurray_arrow.share.memory_file import MemoryFile, check_sealed
from hurray_arrow.snapshot.files import FileRange
from hurray_arrow.snapshot.opening import open_source
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.writer import DEFAULT_PAGE_ALIGN_BYTES, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor

#: What goes with the descriptor: who speaks, and the size of the snapshot in bytes.
_MESSAGE = struct.Struct("<8sQ")
_GREETING = b"hurraySM"
#: A peer may attach more descriptors than one; those are taken too, to be closed.
_MAX_DESCRIPTORS = 16


class SealedSnapshot:
    """A snapshot in memory that nobody can change, cut or grow any more, its publisher included.

    It has no name. The memory goes when the last descriptor and the last mapping of it go, in whichever process.

    Parameters
    ----------
    descriptor
        A sealed memory file; this object closes it.

    Raises
    ------
    SnapshotMismatchError
        It is not sealed (``.field`` is ``"seals"``).
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        check_sealed(descriptor)
        self.size_bytes = os.fstat(descriptor).st_size

    def fileno(self) -> int:
        """Return the descriptor, for a child process (``pass_fds``) or a protocol of one's own.

        Returns
        -------
        int
            It stays this object's to close.

        Raises
        ------
        ValueError
            The object is closed.
        """
        if not self._close.alive:
            raise ValueError("the sealed snapshot is closed")
        return self._descriptor

    def send(self, sock: socket.socket) -> None:
        """Hand the snapshot to the process at the other end of a Unix socket; no page is copied.

        The receiver has its own descriptor: this object, the socket and this process may go at once.

        Parameters
        ----------
        sock
            A connected Unix socket.

        Raises
        ------
        ValueError
            The socket is of another family, or the object is closed.
        OSError
            The peer is gone.
        """
        if sock.family != socket.AF_UNIX:
            raise ValueError(f"{sock.family.name}: descriptors go through Unix sockets only")
        message = _MESSAGE.pack(_GREETING, self.size_bytes)
        sent = socket.send_fds(sock, [message], [self.fileno()])
        # Nothing more is sent where all went: a receiver that has everything may be gone, and even no bytes then fail.
        if sent < len(message):
            sock.sendall(message[sent:])

    def open(self, *, expect: Mapping[str, Any] | None = None, trusted: bool = False) -> Snapshot:
        """Open it in this process; as :func:`open_sealed`."""
        return open_sealed(self.fileno(), expect=expect, trusted=trusted)

    def close(self) -> None:
        """Close the descriptor; who maps or received the snapshot keeps it."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"descriptor {self._descriptor}" if self._close.alive else "closed"
        return f"<SealedSnapshot of {self.size_bytes} bytes, {state}>"


def publish(
    tensors: Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    page_align_bytes: int = DEFAULT_PAGE_ALIGN_BYTES,
    checksums: bool = True,
    partial: bool = False,
    sanitize: bool = False,
) -> SealedSnapshot:
    """Write tensors into memory and seal it against shrinking, growing and writing.

    Parameters
    ----------
    tensors
        The tensors in snapshot order; their pages are copied once, into the memory that is shared. To write pages
        there in the first place, see :func:`allocate`.
    metadata, page_align_bytes, checksums, partial, sanitize
        As of :func:`hurray_arrow.write_snapshot`.

    Returns
    -------
    SealedSnapshot
        Its descriptor and size; ``send(sock)`` hands it to another process.

    Raises
    ------
    InvariantError, SnapshotError, ValueError
        As :func:`hurray_arrow.write_snapshot`; nothing of the memory stays.
    UnsupportedError
        The system has no memory files.

    Examples
    --------
    >>> with ha.share.publish([keys, values]) as published:
    ...     ha.share.open_sealed(published.fileno()).read(kv_role="key").equals(keys)
    True
    """
    output = MemoryFile()
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
    return SealedSnapshot(output.take_descriptor())


def receive(sock: socket.socket, *, expect: Mapping[str, Any] | None = None, trusted: bool = False) -> Snapshot:
    """Take the snapshot that a process at the other end of a Unix socket sends.

    Parameters
    ----------
    sock
        A connected Unix socket. Its timeout holds.
    expect, trusted
        As of :func:`hurray_arrow.open_snapshot`.

    Returns
    -------
    Snapshot
        Like any other. Its pages are the sender's memory, mapped read-only; they stay valid when the snapshot, the
        socket and the sender are gone, and nobody can change them or cut them away.

    Raises
    ------
    SnapshotIncompleteError
        The peer closed the socket first.
    SnapshotMismatchError
        ``.field`` says what is wrong: ``"message"`` (no snapshot was sent), ``"descriptors"`` (not exactly one came
        along), ``"seals"``, ``"size_bytes"``, or a field of ``expect``.
    SnapshotCorruptError, UnsupportedError
        As :func:`hurray_arrow.open_snapshot`.
    """
    descriptors, size_bytes = _receive_descriptors(sock)
    try:
        if len(descriptors) != 1:
            raise SnapshotMismatchError(field="descriptors", expected=1, found=len(descriptors))
        return open_sealed(descriptors[0], size_bytes=size_bytes, expect=expect, trusted=trusted)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def open_sealed(
    descriptor: int,
    *,
    size_bytes: int | None = None,
    expect: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> Snapshot:
    """Open the snapshot in a sealed memory file, for instance one that a parent process left open.

    Parameters
    ----------
    descriptor
        The memory file; it stays the caller's.
    size_bytes
        The size that it has to have.
    expect, trusted
        As of :func:`hurray_arrow.open_snapshot`.

    Returns
    -------
    Snapshot
        As of :func:`receive`.

    Raises
    ------
    SnapshotMismatchError, SnapshotIncompleteError, SnapshotCorruptError, UnsupportedError
        As :func:`receive`.
    """
    check_sealed(descriptor)
    found = os.fstat(descriptor).st_size
    if size_bytes not in (None, found):
        raise SnapshotMismatchError(field="size_bytes", expected=size_bytes, found=found)
    return open_source(FileRange.of_descriptor(descriptor, url="sealed memory"), expect=expect, trusted=trusted)


def _receive_descriptors(sock: socket.socket) -> tuple[list[int], int]:
    if not isinstance(sock, socket.socket):
        raise TypeError(f"sock: {type(sock).__name__}, expected a connected Unix socket")
    message, descriptors, flags, _ = socket.recv_fds(
        sock, _MESSAGE.size, _MAX_DESCRIPTORS, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    )
    try:
        while len(message) < _MESSAGE.size:
            more = sock.recv(_MESSAGE.size - len(message))
            if not more:
                raise SnapshotIncompleteError(f"the peer closed after {len(message)} bytes of a hand-over")
            message += more
        greeting, size_bytes = _MESSAGE.unpack(message)
        if greeting != _GREETING:
            raise SnapshotMismatchError(field="message", expected=_GREETING, found=greeting)
        if flags & socket.MSG_CTRUNC:
            raise SnapshotMismatchError(field="descriptors", expected=1, found=f"more than {len(descriptors)}")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return list(descriptors), int(size_bytes)
