"""Snapshots that say in every tensor which version they are of, and programs that read and write them meanwhile."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import contextmanager

from hurray_arrow import open_snapshot, write_snapshot
from tests.sample import make_tensor

#: How many versions are written over each other.
VERSIONS = 12
TIMEOUT_SECONDS = 120


def tensors(version):
    """Keys and values of three layers, 30 KiB each: no byte of a page is the same in two versions, and no size."""
    return [
        make_tensor(layer_index=layer, kv_role=role, num_pages=91 + version, seed=100 * version + layer)
        for layer in range(3)
        for role in ("key", "value")
    ]


def write(path, version, **options):
    write_snapshot(path, tensors(version), metadata={"user": {"version": version}}, overwrite=True, **options)


def version_of(snapshot):
    """Return the one version that metadata, entries and every byte of every tensor are of; fail where it is not one."""
    version = snapshot.metadata["user"]["version"]
    expected = tensors(version)
    found = list(snapshot.iter_tensors(verify=True))
    assert len(found) == len(expected)
    assert all(one.equals(other) for one, other in zip(found, expected, strict=True)), f"version {version} is mixed"
    assert snapshot.verify().num_pages == 6 * (91 + version)
    return version


def read_again_and_again(path, stop, seen, **options):
    """Open, read all and compare until told to stop; collects the versions, or an error by its name."""
    while not stop.is_set():
        try:
            with open_snapshot(path, **options) as snapshot:
                seen.append(version_of(snapshot))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            seen.append(f"{type(error).__name__}: {error}")


@contextmanager
def reading_threads(path, count, **options):
    """Let threads read as long as the block takes; gives what each has seen."""
    stop, seen = threading.Event(), [[] for _ in range(count)]
    threads = [threading.Thread(target=read_again_and_again, args=(path, stop, each), kwargs=options) for each in seen]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)


def _reading_child(path, stop, sender, options):
    seen = []
    sender.send("ready")
    read_again_and_again(path, stop, seen, **options)
    sender.send(seen)


@contextmanager
def reading_process(path, **options):
    """Let a process of its own read as long as the block takes; what it has seen is in the list afterwards."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    stop, seen = context.Event(), []
    child = context.Process(target=_reading_child, args=(path, stop, sender, options))
    child.start()
    assert receiver.poll(TIMEOUT_SECONDS)
    assert receiver.recv() == "ready"
    try:
        yield seen
    finally:
        stop.set()
        try:
            assert receiver.poll(TIMEOUT_SECONDS)
            seen += receiver.recv()
        finally:
            child.kill()
            child.join()
