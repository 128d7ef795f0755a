"""What a catalogue says of itself: one JSON document in the Parquet file's key-value metadata.

The digests lie in the same file, between its row groups, where readers of Parquet do not look: runs that are Arrow IPC
streams of one batch each, sorted by digest. The document says where. So a catalogue is one file that appears whole, and
a search touches a few pages of it. JSON Schema: ``schemas/catalog.schema.json``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from hurray_arrow import _json
from hurray_arrow.catalog.columns import SCHEMAS, Rows
from hurray_arrow.errors import CatalogError, Problem, ProblemCode
from hurray_arrow.snapshot.checksums import xxh3_hex

DOCUMENT_KEY, HASH_KEY = b"hurray_arrow.catalog", b"hurray_arrow.catalog_xxh3"
VERSION = 1
_MAX_BYTES = 16 << 20
_HEX = re.compile("[0-9a-f]+")

#: Whole steps, or the ends of sequences that are none.
RunKind = Literal["steps", "ends"]


@dataclass(frozen=True, slots=True)
class Run:
    """Where some digests lie, sorted among themselves.

    Parameters
    ----------
    kind
        ``"steps"``: prefixes of a whole number of steps; ``"ends"``: the longest prefixes of sequences, where they are
        not.
    num_rows
        Digests.
    offset_bytes, num_bytes
        Place in the file of the Arrow IPC stream.
    xxh3
        Of these bytes, 16 hex digits.
    """

    kind: RunKind
    num_rows: int
    offset_bytes: int
    num_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Document:
    """The whole document.

    Parameters
    ----------
    url
        What the catalogue is of.
    rows
        What its rows are about.
    num_files
        Files; ``file_index`` is below it.
    created
        When it was written, RFC 3339.
    producer
        ``name`` and ``version`` of what wrote it.
    step_tokens, key_check
        Of the digests, see :class:`~hurray_arrow.catalog.digests.PrefixHasher`; ``None`` where there are none.
    runs
        The digests.
    """

    url: str
    rows: Rows
    num_files: int
    created: str
    producer: Mapping[str, str]
    step_tokens: int | None = None
    key_check: str | None = None
    runs: tuple[Run, ...] = ()

    def metadata(self) -> dict[bytes, bytes]:
        """Return the key-value metadata that carries the document and its hash: Parquet's footer has none."""
        text = self._as_json().encode()
        return {DOCUMENT_KEY: text, HASH_KEY: xxh3_hex(text).encode()}

    def _as_json(self) -> str:
        names = ("url", "rows", "num_files", "created", "producer")
        found: dict[str, Any] = {"version": VERSION} | {name: getattr(self, name) for name in names}
        if self.step_tokens is not None:
            runs = [{name: getattr(run, name) for name in Run.__slots__} for run in self.runs]
            found["prefixes"] = {"step_tokens": self.step_tokens, "key_check": self.key_check, "runs": runs}
        return _json.dumps(found)

    @classmethod
    def from_metadata(cls, pairs: Mapping[bytes, bytes] | None, *, url: str) -> Document:
        """Read the document.

        Raises
        ------
        CatalogError
            ``catalog_invalid``.
        """
        text = (pairs or {}).get(DOCUMENT_KEY)
        if text is None:
            raise invalid("file", "Parquet, and no catalogue", url=url)
        found, expected = xxh3_hex(text), (pairs or {}).get(HASH_KEY, b"").decode("ascii", "replace")
        if found != expected:
            raise invalid("document", f"xxh3 {found}, expected {expected:.20}", url=url)
        try:
            return cls._read(_json.loads(text, max_bytes=_MAX_BYTES))
        except _json.JsonError as error:
            raise invalid("document", str(error), url=url) from error

    @classmethod
    def _read(cls, value: Any) -> Document:
        if not isinstance(value, dict):
            raise _json.JsonError(f"{value!r:.40}, expected an object")
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            raise _json.JsonError(f"version {version!r:.40}, expected {VERSION}")
        producer = value.get("producer")
        if not isinstance(producer, dict):
            raise _json.JsonError(f"producer: {producer!r:.40}, expected an object")
        found = cls(
            url=_text(value, "url"),
            rows=cast("Rows", _one_of(value, "rows", SCHEMAS)),
            num_files=_integer(value, "num_files"),
            created=_text(value, "created"),
            producer={name: _text(producer, name) for name in ("name", "version")},
        )
        return found._with_prefixes(value["prefixes"]) if "prefixes" in value else found

    def _with_prefixes(self, value: Any) -> Document:
        runs = value.get("runs") if isinstance(value, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise _json.JsonError("prefixes: expected an object with a list of runs")
        step_tokens = _integer(value, "step_tokens")
        if not step_tokens:
            raise _json.JsonError("step_tokens is 0")
        read = (
            Run(
                kind=cast("RunKind", _one_of(run, "kind", get_args(RunKind))),
                num_rows=_integer(run, "num_rows"),
                offset_bytes=_integer(run, "offset_bytes"),
                num_bytes=_integer(run, "num_bytes"),
                xxh3=_hex(run, "xxh3", 16),
            )
            for run in runs
        )
        return dataclasses.replace(
            self, step_tokens=step_tokens, key_check=_hex(value, "key_check", 32), runs=tuple(read)
        )


def invalid(where: str, message: str, *, url: str) -> CatalogError:
    """Return the error for what makes a file no catalogue."""
    return CatalogError(Problem(ProblemCode.CATALOG_INVALID, where, message), url=url)


def _integer(value: Mapping[str, Any], name: str) -> int:
    return _json.as_integer(value.get(name), what=name)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise _json.JsonError(f"{name}: {found!r:.40}, expected a string")
    return found


def _one_of(value: Mapping[str, Any], name: str, allowed: Any) -> str:
    found = _text(value, name)
    if found not in allowed:
        raise _json.JsonError(f"{name}: {found!r:.40}, expected one of {sorted(allowed)}")
    return found


def _hex(value: Mapping[str, Any], name: str, digits: int) -> str:
    found = _text(value, name)
    if len(found) != digits or not _HEX.fullmatch(found):
        raise _json.JsonError(f"{name}: {found!r:.40}, expected {digits} lower-case hex digits")
    return found
