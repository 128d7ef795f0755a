"""Catalogues: the document as text and with values changed, and whole files whose digests, document or bytes changed.

What opens is searched: every match is of a file that the document counts, and no longer than the prompt.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from hurray_arrow import MediaSpan
from hurray_arrow.catalog import Catalog, build_catalog, find_prefix, open_catalog
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.document import DOCUMENT_KEY, HASH_KEY, Document
from tests.faults.forgery import xxh3
from tests.faults.small import write_small
from tests.fuzz.bases import file_path
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.limits import bounded, promise, refused
from tests.unit.catalog.samples import KEY, PROMPT, write

#: A script's first byte: the document alone as text or changed; a file with digests or a document changed.
TEXT, DOCUMENT, DIGESTS, PATCHED = range(4)


@cache
def _catalogues() -> tuple[bytes, ...]:
    """Return catalogues: with digests of both kinds, by tensors, without a key, of others."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, tokens in enumerate((23, 48, 97)):
            write(Path(folder) / f"{number}.arrow", tokens=tokens, seed=number)
        write_small(Path(folder) / "small.arrow")
        for rows, key in (("snapshots", KEY), ("tensors", KEY), ("snapshots", None)):
            path = Path(folder) / "catalogue.parquet"
            build_catalog(folder, destination=path, rows=rows, key=key)
            found.append(path.read_bytes())
            path.unlink()
    return (*found, _of_others(found[0], is_compressed=False), _of_others(found[0], is_compressed=True))


def _of_others(content: bytes, *, is_compressed: bool) -> bytes:
    """Return a catalogue as others may write one: no statistics, a column of another type, no row of the first file.

    Its digests stand in a column of Parquet's, two runs of them.
    """
    table = parquet.read_table(pa.BufferReader(content))
    table = table.filter(pc.not_equal(table["file_index"], 0))
    place = table.schema.get_field_index("error")
    table = table.set_column(place, "error", pa.nulls(len(table), pa.large_utf8()))
    document = Document.from_metadata(_pairs(_text(content)), url="fuzz")
    first, *_ = document.runs
    plain = content[first.offset_bytes : first.offset_bytes + first.num_bytes]
    runs = [plain, _compressed(plain) if is_compressed else plain + b"\0"]
    blob = pa.array([b"".join(runs), *[b""] * (len(table) - 1)])
    table = table.append_column("digests", blob)
    places = [0, 0]
    # Again with the places that are known then: the document stands behind them.
    for _ in range(2):
        stated = [
            dataclasses.replace(first, kind=kind, offset_bytes=at, num_bytes=len(run), xxh3=xxh3(run))
            for kind, at, run in zip(("steps", "ends"), places, runs, strict=True)
        ]
        pairs = dataclasses.replace(document, runs=tuple(stated)).metadata()
        sink = pa.BufferOutputStream()
        options: dict[str, Any] = {"write_statistics": False, "compression": "none", "use_dictionary": False}
        parquet.write_table(table.replace_schema_metadata(pairs), sink, **options)
        made = sink.getvalue().to_pybytes()
        places = [made.index(run) for run in runs]
    return made


def _compressed(stream: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    reader = pa.ipc.open_stream(stream)
    with pa.ipc.new_stream(sink, reader.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(reader.read_next_batch())
    return sink.getvalue().to_pybytes()


@cache
def _documents() -> tuple[dict[str, Any], ...]:
    # What differs from run to run is no part of a seed.
    fixed = {"created": "2025-01-02T03:04:05Z", "url": "file:///c"}
    return tuple({**json.loads(text), **fixed} for text in map(_text, _catalogues()))


def _text(content: bytes) -> bytes:
    """Return a catalogue's document, which lies in its footer as it is."""
    found = re.search(rb'\{"created".*?"version":1\}', content)
    assert found is not None
    return found[0]


def seeds() -> Iterator[bytes]:
    """Yield documents as text and with a value changed; files with bytes of digests and numbers changed."""
    for base, document in enumerate(_documents()):
        yield bytes([TEXT]) + json_text(document).encode()
        for way in range(60):
            yield bytes([DOCUMENT, base, way % 3, way % 11, way * 37 % 256, way % 7, way])
            yield bytes([DIGESTS, base, way % 4, way * 53 % 256, way % 3, 1, 0xFF, way])
            yield bytes([PATCHED, base, way, way * 29 % 256, way % 9])
        yield bytes([DIGESTS, base])
    texts = (b"", b"[]", b"{}", b'{"version":1}', b'{"version":2}', b"\xff", b"[" * 99, b'{"version":1,"version":1}')
    yield from (bytes([TEXT]) + text for text in texts)


def run(data: bytes) -> None:
    """Read a catalogue, or its document alone, that a script changed."""
    choices = Choices(data)
    how = choices.below(4)
    if how in (TEXT, DOCUMENT):
        text = choices.rest() if how == TEXT else json_text(_changed(choices)).encode("utf-8", "surrogatepass")
        with bounded(len(text)):
            _look_at_document({DOCUMENT_KEY: text, HASH_KEY: xxh3(text).encode()})
        return
    content = choices.pick(_catalogues())
    changed = _digests_changed(content, choices) if how == DIGESTS else _patched(content, choices)
    file_path().write_bytes(changed)
    with bounded(len(changed)):
        catalogue = refused(lambda: open_catalog(file_path()))
        if catalogue is not None:
            with catalogue:
                _look_at(catalogue)


def _changed(choices: Choices) -> Any:
    document: Any = json.loads(json.dumps(choices.pick(_documents())))
    while choices.more:
        runs = document.get("prefixes", {}).get("runs") or [{}]
        part: Any = choices.pick((document, document.get("prefixes", {}), choices.pick(runs), document["producer"]))
        if not isinstance(part, dict) or not part:
            break
        name = choices.pick(sorted(part))
        if choices.below(8) == 7:
            del part[name]
        else:
            part[name] = choices.value(part[name])
        if not all(isinstance(document.get(name, {}), dict) for name in ("prefixes", "producer")):
            break
        if "producer" not in document or not isinstance(document.get("prefixes", {}).get("runs", []), list):
            break
    return document


def _look_at_document(pairs: dict[bytes, bytes]) -> None:
    document = refused(lambda: Document.from_metadata(pairs, url="fuzz"))
    if document is not None:
        again = Document.from_metadata(document.metadata(), url="fuzz")
        promise(again == document and document.rows in SCHEMAS, "a document changes when it is written")
    refused(lambda: Document.from_metadata({**pairs, HASH_KEY: b"0" * 16}, url="fuzz"))
    promise(refused(lambda: Document.from_metadata(None, url="fuzz")) is None, "a document out of nothing")


def _digests_changed(content: bytes, choices: Choices) -> bytes:
    """Return the file with bytes of its digests changed: a mapped catalogue's are not hashed."""
    changed = bytearray(content)
    runs = Document.from_metadata(_pairs(_text(content)), url="fuzz").runs
    while choices.more and runs:
        run = choices.pick(runs)
        # Headers first, which are few bytes among many.
        size = run.num_bytes if choices.flag() else min(run.num_bytes, 1024)
        place, new = run.offset_bytes + choices.number(2) % size, choices.chunk(1 + choices.below(8))
        changed[place : place + len(new)] = new
    return bytes(changed[: len(content)])


def _pairs(text: bytes) -> dict[bytes, bytes]:
    return {DOCUMENT_KEY: text, HASH_KEY: xxh3(text).encode()}


def _patched(content: bytes, choices: Choices) -> bytes:
    """Return the file with numbers of its document changed to others of as many digits, and the hash made right."""
    text = _text(content)
    changed = bytearray(text)
    numbers = [found.span() for found in re.finditer(rb"(?<=:)\d+", text)]
    while choices.more:
        start, end = choices.pick(numbers)
        # No number begins with a zero.
        changed[start:end] = bytes(48 + (choices.below(10) or 1) for _ in range(end - start))
    return content.replace(text, bytes(changed)).replace(xxh3(text).encode(), xxh3(bytes(changed)).encode())


def _look_at(catalogue: Catalog) -> None:
    document = catalogue.document
    promise(repr(catalogue) and catalogue.is_current in (True, False), "no text")
    refused(lambda: list(catalogue.row_groups()))
    refused(lambda: list(catalogue.row_groups(["url"], files=pa.array([1, 3]).to_numpy())))
    for run in document.runs:
        checked = refused(lambda run=run: catalogue.run(run, verify=True))
        found = refused(lambda run=run: catalogue.run(run))
        promise(checked is None or found is not None, "digests that were checked are none")
        promise(found is None or {len(column) for column in found} == {run.num_rows}, "other digests than it says")
    refused(lambda: find_prefix(file_path(), PROMPT, key=KEY))
    media = [MediaSpan(7, 5, "d")]
    for more in ({}, {"expect": {"model.name": "x"}}, {"expect": {"num_heads": 2}}, {"limit": 1}, {"media": media}):
        matches = refused(lambda more=more: find_prefix(catalogue, PROMPT, key=KEY, **more), ValueError)
        for match in matches or ():
            promise(0 < match.num_tokens <= len(PROMPT), "a match longer than the prompt")
    refused(lambda: find_prefix(catalogue, PROMPT[:5], key=KEY[::-1]))
