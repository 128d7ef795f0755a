"""The columns of a catalogue, and how one snapshot fills them: from its index, its metadata and its sequences' lengths.

What says whose a cache is or what was asked — tenants, adapters, sequence ids, token ids, the free field ``user`` — is
in no column. Arrow schema: ``schemas/catalog-arrow-schema.txt``. Spec: snapshot format, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from hurray_arrow.catalog.listing import Listed
from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError
from hurray_arrow.sequences import Sequences
from hurray_arrow.snapshot.entries import Entry
from hurray_arrow.snapshot.groups import window_tokens
from hurray_arrow.snapshot.reader import Snapshot

#: What a row is about.
Rows: TypeAlias = Literal["snapshots", "tensors"]

#: Columns that are taken as they are from a place in the snapshot's metadata; what is of another type there is null.
STATED: Mapping[str, tuple[str, ...]] = {
    "_".join(place) if len(place) > 1 else place[0]: place
    for place in (
        ("profile",),
        ("partial",),
        ("producer", "name"),
        ("producer", "version"),
        ("model", "name"),
        ("model", "revision"),
        ("model", "config_digest"),
        ("engine", "name"),
        ("engine", "version"),
        ("engine", "source_layout"),
        ("engine", "kv_cache_dtype"),
        ("set", "id"),
        ("set", "member"),
        ("set", "members"),
        ("topology", "tp_rank"),
        ("topology", "tp_size"),
        ("topology", "pp_rank"),
        ("topology", "pp_size"),
        ("topology", "head_replica"),
    )
}
_NUMBERS = {name for name, place in STATED.items() if place[0] == "topology"} | {"set_member", "set_members"}
_STATED_TYPES = {
    name: pa.uint32() if name in _NUMBERS else pa.bool_() if name == "partial" else pa.utf8() for name in STATED
}

#: In every row: the file, and what its snapshot says of itself.
_FILE = [
    pa.field("file_index", pa.uint32(), nullable=False),
    pa.field("url", pa.utf8(), nullable=False),
    pa.field("file_bytes", pa.uint64()),
    pa.field("identity", pa.utf8()),
    pa.field("error", pa.utf8()),
    pa.field("error_code", pa.utf8()),
    pa.field("error_where", pa.utf8()),
    pa.field("snapshot_id", pa.utf8()),
    pa.field("created", pa.timestamp("us")),
    *(pa.field(name, kind) for name, kind in _STATED_TYPES.items()),
    pa.field("head_start", pa.uint64()),
    pa.field("head_stop", pa.uint64()),
]
_GROUP = pa.struct(
    [
        ("kv_group", pa.uint32()),
        ("kind", pa.utf8()),
        ("window_tokens", pa.uint64()),
        ("page_size", pa.uint32()),
        ("num_tensors", pa.uint32()),
        ("num_pages", pa.uint64()),
        ("num_seqs", pa.uint32()),
        ("num_tokens", pa.uint64()),
    ]
)
_OF_ROWS: Mapping[str, list[tuple[str, pa.DataType]]] = {
    "snapshots": [
        ("num_tensors", pa.uint32()),
        ("num_layers", pa.uint32()),
        ("num_seqs", pa.uint32()),
        ("num_tokens", pa.uint64()),
        ("stored_bytes", pa.uint64()),
        ("layer_indexes", pa.list_(pa.uint32())),
        ("kv_roles", pa.list_(pa.utf8())),
        ("components", pa.list_(pa.utf8())),
        ("element_types", pa.list_(pa.utf8())),
        ("group_kinds", pa.list_(pa.utf8())),
        ("groups", pa.list_(_GROUP)),
    ],
    "tensors": [
        ("tensor_index", pa.uint32()),
        ("layer_index", pa.uint32()),
        ("layer_name", pa.utf8()),
        ("kv_role", pa.utf8()),
        ("component", pa.utf8()),
        ("kv_group", pa.uint32()),
        ("group_kind", pa.utf8()),
        ("window_tokens", pa.uint64()),
        ("element_type", pa.utf8()),
        ("page_size", pa.uint32()),
        ("num_heads", pa.uint64()),
        ("head_dim", pa.uint64()),
        ("num_pages", pa.uint64()),
        ("num_seqs", pa.uint32()),
        ("num_tokens", pa.uint64()),
        ("index_type", pa.utf8()),
        ("encoding", pa.utf8()),
        ("num_rows", pa.uint32()),
        ("stored_bytes", pa.uint64()),
    ],
}
#: The schema of a catalogue by what its rows are about.
SCHEMAS: Mapping[str, pa.Schema] = {
    rows: pa.schema([*_FILE, *(pa.field(name, kind) for name, kind in columns)]) for rows, columns in _OF_ROWS.items()
}


def rows_of_snapshot(file: Listed, snapshot: Snapshot, *, rows: Rows) -> pa.RecordBatch:
    """Return the rows of one snapshot; ``file_index`` is 0. Its index and its groups' tables are read, no page.

    Raises
    ------
    SnapshotCorruptError
        As :meth:`Snapshot.group_tables`; ``index_invalid``: a name or number that no column can hold.
    """
    stated = _file_row(file) | _stated(snapshot.metadata)
    by_group: dict[int, list[Entry]] = {}
    for entry in snapshot.entries:
        by_group.setdefault(entry.kv_group, []).append(entry)
    groups = [_group(snapshot, kv_group, entries) for kv_group, entries in sorted(by_group.items())]
    if rows == "snapshots":
        found = [stated | _of_snapshot(snapshot.entries, groups)]
    else:
        by_number = {group["kv_group"]: group for group in groups}
        # A snapshot of no tensors is a row too, or nobody would know that it has been read.
        found = [stated | _of_tensor(entry, by_number[entry.kv_group]) for entry in snapshot.entries] or [stated]
    try:
        return pa.RecordBatch.from_pylist(found, schema=SCHEMAS[rows])
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        problem = Problem(ProblemCode.INDEX_INVALID, "catalogue", str(error), "snapshot format 4")
        raise SnapshotCorruptError(problem, url=file.url) from error


def row_of_error(file: Listed, error: Exception, *, rows: Rows) -> pa.RecordBatch:
    """Return the row of a file that could not be read: the kind of the error and its first code, never its words."""
    problem = next(iter(getattr(error, "problems", ())), None)
    found = _file_row(file) | {"error": type(error).__name__}
    if isinstance(problem, Problem):
        found |= {"error_code": str(problem.code), "error_where": problem.where}
    return pa.RecordBatch.from_pylist([found], schema=SCHEMAS[rows])


def _file_row(file: Listed) -> dict[str, Any]:
    return {"file_index": 0, "url": file.url, "file_bytes": file.file_bytes, "identity": file.identity}


def _stated(metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _at(metadata, place, _STATED_TYPES[name]) for name, place in STATED.items()}
    heads = metadata.get("topology", {}).get("head_range")
    start, stop = heads if isinstance(heads, list) and len(heads) == 2 else (None, None)
    return found | {
        "snapshot_id": metadata["id"],
        "created": _time(metadata["created"]),
        "head_start": _typed(start, pa.uint64()),
        "head_stop": _typed(stop, pa.uint64()),
    }


def _at(metadata: Mapping[str, Any], place: Sequence[str], kind: pa.DataType) -> Any:
    found: Any = metadata
    for name in place:
        found = found.get(name) if isinstance(found, Mapping) else None
    return _typed(found, kind)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """Return a value of the metadata's as a column of this type holds it; null for what is no such value."""
    if pa.types.is_unsigned_integer(kind):
        # From 2^53 on the format writes numbers as strings.
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        return number if type(number) is int and 0 <= number < 2**kind.bit_width else None
    wanted = bool if pa.types.is_boolean(kind) else str
    return value if isinstance(value, wanted) else None


def _time(text: str) -> datetime | None:
    """Return a time in UTC without saying so: DuckDB wants another package for times with zones."""
    try:
        time = datetime.fromisoformat(text)
        return None if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _group(snapshot: Snapshot, kv_group: int, entries: Sequence[Entry]) -> dict[str, Any]:
    groups = snapshot.metadata.get("groups", [])
    tables = snapshot.group_tables(kv_group)
    return {
        "kv_group": kv_group,
        "kind": groups[kv_group]["kind"] if kv_group < len(groups) else None,
        "window_tokens": window_tokens(snapshot.metadata, kv_group),
        "page_size": entries[0].page_shape[0],
        "num_tensors": len(entries),
        "num_pages": entries[0].num_pages,
        "num_seqs": entries[0].num_seqs,
        "num_tokens": _num_tokens(tables.sequences, num_seqs=tables.seq_ptr.size - 1),
    }


def _num_tokens(facts: Sequences, *, num_seqs: int) -> int | None:
    """Return the stored tokens of all sequences, ``None`` where nobody recorded some of them."""
    complete = facts.seq_lens is not None and facts.seq_lens_known is None
    return facts.recorded_tokens() if complete or not num_seqs else None


def _of_snapshot(entries: Sequence[Entry], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Groups that store fewer tokens leave out what a window has passed.
    tokens = [group["num_tokens"] for group in groups]
    return {
        "num_tensors": len(entries),
        "num_layers": len({entry.layer for entry in entries} - {(None, None)}),
        "num_seqs": max((group["num_seqs"] for group in groups), default=0),
        "num_tokens": None if None in tokens else max(tokens, default=0),
        "stored_bytes": sum(entry.stored_bytes for entry in entries),
        "layer_indexes": _distinct(entry.layer_index for entry in entries),
        "kv_roles": _distinct(entry.kv_role for entry in entries),
        "components": _distinct(entry.component for entry in entries),
        "element_types": _distinct(entry.element_type for entry in entries),
        "group_kinds": _distinct(group["kind"] for group in groups),
        "groups": list(groups),
    }


def _of_tensor(entry: Entry, group: Mapping[str, Any]) -> dict[str, Any]:
    page_size, num_heads, head_dim = entry.page_shape
    return {
        **entry._asdict(),
        "group_kind": group["kind"],
        "window_tokens": group["window_tokens"],
        "page_size": page_size,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "num_tokens": group["num_tokens"],
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted({value for value in values if value is not None})
