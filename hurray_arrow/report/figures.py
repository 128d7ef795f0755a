"""The pictures as functions: an open snapshot in, a matplotlib figure out.

Each reads what it draws and nothing else. A figure is the caller's; none goes through pyplot, so nothing is shown, kept
or changed beside it. To compare the numbers themselves, use the views (:mod:`hurray_arrow.views`).
"""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.figure import Figure

from hurray_arrow.report import value_figures
from hurray_arrow.report.group import Group
from hurray_arrow.report.head_values import Values, read_values
from hurray_arrow.report.last_pages import LastPages
from hurray_arrow.report.look import Look
from hurray_arrow.report.page_cells import PageMap
from hurray_arrow.report.sampling import DEFAULT_SAMPLE_BYTES
from hurray_arrow.report.sharing_map import SharingMap
from hurray_arrow.report.stored_sizes import StoredSizes
from hurray_arrow.snapshot.reader import Snapshot


def page_map(
    snapshot: Snapshot,
    *,
    kv_group: int | None = None,
    by: Literal["use", "sequence"] = "use",
    look: Look | None = None,
) -> Figure:
    """Draw the pages of a pool: free, of one sequence or shared, or by the first sequence that names them.

    Parameters
    ----------
    snapshot
        An open snapshot; only tables are read.
    kv_group
        The group; ``None`` for the first.
    by
        ``"use"`` or ``"sequence"``.
    look
        Width and ground; ``None`` for 7.5 inches on white.

    Returns
    -------
    matplotlib.figure.Figure
        New. Above 2,048 pages a cell stands for several.

    Raises
    ------
    LookupError
        There is no such group.
    UnsupportedError
        The pool has more than 2²⁴ pages.
    ValueError
        Another ``by``.
    SnapshotCorruptError
        As :meth:`Snapshot.open_tensors`.
    """
    if by not in ("use", "sequence"):
        raise ValueError(f"by={by!r}, expected 'use' or 'sequence'")
    found = PageMap(_group(snapshot, kv_group))
    return (found.by_use if by == "use" else found.by_sequence)(look or Look())


def sharing(snapshot: Snapshot, *, kv_group: int | None = None, look: Look | None = None) -> Figure:
    """Draw how many pages sequences have in common, of the 24 that share the most.

    Parameters, returns and errors as of :func:`page_map`.
    """
    return SharingMap(_group(snapshot, kv_group)).draw(look or Look())


def last_page_fill(snapshot: Snapshot, *, kv_group: int | None = None, look: Look | None = None) -> Figure:
    """Draw how many sequences fill how many slots of their last page.

    Parameters, returns and errors as of :func:`page_map`.
    """
    return LastPages(_group(snapshot, kv_group)).draw(look or Look())


def value_ranges(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, look: Look | None = None, **selectors: Any
) -> Figure:
    """Draw for each layer the range of the elements of keys and of values.

    Parameters
    ----------
    snapshot
        An open snapshot.
    sample_bytes
        Bytes of pages to read of all tensors together; of each at least 256 KiB, or a row of an archive. Which ones is
        the same each time.
    look
        As of :func:`page_map`.
    **selectors
        As of :meth:`Snapshot.select`: ``layer_index=``, ``kv_role=``, ``kv_group=``, …

    Returns
    -------
    matplotlib.figure.Figure
        New. Only slots that hold tokens count; tensors without numbers are left out.

    Raises
    ------
    SnapshotCorruptError
        As :meth:`Snapshot.open_tensors`.
    """
    return value_figures.draw_ranges(read_values(snapshot, sample_bytes=sample_bytes, **selectors), look or Look())


def norms(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, look: Look | None = None, **selectors: Any
) -> Figure:
    """Draw for each layer the Euclidean norm of a token's vector in a head: its mean, and the range of the heads.

    Parameters, returns and errors as of :func:`value_ranges`.
    """
    return value_figures.draw_norms(read_values(snapshot, sample_bytes=sample_bytes, **selectors), look or Look())


def head_magnitudes(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, look: Look | None = None, **selectors: Any
) -> Figure:
    """Draw the greatest absolute value of each layer and head as a heat map.

    Parameters, returns and errors as of :func:`value_ranges`.
    """
    return value_figures.draw_magnitudes(read_values(snapshot, sample_bytes=sample_bytes, **selectors), look or Look())


def head_norms(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, look: Look | None = None, **selectors: Any
) -> Figure:
    """Draw the mean norm of each layer and head as a heat map.

    Parameters, returns and errors as of :func:`value_ranges`.
    """
    return value_figures.draw_head_norms(read_values(snapshot, sample_bytes=sample_bytes, **selectors), look or Look())


def compressed_sizes(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, look: Look | None = None, **selectors: Any
) -> Figure:
    """Draw what each layer's byte planes take, in percent of the raw pages.

    Of an archive that is counted in the headers of its rows; of any other snapshot a sample of the pages is compressed
    as an archive would be.

    Parameters, returns and errors as of :func:`value_ranges`.
    """
    values = sized_values(snapshot, sample_bytes=sample_bytes, **selectors)
    return StoredSizes(snapshot, values).draw(look or Look())


def sized_values(snapshot: Snapshot, *, sample_bytes: int, **selectors: Any) -> Values:
    """Read values, and what their pages take compressed where the snapshot does not say it itself."""
    return read_values(snapshot, sample_bytes=sample_bytes, with_planes=snapshot.profile != "archive", **selectors)


def _group(snapshot: Snapshot, kv_group: int | None) -> Group:
    if kv_group is None:
        groups = {entry.kv_group for entry in snapshot.entries}
        if not groups:
            raise LookupError("the snapshot has no tensor, and so no pages to draw")
        kv_group = min(groups)
    return Group.of(snapshot, kv_group)
