"""What a snapshot lists without touching a page: one entry per tensor, and how callers select among them.

Spec: snapshot format, section 4; house rules, "Selectors".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.snapshot.index import SPEC, IndexRow, TensorKey
from hurray_arrow.spec import INDEX_TYPE_NAMES, KV_ROLE_NAMES, KV_ROLES, KvRole
from hurray_arrow.tensor import BlockPagedTensor

#: One value of a selector, several, or ``None`` for any.
IntSelector = int | Collection[int | None] | None
StrSelector = str | Collection[str | None] | None
RoleSelector = str | KvRole | Collection[str | KvRole] | None


class Selectors(TypedDict, total=False):
    """What chooses among the tensors of a snapshot: one value or several each; what is not given admits all.

    ``kv_role`` is ``"key"``, ``"value"``, ``"fused"`` or a :class:`~hurray_arrow.KvRole`; ``component`` is ``"values"``
    or a companion's name. ``None`` among several is a layer without a number, or without a name.

    Selectors may admit nothing, such as a layer that the snapshot does not have. Then ``select``, ``iter_tensors``,
    ``read_sequences`` and the views give nothing, whatever sequences are named; ``read``, which gives exactly one
    tensor, raises LookupError, and so does a copy of layers, which would lack one that was asked for. Both say what the
    snapshot has. What no snapshot can have raises everywhere: ValueError for a ``kv_role`` that is no role, TypeError
    for a value of another type, or for a selector of another name.
    """

    layer_index: IntSelector
    layer_name: StrSelector
    kv_role: RoleSelector
    kv_group: IntSelector
    component: StrSelector


SELECTORS = tuple(Selectors.__annotations__)
_INTEGERS = frozenset({"layer_index", "kv_group"})

#: ``(layer_index, layer_name)``.
Layer = tuple[int | None, str | None]


class Entry(NamedTuple):
    """One tensor of a snapshot.

    Parameters
    ----------
    tensor_index
        Place in snapshot order.
    layer_index, layer_name, kv_role, component, kv_group
        The tensor's key, unique in the snapshot.
    num_pages, page_shape, num_seqs
        Sizes; ``page_shape`` is ``(page_size, num_heads, head_dim)``.
    element_type, index_type, encoding
        Names.
    num_rows
        Rows that the tensor takes in the file.
    stored_bytes
        Bytes that those rows take in the file, headers included.
    """

    tensor_index: int
    layer_index: int | None
    layer_name: str | None
    kv_role: str
    component: str
    kv_group: int
    num_pages: int
    page_shape: tuple[int, int, int]
    num_seqs: int
    element_type: str
    index_type: str
    encoding: str
    num_rows: int
    stored_bytes: int

    @property
    def key(self) -> TensorKey:
        """The tensor's key."""
        return (self.kv_group, self.layer_index, self.layer_name, self.kv_role, self.component)

    @property
    def layer(self) -> Layer:
        """``(layer_index, layer_name)``."""
        return (self.layer_index, self.layer_name)

    def __str__(self) -> str:
        layer = "no layer" if self.layer == (None, None) else f"layer {self.layer_index}"
        name = f" ({self.layer_name})" if self.layer_name else ""
        return f"tensor {self.tensor_index}: {layer}{name} {self.kv_role} {self.component}, kv_group {self.kv_group}"


def entries_of(rows: Iterable[IndexRow]) -> tuple[Entry, ...]:
    """Return one entry per tensor, in snapshot order."""
    by_tensor: dict[int, list[IndexRow]] = {}
    for row in rows:
        by_tensor.setdefault(row.tensor_index, []).append(row)
    entries = []
    for tensor_index in sorted(by_tensor):
        own = sorted(by_tensor[tensor_index], key=lambda row: (row.page_offset, row.num_pages > 0))
        first = own[0]
        entries.append(
            Entry(
                tensor_index=tensor_index,
                layer_index=first.layer_index,
                layer_name=first.layer_name,
                kv_role=first.kv_role,
                component=first.component,
                kv_group=first.kv_group,
                num_pages=sum(row.num_pages for row in own),
                page_shape=first.page_shape,
                num_seqs=first.num_seqs,
                element_type=first.element_type,
                index_type=first.index_type,
                encoding=first.encoding,
                num_rows=len(own),
                stored_bytes=sum(row.metadata_bytes + row.body_bytes for row in own),
            )
        )
    return tuple(entries)


def check_entry(entry: Entry, tensor: BlockPagedTensor) -> None:
    """Refuse a tensor that is not what the index listed.

    Raises
    ------
    SnapshotCorruptError
        ``column_mismatch``, with both values.
    """
    descriptor = tensor.descriptor
    facts = {
        "num_pages": descriptor.num_pages,
        "page_shape": descriptor.page_shape,
        "num_seqs": descriptor.num_seqs,
        "element_type": descriptor.element_type.name,
        "index_type": INDEX_TYPE_NAMES[descriptor.index_type],
    }
    problems = [
        Problem(
            ProblemCode.COLUMN_MISMATCH,
            f"tensor {entry.tensor_index}.{name}",
            f"the descriptor says {found!r}, the index {getattr(entry, name)!r}",
            SPEC,
        )
        for name, found in facts.items()
        if found != getattr(entry, name)
    ]
    if problems:
        raise SnapshotCorruptError(problems)


def select_entries(entries: Iterable[Entry], **selectors: Unpack[Selectors]) -> list[Entry]:
    """Return the entries that every selector admits, in their order.

    Raises
    ------
    TypeError
        There is no selector of this name, or its values have another type.
    ValueError
        A kv_role that does not exist: a typing error must not read as an empty snapshot.
    """
    foreign = sorted(set(selectors) - set(SELECTORS))
    if foreign:
        raise TypeError(f"no selector {foreign}: expected some of {list(SELECTORS)}")
    given: dict[str, Any] = {**selectors}
    wanted = {name: _values(name, given.get(name)) for name in SELECTORS}
    return [
        entry
        for entry in entries
        if all(values is None or getattr(entry, name) in values for name, values in wanted.items())
    ]


def exact_selectors(entry: Entry) -> dict[str, Any]:
    """Return selectors that admit this entry and no other: ``None`` by itself would admit every layer."""
    return {name: (getattr(entry, name),) for name in SELECTORS}


def one_entry(matches: list[Entry], among: Iterable[Entry] = ()) -> Entry:
    """Return the only match; where there is none, the message says what there is ``among`` the entries.

    Raises
    ------
    LookupError
        None or several; the message lists them.
    """
    if len(matches) == 1:
        return matches[0]
    listed = "".join(f"\n  {entry}" for entry in matches[:20])
    more = f"\n  … and {len(matches) - 20} more" if len(matches) > 20 else ""
    if matches:
        hint = f"choose by {', '.join(SELECTORS)}, or take all with iter_tensors()"
        raise LookupError(f"{len(matches)} tensors match, expected exactly 1: {hint}{listed}{more}")
    there = list(among)
    held = "".join(f"\n  {name}: {held_values(name, there)}" for name in SELECTORS if there)
    raise LookupError(f"0 tensors match, expected exactly 1{'; the snapshot has' if held else ''}{held}")


def held_values(name: str, entries: Iterable[Entry]) -> str:
    """Say which values of a selector there are, for messages; "" where there is no tensor."""
    return _listed(dict.fromkeys(getattr(entry, name) for entry in entries))


def _listed(values: Iterable[Any]) -> str:
    some = list(values)
    return ", ".join(map(repr, some[:20])) + (f", … ({len(some)})" if len(some) > 20 else "")


def _values(name: str, selector: Any) -> frozenset[int | str | None] | None:
    if selector is None:
        return None
    one = isinstance(selector, int | str | bytes | np.integer) or not isinstance(selector, Iterable)
    given = [selector] if one else list(selector)
    if name == "kv_role":
        return _roles(given)
    kind, types = ("integer", (int, np.integer)) if name in _INTEGERS else ("str", (str,))
    for value in given:
        if not (value is None or isinstance(value, types)):
            raise TypeError(f"{name}: {value!r}, expected one {kind} or several")
    return frozenset(given)


def _roles(given: list[Any]) -> frozenset[int | str | None]:
    roles = [KV_ROLE_NAMES[role] if isinstance(role, KvRole) else role for role in given]
    unknown = [role for role in roles if not (isinstance(role, str) and role in KV_ROLES)]
    if unknown:
        raise ValueError(f"kv_role {unknown}: expected key, value or fused")
    return frozenset(roles)
