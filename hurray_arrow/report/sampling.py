"""Which pages a report reads: all where they are few, else the same ones every time.

Pages are taken in runs that lie together in the file, one at a random place of each of as many equal parts as the
budget admits. The places come from a seed, so that a snapshot has one report.

Spec: snapshot format, section 5: an archive's rows are compressed as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.snapshot.archive_rows import MAX_ROW_BYTES
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.views.group_facts import Int64Array

#: Bytes of pages that a report reads of all tensors together, unless it is told otherwise.
DEFAULT_SAMPLE_BYTES = 64 << 20
#: What the places of runs come from.
SEED = 17
#: Bytes of a run where pages can be read one by one.
_RUN_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class PageSample:
    """The pages of a tensor that are read.

    Parameters
    ----------
    page_ids
        int64 ``[pages]``, ascending.
    num_filled
        Pages of the tensor that hold tokens.
    """

    page_ids: Int64Array
    num_filled: int


def run_pages(entry: Entry, tensor: BlockPagedTensor) -> int:
    """Return how many neighbouring pages are read together: the pages of an archive's row, or some."""
    page_class = page_class_of(tensor.descriptor)
    if not page_class.fits_a_column:
        return max(1, entry.num_pages)
    page_bytes = page_class.page_bytes or 1
    return max(1, (MAX_ROW_BYTES if entry.num_rows > 1 else _RUN_BYTES) // page_bytes)


def sample_pages(fill_tokens: Int64Array, *, run: int, most_pages: int) -> PageSample:
    """Choose among the pages that hold tokens.

    Parameters
    ----------
    fill_tokens
        int64 ``[num_pages]``: filled slots of each page; pages of unknown fill (-1) are not chosen.
    run
        Neighbouring pages that are taken together, from a multiple of it.
    most_pages
        Pages wanted; at least one run is taken.
    """
    filled = np.flatnonzero(fill_tokens > 0)
    runs = np.unique(filled // run)
    wanted = max(1, most_pages // run)
    if len(filled) <= most_pages or len(runs) <= wanted:
        return PageSample(filled, len(filled))
    # Whole bounds, so that no run lies in two parts.
    bounds = np.linspace(0, len(runs), wanted + 1).astype(np.int64)
    places = bounds[:-1] + np.random.default_rng(SEED).random(wanted) * np.diff(bounds)
    chosen = runs[places.astype(np.int64)]
    return PageSample(filled[np.isin(filled // run, chosen)], len(filled))
