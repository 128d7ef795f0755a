"""Read-only mappings of files, and private writable copies of what lies in them.

Everything that is read from a file lies in one of these mappings. Who wants to write gets the same bytes mapped a
second time, copy-on-write: a write changes that copy only, reaches no file and no other process, and no page is copied
before it is written.

Spec: snapshot format, section 5, "share".
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any, Self

import numpy as np
import numpy.typing as npt

#: A private mapping may be larger than memory and swap together, since most of its pages are never written.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class FileMapping(mmap.mmap):
    """A whole file, mapped so that nothing in this process can write into it.

    It is mapped privately: a mapping of a sealed memory file cannot be shared before Linux 6.7, private pages of a file
    are in no core dump, and not even ``mprotect`` makes a way back into the file. The pages are the file's own until
    somebody writes, which nobody can.

    Parameters
    ----------
    descriptor
        The open file; duplicated, so that the caller may close it.
    size_bytes
        The file's size, at least 1.
    """

    descriptor: int
    address: int

    def __new__(cls, descriptor: int, size_bytes: int) -> Self:  # noqa: D102 - the class documents its parameters
        mapping = super().__new__(cls, descriptor, size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        mapping.descriptor = os.dup(descriptor)
        weakref.finalize(mapping, os.close, mapping.descriptor).atexit = False
        mapping.address = int(np.frombuffer(mapping, np.uint8).ctypes.data)
        with _LOCK:
            _MAPPINGS[mapping.address] = mapping
        return mapping


#: The mappings of this process that are alive, by address: an array does not say what it is a view of.
_MAPPINGS: weakref.WeakValueDictionary[int, FileMapping] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def mapping_of(array: npt.NDArray[Any]) -> tuple[FileMapping, int] | None:
    """Return the file mapping that all of an array lies in, and the array's offset in the file in bytes.

    Parameters
    ----------
    array
        C-contiguous.

    Returns
    -------
    tuple of FileMapping and int, or None
        ``None`` where the array lies elsewhere, or has no bytes.
    """
    start = int(array.ctypes.data)
    with _LOCK:
        alive = list(_MAPPINGS.items())
    for address, mapping in alive:
        if array.nbytes and address <= start and start + array.nbytes <= address + len(mapping):
            return mapping, start - address
    return None


def private_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return a writable array of the same bytes that shares memory with nobody, without copying any.

    Parameters
    ----------
    array
        C-contiguous, a view of a file that this library mapped.

    Returns
    -------
    ndarray or None
        A view of a new private mapping of the file, which it keeps alive; the system copies a page of memory when it
        is first written. ``None`` where the array lies in no such mapping.
    """
    found = mapping_of(array)
    if found is None:
        return None
    mapping, offset = found
    before = offset % mmap.ALLOCATIONGRANULARITY
    private = mmap.mmap(
        mapping.descriptor,
        before + array.nbytes,
        flags=mmap.MAP_PRIVATE | _NO_RESERVE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
        offset=offset - before,
    )
    return np.frombuffer(private, array.dtype, array.size, before).reshape(array.shape)
