"""Build a catalogue over the snapshots under a URL, or bring one up to date by reading what is new.

Spec: house rules, "Threads, processes, files".
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fsspec.callbacks import Callback, NoOpCallback

from hurray_arrow.arrow.metadata import package_version
from hurray_arrow.catalog.columns import SCHEMAS, Rows
from hurray_arrow.catalog.contents import Contents, read_contents
from hurray_arrow.catalog.digests import STEP_TOKENS, PrefixHasher
from hurray_arrow.catalog.document import Document, invalid
from hurray_arrow.catalog.listing import PATTERN, Folder, Listed, url_of
from hurray_arrow.catalog.reader import Catalog, open_catalog
from hurray_arrow.catalog.writer import CatalogWriter
from hurray_arrow.errors import CatalogError, Problem, ProblemCode
from hurray_arrow.snapshot.files import AtomicFile, PathLike
from hurray_arrow.snapshot.outputs import open_output
from hurray_arrow.snapshot.stores import locate
from hurray_arrow.snapshot.upload import RemoteFile

#: Snapshots that are read at the same time; twice as many may wait to be taken.
AT_ONCE = 8
#: Errors that the same bytes will always give. All others are tried again the next time.
_SETTLED = frozenset({"SnapshotIncompleteError", "SnapshotCorruptError"})


class Failure(NamedTuple):
    """A file of which a catalogue has nothing but this.

    Parameters
    ----------
    url
        The file.
    error
        Name of the exception's type.
    error_code
        Code of its first problem; ``None`` where it has none.
    """

    url: str
    error: str
    error_code: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogReport:
    """What building a catalogue took.

    Parameters
    ----------
    num_files
        Files that it lists.
    num_read, num_kept, num_dropped
        Of these: read now, taken from the catalogue that was there; and what that had and is there no more.
    failures
        The files that could not be read.
    requests, fetched_bytes
        Ranges of snapshots that were read, and their bytes.
    """

    num_files: int
    num_read: int
    num_kept: int
    num_dropped: int
    failures: tuple[Failure, ...]
    requests: int
    fetched_bytes: int


def build_catalog(
    url: PathLike,
    *,
    destination: PathLike,
    key: bytes | None = None,
    rows: Rows = "snapshots",
    step_tokens: int | None = None,
    pattern: str = PATTERN,
    on_error: Literal["list", "raise"] = "list",
    rebuild: bool = False,
    at_once: int = AT_ONCE,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
    destination_options: Mapping[str, Any] | None = None,
    progress: Callback | None = None,
) -> CatalogReport:
    """Write one Parquet table over many snapshots; where it exists, read only what is new or changed since.

    Of each snapshot its end is read, and one range or two per kv_group for the tables; pages are not, but for those
    of an archive's small tensor, which lie in one row with its tables. Files that went are dropped. A file counts
    as unchanged when URL, size and entity tag (or time) are; where the store says neither, it is read again.

    Parameters
    ----------
    url
        A folder or prefix, everything below it included; a glob; or one file.
    destination
        The catalogue, a path or URL. It appears when it is complete, with mode 0600. Until then, and after any failure
        or ``kill -9``, the old one stays.
    key
        16 to 64 random bytes: digests of the prefixes that each snapshot can restore are added, for
        :func:`find_prefix`. ``None`` adds none. The key is not stored.
    rows
        A row per snapshot, or per tensor.
    step_tokens
        Digests are of every so many tokens, and of the longest prefix of each sequence; 16 by default.
    pattern
        Names of files that count under a folder.
    on_error
        What becomes of a damaged, foreign or unreadable file: ``"list"`` gives it a row with ``error`` and
        ``error_code``, ``"raise"`` ends the call.
    rebuild
        Read everything anew, whatever the existing catalogue was built from.
    at_once
        Snapshots that are read at the same time.
    storage_options, filesystem
        For the snapshots, as in :func:`~hurray_arrow.open_snapshot`.
    destination_options
        For the destination where it is a URL.
    progress
        Told of the files read.

    Returns
    -------
    CatalogReport
        Files read, kept and dropped, failures, requests and bytes.

    Raises
    ------
    FileNotFoundError
        No snapshot is there; the catalogue stays as it is.
    PermissionError, SnapshotError
        The files cannot be listed, or the destination cannot be written.
    CatalogError
        The destination exists, and is no catalogue (``catalog_invalid``), or one of another URL, other rows, other
        steps or columns (``catalog_mismatch``), or was built with another key or, while none is given, with one
        (``catalog_key_mismatch``); for the last two ``rebuild`` helps.
    HurrayArrowError, OSError
        With ``on_error="raise"``: the first file that could not be read.
    ValueError
        A key, a step or a policy that is none.

    Notes
    -----
    Memory holds a row group of rows, a run of digests (together about 200 MB) and what ``2 × at_once`` snapshots add,
    whatever the number of snapshots. One build at a time may write to a destination: of two, the last one's stays.

    Examples
    --------
    >>> from hurray_arrow import catalog
    >>> key = bytes(range(16))  # catalog.read_key("…") reads one from a file
    >>> report = catalog.build_catalog("cache.arrow", destination="catalog.parquet", key=key, step_tokens=1)
    >>> report.num_files, report.failures
    (1, ())
    >>> [match.num_tokens for match in catalog.find_prefix("catalog.parquet", [1, 2, 3, 4, 8, 99], key=key)]
    [5]
    """
    if rows not in SCHEMAS or on_error not in ("list", "raise") or at_once < 1:
        raise ValueError(f"rows {rows!r}, on_error {on_error!r}, at_once {at_once}: see the documentation")
    folder = Folder(url, storage_options=storage_options, filesystem=filesystem, pattern=pattern)
    own_url = url_of(locate(destination, storage_options=destination_options))
    with ExitStack() as stack:
        old = _existing(destination, destination_options, stack)
        steps = step_tokens or (old and old.document.step_tokens) or STEP_TOKENS
        hasher = None if key is None else PrefixHasher(key, step_tokens=steps)
        if old is not None and not rebuild:
            _check_continues(old, folder.url, rows, hasher)
        files = [file for file in folder.files() if file.url != own_url]
        plan = _plan(files, None if rebuild else old)
        build = _Build(plan, rows, hasher)
        if not plan.is_current:
            file = open_output(destination, storage_options=destination_options, overwrite=True)
            read = partial(read_contents, rows=rows, hasher=hasher)
            contents = _in_order(read, plan.new, at_once=at_once, progress=progress or NoOpCallback())
            build.write(file, contents, folder.url, raises=on_error == "raise")
        return build.report()


def _existing(destination: PathLike, options: Mapping[str, Any] | None, stack: ExitStack) -> Catalog | None:
    try:
        return stack.enter_context(open_catalog(destination, storage_options=options))
    except FileNotFoundError:
        return None


def _check_continues(old: Catalog, url: str, rows: Rows, hasher: PrefixHasher | None) -> None:
    """Refuse to mix what was built in another way."""
    document, mismatch, other_key = old.document, ProblemCode.CATALOG_MISMATCH, ProblemCode.CATALOG_KEY_MISMATCH
    has_digests = document.step_tokens is not None
    found: tuple[ProblemCode, str, str] | None = None
    if document.url != url:
        found = mismatch, "url", f"it is of {document.url}, expected {url}"
    elif document.rows != rows:
        found = mismatch, "rows", f"a row is one of {document.rows}, expected {rows}"
    elif not old.is_current:
        found = mismatch, "columns", f"written by {document.producer}, with other columns"
    elif hasher is None and has_digests:
        found = other_key, "key", "it has digests, and no key is given that would add those of new snapshots"
    elif hasher is not None and not has_digests:
        found = other_key, "key", "it has no digests of the snapshots that it lists"
    elif hasher is not None and document.step_tokens != hasher.step_tokens:
        found = mismatch, "step_tokens", f"{document.step_tokens}, expected {hasher.step_tokens}"
    elif hasher is not None and document.key_check != hasher.check:
        found = other_key, "key", "it was built with another key"
    if found is not None:
        code, where, message = found
        raise CatalogError(Problem(code, where, f"{message}; rebuild reads everything anew"), url=old.url)


class _Plan(NamedTuple):
    """What is kept and what is read.

    ``places``: int64, by the old catalogue's file_index the new one, -1 for what is not kept.
    """

    old: Catalog | None
    places: npt.NDArray[np.int64]
    new: list[Listed]
    num_dropped: int
    failures: list[Failure]

    @property
    def is_current(self) -> bool:
        """Whether the old catalogue says all that a new one would."""
        return self.old is not None and not self.new and not self.num_dropped


def _plan(files: list[Listed], old: Catalog | None) -> _Plan:
    known = {} if old is None else _known(old)
    places = np.full(0 if old is None else old.document.num_files, -1, np.int64)
    plan = _Plan(old, places, [], len(set(known) - {file.url for file in files}), [])
    kept = []
    for file in files:
        row = known.get(file.url)
        if row is None or not _is_unchanged(file, row):
            plan.new.append(file)
            continue
        kept.append(row["file_index"])
        if row["error"] is not None:
            plan.failures.append(Failure(row["url"], row["error"], row["error_code"]))
    places[np.sort(kept).astype(np.int64)] = np.arange(len(kept))
    return plan


def _known(old: Catalog) -> dict[str, dict[str, Any]]:
    """Return what the old catalogue says of each file, by URL."""
    names = ["file_index", "url", "file_bytes", "identity", "error", "error_code"]
    known: dict[str, dict[str, Any]] = {}
    for table in old.row_groups(names):
        files, first = np.unique(np.asarray(table["file_index"]), return_index=True)
        if files.size and int(files[-1]) >= old.document.num_files:
            raise invalid("file_index", f"{files[-1]}, expected < {old.document.num_files}", url=old.url)
        known |= {row["url"]: row for row in table.take(first).to_pylist()}
    return known


def _is_unchanged(file: Listed, row: Mapping[str, Any]) -> bool:
    if file.identity is None or file.file_bytes is None:
        return False
    same = (row["identity"], row["file_bytes"]) == (file.identity, file.file_bytes)
    return same and (row["error"] is None or row["error"] in _SETTLED)


class _Build:
    """One run: what it has written so far."""

    def __init__(self, plan: _Plan, rows: Rows, hasher: PrefixHasher | None) -> None:
        self._plan, self._rows, self._hasher = plan, rows, hasher
        self._num_kept = self._num_files = int((plan.places >= 0).sum())
        self._failures = list(plan.failures)
        self._requests = self._fetched_bytes = 0

    def write(
        self, file: AtomicFile | RemoteFile, contents: Iterable[Contents | None], url: str, *, raises: bool
    ) -> None:
        """Write the catalogue; whatever fails leaves the old one."""
        steps = self._hasher.step_tokens if self._hasher is not None else 1
        writer = CatalogWriter(file, rows=self._rows, step_tokens=steps)
        try:
            if self._plan.old is not None:
                self._carry(self._plan.old, writer)
            for found in contents:
                if found is not None:
                    self._add(found, writer, raises=raises)
            writer.publish(self._document(url))
        except BaseException:
            writer.discard()
            raise

    def report(self) -> CatalogReport:
        """Say what was done."""
        return CatalogReport(
            num_files=self._num_files,
            num_read=self._num_files - self._num_kept,
            num_kept=self._num_kept,
            num_dropped=self._plan.num_dropped,
            failures=tuple(sorted(self._failures, key=lambda failure: failure.url)),
            requests=self._requests,
            fetched_bytes=self._fetched_bytes,
        )

    def _carry(self, old: Catalog, writer: CatalogWriter) -> None:
        """Take rows and digests of unchanged files from the old catalogue."""
        places = self._plan.places
        for table in old.row_groups():
            index = places[np.asarray(table["file_index"])]
            numbered = table.set_column(0, SCHEMAS[self._rows].field(0), pa.array(np.maximum(index, 0), pa.uint32()))
            writer.add_rows(numbered.filter(pa.array(index >= 0)))
        for run in old.document.runs:
            prefixes = old.run(run, verify=True)
            if len(prefixes.file_index) and int(prefixes.file_index.max()) >= places.size:
                raise invalid("file_index", f"{prefixes.file_index.max()}, expected < {places.size}", url=old.url)
            index = places[prefixes.file_index]
            writer.add_prefixes(prefixes._replace(file_index=index.astype(np.uint32)).taken(index >= 0))

    def _add(self, found: Contents, writer: CatalogWriter, *, raises: bool) -> None:
        self._requests += found.requests
        self._fetched_bytes += found.fetched_bytes
        if found.error is not None:
            if raises:
                raise found.error
            [row] = found.rows.select(["error", "error_code"]).to_pylist()
            self._failures.append(Failure(found.file.url, **row))
        number = self._num_files
        self._num_files += 1
        table = pa.Table.from_batches([found.rows])
        numbers = pa.repeat(pa.scalar(number, pa.uint32()), len(table))
        writer.add_rows(table.set_column(0, SCHEMAS[self._rows].field(0), numbers))
        writer.add_prefixes(found.prefixes._replace(file_index=np.full(len(found.prefixes.high), number, np.uint32)))

    def _document(self, url: str) -> Document:
        return Document(
            url=url,
            rows=self._rows,
            num_files=self._num_files,
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            producer={"name": "hurray-arrow", "version": package_version()},
            step_tokens=None if self._hasher is None else self._hasher.step_tokens,
            key_check=None if self._hasher is None else self._hasher.check,
        )


def _in_order(
    read: Callable[[Listed], Contents | None], files: list[Listed], *, at_once: int, progress: Callback
) -> Iterator[Contents | None]:
    """Read files at the same time, and give them in order; no more than ``2 × at_once`` are begun and not taken."""
    progress.set_size(len(files))
    waiting: deque[Future[Contents | None]] = deque()
    pool = ThreadPoolExecutor(at_once, "hurray-arrow-catalog")
    try:
        for file in files:
            if len(waiting) >= 2 * at_once:
                yield waiting.popleft().result()
                progress.relative_update()
            waiting.append(pool.submit(read, file))
        while waiting:
            yield waiting.popleft().result()
            progress.relative_update()
    finally:
        pool.shutdown(cancel_futures=True)
