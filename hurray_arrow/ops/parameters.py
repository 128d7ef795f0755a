"""Quantization parameters of a tensor: out of their buffers, and back into buffers in the same order.

Spec: block-paged layout, Quantization Compatibility; wire-format page section 3.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import Problem, ProblemCode, QuantizationError, UnsupportedError
from hurray_arrow.memory import Bytes, copy_of
from hurray_arrow.quantization import split_parameters
from hurray_arrow.schemes import FIRST_PARAMETER_BUFFER, OpaqueScheme, PerBlock, PerChannel
from hurray_arrow.tensor import BlockPagedTensor

#: Scales, then zero points where the scheme has them.
Parameters: TypeAlias = tuple[npt.NDArray[Any], ...]

_SPEC = "Quantization Compatibility"


def check_movable(tensor: BlockPagedTensor, *, operation: str) -> None:
    """Refuse parameters of which nobody says how they belong to pages, slots, heads and dimensions.

    Raises
    ------
    UnsupportedError
        NF4 and MXFP, and buffers that the scheme does not name.

    Spec: wire-format page section 3.
    """
    quantization = tensor.quantization
    if isinstance(quantization, OpaqueScheme):
        raise UnsupportedError(f"{operation}: the layout gives the parameters of {quantization.scheme} no rule")
    named: set[int] = set()
    if quantization is not None:
        named = set(quantization.parameter_sizes(tensor.descriptor.shape, tensor.num_pages, tensor.page_size))
    last = FIRST_PARAMETER_BUFFER + len(tensor.quantization_buffers)
    if unnamed := sorted(set(range(FIRST_PARAMETER_BUFFER, last)) - named):
        raise UnsupportedError(f"{operation}: no scheme says what buffers {unnamed} hold")


def read_parameters(tensor: BlockPagedTensor) -> Parameters:
    """Give the parameters that lie in buffers.

    Returns
    -------
    tuple of numpy.ndarray
        Views: scales of the scheme's type and, where there are some, int32 zero points; ``[num_pages × page_size]``
        for 0x03, ``[num_heads]`` or ``[head_dim]`` for 0x02. Empty for other schemes.
    """
    quantization = tensor.quantization
    if not isinstance(quantization, PerChannel | PerBlock):
        return ()
    descriptor = tensor.descriptor
    scales, zero_points = split_parameters(
        quantization,
        dict(enumerate(tensor.quantization_buffers, FIRST_PARAMETER_BUFFER)),
        shape=descriptor.shape,
        num_pages=descriptor.num_pages,
        page_size=descriptor.page_size,
    )
    return (scales,) if zero_points is None else (scales, zero_points)


def lay_parameters(tensor: BlockPagedTensor, parameters: Parameters) -> tuple[Bytes, ...]:
    """Lay parameters into new buffers as those of ``tensor`` lie in its own.

    Parameters
    ----------
    tensor
        Whose scheme and number of buffers count.
    parameters
        As :func:`read_parameters` gives them, of any length.

    Returns
    -------
    tuple of numpy.ndarray
        New uint8 arrays: buffers 3, 4, ….
    """
    quantization = tensor.quantization
    if not isinstance(quantization, PerChannel | PerBlock):
        return ()
    places = (quantization.scale_buffer_index, quantization.zero_point_buffer_index)
    parts: dict[int | None, list[Bytes]] = {index: [] for index in places}
    for index, values in zip(places, parameters, strict=False):
        parts[index].append(np.ascontiguousarray(values).view(np.uint8))
    indices = range(FIRST_PARAMETER_BUFFER, FIRST_PARAMETER_BUFFER + len(tensor.quantization_buffers))
    return tuple(copy_of(np.concatenate(parts[index])) for index in indices)


def same_buffers(one: BlockPagedTensor, other: BlockPagedTensor) -> bool:
    """Say whether two tensors have the same parameter buffers, bit for bit."""
    mine, theirs = one.quantization_buffers, other.quantization_buffers
    return len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))


def check_same_scheme(first: BlockPagedTensor, other: BlockPagedTensor, *, where: str) -> None:
    """Refuse tensors of different schemes: nothing is ever requantized.

    A scheme with one scale for the whole tensor is another scheme when its scale or zero point differs.

    Raises
    ------
    QuantizationError
        ``quantization_mismatch``, with both schemes.
    """
    if first.quantization != other.quantization:
        raise parameters_differ(where, str(other.quantization), str(first.quantization))


def parameters_differ(where: str, found: str, expected: str) -> QuantizationError:
    """Build the refusal of parameters that differ."""
    message = f"{found}, expected {expected}: values are never requantized"
    return QuantizationError(Problem(ProblemCode.QUANTIZATION_MISMATCH, f"{where}.quantization", message, _SPEC))
