"""Requests and bytes, counted on the wire: people pay for both."""

from __future__ import annotations

import pytest

from hurray_arrow import open_snapshot, write_snapshot
from hurray_arrow.snapshot import remote
from tests.sample import make_tensor
from tests.stores.conftest import REMOTE
from tests.stores.samples import as_bytes, tensors

#: Requests for size and identity that come before the first range: none where that range says both.
FIRST = {"s3": 0, "obstore": 0, "http": 0, "azure": 1, "gcs": 1}
TAIL_BYTES = 64 << 10


def small_tensors(count: int):
    return [
        make_tensor(head_dim=1, num_heads=1, page_size=2, num_pages=7, seq_lens=[5, 0, 4, 1], layer_index=layer)
        for layer in range(count)
    ]


def counted(proxy) -> tuple[int, int]:
    reads = proxy.reads()
    return len(reads), sum(request.answer_bytes for request in reads)


def opened(store, url):
    """Open it, list it, and say what that took."""
    store.proxy.reset()
    snapshot = open_snapshot(url, **store.how)
    assert snapshot.entries
    return snapshot, *counted(store.proxy)


@pytest.mark.parametrize("profile", ["share", "archive"])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_listing_takes_one_request_for_the_end(store, profile):
    url = store.unique()
    write_snapshot(url, tensors(), profile=profile, **store.how)
    snapshot, requests, received = opened(store, url)
    assert requests == FIRST[store.kind] + 1
    # Size and identity are a few hundred bytes of JSON in some stores.
    assert TAIL_BYTES <= received <= TAIL_BYTES + 2000
    assert snapshot._rows.source.requests == 1


@pytest.fixture(scope="module", params=[1000, 2000, 2800])
def many(request, tmp_path_factory):
    """Return the number of tensors of a snapshot, and its bytes; 2800 have a footer longer than the first range."""
    folder = tmp_path_factory.mktemp("many")
    return request.param, as_bytes(folder, small_tensors(request.param), page_align_bytes=64, checksums=False)


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_listing_many_tensors_takes_one_request_or_two(store, many):
    url = store.unique()
    number, data = many
    store.replace(url, data)
    snapshot, requests, received = opened(store, url)
    assert len(snapshot.entries) == number
    assert requests == FIRST[store.kind] + (1 if number == 1000 else 2)
    assert (number * 24 > TAIL_BYTES) == (number == 2800)
    assert max(number * 24, TAIL_BYTES) <= received <= 1 << 20


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_one_tensor_takes_its_row_and_its_groups_tables(store):
    url = store.unique()
    some = tensors()
    write_snapshot(url, some, **store.how)
    snapshot, _, _ = opened(store, url)
    rows = {index: places[0] for index, places in snapshot._rows._places.items()}
    store.proxy.reset()
    assert snapshot.read(layer_index=0, kv_role="key").equals(some[0])
    assert counted(store.proxy) == (1, rows[0].block.end - rows[0].offset)
    store.proxy.reset()
    assert snapshot.read(layer_index=1, kv_role="value").equals(some[3])
    assert counted(store.proxy) == (1, rows[3].block.end - rows[3].offset)

    snapshot, _, _ = opened(store, url)
    store.proxy.reset()
    assert snapshot.read(layer_index=1, kv_role="value").equals(some[3])
    head = rows[0].pages_offset - rows[0].offset
    tail = rows[0].block.end - rows[0].pages_offset - rows[0].pages_bytes
    requests, received = counted(store.proxy)
    assert received <= rows[3].block.end - rows[3].offset + head + tail
    assert requests <= 1 + 1 + (tail > 0)


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_the_rows_of_an_archived_tensor_come_together(store, monkeypatch):
    """Rows are neighbours, so a tensor of many is one range, cut where one connection would have too much."""
    from hurray_arrow.snapshot import archive_rows, archive_source

    for module in (archive_rows, archive_source):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 256 << 10)
    url = store.unique()
    some = tensors()
    write_snapshot(url, some, profile="archive", **store.how)
    snapshot, _, _ = opened(store, url)
    places = snapshot._rows._places[0]
    assert len(places) > 8
    store.proxy.reset()
    assert snapshot.read(layer_index=0, kv_role="key").equals(some[0])
    requests, received = counted(store.proxy)
    assert received == places[-1].block.end - places[0].offset
    assert requests == 1


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_long_row_comes_over_several_connections(store, monkeypatch):
    monkeypatch.setattr(remote, "PIECE_BYTES", 512 << 10)
    url = store.unique()
    some = tensors(layers=1)
    write_snapshot(url, some, **store.how)
    snapshot, _, _ = opened(store, url)
    store.proxy.reset()
    assert snapshot.read(kv_role="key").equals(some[0])
    row = snapshot._rows._places[0][0]
    size = row.block.end - row.offset
    assert counted(store.proxy) == (-(-size // (512 << 10)), size)


def test_http_takes_no_head_request(http_files, tmp_path):
    server, proxy = http_files
    server.files["/x.arrow"] = as_bytes(tmp_path, tensors())
    with open_snapshot(f"http://127.0.0.1:{proxy.port}/x.arrow") as snapshot:
        assert [request.method for request in proxy.requests] == ["GET"]
        assert counted(proxy) == (1, TAIL_BYTES)
        row = snapshot._rows._places[0][0]
        proxy.reset()
        snapshot.read(layer_index=0, kv_role="key")
        assert counted(proxy) == (1, row.block.end - row.offset)


@pytest.mark.parametrize("store", ["s3", "obstore"], indirect=True)
def test_small_snapshots_are_read_in_one_request(store):
    url = store.unique()
    some = small_tensors(3)
    write_snapshot(url, some, page_align_bytes=64, **store.how)
    store.proxy.reset()
    with open_snapshot(url, **store.how) as snapshot:
        assert all(one.equals(other) for one, other in zip(snapshot.iter_tensors(), some, strict=True))
    assert counted(store.proxy) == (1, len(store.bytes_of(url)))
