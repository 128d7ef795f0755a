"""Bytes to and from pipes, sockets and files that cannot seek: all of them, or an error.

Spec: snapshot format, section 5, "Every sink loops until all is written".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hurray_arrow.errors import SnapshotError

#: Headers and small columns go out together up to this, pages by themselves.
_GATHERED_BYTES = 64 << 10
_BLOCKED = "it does not wait: give a blocking one"


class PipeSink:
    """Write whole buffers to a binary file object or a socket, however little it takes at a time.

    Parameters
    ----------
    sink
        Has ``write``, or ``send`` as sockets do; it stays open.

    Attributes
    ----------
    position
        Bytes taken.
    """

    def __init__(self, sink: Any) -> None:
        self.position = 0
        self._sink = sink
        write = getattr(sink, "write", None) or getattr(sink, "send", None)
        if not callable(write):
            raise TypeError(f"sink: {type(sink).__name__} has neither write() nor send()")
        self._write: Callable[[memoryview], Any] = write
        self._gathered = bytearray()

    def write(self, data: Any, /) -> int:
        """Take all of a bytes-like object; returns its length in bytes. Small ones are gathered until :meth:`drain`.

        Raises
        ------
        SnapshotError
            The sink does not say how many bytes it took, or takes none.
        """
        view = memoryview(data).cast("B")
        if len(view) + len(self._gathered) > _GATHERED_BYTES:
            self.drain()
        if len(view) > _GATHERED_BYTES:
            self._write_all(view)
        else:
            self._gathered += view
        self.position += len(view)
        return len(view)

    def drain(self) -> None:
        """Hand everything to the sink."""
        gathered, self._gathered = self._gathered, bytearray()
        self._write_all(memoryview(gathered))

    def flush(self) -> None:
        """Hand everything to the sink and flush it where it can be."""
        self.drain()
        flush = getattr(self._sink, "flush", None)
        if callable(flush):
            flush()

    def _write_all(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            count = self._write(view[done:])
            if type(count) is not int or not 0 < count <= len(view) - done:
                message = f"the sink says that it took {count!r} of {len(view) - done} bytes"
                raise SnapshotError(f"{message}; {_BLOCKED}" if count is None else message)
            done += count


class PipeSource:
    """Read exact numbers of bytes from a binary file object or a socket, and none behind them.

    Parameters
    ----------
    source
        Has ``readinto``, ``recv_into`` as sockets do, or ``read``; it stays open.

    Attributes
    ----------
    received_bytes
        How many bytes came so far.
    """

    def __init__(self, source: Any) -> None:
        self.received_bytes = 0
        into = getattr(source, "readinto", None) or getattr(source, "recv_into", None)
        read = getattr(source, "read", None)
        if callable(into):
            self._into: Callable[[memoryview], Any] = into
        elif callable(read):
            self._into = lambda view: _read_into(read, view)
        else:
            raise TypeError(f"source: {type(source).__name__} has neither readinto(), recv_into() nor read()")

    def read_into(self, view: memoryview) -> int:
        """Fill a buffer; returns how many bytes came before the source ended.

        Raises
        ------
        SnapshotError
            The source does not say how many bytes it gave.
        """
        done = 0
        while done < len(view):
            count = self._into(view[done:])
            if type(count) is not int or not 0 <= count <= len(view) - done:
                message = f"the source says that it gave {count!r} of {len(view) - done} bytes"
                raise SnapshotError(f"{message}; {_BLOCKED}" if count is None else message)
            if not count:
                break
            done += count
        self.received_bytes += done
        return done


def _read_into(read: Callable[[int], Any], view: memoryview) -> int | None:
    data = read(len(view))
    if data is None:
        return None
    if len(data) > len(view):
        raise SnapshotError(f"the source gave {len(data)} bytes, {len(view)} were asked of it")
    view[: len(data)] = data
    return len(data)
