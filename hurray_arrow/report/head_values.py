"""What keys and values look like, head by head: ranges and norms over sampled pages.

Spec: block-paged layout, Element Lookup; snapshot format, section 5, "archive".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.arrow.compressed_batch import compressed_bytes
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.planes import to_planes
from hurray_arrow.arrow.schema import page_class_of
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.report.group import MOST_PAGES
from hurray_arrow.report.numbers import NOTHING, percent, sentence
from hurray_arrow.report.sampling import DEFAULT_SAMPLE_BYTES, SEED, PageSample, run_pages, sample_pages
from hurray_arrow.snapshot.archive_rows import MAX_ROW_BYTES, WIDE_EXPONENTS
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.texts import count, printable, size
from hurray_arrow.views.group_facts import GroupFacts, Int64Array
from hurray_arrow.views.pages import TENSORS_AT_ONCE
from hurray_arrow.views.selection import Selection
from hurray_arrow.views.values import has_numbers, slot_statistics

#: Tensors that are looked at; the others are named.
MOST_TENSORS = 1024
#: Bytes of pages that are worked on at a time, and compressed together as in an archive.
_AT_ONCE_BYTES = MAX_ROW_BYTES
_NAMES = ("norm", "min", "max")

Float64Array = npt.NDArray[np.float64]


@dataclass(slots=True)
class HeadValues:
    """One tensor's values, float64 ``[num_heads]`` each, NaN where there is nothing; over the slots of sampled pages.

    Parameters
    ----------
    entry
        The tensor.
    lowest, highest
        Least and greatest finite element.
    norm_sum, norms
        Sum of the finite norms of a token's elements, and how many they are.
    largest_norm
        The largest of them.
    pool_bytes
        Bytes of all its pages.
    num_pages, num_filled
        Pages read, of the pages that hold tokens.
    slots, not_finite
        Tokens × heads looked at, and those of them with an element or a norm that is infinite or NaN.
    raw_bytes, plane_bytes
        Of the pages read: bytes, and what each byte plane takes compressed as an archive does; empty where that was not
        tried.
    """

    entry: Entry
    lowest: Float64Array
    highest: Float64Array
    norm_sum: Float64Array
    norms: Int64Array
    largest_norm: Float64Array
    pool_bytes: int = 0
    num_pages: int = 0
    num_filled: int = 0
    slots: int = 0
    not_finite: int = 0
    raw_bytes: int = 0
    plane_bytes: list[int] = field(default_factory=list)

    @classmethod
    def nothing(cls, entry: Entry) -> HeadValues:
        """Return what is known before a page is read."""
        missing = [np.full(entry.page_shape[1], np.nan) for _ in range(3)]
        sums = np.zeros(entry.page_shape[1])
        return cls(entry, missing[0], missing[1], sums, np.zeros(entry.page_shape[1], np.int64), missing[2])

    @property
    def mean_norm(self) -> Float64Array:
        """Mean of the finite norms of each head."""
        found: Float64Array = np.divide(
            self.norm_sum, self.norms, out=np.full_like(self.norm_sum, np.nan), where=self.norms > 0
        )
        return found

    @property
    def largest_magnitude(self) -> Float64Array:
        """Greatest absolute value of each head."""
        found: Float64Array = np.fmax(np.abs(self.lowest), np.abs(self.highest))
        return found

    def add(self, statistics: dict[str, npt.NDArray[np.float32]], filled: npt.NDArray[np.bool_]) -> None:
        """Take the slots of some pages into account: float32 ``[slots, num_heads]`` each, of which some are filled."""
        # NaN with any payload is a value that a cache may hold, and no reason to warn.
        with np.errstate(invalid="ignore"):
            found = {name: statistics[name][filled].astype(np.float64) for name in _NAMES}
        finite = {name: np.isfinite(values) for name, values in found.items()}
        self.slots += found["norm"].size
        self.not_finite += int(np.count_nonzero(~(finite["norm"] & finite["min"] & finite["max"])))
        self.norm_sum += np.where(finite["norm"], found["norm"], 0).sum(axis=0)
        self.norms += finite["norm"].sum(axis=0)
        self.largest_norm = np.fmax(self.largest_norm, _most(found["norm"], finite["norm"]))
        self.highest = np.fmax(self.highest, _most(found["max"], finite["max"]))
        self.lowest = np.fmin(self.lowest, -_most(-found["min"], finite["min"]))


@dataclass(frozen=True)
class Values:
    """The values of a snapshot's tensors, in snapshot order.

    Parameters
    ----------
    tensors
        Those that have numbers.
    left_out
        Texts: which tensors have none, and why; they may hold a snapshot's names.
    sample_bytes
        The budget that they were read with.
    """

    tensors: tuple[HeadValues, ...]
    left_out: tuple[str, ...]
    sample_bytes: int

    @property
    def roles(self) -> list[str]:
        """The roles that there are, keys first."""
        found = {each.entry.kv_role for each in self.tensors}
        return [role for role in ("key", "value", "fused") if role in found]

    @cached_property
    def layers(self) -> list[tuple[int | None, str | None, int]]:
        """``(layer_index, layer_name, kv_group)`` of the tensors, in the model's order as far as it is known."""
        return sorted({_layer(each.entry) for each in self.tensors}, key=_model_order)

    @property
    def labels(self) -> list[str]:
        """What stands for each layer on an axis; where two would be the same, with the group."""
        plain = [str(index) if index is not None else printable(name or NOTHING) for index, name, _ in self.layers]
        repeated = {text for text in plain if plain.count(text) > 1}
        return [
            f"{text} (group {layer[2]})" if text in repeated else text
            for text, layer in zip(plain, self.layers, strict=True)
        ]

    def by_layer(self, kv_role: str) -> list[HeadValues | None]:
        """Return the tensors of a role, one for each layer."""
        found = {_layer(each.entry): each for each in self.tensors if each.entry.kv_role == kv_role}
        return [found.get(layer) for layer in self.layers]

    @property
    def statement(self) -> str:
        """What was read: pages, bytes, and by which rule."""
        if not self.tensors:
            return "No tensor has values that can be drawn."
        read = sum(each.num_pages for each in self.tensors)
        filled = sum(each.num_filled for each in self.tensors)
        bytes_read = size(sum(each.raw_bytes for each in self.tensors))
        broken = sum(each.not_finite for each in self.tensors)
        tokens = "Each stored token counts once, however many sequences share it."
        if not filled:
            how = "No page is known to hold tokens, so no value was read."
        elif read == filled:
            how = f"Every page that holds tokens was read: {count(read, 'page')}, {bytes_read}. {tokens}"
        else:
            how = (
                f"A sample: {count(read, 'page')} ({bytes_read}) of the {count(filled, 'page')} that hold tokens "
                f"({percent(read, filled)}), in runs at places that are random but the same each time (seed {SEED}). "
                f"Single outliers may be missing. {tokens}"
            )
        finite = f"In {count(broken, 'head')} of a token a number is not finite; those are left out." if broken else ""
        return sentence([how, finite])


def read_values(
    snapshot: Snapshot, *, sample_bytes: int = DEFAULT_SAMPLE_BYTES, with_planes: bool = False, **selectors: Any
) -> Values:
    """Read statistics of the keys and values of every tensor, from a sample of its pages.

    Parameters
    ----------
    snapshot
        An open snapshot.
    sample_bytes
        Bytes of pages to read of all tensors together; of each at least one run (256 KiB, or a row of an archive).
    with_planes
        Compress the pages read as an archive would.
    **selectors
        As of :meth:`Snapshot.select`; companions such as scales are never looked at.

    Returns
    -------
    Values
        New arrays. What is in memory at a time is the sample of one tensor, or of eight where those fit their rows.

    Raises
    ------
    SnapshotCorruptError
        As :meth:`Snapshot.open_tensors`; pages of archives and from stores are compared with their checksums.
    """
    selection = Selection.of(snapshot, **selectors)
    found = [entry for entry in selection.entries if entry.component == "values"]
    left_out = [f"{printable(str(entry))}: {why}" for entry in found if (why := _unfit(entry))]
    fit = [entry for entry in found if not _unfit(entry)]
    if len(fit) > MOST_TENSORS:
        left_out.append(f"{len(fit) - MOST_TENSORS} tensors behind the first {MOST_TENSORS}")
        fit = fit[:MOST_TENSORS]
    each_bytes = sample_bytes // max(1, len(fit))
    tensors = []
    narrowed = selection.narrowed(entries=[entry.tensor_index for entry in fit])
    for entry, pages, facts in narrowed.opened(at_once=TENSORS_AT_ONCE):
        try:
            tensors.append(_read(entry, pages, facts, each_bytes=each_bytes, with_planes=with_planes))
        except UnsupportedError as error:
            left_out.append(f"{printable(str(entry))}: {printable(str(error))}")
    return Values(tuple(tensors), tuple(left_out), sample_bytes)


def _read(entry: Entry, pages: TensorPages, facts: GroupFacts, *, each_bytes: int, with_planes: bool) -> HeadValues:
    sample = _sample(entry, pages.tensor, facts, each_bytes)
    found = HeadValues.nothing(entry)
    found.pool_bytes = pages.tensor.descriptor.pool_bytes
    found.num_pages, found.num_filled = len(sample.page_ids), sample.num_filled
    if not len(sample.page_ids):
        return found
    tensor = pages.read(sample.page_ids)
    page_class = page_class_of(tensor.descriptor)
    with_planes = with_planes and page_class.fits_a_column
    page_bytes = tensor.element_type.size_bytes(tensor.descriptor.page_elems)
    found.raw_bytes = len(sample.page_ids) * page_bytes
    found.plane_bytes = [0] * max(1, page_class.num_planes) * with_planes
    step = max(1, _AT_ONCE_BYTES // max(1, page_bytes))
    for start in range(0, len(sample.page_ids), step):
        ids = sample.page_ids[start : start + step]
        filled = np.arange(entry.page_shape[0]) < facts.fill_tokens[ids][:, None]
        found.add(slot_statistics(tensor, ids, _NAMES, per_head=True), filled.reshape(-1))
        for plane, stored in enumerate(_compressed(tensor, ids, filled, page_class) if with_planes else ()):
            found.plane_bytes[plane] += stored
    return found


def _sample(entry: Entry, tensor: BlockPagedTensor, facts: GroupFacts, each_bytes: int) -> PageSample:
    page_bytes = tensor.element_type.size_bytes(tensor.descriptor.page_elems)
    most_pages = each_bytes // max(1, page_bytes)
    return sample_pages(facts.fill_tokens, run=run_pages(entry, tensor), most_pages=most_pages)


def _compressed(
    tensor: BlockPagedTensor, page_ids: Int64Array, filled: npt.NDArray[np.bool_], page_class: PageClass
) -> Iterable[int]:
    """Compress pages as a row of an archive: slots without tokens zeroed, byte planes apart."""
    page_bytes = page_class.page_bytes or 1
    pages = tensor.buffers[0][: page_bytes * tensor.num_pages].reshape(-1, page_bytes)[page_ids]
    if page_bytes % tensor.page_size == 0:
        pages.reshape(len(page_ids), tensor.page_size, -1)[~filled] = 0
    planes = to_planes(pages.reshape(-1), max(1, page_class.num_planes))
    last = len(planes) - 1 if page_class.element_type in WIDE_EXPONENTS else None
    return [compressed_bytes(memoryview(plane), is_exponents=number == last) for number, plane in enumerate(planes)]


def _unfit(entry: Entry) -> str:
    """Say why a tensor has no values to draw, or nothing."""
    if not has_numbers(entry.element_type):
        return f"values of type {entry.element_type} have no numbers"
    if not entry.page_shape[0] * entry.page_shape[1] * entry.page_shape[2]:
        return "its pages have no values"
    return f"more than {MOST_PAGES} pages" if entry.num_pages > MOST_PAGES else ""


def _most(values: Float64Array, finite: npt.NDArray[np.bool_]) -> Float64Array:
    """Return the greatest finite value of each column, NaN where there is none."""
    most: Float64Array = np.max(np.where(finite, values, -np.inf), axis=0, initial=-np.inf)
    return np.where(np.isneginf(most), np.nan, most)


def _layer(entry: Entry) -> tuple[int | None, str | None, int]:
    return entry.layer_index, entry.layer_name, entry.kv_group


def _model_order(layer: tuple[int | None, str | None, int]) -> tuple[bool, int, str, int]:
    index, name, kv_group = layer
    return index is None, index or 0, name or "", kv_group
