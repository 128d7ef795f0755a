"""The same pages in two processes of one machine, without a copy and without trust.

:func:`publish` writes tensors into memory that nobody can change any more, and hands its descriptor to another process,
which maps it: :func:`receive`. :func:`allocate` lays the same memory out first, so that an engine copies its pages
straight into it. :func:`publish_file` is for systems without memory files: a file that its owner removes.
"""

from hurray_arrow.share.allocation import Allocation, allocate, tensor_spec
from hurray_arrow.share.named_snapshot import NamedSnapshot, is_stale, publish_file, remove_stale
from hurray_arrow.share.sealed_snapshot import SealedSnapshot, open_sealed, publish, receive

__all__ = [
    "Allocation",
    "NamedSnapshot",
    "SealedSnapshot",
    "allocate",
    "is_stale",
    "open_sealed",
    "publish",
    "publish_file",
    "receive",
    "remove_stale",
    "tensor_spec",
]
