"""Streams: messages changed with right hashes, exchanged or damaged; through sources that give little at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

import hurray_arrow as ha
from hurray_arrow import BlockPagedTensor, HurrayArrowError
from hurray_arrow.arrow.convert import tensors_from_batches
from hurray_arrow.arrow.ipc_layout import message_kind
from tests.faults.outcome import code_of, is_same
from tests.faults.stream_forgery import StreamForgery
from tests.fuzz import column_edits
from tests.fuzz.bases import streams
from tests.fuzz.choices import Choices
from tests.fuzz.edits import CASE_NAMES, EDITS
from tests.fuzz.limits import bounded, check_error, promise, refused
from tests.fuzz.scripts import Script, UnbuildableError
from tests.fuzz.targets.files import damaged

FORGED, DAMAGED, MESSAGES = range(3)


def seeds() -> Iterator[bytes]:
    """Yield scripts: each edit in a few ways, each hand-made case, damage, messages in every order."""
    for base in range(4):
        yield bytes([FORGED, base])
        for place in range(0, 256, 9):
            yield bytes([DAMAGED, base, 0, place, place, 1, 0xFF])
        for how in range(5):
            for place in range(6):
                yield bytes([MESSAGES, base, how, place, how + place, 3])
    for edit in range(1, len(EDITS)):
        for way in range(24):
            yield bytes(
                [FORGED, way % 4, edit, way % 7, way * 37 % 256, way % 4, way % 5, way * 11 % 256, way % 3, way]
            )
    fields, metadata = EDITS.index(column_edits.fields), EDITS.index(column_edits.metadata)
    yield from (bytes([FORGED, 0, fields, 0, 5, more]) for more in range(len(column_edits.MORE)))
    # One of the names that are given is partial: true.
    yield from (bytes([FORGED, 0, metadata, 1, 1, name, 6, 1]) for name in range(20))
    yield bytes([MESSAGES, 2, 2, 0, 2])
    for case in range(len(CASE_NAMES)):
        yield bytes([FORGED, 0, 0]) + case.to_bytes(2, "little")


def run(data: bytes) -> None:
    """Read a stream that a script made."""
    choices = Choices(data)
    how, base = choices.below(3), choices.pick(streams())
    if how == FORGED:
        try:
            content = Script(StreamForgery(base), choices, EDITS).content()
        except UnbuildableError:
            return
    else:
        # Without checksums damage to pages cannot be found.
        base = base if base != streams()[-1] else streams()[0]
        content = damaged(base, choices) if how == DAMAGED else b"".join(_reordered(messages_of(base), choices))
    with bounded(len(content)):
        metadata, tensors, outcome = _read(io.BytesIO(content))
        refused(lambda: list(ha.read_stream(io.BytesIO(content), expect={"page_size": 2, "tenant": "t1"})))
        refused(lambda: ha.read_stream(object()), TypeError)
        odd = _Odd(content, len(data) % 5)
        promise(refused(lambda: list(ha.read_stream(odd))) is None, "a source that gives what it does not have")
        slow = _read(_Trickle(content, 1 + len(data) % 7))
        broken = _read(_Broken(content, len(content) // (2 + len(data) % 4)))
        promise(broken[2] != "complete" and all(map(is_same, broken[1], tensors)), "a source that fails is complete")
        same = len(tensors) == len(slow[1]) and all(map(is_same, tensors, slow[1]))
        promise((metadata, outcome) == (slow[0], slow[2]) and same, "what comes depends on how it comes")
        promise(all(tensor.validate() == [] for tensor in tensors), "a tensor that came breaks rules")
        if outcome != "complete":
            return
        if how != FORGED:
            expected = _read(io.BytesIO(base))
            whole = len(tensors) == len(expected[1]) and all(map(is_same, tensors, expected[1]))
            promise(whole and metadata == expected[0], "damage that nobody noticed")
        _compare(content, tensors)


def _read(source: Any) -> tuple[dict[str, Any] | None, list[BlockPagedTensor], str]:
    """Return metadata, the tensors that came, and how it ended."""
    reader = None
    tensors: list[BlockPagedTensor] = []
    try:
        reader = ha.read_stream(source)
        with reader:
            for tensor in reader:
                tensors.append(tensor)  # noqa: PERF402 - what came stays when an error ends it
    except HurrayArrowError as error:
        check_error(error)
        if reader is not None:
            promise(refused(lambda: next(reader, 1)) is None and not reader.complete, "a broken stream goes on")
        return reader and reader.metadata, tensors, code_of(error)
    promise(reader.complete and reader.num_tensors == len(tensors), "an end that is none")
    promise(next(reader, None) is None, "tensors behind the end")
    return reader.metadata, tensors, "complete"


def _compare(content: bytes, tensors: list[BlockPagedTensor]) -> None:
    """Compare with what the rows say to somebody who knows Arrow and no index."""
    reader = pa.ipc.open_stream(pa.BufferReader(content))
    *batches, _ = list(reader)
    found = refused(lambda: tensors_from_batches(batches))
    promise(found is not None and len(found) == len(tensors), "the rows by themselves are other tensors")
    promise(all(map(is_same, found or (), tensors)), "the rows by themselves differ")


class _Trickle:
    """A source that gives so many bytes at most, as a slow pipe does."""

    def __init__(self, content: bytes, size: int) -> None:
        self._file, self._size = io.BytesIO(content), size * 97

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, self._size))


class _Odd(_Trickle):
    """A source that gives too much, nothing, or counts that cannot be."""

    def __init__(self, content: bytes, how: int) -> None:
        super().__init__(content, 7)
        if how > 1:
            self.readinto = lambda view: (None, len(view) + 1, -1)[how - 2]
        self._gives_none = how == 1

    def read(self, size: int) -> bytes | None:
        return None if self._gives_none else super().read(size) + b"more" * size


class _Broken(_Trickle):
    """A source that fails after so many bytes."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content[:size], 7)

    def read(self, size: int) -> bytes:
        found = super().read(size)
        if not found:
            raise ConnectionResetError("planted")
        return found


@cache
def messages_of(stream: bytes) -> tuple[bytes, ...]:
    """Return a stream's messages: schema, rows, end batch, end marker."""
    found, at = [], 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 4 : at + 8], "little")
        body = message_kind(stream[at + 8 : at + 8 + size])[1] if size else 0
        found.append(stream[at : at + 8 + size + body])
        at += 8 + size + body
    return tuple(found)


def _reordered(messages: tuple[bytes, ...], choices: Choices) -> list[bytes]:
    found = list(messages)
    while choices.more:
        how, place, other = choices.below(5), choices.below(len(found) or 1), choices.below(len(found) or 1)
        if not found:
            return found
        match how:
            case 0:
                del found[place]
            case 1:
                found.insert(other, found[place])
            case 2:
                found[place], found[other] = found[other], found[place]
            case 3:
                elsewhere = messages_of(choices.pick(streams()))
                found[place] = elsewhere[other % len(elsewhere)]
            case 4:
                found[place] = found[place][: choices.number(2) % (len(found[place]) + 1)]
    return found
