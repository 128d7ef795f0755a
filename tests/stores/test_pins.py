"""A snapshot that was listed in one process is opened in another: nothing is asked again, and the version holds."""

from __future__ import annotations

import pickle
import time

import pytest

from hurray_arrow import SnapshotChangedError, write_snapshot
from hurray_arrow.snapshot.pins import SnapshotPlace
from tests.stores.conftest import WRITABLE
from tests.stores.samples import as_bytes, tensors

METADATA = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_a_pin_opens_the_version_that_was_listed_and_no_other(store, tmp_path):
    url = store.unique()
    old, new = tensors(seed=0), tensors(seed=50)
    write_snapshot(url, old, metadata=METADATA, **store.how)
    snapshot, pin = SnapshotPlace.of(url, **store.how).pinned()
    snapshot.close()
    sent = pickle.dumps(pin)
    store.proxy.reset()
    with pickle.loads(sent).open() as again:  # noqa: S301  our own bytes
        assert store.proxy.reads() == []
        assert len(again.entries) == len(old)
        assert again.read(layer_index=1, kv_role="value").equals(old[3])
        assert store.kind == "memory" or len(store.proxy.reads()) > 0
    # One id and size for both: only the store can tell.
    replacement = as_bytes(tmp_path, new, metadata=METADATA)
    assert len(replacement) == pin.known.version.size
    time.sleep(1.1 if store.kind == "gcs" else 0)
    store.replace(url, replacement)
    with pytest.raises(SnapshotChangedError), pickle.loads(sent).open() as again:  # noqa: S301  our own bytes
        again.read(layer_index=1, kv_role="value")
    store.remove(url)
    with pytest.raises(SnapshotChangedError), pickle.loads(sent).open() as again:  # noqa: S301  our own bytes
        again.read(layer_index=1, kv_role="value")
