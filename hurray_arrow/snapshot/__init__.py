"""Snapshots: one Arrow IPC file that holds the block-paged tensors of a batch, whole or not at all."""

from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.opening import open_snapshot
from hurray_arrow.snapshot.partial import Fetched, PartialRead
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.sets import SnapshotSet, member_name, open_snapshot_set
from hurray_arrow.snapshot.stream import write_stream
from hurray_arrow.snapshot.stream_reader import StreamReader, read_stream
from hurray_arrow.snapshot.transform import CopyReport, copy_snapshot
from hurray_arrow.snapshot.verification import VerifyReport
from hurray_arrow.snapshot.writer import SnapshotWriter, write_snapshot

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
