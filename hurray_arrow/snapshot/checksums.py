"""xxh3-64 over pages and byte ranges, as the snapshot format writes them.

xxh3 guards against accidents, not against an attacker.

Spec: snapshot format, sections 2 and 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.schema import POOL_BYTES_PIECE, page_class_of
from hurray_arrow.errors import Problem, ProblemCode, listed_problems
from hurray_arrow.tensor import BlockPagedTensor

SPEC = "snapshot format 4"
#: Checksums that are Python's integers at the same time.
_AT_ONCE = 1 << 16


def xxh3_hex(*parts: Any) -> str:
    """Return xxh3-64 of bytes-like objects, one behind the other, as 16 lower-case hex digits."""
    if len(parts) == 1:
        return xxhash.xxh3_64_hexdigest(parts[0])
    whole = xxhash.xxh3_64()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def page_checksums(
    pool: npt.NDArray[np.uint8], piece_bytes: int, page_ids: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.uint64]:
    """Return xxh3-64 of pages.

    Parameters
    ----------
    pool
        uint8 ``[num_pages * piece_bytes]``; the last piece of ``pool_bytes`` may be shorter.
    piece_bytes
        Bytes of a page, or :func:`checksum_piece_bytes` of its class.
    page_ids
        int64 ``[pages]``: which; ``None`` for all.

    Returns
    -------
    numpy.ndarray
        uint64 ``[pages]``, new.
    """
    view = memoryview(pool.data)
    digest = xxhash.xxh3_64_intdigest
    starts = range(0, len(view), piece_bytes) if page_ids is None else (page_ids * piece_bytes).tolist()
    found = np.empty(len(starts), np.uint64)
    # Not all at once: as Python's integers they take four times as much.
    for first in range(0, len(starts), _AT_ONCE):
        some = starts[first : first + _AT_ONCE]
        found[first : first + len(some)] = np.array(
            [digest(view[start : start + piece_bytes]) for start in some], np.uint64
        )
    return found


def tensor_checksums(tensor: BlockPagedTensor) -> npt.NDArray[np.uint64]:
    """Return the checksums of a tensor's pages: uint64, one per page, or per MiB where its pool cannot be cut."""
    return page_checksums(tensor.buffers[0], checksum_piece_bytes(page_class_of(tensor.descriptor)))


def checksum_piece_bytes(page_class: PageClass) -> int:
    """Return how many bytes one checksum covers: a page, or a MiB of ``pool_bytes``."""
    page_bytes = page_class.page_bytes
    return page_bytes if page_class.fits_a_column and page_bytes else POOL_BYTES_PIECE


def page_problems(
    tensor: BlockPagedTensor,
    stored: npt.NDArray[np.uint64] | None,
    *,
    tensor_index: int,
    unverified: list[Problem] | None = None,
) -> list[Problem]:
    """Compare the pages of a tensor with their stored checksums.

    Parameters
    ----------
    tensor, tensor_index
        The tensor, and its place in the snapshot.
    stored
        uint64, one per page (``pool_bytes``: one per MiB); ``None`` where nobody stored any.
    unverified
        Gets a record where there are pages and no checksums.
    """
    where = f"tensor {tensor_index}.page_pool"
    if stored is None:
        if tensor.buffers[0].nbytes and unverified is not None:
            unverified.append(Problem(ProblemCode.UNVERIFIED, where, "the pages have no checksums", SPEC))
        return []
    return checksum_problems(tensor_checksums(tensor), stored, where=where)


def checksum_problems(
    found: npt.NDArray[np.uint64],
    stored: npt.NDArray[np.uint64],
    *,
    where: str,
    page_ids: npt.NDArray[np.int64] | None = None,
) -> list[Problem]:
    """Compare checksums, of all pages or of those with ``page_ids``; the first hundred that differ, and how many."""
    if len(found) != len(stored):
        message = f"{len(stored)} checksums, expected {len(found)}"
        return [Problem(ProblemCode.PAGE_CHECKSUM, where, message, SPEC)]
    broken = np.flatnonzero(found != stored)

    def say(place: int) -> tuple[str, str]:
        page = place if page_ids is None else page_ids[place]
        return f"{where}[{page}]", f"xxh3 {found[place]:016x}, stored {stored[place]:016x}: damaged"

    return listed_problems(broken, ProblemCode.PAGE_CHECKSUM, SPEC, say=say)
