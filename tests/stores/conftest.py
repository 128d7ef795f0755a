"""Every test here runs against real servers on loopback; each worker has its own."""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Iterator

import fsspec
import pytest

from tests.stores.proxy import Proxy
from tests.stores.servers import RangeServer, Store, azure_store, gcs_store, obstore_of, proxy_to, s3_store

# Before the clients are imported: none may look for credentials in the cloud it thinks it is in.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/stores/" in str(item.path):
            item.add_marker(pytest.mark.stores)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Azure's library try again at once; it would wait for 15 seconds."""
    from azure.storage.blob._shared.policies_async import ExponentialRetry

    monkeypatch.setattr(ExponentialRetry, "get_backoff_time", lambda _self, _settings: 0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait before another try."""
    import azure.storage.blob.aio._download_async as azure_download
    import gcsfs.retry

    from hurray_arrow.snapshot import stores
    from hurray_arrow.snapshot.objects import store_object

    for module in (stores, store_object):
        monkeypatch.setattr(module, "BACKOFF_SECONDS", (0.01, 0.01))
    sleep = asyncio.sleep
    at_once = types.SimpleNamespace(**{**vars(asyncio), "sleep": lambda _seconds: sleep(0.01)})
    for module in (azure_download, gcsfs.retry):
        monkeypatch.setattr(module, "asyncio", at_once)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Store]:
    with s3_store() as store:
        yield store


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Store]:
    with azure_store() as store:
        yield store


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Store]:
    with gcs_store() as store:
        yield store


@pytest.fixture(scope="session")
def obstore_server(s3_server: Store) -> Store:
    return obstore_of(s3_server)


@pytest.fixture(scope="session")
def memory_server() -> Iterator[Store]:
    proxy = Proxy()
    yield Store("memory", "memory://hurray-test", proxy)
    proxy.close()
    fsspec.filesystem("memory").store.clear()


#: Stores that snapshots are published to.
WRITABLE = ("s3", "azure", "gcs", "obstore", "memory")
#: Those of them that are reached over a network, which can be broken.
REMOTE = ("s3", "azure", "gcs", "obstore")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    found: Store = request.getfixturevalue(f"{request.param}_server")
    found.proxy.reset()
    yield found
    found.proxy.reset()


@pytest.fixture
def http_files() -> Iterator[tuple[RangeServer, Proxy]]:
    server = RangeServer()
    try:
        with proxy_to(server.port) as proxy:
            yield server, proxy
    finally:
        server.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a snapshot of a few MiB come in parts, in every store."""
    from hurray_arrow.snapshot.objects import _KINDS
    from hurray_arrow.snapshot.objects.generic import GenericObject
    from tests.stores.samples import PART_BYTES

    for kind in {*_KINDS.values(), GenericObject}:
        monkeypatch.setattr(kind, "MIN_PART_BYTES", PART_BYTES)
