from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hurray_arrow.cli.catalog import KEY_VARIABLE
from tests.unit.catalog.samples import KEY, PROMPT, write

SECRETS = ["tenant-7c1", "adapter-9d2"]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "cache" / "a.arrow", tokens=23, metadata={"model": {"name": "toy", "revision": "2"}})
    write(tmp_path / "cache" / "b.arrow", tokens=42, metadata={"tenant": SECRETS[0], "adapter": SECRETS[1]})
    return tmp_path / "cache"


@pytest.fixture
def catalogue(tmp_path):
    return tmp_path / "c.parquet"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    return path


@pytest.fixture
def built(run, folder, catalogue, key_file):
    assert run("catalog", folder, "-o", catalogue, "--key-file", key_file).exit_code == 0
    return catalogue


def question(tmp_path, asked):
    path = tmp_path / "question.json"
    path.write_text(asked if isinstance(asked, str) else json.dumps(asked))
    return path


def test_build_and_find(run, folder, catalogue, key_file, tmp_path):
    result = run("catalog", folder, "-o", catalogue, "--key-file", key_file)
    assert result.exit_code == 0
    assert f"{catalogue}: 2 files; 2 read, 0 as before, 0 dropped, 0 unreadable" in result.stdout.splitlines()
    asked = question(tmp_path, PROMPT.tolist())
    result = run("find-prompt", catalogue, asked, "--key-file", key_file)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"23 tokens, sequence 0: {folder / 'a.arrow'}"]
    whose = {"token_ids": PROMPT.tolist(), "tenant": SECRETS[0], "adapter": SECRETS[1], "media": []}
    result = run("find-prompt", catalogue, question(tmp_path, whose), "--key-file", key_file)
    assert result.stdout.splitlines() == [f"42 tokens, sequence 0: {folder / 'b.arrow'}"]
    media = {"token_ids": PROMPT.tolist(), "media": [{"first_token": 17, "num_tokens": 2, "digest": "x"}]}
    result = run("find-prompt", catalogue, question(tmp_path, media), "--key-file", key_file)
    assert result.stdout.splitlines() == [f"16 tokens, sequence 0: {folder / 'a.arrow'}"]
    result = run("find-prompt", catalogue, question(tmp_path, [1, 2, 3]), "--key-file", key_file)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)


def test_json_has_its_keys(run, folder, catalogue, key_file, tmp_path):
    (folder / "text.arrow").write_text("not Arrow")
    result = run("catalog", folder, "-o", catalogue, "--key-file", key_file, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {name: found[name] for name in ("num_files", "num_read", "num_kept", "num_dropped")} == {
        "num_files": 3, "num_read": 3, "num_kept": 0, "num_dropped": 0,
    }  # fmt: skip
    failure = {"url": str(folder / "text.arrow"), "error": "SnapshotIncompleteError", "error_code": None}
    assert found["failures"] == [failure]
    assert set(found) == {
        "url", "destination", "num_files", "num_read", "num_kept", "num_dropped", "failures", "requests",
        "fetched_bytes",
    }  # fmt: skip
    asked = question(tmp_path, PROMPT.tolist())
    found = json.loads(run("find-prompt", catalogue, asked, "--key-file", key_file, "--json").stdout)
    assert set(found) == {"catalogue", "num_tokens", "matches"}
    [match] = found["matches"]
    assert set(match) == {"url", "sequence", "num_tokens", "snapshot_id"}
    assert (found["num_tokens"], match["num_tokens"]) == (97, 23)


def test_unreadable_files_are_findings(run, folder, catalogue):
    for number in range(22):
        (folder / f"{number:02}.arrow").write_text("not Arrow")
    result = run("catalog", folder, "-o", catalogue)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == f"SnapshotIncompleteError: {folder / '00.arrow'}"
    assert sum(line.startswith("SnapshotIncompleteError") for line in lines) == 20
    assert run("catalog", folder, "-o", catalogue, "--on-error", "raise", "--rebuild").exit_code == 3
    assert run("catalog", folder, "-o", catalogue).exit_code == 1
    assert run("catalog", folder, "-o", catalogue, "--pattern", "?.arrow").exit_code == 0


def test_what_is_expected(run, folder, catalogue, key_file, tmp_path):
    run("catalog", folder, "-o", catalogue, "--key-file", key_file, "--rows", "tensors", "--step-tokens", 7)
    asked = question(tmp_path, PROMPT[:20].tolist())
    for expect, tokens in [("model.revision=2", [14]), ("model.revision=3", []), ("model.name=toy", [14])]:
        result = run("find-prompt", catalogue, asked, "--key-file", key_file, "--expect", expect, "--json")
        assert [match["num_tokens"] for match in json.loads(result.stdout)["matches"]] == tokens
    assert run("find-prompt", catalogue, asked, "--key-file", key_file, "--expect", "tenant=x").exit_code == 2


@pytest.mark.parametrize(
    "asked",
    [
        "", "{", "7", '["1"]', "[1.5]", "[true]", "[-1]", "[4294967296]", "{}", '{"token_ids": 3}',
        '{"token_ids": [1], "tenants": "x"}', '{"token_ids": [1], "tenant": 7}',
        '{"token_ids": [1], "media": [{"first_token": 1}]}',
        '{"token_ids": [1], "media": [{"first_token": -1, "num_tokens": 2, "digest": "x"}]}',
        '{"token_ids": [1], "media": [7]}', "[" * 100_000,
    ],
    ids=range(16),
)  # fmt: skip
def test_questions_that_are_none(run, built, tmp_path, asked):
    assert run("find-prompt", built, question(tmp_path, asked), "--key-file", tmp_path / "key").exit_code == 2


def test_keys_and_mismatches_are_usage(run, folder, built, tmp_path, monkeypatch):
    asked, key_file = question(tmp_path, PROMPT.tolist()), tmp_path / "key"
    assert run("find-prompt", built, asked).exit_code == 2
    assert run("catalog", folder, "-o", built).exit_code == 2
    assert run("catalog", folder, "-o", built, "--key-file", key_file, "--rows", "tensors").exit_code == 2
    (tmp_path / "short").write_bytes(b"short")
    assert run("catalog", folder, "-o", built, "--key-file", tmp_path / "short").exit_code == 2
    monkeypatch.setenv(KEY_VARIABLE, "another key, long enough")
    assert run("find-prompt", built, asked).exit_code == 2
    monkeypatch.setenv(KEY_VARIABLE, os.fsdecode(KEY))
    assert run("find-prompt", built, asked).exit_code == 0
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv(f"{KEY_VARIABLE}_FILE", str(key_file))
    assert run("find-prompt", built, asked).exit_code == 0


def test_what_is_not_there_or_is_none_is_unreadable(run, folder, catalogue, key_file, tmp_path):
    asked = question(tmp_path, [1])
    assert run("catalog", folder / "nowhere", "-o", catalogue).exit_code == 3
    assert run("find-prompt", catalogue, asked, "--key-file", key_file).exit_code == 3
    catalogue.write_text("some notes")
    assert run("catalog", folder, "-o", catalogue).exit_code == 3
    assert run("find-prompt", catalogue, asked, "--key-file", key_file).exit_code == 3
    assert catalogue.read_text() == "some notes"


def test_nobody_is_told_whose_it_is(run, folder, catalogue, key_file, tmp_path):
    asked = question(tmp_path, {"token_ids": PROMPT.tolist(), "tenant": SECRETS[0], "adapter": SECRETS[1]})
    for arguments in (
        ["catalog", folder, "-o", catalogue, "--key-file", key_file],
        ["find-prompt", catalogue, asked, "--key-file", key_file],
        ["find-prompt", catalogue, asked, "--key-file", key_file, "--json"],
    ):
        output = run(*arguments).output
        assert not any(secret in output for secret in SECRETS)
        assert str(PROMPT[0]) not in output
        assert os.fsdecode(KEY) not in output


def test_names_cannot_speak_to_the_terminal(run, folder, catalogue):
    (folder / "[bold]\x1b[2J.arrow").write_text("not Arrow")
    output = run("catalog", folder, "-o", catalogue).output
    assert "\x1b" not in output
    assert r"[bold]\x1b[2J.arrow" in output


def test_standard_input_and_the_default_name(folder, key_file):
    """As people type it: no name for the catalogue, the prompt through a pipe."""

    def hurray_arrow(*arguments, **options):
        command = [sys.executable, "-c", "from hurray_arrow.cli import main; main()", *arguments]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, **options).stdout

    environment = {**os.environ, f"{KEY_VARIABLE}_FILE": str(key_file)}
    hurray_arrow("catalog", ".", env=environment)
    assert Path(folder / "catalog.parquet").exists()
    found = hurray_arrow("find-prompt", "catalog.parquet", "-", input=json.dumps(PROMPT.tolist()), env=environment)
    assert found.splitlines() == [f"23 tokens, sequence 0: {folder / 'a.arrow'}"]
