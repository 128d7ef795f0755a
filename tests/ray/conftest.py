"""A real Ray of one node on loopback, with two workers, for all tests here; and a real S3 that it reads from."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

import psutil
import pytest

from tests.stores.servers import Store, s3_store

# Before Ray and s3fs are imported: nobody is called, nothing is left in the home folder, servers listen on loopback.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Its name tells of one use only: without clusters a node has the address 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

#: Ray makes its own settings by names that it has given up, and tells itself so.
_OWN_WARNING = "ignore:.* is deprecated:DeprecationWarning:ray.data.context"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/ray/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings(_OWN_WARNING))


def ray_processes(roots: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for root in roots:
        if root.is_running():
            found += [root, *root.children(recursive=True)]
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[psutil.Process]]:
    """Start Ray, and see to it that none of its processes is left."""
    import ray
    import ray.data
    from ray.data.context import ShuffleStrategy

    # It tells every step at length, and a failed test all of them.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Sockets lie in it, whose names are limited.
    folder = tempfile.mkdtemp(prefix="ha-ray-")
    before = set(psutil.Process().children())
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=256 << 20,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=folder,
    )
    roots = [process for process in psutil.Process().children() if process not in before]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Groupings by default start processes of their own for each.
    context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    try:
        yield roots
    finally:
        processes = ray_processes(roots)
        ray.shutdown()
        _, alive = psutil.wait_procs(processes, timeout=10)
        for process in alive:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Store]:
    with s3_store() as store:
        yield store


@pytest.fixture
def s3(s3_server: Store) -> Iterator[Store]:
    s3_server.proxy.reset()
    yield s3_server
    s3_server.proxy.reset()
