"""Hostile streams: what is tried on files, sent as messages whose hashes are right."""

from __future__ import annotations

import io

import pyarrow as pa

import hurray_arrow as ha
from tests.faults.children import limit_memory, run_cases
from tests.faults.hostile import CASES, EXPECTED
from tests.faults.outcome import SAME, code_of, is_same
from tests.faults.small import METADATA, small_tensors
from tests.faults.stream_forgery import StreamForgery

ARROW_BYTES = 4 << 20
OTHER_METADATA = "other metadata"
INCOMPLETE = "SnapshotIncompleteError"
#: Cases of places in a file: a stream states none.
_PLACES = (
    *("index row body_bytes", "index row pages_", "index row checksums_offset", "index row bare_head"),
    "rows_in_one_place",
    *("rows_that_overlap", "a_block_", "rows_exchanged_in_the_footer"),
)
STREAM_CASES = {name: case for name, case in CASES.items() if not name.startswith(_PLACES)}
#: Where a stream ends otherwise than a file: the index comes last, so the rows are looked at before anybody knows it.
STREAM_EXPECTED: dict[str, set[str]] = {
    **{name: {"column_mismatch"} for name in CASES if name.startswith(("index row component 13", "index row layer_"))},
    **{name: {"column_mismatch"} for name in CASES if name.startswith("index row kv_group")},
    **{name: {SAME} for name in CASES if name.startswith(("index row offset", "index row metadata_bytes"))},
    **{name: {"arrow_schema"} for name in CASES if name.startswith(("type tensor_index", "type kv_role"))},
    "index row layer_index 17": {SAME},
    "index row layer_name 19": {"index_invalid"},
    "index kind": {SAME},
    "index no rows": {"row_missing"},
    "index a row less": {"row_missing"},
    "index rows in another order": {"row_checksum"},
    "index bare hash of other bytes": {"row_place"},
    "index text duplicate key in a row": {SAME},
    "an_end_batch_with_a_row": {"row_missing"},
    "an_end_batch_that_states_100_mib": {"arrow_invalid"},
    "row pages elsewhere": {"page_checksum"},
    # Only a share row has pages that its hash leaves out.
    "row block_table.item.item in the pages": {"page_id_out_of_range"},
    "row block_table.item in the pages": {"arrow_invalid"},
    "row page_checksums.item in the pages": {"page_checksum"},
    "row kv_role in the pages": {"arrow_invalid"},
    "row page_offset": {"row_missing"},
    "row kv_group": {"group_table_missing"},
    "row tensor_index": {"row_missing"},
    "a_dictionary_for_the_roles": {"arrow_schema"},
    "a_batch_without_rows": {INCOMPLETE},
    "metadata profile archive": {OTHER_METADATA},
}


def small_stream() -> bytes:
    sink = io.BytesIO()
    ha.write_stream(sink, small_tensors(), metadata=METADATA)
    return sink.getvalue()


def build(argument, share, started):
    built = {}
    for number, name in enumerate(share):
        started(number)
        forgery = StreamForgery(argument)
        STREAM_CASES[name](forgery)
        built[name] = forgery.content()
    return built


def look(argument, share, started):
    stream, contents = argument
    reader = ha.read_stream(io.BytesIO(stream))
    expected = list(reader)
    assert _outcome(stream, reader.metadata, expected) == SAME
    limit_memory(max(map(len, contents.values())))
    outcomes = {}
    for number, name in enumerate(share):
        started(number)
        outcomes[name] = _outcome(contents[name], reader.metadata, expected)
        assert pa.default_memory_pool().max_memory() < ARROW_BYTES, name
    return outcomes


def _outcome(stream, metadata, expected):
    try:
        reader = ha.read_stream(io.BytesIO(stream))
        found = list(reader)
    except ha.HurrayArrowError as error:
        return code_of(error)
    if not reader.complete or len(found) != len(expected) or not all(map(is_same, found, expected)):
        return "other tensors"
    return SAME if reader.metadata == metadata else OTHER_METADATA


def test_every_hostile_stream_ends_as_it_should():
    assert len(STREAM_CASES) > 290
    stream, contents, outcomes = small_stream(), {}, {}
    for built in run_cases(build, stream, list(STREAM_CASES), timeout_seconds=600):
        contents |= built
    for found in run_cases(look, (stream, contents), list(STREAM_CASES), timeout_seconds=600):
        outcomes |= found
    assert outcomes.keys() == STREAM_CASES.keys()
    expected = {**EXPECTED, **STREAM_EXPECTED}
    wrong = {name: (found, expected[name]) for name, found in outcomes.items() if found not in expected[name]}
    assert wrong == {}
    assert sum(found == SAME for found in outcomes.values()) < 40
