"""copy to and from .hrry containers: the same tensors and facts both ways, other layouts by name."""

import json
import tempfile

import fsspec
import hurray
import pytest

import hurray_arrow as ha
from hurray_arrow.cli import containers


def tensors_of(path):
    with ha.open_snapshot(path) as snapshot:
        return list(snapshot.iter_tensors()), snapshot.metadata


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_there_and_back(run, path, tmp_path, profile):
    container, back = tmp_path / "c.hrry", tmp_path / "back.arrow"
    assert run("copy", path, container).exit_code == 0
    assert run("copy", container, back, "--profile", profile).exit_code == 0
    before, metadata = tensors_of(path)
    after, kept = tensors_of(back)
    assert [one.equals(other) for one, other in zip(before, after, strict=True)] == [True] * 4
    assert (kept["model"], kept["tenant"], kept["user"], kept["profile"]) == (
        metadata["model"],
        metadata["tenant"],
        metadata["user"],
        profile,
    )


def test_what_is_there_is_not_replaced_unasked(run, path, tmp_path):
    container = tmp_path / "c.hrry"
    container.write_bytes(b"mine")
    assert run("copy", path, container).exit_code == 3
    assert container.read_bytes() == b"mine"
    assert run("copy", path, container, "--overwrite").exit_code == 0
    assert len(hurray.load(str(container))) == 4


def test_other_layouts_are_refused_by_name_or_skipped(run, path, tmp_path):
    container, mixed = tmp_path / "c.hrry", tmp_path / "mixed.hrry"
    assert run("copy", path, container).exit_code == 0
    loaded = hurray.load(str(container))
    hurray.save(str(mixed), {**loaded, "weights": hurray.zeros([3, 5], dtype=hurray.float32)})
    refused = run("copy", mixed, tmp_path / "refused.arrow")
    assert refused.exit_code == 3
    assert "weights" in refused.output
    assert not (tmp_path / "refused.arrow").exists()
    skipped = run("copy", mixed, tmp_path / "some.arrow", "--skip-other-layouts", "--json")
    assert skipped.exit_code == 0
    assert list(json.loads(skipped.stdout)["skipped"]) == ["weights"]
    assert len(tensors_of(tmp_path / "some.arrow")[0]) == 4


def test_a_container_is_converted_as_it_is(run, path, tmp_path):
    assert run("copy", path, tmp_path / "c.hrry", "--repage", "6").exit_code == 2
    assert run("copy", tmp_path / "a.hrry", tmp_path / "b.hrry").exit_code == 2
    assert not (tmp_path / "c.hrry").exists()


@pytest.fixture
def store():
    """A store of its own, and where temporary files lie."""
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/containers"):
        files.rm("/containers", recursive=True)


def test_containers_in_a_store_go_through_a_temporary_file(run, path, tmp_path, store, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    url, back = "memory://containers/c.hrry", tmp_path / "back.arrow"
    written = run("copy", path, url, "--json")
    assert json.loads(written.stdout)["destination"] == url
    assert len(run("copy", url, back).output.splitlines()) == 1
    before, after = tensors_of(path)[0], tensors_of(back)[0]
    assert [one.equals(other) for one, other in zip(before, after, strict=True)] == [True] * 4
    stored = store.cat("/containers/c.hrry")
    kept = run("copy", path, url)
    assert (kept.exit_code, store.cat("/containers/c.hrry")) == (3, stored)
    assert "--overwrite" in kept.stderr
    assert run("copy", path, url, "--overwrite").exit_code == 0
    assert list(scratch.iterdir()) == []


def test_what_goes_wrong_names_the_url_and_leaves_nothing(run, path, tmp_path, store, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    missing = run("copy", "memory://containers/none.hrry", tmp_path / "a.arrow")
    assert (missing.exit_code, "memory://containers/none.hrry" in missing.stderr) == (3, True)
    store.pipe("/containers/odd.hrry", b"no container")
    odd = run("copy", "memory://containers/odd.hrry", tmp_path / "a.arrow")
    assert (odd.exit_code, "memory://containers/odd.hrry" in odd.stderr) == (3, True)
    monkeypatch.setattr(containers, "write_container", lambda *_, **__: 1 / 0)
    failed = run("copy", path, "memory://containers/new.hrry")
    assert isinstance(failed.exception, ZeroDivisionError)
    assert store.ls("/containers", detail=False) == ["/containers/odd.hrry"]
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "a.arrow").exists()


def test_a_file_url_is_a_path_and_a_query_is_no_name(run, path, tmp_path):
    assert run("copy", path, f"file://{tmp_path}/c.hrry").exit_code == 0
    assert len(hurray.load(str(tmp_path / "c.hrry"))) == 4
    assert containers.is_container("https://host/c.hrry?signature=x.arrow")
    assert not containers.is_container("https://host/c.arrow?name=c.hrry")
