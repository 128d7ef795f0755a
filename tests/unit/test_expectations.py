"""What opening a snapshot and reading a stream compare with ``expect``: also what only sequences and tensors say."""

from __future__ import annotations

import io

import pytest

from hurray_arrow.errors import SnapshotMismatchError
from hurray_arrow.snapshot import copy_snapshot, open_snapshot, read_stream, write_snapshot, write_stream
from tests.faults.forgery import Forgery
from tests.sample import make_tensor

#: The sample has 4 sequences.
NOBODY = None
ONE = ["t-1"] * 4
MIXED = ["t-1", None, "t-2", "t-1"]


def tensors(**facts):
    return [
        make_tensor(kv_role="key", layer_index=0, **facts),
        make_tensor(kv_role="value", layer_index=0, seed=2, **facts),
        make_tensor(kv_role="key", layer_index=0, component="scales", element_type="float32", **facts),
    ]


def by_file(tmp_path, given, metadata, expect):
    path = tmp_path / "s.arrow"
    write_snapshot(path, given, metadata=metadata, overwrite=True)
    with open_snapshot(path) as snapshot:
        copy_snapshot(snapshot, tmp_path / "copy.arrow", expect=expect, overwrite=True)
    with open_snapshot(path, expect=expect) as snapshot:
        assert len(snapshot.entries) == len(given)


def by_stream(_, given, metadata, expect):
    pipe = io.BytesIO()
    write_stream(pipe, given, metadata=metadata)
    pipe.seek(0)
    assert len(list(read_stream(pipe, expect=expect))) == len(given)


WAYS = pytest.mark.parametrize("opened", [by_file, by_stream])


#: What sequences say, what the metadata says of all, what is expected.
FITTING = [
    (NOBODY, None, None),
    (NOBODY, "t-1", "t-1"),
    (ONE, None, "t-1"),
    (ONE, "t-1", "t-1"),
    # Metadata says whose a sequence is that says nothing, and no more.
    (ONE, "everybody", "t-1"),
]
#: And what is found.
FOREIGN = [
    (NOBODY, None, "t-1", None),
    (NOBODY, "t-1", None, "t-1"),
    (ONE, None, None, "t-1"),
    (ONE, None, "t-2", "t-1"),
    (MIXED, None, None, ["t-1", None, "t-2"]),
    (MIXED, None, "t-1", ["t-1", None, "t-2"]),
    (MIXED, "t-1", "t-1", ["t-1", "t-2"]),
]


@WAYS
@pytest.mark.parametrize("name", ["tenant", "adapter"])
@pytest.mark.parametrize("case", FITTING)
def test_whose_it_is(tmp_path, opened, name, case):
    of_sequences, of_all, expected = case
    opened(tmp_path, tensors(**{name: of_sequences}), {name: of_all} if of_all else {}, {name: expected})


@WAYS
@pytest.mark.parametrize("name", ["tenant", "adapter"])
@pytest.mark.parametrize("case", FOREIGN)
def test_one_foreign_sequence_is_refused(tmp_path, opened, name, case):
    of_sequences, of_all, expected, found = case
    with pytest.raises(SnapshotMismatchError) as caught:
        opened(tmp_path, tensors(**{name: of_sequences}), {name: of_all} if of_all else {}, {name: expected})
    assert (caught.value.field, caught.value.expected, caught.value.found) == (name, expected, found)


@pytest.mark.parametrize("num_seqs", [1, 2**40])
def test_every_sequence_is_asked_however_many_the_index_counts(tmp_path, num_seqs):
    """Too few hid a foreign one, too many were counted through one by one."""
    path = tmp_path / "s.arrow"
    write_snapshot(path, tensors(tenant=MIXED))
    forgery = Forgery(path.read_bytes())
    forgery.edit_rows = lambda rows: [row.update(num_seqs=num_seqs) for row in rows]
    path.write_bytes(forgery.content())
    with pytest.raises(SnapshotMismatchError) as caught:
        open_snapshot(path, expect={"tenant": "t-1"})
    assert caught.value.found == ["t-1", None, "t-2"]


@WAYS
def test_what_tensors_say(tmp_path, opened):
    given = tensors()
    shape = given[0].descriptor.page_shape
    told = {"element_type": "bfloat16", "page_shape": shape, "page_size": shape[0], "num_heads": shape[1]}
    opened(tmp_path, given, {}, {**told, "head_dim": shape[2]})
    for name, wrong in {**dict.fromkeys(told, "float16"), "head_dim": shape[2] + 1}.items():
        with pytest.raises(SnapshotMismatchError) as caught:
            opened(tmp_path, given, {}, {name: wrong})
        assert caught.value.field == name
        assert caught.value.found is not None


def test_tensors_that_differ_are_none_of_them(tmp_path):
    given = [make_tensor(layer_index=0), make_tensor(layer_index=1, element_type="float16")]
    with pytest.raises(SnapshotMismatchError) as caught:
        by_file(tmp_path, given, {}, {"element_type": "float16"})
    assert caught.value.found == ["bfloat16", "float16"]


def test_metadata_is_asked_before_anything_is_read(tmp_path, monkeypatch):
    path = tmp_path / "s.arrow"
    write_snapshot(path, tensors(tenant=ONE), metadata={"model": {"name": "m"}})
    monkeypatch.setattr("hurray_arrow.snapshot.reader.Snapshot.group_tables", None)
    with pytest.raises(SnapshotMismatchError) as caught:
        open_snapshot(path, expect={"tenant": "t-1", "model.name": "n"})
    assert caught.value.field == "model.name"
