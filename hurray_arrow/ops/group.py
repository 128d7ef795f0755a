"""The tensors that an operation takes: one, or several of one kv_group, which keep the same tables and sequences.

Spec: snapshot format section 2, kv_group and companions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hurray_arrow.components import means_whole_pages
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors, unlike_tables

#: What operations take; a sequence holds tensors of one kv_group.
Tensors: TypeAlias = BlockPagedTensor | Sequence[BlockPagedTensor]
Group: TypeAlias = tuple[BlockPagedTensor, ...]

_SPEC = "snapshot format 2"


def take_group(tensors: Tensors) -> Group:
    """Take one tensor, or the tensors of one kv_group, and check all of them as they are now.

    Raises
    ------
    ValueError
        There are no tensors.
    TypeError
        Something else among them.
    InvariantError
        ``kv_group_mismatch``: tables, sequences, page_size or group numbers differ. All codes of
        :meth:`BlockPagedTensor.validate`, for a tensor that was opened permissively or has changed since.

    Spec: snapshot format section 2.
    """
    group = (tensors,) if isinstance(tensors, BlockPagedTensor) else tuple(listed_tensors(tensors))
    if not group:
        raise ValueError("no tensors")
    for tensor in group:
        tensor.check()
    for place, tensor in enumerate(group[1:], 1):
        check_same_tables(group[0], tensor, where=f"tensors[{place}]")
    numbers = sorted({tensor.kv_group for tensor in group if tensor.kv_group is not None})
    if len(numbers) > 1:
        message = f"tensors of kv_groups {numbers}, expected one group"
        raise InvariantError(Problem(ProblemCode.KV_GROUP_MISMATCH, "kv_group", message, _SPEC))
    return group


def take_groups(several: Iterable[Tensors], *, name: str) -> tuple[list[Tensors], list[Group]]:
    """Take several tensors, or several groups: as they were given, and as groups.

    Raises
    ------
    ValueError
        There are none.
    TypeError
        One tensor alone, or tensors and groups mixed.
    InvariantError
        As :func:`take_group`.
    """
    if isinstance(several, BlockPagedTensor):
        raise TypeError(f"{name}: one BlockPagedTensor, expected several: [tensor]")
    listed = list(several)
    if not listed:
        raise ValueError(f"no {name}")
    if len({isinstance(each, BlockPagedTensor) for each in listed}) > 1:
        raise TypeError(f"{name}: expected one tensor each, or several tensors each, not both")
    return listed, [take_group(each) for each in listed]


def given_back(tensors: Tensors, results: Iterable[BlockPagedTensor]) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Give one tensor where one was taken, else a list."""
    listed = list(results)
    return listed[0] if isinstance(tensors, BlockPagedTensor) else listed


def check_same_tables(first: BlockPagedTensor, other: BlockPagedTensor, *, where: str) -> None:
    """Check that two tensors have the same page_size, tables and facts about sequences, by value.

    Raises
    ------
    InvariantError
        ``kv_group_mismatch``; ``.where`` says what differs.
    """
    problems = [
        Problem(
            ProblemCode.KV_GROUP_MISMATCH,
            f"{where}.{name}",
            _unlike(getattr(other, name), getattr(first, name)),
            _SPEC,
        )
        for name in unlike_tables(first, other)
    ]
    if problems:
        raise InvariantError(problems)


def _unlike(found: Any, expected: Any) -> str:
    # No token ids, names or tenants: a message goes into logs.
    if not isinstance(found, np.ndarray):
        return f"{found}, expected {expected}"
    if found.size != expected.size:
        return f"{found.size} entries, expected {expected.size}"
    place = int(np.argmax(found != expected))
    return f"entry {place} is {found[place]}, expected {expected[place]}"


def mismatch(where: str, name: str, found: object, expected: object) -> InvariantError:
    """Build the refusal of two tensors that have to agree in a field and do not."""
    message = f"{found}, expected {expected}"
    return InvariantError(Problem(ProblemCode.TENSOR_MISMATCH, f"{where}.{name}", message, field=name))


def check_same_kind(first: BlockPagedTensor, other: BlockPagedTensor, *, names: Iterable[str], where: str) -> None:
    """Check that two tensors agree in the fields named.

    Raises
    ------
    InvariantError
        ``tensor_mismatch`` for the first that differs, with both values and the field's name.
    """
    for name in names:
        expected, found = getattr(first, name), getattr(other, name)
        if expected != found:
            raise mismatch(where, name, found, expected)


def refuse_whole_pages(group: Group, *, operation: str) -> None:
    """Refuse companions of which only whole pages have meaning, for an operation that goes into pages.

    Raises
    ------
    UnsupportedError
        A component is called ``page.<name>``.

    Spec: snapshot format section 2, companions.
    """
    for tensor in group:
        if means_whole_pages(tensor.component):
            raise UnsupportedError(
                f"{operation}: only whole pages of component {tensor.component!r} have meaning, and this would cut them"
            )
