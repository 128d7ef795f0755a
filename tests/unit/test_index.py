"""The index: written and read without loss, checked against itself. Hostile indexes in whole files: faults/."""

from __future__ import annotations

import base64
import json

import pytest
import xxhash
import zstandard

from hurray_arrow import SnapshotCorruptError, SnapshotIncompleteError, open_snapshot, write_snapshot
from hurray_arrow._json import parsed_bytes
from hurray_arrow.snapshot import index as module
from hurray_arrow.snapshot.index import INDEX_HASH_KEY, INDEX_KEY, INDEX_ZST_KEY, Index, IndexRow, index_problems
from tests.sample import make_tensor

HASH = "0123456789abcdef"


def row(number, **changes):
    """Rows of 3 + 5 KiB one after another, from byte 1000; pages in the last KiB."""
    offset = 1000 + 8192 * number
    values = {
        "tensor_index": number,
        "layer_index": 200 - number,
        "layer_name": f"l.{number}",
        "kv_role": "key",
        "component": "values",
        "kv_group": 0,
        "page_offset": 0,
        "num_pages": 11,
        "num_seqs": 5,
        "element_type": "bfloat16",
        "page_shape": (2, 3, 13),
        "encoding": "plain",
        "index_type": "uint32",
        "offset": offset,
        "metadata_bytes": 3072,
        "body_bytes": 5120,
        "pages_offset": offset + 7168,
        "pages_bytes": 1024 - 64,
        "checksums_offset": offset + 4096,
        "head_xxh3": HASH,
        "tail_xxh3": HASH[::-1],
    }
    return IndexRow(**{**values, **changes})


def index_of(count, **changes):
    return Index(tuple(row(number, **changes) for number in range(count)), schema_xxh3=HASH)


def stored(index):
    return {key.encode(): value.encode() for key, value in index.custom_metadata().items()}


def pairs_of(document, **changes):
    text = document if isinstance(document, bytes) else json.dumps({**document, **changes}).encode()
    return {INDEX_KEY.encode(): text, INDEX_HASH_KEY.encode(): xxhash.xxh3_64_hexdigest(text).encode()}


def zst_pairs_of(text):
    stored = base64.b64encode(zstandard.compress(text))
    return {INDEX_ZST_KEY.encode(): stored, INDEX_HASH_KEY.encode(): xxhash.xxh3_64_hexdigest(stored).encode()}


def document_of(index):
    return json.loads(index.custom_metadata()[INDEX_KEY])


def codes(pairs):
    with pytest.raises(SnapshotCorruptError) as caught:
        Index.from_custom_metadata(pairs, url="here", file_bytes=0)
    assert caught.value.url == "here"
    return caught.value.codes


@pytest.mark.parametrize("count", [0, 1, 2, 23])
def test_what_was_written_is_read(count):
    index = index_of(count)
    assert set(index.custom_metadata()) == {INDEX_KEY, INDEX_HASH_KEY}
    assert Index.from_custom_metadata(stored(index), url="u", file_bytes=0) == index
    assert index.num_tensors == count


def test_optional_values_are_left_out_and_nulls_are_written():
    rows = (row(0, layer_index=None, layer_name=None), row(1, checksums_offset=None))
    index = Index(rows, schema_xxh3=HASH)
    first, second = document_of(index)["rows"]
    assert first["layer_index"] is first["layer_name"] is None
    assert "checksums_offset" not in second
    assert not {"row_xxh3", "small_xxh3"} & first.keys()
    assert Index.from_custom_metadata(stored(index), url="u", file_bytes=0) == index


def test_numbers_that_json_does_not_hold_exactly():
    index = Index(
        (row(0, offset=2**60, pages_offset=2**60 + 3072 + 8, checksums_offset=2**60 + 3072),), schema_xxh3=HASH
    )
    assert document_of(index)["rows"][0]["offset"] == str(2**60)
    assert Index.from_custom_metadata(stored(index), url="u", file_bytes=0) == index


def test_a_long_index_is_compressed():
    # The border is 16 KiB of text: a name's length decides.
    plain = len(index_of(30, layer_name="").custom_metadata()[INDEX_KEY])
    assert plain < 16 << 10
    fill = (16 << 10) - plain
    rows = list(index_of(30, layer_name="").rows)
    for extra, key in ((fill, INDEX_KEY), (fill + 1, INDEX_ZST_KEY)):
        rows[0] = rows[0]._replace(layer_name="x" * extra)
        index = Index(tuple(rows), schema_xxh3=HASH)
        assert set(index.custom_metadata()) == {key, INDEX_HASH_KEY}
        assert Index.from_custom_metadata(stored(index), url="u", file_bytes=0) == index
    frame = base64.b64decode(index.custom_metadata()[INDEX_ZST_KEY])
    assert zstandard.get_frame_parameters(frame).content_size == (16 << 10) + 1


def test_the_hash_is_of_the_value_as_stored():
    for index in (index_of(2), index_of(99)):
        pairs = stored(index)
        ((key, value),) = ((key, value) for key, value in pairs.items() if key != INDEX_HASH_KEY.encode())
        assert pairs[INDEX_HASH_KEY.encode()].decode() == xxhash.xxh3_64_hexdigest(value)
        assert codes({**pairs, key: value + b" "}) == ["index_checksum"]
        assert codes({**pairs, INDEX_HASH_KEY.encode(): b"\xff"}) == ["index_checksum"]
        assert codes({key: value}) == ["index_checksum"]


@pytest.mark.parametrize("pairs", [None, {}, {b"hurray_arrow.pad": b""}, {INDEX_HASH_KEY.encode(): b"0" * 16}])
def test_no_index_is_an_incomplete_snapshot(pairs):
    with pytest.raises(SnapshotIncompleteError) as caught:
        Index.from_custom_metadata(pairs, url="here", file_bytes=0)
    assert caught.value.url == "here"


def test_an_index_that_is_too_long_is_not_read(monkeypatch):
    pairs = stored(index_of(99))
    assert INDEX_ZST_KEY.encode() in pairs
    size = zstandard.get_frame_parameters(base64.b64decode(pairs[INDEX_ZST_KEY.encode()])).content_size
    monkeypatch.setattr(module, "MAX_INDEX_BYTES", size)
    assert len(Index.from_custom_metadata(pairs, url="u", file_bytes=0).rows) == 99
    monkeypatch.setattr(module, "MAX_INDEX_BYTES", size - 1)
    assert codes(pairs) == ["index_invalid"]


DROPPED = object()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, DROPPED) for name in ("tensor_index", "layer_index", "layer_name", "kv_role", "page_shape", "offset")],
        *[
            (name, None)
            for name in ("tensor_index", "kv_role", "page_shape", "body_bytes", "pages_offset", "head_xxh3")
        ],
        ("kv_role", 7),
        ("element_type", ["bfloat16"]),
        ("layer_name", 0),
        ("layer_index", "x"),
        ("num_pages", -1),
        ("num_seqs", 5.0),
        ("num_seqs", False),
        ("page_shape", [2, 3]),
        ("page_shape", [2, 3, 13, 1]),
        ("page_shape", [2, 3, None]),
        ("page_shape", [0, 3, 13]),
        ("page_shape", {"0": 2}),
        ("head_xxh3", HASH.upper()),
        ("tail_xxh3", HASH + "0"),
        ("tail_xxh3", 7),
        ("row_xxh3", HASH[:-1]),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_rows_that_are_none(name, value, number):
    document = document_of(index_of(3))
    if value is DROPPED:
        del document["rows"][number][name]
    else:
        document["rows"][number][name] = value
    assert codes(pairs_of(document)) == ["index_invalid"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"version": 1.0},
        {"version": None},
        {"kind": "heap"},
        {"kind": None},
        {"num_rows": 2},
        {"num_rows": None},
        {"num_tensors": 4},
        {"num_tensors": 3.0},
        {"schema_xxh3": HASH.upper()},
        {"schema_xxh3": None},
        {"rows": {}},
        {"rows": [[], [], []]},
        {"rows": None},
    ],
    ids=str,
)
def test_documents_that_are_no_index(changes):
    assert codes(pairs_of(document_of(index_of(3)), **changes)) == ["index_invalid"]


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"null", b"{}", b"\xff", b'{"version":1,"version":1}'])
def test_texts_that_are_no_index(text):
    assert codes(pairs_of(text)) == ["index_invalid"]


def test_unknown_keys_are_left_alone():
    document = document_of(index_of(2)) | {"colour": {"deep": [1]}}
    document["rows"][1]["colour"] = "red"
    assert Index.from_custom_metadata(pairs_of(document), url="u", file_bytes=0) == index_of(2)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": 1000}, "row_place"),
        ({"offset": 9184}, "row_place"),
        ({"offset": 9193}, "row_place"),
        ({"metadata_bytes": 0}, "row_place"),
        ({"pages_offset": 9192 + 3072 - 8}, "row_place"),
        ({"pages_offset": 9192 + 8192 - 952}, "row_place"),
        ({"pages_bytes": 1025}, "row_place"),
        ({"pages_bytes": 2**63}, "row_place"),
        ({"checksums_offset": 9192 + 8}, "row_place"),
        ({"tensor_index": 0, "layer_index": 200, "layer_name": "l.0"}, "index_invalid"),
        ({"layer_index": 200, "layer_name": "l.0"}, "tensor_key_duplicate"),
    ],
)
def test_rows_that_contradict_each_other(changes, code):
    first, second = row(0), row(1, **changes)
    assert {problem.code for problem in index_problems([first, second])} == {code}
    assert code in codes(stored(Index((first, second), schema_xxh3=HASH)))


def test_rows_that_do_not():
    assert index_problems([]) == []
    assert index_problems([row(0), row(1), row(2)]) == []
    # No pages: both ends of the row, and the same key with one field changed.
    assert index_problems([row(0, pages_offset=1000 + 8192, pages_bytes=0)]) == []
    for change in ({"kv_role": "value"}, {"component": "scales"}, {"kv_group": 1}, {"layer_index": 3}):
        assert index_problems([row(0), row(1, layer_index=200, layer_name="l.0")._replace(**change)]) == []


def test_every_contradiction_is_named():
    rows = [row(0), row(1, offset=0), row(2, pages_bytes=2**40), row(0)]
    problems = index_problems(rows)
    assert {problem.where for problem in problems} == {"rows[1]", "rows[2]", "rows[3]"}


def small_tensors(count):
    return [
        make_tensor(head_dim=1, num_heads=1, page_size=1, num_pages=7, seq_lens=[3, 0, 2, 1], layer_index=layer)
        for layer in range(count)
    ]


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_the_smallest_tensors_make_a_file_that_is_large_enough_for_their_index(tmp_path, profile):
    """However many there are: a row's header is longer than what its index row takes."""
    path = tmp_path / "s.arrow"
    sizes = []
    for count in (100, 300):
        align = {"page_align_bytes": 64} if profile == "share" else {}
        write_snapshot(path, small_tensors(count), profile=profile, checksums=False, overwrite=True, **align)
        with open_snapshot(path) as snapshot:
            rows = [place for places in snapshot._rows._places.values() for place in places]
        text = json.dumps([row.as_json("file") for row in rows], separators=(",", ":"))
        sizes.append((path.stat().st_size, parsed_bytes(text)))
    (few, of_few), (many, of_many) = sizes
    assert of_many - of_few < 1.25 * (many - few)


LITTLE, MUCH = 1 << 10, 64 << 20


@pytest.mark.parametrize(
    "filling",
    [
        "[]," * 300_000 + "[]",
        '{"a":[0]},' * 100_000 + "{}",
        '"' + "x" * (13 << 20) + '"',
        '"' + "x" * (4 << 20) + '\U0001f600"',
    ],
    ids=["lists", "objects", "a long text", "a wide text"],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_an_index_is_in_proportion_to_its_file(filling, compressed):
    text = json.dumps(document_of(index_of(2)))[:-1] + f',"user":[{filling}]}}'
    pairs = zst_pairs_of(text.encode()) if compressed else pairs_of(text.encode())
    with pytest.raises(SnapshotCorruptError) as caught:
        Index.from_custom_metadata(pairs, url="u", file_bytes=LITTLE)
    assert caught.value.codes == ["index_invalid"]
    assert Index.from_custom_metadata(pairs, url="u", file_bytes=MUCH) == index_of(2)


def test_of_many_rows_that_contradict_each_other_a_hundred_are_listed():
    rows = [row(0)] * 1013
    assert len(index_problems(rows)) == 100
