"""The store publishes, and nobody hears of it: what is ours is there and no failure, what is another's is refused."""

from __future__ import annotations

import pytest

from hurray_arrow import SnapshotError, open_snapshot, write_snapshot
from tests.stores.conftest import REMOTE
from tests.stores.proxy import Answer, Reset
from tests.stores.samples import as_bytes, check_same, tensors
from tests.stores.test_nothing_half_written import OLD, left_over

pytestmark = pytest.mark.usefixtures("small_parts", "impatient")


def lose(store, *, forward, most):
    """Cut the connection of the requests that publish, before or behind the store; says how often that was."""
    lost = []

    def fault(request):
        if not request.is_completion or len(lost) >= most:
            return None
        lost.append(request)
        return Reset(forward=forward)

    store.proxy.fault = fault
    return lost


@pytest.mark.parametrize("most", [1, 1000], ids=["once", "always"])
@pytest.mark.parametrize("overwrite", [False, True], ids=["create", "overwrite"])
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_what_was_published_is_no_failure(store, layers, overwrite, most):
    url, some = store.unique(), tensors(layers=layers)
    if overwrite:
        store.replace(url, OLD)
    lost = lose(store, forward=True, most=most)
    write_snapshot(url, some, overwrite=overwrite, **store.how)
    assert lost
    store.proxy.reset()
    with open_snapshot(url, **store.how) as snapshot:
        check_same(snapshot, some)
    assert left_over(store, url) == []


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_what_never_arrived_is_a_failure(store, layers):
    url = store.unique()
    store.replace(url, OLD)
    lost = lose(store, forward=False, most=1000)
    with pytest.raises(SnapshotError):
        write_snapshot(url, tensors(layers=layers), overwrite=True, **store.how)
    assert lost
    store.proxy.reset()
    assert store.bytes_of(url) == OLD
    assert left_over(store, url) == []


@pytest.mark.parametrize(
    ("store", "layers"),
    # fake-gcs-server ignores the condition on resumable uploads, and obstore has none for parts.
    [("s3", 1), ("s3", 4), ("azure", 1), ("azure", 4), ("gcs", 1), ("obstore", 1)],
    indirect=["store"],
)
def test_what_another_published_meanwhile_is_not_taken_for_ours(store, layers, tmp_path):
    """Both are of one size; what was asked did not arrive, and then the name is taken."""
    url = store.unique()
    metadata = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}
    other = as_bytes(tmp_path, tensors(layers=layers, seed=90), metadata=metadata)
    struck = []

    def replace(request):
        if not request.is_completion or struck:
            return None
        struck.append(request)
        store.replace(url, other)
        return Reset()

    store.proxy.fault = replace
    with pytest.raises(FileExistsError):
        write_snapshot(url, tensors(layers=layers), metadata=metadata, **store.how)
    assert struck
    assert store.bytes_of(url) == other
    assert left_over(store, url) == []


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_upload_that_somebody_aborted_is_no_missing_bucket(store):
    url, gone = store.unique(), Answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
    store.proxy.fault = lambda request: gone if request.is_completion else None
    with pytest.raises(SnapshotError):
        write_snapshot(url, tensors(layers=4), **store.how)
