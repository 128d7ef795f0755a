"""The comparison with peers: its driver does what it says, and the page shows what was measured."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import __main__ as program
from benchmarks.peers import abilities, measuring, results, tables
from benchmarks.peers.cache import Cache, tile
from benchmarks.peers.claims import CLAIMS, PROPERTIES
from benchmarks.peers.contenders import BY_NAME
from benchmarks.peers.environments import REQUIREMENTS, files_of
from benchmarks.peers.places import LocalPlaces
from benchmarks.peers.worker import Worker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "benchmarks"
#: These need nothing that the tests' environment lacks.
HERE = ("share", "npy")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers") / "cache"
    assert tile(program.SAMPLE, folder, 1) is False
    return folder


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Return what a run of two peers with a small input gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "QUICK_BYTES", 1)
        patch.setattr(program, "SMALL_BYTES", 1)
        patch.setattr(measuring, "COUNTED", ("write", "whole"))
        patch.setattr(abilities, "FLIPS", 8)
        written = tmp_path_factory.mktemp("written")
        shutil.copy(DOCS / "peers.md", written)
        program.main([*HERE, "--quick", "--here", "--only", "local", "--rounds", "1", "--write", str(written)])
    return results.load(written / "peers.json"), written


def texts_of(path: Path) -> set[str | None]:
    return {element.text for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")}  # noqa: S314  our own


def test_every_work_is_measured_and_counted(document):
    found, _ = document
    figures = results.figures_of(found)
    assert set(figures) == {(name, "local", work) for name in HERE for work in measuring.WORKS}
    assert all(len(one.seconds) == 1 and one.seconds[0] >= 0 for one in figures.values())
    pool_bytes = found["input"]["pool_bytes"]
    assert all(figures[name, "local", "write"].counts["size_bytes"] >= pool_bytes for name in HERE)
    assert figures["npy", "local", "whole"].peak_bytes >= pool_bytes // 2


def test_only_ours_notices_flips_and_refuses_another_model(document):
    tried = document[0]["tried"]
    assert tried["share"]["flips"] == {"noticed": 8}
    assert tried["share"]["refuses_model"]
    assert tried["share"]["has_sql"]
    assert tried["npy"]["flips"].get("noticed", 0) < 8
    assert not tried["npy"]["refuses_model"]
    assert not tried["npy"]["has_sql"]


def test_tables_and_picture_show_the_run(document):
    found, written = document
    page = (written / "peers.md").read_text()
    assert all(f"\n{make(found)}\n" in page for make in tables.TABLES.values())
    assert texts_of(written / "peers.svg") >= {*HERE, tables.PLACES["local"]}


def test_other_bytes_than_were_written_end_the_run(cache, tmp_path):
    place = LocalPlaces(tmp_path).clear("npy")
    contender = BY_NAME["npy"].in_this_environment()
    with Worker(contender, abilities.python_of("")) as worker:
        whole = Cache(cache)
        measuring.ask(worker, "write", place, whole, check=True)
        middle = Path(place.folder) / f"key_{whole.num_layers // 2}.npy"
        pool = np.load(middle)
        pool[1, 2, 1, 5] ^= 1
        np.save(middle, pool)
        with pytest.raises(measuring.WrongAnswerError):
            measuring.ask(worker, "tensor", place, whole, check=True)


def test_the_input_has_pages_of_its_own_for_every_copy(tmp_path):
    assert tile(program.SAMPLE, tmp_path / "two", 2 * 30 * 31 * 16 * 3 * 64 * 2) is False
    two = Cache(tmp_path / "two")
    pool = two.pools[two.keys[0]]
    assert (len(two.keys), len(pool), len(two.seq_lens)) == (30, 62, 8)
    assert two.block_table.max() < len(pool)
    assert not np.array_equal(pool[:31], pool[31:])
    assert np.array_equal(two.page_ids(4), two.page_ids(0) + 31)


def test_the_page_shows_the_figures_that_are_kept(tmp_path):
    kept = results.load(DOCS / "peers.json")
    assert list(kept["contenders"]) == list(BY_NAME)
    assert set(results.figures_of(kept)) == {
        (name, place, work) for name in BY_NAME for place in tables.PLACES for work in measuring.WORKS
    }
    shutil.copy(DOCS / "peers.md", tmp_path)
    tables.renew(kept, tmp_path / "peers.md")
    assert (tmp_path / "peers.md").read_text() == (DOCS / "peers.md").read_text()
    assert texts_of(DOCS / "peers.svg") >= {*BY_NAME, *tables.HEADINGS.values(), *tables.PLACES.values()}


def test_kept_figures_name_no_machine():
    text = (DOCS / "peers.json").read_text()
    assert not re.search(r"/(tmp|work|home|root|dev)\b|127\.0\.0\.1|localhost", text)


def test_every_claim_is_made_and_every_environment_pinned():
    assert set(CLAIMS) == set(BY_NAME)
    assert all(set(claims) == set(PROPERTIES) for claims in CLAIMS.values())
    environments = {contender.environment for contender in BY_NAME.values()} - {""}
    assert environments | {"store"} == {path.stem for path in REQUIREMENTS.glob("*.txt")}
    for environment in environments:
        lines = [line for path in files_of(environment) for line in path.read_text().splitlines()]
        assert all("==" in line for line in lines if line and not line.startswith(("#", "-r ")))
