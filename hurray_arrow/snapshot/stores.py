"""Where a snapshot lies: a local path, or a place in a filesystem of fsspec; and what the stores' errors mean.

Every library raises its own exceptions, many of which are no OSError. They become ours here and nowhere else.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from hurray_arrow.errors import HurrayArrowError, MissingDependencyError, SnapshotChangedError, SnapshotError
from hurray_arrow.snapshot.files import PathLike

Answer = TypeVar("Answer")

#: protocol: the package that serves it, and the extra that installs the package.
_SERVED_BY = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), ("adlfs", "azure")),
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
}
#: How often one range or part is tried in all, and how long to wait before the next try, in seconds.
TRIES = 3
BACKOFF_SECONDS = (0.2, 0.8)
_OBSTORE = "obstore.fsspec.FsspecStore"
#: With bounds that an option cannot lower.
_RETRY_THEMSELVES = {"gcsfs.core.GCSFileSystem", "adlfs.spec.AzureBlobFileSystem", _OBSTORE}
#: s3fs and botocore each try five times, one inside the other: 25 requests and 40 seconds for one range. Ours will do.
_S3_RETRIES, _BOTO_RETRIES = 1, 0

#: gcsfs alone would wait for an answer for ever; aiohttp's own bound, which it takes away.
_GCS_SECONDS = 300

_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
#: obstore's errors say what they are by their names, or in their text.
_STATUS_BY_NAME = {
    "AlreadyExistsError": 409,
    "PermissionDeniedError": 403,
    "PreconditionError": 412,
    "UnauthenticatedError": 401,
    "NotSupportedError": 501,
}
#: What is in the names of what nobody else may see.
_PRIVATE = "(?:sig|token|key|secret|pass|cred|auth|delegation)"
_NEVER_TRANSIENT = (
    HurrayArrowError,
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    LookupError,
    NotImplementedError,
    PermissionError,
    TypeError,
    ValueError,
)


class TruncatedBodyError(Exception):
    """The body of an answer broke off; whatever the library does, the range may be asked for again."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a filesystem.

    Parameters
    ----------
    filesystem
        fsspec's filesystem.
    path
        The path in it, without a protocol.
    url
        What errors call it: without passwords and signatures.
    tries
        How often a request is tried: once where the library retries with bounds of its own.
    """

    filesystem: fsspec.AbstractFileSystem
    path: str = field(repr=False)
    url: str
    tries: int = TRIES

    def kinds(self) -> frozenset[str]:
        """Return the names of the filesystem's classes, so that none has to be imported to be recognised."""
        return frozenset(f"{cls.__module__}.{cls.__qualname__}" for cls in type(self.filesystem).__mro__)

    def reopened(self) -> Place:
        """Return the place in a filesystem of this process, after a fork: connections cannot be shared."""
        old = self.filesystem
        made = type(old)(*old.storage_args, **old.storage_options)
        # No option of s3fs's; with its own five, each of our three tries would be five.
        if hasattr(old, "retries"):
            made.retries = old.retries
        return replace(self, filesystem=made)


def locate(
    path: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
) -> str | Place:
    """Say where a path or URL leads: a local path, or a place in a filesystem.

    Parameters
    ----------
    path
        A path, a URL of fsspec's, chained or not, or with ``filesystem`` a path in that.
    storage_options
        What the filesystem of a URL is opened with.
    filesystem
        A filesystem that is open already.

    Raises
    ------
    MissingDependencyError
        The package that serves the protocol is not installed.
    ValueError
        No such protocol, options for something that takes none or others, a filesystem for asynchronous code.
    TypeError
        A filesystem of another library.
    PermissionError, FileNotFoundError, SnapshotError
        The filesystem cannot be opened, such as an archive that is not there.
    """
    text = os.fspath(path)
    if filesystem is not None:
        if not isinstance(filesystem, fsspec.AbstractFileSystem):
            message = f"filesystem is a {type(filesystem).__name__}, expected one of fsspec's"
            raise TypeError(f"{message} (fsspec.implementations.arrow.ArrowFSWrapper makes one of pyarrow's)")
        if storage_options:
            raise ValueError("storage_options belong to a URL: the filesystem has its own")
        if getattr(filesystem, "asynchronous", False):
            raise ValueError("the filesystem is for asynchronous code; open it without asynchronous=True")
        path_in_it = filesystem._strip_protocol(text)  # noqa: SLF001 - fsspec's own door
        # Its own retries are the caller's choice.
        return _place(filesystem, path_in_it, url=shown(filesystem.unstrip_protocol(path_in_it)), tries=1)
    if "://" not in text and "::" not in text:
        if storage_options:
            raise ValueError(f"{text}: a local path takes no storage_options")
        return text
    opened, inner = _open_filesystem(text, dict(storage_options or {}))
    return _place(opened, inner, url=shown(text), tries=TRIES)


def _place(filesystem: fsspec.AbstractFileSystem, path: str, *, url: str, tries: int) -> str | Place:
    # It brings the asynchronous half of fsspec along, of which a local file needs nothing.
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(filesystem, DirFileSystem):
        # It only puts a folder before the path; what lies behind it can do more.
        filesystem, path = filesystem.fs, filesystem._join(path)  # noqa: SLF001 - it has no other door
    if isinstance(filesystem, LocalFileSystem):
        return path
    place = Place(filesystem, path, url, tries)
    if _OBSTORE in place.kinds():
        split = filesystem._split_path  # noqa: SLF001
        # Refuses another protocol; but of an address it takes "?" and "#" for the end of a name.
        split(path)
        # It leaves the protocol on, which the names that it lists do not have.
        place = replace(place, path="/".join(filter(None, split(re.sub(r"^\w+://", "", path)))))
    return replace(place, tries=1) if place.kinds() & _RETRY_THEMSELVES else place


def _open_filesystem(url: str, options: dict[str, Any]) -> tuple[fsspec.AbstractFileSystem, str]:
    try:
        for protocol in re.findall(r"(?:^|::)(s3a?|gs|gcs)(?=://)", url):
            # Another package may serve S3 too, with other options.
            package = fsspec.get_filesystem_class(protocol).__module__.partition(".")[0]
            if more := {"s3fs": _s3fs_options, "gcsfs": _gcsfs_options}.get(package):
                # In a chain each filesystem has its options under its own name.
                own = more(options.get(protocol, {}) if "::" in url else options)
                options = {**options, protocol: own} if "::" in url else own
        if re.match(r"https?://\[[^]/]*::", url):
            # fsspec would take the "::" of such a host for a chain.
            filesystem, path = fsspec.filesystem(url.partition(":")[0], **options), url
        else:
            filesystem, path = url_to_fs(url, **options)
    except ImportError as error:
        raise _missing(url, error) from error
    except (TypeError, ValueError) as error:
        # Of the caller's making: no such protocol, or options that it does not have.
        unknown = str(error).startswith("Protocol not known")
        known = ", expected s3, gs, abfs, https, memory, or another that fsspec knows" if unknown else ""
        raise ValueError(f"{shown(url)}: {error}{known}") from error
    except Exception as error:
        # Some ask their store already here, such as those that look into an archive.
        raise translated(error, url=shown(url), doing="open the filesystem") from error
    inner = filesystem
    while inner is not None:
        if type(inner).__module__ == "s3fs.core":
            inner.retries = _S3_RETRIES
        inner = getattr(inner, "fs", None)
    return filesystem, path


def _s3fs_options(given: Mapping[str, Any]) -> dict[str, Any]:
    # A dictionary of its own each time: botocore writes into it.
    config = {"retries": {"max_attempts": _BOTO_RETRIES}, **(given.get("config_kwargs") or {})}
    return {"use_listings_cache": False, **given, "config_kwargs": config}


def _gcsfs_options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"requests_timeout": _GCS_SECONDS, **given}


def _missing(url: str, error: ImportError) -> ImportError:
    for protocol in re.findall(r"(\w+)(?=://|::|$)", url):
        if protocol in _SERVED_BY:
            package, extra = _SERVED_BY[protocol]
            return MissingDependencyError(package, extra=extra)
    return error


def shown(url: str) -> str:
    """Return a URL as errors may show it: without a password, and without the query that may be a signature."""
    url = re.sub(r"//([^/@:?#]*):[^/?#\s]*@", r"//\1:***@", url)
    # Who is named alone before a web server may be a token; before other "@" it is a container.
    url = re.sub(r"(?i)(https?://)[^/@:?#\s]*@", r"\1***@", url)
    url = re.sub(r"(?i)(https?://[^?#\s'\"]*)[?#][^\s'\"]*", r"\1?…", url)
    return re.sub(rf"(?i)([?&;#][^=&;\s]*{_PRIVATE}[^=&;\s]*=)[^&;\s'\"]*", r"\1***", url)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an exception, or what caused it, carries."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(found, int):
                return found
        for name in ("status", "status_code", "code"):
            found = getattr(cause, name, None)
            if isinstance(found, int) or (isinstance(found, str) and found.isdigit()):
                return int(found)
        if type(cause).__name__ in _STATUS_BY_NAME:
            return _STATUS_BY_NAME[type(cause).__name__]
        if found := re.search(r"Server returned non-2xx status code: (\d{3})", str(cause)):
            return int(found[1])
        # gcsfs raises a bare OSError for 403.
        if type(cause) is OSError and str(cause).startswith("Forbidden:"):
            return 403
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(4):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__


def is_transient(error: BaseException) -> bool:
    """Say whether the same request may go well a moment later."""
    if isinstance(error, TruncatedBodyError):
        return True
    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    return isinstance(error, Exception) and not isinstance(error, _NEVER_TRANSIENT)


def tried(
    work: Callable[..., Answer],
    *arguments: Any,
    url: str,
    doing: str,
    pinned: bool = False,
    creating: bool = False,
    tries: int = TRIES,
) -> Answer:
    """Do what may fail for a moment, again if it does; what remains is raised as :func:`translated` says."""
    for pause in (*BACKOFF_SECONDS[: tries - 1], None):
        try:
            return work(*arguments)
        except Exception as error:
            if pause is None or not is_transient(error):
                raise translated(error, url=url, doing=doing, pinned=pinned, creating=creating) from error
        time.sleep(pause)
    raise AssertionError("unreachable")


def is_taken(error: BaseException) -> bool:
    """Say whether a store refused to create an object because there is one."""
    return isinstance(error, FileExistsError) or status_of(error) in (409, 412)


def translated(error: Exception, *, url: str, doing: str, pinned: bool = False, creating: bool = False) -> Exception:
    """Return the exception of ours, or of Python's, that a store's exception means.

    Parameters
    ----------
    error
        What the store's library raised.
    url
        The snapshot.
    doing
        What was asked for, such as ``bytes [0, 64)``.
    pinned
        The snapshot was open, so that a missing object or a failed condition means that it changed.
    creating
        The object was to be created, so that a failed condition means that there is one.

    Returns
    -------
    Exception
        FileNotFoundError, FileExistsError, IsADirectoryError, PermissionError, or a SnapshotError.
    """
    if type(error) is SnapshotError and not error.url:
        # From where nobody knows what was asked for, and of what.
        return SnapshotError(f"{doing}: {error}", url=url)
    if isinstance(error, HurrayArrowError):
        return error
    status = status_of(error)
    if isinstance(error, FileNotFoundError) or status == 404:
        if pinned:
            return SnapshotChangedError(f"{doing}: the snapshot was replaced or deleted since it was opened", url=url)
        # A store's own word, where it has one: the object of a bucket that nobody made is missing, too.
        no_bucket = any(re.search("(bucket|container) does not exist", str(cause)) for cause in _causes(error))
        text = "there is no such bucket; make it first" if no_bucket else os.strerror(errno.ENOENT)
        return FileNotFoundError(errno.ENOENT, text, url)
    if isinstance(error, IsADirectoryError):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
    if isinstance(error, PermissionError) or status in (401, 403):
        return PermissionError(errno.EACCES, f"{doing}: {_text(error, status)}", url)
    if creating and is_taken(error):
        return FileExistsError(errno.EEXIST, "it exists; overwrite=True replaces it", url)
    if pinned and status == 416:
        return SnapshotChangedError(f"{doing}: the snapshot is shorter than when it was opened", url=url)
    if pinned and is_taken(error):
        return SnapshotChangedError(f"{doing}: the snapshot was overwritten since it was opened", url=url)
    return SnapshotError(f"{doing}: {_text(error, status)}", url=url)


def _text(error: Exception, status: int | None) -> str:
    said = getattr(error, "message", None) or str(error)
    # Some backends answer a whole page.
    said = shown(str(said).strip().partition("\n")[0])
    said = re.sub(r"\?[^\s'\"]*", "?…", said)
    said = re.sub(r"([^\s/:@'\"]+):[^\s/@'\"]+@", r"\1:***@", said)
    said = re.sub(rf"(?i)({_PRIVATE}[\w-]*(?:=|['\"]\s*:\s*['\"]))[^\s'\";&]+", r"\1***", said)[:200]
    http = f"HTTP {status}, " if status else ""
    return f"{http}{type(error).__name__}: {said}" if said else f"{http}{type(error).__name__}"
