"""The snapshot's own metadata: what a writer completes, what a reader refuses and what it leaves alone."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime
from importlib.metadata import version

import pytest

from hurray_arrow import SnapshotCorruptError, UnsupportedError
from hurray_arrow.arrow import metadata as module
from hurray_arrow.arrow.metadata import metadata_problems, new_metadata, parse_schema_metadata, schema_metadata

GIVEN = {
    "model": {"name": "m", "revision": "9f2c", "rope": {"theta": 1e4, "applied": True}},
    "engine": {"name": "e"},
    "groups": [{"kind": "full", "layer_names": ["l.0"], "components": ["values", "scales"], "page_size": 5}],
    "topology": {"tp_rank": 1, "tp_size": 3, "head_range": [3, 6]},
    "set": {"id": "s", "member": 1, "members": 3},
    "adapter": "lora-7",
    "tenant": "t1",
    "user": {"anything": [None, 2**60]},
}


def made(**given):
    return new_metadata(given, profile="share", page_align_bytes=4096, partial=False)


def test_a_writer_completes_what_it_knows():
    found = new_metadata(None, profile="archive", page_align_bytes=64, partial=True)
    assert uuid.UUID(found.pop("id")).version == 4
    created = found.pop("created")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created)
    assert datetime.fromisoformat(created).tzinfo is not None
    assert found == {
        "profile": "archive",
        "page_align_bytes": 64,
        "producer": {"name": "hurray-arrow", "version": version("hurray-arrow")},
        "requires": [],
        "partial": True,
    }
    assert new_metadata({}, profile="share", page_align_bytes=64, partial=False).get("partial") is None


def test_two_snapshots_have_two_ids():
    assert made()["id"] != made()["id"]


def test_what_is_given_is_kept():
    found = made(**GIVEN, id="mine", created="2025-01-02T03:04:05Z")
    assert {key: found[key] for key in GIVEN} == GIVEN
    assert (found["id"], found["created"]) == ("mine", "2025-01-02T03:04:05Z")
    assert json.loads(schema_metadata(found)[b"hurray_arrow.snapshot"])["user"] == {"anything": [None, str(2**60)]}


@pytest.mark.parametrize("key", ["profile", "page_align_bytes", "requires", "partial", "colour", ""])
def test_keys_that_are_not_the_callers(key):
    with pytest.raises(ValueError):
        made(**{key: "x"})


def test_a_copy_keeps_keys_that_nobody_knows():
    found = new_metadata({"colour": "red"}, profile="share", page_align_bytes=64, partial=False, keep_unknown=True)
    assert found["colour"] == "red"


BAD_VALUES = [
    ("model", "m"),
    ("engine", []),
    ("groups", {}),
    ("groups", [7]),
    ("groups", [{}]),
    ("groups", [{"kind": "half"}]),
    ("groups", [{"kind": "full", "layer_names": "l.0"}]),
    ("groups", [{"kind": "full", "components": [1]}]),
    ("groups", [{"kind": "full", "window_tokens": -1}]),
    ("groups", [{"kind": "full", "page_size": True}]),
    ("groups", [{"kind": "full", "page_size": 2**53}]),
    ("groups", [{"kind": "full"}, {"kind": "full", "page_size": 1.5}]),
    ("topology", 1),
    ("set", None),
    ("adapter", 7),
    ("tenant", ["t"]),
    ("id", None),
    ("created", 7),
    ("producer", {"name": "x"}),
    ("producer", {"name": "x", "version": 1}),
    ("producer", "x"),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_writer_refuses_wrong_values(key, value):
    with pytest.raises(ValueError):
        made(**{key: value})


@pytest.mark.parametrize("align", [0, 32, 63, 65, 96, 2**21 + 1, 2**22, -64])
def test_alignments_that_are_none(align):
    with pytest.raises(ValueError):
        new_metadata(None, profile="share", page_align_bytes=align, partial=False)


@pytest.mark.parametrize("align", [64, 128, 4096, 2**21])
def test_alignments(align):
    assert new_metadata(None, profile="share", page_align_bytes=align, partial=False)["page_align_bytes"] == align


def pairs_of(document, format_version=b"1"):
    return {b"hurray_arrow.format": format_version, b"hurray_arrow.snapshot": json.dumps(document).encode()}


def test_what_was_written_is_read():
    document = made(**{**GIVEN, "user": "u"})
    assert parse_schema_metadata(schema_metadata(document), url="u") == document
    # Unknown keys are kept, at every depth.
    document |= {"colour": "red", "model": {"name": "m", "shape": [1]}, "groups": [{"kind": "full", "colour": 1}]}
    assert parse_schema_metadata(pairs_of(document), url="u") == document


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *BAD_VALUES,
        ("profile", "keep"),
        ("page_align_bytes", "64"),
        ("requires", "x"),
        ("requires", [1]),
        ("partial", 1),
    ],
)
def test_a_reader_refuses_wrong_values(key, value):
    with pytest.raises(SnapshotCorruptError) as caught:
        parse_schema_metadata(pairs_of({**made(), key: value}), url="here")
    assert set(caught.value.codes) == {"metadata_invalid"}
    assert caught.value.url == "here"


@pytest.mark.parametrize("key", ["id", "profile", "page_align_bytes", "producer", "created", "requires"])
def test_a_reader_refuses_missing_keys(key):
    document = made()
    del document[key]
    with pytest.raises(SnapshotCorruptError) as caught:
        parse_schema_metadata(pairs_of(document), url="u")
    assert [problem.where for problem in caught.value.problems] == [key]


def test_everything_wrong_is_said_at_once():
    problems = metadata_problems({**made(), "id": 7, "model": 7, "adapter": 7})
    assert [problem.where for problem in problems] == ["id", "model", "adapter"]
    problems = metadata_problems({**made(), "profile": "x", "page_align_bytes": 3, "groups": [{"kind": "x"}, 3]})
    assert [problem.where for problem in problems] == ["profile", "page_align_bytes", "groups[0]", "groups[1]"]


@pytest.mark.parametrize("document", [[], "x", None, 7])
def test_documents_that_are_no_objects(document):
    with pytest.raises(SnapshotCorruptError) as caught:
        parse_schema_metadata(pairs_of(document), url="u")
    assert caught.value.codes == ["metadata_invalid"]


@pytest.mark.parametrize(
    "pairs",
    [
        None,
        {},
        {b"hurray_arrow.format": b"1"},
        {b"hurray_arrow.snapshot": b"{}"},
        {**pairs_of({}), b"hurray_arrow.snapshot": b"{"},
    ],
)
def test_schemas_that_are_no_snapshots(pairs):
    with pytest.raises(SnapshotCorruptError) as caught:
        parse_schema_metadata(pairs, url="u")
    assert set(caught.value.codes) == {"metadata_invalid"}


@pytest.mark.parametrize("format_version", [b"2", b"0", b"", b"1.0", b"\xff", b"01"])
def test_other_versions_are_unsupported_whatever_the_rest_is(format_version):
    with pytest.raises(UnsupportedError):
        parse_schema_metadata({b"hurray_arrow.format": format_version, b"hurray_arrow.snapshot": b"?"}, url="u")


def test_required_features_are_unsupported():
    assert frozenset() == module.KNOWN_FEATURES
    with pytest.raises(UnsupportedError) as caught:
        parse_schema_metadata(pairs_of({**made(), "requires": ["base", "dreams"]}), url="u")
    assert "base" in str(caught.value)
    assert "dreams" in str(caught.value)


def test_metadata_of_the_largest_size(monkeypatch):
    monkeypatch.setattr(module, "MAX_METADATA_BYTES", 600)
    assert parse_schema_metadata(pairs_of(made(user="x" * 200)), url="u")["user"] == "x" * 200
    with pytest.raises(SnapshotCorruptError):
        parse_schema_metadata(pairs_of(made(user="x" * 400)), url="u")


TOO_MUCH = {
    "long": "x" * (8 << 20),
    "of many values": [0] * (1 << 19),
    "of many lists": [[]] * (1 << 19),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_metadata_that_take_more_than_readers_allow_are_not_written(name):
    """A document of a megabyte may take thirty once it is parsed."""
    with pytest.raises(ValueError):
        made(user=TOO_MUCH[name])
    document = {**made(), "user": TOO_MUCH[name]}
    with pytest.raises(SnapshotCorruptError) as caught:
        parse_schema_metadata(pairs_of(document), url="u")
    assert caught.value.codes == ["metadata_invalid"]


def test_of_many_groups_that_are_none_a_hundred_are_listed():
    problems = metadata_problems({**made(), "groups": [7] * 1013})
    assert len(problems) == 101
