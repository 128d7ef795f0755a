"""Exceptions as other processes see them."""

from __future__ import annotations

import pickle

import pytest

import hurray_arrow as ha

PROBLEM = ha.Problem(ha.ProblemCode.PAGE_CHECKSUM, "tensor 3.page_pool[5]", "xxh3 1, expected 2", "snapshot format 4")
RAISED = [
    ha.WireFormatError(PROBLEM),
    ha.UnsupportedError("no such encoding"),
    ha.CopyRequiredError("it lies in no mapped file"),
    ha.SnapshotMismatchError(field="model.revision", expected="9f2c", found=None),
    ha.UnknownSequenceLengthError("sequence 3"),
    ha.SnapshotError("bytes [0, 64): HTTP 500", url="s3://bucket/a.arrow"),
    ha.SnapshotIncompleteError("no end batch", url="s3://bucket/a.arrow"),
    ha.SnapshotCorruptError([PROBLEM, PROBLEM], url="s3://bucket/a.arrow"),
    ha.SnapshotChangedError("it was overwritten", url="s3://bucket/a.arrow"),
    ha.CatalogError(PROBLEM, url="s3://bucket/catalog.parquet"),
    ha.LayoutError("page_size", expected=16, actual=5),
    ha.MissingDependencyError("ray", extra="ray"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_exception_reaches_another_process_as_it_is(error):
    error.add_note("while reading s3://bucket/a.arrow")
    found = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert getattr(found, "codes", None) == getattr(error, "codes", None)
