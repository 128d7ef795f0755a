from __future__ import annotations

import pytest

import hurray_arrow as ha
from hurray_arrow.cli import demo


def test_demo_writes_the_shipped_cache_and_shows_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = run("demo")
        assert result.exit_code == 0
    path = tmp_path / "hurray-arrow-demo.arrow"
    assert str(path) in result.stdout
    assert "16 pages shared by 3 sequences" in result.stdout
    assert "31 pages of 16 tokens, 3 unreferenced" in result.stdout
    with ha.open_snapshot(path) as snapshot:
        assert [(entry.layer_index, entry.kv_role) for entry in snapshot.entries] == [
            (layer, role) for layer in (0, 7, 14, 22, 29) for role in ("key", "value")
        ]
        tensor = snapshot.read(layer_index=22, kv_role="value")
        assert tensor.equals(demo.shipped_tensors()[7])
        assert tensor.gather(1).shape == (307, 3, 64)


def test_demo_leaves_an_existing_file_alone(run, tmp_path):
    target = tmp_path / "mine.arrow"
    target.write_text("mine")
    assert run("demo", "--output", target).exit_code == 2
    assert target.read_text() == "mine"


def test_demo_says_so_when_something_differs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ha.BlockPagedTensor, "equals", lambda *_: False)
    result = run("demo")
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout


def test_demo_needs_its_data(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DATA", "no-such.npz")
    result = run("demo")
    assert result.exit_code == 3
    assert "no-such.npz" in result.stderr


@pytest.mark.parametrize("role", ["key", "value"])
def test_shipped_tensors_know_their_sequences(role):
    tensors = [tensor for tensor in demo.shipped_tensors() if tensor.kv_role == role]
    assert [tensor.token_count(seq) for tensor in tensors[:1] for seq in range(4)] == [331, 307, 256, 37]
    assert len(tensors[0].sequences.token_ids[3]) == 37
