"""docs/howto/archive.md, pasted from top to bottom, against a real S3 server that the environment names."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hurray_arrow.cli.app import app
from tests.docs.pages import DOCS, run_page
from tests.stores.servers import KEY, SECRET


def test_archive_page_runs(s3_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_server.proxy.port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3_server.raw.mkdir("caches")
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    run_page(DOCS / "howto" / "archive.md")
    assert sorted(s3_server.raw.ls("caches", refresh=True)) == ["caches/prefix-1.arrow", "caches/prefix-2.arrow"]
    with pytest.raises(FileExistsError):
        run_page(DOCS / "howto" / "archive.md")
