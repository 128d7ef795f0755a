"""Sets: the snapshots that tensor- and pipeline-parallel ranks wrote of one batch, read as one.

Names are advice; which files belong together, and what each of them holds, is said by their metadata.

Spec: snapshot format, section 3 (``set``, ``topology``).
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import fsspec

from hurray_arrow import ops
from hurray_arrow.arrow.rows import Tables
from hurray_arrow.components import follows_heads
from hurray_arrow.errors import InvalidDescriptorError, SnapshotCorruptError
from hurray_arrow.snapshot.entries import Entry, Selectors, exact_selectors, one_entry, select_entries
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.snapshot.index import TensorKey
from hurray_arrow.snapshot.listing import glob_files
from hurray_arrow.snapshot.opening import open_snapshot
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.snapshot.set_members import Heads, Holder, check_tables, heads_of, holders_of, in_order
from hurray_arrow.snapshot.set_metadata import common_metadata
from hurray_arrow.snapshot.stores import Place, locate
from hurray_arrow.snapshot.workers import Workers
from hurray_arrow.tensor import BlockPagedTensor

#: Members that are fetched at the same time.
_AT_ONCE = 8


def member_name(name: str, member: int, members: int) -> str:
    """Return the advised file name of a member, such as ``NAME.m0of8.arrow``.

    Parameters
    ----------
    name
        What the members have in common. No prompt, tenant or token belongs into a name.
    member, members
        The member's number from 0, and how many there are.

    Returns
    -------
    str
        The name; a folder or a URL before it is the caller's.

    Raises
    ------
    ValueError
        There is no such member.
    """
    if not 0 <= member < members:
        raise ValueError(f"member {member}, expected 0 <= member < {members}")
    return f"{name}.m{member}of{members}.arrow"


def is_glob(url: PathLike) -> bool:
    """Say whether a path or URL is a glob; a file of exactly this name, and the query of a web address, are none."""
    text = os.fspath(url)
    if text.startswith(("http://", "https://")):
        return "*" in text
    return glob.has_magic(text) and not Path(text).exists()


def open_snapshot_set(
    urls: PathLike | Iterable[PathLike],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    expect: Mapping[str, Any] | None = None,
    trusted: bool = False,
    mapped: bool = True,
) -> SnapshotSet:
    """Open all members of a set, and check that they are one: pages stay unread.

    Parameters
    ----------
    urls
        A glob (``*``, ``?``, ``[…]``; ``**`` for any folders) such as ``s3://bucket/NAME.m*.arrow``, or the members, in
        any order.
    storage_options, filesystem, trusted, mapped
        As in :func:`~hurray_arrow.open_snapshot`.
    expect
        What every member has to be.

    Returns
    -------
    SnapshotSet
        A context manager. Tensors read from it stay valid after it is closed.

    Raises
    ------
    FileNotFoundError
        Nothing matches.
    SnapshotIncompleteError
        A member is missing, or lacks a tensor that others of its pipeline rank have; the message names it.
    SnapshotMismatchError
        A snapshot of another set or of none; members with other models, adapters or tenants; no ``head_range``.
    SnapshotCorruptError
        ``set_member_duplicate``, ``head_range_invalid``, ``kv_group_mismatch``: tables, lengths or tokens differ,
        ``tensor_mismatch``, ``metadata_invalid``; and what :func:`~hurray_arrow.open_snapshot` finds in each.

    Notes
    -----
    A kv_group has the same number in every member. Members with the same heads are replicas if ``head_replica`` tells
    them apart; they are compared when they are read.

    Spec: snapshot format, section 3.
    """
    options: dict[str, Any] = {"storage_options": storage_options, "filesystem": filesystem}
    found = find_snapshots(urls, **options)
    with ThreadPoolExecutor(min(_AT_ONCE, len(found)), "hurray-arrow-set") as pool, ExitStack() as opened:
        jobs = [
            pool.submit(open_snapshot, url, **each, expect=expect, trusted=trusted, mapped=mapped)
            for url, each in found
        ]
        # Every job is waited for, so that none is left open when another fails.
        snapshots = [opened.enter_context(job.result()) for job in jobs if job.exception() is None]
        for job in jobs:
            job.result()
        members = in_order(snapshots)
        holders = holders_of(members)
        heads = heads_of(members, holders.values())
        check_tables(members, pool)
        made = SnapshotSet(members, holders, heads)
        opened.pop_all()
    return made


class SnapshotSet:
    """An open set; see :func:`open_snapshot_set`. May be read from many threads, and by forked children; as a Snapshot.

    Views such as :meth:`Snapshot.pages` are of one snapshot: ask each of ``members``, or all of them together with
    :func:`hurray_arrow.views.read_snapshots`, whose column ``url`` says which.

    Attributes
    ----------
    id
        The set's id.
    members
        The members' snapshots by number.
    metadata
        What all members say alike, without what belongs to one of them.
    entries
        One per tensor with all its heads; ``tensor_index`` is its place here, sizes are sums over the members.
    """

    def __init__(
        self,
        members: Sequence[Snapshot],
        holders: Mapping[TensorKey, Sequence[Holder]],
        heads: Mapping[int, Heads],
    ) -> None:
        self.members = tuple(members)
        self._workers = Workers(min(_AT_ONCE, len(members)), "hurray-arrow-set", url=members[0].url)
        self.id: str = members[0].metadata["set"]["id"]
        self._holders, self._heads = dict(holders), dict(heads)
        self.entries: tuple[Entry, ...] = tuple(
            self._merged_entry(place, held) for place, held in enumerate(self._holders.values())
        )
        self.metadata = common_metadata([snapshot.metadata for snapshot in members], num_heads=self._num_heads())

    @property
    def profile(self) -> str | None:
        """The members' profile; ``None`` where they differ."""
        profiles = {snapshot.profile for snapshot in self.members}
        return profiles.pop() if len(profiles) == 1 else None

    @property
    def url(self) -> str:
        """The first member's URL."""
        return self.members[0].url

    def select(
        self,
        **selectors: Unpack[Selectors],
    ) -> list[Entry]:
        """Return the entries that the selectors admit, in order; as :meth:`Snapshot.select`."""
        return select_entries(self.entries, **selectors)

    @overload
    def read(
        self,
        *,
        heads: Literal["merged"] = "merged",
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> BlockPagedTensor: ...
    @overload
    def read(
        self,
        *,
        heads: Literal["members"],
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> list[BlockPagedTensor]: ...
    def read(
        self,
        *,
        heads: Literal["merged", "members"] = "merged",
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> BlockPagedTensor | list[BlockPagedTensor]:
        """Read the one tensor that the selectors name, from all members that have some of it at the same time.

        Parameters
        ----------
        heads
            ``"merged"``: one tensor with all heads, replicas compared and taken once. ``"members"``: what each member
            has.
        verify
            Check the page checksums too.
        **selectors
            As of :meth:`Snapshot.select`.

        Returns
        -------
        BlockPagedTensor or list of BlockPagedTensor
            With all heads in new memory, or one by one as :meth:`Snapshot.read` gives them, by member number.

        Raises
        ------
        LookupError
            Not exactly one tensor matches.
        SnapshotCorruptError
            As :meth:`Snapshot.read`; ``replica_mismatch``, ``head_range_invalid``: a member has other heads than it
            says, ``quantization_mismatch``, ``tensor_mismatch``.
        UnsupportedError
            Merging a component ``page.<name>``, or parameters of which nobody says how they belong to heads.
        """
        matches = self.select(**selectors)
        if heads not in ("merged", "members"):
            raise ValueError(f"heads {heads!r}: expected 'merged' or 'members'")
        entry = one_entry(matches, self.entries)
        return self._merged(entry, verify=verify) if heads == "merged" else self._parts(entry, verify=verify)

    def iter_tensors(
        self,
        *,
        verify: bool = False,
        **selectors: Unpack[Selectors],
    ) -> Iterator[BlockPagedTensor]:
        """Read every tensor that the selectors admit, with all its heads, one after another; as :meth:`read`."""
        for entry in self.select(**selectors):
            yield self._merged(entry, verify=verify)

    def group_tables(self, kv_group: int) -> Tables:
        """Return block table, seq_ptr and sequences of a kv_group, which are the same in every member.

        Raises
        ------
        LookupError
            No tensor is of this group.
        """
        for snapshot in self.members:
            if any(entry.kv_group == kv_group for entry in snapshot.entries):
                return snapshot.group_tables(kv_group)
        raise LookupError(f"no tensor is of kv_group {kv_group}")

    def first_holder(self, entry: Entry) -> Snapshot:
        """Return the first member that has some of a tensor."""
        return self.members[self._holders[entry.key][0].member]

    def close(self) -> None:
        """Close all members; tensors that were read stay valid."""
        self._workers.close()
        for snapshot in self.members:
            snapshot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SnapshotSet({self.id!r}, {len(self.members)} members, {len(self.entries)} tensors)"

    def _parts(self, entry: Entry, *, verify: bool) -> list[BlockPagedTensor]:
        parts = [
            self._workers.submit(self.members[holder.member].read, **exact_selectors(entry), verify=verify)
            for holder in self._holders[entry.key]
        ]
        return self._workers.results(parts)

    def _merged(self, entry: Entry, *, verify: bool) -> BlockPagedTensor:
        parts = self._parts(entry, verify=verify)
        if len(parts) == 1:
            return parts[0]
        held = self._holders[entry.key]
        if self._follows_heads(held):
            ranges = [self._heads[holder.member].range for holder in held]
        else:
            ranges = [(0, parts[0].num_heads)] * len(parts)
        try:
            return ops.merge_heads(parts, head_ranges=ranges)
        except InvalidDescriptorError as error:
            raise SnapshotCorruptError(error.problems, url=self.url) from error

    def _follows_heads(self, held: Sequence[Holder]) -> bool:
        """Say whether members share out the heads of a tensor, or each has the whole of it.

        A companion with one head everywhere, where some member has several heads of values, is one for all heads.
        """
        if (known := follows_heads(held[0].entry.component)) is not None:
            return known
        values = self._holders.get((*held[0].entry.key[:-1], "values"), ())
        heads = {holder.member: holder.entry.page_shape[1] for holder in values}
        own = {holder.member: holder.entry.page_shape[1] for holder in held}
        return set(own.values()) != {1} or all(heads.get(member, 1) == 1 for member in own)

    def _merged_entry(self, place: int, held: Sequence[Holder]) -> Entry:
        first = held[0].entry
        page_size, num_heads, head_dim = first.page_shape
        if len(held) > 1 and self._follows_heads(held):
            by_range = {self._heads[holder.member].range: holder.entry.page_shape[1] for holder in held}
            num_heads = sum(by_range.values())
        return first._replace(
            tensor_index=place,
            page_shape=(page_size, num_heads, head_dim),
            num_rows=sum(holder.entry.num_rows for holder in held),
            stored_bytes=sum(holder.entry.stored_bytes for holder in held),
        )

    def _num_heads(self) -> int | None:
        return max((heads.stop for heads in self._heads.values()), default=None)


def find_snapshots(
    urls: PathLike | Iterable[PathLike],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
) -> list[tuple[PathLike, dict[str, Any]]]:
    """Say which snapshots a glob, a name or several names mean; only a glob is looked up.

    Parameters
    ----------
    urls, storage_options, filesystem
        As of :func:`open_snapshot_set`.

    Returns
    -------
    list of tuple
        Path or URL of each, with ``storage_options`` and ``filesystem`` to open it; what a glob matches in order of its
        names.

    Raises
    ------
    FileNotFoundError
        Nothing matches the glob.
    ValueError
        No names at all.
    PermissionError, SnapshotError, MissingDependencyError
        A folder that the glob leads to cannot be listed.
    """
    options: dict[str, Any] = {"storage_options": storage_options, "filesystem": filesystem}
    if not isinstance(urls, str | os.PathLike):
        found = [(url, options) for url in urls]
        if not found:
            raise ValueError("no snapshots: an empty list of names")
        return found
    if not is_glob(urls):
        return [(urls, options)]
    place = locate(urls, **options)
    paths = sorted(glob_files(place))
    matches: list[tuple[PathLike, dict[str, Any]]] = [(path, {}) for path in paths]
    if isinstance(place, Place):
        # In a chain of filesystems only the outermost knows the path.
        by_url = filesystem is None and "::" not in os.fspath(urls)
        in_place = {"filesystem": place.filesystem}
        matches = [(place.filesystem.unstrip_protocol(path), options) if by_url else (path, in_place) for path in paths]
    if not matches:
        raise FileNotFoundError(errno.ENOENT, "no snapshot matches", os.fspath(urls))
    return matches
