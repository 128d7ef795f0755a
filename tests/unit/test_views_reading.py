"""What views read, and how much they hold: counters and bytes, not clocks."""

from __future__ import annotations

import itertools
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.views import open_view
from hurray_arrow.views import pages as pages_module
from hurray_arrow.views.dataset import ViewDataset
from hurray_arrow.views.values import Scratch
from tests.sample import make_tensor, sample_facts

MIB = 1 << 20
ALL = [(layer, role) for layer in (3, 5, 7) for role in ("key", "value")]
PROFILES = ("share", "archive")


@pytest.fixture
def counted(monkeypatch):
    """Count which tensors' pages are read, and how many pages at a time."""
    seen: list[tuple[int | None, str, int]] = []
    read = TensorPages.read

    def reading(self, page_ids):
        seen.append((self.tensor.layer_index, self.tensor.kv_role, len(page_ids)))
        return read(self, page_ids)

    monkeypatch.setattr(TensorPages, "read", reading)
    return seen


def layers(element_type="int8"):
    # Whole numbers: tables that hold NaN never equal each other.
    facts = sample_facts()
    return [
        make_tensor(layer_index=layer, kv_role=role, seed=layer, element_type=element_type, **facts)
        for layer in (3, 5, 7)
        for role in ("key", "value")
    ]


def stored(name, tensors, **more):
    ha.write_snapshot(f"memory://views/{name}", tensors, overwrite=True, **more)
    return ha.open_snapshot(f"memory://views/{name}")


def big(profile, num_pages=1024, num_seqs=1):
    """64 KiB to a page; sequences one after the other."""
    pool = np.arange(num_pages * 16 * 8 * 256, dtype=np.uint32).astype(np.uint16).reshape(num_pages, 16, 8, 256)
    tables = np.array_split(np.arange(num_pages), num_seqs)
    return stored(
        f"big-{profile}",
        [
            ha.BlockPagedTensor.from_arrays(
                pool,
                block_tables=[table.tolist() for table in tables],
                seq_lens=[16 * len(table) for table in tables],
                element_type="bfloat16",
                kv_role="key",
                layer_index=0,
            )
        ],
        profile=profile,
    )


def test_without_values_no_page_is_read(counted):
    with stored("plain", layers()) as snapshot:
        source = snapshot._rows.source
        listed = source.fetched_bytes
        assert snapshot.tensors(columns=["layer_index", "page_size", "stored_bytes"]).read_all().num_rows == 6
        assert source.fetched_bytes == listed
        for name, columns in (("tensors", None), ("sequences", None), ("pages", None), ("tokens", None)):
            getattr(snapshot, name)(columns=columns).read_all()
        assert counted == []
        snapshot.tokens(values="stats", columns=["token", "position"]).read_all()
        assert counted == []


def test_only_tensors_that_the_filters_admit_are_read(counted):
    with stored("filtered", layers()) as snapshot:
        snapshot.tokens(values="stats", layer_index=5, kv_role="key").read_all()
        assert counted == [(5, "key", 4)]
        counted.clear()
        snapshot.pages(values="float32", sequence=2, kv_role="value").read_all()
        assert counted == [(3, "value", 2), (5, "value", 2), (7, "value", 2)]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pc.field("layer_index") == 5, [(5, "key"), (5, "value")]),
        (
            (pc.field("layer_index") > 4) & (pc.field("kv_role") == "key") & (pc.field("norm") > 0),
            [(5, "key"), (7, "key")],
        ),
        (pc.field("layer_index").isin([3, 99]) & ~(pc.field("kv_role") == "key"), [(3, "value")]),
        (pc.field("layer_index").is_null(), []),
        ((pc.field("layer_index") == 3) | (pc.field("token") == 1), ALL),
        (pc.field("component") == "scales", []),
    ],
)
def test_a_datasets_conditions_choose_tensors(counted, condition, expected):
    with stored("conditions", layers()) as snapshot:
        view = open_view(snapshot, "tokens", values="stats")
        table = ViewDataset(view).to_table(filter=condition)
        assert [each[:2] for each in counted] == expected
        assert table.equals(view.reader().read_all().filter(condition))


@pytest.mark.parametrize(
    ("condition", "pages"),
    [
        (pc.field("sequence") == 2, 2),
        (pc.field("sequence_id") == "s-a", 3),
        (pc.field("sequence_id").is_null() | (pc.field("sequence") == 3), 1),
        ((pc.field("sequence") == 2) | (pc.field("slot") == 1), 4),
    ],
)
def test_a_datasets_conditions_choose_sequences(counted, condition, pages):
    with stored("conditions", layers()) as snapshot:
        view = open_view(snapshot, "tokens", values="stats", layer_index=7, kv_role="key")
        table = ViewDataset(view).to_table(filter=condition, columns=["norm", "slot"])
        assert counted == [(7, "key", pages)]
        assert table.equals(view.reader().read_all().filter(condition).select(["norm", "slot"]))


def test_a_dataset_counts_and_projects(counted):
    with stored("conditions", layers()) as snapshot:
        dataset = ViewDataset(open_view(snapshot, "tokens", values="stats"))
        assert dataset.count_rows() == 6 * 27
        assert dataset.to_table(columns={"twice": pc.field("token") * 2}).column_names == ["twice"]
        assert counted == []
        with pytest.raises(TypeError):
            dataset.__reduce__()


@pytest.mark.parametrize("profile", PROFILES)
def test_one_sequence_of_a_remote_snapshot_costs_its_pages(profile):
    with big(profile, num_seqs=8) as snapshot:
        source = snapshot._rows.source
        before = source.fetched_bytes
        rows = snapshot.tokens(values="stats", sequence=6, columns=["norm"]).read_all().num_rows
        assert rows == 128 * 16
        fetched = source.fetched_bytes - before
        whole = snapshot.entries[0].stored_bytes
        assert 0 < fetched < whole * (0.14 if profile == "share" else 0.27)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("view", ["pages", "tokens"])
def test_a_whole_remote_view_fetches_everything_once_and_holds_little(profile, view, monkeypatch):
    monkeypatch.setattr(pages_module, "WINDOW_BYTES", 8 * MIB)
    monkeypatch.setattr("hurray_arrow.views.tokens.WINDOW_BYTES", 8 * MIB)
    with big(profile) as snapshot:
        source = snapshot._rows.source
        before = source.fetched_bytes
        values = "float32"
        digest = 0
        rows = 0
        tracemalloc.start()
        try:
            for batch in open_view(snapshot, view, values=values, columns=["values"]).batches():
                rows += batch.num_rows
                digest += int(batch["values"].storage.values.to_numpy()[::4099].view(np.uint32).astype(np.uint64).sum())
                assert batch.nbytes <= 8.5 * MIB
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows == (1024 if view == "pages" else 1024 * 16)
        assert digest > 0
        assert source.fetched_bytes - before < snapshot.entries[0].stored_bytes * 1.02
        # 128 MiB as float32, 64 MiB as stored.
        assert peak < 48 * MIB


def test_tiny_pages_are_counted_and_not_their_tokens(monkeypatch):
    """The scale of a token takes two bytes, and its place in Arrow's and numpy's arrays many times as much."""
    num_pages, page_size = 30_011, 64
    tensor = ha.BlockPagedTensor.from_arrays(
        (np.arange(num_pages * page_size) % 251).astype(np.uint16).reshape(num_pages, page_size, 1, 1),
        block_tables=[list(range(20_000, 30_011)), [], list(range(20_000))],
        seq_lens=[10_010 * page_size + 3, 0, 20_000 * page_size],
        kv_role="key",
        component="scales",
        layer_index=0,
    )
    monkeypatch.setattr("hurray_arrow.views.tokens._WINDOW_PAGES", 8192)
    with stored("tiny", [tensor], profile="archive") as snapshot:
        tracemalloc.start()
        try:
            rows, total = 0, 0.0
            for batch in snapshot.tokens(values="stats", columns=["max"]):
                rows += batch.num_rows
                total += float(batch["max"].to_numpy().sum(dtype=np.float64))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    tokens = np.concatenate([tensor.gather(0), tensor.gather(2)])
    assert rows == len(tokens) == 30_011 * page_size - page_size + 3
    assert total == float(tokens.sum(dtype=np.float64))
    # An array with a number for each token would be 15 MB alone.
    assert peak < 14 * MIB


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("options", [{"mapped": False}, {}])
def test_profiles_and_mappings_give_the_same(tmp_path, profile, options):
    tensors = layers("bfloat16")
    ha.write_snapshot(tmp_path / "a.arrow", tensors, profile=profile)
    with ha.open_snapshot(tmp_path / "a.arrow", **options) as snapshot:
        found = snapshot.pages(values="raw").read_all()["values"].combine_chunks().to_numpy_ndarray()
        expected = np.concatenate([tensor.page_pool.view(np.uint16) for tensor in tensors])
        np.testing.assert_array_equal(found, expected)
        tokens = snapshot.tokens(values="float32", sequence=["ß-d", 0]).read_all()
        expected = np.concatenate([tensor.gather([0, 3]).astype(np.float32) for tensor in tensors])
        np.testing.assert_array_equal(tokens["values"].combine_chunks().to_numpy_ndarray(), expected)


def test_small_windows_give_the_same(tmp_path, monkeypatch):
    expected = None
    ha.write_snapshot(tmp_path / "a.arrow", layers(), profile="archive")
    for window, batch in ((1, 1), (700, 700), (64 * MIB, 8 * MIB)):
        monkeypatch.setattr("hurray_arrow.views.tokens.WINDOW_BYTES", window)
        monkeypatch.setattr("hurray_arrow.views.tokens.BATCH_BYTES", batch)
        monkeypatch.setattr("hurray_arrow.views.tokens._WINDOW_PAGES", window)
        with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
            found = snapshot.tokens(values="float32").read_all().combine_chunks()
        expected = found if expected is None else expected
        assert found.equals(expected)


def test_a_recovered_snapshot_has_views(tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(path, layers())
    table = pa.ipc.open_file(path).read_all()
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    with ha.open_snapshot(path) as whole, ha.open_snapshot(tmp_path / "b.arrow", recover=True) as recovered:
        for view, options in (("sequences", {}), ("pages", {"values": "raw"}), ("tokens", {"values": "stats"})):
            assert pa.table(open_view(whole, view, **options)).equals(pa.table(open_view(recovered, view, **options)))


def test_damaged_pages_are_found_when_a_remote_view_reads_them(tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(path, layers())
    with ha.open_snapshot(path) as snapshot:
        tensor = snapshot.read(layer_index=3, kv_role="key")
        place = path.read_bytes().index(tensor.page_pool[5].tobytes())
    damaged = bytearray(path.read_bytes())
    damaged[place + 7] ^= 1
    path.write_bytes(damaged)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        view = open_view(snapshot, "tokens", values="stats", sequence=2)
        with pytest.raises(ha.SnapshotCorruptError) as caught:
            list(view.batches())
        assert caught.value.codes == ["page_checksum"]
        assert len(pa.table(open_view(snapshot, "tokens", values="stats", sequence=3))) == 6 * 4


def test_decoded_memory_is_used_again_only_when_nobody_holds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(pages_module, "BATCH_BYTES", 1)
    ha.write_snapshot(tmp_path / "a.arrow", [make_tensor()])
    with ha.open_snapshot(tmp_path / "a.arrow") as snapshot:
        view = open_view(snapshot, "pages", values="float32", columns=["values"])
        held = [batch["values"].storage.values.buffers()[1].address for batch in list(view.batches())]
        assert len(set(held)) == 7
        passing = []
        for batch in view.batches():
            passing.append(batch["values"].storage.values.buffers()[1].address)
            del batch
        assert len(passing) == 7
        assert len(set(passing)) < 4


@pytest.mark.parametrize("counted_less", [0, 1, 2])
def test_memory_that_is_held_is_not_used_again_however_references_are_counted(monkeypatch, counted_less):
    counted = sys.getrefcount
    # Python 3.14 borrows what 3.13 counted.
    monkeypatch.setattr(sys, "getrefcount", lambda what: counted(what) - counted_less)
    scratch = Scratch()
    held = [scratch.take(8) for _ in range(3)]
    assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(held, 2))
    place = held.pop().ctypes.data
    assert scratch.take(8).ctypes.data == place
