"""What one snapshot adds to a catalogue: its rows, and the digests of the prefixes that it can restore.

One request for its end, one read per kv_group for its tables; pages are never read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.catalog.columns import Rows, row_of_error, rows_of_snapshot
from hurray_arrow.catalog.digests import PrefixHasher
from hurray_arrow.catalog.listing import Listed
from hurray_arrow.errors import HurrayArrowError, MissingDependencyError
from hurray_arrow.prefixes import stored_prefixes
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.opening import open_source
from hurray_arrow.snapshot.reader import Snapshot


class Prefixes(NamedTuple):
    """Digests of prefixes and what has them, row by row.

    Parameters
    ----------
    high, low
        uint64: the two halves of each digest.
    file_index, sequence
        uint32: which file of the catalogue, which sequence of its snapshot.
    num_tokens
        uint64: how long the prefix is.
    """

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    file_index: npt.NDArray[np.uint32]
    sequence: npt.NDArray[np.uint32]
    num_tokens: npt.NDArray[np.uint64]

    @classmethod
    def joined(cls, parts: list[Prefixes]) -> Prefixes:
        """Return the rows of all parts in new memory, one part after the other."""
        columns: list[Any] = [np.concatenate(column) for column in zip(NONE, *parts, strict=True)]
        return cls(*columns)

    def taken(self, which: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Prefixes:
        """Return some rows in new memory."""
        columns: list[Any] = [column[which] for column in self]
        return Prefixes(*columns)


NONE = Prefixes(
    np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32),
    np.empty(0, np.uint64),
)  # fmt: skip


class Contents(NamedTuple):
    """What was read of one file.

    Parameters
    ----------
    file
        The file.
    rows
        Its rows, ``file_index`` 0.
    prefixes
        Its prefixes, ``file_index`` 0.
    error
        Why there is nothing but one row, ``None`` where it was read.
    requests, fetched_bytes
        Ranges that were read, and their bytes.
    """

    file: Listed
    rows: pa.RecordBatch
    prefixes: Prefixes = NONE
    error: Exception | None = None
    requests: int = 0
    fetched_bytes: int = 0


def read_contents(file: Listed, *, rows: Rows, hasher: PrefixHasher | None) -> Contents | None:
    """Read what a catalogue holds of one file.

    Parameters
    ----------
    file
        The file.
    rows
        What rows are about.
    hasher
        Makes the digests; ``None`` for none.

    Returns
    -------
    Contents or None
        With ``error`` where the file is damaged, foreign or cannot be read; ``None`` where it vanished since it was
        listed.

    Raises
    ------
    MissingDependencyError
        What reads the store is not installed, so that no file of it can be read.
    """
    source: Source | None = None
    try:
        source = file.open()
        with open_source(source) as snapshot:
            found = rows_of_snapshot(file, snapshot, rows=rows)
            prefixes = NONE if hasher is None else prefixes_of(snapshot, hasher)
    except FileNotFoundError:
        return None
    except MissingDependencyError:
        raise
    except (HurrayArrowError, OSError) as error:
        failed = Contents(file, row_of_error(file, error, rows=rows), error=error)
        return failed if source is None else _counted(failed, source)
    return _counted(Contents(file, found, prefixes), source)


def _counted(contents: Contents, source: Source) -> Contents:
    return contents._replace(requests=source.requests, fetched_bytes=source.fetched_bytes)


def prefixes_of(snapshot: Snapshot, hasher: PrefixHasher) -> Prefixes:
    """Digest every prefix that the snapshot can restore: each whole step, and the longest of each sequence.

    What several sequences begin with counts as the first one's, as it does for :meth:`Snapshot.match_prefix`.
    """
    parts = []
    for stored in stored_prefixes(snapshot.prefix_groups(), step_tokens=hasher.step_tokens):
        digests = hasher.digests(
            stored.token_ids,
            stored.lengths.tolist(),
            adapter=stored.adapter,
            tenant=stored.tenant,
            media=stored.media,
        )
        size = len(digests)
        parts.append(
            Prefixes(
                digests[:, 0],
                digests[:, 1],
                np.zeros(size, np.uint32),
                np.full(size, stored.sequence, np.uint32),
                stored.lengths.astype(np.uint64),
            )
        )
    found = Prefixes.joined(parts)
    order = np.lexsort((found.sequence, found.low, found.high))
    found = found.taken(order)
    first = np.ones(len(order), np.bool_)
    first[1:] = (found.high[1:] != found.high[:-1]) | (found.low[1:] != found.low[:-1])
    return found.taken(first)
