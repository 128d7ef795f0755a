"""The examples in docstrings run, each from what docs/reference/index.md begins with, and the main doors have one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import hurray_arrow
from hurray_arrow import catalog, identity, views
from hurray_arrow.engines import flashinfer, lmcache, sglang, vllm
from hurray_arrow.views import duckdb
from tests.docs.pages import DOCS, blocks_of

PACKAGE = Path(hurray_arrow.__file__).parent
MODULES = [
    ".".join(("hurray_arrow", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]
#: What people come in by. transformers' example needs torch, and is docs/howto/transformers.md.
DOORS = [
    hurray_arrow.BlockPagedTensor.from_arrays,
    hurray_arrow.BlockPagedTensor.from_buffers,
    hurray_arrow.BlockPagedTensor.gather,
    hurray_arrow.Snapshot.iter_tensors,
    hurray_arrow.Snapshot.match_prefix,
    hurray_arrow.Snapshot.pages,
    hurray_arrow.Snapshot.read,
    hurray_arrow.Snapshot.read_sequences,
    hurray_arrow.Snapshot.sequences,
    hurray_arrow.Snapshot.tensors,
    hurray_arrow.Snapshot.tokens,
    hurray_arrow.Snapshot.verify,
    hurray_arrow.SnapshotWriter,
    hurray_arrow.copy_snapshot,
    hurray_arrow.element_type,
    hurray_arrow.open_snapshot,
    hurray_arrow.share.publish,
    hurray_arrow.to_record_batch,
    hurray_arrow.write_snapshot,
    hurray_arrow.write_stream,
    *(getattr(hurray_arrow.ops, name) for name in ("compact", "concat", "fuse", "repage", "sanitize", "select")),
    *(engine.export_cache for engine in (flashinfer, lmcache, sglang, vllm)),
    catalog.build_catalog,
    duckdb.connect,
    identity.check_expected,
    views.open_view,
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [beginning] = [block for block in blocks_of(DOCS / "reference" / "index.md") if block.language == "python"]
    names: dict[str, object] = {}
    exec(beginning.text, names)  # noqa: S102  the page is ours
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), globs=names)
    said: list[str] = []
    runner = doctest.DocTestRunner()
    for examples in found:
        runner.run(examples, out=said.append)
    assert runner.tries
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.__module__}.{door.__qualname__}")
def test_a_main_door_has_an_example(door):
    documentation = inspect.getdoc(door)
    assert documentation
    assert "\nExamples\n--------\n>>> " in documentation
