"""Ray Data on local files: the same rows as one by one, and what Ray learns of them before it reads."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hurray_arrow as ha
from hurray_arrow.ray import SnapshotDatasource, read_snapshots
from hurray_arrow.views import VIEWS
from hurray_arrow.views import read_snapshots as read_in_threads
from tests.sample import make_tensor, sample_facts
from tests.tools.questions import answers, check_page, write_cache

pytestmark = pytest.mark.usefixtures("cluster")
OPTIONS = {"tensors": {}, "sequences": {}, "pages": {"values": "float32"}, "tokens": {"values": "float32"}}


@pytest.fixture(scope="module")
def glob(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    facts = sample_facts()
    for number in range(3):
        some = [
            make_tensor(layer_index=layer, kv_role=role, seed=10 * number + layer, element_type="int8", **facts)
            for layer in (3, 5)
            for role in ("key", "value")
        ]
        ha.write_snapshot(folder / f"{number}.arrow", some)
    return str(folder / "*.arrow")


def arrow(dataset):
    tables = list(dataset.iter_batches(batch_format="pyarrow", batch_size=None))
    return pa.concat_tables(tables)


@pytest.mark.parametrize("view", VIEWS)
def test_rows_are_those_that_one_process_reads(glob, view):
    dataset = read_snapshots(glob, view, **OPTIONS[view])
    expected = read_in_threads(glob, view, **OPTIONS[view]).read_all()
    assert dataset.schema().base_schema == expected.schema
    names = ("url", "tensor_index", "sequence", "token", "page_id")
    keys = [(name, "ascending") for name in names if name in expected.column_names]
    assert arrow(dataset).sort_by(keys).equals(expected.sort_by(keys))
    assert dataset.count() == expected.num_rows


def test_values_come_in_their_shape(glob):
    dataset = read_snapshots(glob, "pages", values="float32", layer_index=5, kv_role="value", columns=["values"])
    values = [batch["values"] for batch in dataset.iter_batches(batch_size=None)]
    assert np.concatenate(values).shape == (21, 5, 3, 11)
    assert {each.dtype for each in values} == {np.dtype(np.float32)}


def test_a_filter_of_pyarrows_and_limits(glob):
    condition = (pc.field("fill_tokens") == 5) & (pc.field("layer_index") == 3)
    dataset = read_snapshots(glob, "pages", filter=condition, columns=["page_id", "fill_tokens"])
    expected = read_in_threads(glob, "pages", filter=condition, columns=["page_id", "fill_tokens"]).read_all()
    assert arrow(dataset).num_rows == expected.num_rows > 3
    assert dataset.limit(3).count() == 3
    assert read_snapshots(glob, "tokens", sequence="nobody").count() == 0
    assert read_snapshots(glob, "tensors", layer_index=99).count() == 0


def test_rays_options_are_passed_on(glob):
    dataset = read_snapshots(glob, "tokens", ray_options={"override_num_blocks": 3, "concurrency": 1})
    assert dataset.materialize().num_blocks() == 3


@pytest.mark.parametrize(("view", "exact"), [("tensors", 12), ("sequences", 12), ("pages", 84), ("tokens", None)])
def test_rows_are_counted_where_the_index_says_so(glob, view, exact):
    def counts(**options):
        tasks = SnapshotDatasource(glob, view, **options).get_read_tasks(2)
        assert len(tasks) == 2
        rows = [task.metadata.num_rows for task in tasks]
        return None if None in rows else sum(rows)

    assert counts() == exact
    if view != "tensors":
        assert counts(sequence=0) is None
    assert counts(filter=pc.field("kv_group") == 0) is None


def test_the_pages_answers_are_numpys(tmp_path, monkeypatch):
    write_cache(tmp_path / "cache.arrow")
    monkeypatch.chdir(tmp_path)
    check_page("ray", answers())


def test_without_ray_the_extra_is_named(monkeypatch):
    for module in list(sys.modules):
        if module == "hurray_arrow.ray":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ha.MissingDependencyError) as caught:
        importlib.import_module("hurray_arrow.ray")
    assert caught.value.extra == "ray"
