"""Hostile archives whose hashes are right, and what may be in one that a reader would take for hostile."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from hurray_arrow import open_snapshot, write_snapshot
from hurray_arrow.snapshot.archive_rows import FREE_SMALL_BYTES
from tests.faults import hostile, hostile_archives
from tests.faults.children import limit_memory, run_cases
from tests.faults.forgery import Forgery
from tests.faults.outcome import SAME, Original, SilentDamageError, outcome_of
from tests.sample import ALL_ELEMENT_TYPES, make_tensor

#: What Arrow may allocate: what the small columns of a small row may state, and a little.
ARROW_BYTES = FREE_SMALL_BYTES + (4 << 20)
WHOLE = {name: case for name, case in hostile.CASES.items() if hostile_archives.applies(name)}
KINDS = {
    "whole": (hostile_archives.write_whole, WHOLE, {**hostile.EXPECTED, **hostile_archives.ALSO_SHARE}),
    "cut": (hostile_archives.write_cut, hostile_archives.CASES, hostile_archives.EXPECTED),
}


def build(argument, share, started):
    path, kind = argument
    built = {}
    for number, name in enumerate(share):
        started(number)
        forgery = Forgery(path.read_bytes())
        KINDS[kind][1][name](forgery)
        built[name] = forgery.content()
    return built


def look(argument, share, started):
    path, contents = argument
    original = Original.of(path)
    forged = path.with_name(f"forged-{os.getpid()}.arrow")
    forged.write_bytes(path.read_bytes())
    assert outcome_of(forged, original) == outcome_of(forged, original, mapped=False) == SAME
    limit_memory(max(map(len, contents.values())))
    outcomes = {}
    for number, name in enumerate(share):
        started(number)
        forged.write_bytes(contents[name])
        outcomes[name] = [_outcome(forged, original, mapped=mapped) for mapped in (True, False)]
        assert pa.default_memory_pool().max_memory() < ARROW_BYTES, name
    return outcomes


def _outcome(path, original, *, mapped):
    try:
        return outcome_of(path, original, mapped=mapped).rpartition(": ")[2]
    except SilentDamageError as error:
        return str(error)


@pytest.mark.parametrize(("kind", "least"), [("whole", 300), ("cut", 50)])
def test_every_hostile_archive_ends_as_it_should(kind, least, tmp_path):
    write, cases, expected = KINDS[kind]
    assert len(cases) > least
    path = tmp_path / "s.arrow"
    write(path)
    contents, outcomes = {}, {}
    for built in run_cases(build, (path, kind), list(cases), timeout_seconds=600):
        contents |= built
    for found in run_cases(look, (path, contents), list(cases), timeout_seconds=600):
        outcomes |= found
    assert outcomes.keys() == cases.keys()
    wrong = {name: (found, expected[name]) for name, found in outcomes.items() if not {*found} <= expected[name]}
    assert wrong == {}


def test_pages_that_no_row_holds_are_not_what_was_in_memory_before(tmp_path):
    """Without checksums nobody would have noticed."""
    path = tmp_path / "s.arrow"
    hostile_archives.write_cut(path)
    forgery = Forgery(path.read_bytes())
    kind = forgery.schema.field("page_checksums").type
    for row in range(len(forgery.batches)):
        forgery.set_column(row, "page_checksums", pa.nulls(1, kind))
    hostile_archives.a_row_holds_no_pages(forgery)
    path.write_bytes(forgery.content())
    with open_snapshot(path) as snapshot, pytest.raises(OSError) as caught:
        snapshot.read(kv_role="key", component="values")
    assert caught.value.codes == ["row_missing"]


def test_small_columns_that_would_look_like_a_bomb_are_written_as_they_are(tmp_path):
    tokens = 5_000_000
    tensor = make_tensor(
        element_type="uint8",
        page_size=1 << 20,
        num_heads=1,
        head_dim=1,
        num_pages=5,
        block_tables=[[4, 3, 2, 1, 0]],
        seq_lens=[tokens],
        token_ids=[np.zeros(tokens, np.uint32)],
    )
    assert 4 * tokens > FREE_SMALL_BYTES
    write_snapshot(tmp_path / "s.arrow", [tensor], profile="archive")
    with open_snapshot(tmp_path / "s.arrow") as snapshot:
        assert snapshot.read().equals(tensor)
    assert (tmp_path / "s.arrow").stat().st_size > 4 * tokens


@pytest.mark.parametrize("element_type", ["uint8", "bfloat16", "int4"])
def test_a_page_of_zeros_that_would_look_like_a_bomb_is_written_as_it_is(tmp_path, element_type):
    """However large a page of zeros is, it compresses to next to nothing."""
    page_bytes = 13 << 20
    head_dim = {"uint8": page_bytes, "bfloat16": page_bytes // 2, "int4": 2 * page_bytes + 1}[element_type]
    element = ALL_ELEMENT_TYPES[element_type]
    pool = np.zeros(page_bytes + 1 if element.is_packed else (1, 1, 1, head_dim), element.pool_dtype)
    tensor = make_tensor(
        element_type=element_type,
        page_pool=pool,
        num_pages=1,
        page_size=1,
        num_heads=1,
        head_dim=head_dim,
        block_tables=[[0], []],
        seq_lens=[1, 0],
    )
    path = tmp_path / "s.arrow"
    write_snapshot(path, [tensor], profile="archive")
    assert path.stat().st_size > page_bytes
    with open_snapshot(path) as snapshot:
        assert snapshot.read(verify=True).equals(tensor)
    forgery = Forgery(path.read_bytes())
    forgery.compression = "zstd"
    path.write_bytes(forgery.content())
    assert path.stat().st_size < page_bytes // 100
    with open_snapshot(path) as snapshot, pytest.raises(OSError) as caught:
        snapshot.read()
    assert caught.value.codes == ["arrow_invalid"]
