"""The snapshot's own metadata: one JSON document in the Arrow schema's metadata.

It says what a cache belongs to, so that nobody loads keys and values of another model, revision or tenant without an
error.

Spec: snapshot format, sections 3 and 6. JSON Schema: ``schemas/snapshot.schema.json``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hurray_arrow import _json
from hurray_arrow.arrow.ipc_layout import MAX_METADATA_BYTES
from hurray_arrow.arrow.schema import FORMAT_KEY, FORMAT_VERSION, SNAPSHOT_KEY
from hurray_arrow.errors import SHOWN_OF_A_KIND, Problem, ProblemCode, SnapshotCorruptError, UnsupportedError

#: What a snapshot's document may take once it is parsed.
MAX_PARSED_BYTES = 16 << 20
PROFILES = ("share", "archive")
MIN_PAGE_ALIGN_BYTES = 64
MAX_PAGE_ALIGN_BYTES = 2 << 20
#: Features that this version knows; a snapshot that requires another one is refused.
KNOWN_FEATURES: frozenset[str] = frozenset()

_REQUIRED: Mapping[str, type] = {
    "id": str,
    "profile": str,
    "page_align_bytes": int,
    "producer": dict,
    "created": str,
    "requires": list,
}
_OPTIONAL: Mapping[str, type] = {
    "model": dict,
    "engine": dict,
    "groups": list,
    "topology": dict,
    "set": dict,
    "adapter": str,
    "tenant": str,
    "partial": bool,
    "user": object,
}
GROUP_KINDS = ("full", "sliding_window", "chunked", "state", "cross", "opaque")


def new_metadata(
    given: Mapping[str, Any] | None,
    *,
    profile: str,
    page_align_bytes: int,
    partial: bool,
    keep_unknown: bool = False,
) -> dict[str, Any]:
    """Complete a caller's metadata with what the writer knows.

    Parameters
    ----------
    given
        ``model``, ``engine``, ``groups``, ``topology``, ``set``, ``adapter``, ``tenant``, ``user``, and ``id`` or
        ``created`` to set them. The other keys belong to the writer.
    profile, page_align_bytes, partial
        What the writer does.
    keep_unknown
        Take keys that this version does not know, as copies do (section 6).

    Raises
    ------
    ValueError
        A key that belongs to the writer or that the format does not have (put your own under ``user``), a value of the
        wrong type, or more of them than a reader takes.
    """
    if not isinstance(given, Mapping | None):
        raise TypeError(f"metadata: {type(given).__name__}, expected a dict")
    given = dict(given or {})
    allowed = {"id", "created", "producer", *_OPTIONAL} - {"partial"}
    unknown = sorted(set(given) - allowed)
    if unknown and not keep_unknown:
        raise ValueError(f"metadata keys {unknown}: the format has {sorted(allowed)}; put your own under 'user'")
    metadata = {
        "id": str(uuid.uuid4()),
        "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "producer": {"name": "hurray-arrow", "version": package_version()},
        **given,
        "profile": profile,
        "page_align_bytes": page_align_bytes,
        "requires": [],
        **({"partial": True} if partial else {}),
    }
    problems = metadata_problems(metadata)
    if problems:
        raise ValueError("; ".join(str(problem) for problem in problems))
    # A reader takes a document or refuses it; what is written has to be one that it takes.
    _json.loads(_json.dumps(metadata), max_bytes=MAX_METADATA_BYTES, max_parsed_bytes=MAX_PARSED_BYTES)
    return metadata


def schema_metadata(metadata: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the Arrow schema metadata that carries ``metadata``."""
    return {FORMAT_KEY.encode(): FORMAT_VERSION.encode(), SNAPSHOT_KEY.encode(): _json.dumps(metadata).encode()}


def parse_schema_metadata(pairs: Mapping[bytes, bytes] | None, *, url: str) -> dict[str, Any]:
    """Read the snapshot's metadata out of a schema's.

    Raises
    ------
    UnsupportedError
        Another format version, or a required feature that this version does not know.
    SnapshotCorruptError
        ``metadata_invalid``.
    """
    check_format_version(pairs, url=url)
    pairs = pairs or {}
    if FORMAT_KEY.encode() not in pairs:
        raise SnapshotCorruptError(_problem(FORMAT_KEY, "missing: this is not a snapshot"), url=url)
    try:
        metadata = _json.loads(
            pairs.get(SNAPSHOT_KEY.encode(), b""), max_bytes=MAX_METADATA_BYTES, max_parsed_bytes=MAX_PARSED_BYTES
        )
    except _json.JsonError as error:
        raise SnapshotCorruptError(_problem(SNAPSHOT_KEY, str(error)), url=url) from error
    problems = metadata_problems(metadata)
    if problems:
        raise SnapshotCorruptError(problems, url=url)
    missing = sorted(set(metadata["requires"]) - KNOWN_FEATURES)
    if missing:
        raise UnsupportedError(f"{url}: the snapshot requires {missing}, which this version does not know")
    return dict(metadata)


def check_format_version(pairs: Mapping[bytes, bytes] | None, *, url: str) -> None:
    """Refuse a snapshot of another format version; what states none is left to the other checks.

    Raises
    ------
    UnsupportedError
        The schema's metadata names another version.
    """
    found = (pairs or {}).get(FORMAT_KEY.encode(), FORMAT_VERSION.encode())
    if found != FORMAT_VERSION.encode():
        raise UnsupportedError(f"{url}: {FORMAT_KEY} {found!r:.40}, this version reads {FORMAT_VERSION!r}")


def metadata_problems(metadata: Any) -> list[Problem]:
    """Return what is wrong with a snapshot's metadata; unknown keys are allowed (section 6)."""
    if not isinstance(metadata, dict):
        return [_problem(SNAPSHOT_KEY, f"{type(metadata).__name__}, expected an object")]
    kinds = {**_REQUIRED, **{key: kind for key, kind in _OPTIONAL.items() if key in metadata}}
    problems = [
        _problem(key, f"{metadata.get(key)!r:.40}, expected {kind.__name__}")
        for key, kind in kinds.items()
        if not _is(metadata.get(key), kind)
    ]
    if problems:
        return problems
    align = metadata["page_align_bytes"]
    if metadata["profile"] not in PROFILES:
        problems.append(_problem("profile", f"{metadata['profile']!r:.40}, expected one of {PROFILES}"))
    if not MIN_PAGE_ALIGN_BYTES <= align <= MAX_PAGE_ALIGN_BYTES or align & (align - 1):
        bounds = f"{MIN_PAGE_ALIGN_BYTES} … {MAX_PAGE_ALIGN_BYTES}"
        problems.append(_problem("page_align_bytes", f"{align}, expected a power of two in {bounds}"))
    if not all(isinstance(feature, str) for feature in metadata["requires"]):
        problems.append(_problem("requires", "expected names"))
    producer = metadata["producer"]
    problems += [
        _problem(f"producer.{key}", f"{producer.get(key)!r:.40}, expected str")
        for key in ("name", "version")
        if not isinstance(producer.get(key), str)
    ]
    return problems + _group_problems(metadata.get("groups", []))


def _group_problems(groups: list[Any]) -> list[Problem]:
    problems: list[Problem] = []
    for number, group in enumerate(groups):
        if len(problems) >= SHOWN_OF_A_KIND:
            return [*problems, _problem(f"groups[{number}]", "and the groups behind it were not looked at")]
        where = f"groups[{number}]"
        if not isinstance(group, dict) or group.get("kind") not in GROUP_KINDS:
            problems.append(_problem(where, f"{group!r:.60}, expected an object with kind one of {GROUP_KINDS}"))
            continue
        for key in ("layer_names", "components"):
            names = group.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                problems.append(_problem(f"{where}.{key}", f"{names!r:.40}, expected a list of names"))
        # Larger ones would be written as text, and no window or page is so large.
        problems += [
            _problem(f"{where}.{key}", f"{group[key]!r:.40}, expected an integer of 0 or more, below 2^53")
            for key in ("window_tokens", "page_size")
            if key in group and not (_is(group[key], int) and 0 <= group[key] < _json.FIRST_INEXACT_INTEGER)
        ]
    return problems


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


@cache
def package_version() -> str:
    """Return the installed version of hurray-arrow, or ``"0"`` in a bare source tree."""
    try:
        return version("hurray-arrow")
    except PackageNotFoundError:
        return "0"


def _problem(where: str, message: str) -> Problem:
    return Problem(ProblemCode.METADATA_INVALID, where, message, spec="snapshot format 3")
