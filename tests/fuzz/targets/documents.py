"""JSON documents: a snapshot's metadata and its index, as text and with single values changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from hurray_arrow import _json
from hurray_arrow.arrow.metadata import new_metadata, parse_schema_metadata, schema_metadata
from hurray_arrow.errors import SnapshotMismatchError
from hurray_arrow.identity import check_expected
from hurray_arrow.snapshot.entries import check_entry, entries_of
from hurray_arrow.snapshot.groups import missing_members, window_tokens
from hurray_arrow.snapshot.index import FILE, INDEX_HASH_KEY, INDEX_KEY, Index, index_problems
from tests.faults.forgery import index_text, xxh3, zst_frame, zst_pairs
from tests.fuzz.bases import GOLDEN, small_stream
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.limits import bounded, promise, refused

_FORMAT, _SNAPSHOT = b"hurray_arrow.format", b"hurray_arrow.snapshot"


# -- metadata ----------------------------------------------------------------------------------------------------------


@cache
def _documents() -> tuple[dict[str, Any], ...]:
    names = ("metadata", "companions", "archive", "partial")
    found = [pa.ipc.open_file(pa.memory_map(str(GOLDEN / f"{name}.arrow"))).schema.metadata for name in names]
    return tuple(json.loads(pairs[_SNAPSHOT]) for pairs in found)


def metadata_seeds() -> Iterator[bytes]:
    """Yield whole documents as text, and scripts that change them."""
    for number, document in enumerate(_documents()):
        yield b"\0" + json_text(document).encode()
        yield from (bytes([1, number, 3, place, place % 12, 0, place, 3, 7]) for place in range(24))
        for changed in ({"profile": "x"}, {"requires": ["x"]}, {"requires": [1]}, {"groups": [0] * 150}):
            yield b"\0" + json_text({**document, **changed}).encode()
        yield b"\0" + json_text({**document, "user": {"smile": "\U0001f600"}}).encode()
    yield from (bytes([form]) + json_text({}).encode() for form in (2, 4, 6))
    yield from (
        b"\0" + text
        for text in (b"", b"{", b"[]", b'{"a":1,"a":2}', b"NaN", b"[" * 17 + b"]" * 17, b"\xff", b"9" * 5000)
    )


def run_metadata(data: bytes) -> None:
    """Read metadata out of a schema's pairs; what is accepted can be used and written again."""
    choices = Choices(data)
    form = choices.number()
    pairs = ({_FORMAT: b"1"}, {_FORMAT: b"1"}, {_FORMAT: b"2"}, {})[form // 2 % 4].copy()
    if form & 1:
        document, kept_keys, how = choices.pick(_documents()), choices.number(), choices.number()
        while choices.more:
            document = choices.value(document) if choices.flag() else _with_key(document, choices)
        _write(document, kept_keys=kept_keys, how=how)
        pairs[_SNAPSHOT] = json_text(document).encode("utf-8", "surrogatepass")
    else:
        pairs[_SNAPSHOT] = choices.rest()
    with bounded(len(pairs[_SNAPSHOT])):
        # A reader of something smaller than the whole document.
        refused(lambda: _json.loads(pairs[_SNAPSHOT], max_bytes=200, max_parsed_bytes=400), _json.JsonError)
        found = refused(lambda: parse_schema_metadata(pairs, url="fuzz"))
        if found is None:
            return
        promise(found == json.loads(pairs[_SNAPSHOT]), "other metadata than was written")
        missing_members(found, ())
        for kv_group in range(len(found.get("groups", ())) + 1):
            window = window_tokens(found, kv_group)
            promise(window is None or window >= 0, "a window of less than nothing")
        _expected(found)
        written = schema_metadata(found)
        again = parse_schema_metadata(written, url="fuzz")
        promise(schema_metadata(again) == written, "metadata changes when it is written twice")


def _write(document: Any, *, kept_keys: int, how: int) -> None:
    """Give a writer what may be no document: a typed refusal, or text that is read as the same."""
    values = (document, {"a": document}, [document] * 2, {1: document}, {"a": object()}, _deep(document))
    value = values[how % len(values)]
    text = refused(lambda: _json.dumps(value), _json.JsonError)
    if text is not None:
        again = _json.loads(text, max_bytes=1 << 24)
        promise(_json.dumps(again) == text, "JSON changes when it is written twice")
    if isinstance(document, dict):
        given = {key: document[key] for number, key in enumerate(sorted(document)) if kept_keys >> number % 8 & 1}
        refused(lambda: new_metadata(given, profile="share", page_align_bytes=64, partial=False), ValueError)


def _deep(value: Any) -> Any:
    for _ in range(17):
        value = [value]
    return value


def _with_key(document: Any, choices: Choices) -> Any:
    if choices.below(16) == 15:
        return {**document, "groups": [choices.value()] * 150} if isinstance(document, dict) else document
    keys = ("model", "groups", "topology", "set", "adapter", "tenant", "partial", "user", "requires", "engine")
    return {**document, choices.pick(keys): choices.value()} if isinstance(document, dict) else document


def _expected(metadata: dict[str, Any]) -> None:
    for name, value in metadata.items():
        if value is not None and "." not in name:
            refused(lambda name=name, value=value: check_expected(metadata, {name: value}))
        if "." not in name:
            try:
                check_expected(metadata, {name: object})
            except SnapshotMismatchError:
                continue
            raise AssertionError(f"{name} is whatever one expects")


# -- index -------------------------------------------------------------------------------------------------------------


@cache
def _indexes() -> tuple[dict[str, Any], ...]:
    found = []
    for name in ("companions", "archive", "empty", "nothing", "long_index"):
        reader = pa.ipc.open_file(pa.memory_map(str(GOLDEN / f"{name}.arrow")))
        _, pairs = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        found.append(json.loads(index_text(pairs)))
    reader = pa.ipc.open_stream(small_stream())
    while True:
        batch, pairs = reader.read_next_batch_with_custom_metadata()
        if not batch.num_rows:
            return (*found, json.loads(index_text(pairs)))


#: What a second row may say that contradicts the first one, or itself.
_SECOND_ROWS: tuple[dict[str, Any], ...] = (
    {"bare_head_xxh3": "0" * 16},
    {"bare_head_xxh3": "0" * 16, "num_pages": 2**40},
    {"tensor_index": 0},
    {"tensor_index": 0, "page_offset": 3, "num_seqs": 7},
    {"layer_index": 0, "layer_name": "l.0", "kv_role": "key", "component": "values", "kv_group": 0},
)


def _with_second_row(change: dict[str, Any]) -> dict[str, Any]:
    index = _indexes()[0]
    first, second, *others = index["rows"]
    rows = [first, {**second, **change}, *others]
    return {**index, "rows": rows, "num_tensors": len({row["tensor_index"] for row in rows})}


def index_seeds() -> Iterator[bytes]:
    """Yield whole indexes as text, compressed too, and scripts that change them."""
    for number, index in enumerate(_indexes()):
        yield b"\0" + json_text(index).encode()
        yield b"\2" + zst_frame(json_text(index).encode())
        for place in range(26):
            yield bytes([1, number, 1, 1, 0, place, 200 - place, 3])
            yield bytes([5, number, 0, 0, place % 7, 4, 1])
        for row in range(2):
            yield from (bytes([1, number, 1, row, name, 0, 0, 3]) for name in range(20))
    yield from (b"\0" + json_text(_with_second_row(change)).encode() for change in _SECOND_ROWS)
    yield from (b"\0" + text for text in (b"", b"{}", b'{"version":1,"kind":"file","rows":[1]}', b'{"version":1.0}'))
    yield from (b"\6", b"\6{}")
    yield from (b"\3" + frame for frame in (b"", b"\x28\xb5\x2f\xfd", zst_frame(bytes(1 << 22))))


def run_index(data: bytes) -> None:
    """Read an index whose hash is right; what is accepted contradicts nothing and is written again alike."""
    choices = Choices(data)
    pairs, size = _index_pairs(choices)
    with bounded(size):
        index = refused(lambda: Index.from_custom_metadata(pairs, url="fuzz", file_bytes=size))
        if index is None:
            return
        promise(index_problems(index.rows, kind=index.kind) == [], "an index with problems was accepted")
        entries = entries_of(index.rows)
        promise(len(entries) == index.num_tensors == len({entry.key for entry in entries}), "tensors counted twice")
        promise(all(str(entry) for entry in entries) and callable(check_entry), "an entry without text")
        try:
            written = index.custom_metadata()
        except (_json.JsonError, UnicodeEncodeError):
            # A lone surrogate comes out of JSON and has no UTF-8.
            return
        encoded = {key.encode(): value.encode() for key, value in written.items()}
        # An index that is written plain may be larger than one that was compressed.
        promise(
            Index.from_custom_metadata(encoded, url="fuzz", file_bytes=1 << 30) == index,
            "an index changes when it is written",
        )
        if index.kind == FILE:
            ends = [row.block.end for row in index.rows]
            promise(ends == sorted(ends), "rows that go back")


def _index_pairs(choices: Choices) -> tuple[dict[bytes, bytes], int]:
    kind = choices.below(7)
    if kind == 6:
        # No index, or another hash.
        text = choices.rest()
        return {INDEX_KEY.encode(): text} if text else {}, len(text)
    if kind in (1, 5):
        text = json_text(_changed_index(choices)).encode("utf-8", "surrogatepass")
        if kind == 5:
            pairs = zst_pairs(zst_frame(text))
            return {
                key.encode(): value if isinstance(value, bytes) else value.encode() for key, value in pairs.items()
            }, len(text)
    elif kind in (2, 3):
        frame = choices.rest()
        pairs = zst_pairs(frame)
        return {
            key.encode(): value if isinstance(value, bytes) else value.encode() for key, value in pairs.items()
        }, len(frame)
    else:
        text = choices.rest()
    return {INDEX_KEY.encode(): text, INDEX_HASH_KEY.encode(): xxh3(text).encode()}, len(text)


def _changed_index(choices: Choices) -> Any:
    index = json.loads(json.dumps(choices.pick(_indexes())))
    while choices.more:
        rows = index["rows"]
        if choices.flag() and rows:
            row = rows[choices.below(len(rows))]
            name = choices.pick(sorted(row) or ["offset"])
            if choices.flag():
                row.pop(name, None)
            else:
                row[name] = choices.value(row.get(name))
        else:
            name = choices.pick(("version", "kind", "num_rows", "num_tensors", "schema_xxh3"))
            index[name] = choices.value(index.get(name))
        if choices.below(8) == 7 and rows:
            rows.append(dict(rows[choices.below(len(rows))]))
    return index


#: Where a document on disk lies for those who want to look at one.
EXAMPLE: Path = GOLDEN / "companions.arrow"
