"""What is known of a tensor's sequences beside the descriptor: lengths, ids, tokens, positions, adapters, media.

The descriptor counts pages, not tokens, and knows no names. Each fact here is optional as a whole and per sequence,
because foreign producers may not know it; nothing is ever made up in its place.

Spec: wire-format page section 2, snapshot format section 2 (column ``sequences``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import InvariantError, Problem, ProblemCode
from hurray_arrow.spec import UINT64_MAX

UInt64Array = npt.NDArray[np.uint64]
UInt32Array = npt.NDArray[np.uint32]
BoolArray = npt.NDArray[np.bool_]
Integers = npt.NDArray[Any] | Sequence[int]
_Unsigned = TypeVar("_Unsigned", np.uint32, np.uint64)

_SPEC = "snapshot format 2"

#: The facts with one entry per sequence, in the order of the ``sequences`` column (``seq_lens`` is ``num_tokens``).
FACT_NAMES = ("seq_lens", "ids", "token_ids", "page_positions", "adapter", "tenant", "media")


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """A run of tokens that stand for an image, a sound or other media, and the digest of what they stand for.

    Parameters
    ----------
    first_token
        Position in the sequence of the first token of the run.
    num_tokens
        Length of the run in tokens.
    digest
        Digest of the media, in the producer's own notation.

    Raises
    ------
    InvariantError
        ``media_span_invalid`` when the run does not fit into uint64.

    Spec: snapshot format section 2.
    """

    first_token: int
    num_tokens: int
    digest: str

    def __post_init__(self) -> None:
        if not isinstance(self.digest, str):
            raise TypeError(f"digest: expected str, got {type(self.digest).__name__}")
        for name in ("first_token", "num_tokens"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if min(self.first_token, self.num_tokens) < 0 or self.first_token + self.num_tokens > UINT64_MAX:
            span = f"[{self.first_token}, {self.first_token + self.num_tokens})"
            message = f"tokens {span}, expected a range within uint64"
            raise InvariantError(Problem(ProblemCode.MEDIA_SPAN_INVALID, "media", message, _SPEC))


class SequenceFacts(TypedDict, total=False):
    """The arguments of :class:`Sequences`, for constructors that pass them on."""

    seq_lens: npt.NDArray[Any] | Sequence[int | None] | None
    seq_lens_known: npt.NDArray[np.bool_] | Sequence[bool] | None
    ids: Iterable[str | None] | None
    token_ids: Iterable[Integers | None] | None
    page_positions: Iterable[Integers | None] | None
    adapter: Iterable[str | None] | None
    tenant: Iterable[str | None] | None
    media: Iterable[Iterable[MediaSpan] | None] | None


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Sequences:
    """The facts about the sequences of a tensor; each is ``None`` (nobody knows) or has one entry per sequence.

    Integers of any width are taken by value and checked for range. Where a fact is ``None`` for every sequence it
    becomes ``None`` as a whole, so that equal knowledge looks equal.

    Parameters
    ----------
    seq_lens
        uint64 ``[num_seqs]``: stored tokens per sequence. A list may hold ``None`` where the length is not known.
    seq_lens_known
        bool ``[num_seqs]``: which lengths are known; ``None`` when all are (or none is). Unknown lengths read 0.
    ids
        The producer's names of the sequences, str or ``None`` each.
    token_ids
        uint32 ``[tokens]`` each: the token ids of the sequence. With ``page_positions`` a list may be longer than the
        stored tokens, because it may go on naming tokens whose pages are absent.
    page_positions
        uint64 ``[pages]`` each: position in the sequence of slot 0 of each stored page, strictly increasing; ``None``
        means that page i starts at i × page_size.
    adapter, tenant
        Name of the adapter that computed the sequence, and whose it is; str or ``None`` each.
    media
        The media in the sequence, :class:`MediaSpan` in order.

    Raises
    ------
    InvariantError
        ``field_out_of_range`` for an integer outside its width, ``buffer_dtype`` for what is no integer,
        ``sequence_facts_size`` when ``seq_lens`` and ``seq_lens_known`` differ in length. Whether the facts fit the
        tensor is asked when they meet it.

    Notes
    -----
    Arrays are kept as read-only views where their type already fits, and are new otherwise.

    Examples
    --------
    >>> ha.Sequences(seq_lens=[7, None], ids=["a", "b"])
    Sequences(seq_lens[2], ids[2])

    Spec: wire-format page section 2, snapshot format section 2.
    """

    seq_lens: UInt64Array | None
    seq_lens_known: BoolArray | None
    ids: tuple[str | None, ...] | None
    token_ids: tuple[UInt32Array | None, ...] | None
    page_positions: tuple[UInt64Array | None, ...] | None
    adapter: tuple[str | None, ...] | None
    tenant: tuple[str | None, ...] | None
    media: tuple[tuple[MediaSpan, ...] | None, ...] | None

    def __init__(
        self,
        *,
        seq_lens: npt.NDArray[Any] | Sequence[int | None] | None = None,
        seq_lens_known: npt.NDArray[np.bool_] | Sequence[bool] | None = None,
        ids: Iterable[str | None] | None = None,
        token_ids: Iterable[Integers | None] | None = None,
        page_positions: Iterable[Integers | None] | None = None,
        adapter: Iterable[str | None] | None = None,
        tenant: Iterable[str | None] | None = None,
        media: Iterable[Iterable[MediaSpan] | None] | None = None,
    ) -> None:
        lens, known = _lengths(seq_lens, seq_lens_known)
        facts = {
            "seq_lens": lens,
            "seq_lens_known": known,
            "ids": _strings(ids, "ids"),
            "token_ids": _arrays(token_ids, "token_ids", np.uint32),
            "page_positions": _arrays(page_positions, "page_positions", np.uint64),
            "adapter": _strings(adapter, "adapter"),
            "tenant": _strings(tenant, "tenant"),
            "media": _media(media),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def length(self, seq: int) -> int | None:
        """Give the recorded length of a sequence in tokens, ``None`` where nobody recorded it."""
        if self.seq_lens is None or (self.seq_lens_known is not None and not self.seq_lens_known[seq]):
            return None
        return int(self.seq_lens[seq])

    def recorded_tokens(self) -> int:
        """Give the sum of the lengths that are known, in tokens."""
        return 0 if self.seq_lens is None else sum_of(self.seq_lens)

    def with_seq_lens(self, seq_lens: Sequence[int | None]) -> Sequences:
        """Give the same facts with these lengths in tokens."""
        facts = {name: getattr(self, name) for name in FACT_NAMES if name != "seq_lens"}
        return Sequences(seq_lens=seq_lens, **facts)

    def sizes(self) -> dict[str, int]:
        """Give the number of entries of each fact that is there."""
        return {name: len(getattr(self, name)) for name in FACT_NAMES if getattr(self, name) is not None}

    def equals(self, other: Sequences) -> bool:
        """Say whether both know the same, value for value."""
        return self is other or not any(_unlike(self, other))

    def __repr__(self) -> str:
        # No values: token ids, tenants and names of prompts have no place in a log.
        return f"Sequences({', '.join(f'{name}[{size}]' for name, size in self.sizes().items())})"


def known_sequences(sequences: Sequences | None, facts: SequenceFacts) -> Sequences:
    """Give what is known of the sequences, which a constructor takes as a whole or as single facts.

    Raises
    ------
    TypeError
        Both are given, or a fact that there is not.
    """
    if unknown := sorted(set(facts) - {*FACT_NAMES, "seq_lens_known"}):
        raise TypeError(f"unexpected argument {', '.join(unknown)}; of sequences there are {', '.join(FACT_NAMES)}")
    if sequences is None:
        return Sequences(**facts)
    if facts:
        raise TypeError(f"pass either sequences or {', '.join(facts)}")
    return sequences


def effective_lengths(sequences: Sequences, *, num_seqs: int, total_tokens: int) -> tuple[UInt64Array, BoolArray]:
    """Give the tokens of every sequence, and which of these lengths are known; that of a single one is total_tokens.

    Returns
    -------
    lengths : numpy.ndarray
        uint64 ``[num_seqs]``, 0 where not known; may be the sequences' own, which nobody writes to.
    known : numpy.ndarray
        bool ``[num_seqs]``.
    """
    if sequences.seq_lens is None:
        lengths = np.full(num_seqs, total_tokens if num_seqs == 1 else 0, np.uint64)
        return lengths, np.full(num_seqs, num_seqs == 1)
    known = np.ones(num_seqs, np.bool_) if sequences.seq_lens_known is None else sequences.seq_lens_known
    return sequences.seq_lens, known


def unlike_facts(one: Sequences, other: Sequences) -> list[str]:
    """Name the facts in which two differ, and none of their values: these are secrets."""
    return [] if one is other else list(_unlike(one, other))


def _unlike(one: Sequences, other: Sequences) -> Iterator[str]:
    for name in (*FACT_NAMES, "seq_lens_known"):
        if not _equal(getattr(one, name), getattr(other, name)):
            yield name


def _refuse(code: ProblemCode, where: str, message: str) -> InvariantError:
    return InvariantError(Problem(code, where, message, _SPEC))


def sum_of(values: UInt64Array) -> int:
    """Give the sum of fewer than 2**32 integers, whatever they are."""
    # Summed in halves, neither of which wraps.
    high, low = values >> np.uint64(32), values & np.uint64(0xFFFFFFFF)
    return (int(high.sum()) << 32) + int(low.sum())


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give a read-only view as a plain ndarray; it keeps the memory alive, the caller's array stays writable."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def take_integers(
    values: Integers,
    dtype: type[_Unsigned],
    *,
    where: str,
    code: ProblemCode = ProblemCode.FIELD_OUT_OF_RANGE,
    above: str = "",
) -> npt.NDArray[_Unsigned]:
    """Take integers of any width by value.

    Parameters
    ----------
    values
        Integer array ``[n]`` or a sequence of ints.
    dtype
        numpy.uint32 or numpy.uint64.
    where
        The place, for the message.
    code
        Code of a value that ``dtype`` cannot hold.
    above
        What to say where the value is only too large for it.

    Returns
    -------
    numpy.ndarray
        Read-only ``[n]``: a view where the type already fits, new otherwise.

    Raises
    ------
    InvariantError
        ``code``; ``buffer_dtype`` for what is no integer.
    """
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype == dtype:
        # A hundred thousand sequences have as many arrays; of these every value fits.
        return cast("npt.NDArray[_Unsigned]", read_only(np.ascontiguousarray(values)))
    bound = int(np.iinfo(dtype).max)
    expected = f"expected integers from 0 to {bound}"
    checked: Any = values
    if not isinstance(values, Iterable):
        message = f"a single {type(values).__name__}, {expected} in a list or an array"
        raise InvariantError(Problem(ProblemCode.BUFFER_DTYPE, where, message, _SPEC))
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu" or isinstance(values, np.ma.MaskedArray):
            message = f"{values.dtype} array of {values.ndim} dimensions, {expected} in 1 dimension"
            raise InvariantError(Problem(ProblemCode.BUFFER_DTYPE, where, message, _SPEC))
        lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    else:
        try:
            checked = [operator.index(value) for value in values]
        except TypeError as exc:
            raise InvariantError(Problem(ProblemCode.BUFFER_DTYPE, where, f"{exc}, {expected}", _SPEC)) from exc
        # Python's own minimum: numpy turns a list that mixes -1 and 2**64 - 1 into floats.
        lowest, highest = min(checked, default=0), max(checked, default=0)
    if lowest < 0 or highest > bound:
        message = f"value {lowest}, {expected}" if lowest < 0 else f"value {highest}, {expected}{above}"
        raise InvariantError(Problem(code, where, message, _SPEC))
    return cast("npt.NDArray[_Unsigned]", read_only(np.ascontiguousarray(checked, dtype=dtype)))


def _lengths(
    seq_lens: npt.NDArray[Any] | Sequence[int | None] | None,
    seq_lens_known: npt.NDArray[np.bool_] | Sequence[bool] | None,
) -> tuple[UInt64Array | None, BoolArray | None]:
    if seq_lens is None:
        return None, None
    if not hasattr(seq_lens, "__len__"):
        raise TypeError(f"seq_lens: expected a list or an array, one per sequence, got {type(seq_lens).__name__}")
    known = np.ones(len(seq_lens), dtype=np.bool_)
    if not isinstance(seq_lens, np.ndarray):
        known[:] = [length is not None for length in seq_lens]
        seq_lens = [length or 0 for length in seq_lens]
    lens = take_integers(cast("Integers", seq_lens), np.uint64, where="seq_lens")
    if seq_lens_known is not None:
        if len(seq_lens_known) != lens.size:
            message = f"{len(seq_lens_known)} entries, expected one per entry of seq_lens ({lens.size})"
            raise _refuse(ProblemCode.SEQUENCE_FACTS_SIZE, "seq_lens_known", message)
        known &= np.asarray(seq_lens_known, dtype=np.bool_)
    if known.all():
        return lens, None
    if not known.any():
        return None, None
    lens = np.where(known, lens, np.uint64(0))
    lens.flags.writeable = known.flags.writeable = False
    return lens, known


def _strings(values: Iterable[str | None] | None, name: str) -> tuple[str | None, ...] | None:
    if values is None:
        return None
    if isinstance(values, str):
        raise TypeError(f"{name}: expected one str or None per sequence, got a single str")
    strings = tuple(values)
    for place, value in enumerate(strings):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}[{place}]: expected str or None, got {type(value).__name__}")
    return _known(strings)


def _arrays(
    values: Iterable[Integers | None] | None, name: str, dtype: type[_Unsigned]
) -> tuple[npt.NDArray[_Unsigned] | None, ...] | None:
    if values is None:
        return None
    pairs = enumerate(values)
    return _known(
        tuple(None if entry is None else take_integers(entry, dtype, where=f"{name}[{s}]") for s, entry in pairs)
    )


def _media(values: Iterable[Iterable[MediaSpan] | None] | None) -> tuple[tuple[MediaSpan, ...] | None, ...] | None:
    if values is None:
        return None
    media = tuple(None if spans is None else tuple(spans) for spans in values)
    for place, spans in enumerate(media):
        if not all(isinstance(span, MediaSpan) for span in spans or ()):
            raise TypeError(f"media[{place}]: expected MediaSpan objects")
    return _known(media)


_Entry = TypeVar("_Entry")


def _known(entries: tuple[_Entry | None, ...]) -> tuple[_Entry | None, ...] | None:
    """Give ``None`` for entries that all say nothing; an empty tuple stays, its size is checked against num_seqs."""
    return None if entries and all(entry is None for entry in entries) else entries


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        sizes = list(map(_size, one))
        # Arrays of the same sizes are compared as one.
        return sizes == list(map(_size, other)) and np.array_equal(_joined(one), _joined(other))
    return bool(type(one) is type(other) and one == other)


def _size(entry: Any) -> Any:
    """Give the size of an array, and what is none as it is."""
    return (entry.size,) if isinstance(entry, np.ndarray) else entry


def _joined(entries: tuple[Any, ...]) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, np.uint8), *(entry for entry in entries if isinstance(entry, np.ndarray))])
