"""Copy snapshots, and on the way choose, repage, sanitize, merge heads or change the profile: tensor by tensor.

Memory holds one tensor as it was and one as it becomes; the copy appears whole or not at all.

Spec: snapshot format, sections 3, 5 and 6; operations as of :mod:`hurray_arrow.ops`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.page_class import BYTE_PLANES, PLAIN
from hurray_arrow.errors import Problem, SnapshotCorruptError
from hurray_arrow.ops.select import Positions, Which
from hurray_arrow.snapshot.checksums import page_problems
from hurray_arrow.snapshot.entries import Entry, IntSelector, exact_selectors, held_values, select_entries
from hurray_arrow.snapshot.expectations import check_facts, check_metadata
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.snapshot.opening import open_snapshot
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.sets import SnapshotSet, open_snapshot_set
from hurray_arrow.snapshot.writer import DEFAULT_PAGE_ALIGN_BYTES, SnapshotWriter, profile_encoding
from hurray_arrow.tensor import BlockPagedTensor

if TYPE_CHECKING:
    from hurray_arrow.snapshot.copy_plan import Source, Steps


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What :func:`copy_snapshot` wrote.

    Parameters
    ----------
    profile
        Of the copy.
    num_tensors, num_pages, page_bytes
        Tensors, their pages, and the bytes of those before any encoding.
    unverified
        What could not be checked in the source, such as pages without checksums.
    """

    profile: str
    num_tensors: int
    num_pages: int
    page_bytes: int
    unverified: tuple[Problem, ...]


def copy_snapshot(
    source: PathLike | Snapshot | SnapshotSet | Iterable[PathLike],
    destination: PathLike,
    *,
    profile: str | None = None,
    encoding: str | None = None,
    sanitize: bool = False,
    layer_index: IntSelector = None,
    sequences: Which | Sequence[Which] | None = None,
    tokens: Positions = None,
    repage: int | None = None,
    merge_heads: bool = False,
    overwrite: bool = False,
    progress: Callback | None = None,
    verify: bool = True,
    expect: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    source_filesystem: fsspec.AbstractFileSystem | None = None,
    destination_options: Mapping[str, Any] | None = None,
    destination_filesystem: fsspec.AbstractFileSystem | None = None,
    mode: int = 0o600,
) -> CopyReport:
    """Copy a snapshot, whole or in part, from any place to any place, also over itself.

    Parameters
    ----------
    source
        A path, a URL of fsspec's, or what is open already, which stays open. With ``merge_heads`` a glob or several.
    destination
        Where the copy appears when it is complete.
    profile, encoding
        As in :func:`~hurray_arrow.write_snapshot`; ``None`` keeps the source's.
    sanitize
        Drop the pages that no sequence names, and zero the slots behind each sequence's last token.
    layer_index
        One layer or several; ``None`` for all tensors.
    sequences, tokens
        As of :func:`hurray_arrow.ops.select`. What then no sequence names is left out, and of a snapshot in a store not
        fetched.
    repage
        Slots of a new page. Groups of recurrent state or opaque pages stay as they are.
    merge_heads
        The source is a set, see :func:`~hurray_arrow.open_snapshot_set`: copy it into one snapshot with all heads.
    overwrite
        Replace an existing snapshot, which may be the source.
    progress
        Told of the bytes of pages written.
    verify
        Compare every page read with its checksum.
    expect
        What the source has to be, by dotted name.
    source_options, source_filesystem, destination_options, destination_filesystem
        ``storage_options`` and ``filesystem`` of each end.
    mode
        Permission bits of a local copy.

    Returns
    -------
    CopyReport
        What was written.

    Raises
    ------
    LookupError
        No tensor is of a layer that is named; no such sequence. See
        :class:`~hurray_arrow.snapshot.entries.Selectors`.
    FileExistsError
        The destination exists and ``overwrite`` is False.
    SnapshotCorruptError, SnapshotIncompleteError, SnapshotMismatchError
        As :func:`~hurray_arrow.open_snapshot`, :func:`~hurray_arrow.open_snapshot_set` and :meth:`Snapshot.read`.
    UnknownSequenceLengthError, InvariantError, QuantizationError, UnsupportedError
        As the operations say. Nothing is published.

    Notes
    -----
    Metadata is kept, keys that this version does not know included; id, time and producer are the copy's. ``groups``
    lists the layers that are left. Columns that this version does not know are not copied.

    Examples
    --------
    >>> report = ha.copy_snapshot("cache.arrow", "part.arrow", profile="archive", sequences="a", repage=8)
    >>> report.num_tensors, report.num_pages
    (2, 2)

    Spec: snapshot format, sections 3 and 6.
    """
    from hurray_arrow.snapshot.copy_plan import CopyPlan, Steps, copied_metadata

    steps = Steps(sequences, tokens, repage, sanitize)
    options: dict[str, Any] = {"storage_options": source_options, "filesystem": source_filesystem, "expect": expect}
    with _opened(source, merge_heads=merge_heads, options=options) as opened:
        entries = _chosen(opened.entries, layer_index)
        profile = profile or opened.profile or "share"
        encoding = profile_encoding(profile, encoding or _kept_encoding(opened, profile))
        plan = CopyPlan.of(opened, entries, steps)
        callback = progress or NoOpCallback()
        callback.set_size(plan.page_bytes)
        unverified = list(opened.unverified) if isinstance(opened, Snapshot) else []
        with SnapshotWriter(
            destination,
            plan=plan.schema_plan(encoding),
            metadata=copied_metadata(opened, entries, page_sizes=plan.page_sizes),
            storage_options=destination_options,
            filesystem=destination_filesystem,
            expected_bytes=plan.page_bytes,
            overwrite=overwrite,
            progress=callback,
            profile=profile,
            page_align_bytes=opened.metadata.get("page_align_bytes", DEFAULT_PAGE_ALIGN_BYTES),
            partial=bool(opened.metadata.get("partial")),
            keep_unknown=True,
            mode=mode,
        ) as writer:
            for entry in entries:
                page_size = plan.page_sizes.get(entry.kv_group)
                # No name holds on to a tensor while the next one is read.
                writer.write(
                    steps.relaid(_read(opened, entry, steps, verify=verify, unverified=unverified), repage=page_size)
                )
    return CopyReport(profile, len(entries), plan.num_pages, plan.page_bytes, tuple(unverified))


def _opened(
    source: PathLike | Snapshot | SnapshotSet | Iterable[PathLike], *, merge_heads: bool, options: dict[str, Any]
) -> AbstractContextManager[Source]:
    if isinstance(source, Snapshot | SnapshotSet):
        check_metadata(source.metadata, options["expect"])
        for snapshot in source.members if isinstance(source, SnapshotSet) else (source,):
            check_facts(snapshot, options["expect"])
        return nullcontext(source)
    if merge_heads:
        return open_snapshot_set(source, **options)
    if isinstance(source, Iterable) and not isinstance(source, str):
        raise TypeError("several snapshots: only merge_heads=True makes one of them")
    return open_snapshot(source, **options)


def _chosen(entries: Sequence[Entry], layer_index: IntSelector) -> list[Entry]:
    if layer_index is None:
        return list(entries)
    chosen = select_entries(entries, layer_index=layer_index)
    wanted = [layer_index] if isinstance(layer_index, int | np.integer) else list(layer_index)
    missing = sorted({int(layer) for layer in wanted if layer is not None} - {entry.layer_index for entry in chosen})
    if missing:
        held = held_values("layer_index", entries)
        raise LookupError(f"no tensor is of layer_index {missing}; the snapshot has {held or 'no tensors'}")
    return chosen


def _kept_encoding(source: Source, profile: str) -> str | None:
    """Return an archive's own encoding for a copy that is one; ``None`` for the default."""
    if profile != "archive" or source.profile != "archive":
        return None
    return BYTE_PLANES if any(entry.encoding == BYTE_PLANES for entry in source.entries) else PLAIN


def _read(source: Source, entry: Entry, steps: Steps, *, verify: bool, unverified: list[Problem]) -> BlockPagedTensor:
    """Read one tensor, or of it what is selected."""
    key = exact_selectors(entry)
    if isinstance(source, SnapshotSet):
        return steps.selected(source.read(**key, verify=verify))
    # What is partial or recovered has no more than whole tensors to give.
    if steps.selects and verify and not source.metadata.get("partial") and not source.unverified:
        found = source.read_sequences(steps.sequences, **key, tokens=steps.tokens)
        unverified += found.unverified
        [tensor] = found.tensors
        return tensor
    tensor, checksums = source.checked_tensor(entry)
    if verify:
        problems = page_problems(tensor, checksums, tensor_index=entry.tensor_index, unverified=unverified)
        if problems:
            raise SnapshotCorruptError(problems, url=source.url)
    return steps.selected(tensor)
