"""What a report shows, in order: each picture with its words and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from hurray_arrow.errors import UnsupportedError
from hurray_arrow.report import value_figures
from hurray_arrow.report.group import Group
from hurray_arrow.report.head_values import Values
from hurray_arrow.report.last_pages import LastPages
from hurray_arrow.report.look import Look
from hurray_arrow.report.numbers import Table, integer, sentence
from hurray_arrow.report.page_cells import PageMap
from hurray_arrow.report.sharing_map import SharingMap
from hurray_arrow.report.stored_sizes import StoredSizes
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.texts import count, printable

#: Groups whose pools are drawn.
MOST_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, what it shows in words, and its numbers.

    Parameters
    ----------
    title, caption
        Texts; they may hold a snapshot's names.
    alt
        What is to be seen, for people who do not see it.
    draw
        Makes the figure.
    tables
        The numbers.
    """

    title: str
    caption: str
    alt: str
    draw: Callable[[Look], Figure]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Pictures of one subject, and what is to be said of all of them."""

    key: str
    title: str
    words: str
    pictures: tuple[Picture, ...]


def sections(snapshot: Snapshot, values: Values) -> Iterator[Section]:
    """Yield the sections of a report.

    Parameters
    ----------
    snapshot
        The open snapshot.
    values
        What was read of its tensors, see :func:`hurray_arrow.report.figures.sized_values`.
    """
    sizes: dict[int, int] = {}
    for entry in snapshot.entries:
        sizes[entry.kv_group] = sizes.get(entry.kv_group, 0) + entry.stored_bytes
    drawn = sorted(sorted(sizes, key=lambda kv_group: (-sizes[kv_group], kv_group))[:MOST_GROUPS])
    for kv_group in drawn:
        yield _pool_section(snapshot, kv_group, of=len(sizes))
    if len(sizes) > len(drawn):
        words = (
            f"{count(len(sizes) - len(drawn), 'smaller group')} of tensors not drawn; page_map(snapshot, kv_group=…)"
        )
        yield Section("others", "Other groups", f"{words} draws each.", ())
    yield _values_section(values)
    found = StoredSizes(snapshot, values)
    picture = Picture(
        "Compressed size by layer and byte plane",
        found.caption,
        f"Bars of compressed bytes for {count(len(found.tensors), 'tensor')}, in percent of the raw size.",
        found.draw,
        (found.table(),),
    )
    yield Section("sizes", "Compressed size", "", (picture,) if found.tensors else ())


def _pool_section(snapshot: Snapshot, kv_group: int, *, of: int) -> Section:
    title = "Page pool" if of == 1 else f"Page pool of group {kv_group}"
    key = f"pool-{kv_group}"
    try:
        group = Group.of(snapshot, kv_group)
    except UnsupportedError as error:
        return Section(key, title, f"Not drawn: {printable(str(error))}", ())
    tensors = [entry for entry in snapshot.entries if entry.kv_group == kv_group]
    lengths = f"lengths of {count(group.num_unknown, 'sequence')} not recorded" if group.num_unknown else ""
    words = f"{count(len(tensors), 'tensor')} with the same tables: {count(group.num_seqs, 'sequence')}, "
    words += f"{count(group.known_tokens, 'token')}, {count(group.num_pages, 'page')} in each pool"
    words += f"; {lengths}." if lengths else "."
    return Section(key, title, words, tuple(_pool_pictures(group)) if group.num_pages else ())


def _pool_pictures(group: Group) -> Iterator[Picture]:
    pages, sharing, last = PageMap(group), SharingMap(group), LastPages(group)
    free, single, shared = map(integer, group.kind_counts)
    alt = f"Map of {count(group.num_pages, 'page')}: {free} in no sequence, {single} in one, {shared} shared."
    yield Picture("Page map by use", pages.caption, alt, pages.by_use, (pages.table(),))
    if group.num_seqs:
        colored = count(len(pages.sequences), "sequence")
        alt = f"The same map by the sequences that name the pages, with a colour for {colored}."
        yield Picture("Page map by sequence", pages.caption_by_sequence, alt, pages.by_sequence, (group.table(),))
        alt = f"Heat map of pages in common between {count(len(sharing.sequences), 'sequence')}."
        tables = (sharing.table(),) if len(sharing.sequences) else ()
        yield Picture("Sharing between sequences", sharing.caption, alt, sharing.draw, tables)
    if last.num_filled:
        alt = f"Bars: how many of {count(last.num_filled, 'sequence')} fill how many slots of their last page."
        yield Picture("Fill of last pages", last.caption, alt, last.draw, (last.table(),))


def _values_section(values: Values) -> Section:
    left_out = f"Left out: {'; '.join(values.left_out[:8])}." if values.left_out else ""
    if len(values.left_out) > 8:
        left_out += f" And {len(values.left_out) - 8} more."
    words = sentence([values.statement, left_out])
    pictures = tuple(_value_pictures(values)) if any(each.slots for each in values.tensors) else ()
    return Section("values", "Keys and values", words, pictures)


def _value_pictures(values: Values) -> Iterator[Picture]:
    layers = count(len(values.layers), "layer")
    table = value_figures.layer_table(values)
    yield Picture(
        "Value range by layer",
        "From the least to the greatest element of all heads.",
        f"Ranges of the elements of keys and values in {layers}.",
        lambda look: value_figures.draw_ranges(values, look),
        (table,),
    )
    yield Picture(
        "Norm by layer",
        "Euclidean norm of a token's vector in one head: the line is the mean over tokens and heads, the bar spans the "
        "heads' means.",
        f"Mean norms of keys and values in {layers}.",
        lambda look: value_figures.draw_norms(values, look),
        (table,),
    )
    yield Picture(
        "Greatest absolute value by head",
        "Heads that stand out hold the outliers that quantization pays for.",
        f"Heat map of the greatest absolute value of each head in {layers}.",
        lambda look: value_figures.draw_magnitudes(values, look),
        tuple(value_figures.magnitude_tables(values)),
    )
    yield Picture(
        "Mean norm by head",
        "Mean over tokens of the norm of a head's vector.",
        f"Heat map of the mean norm of each head in {layers}.",
        lambda look: value_figures.draw_head_norms(values, look),
        tuple(value_figures.head_norm_tables(values)),
    )
