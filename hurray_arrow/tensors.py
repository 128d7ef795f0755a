"""Several tensors, as callers hand them over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hurray_arrow.tensor import BlockPagedTensor


def listed_tensors(tensors: Iterable[Any]) -> list[BlockPagedTensor]:
    """Return tensors as a list.

    Raises
    ------
    TypeError
        One tensor alone, or something else among them.
    """
    if isinstance(tensors, BlockPagedTensor):
        raise TypeError("tensors: one BlockPagedTensor, expected several: [tensor]")
    found = list(tensors)
    for number, tensor in enumerate(found):
        if not isinstance(tensor, BlockPagedTensor):
            message = f"tensors[{number}]: {type(tensor).__name__}, expected BlockPagedTensor"
            raise TypeError(f"{message}: BlockPagedTensor.from_arrays() makes one of arrays")
    return found
