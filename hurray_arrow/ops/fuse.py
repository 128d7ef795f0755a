"""Fuse: keys and values of a head packed one after the other, as unified caches of engines have them.

Spec: block-paged layout, kv_role.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex, overload

import numpy as np

from hurray_arrow.intake import as_bytes
from hurray_arrow.memory import Bytes
from hurray_arrow.ops.columns import cut_columns, join_columns
from hurray_arrow.ops.group import (
    Group,
    check_same_kind,
    check_same_tables,
    given_back,
    mismatch,
    refuse_whole_pages,
    take_group,
)
from hurray_arrow.ops.parameters import (
    check_movable,
    check_same_scheme,
    lay_parameters,
    parameters_differ,
    read_parameters,
    same_buffers,
)
from hurray_arrow.ops.results import Tables, rebuilt, tables_of
from hurray_arrow.schemes import PerChannel
from hurray_arrow.spec import KvRole
from hurray_arrow.tensor import BlockPagedTensor

_DIMS_AXIS = 2
_SAME = ("layer_index", "layer_name", "component", "element_type", "num_pages", "num_heads")


@overload
def fuse(keys: BlockPagedTensor, values: BlockPagedTensor) -> BlockPagedTensor: ...
@overload
def fuse(keys: Sequence[BlockPagedTensor], values: Sequence[BlockPagedTensor]) -> list[BlockPagedTensor]: ...
def fuse(
    keys: BlockPagedTensor | Sequence[BlockPagedTensor], values: BlockPagedTensor | Sequence[BlockPagedTensor]
) -> BlockPagedTensor | list[BlockPagedTensor]:
    """Pack keys and values into one tensor: of every head first the key's dimensions, then the value's.

    Parameters
    ----------
    keys, values
        A tensor of role key and one of role value; or as many of each, of one kv_group and in the same
        order, companions included.

    Returns
    -------
    BlockPagedTensor or list of BlockPagedTensor
        Role fused, head_dim the sum of both: new memory, tables and facts as they are.

    Raises
    ------
    InvariantError
        ``tensor_mismatch``: roles, layers, element types, pages or heads differ, with both values.
        ``kv_group_mismatch``: tables or sequences differ. All codes of :meth:`BlockPagedTensor.validate`.
    QuantizationError
        ``quantization_mismatch``: schemes, or parameters that do not belong to dimensions, differ.
    UnsupportedError
        A component ``page.<name>``; parameters of which nobody says how they belong to dimensions.
    TypeError
        One tensor on one side and several on the other.

    Examples
    --------
    >>> fused = ha.ops.fuse(keys, values)
    >>> fused.kv_role, fused.page_pool.shape
    ('fused', (5, 4, 2, 6))

    Spec: block-paged layout, kv_role.
    """
    if isinstance(keys, BlockPagedTensor) is not isinstance(values, BlockPagedTensor):
        raise TypeError("expected one key and one value, or several of each")
    key_group, value_group = take_group(keys), take_group(values)
    if len(key_group) != len(value_group):
        raise mismatch("values", "tensors", len(value_group), len(key_group))
    check_same_tables(key_group[0], value_group[0], where="values")
    pairs = list(zip(key_group, value_group, strict=True))
    for key, value in pairs:
        _check_pair(key, value)
    tables = tables_of(key_group[0])
    return given_back(keys, [_fused(key, value, tables) for key, value in pairs])


@overload
def unfuse(fused: BlockPagedTensor, *, key_dim: SupportsIndex) -> tuple[BlockPagedTensor, BlockPagedTensor]: ...
@overload
def unfuse(
    fused: Sequence[BlockPagedTensor], *, key_dim: SupportsIndex
) -> tuple[list[BlockPagedTensor], list[BlockPagedTensor]]: ...
def unfuse(
    fused: BlockPagedTensor | Sequence[BlockPagedTensor], *, key_dim: SupportsIndex
) -> tuple[BlockPagedTensor, BlockPagedTensor] | tuple[list[BlockPagedTensor], list[BlockPagedTensor]]:
    """Take a tensor of packed keys and values apart, as :func:`fuse` packs them.

    That the first dimensions are the keys cannot be seen in the bytes: a latent of MLA has role fused too, and is no
    pair of keys and values.

    Parameters
    ----------
    fused
        A tensor of role fused, or several of one kv_group that have ``key_dim`` dimensions of the key in each head.
    key_dim
        Dimensions of a head that are the key's, from the first on.

    Returns
    -------
    keys, values : BlockPagedTensor or list of BlockPagedTensor
        As given; new memory, tables and facts as they are.

    Raises
    ------
    InvariantError
        ``tensor_mismatch``: another role, or fewer dimensions than ``key_dim``. All codes of
        :meth:`BlockPagedTensor.validate`.
    UnsupportedError
        A component ``page.<name>``; parameters of which nobody says how they belong to dimensions.

    Spec: block-paged layout, kv_role.
    """
    group = take_group(fused)
    dim = operator.index(key_dim)
    refuse_whole_pages(group, operation="unfuse")
    for place, tensor in enumerate(group):
        _check_role(tensor, "fused", where=f"fused[{place}]")
        check_movable(tensor, operation="unfuse")
        if not 0 <= dim <= tensor.head_dim:
            raise mismatch(f"fused[{place}]", "head_dim", tensor.head_dim, f"0 <= key_dim {dim} <= head_dim")
    tables = tables_of(group[0])
    keys = [_dims_of(tensor, (0, dim), KvRole.KEY, tables) for tensor in group]
    values = [_dims_of(tensor, (dim, tensor.head_dim), KvRole.VALUE, tables) for tensor in group]
    if isinstance(fused, BlockPagedTensor):
        return keys[0], values[0]
    return keys, values


def _check_role(tensor: BlockPagedTensor, role: str, *, where: str) -> None:
    if tensor.kv_role != role:
        raise mismatch(where, "kv_role", tensor.kv_role, role)


def _check_pair(key: BlockPagedTensor, value: BlockPagedTensor) -> None:
    _check_role(key, "key", where="keys")
    _check_role(value, "value", where="values")
    pair: Group = (key, value)
    refuse_whole_pages(pair, operation="fuse")
    for tensor in pair:
        check_movable(tensor, operation="fuse")
    check_same_kind(key, value, names=_SAME, where="values")
    check_same_scheme(key, value, where="values")
    if not _per_dim(key) and not same_buffers(key, value):
        raise parameters_differ("values", "other parameters", "those of the keys")


def _per_dim(tensor: BlockPagedTensor) -> bool:
    return isinstance(tensor.quantization, PerChannel) and tensor.quantization.axis == _DIMS_AXIS


def _fused(key: BlockPagedTensor, value: BlockPagedTensor, tables: Tables) -> BlockPagedTensor:
    pools = [as_bytes(tensor.page_pool) for tensor in (key, value)]
    rows = key.num_pages * key.page_size * key.num_heads
    parameters: tuple[Bytes, ...] = key.quantization_buffers
    if _per_dim(key):
        columns = zip(read_parameters(key), read_parameters(value), strict=True)
        parameters = lay_parameters(key, tuple(np.concatenate(column) for column in columns))
    return rebuilt(
        key,
        tables,
        page_pool=join_columns(pools, key.element_type, rows=rows, widths=[key.head_dim, value.head_dim]),
        parameters=parameters,
        page_shape=(key.page_size, key.num_heads, key.head_dim + value.head_dim),
        kv_role=KvRole.FUSED,
    )


def _dims_of(tensor: BlockPagedTensor, dims: tuple[int, int], role: KvRole, tables: Tables) -> BlockPagedTensor:
    parameters = tensor.quantization_buffers
    if _per_dim(tensor):
        parameters = lay_parameters(tensor, tuple(values[slice(*dims)] for values in read_parameters(tensor)))
    pool = cut_columns(
        as_bytes(tensor.page_pool),
        tensor.element_type,
        rows=tensor.num_pages * tensor.page_size * tensor.num_heads,
        width=tensor.head_dim,
        columns=dims,
    )
    shape = (tensor.page_size, tensor.num_heads, dims[1] - dims[0])
    return rebuilt(tensor, tables, page_pool=pool, parameters=parameters, page_shape=shape, kv_role=role)
