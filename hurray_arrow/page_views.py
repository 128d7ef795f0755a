"""Page pools for libraries that know no read-only memory: DLPack and torch.

A write through a view of a read-only mapping kills the process. These views are of a private copy-on-write mapping of
the same file instead: nothing is copied before it is written, and a write changes the caller's copy only.

Spec: snapshot format, section 5, "share".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import CopyRequiredError, MissingDependencyError, UnsupportedError
from hurray_arrow.mappings import private_copy
from hurray_arrow.tensor import BlockPagedTensor

if TYPE_CHECKING:
    import torch


def private_pages(tensor: BlockPagedTensor) -> npt.NDArray[Any]:
    """Return the page pool for writing: in a private copy-on-write mapping, which the array keeps alive.

    Raises
    ------
    CopyRequiredError
        The pages lie in no file or memory that this library mapped.
    """
    if not tensor.page_pool.nbytes:
        return np.empty_like(tensor.page_pool)
    pages = private_copy(tensor.page_pool)
    if pages is None:
        raise CopyRequiredError(
            "page_pool: it lies in no mapped file or shared memory, so that a view for writing would be its only copy; "
            "to_torch() or page_pool.copy() copy it"
        )
    return pages


def dlpack_capsule(tensor: BlockPagedTensor, **options: Any) -> Any:
    """Return the page pool as a DLPack capsule over a private copy-on-write mapping.

    Parameters
    ----------
    tensor
        The tensor.
    **options
        The protocol's ``stream``, ``max_version``, ``dl_device``, ``copy``.

    Raises
    ------
    BufferError
        numpy cannot export the type: bfloat16, float8 and opaque types. ``as_torch()`` does bfloat16 and float8.
    CopyRequiredError
        As :func:`private_pages`.
    """
    try:
        return private_pages(tensor).__dlpack__(**options)
    except BufferError as error:
        raise BufferError(f"{tensor.element_type.name}: {error} as_torch() shares bfloat16 and float8 too.") from error


def as_torch(tensor: BlockPagedTensor) -> torch.Tensor:
    """Return the page pool as a torch tensor; see :meth:`BlockPagedTensor.as_torch`."""
    dtype = _torch_dtype(tensor)
    return _torch_tensor(private_pages(tensor), dtype)


def to_torch(tensor: BlockPagedTensor) -> torch.Tensor:
    """Return the page pool as a torch tensor, copied where it has to be."""
    dtype = _torch_dtype(tensor)
    try:
        pages = private_pages(tensor)
    except CopyRequiredError:
        pages = tensor.page_pool.copy()
    return _torch_tensor(pages, dtype)


def _torch_dtype(tensor: BlockPagedTensor) -> torch.dtype:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("torch", extra="torch") from error
    element = tensor.element_type
    if element.is_packed:
        return torch.uint8
    # ml_dtypes and torch call their types by the same names.
    dtype = None if element.dtype is None else getattr(torch, element.dtype.name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"torch {torch.__version__} has no type for {element.name}; page_pool has the bytes")
    return dtype


def _torch_tensor(pages: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    import torch

    # numpy's bfloat16 and float8 are ml_dtypes', which torch does not know; a pool of bool is packed, never numpy's.
    return torch.from_numpy(pages.reshape(-1).view(np.uint8)).view(dtype).reshape(pages.shape)
