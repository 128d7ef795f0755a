"""The kv_groups of a snapshot: which tensors share block tables and sequences, and what a group has to hold.

Spec: snapshot format, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hurray_arrow.errors import InvariantError, Problem, ProblemCode
from hurray_arrow.sequences import Sequences
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.index import IndexRow
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import Paged, unlike_tables


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What the first tensor of a group had."""

    page_size: int
    total_tokens: int
    seq_ptr: npt.NDArray[Any]
    block_table: npt.NDArray[Any]
    sequences: Sequences


class Groups:
    """The groups seen so far, each known by its first tensor's tables."""

    def __init__(self) -> None:
        self._first: dict[int, Paged] = {}
        #: Groups by the hash of their tables: a thousand of them must not be compared with every tensor.
        self._alike: dict[str, list[int]] = {}
        self._next = 0

    def place(self, tensor: BlockPagedTensor) -> tuple[int, bool]:
        """Return a tensor's group and whether it is the first of it, without keeping it.

        A tensor that names no group goes to the first group with the same tables and sequences, or to a new one.

        Raises
        ------
        InvariantError
            ``kv_group_mismatch``: the group that the tensor names has other tables or sequences.
        """
        if tensor.kv_group is None:
            for kv_group in self._alike.get(_tables_xxh3(tensor), ()):
                if same_tables(self._first[kv_group], tensor):
                    return kv_group, False
            return self._next, True
        if tensor.kv_group not in self._first:
            return tensor.kv_group, True
        if not same_tables(self._first[tensor.kv_group], tensor):
            message = (
                f"tables or sequences differ from the first tensor's of kv_group {tensor.kv_group}: leave kv_group out"
            )
            raise InvariantError(Problem(ProblemCode.KV_GROUP_MISMATCH, "kv_group", message, "snapshot format 2"))
        return tensor.kv_group, False

    def keep(self, kv_group: int, tensor: BlockPagedTensor) -> None:
        """Remember the tables of a tensor that was written; only the first of a group counts.

        They are copied: an engine may use the same arrays, changed, for its next layer.
        """
        if kv_group not in self._first:
            self._first[kv_group] = _Kept(
                page_size=tensor.page_size,
                total_tokens=tensor.total_tokens,
                seq_ptr=tensor.seq_ptr.copy(),
                block_table=tensor.block_table.copy(),
                sequences=_copied(tensor.sequences),
            )
            self._alike.setdefault(_tables_xxh3(tensor), []).append(kv_group)
            self._next = max(self._next, kv_group + 1)


def _tables_xxh3(tensor: BlockPagedTensor) -> str:
    """Return a hash of seq_ptr and block_table by value: whether they are 32 or 64 bits wide makes no difference."""
    digest = xxhash.xxh3_64()
    for array in (tensor.seq_ptr, tensor.block_table):
        digest.update(array.astype(np.uint64, copy=False).data)
    return digest.hexdigest()


def _copied(sequences: Sequences) -> Sequences:
    lens, known = sequences.seq_lens, sequences.seq_lens_known
    return Sequences(
        seq_lens=None if lens is None else lens.copy(),
        seq_lens_known=None if known is None else known.copy(),
        ids=sequences.ids,
        token_ids=_copied_arrays(sequences.token_ids),
        page_positions=_copied_arrays(sequences.page_positions),
        adapter=sequences.adapter,
        tenant=sequences.tenant,
        media=sequences.media,
    )


def _copied_arrays(arrays: Iterable[npt.NDArray[Any] | None] | None) -> list[npt.NDArray[Any] | None] | None:
    return None if arrays is None else [None if array is None else array.copy() for array in arrays]


def same_tables(one: Paged, other: Paged) -> bool:
    """Say whether two tensors can be of one group: the same page size, tables and sequence facts, by value."""
    return not any(unlike_tables(one, other))


def missing_members(metadata: Mapping[str, Any], rows: Iterable[IndexRow | Entry]) -> list[Problem]:
    """Return which layers and companions the metadata's ``groups`` list and the rows do not hold."""
    present: dict[int, dict[tuple[int | None, str | None], set[str]]] = {}
    for row in rows:
        layers = present.setdefault(row.kv_group, {})
        layers.setdefault((row.layer_index, row.layer_name), set()).add(row.component)
    problems = []
    for kv_group, group in enumerate(metadata.get("groups", [])):
        layers = present.get(kv_group, {})
        names = {name for _, name in layers}
        problems += [
            _missing(f"groups[{kv_group}]", f"layer {name!r} is missing")
            for name in group.get("layer_names", [])
            if name not in names
        ]
        for (layer_index, layer_name), components in layers.items():
            problems += [
                _missing(
                    f"groups[{kv_group}]", f"layer {layer_name or layer_index}: component {component!r} is missing"
                )
                for component in missing_components(group, components)
            ]
    return problems


def missing_components(group: Mapping[str, Any], present: Iterable[str]) -> list[str]:
    """Return the components that a group's metadata lists and a layer does not have."""
    have = set(present)
    return [component for component in group.get("components", []) if component not in have]


def window_tokens(metadata: Mapping[str, Any], kv_group: int) -> int | None:
    """Return how many tokens the layers of a sliding-window group look at; ``None`` for all, or where unknown."""
    groups = metadata.get("groups", [])
    group = groups[kv_group] if kv_group < len(groups) else {}
    window = group.get("window_tokens") if group.get("kind") == "sliding_window" else None
    return None if window is None else int(window)


def _missing(where: str, message: str) -> Problem:
    return Problem(ProblemCode.COMPANION_MISSING, where, message, "snapshot format 3")
