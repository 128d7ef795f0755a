"""Whatever happens while a snapshot is written, its name holds the old object or none, or the whole new one."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from hurray_arrow import SnapshotError, SnapshotWriter, open_snapshot, write_snapshot
from hurray_arrow.arrow.schema import SchemaPlan
from tests.stores.conftest import REMOTE, WRITABLE
from tests.stores.proxy import Answer, InTurn, Reset
from tests.stores.samples import PART_BYTES, as_bytes, check_same, tensors
from tests.stores.servers import ROOT, kill, s3_store

OLD = b"what was there before" * 1000


class OwnError(Exception):
    """What a caller's own code raises."""


def write_and_fail(writer, some):
    for tensor in some:
        writer.write(tensor)
    raise OwnError


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("there_was_one", [False, True])
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_an_exception_in_the_body_publishes_nothing(store, layers, there_was_one):
    url = store.unique()
    if there_was_one:
        store.replace(url, OLD)
    some = tensors(layers=layers)
    writer = SnapshotWriter(url, plan=SchemaPlan.of(some), overwrite=True, **store.how)
    with pytest.raises(OwnError), writer:
        write_and_fail(writer, some)
    assert store.bytes_of(url) == (OLD if there_was_one else None)
    assert left_over(store, url) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_a_forgotten_writer_publishes_nothing(store):
    url = store.unique()
    store.replace(url, OLD)
    some = tensors(layers=4)
    writer = SnapshotWriter(url, plan=SchemaPlan.of(some), overwrite=True, **store.how)
    for tensor in some:
        writer.write(tensor)
    del writer
    gc.collect()
    assert store.bytes_of(url) == OLD


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_an_existing_object_is_refused_before_anything_is_sent(store):
    url = store.unique()
    store.replace(url, OLD)
    store.proxy.reset()
    with pytest.raises(FileExistsError):
        write_snapshot(url, tensors(layers=4), **store.how)
    assert [request for request in store.proxy.requests if not request.is_read] == []
    assert store.bytes_of(url) == OLD


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_a_name_that_is_taken_meanwhile_is_not_replaced(store, layers):
    url, some = store.unique(), tensors(layers=layers)
    writer = SnapshotWriter(url, plan=SchemaPlan.of(some), **store.how)
    for tensor in some:
        writer.write(tensor)
    store.replace(url, OLD)
    with pytest.raises(FileExistsError):
        writer.close()
    assert store.bytes_of(url) == OLD
    assert left_over(store, url) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("store", "layers"),
    # fake-gcs-server ignores the condition on resumable uploads, and obstore has none for parts.
    [("s3", 1), ("s3", 4), ("azure", 1), ("azure", 4), ("gcs", 1), ("obstore", 1)],
    indirect=["store"],
)
def test_of_two_racing_creators_one_wins(store, layers):
    """Both have seen that there is nothing, and say that they are done; SeaweedFS needs to hear it in turn."""
    url, made = store.unique(), [tensors(layers=layers, seed=seed) for seed in (0, 100)]
    both, turn = threading.Barrier(2, timeout=60), threading.Lock()

    def hold(request):
        if not request.is_completion:
            return None
        both.wait()
        return InTurn(turn)

    store.proxy.fault = hold
    outcomes: dict[int, object] = {}

    def create(number: int) -> None:
        try:
            outcomes[number] = write_snapshot(url, made[number], **store.how)
        except Exception as error:  # noqa: BLE001 - looked at below
            outcomes[number] = error

    threads = [threading.Thread(target=create, args=[number]) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    store.proxy.reset()
    losers = [number for number, outcome in outcomes.items() if outcome is not None]
    assert len(losers) == 1
    assert isinstance(outcomes[losers[0]], FileExistsError)
    with open_snapshot(url, **store.how) as snapshot:
        check_same(snapshot, made[1 - losers[0]])


_CHILD = """
import json, os, sys
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
from hurray_arrow import write_snapshot
from hurray_arrow.snapshot.objects import _KINDS
from tests.stores.samples import PART_BYTES, tensors
for kind in _KINDS.values():
    kind.MIN_PART_BYTES = PART_BYTES
url, options = json.loads(sys.stdin.read())
write_snapshot(url, tensors(layers=4, seed=7), overwrite=True, storage_options=options)
"""


@pytest.mark.parametrize("moment", ["first part", "later part", "before completion", "after completion"])
@pytest.mark.parametrize("store", ["s3", "azure", "gcs"], indirect=True)
def test_a_killed_writer_leaves_the_old_object_or_the_new_one(store, moment):
    url = store.unique()
    store.replace(url, OLD)
    child = subprocess.Popen([sys.executable, "-c", _CHILD], cwd=ROOT, stdin=subprocess.PIPE)
    parts = []

    def strike(request):
        if child.poll() is not None:
            return None
        if request.is_completion:
            if moment == "after completion":
                return Reset(forward=True)
            if moment == "before completion":
                kill(child)
                return Reset()
        elif request.is_part:
            parts.append(request)
            if len(parts) == {"first part": 1, "later part": 3}.get(moment):
                kill(child)
        return None

    store.proxy.fault = strike
    child.stdin.write(json.dumps([url, store.options]).encode())
    child.stdin.close()
    if moment == "after completion":
        while store.bytes_of(url) == OLD and child.poll() is None:
            time.sleep(0.05)
        kill(child)
    code = child.wait(timeout=120)
    store.proxy.reset()
    if moment == "after completion":
        with open_snapshot(url, **store.how) as snapshot:
            check_same(snapshot, tensors(layers=4, seed=7))
    else:
        assert code == -9
        assert store.bytes_of(url) == OLD


@pytest.mark.parametrize("moment", ["begin", "first part", "later part", "completion"])
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_interrupted_writer_leaves_no_upload(store, moment):
    """Ctrl-C while the store is asked: what it began is thrown away, also when its answer comes only then."""
    url = store.unique()
    store.replace(url, OLD)
    child = subprocess.Popen([sys.executable, "-c", _CHILD], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    parts, struck = [], []

    def strike(request):
        parts.extend([request] if request.is_part and "partNumber=" in request.target else [])
        now = {
            "begin": request.method == "POST" and "uploads" in request.target,
            "first part": len(parts) == 1,
            "later part": len(parts) == 3,
            "completion": request.is_completion,
        }[moment]
        if not now or struck:
            return None
        struck.append(request)
        child.send_signal(signal.SIGINT)
        if moment == "begin":
            time.sleep(0.5)
            return None
        # Whoever was interrupted does not wait for the answer.
        child.wait(timeout=60)
        return Reset()

    store.proxy.fault = strike
    _, said = child.communicate(json.dumps([url, store.options]).encode(), timeout=120)
    while moment == "begin" and not struck[0].status:
        time.sleep(0.05)
    store.proxy.reset()
    assert struck
    assert child.returncode != 0
    assert b"KeyboardInterrupt" in said
    assert store.bytes_of(url) == OLD
    assert left_over(store, url) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_part_that_is_refused_for_good_publishes_nothing(store):
    url = store.unique()
    store.replace(url, OLD)
    store.proxy.fault = lambda request: Answer(400, b"no") if request.is_part else None
    with pytest.raises(SnapshotError) as caught:
        write_snapshot(url, tensors(layers=4), overwrite=True, **store.how)
    assert caught.value.url == url
    assert caught.value.__cause__ is not None
    store.proxy.reset()
    assert store.bytes_of(url) == OLD
    assert left_over(store, url) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_part_that_fails_once_is_sent_again(store):
    url, some = store.unique(), tensors(layers=4)
    failures = iter([Answer(503, b"<Error><Code>SlowDown</Code></Error>"), Reset()])
    store.proxy.fault = lambda request: next(failures, None) if request.is_part else None
    write_snapshot(url, some, **store.how)
    assert next(failures, None) is None
    with open_snapshot(url, **store.how) as snapshot:
        check_same(snapshot, some)


@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_store_that_forbids_writing(store):
    url = store.unique()
    forbidden = Answer(403, b"<Error><Code>AccessDenied</Code></Error>", {"x-ms-error-code": "AuthorizationFailure"})
    store.proxy.fault = lambda request: None if request.is_read else forbidden
    with pytest.raises(PermissionError) as caught:
        write_snapshot(url, tensors(layers=1), **store.how)
    assert caught.value.filename == url
    store.proxy.reset()
    assert store.bytes_of(url) is None


@pytest.mark.parametrize("store", ["s3"], indirect=True)
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_size_that_is_not_what_was_written_is_an_error_unless_it_is_anothers(store, tmp_path, is_ours):
    """Of two writers one may come in the moment after the other: then both have done what they said."""
    url, some = store.unique(), tensors(layers=1)
    metadata = {"id": "7d2f9a52-0b9e-4c53-9c43-3f6d5b1f8e11", "created": "2025-01-02T03:04:05Z"}
    ours = hashlib.md5(as_bytes(tmp_path, some, metadata=metadata), usedforsecurity=False).hexdigest()
    etag = f'"{ours}"' if is_ours else '"x"'
    done = []

    def shrink(request):
        done.extend([request] if request.is_completion else [])
        return Answer(200, b"", {"Content-Length": "17", "ETag": etag}) if done and request.method == "HEAD" else None

    store.proxy.fault = shrink
    with pytest.raises(SnapshotError, match="17 bytes in the store") if is_ours else contextlib.nullcontext():
        write_snapshot(url, some, metadata=metadata, overwrite=True, **store.how)


@pytest.mark.usefixtures("small_parts")
def test_a_server_that_dies_in_the_middle():
    with s3_store() as store:
        url, parts = store.unique(), []

        def strike(request):
            parts.extend([request] if request.is_part else [])
            if len(parts) == 2 and store.process.poll() is None:
                kill(store.process)

        store.proxy.fault = strike
        start = time.monotonic()
        with pytest.raises(SnapshotError) as caught:
            write_snapshot(url, tensors(layers=4), **store.how)
        assert caught.value.url == url
        # Three tries of s3fs's two, none of which has anybody to wait for.
        assert time.monotonic() - start < 60


# fake-gcs-server falls over when it is asked to write into a bucket that it does not have.
@pytest.mark.parametrize("store", ["s3", "azure", "obstore"], indirect=True)
def test_a_bucket_that_is_not_there(store):
    url = store.prefix.replace("hurray-test", "hurray-none") + "/x.arrow"
    with pytest.raises(FileNotFoundError) as caught:
        write_snapshot(url, tensors(layers=1), **store.how)
    assert (caught.value.filename, caught.value.strerror) == (url, "there is no such bucket; make it first")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_parts_are_sent_at_the_same_time_from_few_buffers(store, monkeypatch):
    """While one part is held back others arrive, and no more are held than the bound says."""
    from hurray_arrow.snapshot import upload

    monkeypatch.setattr(upload, "_BUFFERS_BYTES", 3 * PART_BYTES)
    url, some = store.unique(), tensors(layers=6)
    waiting, most, lock = [0], [0], threading.Lock()

    def count(request):
        if request.is_part and "partNumber=" in request.target:
            with lock:
                waiting[0] += 1
                most[0] = max(most[0], waiting[0])
            time.sleep(0.3)
            with lock:
                waiting[0] -= 1

    store.proxy.fault = count
    write_snapshot(url, some, **store.how)
    store.proxy.reset()
    assert most[0] == 3
    with open_snapshot(url, **store.how) as snapshot:
        check_same(snapshot, some)


def left_over(store, url: str) -> list[str]:
    """Return what an aborted upload left: unfinished uploads, or temporary objects."""
    if store.kind in ("s3", "obstore"):
        import s3fs

        filesystem = store.raw if store.kind == "s3" else s3fs.S3FileSystem(**_s3_options(store))
        bucket, _, key = url.removeprefix("s3://").partition("/")
        listed = filesystem.call_s3("list_multipart_uploads", Bucket=bucket)
        return [each["Key"] for each in listed.get("Uploads", []) if each["Key"] == key]
    if store.kind == "memory":
        name = url.rpartition("/")[2]
        return [found for found in store.raw.find("/") if found.endswith(".tmp") and name in found]
    return []


def _s3_options(store) -> dict[str, object]:
    from tests.stores.servers import KEY, SECRET

    endpoint = f"http://127.0.0.1:{store.proxy.port}"
    return {"key": KEY, "secret": SECRET, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
