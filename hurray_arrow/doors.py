"""The doors of a tensor to other libraries of the process: protocols they look for, and constructors from theirs.

Each imports its other side when it is used, so that numpy is all that a tensor needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hurray_arrow.tensor import BlockPagedTensor


class TensorDoors:
    """What :class:`BlockPagedTensor` offers to Arrow libraries, DLPack, torch and pyhurray.

    No page is copied by any door except ``to_torch``, and none leads to a page that others share and a caller could
    write: who may write gets a private copy-on-write mapping.
    """

    __slots__ = ()

    def __arrow_c_schema__(self: Any) -> Any:
        from hurray_arrow.arrow.capsules import schema_capsule

        return schema_capsule(self)

    def __arrow_c_array__(self: Any, requested_schema: Any = None) -> tuple[Any, Any]:
        from hurray_arrow.arrow.capsules import array_capsules

        return array_capsules(self, requested_schema)

    def __dlpack__(self: Any, **options: Any) -> Any:
        from hurray_arrow.page_views import dlpack_capsule

        return dlpack_capsule(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def as_torch(self: Any) -> torch.Tensor:
        """Return the page pool as a torch tensor of the same memory, whose writes nobody else sees.

        Returns
        -------
        torch.Tensor
            ``[num_pages, page_size, num_heads, head_dim]``, or uint8 ``[pool_bytes]`` for types narrower than a byte,
            over a private copy-on-write mapping that it keeps alive: a write copies one page of the system's, reaches
            no file and no other process, and not this tensor either.

        Raises
        ------
        CopyRequiredError
            The pages lie in no file or memory that this library mapped; :meth:`to_torch` copies them.
        UnsupportedError
            torch has no such type.
        MissingDependencyError
            torch is not installed.
        """
        from hurray_arrow.page_views import as_torch

        return as_torch(self)

    def to_torch(self: Any) -> torch.Tensor:
        """Return the page pool as a torch tensor; as :meth:`as_torch` where that goes, and a copy otherwise."""
        from hurray_arrow.page_views import to_torch

        return to_torch(self)

    def __hurray__(self: Any, stream: Any = None) -> Any:
        from hurray_arrow.engines.hurray import tensor_capsule

        return tensor_capsule(self, stream)

    @classmethod
    def from_hurray(cls, source: Any, **facts: Any) -> BlockPagedTensor:
        """Build a tensor on the memory of a ``hurray.Tensor``, or of anything with ``__hurray__``.

        Parameters
        ----------
        source
            A block-paged tensor in CPU memory.
        **facts
            What :meth:`BlockPagedTensor.from_buffers` takes beside descriptor and buffers.

        Returns
        -------
        BlockPagedTensor
            Read-only views that keep ``source`` alive; its descriptor has the same bytes.

        Raises
        ------
        TypeError
            ``source`` has no ``__hurray__``.
        UnsupportedError
            Another layout, memory of a device, or another version of the C interface.
        WireFormatError, InvariantError, QuantizationError
            As :meth:`BlockPagedTensor.from_buffers`.
        MissingDependencyError
            pyhurray is not installed.
        """
        from hurray_arrow.engines.hurray import tensor_of

        return tensor_of(source, **facts)
