"""Hostile and damaged snapshots cost a catalogue nothing but their own rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyarrow import parquet

from hurray_arrow.catalog import build_catalog
from tests.faults.children import run_cases
from tests.faults.forgery import Forgery
from tests.faults.hostile import CASES
from tests.faults.small import write_small
from tests.unit.catalog.samples import KEY


def catalogue_all(argument, share, started):
    """Build a catalogue over forged files and whole ones between them, and say what it lists."""
    path: Path = argument
    folder = path.parent / share[0]
    folder.mkdir()
    for number, name in enumerate(share):
        started(number)
        forgery = Forgery(path.read_bytes())
        CASES[name](forgery)
        (folder / f"{number:03}.arrow").write_bytes(forgery.content())
        (folder / f"{number:03}-whole.arrow").hardlink_to(path)
    for rows in ("snapshots", "tensors"):
        build_catalog(folder, destination=folder / f"{rows}.parquet", key=KEY, rows=rows)
    table = parquet.read_table(folder / "snapshots.parquet").to_pylist()
    errors = {Path(row["url"]).stem: row["error"] for row in table}
    return {name: (errors[f"{number:03}"], errors[f"{number:03}-whole"]) for number, name in enumerate(share)}


def test_a_hostile_file_costs_its_row(tmp_path):
    write_small(tmp_path / "s.arrow")
    found = {}
    for each in run_cases(catalogue_all, tmp_path / "s.arrow", list(CASES), timeout_seconds=240):
        found |= each
    assert len(found) == len(CASES) > 300
    assert {whole for _, whole in found.values()} == {None}
    kinds = Counter(error for error, _ in found.values())
    # What only pages or other tensors' rows hold is nothing that a catalogue looks at.
    assert kinds.pop(None) > 10
    assert kinds["SnapshotCorruptError"] > 100
    others = {"SnapshotIncompleteError", "UnsupportedError", "ExtensionMetadataError", "InvariantError"}
    assert set(kinds) <= {"SnapshotCorruptError", *others}
