"""Check everything that a snapshot holds, and report all that is wrong at once.

Spec: snapshot format, section 4, "Order of checks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsspec.callbacks import Callback

from hurray_arrow.errors import (
    HurrayArrowError,
    Problem,
    ProblemCode,
    SnapshotChangedError,
    SnapshotCorruptError,
    SnapshotError,
)
from hurray_arrow.snapshot.checksums import page_problems
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.groups import missing_members
from hurray_arrow.snapshot.index import SPEC

if TYPE_CHECKING:
    from hurray_arrow.snapshot.checked_tensors import RowProvider
    from hurray_arrow.snapshot.reader import Snapshot


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What :meth:`Snapshot.verify` looked at.

    Parameters
    ----------
    num_tensors, num_pages, page_bytes
        What was read and found right.
    unverified
        What could not be checked, such as pages without checksums.
    """

    num_tensors: int
    num_pages: int
    page_bytes: int
    unverified: tuple[Problem, ...]


def verify_snapshot(snapshot: Snapshot, rows: RowProvider, *, progress: Callback) -> VerifyReport:
    """Check every row, tensor and page; see :meth:`Snapshot.verify`."""
    progress.set_size(sum(entry.stored_bytes for entry in snapshot.entries))
    problems: list[Problem] = []
    unverified = list(snapshot.unverified)
    # What recovery found is incomplete anyway, and says so in unverified.
    if not snapshot.metadata.get("partial") and not unverified:
        problems += missing_members(snapshot.metadata, snapshot.entries)
    num_pages = page_bytes = 0
    for entry in snapshot.entries:
        if not rows.checks_rows:
            problems += rows.damage_of(entry.tensor_index)
        try:
            tensor, checksums = snapshot.checked_tensor(entry)
            problems += page_problems(tensor, checksums, tensor_index=entry.tensor_index, unverified=unverified)
        except HurrayArrowError as error:
            # That it could not be read, or is another one now, says nothing about what was stored.
            if type(error) in (SnapshotError, SnapshotChangedError):
                raise
            # Rows are hashed one after another; here all that is damaged is to be found.
            problems += rows.damage_of(entry.tensor_index)
            problems += problems_of(error, entry)
            continue
        num_pages += tensor.num_pages
        page_bytes += tensor.buffers[0].nbytes
        progress.relative_update(entry.stored_bytes)
    if problems:
        raise SnapshotCorruptError(dict.fromkeys(problems), url=snapshot.url)
    return VerifyReport(len(snapshot.entries), num_pages, page_bytes, tuple(unverified))


def problems_of(error: HurrayArrowError, entry: Entry) -> Sequence[Problem]:
    """Return what an error of one tensor says, as problems."""
    problems: Sequence[Problem] = getattr(error, "problems", ())
    return problems or [Problem(ProblemCode.UNVERIFIED, str(entry), str(error), SPEC)]
