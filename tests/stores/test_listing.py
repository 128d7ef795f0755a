"""What is listed in real stores: whatever a folder holds, or an error; what fails for a moment is asked again."""

from __future__ import annotations

import secrets

import pytest

from hurray_arrow.snapshot.listing import find_files, glob_files
from hurray_arrow.snapshot.stores import locate
from tests.stores.conftest import REMOTE, WRITABLE
from tests.stores.proxy import Answer, always

NAMES = ["x.arrow", "a/x.arrow", "a/y.arrow", "b/c/x.arrow"]
SLOW_DOWN = Answer(503, b"<Error><Code>SlowDown</Code></Error>")


@pytest.fixture
def prefix(store):
    name = secrets.token_hex(4)
    for each in NAMES:
        store.replace(store.url(f"{name}/{each}"), each.encode())
    store.proxy.reset()
    return name


def place_of(store, name):
    return locate(store.url(name), **store.how)


def found(store, prefix, listing, name=""):
    root = place_of(store, f"{prefix}/").path.rstrip("/") + "/"
    infos = listing(place_of(store, f"{prefix}/{name}"))
    return {path.removeprefix(root): info["size"] for path, info in infos.items()}


@pytest.mark.parametrize("store", WRITABLE, indirect=True)
def test_every_store_lists_the_same(store, prefix):
    for pattern, expected in {
        "*.arrow": ["x.arrow"],
        "*/*.arrow": ["a/x.arrow", "a/y.arrow"],
        "a/x*": ["a/x.arrow"],
        "*/c/x.arrow": ["b/c/x.arrow"],
        "**/x.arrow": ["a/x.arrow", "b/c/x.arrow", "x.arrow"],
        "nowhere/*": [],
        "nowhere/**": [],
    }.items():
        assert found(store, prefix, glob_files, pattern) == {name: len(name) for name in expected}, pattern
    assert found(store, prefix, find_files) == {name: len(name) for name in NAMES}
    assert found(store, prefix, find_files, "a/y.arrow") == {"a/y.arrow": 9}
    with pytest.raises(FileNotFoundError):
        find_files(place_of(store, f"{prefix}/nowhere"))


@pytest.mark.parametrize("pattern", ["*/*.arrow", "a*/x.arrow", "a/*"])
@pytest.mark.parametrize("store", REMOTE, indirect=True)
def test_a_folder_that_may_not_be_listed_is_not_left_out(store, prefix, pattern):
    """Who may not list one prefix among many must not be told that the others are all."""
    forbidden = Answer(403, b"<Error><Code>AccessDenied</Code></Error>", {"x-ms-error-code": "AuthorizationFailure"})

    def forbid(request):
        target = request.target.replace("%2F", "/")
        return forbidden if f"{prefix}/a" in target else None

    assert found(store, prefix, glob_files, pattern)
    store.proxy.fault = forbid
    with pytest.raises(PermissionError):
        glob_files(place_of(store, f"{prefix}/{pattern}"))


@pytest.mark.parametrize("store", ["s3", "obstore"], indirect=True)
def test_what_fails_for_a_moment_is_listed_all_the_same(store, prefix):
    for listing, name in ((glob_files, "*/*.arrow"), (find_files, "a")):
        left = iter([SLOW_DOWN, SLOW_DOWN])
        store.proxy.fault = lambda request, left=left: next(left, None) if request.is_read else None
        assert found(store, prefix, listing, name) == {"a/x.arrow": 9, "a/y.arrow": 9}
        assert next(left, None) is None
    store.proxy.reset()
    store.proxy.fault = always(SLOW_DOWN)
    with pytest.raises(OSError, match="503"):
        glob_files(place_of(store, f"{prefix}/*"))
    assert 3 <= len(store.proxy.requests) <= 12


def test_links_on_a_page_are_what_lies_behind_http(http_files):
    server, _ = http_files
    links = b'<a href="../">up</a> <a href="a/">a/</a> <a href="x.arrow">x</a>'
    server.files = {"/d/": links, "/d/a": b'<a href="y.arrow">y</a>', "/d/a/y.arrow": b"y", "/d/x.arrow": b"x"}
    root = f"http://127.0.0.1:{server.port}/d"
    assert list(glob_files(locate(f"{root}/*/*.arrow"))) == [f"{root}/a/y.arrow"]
    assert sorted(glob_files(locate(f"{root}/**/*.arrow"))) == [f"{root}/a/y.arrow", f"{root}/x.arrow"]
    assert list(find_files(locate(f"{root}/x.arrow"))) == [f"{root}/x.arrow"]
    server.statuses["/d/a"] = 403
    with pytest.raises(PermissionError):
        glob_files(locate(f"{root}/*/*.arrow"))
