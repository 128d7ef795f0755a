"""Streams that are cut at every byte, flipped in every bit, put together anew: found, or the same."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

import hurray_arrow as ha
from hurray_arrow import BlockPagedTensor
from tests.faults.children import limit_memory, run_cases
from tests.faults.outcome import code_of, is_same
from tests.faults.small import METADATA, small_tensors

#: The key tensor with every fact and the one whose pool cannot be cut into pages; the four of small.py take too long.
CHOSEN = slice(0, 4, 3)


def small_stream(tensors: Sequence[BlockPagedTensor]) -> bytes:
    sink = io.BytesIO()
    ha.write_stream(sink, tensors, metadata={**METADATA, "groups": []})
    return sink.getvalue()


def read(stream: bytes) -> tuple[ha.StreamReader, list[BlockPagedTensor]]:
    reader = ha.read_stream(io.BytesIO(stream))
    return reader, list(reader)


def messages_of(stream: bytes) -> list[bytes]:
    """Return the stream's messages: schema, rows, end batch, end marker."""
    import pyarrow as pa

    from hurray_arrow.arrow.ipc_layout import message_kind

    found, source = [], pa.BufferReader(stream)
    while source.tell() < len(stream):
        start = source.tell()
        size = int.from_bytes(stream[start + 4 : start + 8], "little")
        body = message_kind(stream[start + 8 : start + 8 + size])[1] if size else 0
        source.seek(start + 8 + size + body)
        found.append(stream[start : source.tell()])
    return found


def outcome_of(stream: bytes, metadata: dict, expected: list[BlockPagedTensor]) -> str:
    try:
        reader, found = read(stream)
    except ha.HurrayArrowError as error:
        return code_of(error)
    same = reader.metadata == metadata and len(found) == len(expected) and all(map(is_same, found, expected))
    return "same" if same and reader.complete else "SILENT"


def flip_and_look(stream: bytes, share: Sequence[int], started: Callable[[int], None]) -> Counter:
    reader, expected = read(stream)
    content = bytearray(stream)
    limit_memory(len(stream))
    counts: Counter = Counter()
    for number, bit in enumerate(share):
        started(number)
        content[bit // 8] ^= 1 << bit % 8
        outcome = outcome_of(bytes(content), reader.metadata, expected)
        assert outcome != "SILENT", f"bit {bit}"
        counts[outcome] += 1
        content[bit // 8] ^= 1 << bit % 8
    return counts


def check(counts: Counter, cases: int) -> None:
    assert counts.total() == cases
    assert {"page_checksum", "row_checksum", "index_checksum", "schema_checksum", "arrow_invalid"} <= set(counts)
    # IPC's own padding, and what flatbuffers holds that means nothing here.
    assert counts["same"] / cases < 0.2


def test_one_bit_in_many():
    stream = small_stream(small_tensors()[CHOSEN])
    bits = range(5, 8 * len(stream), 67)
    [counts] = run_cases(flip_and_look, stream, bits, timeout_seconds=300, processes=1)
    check(counts, len(bits))


@pytest.mark.exhaustive
def test_every_single_bit_flip():
    stream = small_stream(small_tensors()[CHOSEN])
    bits = range(8 * len(stream))
    assert len(bits) > 50_000
    check(sum(run_cases(flip_and_look, stream, bits, timeout_seconds=3000), Counter()), len(bits))


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_truncation_point(step):
    stream = small_stream(small_tensors()[CHOSEN])
    *starts, _ = [len(b"".join(messages_of(stream)[:count])) for count in range(5)]
    ends = starts[2:]
    around = {max(start + near, 0) for start in starts for near in range(-9, 10)}
    for length in sorted(around | set(range(0, len(stream), step))):
        whole = sum(end <= length for end in ends[:2])
        found: list[BlockPagedTensor] = []
        with pytest.raises(ha.SnapshotIncompleteError) as error:
            found.extend(one for one in ha.read_stream(io.BytesIO(stream[:length])) if keep(found, one))
        assert len(found) == whole
        assert str(error.value).startswith(f"stream: {whole} tensor")


def keep(found: list[BlockPagedTensor], tensor: BlockPagedTensor) -> bool:
    """Take a tensor at once, so that an error in the iteration does not lose it."""
    found.append(tensor)
    return False


def test_rows_left_out_given_twice_exchanged_or_of_another_stream():
    one, other = (messages_of(small_stream(tensors)) for tensors in (small_tensors(), small_tensors()[::-1]))
    schema, *rows, end, marker = one
    assert len(rows) == 4
    assert outcome_of(b"".join(one), *rest_of(b"".join(one))) == "same"
    cases = {
        "a row less": ([schema, *rows[:-1], end, marker], "row_missing"),
        "the first row less": ([schema, *rows[1:], end, marker], "row_missing"),
        "a row twice": ([schema, *rows, rows[-1], end, marker], "row_missing"),
        "two rows exchanged": ([schema, rows[1], rows[0], *rows[2:], end, marker], "row_missing"),
        "another's end": ([schema, *rows, other[-2], marker], "row_checksum"),
        "no end batch": ([schema, *rows, marker], "SnapshotIncompleteError"),
        "no end marker": ([schema, *rows, end], "SnapshotIncompleteError"),
        "a row behind the end": ([schema, *rows, end, rows[0], marker], "arrow_invalid"),
        "the schema twice": ([schema, schema, *rows, end, marker], "arrow_invalid"),
        "no schema": ([*rows, end, marker], "arrow_invalid"),
        "nothing": ([], "SnapshotIncompleteError"),
        "only the marker": ([marker], "SnapshotIncompleteError"),
    }
    for name, (messages, expected) in cases.items():
        assert outcome_of(b"".join(messages), {}, []) == expected, name


def rest_of(stream: bytes) -> tuple[dict, list[BlockPagedTensor]]:
    reader, found = read(stream)
    return reader.metadata, found


@pytest.mark.parametrize("size", [2**31 - 1, 2**29, 2**20])
def test_a_header_that_states_too_much_takes_no_memory(size):
    start = b"\xff\xff\xff\xff" + size.to_bytes(4, "little")
    [outcome] = run_cases(read_under_a_limit, start + bytes(99), [0], timeout_seconds=60)
    assert outcome in {"arrow_invalid", "SnapshotIncompleteError"}


def read_under_a_limit(stream: bytes, share: Sequence[int], started: Callable[[int], None]) -> str:
    started(len(share) - 1)
    limit_memory(len(stream))
    return outcome_of(stream, {}, [])
