"""Snapshots of every pair of choices: element and index type, scheme, profile, alignment, tables, companions, facts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from hurray_arrow.snapshot import open_snapshot, write_snapshot
from tests.sample import ALL_ELEMENT_TYPES, BLOCK_TABLES, INDEX_TYPES, SCHEMES, make_tensor, sample_facts

#: Tables and sizes at their edges; what is not given is the sample's.
TABLES: dict[str, dict[str, Any]] = {
    "sample": {},
    "empty batch": {"block_tables": [], "seq_lens": []},
    "no pages": {"block_tables": [[], [], []], "seq_lens": [0, 0, 0]},
    "zero tokens": {"seq_lens": [0, 0, 0, 0]},
    "page_size 1": {"page_size": 1, "seq_lens": [3, 0, 1, 1]},
    "num_pages 0": {"num_pages": 0, "block_tables": [[], []], "seq_lens": [0, 0]},
    "num_heads 0": {"num_heads": 0},
    "head_dim 0": {"head_dim": 0},
    "whole pages": {"page_size": 4, "num_heads": 2, "head_dim": 8},
    "odd packed pages": {"page_size": 5, "num_heads": 3, "head_dim": 7},
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "element_type": tuple(ALL_ELEMENT_TYPES),
    "index_type": INDEX_TYPES,
    "quantization": SCHEMES,
    "profile": ("share", "archive"),
    "page_align_bytes": (64, 4096, 2 << 20),
    "tables": tuple(TABLES),
    "companion": (None, "scales", "state.conv", "page.sketch"),
    "facts": ("lengths", "all", "absent pages", "none"),
    "checksums": (True, False),
}


def pairs_of(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every two choices of a case, in the order of CHOICES."""
    return list(itertools.combinations([(name, case[name]) for name in CHOICES if name in case], 2))


def new_pairs(case: dict[str, Any], name: str, value: Any) -> list[tuple[Any, ...]]:
    """The pairs that a choice adds to a case, in the order of CHOICES."""
    names = list(CHOICES)
    place = names.index(name)
    return [
        ((other, case[other]), (name, value)) if names.index(other) < place else ((name, value), (other, case[other]))
        for other in case
    ]


def pairwise_cases(seed: int = 29) -> list[dict[str, Any]]:
    """Choose cases greedily until every two choices of two kinds meet in one; the same in every process."""
    rng = random.Random(seed)
    missing = {
        ((one, a), (two, b)): None
        for one, two in itertools.combinations(CHOICES, 2)
        for a in CHOICES[one]
        for b in CHOICES[two]
    }
    cases = []
    while missing:
        case = dict(next(iter(missing)))
        for name in sorted(CHOICES, key=lambda name: -len(CHOICES[name])):
            if name not in case:
                options = list(CHOICES[name])
                rng.shuffle(options)
                case[name] = max(
                    options, key=lambda value: sum(pair in missing for pair in new_pairs(case, name, value))
                )
        for pair in pairs_of(case):
            missing.pop(pair, None)
        cases.append({name: case[name] for name in CHOICES})
    return cases


CASES = pairwise_cases()


def test_the_matrix_is_whole():
    assert (len(ALL_ELEMENT_TYPES), len(SCHEMES), len(TABLES)) == (31, 9, 10)
    met = {pair for case in CASES for pair in pairs_of(case)}
    kinds = [len(values) for values in CHOICES.values()]
    assert len(met) == sum(a * b for a, b in itertools.combinations(kinds, 2))
    assert 31 * 10 <= len(CASES) <= 380


def facts_of(case: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """What is known of the sequences; some facts only fit the sample's own tables."""
    page_size = tables.get("page_size", 5)
    lens = tables.get("seq_lens")
    rows = tables.get("block_tables", BLOCK_TABLES)
    known = sample_facts(page_size)
    if lens is None:
        lens = known["seq_lens"]
    match case["facts"]:
        case "none":
            return {"seq_lens": None, "total_tokens": sum(lens)}
        case "all" if "block_tables" not in tables and "seq_lens" not in tables:
            return known
        case "absent pages":
            starts = [[page * 7 * page_size + 3 for page in range(len(row))] for row in rows]
            return {"seq_lens": lens, "page_positions": starts if any(rows) else None}
    return {"seq_lens": lens, "tenant": [f"t{seq % 2}" for seq in range(len(rows))] if rows else None}


def tensors_of(case: dict[str, Any]) -> list[Any]:
    """A key and a value, and their companion over the same tables."""
    tables = dict(TABLES[case["tables"]])
    if case["quantization"].startswith("per_block"):
        # The scheme's block is a page, and a block is a power of two of 4 slots or more.
        tables["page_size"] = 4
        if case["tables"] == "page_size 1":
            tables["page_size"] = 8
    common = {**tables, **facts_of(case, tables), "index_type": case["index_type"]}
    what = {"element_type": case["element_type"], "quantization": case["quantization"]}
    made = [
        make_tensor(**what, **common, kv_role="key", layer_name="модель.17"),
        make_tensor(**what, **common, kv_role="value", layer_name="модель.17", seed=5),
    ]
    if case["companion"]:
        small = {**common, "head_dim": min(common.get("head_dim", 1), 1)}
        made.append(
            make_tensor(
                **{**small, "element_type": "float32"},
                component=case["companion"],
                kv_role="key",
                layer_name="модель.17",
            )
        )
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_each_comes_back(case, tmp_path):
    tensors = tensors_of(case)
    path = tmp_path / "s.arrow"
    options = {name: case[name] for name in ("profile", "page_align_bytes", "checksums")}
    if case["profile"] == "archive":
        del options["page_align_bytes"]
    write_snapshot(path, tensors, **options)
    with open_snapshot(path) as snapshot:
        found = list(snapshot.iter_tensors())
        assert [tensor.component for tensor in found] == [tensor.component for tensor in tensors]
        for tensor, again in zip(tensors, found, strict=True):
            assert again.equals(tensor)
            assert again.block_table.dtype == again.seq_ptr.dtype == case["index_type"]
            assert again.page_pool.shape == tensor.page_pool.shape
            assert again.kv_group == 0
            for seq in range(tensor.num_seqs):
                assert again.page_ids(seq).tolist() == tensor.page_ids(seq).tolist()
                if tensor.sequences.seq_lens is not None:
                    assert again.gather(seq).tobytes() == tensor.gather(seq).tobytes()
                    assert again.positions(seq).tolist() == tensor.positions(seq).tolist()
        report = snapshot.verify()
        assert report.num_tensors == len(tensors)
        assert report.num_pages == sum(tensor.num_pages for tensor in tensors)
        pools = [tensor.buffers[0].nbytes for tensor in tensors]
        assert report.page_bytes == sum(pools)
        assert len(report.unverified) == (0 if case["checksums"] else sum(map(bool, pools)))
