"""Many snapshots as one table: the rows of all of them, in order, and nothing read that was not asked for."""

from __future__ import annotations

import pickle
import threading
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot.partial import TensorPages
from hurray_arrow.snapshot.remote import RemoteRange
from hurray_arrow.views import VIEWS, open_view, pieces, plan, read_snapshots
from hurray_arrow.views.plan import plan_snapshots
from hurray_arrow.views.question import Question
from tests.sample import make_tensor, sample_facts

GLOB = "memory://many/*.arrow"
URLS = [f"memory:///many/{number}.arrow" for number in range(5)]
FOUR = [(3, "key"), (3, "value"), (5, "key"), (5, "value")]
OPTIONS = {"tensors": {}, "sequences": {}, "pages": {"values": "float32"}, "tokens": {"values": "stats"}}


def tensors(number, **more):
    """Keys and values of two layers; whole numbers, because NaN equals nothing. Sequence x is in the odd ones only."""
    facts = sample_facts()
    facts["ids"] = ["s-a", "x" if number % 2 else None, "s-c", f"only-{number}"]
    return [
        make_tensor(
            layer_index=layer,
            kv_role=role,
            seed=10 * number + layer,
            element_type="int8",
            **{"head_dim": 211, **facts, **more},
        )
        for layer in (3, 5)
        for role in ("key", "value")
    ]


@pytest.fixture(autouse=True)
def many():
    for number, url in enumerate(URLS):
        ha.write_snapshot(url, tensors(number), overwrite=True, profile="archive" if number == 2 else "share")
    yield
    fsspec.filesystem("memory").rm("/many", recursive=True)


@pytest.fixture
def pages_read(monkeypatch):
    """List the layer and role of each tensor whose pages are read, and which pages."""
    seen: list[tuple[int, str, list[int]]] = []
    read = TensorPages.read

    def reading(self, page_ids):
        seen.append((self.tensor.layer_index, self.tensor.kv_role, page_ids.tolist()))
        return read(self, page_ids)

    monkeypatch.setattr(TensorPages, "read", reading)
    return seen


@pytest.fixture
def fetched(monkeypatch):
    """List the ranges that are asked of stores, the first look at each file aside."""
    ranges: list[tuple[str, int]] = []
    fill = RemoteRange._fill

    def filling(self, targets):
        ranges.extend((self.url, len(view)) for _, view in targets)
        fill(self, targets)

    monkeypatch.setattr(RemoteRange, "_fill", filling)
    return ranges


def one_by_one(view, **options):
    """Read the same rows snapshot by snapshot."""
    tables = []
    for url in URLS:
        with ha.open_snapshot(url) as snapshot:
            table = pa.table(open_view(snapshot, view, **options))
        tables.append(table.add_column(0, pa.field("url", pa.utf8()), pa.array([url] * len(table), pa.utf8())))
    return pa.concat_tables(tables).combine_chunks()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_those_of_each_snapshot_in_order(view, threads):
    reader = read_snapshots(GLOB, view, threads=threads, **OPTIONS[view])
    expected = one_by_one(view, **OPTIONS[view])
    assert reader.schema == expected.schema
    assert reader.read_all().combine_chunks().equals(expected)
    again = read_snapshots(URLS[::-1], view, columns=["kv_group", "url"], **OPTIONS[view]).read_all()
    assert again.column_names == ["kv_group", "url"]
    assert again["url"].to_pylist() == sorted(expected["url"].to_pylist(), reverse=True)


def test_only_the_ends_of_the_files_are_read_to_plan(fetched, pages_read):
    found = plan_snapshots(GLOB, Question.of("tokens", values="stats", layer_index=5))
    assert fetched == pages_read == []
    assert [piece.pin.place.url for piece in found.pieces] == URLS
    assert {piece.tensors for piece in found.pieces} == {(2, 3)}


def test_a_piece_is_small_and_opens_nothing_anew(fetched):
    question = Question.of("tokens", values="stats", columns=["norm"], layer_index=3, kv_role="key")
    pieces_ = plan_snapshots(GLOB, question).pieces
    with ha.open_snapshot(URLS[0]) as snapshot:
        snapshot.tokens(values="stats", columns=["norm"], layer_index=3, kv_role="key").read_all()
    alone = fetched.copy()
    fetched.clear()
    sent = pickle.dumps((question, pieces_[0]))
    assert len(sent) < 8000
    question, piece = pickle.loads(sent)  # noqa: S301  our own bytes
    assert sum(batch.num_rows for batch in plan.read_pieces(question, [piece])) == 27
    assert fetched == alone != []


def test_filters_and_columns_decide_what_is_read(pages_read):
    table = read_snapshots(GLOB, "tokens", values="stats", columns=["token"], layer_index=5).read_all()
    assert table.num_rows == 5 * 2 * 27
    assert pages_read == []
    read_snapshots(GLOB, "pages", values="raw", kv_role="value", layer_index=3, sequence="x", threads=1).read_all()
    assert pages_read == []
    read_snapshots(GLOB, "pages", values="raw", kv_role="value", layer_index=3, sequence="only-3").read_all()
    assert pages_read == [(3, "value", [2])]


def test_a_sequence_that_some_snapshots_lack_has_rows_where_it_is():
    table = read_snapshots(GLOB, "sequences", sequence=["x", "only-4", 99]).read_all()
    assert list(zip(table["url"].to_pylist(), table["sequence"].to_pylist(), strict=True)) == [
        (URLS[1], 1), (URLS[3], 1), (URLS[4], 3),
    ]  # fmt: skip
    assert read_snapshots(GLOB, "tokens", sequence="nobody").read_all().num_rows == 0
    assert read_snapshots(GLOB, "tensors", layer_index=99).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        (pc.field("layer_index") == 5, [(5, "key"), (5, "value")] * 5),
        ((pc.field("url") == URLS[2]) & (pc.field("kv_role") == "key"), [(3, "key"), (5, "key")]),
        ((pc.field("sequence_id") == "only-4") & (pc.field("norm") > 9), FOUR),
        ((pc.field("url") != URLS[0]) & (pc.field("layer_index") == 99), []),
        (
            ((pc.field("url") == URLS[1]) & (pc.field("layer_index") == 5))
            | ((pc.field("url") == URLS[3]) & (pc.field("layer_index") == 3) & (pc.field("kv_role") == "key")),
            [(5, "key"), (5, "value"), (3, "key")],
        ),
    ],
    ids=["tensors", "snapshots", "sequences", "nothing", "tensors by snapshot"],
)  # fmt: skip
def test_a_condition_chooses_what_is_read(pages_read, condition, read):
    columns = ["norm", "url", "token"]
    table = read_snapshots(
        GLOB, "tokens", values="stats", filter=condition, columns=columns, component="values", threads=1
    ).read_all()
    assert [each[:2] for each in pages_read] == read
    expected = one_by_one("tokens", values="stats").filter(condition).select(columns)
    assert table.combine_chunks().equals(expected.combine_chunks())


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("profile", ["share", "archive"])
def test_large_tensors_are_cut_by_pages_and_each_page_is_read_once(monkeypatch, pages_read, fetched, profile, per_head):
    """Sequences share pages and name them in no order."""
    rng = np.random.default_rng(3)
    num_pages, tables = 61, [rng.permutation(61)[:23].tolist() for _ in range(7)]
    pool = rng.integers(-99, 99, (num_pages, 5, 3, 11), dtype=np.int8)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=tables, seq_lens=[113, 0, 5, 88, 115, 71, 6], kv_role="key", layer_index=0
    )
    for module in ("hurray_arrow.snapshot.archive_rows", "hurray_arrow.views.pieces"):
        monkeypatch.setattr(f"{module}.MAX_ROW_BYTES", 1000)
    monkeypatch.setattr("hurray_arrow.snapshot.archive_rows.ONE_ROW_BYTES", 1000)
    monkeypatch.setattr("hurray_arrow.views.pieces._PART_BYTES", 2500)
    url = f"memory://large/{profile}.arrow"
    ha.write_snapshot(url, [tensor], profile=profile, overwrite=True)
    for view, options in (("pages", {"values": "raw"}), ("tokens", {"values": "stats", "per_head": per_head})):
        pages_read.clear()
        fetched.clear()
        found = plan_snapshots(url, Question.of(view, **options)).pieces
        bounds = [piece.page_range for piece in found]
        assert len(bounds) > 3
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        table = read_snapshots(url, view, threads=2, **options).read_all()
        ids = sorted(page for *_, some in pages_read for page in some)
        with ha.open_snapshot(url) as snapshot:
            rows = snapshot._rows._places[0]
            stored = snapshot.entries[0].stored_bytes
        pages_bytes = stored - (rows[0].block.end - rows[0].offset) if profile == "archive" else rows[0].pages_bytes
        assert sum(size for _, size in fetched) <= pages_bytes + len(bounds) * (stored - pages_bytes)
        expected = one_by_one_of(url, view, **options)
        keys = [(name, "ascending") for name in ("sequence", "token", "page_id", "head") if name in table.column_names]
        assert table.sort_by(keys).drop(["url"]).equals(expected.sort_by(keys))
        used = {p for table_, n in zip(tables, [113, 0, 5, 88, 115, 71, 6], strict=True) for p in table_[: -(-n // 5)]}
        assert ids == (list(range(num_pages)) if view == "pages" else sorted(used))


def one_by_one_of(url, view, **options):
    with ha.open_snapshot(url) as snapshot:
        return pa.table(open_view(snapshot, view, **options))


def test_small_tensors_are_read_together_and_large_answers_apart(monkeypatch):
    question = Question.of("tokens", values="stats")
    assert [piece.tensors for piece in plan_snapshots(GLOB, question).pieces] == [(0, 1, 2, 3)] * 5
    monkeypatch.setattr(pieces, "PIECE_BYTES", 50_000)
    assert [piece.tensors for piece in plan_snapshots(GLOB, question).pieces] == [(0, 1), (2, 3)] * 5


@pytest.mark.parametrize(("view", "exact"), [("tensors", 20), ("sequences", 20), ("pages", 140), ("tokens", None)])
def test_sizes_are_estimated_from_the_index(fetched, view, exact):
    found = plan_snapshots(GLOB, Question.of(view, **OPTIONS[view]))
    rows, size = sum(piece.num_rows for piece in found.pieces), sum(piece.size_bytes for piece in found.pieces)
    assert fetched == []
    assert found.question.is_counted_by_index == (exact is not None)
    table = read_snapshots(GLOB, view, **OPTIONS[view]).read_all()
    assert table.num_rows == (exact or table.num_rows)
    assert rows == exact or table.num_rows <= rows <= 2 * table.num_rows
    assert size < 3 * table.nbytes
    assert size > table.nbytes / 6


def test_tasks_are_neighbours_of_about_one_weight(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    found = plan_snapshots(GLOB, Question.of("tokens", values="stats"))
    assert len(found.pieces) == 20
    for wanted in (1, 3, 7, 20, 1000):
        shared = found.tasks(wanted)
        assert [piece for task in shared for piece in task] == found.pieces
        assert len(shared) == min(wanted, 20)
        assert max(map(len, shared)) - min(map(len, shared)) <= 1
    monkeypatch.setattr(plan, "_PIECES_IN_TASK", 2)
    assert [len(task) for task in found.tasks(1)] == [2] * 10


def test_a_plan_carries_the_ends_of_so_many_files_and_no_more(monkeypatch, fetched):
    first = plan_snapshots(GLOB, Question.of("tensors"))
    carried = [len(each.pin.known.tail) for each in first.listed]
    assert all(0 < size < 10_000 for size in carried)
    monkeypatch.setattr(plan, "_MOST_CARRIED_BYTES", sum(carried[:2]))
    second = plan_snapshots(GLOB, Question.of("tensors"))
    assert [each.pin.known.tail is None for each in second.listed] == [False, False, True, True, True]
    assert sum(batch.num_rows for batch in plan.read_pieces(second.question, second.pieces)) == 20
    ends = [each.pin.known.tail_bytes for each in second.listed[2:]]
    assert [size for _, size in fetched if size in ends] == ends


def test_what_is_missing_or_damaged_is_raised_or_listed():
    store = fsspec.filesystem("memory")
    store.pipe_file("/many/1.arrow", b"not an Arrow file" * 99)
    damaged = bytearray(store.cat_file("/many/3.arrow"))
    damaged[damaged.index(b"ARROW1", 8) - 200] ^= 1
    store.pipe_file("/many/3.arrow", bytes(damaged))
    urls = [*URLS, "memory:///many/gone.arrow"]
    for left, kind in ((urls, ha.SnapshotIncompleteError), (urls[2:], ha.SnapshotCorruptError)):
        with pytest.raises(kind):
            read_snapshots(left, "tensors")
    with pytest.raises(FileNotFoundError):
        read_snapshots(urls[4:], "tensors")
    skipped = []
    table = read_snapshots(urls, "tensors", errors="skip", skipped=skipped).read_all()
    assert set(table["url"].to_pylist()) == {URLS[0], URLS[2], URLS[4]}
    assert [(each.url, each.error) for each in skipped] == [
        (URLS[1], "SnapshotIncompleteError"),
        (URLS[3], "SnapshotCorruptError"),
        (urls[5], "FileNotFoundError"),
    ]
    assert skipped[1].codes
    with pytest.raises(ha.SnapshotError):
        read_snapshots([URLS[1], urls[5]], "tensors", errors="skip", skipped=[])


def test_damage_that_is_found_while_reading_is_raised_or_listed():
    with ha.open_snapshot(URLS[3]) as snapshot:
        page = snapshot.read(layer_index=5, kv_role="key").page_pool[2].tobytes()
    store = fsspec.filesystem("memory")
    damaged = bytearray(store.cat_file("/many/3.arrow"))
    damaged[damaged.index(page) + 7] ^= 1
    store.pipe_file("/many/3.arrow", bytes(damaged))
    asked = {"values": "stats", "kv_role": "key", "columns": ["norm", "url", "layer_index"]}
    reader = read_snapshots(GLOB, "tokens", **asked)
    with pytest.raises(ha.SnapshotCorruptError) as caught:
        reader.read_all()
    assert caught.value.codes == ["page_checksum"]
    assert f"while reading {URLS[3]}" in caught.value.__notes__
    skipped = []
    table = read_snapshots(GLOB, "tokens", errors="skip", skipped=skipped, **asked).read_all()
    assert [(each.url, each.codes) for each in skipped] == [(URLS[3], ("page_checksum",))]
    # What was read before the damage stays.
    left = table.filter(pc.field("url") == URLS[3])
    assert set(left["layer_index"].to_pylist()) <= {3}
    assert table.num_rows - left.num_rows == 4 * 54


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_snapshot_that_is_replaced_after_the_planning_is_noticed(errors):
    skipped = [] if errors == "skip" else None
    reader = read_snapshots(GLOB, "pages", values="raw", errors=errors, skipped=skipped, layer_index=3)
    ha.write_snapshot(URLS[4], tensors(4), overwrite=True)
    if errors == "raise":
        with pytest.raises(ha.SnapshotChangedError) as caught:
            reader.read_all()
        assert caught.value.url == URLS[4]
    else:
        assert URLS[4] not in reader.read_all()["url"].to_pylist()
        assert [(each.url, each.error) for each in skipped] == [(URLS[4], "SnapshotChangedError")]


def test_values_that_do_not_go_into_one_column_are_refused():
    ha.write_snapshot("memory://many/7.arrow", tensors(7, head_dim=7), overwrite=True)
    for view, values in (("pages", "float32"), ("tokens", "float32"), ("pages", "raw")):
        with pytest.raises(ha.UnsupportedError):
            read_snapshots(GLOB, view, values=values)
    assert read_snapshots(GLOB, "tokens", values="stats").read_all().num_rows == 6 * 4 * 27
    # A snapshot with none of the tensors has no say, wherever it stands.
    for urls in ([*URLS, "memory://many/8.arrow"], ["memory://many/8.arrow", *URLS]):
        ha.write_snapshot("memory://many/8.arrow", [make_tensor(layer_index=99, head_dim=7)], overwrite=True)
        assert read_snapshots(urls, "pages", values="float32", layer_index=3).read_all().num_rows == 5 * 2 * 7
    ha.write_snapshot("memory://many/9.arrow", [make_tensor(layer_index=3, element_type="uint8")], overwrite=True)
    with pytest.raises(ha.UnsupportedError):
        read_snapshots([URLS[0], "memory://many/9.arrow"], "pages", values="raw", layer_index=3)


def test_types_that_only_look_alike_are_refused():
    for name, element_type in (("a", "float16"), ("b", "bfloat16")):
        ha.write_snapshot(f"memory://alike/{name}.arrow", [make_tensor(element_type=element_type)], overwrite=True)
    with pytest.raises(ha.UnsupportedError):
        read_snapshots("memory://alike/*.arrow", "pages", values="raw")
    assert read_snapshots("memory://alike/*.arrow", "pages", values="float32").read_all().num_rows == 14


def test_unknown_lengths_are_an_error_whatever_the_policy():
    ha.write_snapshot("memory://many/7.arrow", [make_tensor(seq_lens=[13, None, None, 4], total_tokens=27)])
    skipped = []
    reader = read_snapshots(GLOB, "tokens", errors="skip", skipped=skipped)
    with pytest.raises(ha.UnknownSequenceLengthError) as caught:
        reader.read_all()
    assert "while reading memory:///many/7.arrow" in caught.value.__notes__
    assert skipped == []


def test_arguments_that_mean_nothing_are_refused():
    wrong = [
        ({"view": "rows"}, ValueError),
        ({"columns": []}, ValueError),
        ({"columns": ["url", "nothing"]}, ValueError),
        ({"columns": ["url", "url"]}, ValueError),
        ({"filter": "layer_index = 3"}, TypeError),
        ({"filter": pc.field("nothing") == 3}, ValueError),
        ({"values": "raw"}, TypeError),
        ({"kv_role": "keys"}, ValueError),
        ({"errors": "ignore"}, ValueError),
        ({"errors": "skip"}, ValueError),
        ({"skipped": []}, ValueError),
        ({"threads": 0}, ValueError),
    ]
    for arguments, kind in wrong:
        with pytest.raises(kind):
            read_snapshots(GLOB, **arguments).read_all()
    with pytest.raises(FileNotFoundError):
        read_snapshots("memory://many/*.none", "tensors")
    with pytest.raises(ValueError, match="no snapshots"):
        read_snapshots([], "tensors")


def test_little_is_read_ahead_and_leaving_off_ends_it(monkeypatch):
    monkeypatch.setattr("hurray_arrow.views.pages.BATCH_BYTES", 1)
    monkeypatch.setattr("hurray_arrow.views.many._AHEAD_BYTES", 1)
    opened = []
    batches = Question.batches

    def counting(self, snapshot, url, *rest):
        opened.append(url)
        return batches(self, snapshot, url, *rest)

    monkeypatch.setattr(Question, "batches", counting)
    before = threading.active_count()
    reader = read_snapshots(GLOB, "pages", values="float32", threads=2)
    assert opened == []
    assert reader.read_next_batch()["page_id"].to_pylist() == [0]
    # The other thread begins when it gets its turn.
    give_up = time.monotonic() + 30
    while len(opened) < 2 and time.monotonic() < give_up:
        time.sleep(0.001)
    assert sorted(opened) == URLS[:2]
    for _ in range(26):
        reader.read_next_batch()
    assert len(opened) == 2
    reader.close()
    del reader
    assert threading.active_count() <= before


def test_a_filesystem_that_is_open_already_is_used():
    store = fsspec.filesystem("memory")
    table = read_snapshots("/many/*.arrow", "tensors", filesystem=store, columns=["url", "layer_index"]).read_all()
    assert table["url"].unique().to_pylist() == URLS
