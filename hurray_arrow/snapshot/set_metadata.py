"""The metadata of a set: what its members say alike.

Spec: snapshot format, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hurray_arrow.errors import SnapshotMismatchError

#: What belongs to one file.
_OF_ONE_FILE = ("id", "created", "producer", "profile", "page_align_bytes", "requires", "set", "groups", "partial")
#: What belongs to one rank.
_OF_ONE_RANK = ("tp_rank", "tp_size", "pp_rank", "pp_size", "head_range", "head_replica")


def common_metadata(members: Sequence[Mapping[str, Any]], *, num_heads: int | None) -> dict[str, Any]:
    """Return what all members of a set say alike, as the metadata of a snapshot that holds all of them.

    Parameters
    ----------
    members
        Their metadata.
    num_heads
        Over all members, where they say.

    Raises
    ------
    SnapshotMismatchError
        ``groups[n]``: a kv_group is of another kind, window or page size in another member.
    """
    first = members[0]
    found = {
        key: value
        for key, value in first.items()
        if key not in _OF_ONE_FILE and key != "topology" and all(other.get(key) == value for other in members)
    }
    topologies = [member.get("topology", {}) for member in members]
    topology = {
        key: value
        for key, value in topologies[0].items()
        if key not in _OF_ONE_RANK and all(other.get(key) == value for other in topologies)
    }
    if num_heads is not None:
        topology["head_range"] = [0, num_heads]
    if topology:
        found["topology"] = topology
    groups = _groups([member.get("groups", []) for member in members])
    if groups:
        found["groups"] = groups
    if any(member.get("partial") for member in members):
        found["partial"] = True
    return found


def _groups(members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = []
    for number in range(max(map(len, members))):
        stated = [groups_of[number] for groups_of in members if number < len(groups_of)]
        merged = dict(stated[0])
        for other in stated[1:]:
            for name in ("layer_names", "components"):
                if name in merged or name in other:
                    merged[name] = _union([merged.get(name, []), other.get(name, [])])
            for name in ("kind", "window_tokens", "page_size"):
                if merged.get(name) != other.get(name):
                    field = f"groups[{number}].{name}"
                    raise SnapshotMismatchError(field=field, expected=merged.get(name), found=other.get(name))
        groups.append(merged)
    return groups


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
