"""Every file that lies there is listed, or an error says which folder could not be looked into."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import hurray_arrow as ha
from hurray_arrow.snapshot.listing import find_files, glob_files
from hurray_arrow.snapshot.sets import find_snapshots
from hurray_arrow.snapshot.stores import locate

NAMES = ["x.arrow", "a/x.arrow", "a/y.arrow", "a/.z.arrow", "b/x.arrow", "b/c/x.arrow", "b/c/y.parquet", "[1].arrow"]
GLOBS = {
    "*.arrow": ["[1].arrow", "x.arrow"],
    "*/x.arrow": ["a/x.arrow", "b/x.arrow"],
    "[ab]/?.arrow": ["a/x.arrow", "a/y.arrow", "b/x.arrow"],
    "*/c/x*": ["b/c/x.arrow"],
    "**/x.arrow": ["a/x.arrow", "b/c/x.arrow", "b/x.arrow", "x.arrow"],
    "b/**": ["b/c/x.arrow", "b/c/y.parquet", "b/x.arrow"],
    "a/.*": ["a/.z.arrow"],
    "b/*": ["b/x.arrow"],
    "[[]1].arrow": ["[1].arrow"],
    "nowhere/*": [],
    "*/nothing": [],
    "nowhere/**": [],
}


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "in"


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    for name in NAMES:
        filesystem.pipe(f"/listed/{name}", name.encode())
    yield filesystem
    filesystem.rm("/listed", recursive=True)


@pytest.mark.parametrize("pattern", GLOBS)
@pytest.mark.parametrize("where", ["disk", "here", "store", "chain"])
def test_a_glob_matches_files_as_in_a_shell(folder, memory, monkeypatch, where, pattern):
    if where == "here":
        monkeypatch.chdir(folder)
        assert sorted(glob_files(pattern)) == GLOBS[pattern]
        return
    chained = locate(pattern, filesystem=DirFileSystem("/listed", memory))
    root, place = {
        "disk": (f"{folder}/", f"{folder}/{pattern}"),
        "store": ("/listed/", locate(f"memory://listed/{pattern}")),
        "chain": ("/listed/", chained),
    }[where]
    found = glob_files(place)
    assert sorted(path.removeprefix(root) for path in found) == GLOBS[pattern]
    assert all(info["size"] == len(path.removeprefix(root)) for path, info in found.items())


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_folder_is_all_that_lies_below_it(folder, where):
    root, place = {"disk": (folder, str(folder)), "store": ("/listed", locate("memory://listed"))}[where]
    assert sorted(os.path.relpath(path, root) for path in find_files(place)) == sorted(NAMES)
    one = f"{folder}/b/x.arrow" if where == "disk" else locate("memory://listed/b/x.arrow")
    assert [os.path.relpath(path, root) for path in find_files(one)] == ["b/x.arrow"]
    nowhere = f"{folder}/nowhere" if where == "disk" else locate("memory://listed/nowhere")
    with pytest.raises(FileNotFoundError):
        find_files(nowhere)


def test_links_are_followed_where_a_glob_names_them_and_never_in_circles(folder):
    (folder / "link").symlink_to(folder / "b")
    (folder / "b" / "circle").symlink_to(folder)
    (folder / "gone.arrow").symlink_to("nowhere")
    assert sorted(glob_files(f"{folder}/l*/*.arrow")) == [f"{folder}/link/x.arrow"]
    assert {Path(path).relative_to(folder).as_posix() for path in find_files(str(folder))} == {*NAMES, "gone.arrow"}


def forbid(monkeypatch, folder):
    """Have the system refuse to list a folder, whoever runs the tests."""
    real = os.scandir

    def refusing(path):
        if str(path).rstrip("/") == str(folder):
            raise PermissionError(13, "no", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)


@pytest.mark.parametrize(
    ("forbidden", "pattern"), [("b", "*/*.arrow"), ("b", "b*/*"), ("b/c", "b/c/*"), ("b", "**/y.*")]
)
def test_a_folder_that_may_not_be_listed_is_an_error(folder, monkeypatch, forbidden, pattern):
    forbid(monkeypatch, folder / forbidden)
    with pytest.raises(PermissionError, match="/b"):
        glob_files(f"{folder}/{pattern}")
    with pytest.raises(PermissionError, match="/b"):
        find_snapshots(f"{folder}/{pattern}")
    with pytest.raises(PermissionError, match="/b"):
        find_files(str(folder))


def test_a_folder_that_the_glob_does_not_lead_to_may_be_forbidden(folder, monkeypatch):
    forbid(monkeypatch, folder / "b")
    assert sorted(glob_files(f"{folder}/a*/*.arrow")) == [f"{folder}/a/x.arrow", f"{folder}/a/y.arrow"]


def test_a_file_that_goes_while_it_is_looked_at_is_not_there(folder, monkeypatch):
    real = os.stat

    def going(path, **how):
        if str(path).endswith("a/x.arrow"):
            raise FileNotFoundError(2, "gone", str(path))
        return real(path, **how)

    monkeypatch.setattr(os, "stat", going)
    monkeypatch.setattr(os, "lstat", going)
    assert sorted(glob_files(f"{folder}/a/*")) == [f"{folder}/a/y.arrow"]


def test_what_no_glob_can_mean():
    with pytest.raises(ValueError, match=r"\*\*"):
        glob_files("caches/**.arrow")


def test_a_set_does_not_take_a_folder_for_a_member(folder):
    with pytest.raises(ha.SnapshotIncompleteError, match=r"x\.arrow"):
        ha.open_snapshot_set(f"{folder}/b/*")
