"""The reading of many snapshots, cut into pieces that threads or machines take: planned from the indexes alone.

Spec: snapshot format, section 4, "Remote".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import fsspec
import numpy as np
import pyarrow as pa

from hurray_arrow.errors import (
    HurrayArrowError,
    SnapshotChangedError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotIncompleteError,
    UnsupportedError,
)
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.files import PathLike
from hurray_arrow.snapshot.pins import Pin, SnapshotPlace
from hurray_arrow.snapshot.sets import find_snapshots
from hurray_arrow.views.pieces import Piece, pieces_of
from hurray_arrow.views.question import Question
from hurray_arrow.views.view import KEY_FIELDS, URL_FIELD

if TYPE_CHECKING:
    import pyarrow.compute as pc

Errors: TypeAlias = Literal["raise", "skip"]

#: Indexes that are read at the same time.
LISTED_AT_ONCE = 16
#: Ends of files that a plan carries about, all together: those of some thousand snapshots.
_MOST_CARRIED_BYTES = 64 << 20
#: Pieces of one task at most: Ray warns of tasks that are longer than 1 MiB.
_PIECES_IN_TASK = 32
#: What opening a snapshot weighs, in bytes.
_OPENING_BYTES = 64 << 10
#: What is wrong with one snapshot, and no reason to leave the others.
_LEFT_OUT = (FileNotFoundError, SnapshotIncompleteError, SnapshotCorruptError, SnapshotChangedError)


class Skipped(NamedTuple):
    """A snapshot that was left out, as a whole or from where it could not be read any further.

    Parameters
    ----------
    url
        Which.
    error
        Name of the exception, such as ``SnapshotCorruptError``.
    codes
        Problem codes, where the exception has some.
    message
        Its text.
    """

    url: str
    error: str
    codes: tuple[str, ...]
    message: str

    @classmethod
    def of(cls, url: str, error: Exception) -> Skipped:
        """Return what an exception says of a snapshot."""
        return cls(url, type(error).__name__, tuple(getattr(error, "codes", ())), str(error))


class Listed(NamedTuple):
    """A snapshot, and its tensors that the filters admit."""

    pin: Pin
    entries: tuple[Entry, ...]


class _Found(NamedTuple):
    listed: Listed
    full_schema: pa.Schema
    #: Of raw values, which look alike for several types.
    element_types: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """Which snapshots there are, and how the answer to a question is read from them.

    Parameters
    ----------
    question
        What is asked.
    listed
        The snapshots that could be listed.
    skipped
        Those that could not.
    full_schema
        All columns of the view.
    """

    question: Question
    listed: Sequence[Listed] = field(repr=False)
    skipped: tuple[Skipped, ...]
    full_schema: pa.Schema = field(repr=False)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self.question.schema_of(self.full_schema)

    @cached_property
    def pieces(self) -> list[Piece]:
        """What is read, in the order of the snapshots and their tensors; nothing of it for what cannot be admitted."""
        listed = self.listed if self.question.condition is None else self._admitted(self.question.condition)
        return [piece for pin, some in listed for piece in pieces_of(pin, some, self.question, self.schema)]

    def _admitted(self, condition: pc.Expression) -> Iterator[Listed]:
        """Leave out what a condition admits no row of; each kind of tensor is asked about once for all snapshots."""
        from hurray_arrow.views.dataset import admitted_entries, admitted_urls

        schema = self.full_schema.insert(0, URL_FIELD)
        urls = admitted_urls([pin.place.url for pin, _ in self.listed], schema, condition)
        listed = [each for each in self.listed if each.pin.place.url in urls]
        kinds = {_key(entry): entry for _, entries in listed for entry in entries}
        admitted = {_key(entry) for entry in admitted_entries(list(kinds.values()), schema, condition)}
        names_url = re.search(rf"\b{URL_FIELD.name}\b", str(condition))
        for pin, entries in listed:
            some = [entry for entry in entries if _key(entry) in admitted]
            if names_url:
                some = admitted_entries(some, self.full_schema, condition, url=pin.place.url)
            yield Listed(pin, tuple(some))

    def asking(self, question: Question) -> Plan:
        """Return the plan for another question to the same snapshots: only columns and condition may differ."""
        return replace(self, question=question)

    def tasks(self, parallelism: int) -> list[list[Piece]]:
        """Share the pieces out: neighbours together, about as many tasks as asked for, but none for less than a piece.

        Parameters
        ----------
        parallelism
            How many tasks are wanted.
        """
        if not self.pieces:
            return []
        weights = np.array([piece.weight_bytes + _OPENING_BYTES for piece in self.pieces], np.float64)
        number = min(parallelism, len(self.pieces))
        owners = ((np.cumsum(weights) - weights / 2) * number / weights.sum()).astype(int).tolist()
        shared = [[piece for _, piece in own] for _, own in groupby(zip(owners, self.pieces, strict=True), _first)]
        return [own[at : at + _PIECES_IN_TASK] for own in shared for at in range(0, len(own), _PIECES_IN_TASK)]


def _first(pair: tuple[int, Piece]) -> int:
    return pair[0]


#: What conditions can say of a tensor.
_key: Callable[[Entry], tuple[Any, ...]] = attrgetter(*(each.name for each in KEY_FIELDS))


def plan_snapshots(
    urls: PathLike | Iterable[PathLike],
    question: Question,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    errors: Errors = "raise",
) -> Plan:
    """Read the indexes of many snapshots, some at a time, and find out what there is to read; pages stay unread.

    Parameters
    ----------
    urls, storage_options, filesystem
        As of :func:`~hurray_arrow.open_snapshot_set`.
    question
        What is asked.
    errors
        ``"raise"``, or ``"skip"`` to leave out snapshots that are missing, incomplete, corrupt or of another version
        of the format. A store that fails or forbids is an error all the same.

    Raises
    ------
    FileNotFoundError
        Nothing matches the glob; with ``errors="raise"`` also a snapshot that is missing.
    SnapshotError
        None of the snapshots could be listed; with ``errors="raise"`` as :func:`~hurray_arrow.open_snapshot`.
    UnsupportedError
        One column cannot hold what the tensors selected have: values of several shapes or types.
    ValueError
        As :func:`~hurray_arrow.views.open_view`; other values of ``errors``.
    """
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors={errors!r}, expected 'raise' or 'skip'")
    found = find_snapshots(urls, storage_options=storage_options, filesystem=filesystem)
    places = [SnapshotPlace.of(path, **how) for path, how in found]
    listed: list[Listed] = []
    skipped: list[Skipped] = []
    first: _Found | None = None
    carried = 0
    alike: dict[Any, Any] = {}
    with ThreadPoolExecutor(min(LISTED_AT_ONCE, len(places)), "hurray-arrow-list") as pool:
        for each in pool.map(lambda place: _list(place, question, errors), places):
            if isinstance(each, Skipped):
                skipped.append(each)
                continue
            pin, entries = each.listed
            carried += len(pin.known.tail or b"")
            kept = tuple(Entry(*(_shared(value, alike) for value in entry)) for entry in entries)
            listed.append(Listed(pin if carried <= _MOST_CARRIED_BYTES else pin.lighter(), kept))
            # A snapshot without any of the tensors has no say in what columns there are.
            if first is None or not first.listed.entries:
                first = each
            elif entries:
                _check_alike(first, each)
    if first is None:
        raise SnapshotError(f"none of {len(places)} snapshots can be read; the first: {skipped[0].message}")
    question.schema_of(first.full_schema)
    return Plan(question, listed, tuple(skipped), first.full_schema)


def read_pieces(
    question: Question, pieces: Iterable[Piece], *, skip: Callable[[Skipped], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the answer to a question from some pieces, one after another.

    Parameters
    ----------
    question
        What is asked.
    pieces
        Of one plan or several, neighbours of one snapshot together.
    skip
        Told of snapshots that turn out to be missing or corrupt, whose rest is left out then; ``None`` raises.

    Raises
    ------
    SnapshotChangedError
        A snapshot was replaced or deleted since it was listed.
    SnapshotCorruptError, FileNotFoundError, PermissionError, SnapshotError
        As :meth:`~hurray_arrow.Snapshot.read`; a note says which snapshot.
    UnknownSequenceLengthError, UnsupportedError
        As the view's.
    """
    for pin, own in groupby(pieces, attrgetter("pin")):
        url = pin.place.url
        try:
            with pin.open() as snapshot:
                for piece in own:
                    yield from question.batches(snapshot, url, piece.tensors, piece.page_range)
        except _LEFT_OUT as error:
            if skip is None:
                _say_where(error, url)
                raise
            skip(Skipped.of(url, error))
        except Exception as error:
            _say_where(error, url)
            raise


def _say_where(error: Exception, url: str) -> None:
    if url not in str(error):
        error.add_note(f"while reading {url}")


def _shared(value: Any, alike: dict[Any, Any]) -> Any:
    """Return the same object for the same name or shape: a plan holds some of them for every tensor there is."""
    return alike.setdefault(value, value) if isinstance(value, str | tuple) else value


def _list(place: SnapshotPlace, question: Question, errors: Errors) -> _Found | Skipped:
    try:
        snapshot, pin = place.pinned()
    except (*_LEFT_OUT, UnsupportedError) as error:
        if errors == "raise":
            raise
        return Skipped.of(place.url, error)
    with snapshot:
        try:
            view = question.listed(snapshot)
        except SnapshotCorruptError as error:
            if errors == "raise":
                raise
            return Skipped.of(place.url, error)
        except HurrayArrowError as error:
            _say_where(error, place.url)
            raise
        entries = view.selection.entries
        raw = question.options.get("values") == "raw"
        element_types = frozenset(entry.element_type for entry in entries) if raw else frozenset[str]()
        return _Found(Listed(pin, entries), view.full_schema, element_types)


def _check_alike(first: _Found, other: _Found) -> None:
    """Refuse two snapshots whose values do not go into one column.

    Raises
    ------
    UnsupportedError
        With both shapes or types.
    """
    pairs = [(str(one.type), str(two.type)) for one, two in zip(first.full_schema, other.full_schema, strict=True)]
    pairs += [(", ".join(sorted(first.element_types)), ", ".join(sorted(other.element_types)))]
    different = [f"{one} and {two}" for one, two in pairs if one != two]
    if different:
        raise UnsupportedError(
            f"{first.listed.pin.place.url} and {other.listed.pin.place.url} have values of {'; '.join(different)}, and "
            f"a column has one shape and type: select some with component=, kv_group=, layer_index= or kv_role=, or "
            f"read the snapshots apart"
        )
