"""Snapshots: one Arrow IPC file that holds the block-paged tensors of a batch, whole or not at all."""

import typing

from hurray_arrow import _later
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.opening import open_snapshot
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.writer import SnapshotWriter, write_snapshot

if typing.TYPE_CHECKING:
    from hurray_arrow.snapshot.partial import Fetched, PartialRead
    from hurray_arrow.snapshot.sets import SnapshotSet, member_name, open_snapshot_set
    from hurray_arrow.snapshot.stream import write_stream
    from hurray_arrow.snapshot.stream_reader import StreamReader, read_stream
    from hurray_arrow.snapshot.transform import CopyReport, copy_snapshot
    from hurray_arrow.snapshot.verification import VerifyReport
else:
    __getattr__ = _later.names_later(
        __name__,
        {
            **dict.fromkeys(("Fetched", "PartialRead"), f"{__name__}.partial"),
            **dict.fromkeys(("SnapshotSet", "member_name", "open_snapshot_set"), f"{__name__}.sets"),
            "write_stream": f"{__name__}.stream",
            **dict.fromkeys(("StreamReader", "read_stream"), f"{__name__}.stream_reader"),
            **dict.fromkeys(("CopyReport", "copy_snapshot"), f"{__name__}.transform"),
            "VerifyReport": f"{__name__}.verification",
        },
    )

__all__ = [
    "CopyReport",
    "Entry",
    "Fetched",
    "PartialRead",
    "Snapshot",
    "SnapshotSet",
    "SnapshotWriter",
    "StreamReader",
    "VerifyReport",
    "copy_snapshot",
    "member_name",
    "open_snapshot",
    "open_snapshot_set",
    "read_stream",
    "write_snapshot",
    "write_stream",
]
