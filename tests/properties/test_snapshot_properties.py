"""Whatever tensors somebody has, a snapshot gives them back: the same bytes, facts and names."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hurray_arrow.arrow.convert import from_record_batch, to_record_batch
from hurray_arrow.sequences import MediaSpan
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, make_tensor

#: Any text that UTF-8 can hold, and what trips string handling: zero bytes, combining marks, right to left, emoji.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\0", "a\0b", "e\u0301", "\u202eabc", "👩‍👩‍👧", "\ufeff", "🜁" * 40, "../../x", "NaN", "\u2028"]
)
MAYBE = st.none() | TEXT


def per_sequence(draw, count, values):
    """A fact as a whole unknown, or with holes."""
    return draw(st.none() | st.lists(st.none() | values, min_size=count, max_size=count))


@st.composite
def media(draw, tokens):
    starts = sorted(draw(st.sets(st.integers(0, max(tokens - 1, 0)), max_size=3))) if tokens else []
    ends = [*starts[1:], tokens]
    return [MediaSpan(first, end - first, draw(TEXT)) for first, end in zip(starts, ends, strict=False)]


@st.composite
def tables(draw, num_pages, page_size):
    """Block tables, lengths and every fact; lengths may be unknown for some sequences."""
    pages = st.integers(0, num_pages - 1) if num_pages else st.nothing()
    rows = draw(st.lists(st.lists(pages, max_size=4 if num_pages else 0), max_size=5))
    count = len(rows)
    lens = [draw(st.integers(0, len(row) * page_size)) for row in rows]
    known = [draw(st.booleans()) for _ in rows]
    starts = [list(itertools.accumulate([draw(st.integers(page_size, 3 * page_size)) for _ in row])) for row in rows]
    spans = [draw(media(tokens)) if there else [] for tokens, there in zip(lens, known, strict=True)]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tokens = [rng.integers(0, 2**32, size, dtype=np.uint32) for size in lens]
    hole = [draw(st.booleans()) for _ in rows]
    absent = draw(st.booleans())
    return {
        "block_tables": rows,
        "seq_lens": [size if there else None for size, there in zip(lens, known, strict=True)],
        "total_tokens": sum(lens),
        "ids": per_sequence(draw, count, TEXT),
        "adapter": per_sequence(draw, count, TEXT),
        "tenant": per_sequence(draw, count, TEXT),
        "token_ids": [ids if a and b else None for ids, a, b in zip(tokens, known, hole, strict=True)],
        "page_positions": [each if b else None for each, b in zip(starts, hole, strict=True)] if absent else None,
        "media": [each if b and not absent else None for each, b in zip(spans, hole, strict=True)],
    }


SIZES = st.fixed_dictionaries({"num_pages": st.integers(0, 7), "page_size": st.integers(1, 5)})
SHAPES = st.fixed_dictionaries({"num_heads": st.integers(0, 3), "head_dim": st.integers(0, 6)})


@st.composite
def tensor_sets(draw):
    """Up to four tensors in up to two groups; the keys of all differ."""
    groups = []
    for _ in range(draw(st.integers(1, 2))):
        sizes = draw(SIZES)
        groups.append((sizes, draw(tables(**sizes))))
    named = draw(st.booleans())
    made = []
    for number in range(draw(st.integers(1, 4))):
        group = draw(st.integers(0, len(groups) - 1))
        sizes, facts = groups[group]
        made.append(
            make_tensor(
                element_type=draw(st.sampled_from(sorted(ALL_ELEMENT_TYPES))),
                index_type=draw(st.sampled_from(INDEX_TYPES)),
                seed=draw(st.integers(0, 99)),
                kv_role=draw(st.sampled_from(["key", "value", "fused"])),
                layer_index=draw(st.none() | st.integers(0, 2**32 - 2)),
                layer_name=draw(MAYBE),
                component=f"state.{number}",
                kv_group=group * 7 + 2 if named else None,
                **sizes,
                **draw(SHAPES),
                **facts,
            )
        )
    return made


@settings(max_examples=60)
@given(tensor_sets(), st.sampled_from(["share", "archive"]), st.sampled_from([64, 4096]))
def test_a_snapshot_gives_back_what_was_written(tensors, profile, page_align_bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.arrow"
        write_snapshot(path, tensors, profile=profile, page_align_bytes=page_align_bytes)
        with open_snapshot(path) as snapshot:
            found = list(snapshot.iter_tensors(verify=True))
            assert len(found) == len(tensors)
            for tensor, again, entry in zip(tensors, found, snapshot.entries, strict=True):
                assert again.equals(tensor)
                assert again.kv_role == tensor.kv_role == entry.kv_role
                assert (entry.layer_index, entry.layer_name) == (tensor.layer_index, tensor.layer_name)
                assert tensor.kv_group in (None, again.kv_group)
            assert snapshot.verify().num_tensors == len(tensors)
            for tensor in tensors:
                only = snapshot.read(component=tensor.component)
                assert only.equals(tensor)


@settings(max_examples=60)
@given(tensor_sets())
def test_a_record_batch_gives_back_what_was_put_in(tensors):
    for tensor in tensors:
        batch = to_record_batch(tensor)
        batch.validate(full=True)
        assert from_record_batch(batch).equals(tensor)
