"""Which snapshots hold this prompt? Answered by a catalogue, from digests: no snapshot is opened.

Spec: snapshot format, section 2 (``sequences``); :func:`hurray_arrow.prefixes.match_prefix`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hurray_arrow.catalog.columns import SCHEMAS, STATED
from hurray_arrow.catalog.contents import Prefixes
from hurray_arrow.catalog.digests import Digests, PrefixHasher
from hurray_arrow.catalog.document import invalid
from hurray_arrow.catalog.reader import Catalog, open_catalog
from hurray_arrow.errors import CatalogError, Problem, ProblemCode
from hurray_arrow.sequences import Integers, MediaSpan, UInt32Array, take_integers
from hurray_arrow.snapshot.files import PathLike

Lengths: TypeAlias = npt.NDArray[np.int64]
#: Dotted names of the metadata, as ``open_snapshot(expect=)`` takes them, and their columns.
_EXPECTED = {".".join(place): name for name, place in STATED.items()}


class CatalogMatch(NamedTuple):
    """A snapshot that can restore a prefix of the prompt.

    Parameters
    ----------
    url
        The snapshot.
    sequence
        Its first sequence with the most tokens in common.
    num_tokens
        How many: a whole number of steps, or all that the sequence can restore. ``Snapshot.match_prefix`` may find up
        to a step more.
    snapshot_id
        From its metadata.
    """

    url: str
    sequence: int
    num_tokens: int
    snapshot_id: str


def find_prefix(
    catalogue: Catalog | PathLike,
    token_ids: Integers,
    *,
    key: bytes,
    adapter: str | None = None,
    tenant: str | None = None,
    media: Iterable[MediaSpan] | None = None,
    expect: Mapping[str, Any] | None = None,
    limit: int | None = 100,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
) -> list[CatalogMatch]:
    """Find the snapshots that can restore the longest prefixes of a prompt.

    Parameters
    ----------
    catalogue
        An open catalogue, or its path or URL.
    token_ids
        The prompt's token ids, uint32 ``[tokens]``. They go nowhere.
    key
        What the catalogue was built with.
    adapter, tenant
        Whose cache may be used: equal ones only, and ``None`` only matches sequences that name none.
    media
        The media in the prompt. A match stops before media that the other side does not have at the same place with
        the same digest, and never ends inside any.
    expect
        What the snapshots have to say in their metadata, by dotted name, such as ``model.name`` and
        ``model.revision``: token ids of another model's tokenizer mean something else.
    limit
        At most so many snapshots, ``None`` for all.
    storage_options, filesystem
        As in :func:`open_catalog`.

    Returns
    -------
    list of CatalogMatch
        One per snapshot, the longest first, then in the catalogue's order.

    Raises
    ------
    CatalogError
        ``catalog_key_mismatch``: it was built with another key or without one; ``catalog_invalid``.
    ValueError
        A name in ``expect`` that no column has; a key that is none.
    InvariantError
        ``field_out_of_range``, ``buffer_dtype`` for token ids that are none.
    FileNotFoundError, PermissionError, SnapshotError
        As :func:`open_catalog`.
    """
    prompt = take_integers(token_ids, np.uint32, where="token_ids")
    if not isinstance(catalogue, Catalog):
        with open_catalog(catalogue, storage_options=storage_options, filesystem=filesystem) as opened:
            return find_prefix(
                opened, prompt, key=key, adapter=adapter, tenant=tenant, media=media, expect=expect, limit=limit
            )
    hasher = _hasher(catalogue, key)
    spans = tuple(media or ())
    lengths = _lengths(prompt, spans)
    digests = hasher.digests(prompt, lengths.tolist(), adapter=adapter, tenant=tenant, media=spans)
    admitted = _admitted(catalogue, expect or {})
    found = _longest(_hits(catalogue, hasher.step_tokens, lengths, digests), admitted, limit, url=catalogue.url)
    return _named(catalogue, found)


def _hasher(catalogue: Catalog, key: bytes) -> PrefixHasher:
    document = catalogue.document
    if document.step_tokens is None:
        problem = Problem(
            ProblemCode.CATALOG_KEY_MISMATCH, "prefixes", "it was built without a key, and has no digests"
        )
        raise CatalogError(problem, url=catalogue.url)
    hasher = PrefixHasher(key, step_tokens=document.step_tokens)
    if hasher.check != document.key_check:
        problem = Problem(ProblemCode.CATALOG_KEY_MISMATCH, "prefixes.key_check", "it was built with another key")
        raise CatalogError(problem, url=catalogue.url)
    return hasher


def _lengths(prompt: UInt32Array, spans: Iterable[MediaSpan]) -> Lengths:
    """Return at which lengths a match may end."""
    lengths = np.arange(1, prompt.size + 1, dtype=np.int64)
    for span in spans:
        lengths = lengths[(lengths <= span.first_token) | (lengths >= span.first_token + span.num_tokens)]
    return lengths


def _admitted(catalogue: Catalog, expect: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Say of each file whether its metadata is what is expected."""
    unknown = sorted(set(expect) - set(_EXPECTED))
    if unknown:
        raise ValueError(f"expect {unknown}: a catalogue has {sorted(_EXPECTED)}")
    admitted = np.full(catalogue.document.num_files, not expect)
    if not expect:
        return admitted
    schema = SCHEMAS[catalogue.document.rows]
    wanted = {_EXPECTED[name]: value for name, value in expect.items()}
    try:
        scalars = {name: _scalar(value, schema.field(name).type) for name, value in wanted.items()}
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"expect: {error}") from error
    for table in catalogue.row_groups(["file_index", *wanted]):
        alike = np.ones(len(table), np.bool_)
        for name, scalar in scalars.items():
            alike &= np.asarray(pc.fill_null(pc.equal(table[name], scalar), fill_value=False))
        admitted[_checked(catalogue, np.asarray(table["file_index"]))[alike]] = True
    return admitted


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as the column has it; text may stand for a number, as on a command line."""
    return pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind)


def _checked(catalogue: Catalog, files: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    if files.size and int(files.max()) >= catalogue.document.num_files:
        message = f"{files.max()}, expected < num_files {catalogue.document.num_files}"
        raise invalid("file_index", message, url=catalogue.url)
    return files


class _Hit(NamedTuple):
    """Rows ``[start, stop)`` of a run that may have the digest of a prefix, which ends with ``low``."""

    num_tokens: int
    run: Prefixes
    start: int
    stop: int
    low: np.uint64


def _hits(catalogue: Catalog, step_tokens: int, lengths: Lengths, digests: Digests) -> list[_Hit]:
    """Look every digest up in every run of its kind; the longest prefixes come first."""
    hits = []
    is_step = lengths % step_tokens == 0
    for kind, which in (("steps", is_step), ("ends", ~is_step)):
        high, low, tokens = digests[which, 0], digests[which, 1], lengths[which]
        for run in catalogue.runs(kind):  # type: ignore[arg-type]  # mypy widens the two names
            starts, stops = np.searchsorted(run.high, high), np.searchsorted(run.high, high, side="right")
            hits += [
                _Hit(int(tokens[place]), run, int(starts[place]), int(stops[place]), low[place])
                for place in np.flatnonzero(stops > starts).tolist()
            ]
    return sorted(hits, key=lambda hit: -hit.num_tokens)


def _longest(
    hits: list[_Hit], admitted: npt.NDArray[np.bool_], limit: int | None, *, url: str
) -> list[tuple[int, int, int]]:
    """Return ``(file_index, sequence, num_tokens)`` of the longest match of each file that is admitted."""
    found: list[tuple[int, int, int]] = []
    open_files = admitted.copy()
    for num_tokens, some in groupby(hits, key=lambda hit: hit.num_tokens):
        if limit is not None and len(found) >= limit:
            break
        files, sequences = _holders(some, num_tokens)
        if files.size and int(files.max()) >= admitted.size:
            raise invalid("file_index", f"{files.max()}, expected < num_files {admitted.size}", url=url)
        fresh = open_files[files]
        files, sequences = files[fresh], sequences[fresh]
        order = np.lexsort((sequences, files))
        files, first = np.unique(files[order], return_index=True)
        open_files[files] = False
        found += zip(files.tolist(), sequences[order][first].tolist(), [num_tokens] * len(files), strict=True)
    return found[:limit]


def _holders(hits: Iterator[_Hit], num_tokens: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    files, sequences = [np.empty(0, np.uint32)], [np.empty(0, np.uint32)]
    for hit in hits:
        rows = slice(hit.start, hit.stop)
        same = (hit.run.low[rows] == hit.low) & (hit.run.num_tokens[rows] == num_tokens)
        files.append(hit.run.file_index[rows][same])
        sequences.append(hit.run.sequence[rows][same])
    return np.concatenate(files), np.concatenate(sequences)


def _named(catalogue: Catalog, found: list[tuple[int, int, int]]) -> list[CatalogMatch]:
    files = np.unique(np.array([file for file, _, _ in found], np.int64))
    names: dict[int, tuple[str, str]] = {}
    for table in catalogue.row_groups(["file_index", "url", "snapshot_id"], files=files):
        some = table.filter(pc.is_in(table["file_index"], pa.array(files, pa.uint32())))
        names |= {index: (url, snapshot) for index, url, snapshot in zip(*some.to_pydict().values(), strict=True)}
    if len(names) != len(files):
        raise invalid("file_index", f"{len(files) - len(names)} files have digests and no row", url=catalogue.url)
    return [CatalogMatch(names[file][0], sequence, num_tokens, names[file][1]) for file, sequence, num_tokens in found]
