"""What the members of a set say of themselves, and whether they belong together.

Spec: snapshot format, section 3 (``set``, ``topology``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from hurray_arrow.arrow.rows import Tables
from hurray_arrow.errors import (
    Problem,
    ProblemCode,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    SnapshotMismatchError,
)
from hurray_arrow.sequences import unlike_facts
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.index import TensorKey
from hurray_arrow.snapshot.reader import Snapshot

SPEC = "snapshot format 3"
#: What all members of a set have to say alike.
_IDENTITY = ("model", "adapter", "tenant")
#: How many missing members an error names.
_SHOWN_MEMBERS = 20
#: What tensors of one key have to have alike; heads are what members share out.
_ALIKE = ("num_pages", "num_seqs", "element_type", "index_type")


class Heads(NamedTuple):
    """Which heads a member has, half-open over all heads, and the how many-th copy of them it is."""

    start: int
    stop: int
    replica: int = 0

    @property
    def range(self) -> tuple[int, int]:
        """``(start, stop)``."""
        return self.start, self.stop


class Holder(NamedTuple):
    """A member that has a tensor, and its entry for it."""

    member: int
    entry: Entry


def in_order(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    """Return the snapshots by member number, each member once and none missing.

    Raises
    ------
    SnapshotMismatchError
        ``set.id``, ``set.members``, ``model``, ``adapter`` or ``tenant`` differ, or there is no ``set``.
    SnapshotCorruptError
        ``metadata_invalid``; ``set_member_duplicate``.
    SnapshotIncompleteError
        Names the members that are missing.
    """
    first = snapshots[0]
    members = _fact(first, "members", int)
    by_member: dict[int, Snapshot] = {}
    for snapshot in snapshots:
        _check_alike(snapshot, "set.id", _fact(snapshot, "id", str), _fact(first, "id", str))
        _check_alike(snapshot, "set.members", _fact(snapshot, "members", int), members)
        for key in _IDENTITY:
            _check_alike(snapshot, key, snapshot.metadata.get(key), first.metadata.get(key))
        member = _fact(snapshot, "member", int)
        if not 0 <= member < members:
            raise _invalid(snapshot, "set.member", f"{member}, expected one of {members}")
        other = by_member.setdefault(member, snapshot)
        if other is not snapshot:
            message = f"{member} is {other.url}'s and {snapshot.url}'s"
            raise SnapshotCorruptError(Problem(ProblemCode.SET_MEMBER_DUPLICATE, "set.member", message, SPEC))
    num_missing = members - len(by_member)
    if num_missing:
        # As many as a file says there are: not all of them are named.
        missing = islice((number for number in count() if number not in by_member), min(num_missing, _SHOWN_MEMBERS))
        numbers = ", ".join(map(str, missing)) + (", …" if num_missing > _SHOWN_MEMBERS else "")
        raise SnapshotIncompleteError(
            f"set {_fact(first, 'id', str)}: of its members 0 to {members - 1} these are missing: {numbers}"
        )
    return tuple(by_member[member] for member in range(members))


def holders_of(members: Sequence[Snapshot]) -> dict[TensorKey, tuple[Holder, ...]]:
    """Return who holds each tensor, keys in the order of members and their tensors.

    Raises
    ------
    SnapshotIncompleteError
        A member lacks a tensor that another of its pipeline rank has.
    SnapshotCorruptError
        ``tensor_mismatch``: pages, sizes or element types differ.
    """
    holders: dict[TensorKey, list[Holder]] = {}
    by_rank: dict[int, dict[int, set[TensorKey]]] = {}
    for member, snapshot in enumerate(members):
        topology = _topology(snapshot)
        keys = {entry.key for entry in snapshot.entries}
        by_rank.setdefault(_integer(snapshot, topology, "pp_rank", 0), {})[member] = keys
        for entry in snapshot.entries:
            holders.setdefault(entry.key, []).append(Holder(member, entry))
    for ranks in by_rank.values():
        everything = set().union(*ranks.values())
        for member, keys in ranks.items():
            lacking = sorted(everything - keys, key=str)
            if lacking:
                what = f"{len(lacking)} tensors that others of its pipeline rank have, the first {lacking[0]}"
                raise SnapshotIncompleteError(f"member {member} lacks {what}", url=members[member].url)
    problems = [problem for held in holders.values() for problem in _entry_problems(held)]
    if problems:
        raise SnapshotCorruptError(problems)
    return {key: tuple(held) for key, held in holders.items()}


def heads_of(members: Sequence[Snapshot], holders: Iterable[Sequence[Holder]]) -> dict[int, Heads]:
    """Return the heads of each member that states some, after checking that they leave no gap and do not overlap.

    Raises
    ------
    SnapshotMismatchError
        ``topology.head_range``: members share a tensor out and one does not say what it has.
    SnapshotCorruptError
        ``metadata_invalid``; ``head_range_invalid``: a gap, an overlap, the same replica twice.
    """
    heads = {member: found for member, snapshot in enumerate(members) if (found := _heads(snapshot)) is not None}
    checked: set[tuple[int, ...]] = set()
    for held in holders:
        sharers = tuple(holder.member for holder in held)
        if len(sharers) < 2 or sharers in checked:
            continue
        checked.add(sharers)
        for member in sharers:
            if member not in heads:
                error = SnapshotMismatchError(field="topology.head_range", expected="[start, stop)", found=None)
                error.add_note(f"member {member}: {members[member].url}")
                raise error
        _check_tiling({member: heads[member] for member in sharers})
    return heads


def check_tables(members: Sequence[Snapshot], pool: Executor) -> None:
    """Read every group's tables of every member, several at a time, and compare them.

    Raises
    ------
    SnapshotCorruptError
        ``kv_group_mismatch``: block tables, lengths or tokens differ between members; all codes of reading a row.
    """
    wanted = [
        (member, kv_group)
        for member, snapshot in enumerate(members)
        for kv_group in sorted({entry.kv_group for entry in snapshot.entries})
    ]
    found = list(pool.map(lambda one: members[one[0]].group_tables(one[1]), wanted))
    first: dict[int, tuple[int, Tables]] = {}
    problems: list[Problem] = []
    for (member, kv_group), tables in zip(wanted, found, strict=True):
        expected_of, expected = first.setdefault(kv_group, (member, tables))
        problems += [
            Problem(
                ProblemCode.KV_GROUP_MISMATCH,
                f"member {member}.kv_group {kv_group}.{name}",
                f"{text} in member {expected_of}",
                SPEC,
            )
            for name, text in _differences(tables, expected)
        ]
    if problems:
        raise SnapshotCorruptError(problems)


def _differences(tables: Tables, expected: Tables) -> Iterator[tuple[str, str]]:
    """Yield what differs and both values, but no tokens, ids or tenants: messages go into logs."""
    for name in ("seq_ptr", "block_table"):
        found, other = getattr(tables, name), getattr(expected, name)
        if len(found) != len(other):
            yield name, f"{len(found)} entries, {len(other)}"
        elif (places := np.flatnonzero(found != other)).size:
            yield f"{name}[{places[0]}]", f"{found[places[0]]}, {other[places[0]]}"
    if unlike := unlike_facts(tables.sequences, expected.sequences):
        yield "sequences", f"{unlike} of other values than"


def _entry_problems(held: Sequence[Holder]) -> list[Problem]:
    first = held[0]
    expected = {**{name: getattr(first.entry, name) for name in _ALIKE}, **_per_head(first.entry)}
    return [
        Problem(
            ProblemCode.TENSOR_MISMATCH,
            f"member {holder.member}, {holder.entry}: {name}",
            f"{value!r}, member {first.member} has {expected[name]!r}",
            SPEC,
        )
        for holder in held[1:]
        for name, value in {**{name: getattr(holder.entry, name) for name in _ALIKE}, **_per_head(holder.entry)}.items()
        if value != expected[name]
    ]


def _per_head(entry: Entry) -> dict[str, int]:
    return {"page_size": entry.page_shape[0], "head_dim": entry.page_shape[2]}


def _check_tiling(heads: Mapping[int, Heads]) -> None:
    seen: dict[Heads, int] = {}
    for member, found in heads.items():
        if found in seen:
            message = f"member {seen[found]} and member {member} both have heads [{found.start}, {found.stop})"
            raise _range_error(f"{message} as replica {found.replica}")
        seen[found] = member
    end = 0
    for start, stop in sorted({found.range for found in heads.values()}):
        if start != end:
            kind = "a gap" if start > end else "an overlap"
            raise _range_error(f"{kind}: heads [{start}, {stop}) follow head {end}")
        end = stop


def _heads(snapshot: Snapshot) -> Heads | None:
    topology = _topology(snapshot)
    stated = topology.get("head_range")
    if stated is None:
        return None
    if not isinstance(stated, list) or len(stated) != 2 or any(type(bound) is not int for bound in stated):
        raise _invalid(snapshot, "topology.head_range", f"{stated!r:.40}, expected [start, stop]")
    if not 0 <= stated[0] < stated[1]:
        raise _invalid(snapshot, "topology.head_range", f"{stated}, expected 0 <= start < stop")
    return Heads(stated[0], stated[1], _integer(snapshot, topology, "head_replica", 0))


def _topology(snapshot: Snapshot) -> Mapping[str, Any]:
    topology: Mapping[str, Any] = snapshot.metadata.get("topology", {})
    return topology


def _integer(snapshot: Snapshot, topology: Mapping[str, Any], key: str, default: int) -> int:
    value = topology.get(key, default)
    if type(value) is not int or value < 0:
        raise _invalid(snapshot, f"topology.{key}", f"{value!r:.40}, expected an integer of 0 or more")
    return value


def _fact(snapshot: Snapshot, key: str, kind: type) -> Any:
    """Return a fact of a snapshot's ``set``."""
    stated = snapshot.metadata.get("set")
    if stated is None:
        error = SnapshotMismatchError(field="set.id", expected="a member of a set", found=None)
        error.add_note(snapshot.url)
        raise error
    value = stated.get(key)
    if type(value) is not kind:
        raise _invalid(snapshot, f"set.{key}", f"{value!r:.40}, expected {kind.__name__}")
    return value


def _check_alike(snapshot: Snapshot, field: str, found: object, expected: object) -> None:
    if found != expected:
        error = SnapshotMismatchError(field=field, expected=expected, found=found)
        error.add_note(snapshot.url)
        raise error


def _invalid(snapshot: Snapshot, where: str, message: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(Problem(ProblemCode.METADATA_INVALID, where, message, SPEC), url=snapshot.url)


def _range_error(message: str) -> SnapshotCorruptError:
    problem = Problem(ProblemCode.HEAD_RANGE_INVALID, "topology.head_range", message, SPEC)
    return SnapshotCorruptError(problem)
