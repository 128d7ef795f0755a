"""A Ray of one node on loopback, with two workers, and what its processes take."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

# Before Ray and s3fs are imported: nobody is called, nothing is left in the home folder, servers listen on loopback.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Its name tells of one use only: without clusters a node has the address 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


@contextlib.contextmanager
def running_ray() -> Iterator[list[psutil.Process]]:
    """Run Ray until the block is left, and see to it that none of its processes is; gives those it was started with."""
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


def ray_processes(roots: list[psutil.Process]) -> list[psutil.Process]:
    """Return all processes of a Ray that are alive."""
    found = []
    for root in roots:
        if root.is_running():
            found += [root, *root.children(recursive=True)]
    return found


def worker_peaks_bytes(roots: list[psutil.Process]) -> list[int]:
    """Return the largest resident size that each worker ever had; shared memory that it touched counts."""
    peaks = []
    for process in ray_processes(roots):
        if process.name().startswith("ray::"):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            peaks.append(int(lines["VmHWM"].split()[0]) << 10)
    return peaks
