"""The threads of one open snapshot or set: begun when they are needed, and anew in a forked process.

Spec: house rules, "Threads, processes, files".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from hurray_arrow.errors import SnapshotError

Result = TypeVar("Result")


class Workers:
    """Threads that do the parts of a read; may be asked from many threads.

    Parameters
    ----------
    count
        How many at most.
    name
        What the threads are called.
    url
        What errors call the snapshot.
    """

    def __init__(self, count: int, name: str, *, url: str) -> None:
        self._count, self._name, self._url = count, name, url
        # A forked child has this object and none of its threads, and would wait for them forever.
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._is_closed = False

    def submit(self, work: Callable[..., Result], *arguments: Any, **options: Any) -> Future[Result]:
        """Have a part done by a thread.

        Raises
        ------
        SnapshotError
            The snapshot is closed.
        """
        pool = self._pools.get(os.getpid())
        if pool is None:
            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(self._count, self._name))
        if self._is_closed:
            raise self._closed()
        try:
            return pool.submit(work, *arguments, **options)
        except RuntimeError as error:
            raise self._closed() from error

    def results(self, parts: Iterable[Future[Result]]) -> list[Result]:
        """Wait for parts and return what they gave, in their order; raises what one of them raised.

        Raises
        ------
        SnapshotError
            The snapshot was closed meanwhile.
        """
        try:
            return [part.result() for part in parts]
        except CancelledError as error:
            raise self._closed() from error

    def close(self) -> None:
        """Let the threads go; what they have not begun is not done any more."""
        self._is_closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _closed(self) -> SnapshotError:
        return SnapshotError("the snapshot is closed", url=self._url)
