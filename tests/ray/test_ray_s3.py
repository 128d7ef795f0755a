"""Ray Data on S3: requests and bytes counted at the server, the workers' memory, versions, pushed-down questions."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.data.expressions import col

import hurray_arrow as ha
from hurray_arrow.ray import SnapshotDatasource, read_snapshots, skipped
from hurray_arrow.snapshot.pins import SnapshotPlace
from hurray_arrow.views import read_snapshots as read_in_threads
from tests.ray.bucket import DIMS, PAGES, arrow, counted, needed_bytes, tensors, write
from tests.ray.cluster import worker_peaks_bytes

pytestmark = pytest.mark.stores


def test_64_snapshots_cost_what_the_filters_need(cluster, s3, tmp_path):
    urls = write(s3, tmp_path, [f"many/{number:02}.arrow" for number in range(64)], dims=(DIMS // 4, DIMS))
    asked = {"values": "stats", "per_head": True, "layer_index": 5, "columns": ["url", "token", "head", "norm"]}
    with ha.open_snapshot(urls[0], **s3.how) as snapshot:
        alone = snapshot.tokens(**{**asked, "columns": ["token", "head", "norm"]}).read_all()
    requests_each, _ = counted(s3)
    s3.proxy.reset()

    dataset = read_snapshots(s3.url("many/*.arrow"), "tokens", **s3.how, **asked)
    planned = counted(s3)
    # The listing of the bucket, and the end of each file.
    assert planned[0] <= 64 + 4
    assert sorted(dataset.input_files()) == sorted(urls)

    def add_worker(batch):
        return batch.append_column("pid", pa.array([os.getpid()] * batch.num_rows))

    table = arrow(dataset.map_batches(add_worker, batch_format="pyarrow"))
    requests, received = counted(s3)
    needed = 64 * needed_bytes(tmp_path / "a.arrow", 5)
    assert 1 < received / needed <= 1.1
    assert requests <= 64 * requests_each + 4
    assert len(table["pid"].unique()) >= 2
    peaks_bytes = worker_peaks_bytes(cluster)
    assert len(peaks_bytes) >= 2
    assert max(peaks_bytes) < 1 << 30

    assert table.num_rows == 64 * alone.num_rows
    assert sorted(table["url"].unique().to_pylist()) == sorted(urls)
    ours = table.drop(["pid"]).sort_by([(name, "ascending") for name in ("url", "token", "head", "norm")])
    first = ours.filter(pc.field("url") == urls[0]).drop(["url"])
    assert first.equals(alone.sort_by([(name, "ascending") for name in ("token", "head", "norm")]))
    in_threads = read_in_threads(s3.url("many/*.arrow"), "tokens", **s3.how, **asked).read_all()
    assert ours.equals(in_threads.sort_by([(name, "ascending") for name in ("url", "token", "head", "norm")]))


@pytest.mark.usefixtures("cluster")
def test_columns_and_conditions_of_later_steps_reach_the_store(s3, tmp_path):
    write(s3, tmp_path, [f"few/{number}.arrow" for number in range(3)])
    size = (tmp_path / "a.arrow").stat().st_size
    dataset = read_snapshots(s3.url("few/*.arrow"), "tokens", values="stats", per_head=True, **s3.how)

    def received(made):
        s3.proxy.reset()
        rows = arrow(made)
        return rows, counted(s3)[1]

    everything, all_bytes = received(dataset)
    assert all_bytes > 3 * 0.9 * size
    places, few_bytes = received(dataset.select_columns(["url", "token", "page_id"]))
    assert places.num_rows == everything.num_rows
    assert few_bytes < 0.05 * all_bytes
    s3.proxy.reset()
    assert dataset.count() == everything.num_rows
    assert counted(s3)[1] < 0.05 * all_bytes

    wanted = (col("layer_index") == 5) & (col("sequence_id") == "own-1") & (col("norm") > 0)
    found, part_bytes = received(dataset.filter(expr=wanted).select_columns(["token", "norm"]))
    assert found.column_names == ["token", "norm"]
    same = (pc.field("layer_index") == 5) & (pc.field("sequence_id") == "own-1") & (pc.field("norm") > 0)
    assert sorted(found["norm"].to_pylist()) == sorted(everything.filter(same)["norm"].to_pylist())
    # One sequence of one layer of one snapshot, and the tables of the other two.
    assert part_bytes < 0.35 * all_bytes / 3
    renamed, same_bytes = received(dataset.filter(expr=wanted).rename_columns({"norm": "length"}))
    assert sorted(renamed["length"].to_pylist()) == sorted(found["norm"].to_pylist())
    assert same_bytes == part_bytes


@pytest.mark.usefixtures("cluster")
def test_overwritten_between_planning_and_reading(s3, tmp_path):
    urls = write(s3, tmp_path, [f"changing/{number}.arrow" for number in range(3)])
    strict = read_snapshots(urls, "pages", values="float32", layer_index=5, **s3.how)
    lenient = read_snapshots(urls, "pages", values="float32", layer_index=5, errors="skip", **s3.how)
    assert skipped(lenient) == []
    ha.write_snapshot(tmp_path / "a.arrow", tensors(77), overwrite=True)
    s3.replace(urls[1], (tmp_path / "a.arrow").read_bytes())
    s3.raw.rm_file(urls[2])
    with pytest.raises(ha.SnapshotChangedError) as caught:
        strict.materialize()
    assert caught.value.url in urls[1:]
    table = arrow(lenient.select_columns(["url"]).filter(expr=col("url") != "nothing"))
    assert table["url"].unique().to_pylist() == urls[:1]
    made = lenient.map_batches(lambda batch: {"url": batch["url"]}).materialize()
    assert made.count() == PAGES
    assert sorted((each.url, each.error) for each in skipped(made)) == [
        (url, "SnapshotChangedError") for url in urls[1:]
    ]


@pytest.mark.usefixtures("cluster")
def test_missing_and_corrupt_snapshots_by_policy(s3, tmp_path):
    urls = write(s3, tmp_path, [f"broken/{number}.arrow" for number in range(4)])
    data = bytearray(s3.bytes_of(urls[1]))
    with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
        place = snapshot._rows._places[1][0].pages_offset
    data[place + 99] ^= 1
    s3.replace(urls[1], bytes(data))
    s3.replace(urls[2], b"half of it" * 999)
    asked = {"values": "stats", "layer_index": 5, "columns": ["url", "norm"], **s3.how}
    gone = s3.url("broken/gone.arrow")
    for some, kind in (([gone], FileNotFoundError), (urls[2:], ha.SnapshotIncompleteError)):
        with pytest.raises(kind):
            read_snapshots(some, "tokens", **asked)
    with pytest.raises(ha.SnapshotCorruptError) as caught:
        read_snapshots(urls[:2], "tokens", **asked).materialize()
    assert caught.value.codes == ["page_checksum"]
    assert urls[1] in str(caught.value)

    dataset = read_snapshots([*urls, gone], "tokens", errors="skip", **asked)
    at_once = {each.url: each for each in skipped(dataset)}
    assert set(at_once) == {urls[2], gone}
    table = arrow(dataset)
    assert set(table["url"].to_pylist()) == {urls[0], urls[3]}
    found = {each.url: (each.error, each.codes) for each in skipped(dataset)}
    assert found == {
        urls[1]: ("SnapshotCorruptError", ("page_checksum",)),
        urls[2]: ("SnapshotIncompleteError", ()),
        gone: ("FileNotFoundError", ()),
    }
    source = SnapshotDatasource([urls[0], gone], "tokens", errors="skip", **asked)
    assert set(ray.data.read_datasource(source).unique("url")) == {urls[0]}
    assert [each.url for each in skipped(source)] == [gone]
    with pytest.raises(ValueError, match="skip"):
        skipped(read_snapshots(urls[:1], "tokens", **asked))


@pytest.mark.usefixtures("cluster")
def test_a_store_that_forbids_is_no_missing_snapshot(s3, tmp_path):
    urls = write(s3, tmp_path, ["forbidden/0.arrow"])
    how = {"storage_options": {**s3.options, "secret": "wrong"}}
    with pytest.raises(PermissionError):
        read_snapshots(urls, "tensors", errors="skip", **how)


def test_what_a_task_carries(s3, tmp_path):
    """Names, options, version, pages and the end of the file: nothing that is open, nothing large."""
    import cloudpickle

    urls = write(s3, tmp_path, [f"carried/{number}.arrow" for number in range(3)])
    source = SnapshotDatasource(urls, "tokens", values="stats", **s3.how)
    assert s3.proxy.reads() != []
    s3.proxy.reset()
    tasks = source.get_read_tasks(200)
    assert source.estimate_inmemory_data_size() == sum(task.metadata.size_bytes for task in tasks) > 0
    assert [task.metadata.input_files for task in tasks] == [(url,) for url in urls]
    assert s3.proxy.reads() == []
    sent = cloudpickle.dumps(tasks[0].read_fn)
    end = SnapshotPlace.of(urls[0], **s3.how).pinned()[1].known.tail_bytes
    assert len(sent) < end + 4000
    s3.proxy.reset()
    assert sum(table.num_rows for table in cloudpickle.loads(sent)()) > 0
    assert all("if-match" in request.headers for request in s3.proxy.reads())
