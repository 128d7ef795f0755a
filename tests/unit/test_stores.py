"""Where URLs lead, what stores' exceptions mean, and how large parts are; no server needed."""

from __future__ import annotations

import sys

import botocore.exceptions
import fsspec
import pyarrow.fs
import pytest
import s3fs
from fsspec.implementations.dirfs import DirFileSystem

from hurray_arrow import (
    MissingDependencyError,
    SnapshotChangedError,
    SnapshotError,
    UnsupportedError,
    open_snapshot,
    write_snapshot,
)
from hurray_arrow.snapshot import stores
from hurray_arrow.snapshot.objects.gcs import GcsObject
from hurray_arrow.snapshot.objects.store_object import AsyncObject
from hurray_arrow.snapshot.pins import SnapshotPlace
from hurray_arrow.snapshot.stores import TruncatedBodyError, is_transient, locate, shown, status_of, translated
from hurray_arrow.snapshot.upload import _BUFFERS_BYTES, RemoteFile
from tests.sample import make_tensor

TIB = 1 << 40


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://b/k", "s3fs", "s3"),
        ("s3a://b/k", "s3fs", "s3"),
        ("gs://b/k", "gcsfs", "gcs"),
        ("abfs://b/k", "adlfs", "azure"),
        ("az://b/k", "adlfs", "azure"),
        ("https://h/k", "fsspec.implementations.http", "http"),
        ("simplecache::s3://b/k", "s3fs", "s3"),
    ],
)
def test_a_missing_backend_names_the_extra(monkeypatch, url, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    protocol = url.rpartition("::")[2].partition("://")[0]
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    for use in (lambda: open_snapshot(url), lambda: write_snapshot(url, [make_tensor()])):
        with pytest.raises(MissingDependencyError) as caught:
            use()
        assert caught.value.extra == extra


def test_local_paths_stay_local(tmp_path):
    for path in (tmp_path / "x", str(tmp_path / "x"), f"file://{tmp_path}/x", f"local://{tmp_path}/x"):
        assert locate(path) == str(tmp_path / "x")
    assert locate(str(tmp_path / "x"), filesystem=fsspec.filesystem("file")) == str(tmp_path / "x")


def test_what_cannot_be_meant():
    with pytest.raises(ValueError, match="takes no storage_options"):
        locate("x.arrow", storage_options={"key": "k"})
    with pytest.raises(ValueError, match="storage_options belong"):
        locate("x.arrow", storage_options={"key": "k"}, filesystem=fsspec.filesystem("memory"))
    with pytest.raises(ValueError, match="nosuch"):
        locate("nosuch://b/k")
    asynchronous = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True)
    with pytest.raises(ValueError, match="asynchronous"):
        locate("http://h/k", filesystem=asynchronous)


def test_http_is_not_written():
    with pytest.raises(UnsupportedError):
        write_snapshot("https://host.invalid/x.arrow", [make_tensor()])


def test_secrets_are_not_shown():
    assert shown("sftp://user:hunter2@host/x") == "sftp://user:***@host/x"
    assert shown("simplecache::https://host/x?sig=hunter2") == "simplecache::https://host/x?…"
    assert shown("s3://bucket/x") == "s3://bucket/x"
    error = ValueError("HEAD https://host/x?sig=hunter2 failed\nwith a page of text")
    assert "hunter2" not in str(translated(error, url="u", doing="d"))
    assert "page" not in str(translated(error, url="u", doing="d"))


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@host/x",
        "https://user:a@hunter2@host/x",
        "https://hunter2@host/x",
        "http://user:hunter2@[::1]:80/x",
        "HTTPS://host/x?sig=hunter2",
        "https://host/x?sig=hunter2#hunter2",
        "https://host/x#access_token=hunter2",
        "https://host/x;signature=hunter2",
        "zip://a.arrow::https://user:hunter2@host/x.zip?a=hunter2",
        "s3://key:hunter2@bucket/x",
        "abfs://container@account.dfs.core.windows.net/x?sv=1&sig=hunter2",
        "gs://bucket/x?X-Goog-Signature=hunter2",
        "webhdfs://host/x?delegation=hunter2",
        "unheard-of://user:hunter2@host/x?token=hunter2",
    ],
)
def test_no_secret_of_an_address_is_in_anything_shown(url):
    place = stores.Place(fsspec.filesystem("memory"), url, shown(url))
    said = [shown(url), repr(place), repr(SnapshotPlace(url, {"storage_options": {"key": "hunter2"}}))]
    errors = (OSError(f"cannot open '{url}', really"), ValueError(f"Invalid endpoint: {url}"))
    said += [str(translated(error, url=shown(url), doing="size")) for error in errors]
    if url.startswith("unheard-of"):
        with pytest.raises(ValueError, match="unheard-of") as caught:
            locate(url)
        said.append(str(caught.value))
    assert [text for text in said if "hunter2" in text] == []
    assert all("x" in text for text in said)


@pytest.mark.parametrize(
    "text",
    [
        "Invalid endpoint: user:hunter2@nonsense",
        "AccountName=a;AccountKey=hunter2==;BlobEndpoint=http://127.0.0.1",
        "SharedAccessSignature=sv=2020&sig=hunter2;",
        "no such thing: {'secret_access_key': 'hunter2'}",
        "GET /x?X-Amz-Signature=hunter2 failed",
    ],
)
def test_no_secret_of_an_errors_text_is_repeated(text):
    assert "hunter2" not in str(translated(ValueError(text), url="s3://bucket/x", doing="size"))


@pytest.mark.parametrize("url", ["s3://b/a:b@c", "s3://b/a?b=c", "abfs://c@host/x", "s3://b/a@b", "https://h:80/a@b"])
def test_what_is_no_secret_is_shown(url):
    assert shown(url) == url


class HttpError(Exception):
    """As gcsfs and aiohttp make them: no OSError, and a status somewhere."""

    def __init__(self, **attributes):
        super().__init__("said the store")
        vars(self).update(attributes)


def boto(status):
    error = OSError(22, "translated")
    error.__cause__ = HttpError(response={"ResponseMetadata": {"HTTPStatusCode": status}})
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HttpError(status=503), 503),
        (HttpError(status_code=404), 404),
        (HttpError(code="429"), 429),
        (HttpError(response=object()), None),
        (boto(412), 412),
        (OSError("Forbidden: https://…"), 403),
        (type("PreconditionError", (Exception,), {})(), 412),
        (ConnectionResetError(), None),
    ],
)
def test_the_status_is_found(error, status):
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (HttpError(status=503), True),
        (HttpError(status=429), True),
        (HttpError(status=400), False),
        (boto(500), True),
        (boto(416), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (HttpError(), True),
        (TruncatedBodyError(), True),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (ValueError(), False),
        (SnapshotError("x"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_may_go_well_a_moment_later(error, transient):
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("error", "how", "kind"),
    [
        (HttpError(status=404), {}, FileNotFoundError),
        (FileNotFoundError(), {}, FileNotFoundError),
        (HttpError(status=404), {"pinned": True}, SnapshotChangedError),
        (HttpError(status=403), {}, PermissionError),
        (HttpError(status=401), {}, PermissionError),
        (boto(412), {"pinned": True}, SnapshotChangedError),
        (FileExistsError(), {"pinned": True}, SnapshotChangedError),
        (boto(412), {"creating": True}, FileExistsError),
        (HttpError(status_code=409), {"creating": True}, FileExistsError),
        (IsADirectoryError(), {}, IsADirectoryError),
        (HttpError(status=500), {}, SnapshotError),
        (ConnectionResetError(), {}, SnapshotError),
    ],
)
def test_errors_are_mapped(error, how, kind):
    found = translated(error, url="s3://b/k", doing="bytes [3, 7)", **how)
    assert type(found) is kind
    assert "s3://b/k" in str(found)
    if kind is SnapshotError:
        assert "bytes [3, 7)" in str(found)


@pytest.mark.parametrize(
    ("total_bytes", "is_known"),
    [
        (1, True),
        (80 << 30, True),
        (5 * TIB, True),
        (50 * 10**12, True),
        (1, False),
        (80 << 30, False),
        (5 * TIB, False),
    ],
)
@pytest.mark.parametrize("kind", [AsyncObject, GcsObject])
def test_parts_of_any_snapshot_fit_the_stores_limits(kind, total_bytes, is_known):
    """10,000 parts of at most 5 GiB on S3, and small snapshots in small parts; GCS wants multiples of 256 KiB."""
    file = RemoteFile.__new__(RemoteFile)
    file._object = kind
    file._expected_bytes = total_bytes if is_known else 0
    sent = parts = 0
    while sent < total_bytes:
        parts += 1
        size = file._size_of_part(parts)
        assert size % (256 << 10) == 0
        assert 5 << 20 <= size <= 5 << 30
        # Memory: what is under way, or one part and the one that is being filled.
        assert size <= max(_BUFFERS_BYTES, total_bytes // 500)
        sent += size
        if kind is GcsObject and parts > 20_000:
            return
    assert parts <= kind.MAX_PARTS


def test_our_filesystem_does_not_retry_what_we_retry():
    place = locate("s3://b/k", storage_options={"key": "k", "secret": "s", "config_kwargs": {"read_timeout": 3}})
    assert isinstance(place.filesystem, s3fs.S3FileSystem)
    assert place.filesystem.config_kwargs == {"retries": {"max_attempts": 0}, "read_timeout": 3}
    assert (place.filesystem.retries, place.tries) == (1, stores.TRIES)
    own = s3fs.S3FileSystem(key="k", secret="s")  # noqa: S106 - it is none
    given = locate("s3://b/k", filesystem=own)
    assert (given.filesystem.retries, given.tries, given.path, given.url) == (5, 1, "b/k", "s3://b/k")


@pytest.mark.parametrize("host", ["[::1]:80", "[fe80::1:2]", "[0:0:0:0:0:0:0:1]:8080"])
def test_hosts_that_are_numbers_are_no_chain(host):
    place = locate(f"http://{host}/x.arrow?a=b", storage_options={"headers": {"a": "b"}})
    assert place.path == f"http://{host}/x.arrow?a=b"
    assert place.url == f"http://{host}/x.arrow?…"
    assert place.filesystem.kwargs == {"headers": {"a": "b"}}


def test_no_client_waits_for_ever():
    assert locate("gs://b/k", storage_options={"token": "anon"}).filesystem.requests_timeout == 300
    assert locate("gs://b/k", storage_options={"token": "anon", "requests_timeout": 7}).filesystem.requests_timeout == 7
    chained = locate("blockcache::gcs://b/k", storage_options={"gcs": {"token": "anon"}, "blockcache": {}})
    assert chained.filesystem.fs.requests_timeout == 300


def test_nor_does_what_lies_behind_a_cache():
    place = locate("blockcache::s3://b/k", storage_options={"s3": {"key": "behind"}, "blockcache": {}})
    inner = place.filesystem.fs
    assert isinstance(inner, s3fs.S3FileSystem)
    assert (inner.retries, inner.config_kwargs, inner.key) == (1, {"retries": {"max_attempts": 0}}, "behind")


def test_after_a_fork_it_does_not_either():
    place = locate("s3://b/k", storage_options={"key": "k", "secret": "s"})
    # As a forked process does, which has to make an instance of its own.
    s3fs.S3FileSystem.clear_instance_cache()
    reopened = place.reopened()
    assert reopened.filesystem is not place.filesystem
    assert (reopened.filesystem.retries, reopened.tries) == (1, stores.TRIES)


def test_options_are_not_shared_between_filesystems():
    """botocore writes into the dictionaries that it is given."""
    first = locate("s3://b/k", storage_options={"key": "first"})
    first.filesystem.config_kwargs["retries"]["max_attempts"] = 17
    other = locate("s3://b/k", storage_options={"key": "other"})
    assert other.filesystem.config_kwargs["retries"] == {"max_attempts": 0}


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (botocore.exceptions.NoCredentialsError(), SnapshotError),
        (RuntimeError("no such token file"), SnapshotError),
        (ConnectionRefusedError(111, "refused"), SnapshotError),
        (PermissionError(13, "Forbidden"), PermissionError),
        (FileNotFoundError(2, "no archive"), FileNotFoundError),
        (TypeError("no such option"), ValueError),
    ],
)
def test_what_opening_a_filesystem_raises_is_mapped_too(monkeypatch, raised, kind):
    def failing(*_url, **_options):
        raise raised

    monkeypatch.setattr(stores, "url_to_fs", failing)
    with pytest.raises(kind) as caught:
        locate("zip://x.arrow::https://host/all.zip?signature=hunter2")
    assert "zip://x.arrow::https://host/all.zip?…" in str(caught.value)
    assert caught.value.__cause__ is raised


def test_a_folder_of_a_filesystem_is_that_filesystem(tmp_path):
    """So that files stay mapped, and stores are asked under their own conditions."""
    made = make_tensor()
    write_snapshot("x.arrow", [made], filesystem=DirFileSystem(str(tmp_path), fsspec.filesystem("file")))
    with open_snapshot("x.arrow", filesystem=DirFileSystem(str(tmp_path), fsspec.filesystem("file"))) as snapshot:
        assert snapshot._rows.source.is_mapped
        assert snapshot.read().equals(made)
    own = s3fs.S3FileSystem(key="k", secret="s")  # noqa: S106 - it is none
    nested = DirFileSystem("deep", DirFileSystem("bucket/some", own))
    for place in (
        locate("x.arrow", filesystem=nested),
        locate("dir://deep/x.arrow::s3://bucket/some", storage_options={"s3": {"key": "k"}}),
    ):
        assert "s3fs.core.S3FileSystem" in place.kinds()
        assert place.path == "bucket/some/deep/x.arrow"


def test_other_libraries_filesystems_are_refused_by_name():
    with pytest.raises(TypeError, match="ArrowFSWrapper"):
        locate("bucket/x.arrow", filesystem=pyarrow.fs.LocalFileSystem())
