"""Catalogues over stores: what a build asks of a server, and that its catalogue is there whole or not at all."""

from __future__ import annotations

import secrets
from collections import Counter
from urllib.parse import unquote

import numpy as np
import pytest
from pyarrow import parquet

import hurray_arrow as ha
from hurray_arrow.catalog import build_catalog, find_prefix, open_catalog
from tests.sample import make_tensor
from tests.stores.conftest import REMOTE, WRITABLE
from tests.stores.proxy import Answer
from tests.stores.samples import as_bytes

KEY = bytes(range(5, 45))
TOKENS = np.random.default_rng(3).integers(0, 9_999, 60).astype(np.uint32)
#: Requests for size and identity that come before the first range of a snapshot.
FIRST = {"s3": 0, "obstore": 0, "azure": 1, "gcs": 1}


def tensors(num_pages, *, tokens=TOKENS, groups=2, head_dim=2):
    """A tensor in each of some groups, with the same sequences."""
    return [
        make_tensor(
            kv_role="key",
            layer_index=layer,
            kv_group=layer,
            head_dim=head_dim,
            num_pages=num_pages,
            page_size=15,
            block_tables=[[3, 1, 4, 6], [2]],
            seq_lens=[len(tokens), 2],
            token_ids=[tokens, [7, 8]],
        )
        for layer in range(groups)
    ]


@pytest.fixture
def prefix(store):
    return store.url(secrets.token_hex(6))


def snapshot_reads(store, name):
    paths = [(request, unquote(request.target).partition("?")[0]) for request in store.proxy.reads()]
    return [request for request, path in paths if path.endswith(f"/{name}")]


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_snapshot_takes_one_request_and_one_or_two_for_each_groups_tables(store, prefix, tmp_path):
    small, large = as_bytes(tmp_path, tensors(7)), as_bytes(tmp_path, tensors(397, head_dim=67))
    archived = as_bytes(tmp_path, tensors(397, head_dim=67), profile="archive")
    assert len(small) < 64 << 10 < 2_000_000 < min(len(archived), len(large))
    for name, data in {"small": small, "large": large, "archived": archived}.items():
        store.replace(f"{prefix}/{name}.arrow", data)
    destination = tmp_path / "c.parquet"
    store.proxy.reset()
    report = build_catalog(prefix, destination=destination, key=KEY, **store.how)
    asked = {name: len(snapshot_reads(store, f"{name}.arrow")) for name in ("small", "large", "archived")}
    first = FIRST[store.kind]
    assert asked["small"] == first + 1
    # What is small before the pages of each group's first tensor, and what is after them, near the file's end or not.
    assert first + 1 + 2 <= asked["large"] <= first + 1 + 4
    assert first + 1 + 2 <= asked["archived"] <= first + 1 + 2
    fetched = {name: sum(request.answer_bytes for request in snapshot_reads(store, f"{name}.arrow")) for name in asked}
    assert fetched["large"] < (64 << 10) + 40_000
    assert fetched["archived"] < (64 << 10) + 40_000
    assert report.requests == sum(asked.values()) - 3 * first
    assert {row["error"] for row in parquet.read_table(destination).to_pylist()} == {None}
    assert sorted(match.num_tokens for match in find_prefix(destination, TOKENS, key=KEY)) == [60, 60, 60]


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_only_what_changed_is_read_again(store, prefix, tmp_path):
    """In the store beside the snapshots, so that the catalogue's own reads and writes are a store's too."""
    for number in range(3):
        store.replace(f"{prefix}/deep/{number}.arrow", as_bytes(tmp_path, tensors(7, tokens=TOKENS[: 20 + number])))
    # A destination has options and no filesystem object.
    in_store = store.filesystem is None
    destination = f"{prefix}/catalog.parquet" if in_store else tmp_path / "c.parquet"
    own, how = ({"destination_options": store.options}, store.how) if in_store else ({}, {})

    def build():
        store.raw.invalidate_cache()
        return build_catalog(prefix, destination=destination, key=KEY, **store.how, **own)

    assert build().num_read == 3
    store.proxy.reset()
    again = build()
    assert (again.num_read, again.num_kept) == (0, 3)
    if store.kind != "memory":
        assert not any(snapshot_reads(store, f"{number}.arrow") for number in range(3))
    with ha.open_snapshot(f"{prefix}/deep/1.arrow", **store.how) as snapshot:
        before = snapshot.metadata["id"]
    store.replace(f"{prefix}/deep/1.arrow", as_bytes(tmp_path, tensors(7, tokens=TOKENS[:33])))
    store.remove(f"{prefix}/deep/0.arrow")
    store.raw.invalidate_cache()
    store.proxy.reset()
    report = build()
    assert (report.num_read, report.num_kept, report.num_dropped) == (1, 1, 1)
    if store.kind != "memory":
        assert not snapshot_reads(store, "2.arrow")
    found = find_prefix(destination, TOKENS, key=KEY, **how)
    assert [match.num_tokens for match in found] == [33, 22]
    assert found[0].snapshot_id != before
    with ha.open_snapshot(found[0].url, **store.how) as snapshot:
        assert snapshot.match_prefix(TOKENS).num_tokens == 33


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_listing_takes_a_request_for_a_thousand(store, prefix, tmp_path):
    data = as_bytes(tmp_path, tensors(7, groups=1), page_align_bytes=64)
    for number in range(40):
        store.replace(f"{prefix}/{number:02}.arrow", data)
    store.proxy.reset()
    build_catalog(prefix, destination=tmp_path / "c.parquet", key=KEY, **store.how)
    listed = [request for request in store.proxy.reads() if "list-type" in request.target]
    snapshots = Counter(request.target.partition("?")[0] for request in store.proxy.reads() if request not in listed)
    assert sorted(snapshots.values()) == [1] * 40
    assert len(listed) <= 2
    store.proxy.reset()
    build_catalog(prefix, destination=tmp_path / "c.parquet", key=KEY, **store.how)
    assert len(store.proxy.reads()) == len(listed)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_store_that_fails_for_one_snapshot_is_asked_again_the_next_time(store, prefix, tmp_path):
    for name in ("a", "b"):
        store.replace(f"{prefix}/{name}.arrow", as_bytes(tmp_path, tensors(7)))

    def fault(request):
        return Answer(403) if request.is_read and "/b.arrow" in request.target else None

    store.proxy.fault = fault
    [failure] = build_catalog(prefix, destination=tmp_path / "c.parquet", **store.how).failures
    assert failure.url.endswith("/b.arrow")
    assert failure[1:] == ("PermissionError", None)
    store.proxy.reset()
    report = build_catalog(prefix, destination=tmp_path / "c.parquet", **store.how)
    assert (report.num_read, report.num_kept, report.failures) == (1, 1, ())


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_catalogue_that_cannot_be_stored_leaves_the_old_one(store, prefix, tmp_path):
    for name in ("a", "b"):
        store.replace(f"{prefix}/{name}.arrow", as_bytes(tmp_path, tensors(7)))
    destination = f"{prefix}/catalog.parquet"
    how = {"destination_options": store.options, **store.how}
    build_catalog(f"{prefix}/a.arrow", destination=destination, key=KEY, **how)
    before = store.bytes_of(destination)
    store.proxy.fault = lambda request: Answer(403) if request.method in ("PUT", "POST") else None
    with pytest.raises(PermissionError):
        build_catalog(prefix, destination=destination, key=KEY, rebuild=True, **how)
    store.proxy.reset()
    assert store.bytes_of(destination) == before
    with open_catalog(destination, storage_options=store.options) as catalogue:
        assert catalogue.document.num_files == 1
        assert [match.num_tokens for match in find_prefix(catalogue, TOKENS, key=KEY)] == [60]
        store.proxy.reset()
        # Digests that came once are kept: only rows are asked for.
        assert find_prefix(catalogue, TOKENS[1:], key=KEY) == []
        assert store.proxy.reads() == []
