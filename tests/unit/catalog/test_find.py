"""A catalogue finds what ``match_prefix`` finds in each of its snapshots, to the step, and says so when it cannot."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow.catalog import build_catalog, find_prefix, open_catalog
from hurray_arrow.catalog import writer as catalog_writer
from hurray_arrow.catalog.columns import SCHEMAS
from hurray_arrow.catalog.contents import Prefixes, prefixes_of
from hurray_arrow.catalog.digests import PrefixHasher
from hurray_arrow.catalog.document import Document
from hurray_arrow.catalog.writer import CatalogWriter
from hurray_arrow.prefixes import match_groups
from hurray_arrow.snapshot.files import AtomicFile
from tests.faults.forgery import untype
from tests.prefix_groups import ADAPTERS, TENANTS, only, random_groups
from tests.unit.catalog.samples import KEY, PROMPT, write

STATED = {"url": "memory://x", "created": "2026-01-02T03:04:05Z", "producer": {"name": "test", "version": "1"}}


def write_catalog(path, prefixes, *, num_files, step_tokens=4, rows="snapshots", columns=None):
    """Write a catalogue from prefixes alone, each ``file_index`` with a row."""
    hasher = PrefixHasher(KEY, step_tokens=step_tokens)
    writer = CatalogWriter(AtomicFile(path, overwrite=True), rows=rows, step_tokens=step_tokens)
    for number in range(num_files):
        row = {
            "file_index": number,
            "url": f"u{number}",
            "snapshot_id": f"s{number}",
            **(columns or {}).get(number, {}),
        }
        # A catalogue of tensors has a file's row several times.
        writer.add_rows(pa.Table.from_pylist([row] * (1 if rows == "snapshots" else 3), schema=SCHEMAS[rows]))
    for each in prefixes:
        writer.add_prefixes(each)
    stated = {"rows": rows, "num_files": num_files, "step_tokens": step_tokens, "key_check": hasher.check}
    writer.publish(Document(**STATED, **stated))
    return path


def numbered(prefixes, number):
    return prefixes._replace(file_index=np.full(len(prefixes.high), number, np.uint32))


# -- the same as match_prefix -----------------------------------------------------------------------------------------


def longest(groups, prompt, whose, step_tokens):
    """The best of all sequences in plain loops: whole steps, and the end of what a sequence can restore."""
    best = (0, None)
    facts = groups[0].sequences
    for s in range(4):
        alone, token_ids = only(groups, s), facts.token_ids and facts.token_ids[s]
        if token_ids is None:
            continue
        own = {**whose, "media": facts.media and facts.media[s]}
        ends = (n for n in range(len(token_ids), 0, -1) if match_groups(alone, token_ids[:n], **own).num_tokens == n)
        lengths = {*range(step_tokens, len(prompt) + 1, step_tokens), next(ends, 0)}
        for n in sorted(lengths):
            if best[0] < n <= len(prompt) and match_groups(alone, prompt[:n], **whose).num_tokens == n:
                best = (n, s)
    return best


@pytest.mark.parametrize(("seed", "rows"), [(0, "snapshots"), (1, "snapshots"), (2, "tensors"), (3, "snapshots")])
def test_what_is_found_is_what_match_prefix_finds(tmp_path, monkeypatch, seed, rows):
    """Over snapshots with holes, windows, media, adapters and tenants; runs are so short that there are many."""
    monkeypatch.setattr(catalog_writer, "RUN_ROWS", 16)
    monkeypatch.setattr(catalog_writer, "GROUP_ROWS", 5)
    rng = np.random.default_rng([seed, 1])
    snapshots = [random_groups(rng) for _ in range(7)]
    hasher = PrefixHasher(KEY, step_tokens=4)
    found = [prefixes_of(SimpleNamespace(prefix_groups=lambda groups=groups: groups), hasher) for groups in snapshots]
    prefixes = [numbered(each, number) for number, each in enumerate(found)]
    path = write_catalog(tmp_path / "c.parquet", prefixes, num_files=7, rows=rows)
    num_matches = 0
    with open_catalog(path) as catalogue:
        for facts, s in ((groups[0].sequences, s) for groups in snapshots for s in range(4)):
            if facts.token_ids is None or facts.token_ids[s] is None:
                continue
            prompt = np.append(facts.token_ids[s], rng.integers(0, 2, 5)).astype(np.uint32)
            media = facts.media[s] if facts.media and rng.integers(4) else None
            if media and not rng.integers(3):
                media = [dataclasses.replace(media[-1], digest="other"), *media[:-1]]
            for adapter, tenant in [(facts.adapter and facts.adapter[s], "t"), (ADAPTERS[1], TENANTS[rng.integers(4)])]:
                whose = {"adapter": adapter, "tenant": tenant, "media": media}
                bests = [longest(groups, prompt, whose, 4) for groups in snapshots]
                expected = [(f"u{n}", best[1], best[0]) for n, best in enumerate(bests) if best[0]]
                matches = find_prefix(catalogue, prompt, key=KEY, **whose)
                assert [match[:3] for match in matches] == sorted(expected, key=lambda match: -match[2])
                num_matches += len(matches)
    assert num_matches > 20


def test_real_snapshots_agree(tmp_path):
    for number, tokens in enumerate((97, 40, 41, 3, 64)):
        write(tmp_path / "cache" / f"{number}.arrow", tokens=tokens, profile=("share", "archive")[number % 2])
    build_catalog(tmp_path / "cache", destination=tmp_path / "c.parquet", key=KEY)
    for size in (1, 3, 16, 40, 41, 63, 90, 97):
        found = {match.url: match for match in find_prefix(tmp_path / "c.parquet", PROMPT[:size], key=KEY)}
        for path in (tmp_path / "cache").iterdir():
            with ha.open_snapshot(path) as snapshot:
                exact = snapshot.match_prefix(PROMPT[:size])
                whole = exact.num_tokens in (97, 40, 41, 3, 64)[int(path.stem) : int(path.stem) + 1]
                expected = exact.num_tokens if whole else exact.num_tokens // 16 * 16
                match = found.get(str(path))
                assert (match and match.num_tokens) == (expected or None)
                if match:
                    assert (match.sequence, match.snapshot_id) == (0, snapshot.metadata["id"])


def test_never_across_adapters_and_tenants(tmp_path):
    for name, metadata in {"none": {}, "t": {"tenant": "x"}, "a": {"adapter": "x"}}.items():
        write(tmp_path / "cache" / f"{name}.arrow", metadata=metadata)
    build_catalog(tmp_path / "cache", destination=tmp_path / "c.parquet", key=KEY)
    for whose, names in [
        ({}, ["none"]),
        ({"tenant": "x"}, ["t"]),
        ({"adapter": "x"}, ["a"]),
        ({"tenant": "x", "adapter": "x"}, []),
        ({"tenant": ""}, []),
    ]:
        assert [Path(m.url).stem for m in find_prefix(tmp_path / "c.parquet", PROMPT, key=KEY, **whose)] == names


# -- which of many ----------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path):
    """Twelve snapshots with 4, 8, 4, 8, … tokens of the prompt; every third is of another model."""
    hasher = PrefixHasher(KEY, step_tokens=4)
    digests = hasher.digests(PROMPT, [4, 8], adapter=None, tenant=None, media=())
    prefixes, columns = [], {}
    for number in range(12):
        size = number % 2 + 1
        numbers = np.full(size, number, np.uint32)
        tokens = np.array([4, 8], np.uint64)[:size]
        # Two sequences have the same prefix: the first counts, whatever comes first in the file.
        for sequence in (5, 2):
            sequences = np.full(size, sequence, np.uint32)
            prefixes.append(Prefixes(digests[:size, 0], digests[:size, 1], numbers, sequences, tokens))
        columns[number] = {"model_name": "other" if number % 3 == 0 else "toy", "set_member": number}
    return write_catalog(tmp_path / "c.parquet", prefixes, num_files=12, columns=columns)


def test_the_longest_come_first_and_no_more_than_asked(many):
    found = find_prefix(many, PROMPT, key=KEY)
    assert [match[:3] for match in found] == [
        *((f"u{number}", 2, 8) for number in range(1, 12, 2)),
        *((f"u{number}", 2, 4) for number in range(0, 12, 2)),
    ]
    assert [match.snapshot_id for match in found[:2]] == ["s1", "s3"]
    for limit in (1, 5, 6, 7, 11, 12, 100, None):
        assert find_prefix(many, PROMPT, key=KEY, limit=limit) == found[:limit]
    assert find_prefix(many, PROMPT[:7], key=KEY, limit=3) == [
        (f"u{number}", 2, 4, f"s{number}") for number in range(3)
    ]
    assert find_prefix(many, PROMPT[:3], key=KEY) == find_prefix(many, [], key=KEY) == []
    assert find_prefix(many, PROMPT[1:], key=KEY) == []


def test_what_is_expected_is_asked_before_the_limit(many):
    found = find_prefix(many, PROMPT, key=KEY, expect={"model.name": "other"}, limit=3)
    assert [match.url for match in found] == ["u3", "u9", "u0"]
    both = {"model.name": "toy", "set.member": 7}
    assert [match.url for match in find_prefix(many, PROMPT, key=KEY, expect=both)] == ["u7"]
    assert find_prefix(many, PROMPT, key=KEY, expect={**both, "set.member": "7"})[0].url == "u7"
    # A field that is expected and not stated is a mismatch, as it is for open_snapshot.
    assert find_prefix(many, PROMPT, key=KEY, expect={"model.revision": "r"}) == []
    assert find_prefix(many, PROMPT, key=KEY, expect={"model.revision": None}) == []


@pytest.mark.parametrize("expect", [{"tenant": "t"}, {"model_name": "toy"}, {"set.member": "x"}, {"model.name": 7}])
def test_expectations_that_no_column_can_meet(many, expect):
    with pytest.raises(ValueError):
        find_prefix(many, PROMPT, key=KEY, expect=expect)


def test_another_key_or_none_is_said(many, tmp_path):
    with pytest.raises(ha.CatalogError) as caught:
        find_prefix(many, PROMPT, key=KEY[::-1])
    assert caught.value.codes == ["catalog_key_mismatch"]
    write(tmp_path / "cache" / "a.arrow")
    build_catalog(tmp_path / "cache", destination=tmp_path / "without.parquet")
    with pytest.raises(ha.CatalogError) as caught:
        find_prefix(tmp_path / "without.parquet", PROMPT, key=KEY)
    assert caught.value.codes == ["catalog_key_mismatch"]
    with pytest.raises(ha.InvariantError):
        find_prefix(many, [-1], key=KEY)
    with pytest.raises(ValueError):
        find_prefix(many, PROMPT, key=b"short")
    with pytest.raises(FileNotFoundError):
        find_prefix(tmp_path / "nowhere.parquet", PROMPT, key=KEY)


def test_digests_that_agree_by_half_are_not_the_same(tmp_path):
    hasher = PrefixHasher(KEY, step_tokens=4)
    [[high, low]] = hasher.digests(PROMPT, [4], adapter=None, tenant=None, media=())
    columns = ([high] * 3, [low ^ np.uint64(1), low, low], [0, 1, 2], [0, 0, 0], [4, 4, 8])
    kinds = (np.uint64, np.uint64, np.uint32, np.uint32, np.uint64)
    prefixes = Prefixes(*(np.array(values, kind) for values, kind in zip(columns, kinds, strict=True)))
    path = write_catalog(tmp_path / "c.parquet", [prefixes], num_files=3)
    assert [match.url for match in find_prefix(path, PROMPT, key=KEY)] == ["u1"]


# -- damage -----------------------------------------------------------------------------------------------------------


def outcome(path):
    """Return what is found, and ``None`` where the catalogue is found to be none; anything else is raised."""
    try:
        with open_catalog(path) as catalogue:
            found = find_prefix(catalogue, PROMPT, key=KEY)
            assert sum(map(len, catalogue.row_groups())) >= len(found)
            return found
    except ha.CatalogError as error:
        if error.codes != ["catalog_invalid"]:
            raise
        return None


def test_a_catalogue_cut_anywhere_is_none(many):
    data = many.read_bytes()
    for size in [*range(0, len(data), 211), len(data) - 1]:
        many.write_bytes(data[:size])
        assert outcome(many) is None


def test_a_flipped_bit_is_an_error_or_a_result(many):
    """Rows are held to the checksums of their pages; the digests of a mapped catalogue are taken as they are."""
    whole = many.read_bytes()
    found = [(match.url, match.num_tokens) for match in outcome(many)]
    with open_catalog(many) as catalogue:
        ends = [run.offset_bytes + run.num_bytes for run in catalogue.document.runs]
    rng = np.random.default_rng(5)
    counts = {None: 0, True: 0}
    for place in [*rng.integers(max(ends), len(whole), 100).tolist(), *rng.integers(0, max(ends), 50).tolist()]:
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        many.write_bytes(data)
        result = outcome(many)
        if result is None:
            counts[None] += 1
        else:
            counts[True] += 1
            assert place < max(ends) or [(match.url, match.num_tokens) for match in result] == found
            assert {match.url for match in result} <= {url for url, _ in found}
    assert min(counts.values()) > 10


def test_digests_are_compared_with_their_hash_before_they_are_taken_over(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "cache" / f"{name}.arrow", tokens=40)
    path = tmp_path / "c.parquet"
    build_catalog(tmp_path / "cache", destination=path, key=KEY)
    with open_catalog(path) as catalogue:
        run = catalogue.document.runs[0]
    data = bytearray(path.read_bytes())
    data[run.offset_bytes + run.num_bytes - 40] ^= 1
    path.write_bytes(data)
    (tmp_path / "cache" / "b.arrow").unlink()
    with pytest.raises(ha.CatalogError) as caught:
        build_catalog(tmp_path / "cache", destination=path, key=KEY)
    assert caught.value.codes == ["catalog_invalid"]
    assert path.read_bytes() == data
    build_catalog(tmp_path / "cache", destination=path, key=KEY, rebuild=True)
    assert len(find_prefix(path, PROMPT, key=KEY)) == 1


def test_digests_whose_schema_does_not_say_that_it_is_one(tmp_path):
    """Arrow takes it for one without verifying it, and may crash."""
    write(tmp_path / "cache" / "a.arrow", tokens=40)
    path = tmp_path / "c.parquet"
    build_catalog(tmp_path / "cache", destination=path, key=KEY)
    with open_catalog(path) as catalogue:
        run = catalogue.document.runs[0]
    data = bytearray(path.read_bytes())
    untype(data, run.offset_bytes)
    path.write_bytes(data)
    with open_catalog(path) as catalogue, pytest.raises(ha.CatalogError, match="expected a schema"):
        catalogue.run(run)


@pytest.mark.parametrize("file_index", [3, 2**32 - 1])
def test_digests_of_files_that_are_not_there(tmp_path, file_index):
    hasher = PrefixHasher(KEY, step_tokens=4)
    digests = hasher.digests(PROMPT, [4], adapter=None, tenant=None, media=())
    one = np.array([0], np.uint32)
    prefixes = Prefixes(digests[:, 0], digests[:, 1], one + np.uint32(file_index), one, np.array([4], np.uint64))
    path = write_catalog(tmp_path / "c.parquet", [prefixes], num_files=3)
    assert outcome(path) is None


def test_a_file_without_a_row(tmp_path):
    hasher = PrefixHasher(KEY, step_tokens=4)
    digests = hasher.digests(PROMPT, [4], adapter=None, tenant=None, media=())
    one = np.array([1], np.uint32)
    prefixes = Prefixes(digests[:, 0], digests[:, 1], one, one, np.array([4], np.uint64))
    path = write_catalog(tmp_path / "c.parquet", [prefixes], num_files=2, columns={1: {"file_index": 0}})
    assert outcome(path) is None
