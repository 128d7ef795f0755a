"""A real Ray for all tests here, and a real S3 that it reads from."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.ray.cluster import running_ray
from tests.stores.servers import Store, s3_store

#: Ray makes its own settings by names that it has given up, and tells itself so.
_OWN_WARNING = "ignore:.* is deprecated:DeprecationWarning:ray.data.context"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/ray/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings(_OWN_WARNING))


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[psutil.Process]]:
    with running_ray() as roots:
        yield roots


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Store]:
    with s3_store() as store:
        yield store


@pytest.fixture
def s3(s3_server: Store) -> Iterator[Store]:
    s3_server.proxy.reset()
    yield s3_server
    s3_server.proxy.reset()
