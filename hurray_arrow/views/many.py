"""Views of many snapshots as one stream, read by a few threads in one process.

Spec: house rules, "Threads, processes, files".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa

from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.views.plan import Errors, Plan, Skipped, plan_snapshots, read_pieces
from hurray_arrow.views.question import Question

if TYPE_CHECKING:
    import pyarrow.compute as pc

#: Bytes of batches that a thread reads before somebody has taken them.
_AHEAD_BYTES = 16 << 20


def read_snapshots(
    urls: PathLike | Iterable[PathLike],
    view: str = "tensors",
    *,
    columns: Iterable[str] | None = None,
    filter: pc.Expression | None = None,  # noqa: A002  pyarrow's and Ray's name for it
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    errors: Errors = "raise",
    skipped: list[Skipped] | None = None,
    threads: int = 4,
    **options: Any,
) -> pa.RecordBatchReader:
    """Read a view of many snapshots as one table, while it is consumed: some snapshots at a time, in their order.

    The indexes are read at once. Everything else is read when it is its turn, and only what columns, filters and the
    condition need: tensors that these leave out are not touched.

    Parameters
    ----------
    urls
        A glob (``*``, ``?``, ``[…]``) such as ``s3://bucket/caches/*.arrow``, or paths and URLs, in any order.
    view
        ``"tensors"``, ``"sequences"``, ``"pages"`` or ``"tokens"``.
    columns
        Which columns, in which order; ``None`` for those that :func:`~hurray_arrow.views.open_view` gives. ``url`` is
        the first of them and says which snapshot a row is of.
    filter
        A condition on rows, over any of the view's columns and ``url``.
    storage_options, filesystem
        As of :func:`~hurray_arrow.open_snapshot`.
    errors
        ``"raise"``, or ``"skip"`` to leave out what is missing, incomplete, corrupt, replaced meanwhile or of another
        version of the format, as a whole or from where it could not be read any further. A store that fails or forbids
        is an error all the same.
    skipped
        A list that takes what is left out; ``"skip"`` needs one. It is complete when the reader is at its end.
    threads
        Pieces that are read at the same time.
    **options
        The filters ``layer_index``, ``layer_name``, ``kv_role``, ``kv_group``, ``component`` and ``sequence``, and the
        view's own ``values`` and ``per_head``, as of :func:`~hurray_arrow.views.open_view`. Where a snapshot has no
        such sequence, it has no rows.

    Returns
    -------
    pyarrow.RecordBatchReader
        In new memory, about 200 MiB for each thread at most. Rows come in the order of the snapshots; a tensor of more
        than 64 MiB gives those of its tokens together that lie in neighbouring pages.

    Raises
    ------
    FileNotFoundError, PermissionError, SnapshotError, UnsupportedError, ValueError
        As :func:`~hurray_arrow.open_snapshot` and :func:`~hurray_arrow.views.open_view`, at once for what the indexes
        say, and from the reader for what is found later.
    UnsupportedError
        Snapshots whose values have other shapes or types than the others'.
    """
    if (errors == "skip") != (skipped is not None):
        raise ValueError("errors='skip' and skipped= belong together: what is left out has to be listed somewhere")
    question = Question.of(view, columns=columns, condition=filter, **options)
    if threads < 1:
        raise ValueError(f"{threads} threads, expected at least 1")
    plan = plan_snapshots(urls, question, storage_options=storage_options, filesystem=filesystem, errors=errors)
    if skipped is not None:
        skipped.extend(plan.skipped)
    skip = None if skipped is None else _once(skipped)
    return pa.RecordBatchReader.from_batches(plan.schema, _batches(plan, threads=threads, skip=skip))


def _once(skipped: list[Skipped]) -> Callable[[Skipped], None]:
    """Return what adds to a list each snapshot once: several pieces may find out the same."""
    lock = Lock()

    def skip(found: Skipped) -> None:
        with lock:
            if all(each.url != found.url for each in skipped):
                skipped.append(found)

    return skip


def _batches(plan: Plan, *, threads: int, skip: Callable[[Skipped], None] | None) -> Iterator[pa.RecordBatch]:
    remaining = deque(plan.pieces)
    under_way: deque[tuple[Iterator[pa.RecordBatch], Future[list[pa.RecordBatch]]]] = deque()
    pool = ThreadPoolExecutor(threads, "hurray-arrow-read")
    try:
        while remaining or under_way:
            while remaining and len(under_way) < threads:
                stream = read_pieces(plan.question, [remaining.popleft()], skip=skip)
                under_way.append((stream, pool.submit(_some, stream)))
            stream, job = under_way[0]
            found = job.result()
            if not found:
                under_way.popleft()
                continue
            under_way[0] = (stream, pool.submit(_some, stream))
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


def _some(stream: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Read on until there is something to take; nothing is the end."""
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in stream:
        found.append(batch)
        size += batch.nbytes
        if size >= _AHEAD_BYTES:
            break
    return found
