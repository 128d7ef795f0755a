"""The bytes of single pages, and which pages have the same.

Spec: block-paged layout, Prefix Sharing and Per-page-slot parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from hurray_arrow.components import means_whole_pages
from hurray_arrow.intake import as_bytes
from hurray_arrow.memory import Bytes
from hurray_arrow.ops.page_table import Int64Array
from hurray_arrow.ops.parameters import read_parameters
from hurray_arrow.packing import unpack_codes
from hurray_arrow.schemes import PerBlock
from hurray_arrow.tensor import BlockPagedTensor


class PageBytes:
    """Reads what a tensor stores in the first slots of a page: values and per-slot parameters.

    Parameters
    ----------
    tensor
        A checked tensor; its memory is read when a page is asked for.
    """

    def __init__(self, tensor: BlockPagedTensor) -> None:
        self._element = tensor.element_type
        self._page_size = tensor.page_size
        self._slot_elems = tensor.num_heads * tensor.head_dim
        self._pool = as_bytes(tensor.page_pool)
        self._whole = means_whole_pages(tensor.component)
        parameters = read_parameters(tensor) if isinstance(tensor.quantization, PerBlock) else ()
        self._parameters = [(as_bytes(array), array.dtype.itemsize) for array in parameters]

    def parts(self, page: int, slots: int) -> list[Bytes]:
        """Give the bytes of the first ``slots`` slots of a page, of all of them where only whole pages have meaning.

        Returns
        -------
        list of numpy.ndarray
            uint8 ``[bytes]``: views, but codes of packed values that do not lie on bytes are unpacked.
        """
        slots = self._page_size if self._whole else slots
        first = page * self._page_size
        parts = [array[first * width : (first + slots) * width] for array, width in self._parameters]
        start, count, bits = first * self._slot_elems, slots * self._slot_elems, self._element.bits
        if start * bits % 8 or count * bits % 8:
            return [*parts, unpack_codes(self._pool, bits, start=start, count=count)]
        return [*parts, self._pool[start * bits // 8 : (start + count) * bits // 8]]


def pages_equal(one: Sequence[PageBytes], page: int, other: Sequence[PageBytes], other_page: int, slots: int) -> bool:
    """Say whether two pages hold the same bytes in their first slots, in every tensor of a group."""
    return all(
        np.array_equal(mine, theirs)
        for reader, other_reader in zip(one, other, strict=True)
        for mine, theirs in zip(reader.parts(page, slots), other_reader.parts(other_page, slots), strict=True)
    )


def equal_pages(pages: Sequence[tuple[Sequence[PageBytes], int]], fill: Int64Array) -> Int64Array:
    """Find pages that are equal: filled to the same slot, with the same bytes up to there in every tensor of a group.

    Candidates are found by xxh3-64 and then compared byte for byte, so that no two pages are taken for equal by chance.

    Parameters
    ----------
    pages
        Readers of a group's tensors, and the page's number in their pools.
    fill
        int64 ``[len(pages)]``: slots in use.

    Returns
    -------
    numpy.ndarray
        New int64 array ``[len(pages)]``: the first page that each is equal to, itself where there is none before it.
    """
    seen: dict[tuple[int, int], list[int]] = {}
    same_as = np.arange(len(pages))
    for number, (readers, page) in enumerate(pages):
        slots = int(fill[number])
        digest = xxhash.xxh3_64()
        for reader in readers:
            for part in reader.parts(page, slots):
                digest.update(part.data)
        candidates = seen.setdefault((slots, digest.intdigest()), [])
        for candidate in candidates:
            other_readers, other_page = pages[candidate]
            if pages_equal(readers, page, other_readers, other_page, slots):
                same_as[number] = candidate
                break
        else:
            candidates.append(number)
    return same_as
