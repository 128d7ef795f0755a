"""copy to and from .hrry containers: the same tensors and facts both ways, other layouts by name."""

import json

import hurray
import pytest

import hurray_arrow as ha


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
