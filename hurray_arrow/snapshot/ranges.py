"""Which byte ranges to ask a store for, when pages of a file are wanted and every request costs.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: int64 ``[pieces, 2]``: offset and size of each, in bytes, in file order.
Pieces = npt.NDArray[np.int64]

#: The model of a store that plans are compared by: it need not be exact to tell a good plan from a bad one.
FIRST_BYTE_SECONDS = 0.030
STREAM_BYTES_PER_SECOND = 100e6
STREAMS = 8
#: Longer ranges are cut, so that several streams carry them.
MAX_RANGE_BYTES = 8 << 20
DEFAULT_GAP_BYTES = 1 << 20
_ALMOST = 1.1
_GAPS_TRIED = (DEFAULT_GAP_BYTES, 0, 64 << 10, 256 << 10, 4 << 20, 16 << 20, 2**62)


def plan_ranges(pieces: Pieces, *, gap_bytes: int | None = None) -> Pieces:
    """Join pieces that lie close together into the ranges to ask for.

    Parameters
    ----------
    pieces
        What is wanted, without overlaps.
    gap_bytes
        Pieces this close are asked for in one range. ``None`` tries several and takes the plan with the fewest requests
        that is within a tenth of the least modelled time: 30 ms to the first byte, 100 MB/s a stream, 8 streams.

    Returns
    -------
    numpy.ndarray
        int64 ``[ranges, 2]``, offset and size; each begins and ends with a piece, and none is longer than 8 MiB and a
        piece.

    Raises
    ------
    ValueError
        ``gap_bytes`` below 0.
    """
    if gap_bytes is not None:
        if gap_bytes < 0:
            raise ValueError(f"gap_bytes={gap_bytes}, expected 0 or more")
        return _joined(pieces, gap_bytes)
    plans = [_joined(pieces, gap) for gap in _GAPS_TRIED]
    # Requests cost money too: the fewest that take hardly longer than the fastest plan.
    enough = _ALMOST * min(map(modelled_seconds, plans))
    return min((plan for plan in plans if modelled_seconds(plan) <= enough), key=len)


def modelled_seconds(ranges: Pieces) -> float:
    """Return how long a store would take for these ranges, by the model."""
    if not len(ranges):
        return 0.0
    work = len(ranges) * FIRST_BYTE_SECONDS + float(ranges[:, 1].sum()) / STREAM_BYTES_PER_SECOND
    longest = FIRST_BYTE_SECONDS + float(ranges[:, 1].max()) / STREAM_BYTES_PER_SECOND
    return max(work / STREAMS, longest)


def _joined(pieces: Pieces, gap_bytes: int) -> Pieces:
    if not len(pieces):
        return pieces
    offsets, ends = pieces[:, 0], pieces[:, 0] + pieces[:, 1]
    starts = np.flatnonzero(np.concatenate([[True], offsets[1:] - ends[:-1] > gap_bytes]))
    # Long runs are cut at pieces: a new range where the run has grown by another 8 MiB since its start.
    run_start = np.repeat(offsets[starts], np.diff(np.append(starts, len(pieces))))
    number = (ends - run_start - 1) // MAX_RANGE_BYTES
    cut = np.flatnonzero(number[1:] != number[:-1]) + 1
    firsts = np.union1d(starts, cut)
    lasts = np.append(firsts[1:], len(pieces)) - 1
    return np.stack([offsets[firsts], ends[lasts] - offsets[firsts]], axis=1)
