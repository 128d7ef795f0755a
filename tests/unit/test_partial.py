"""Some sequences of a snapshot: the same as select and compact of the whole, for the bytes that they need."""

import weakref

import numpy as np
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.errors import SnapshotCorruptError, UnsupportedError
from hurray_arrow.snapshot import archive_source, partial, row_source
from tests.faults.forgery import Forgery, RowBytes, column_places
from tests.sample import ALL_ELEMENT_TYPES, BLOCK_TABLES, make_tensor

PROFILES = ("share", "archive")


def write(path, tensors, **options):
    ha.write_snapshot(path, tensors, overwrite=True, **options)
    return path


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("element_type", sorted(ALL_ELEMENT_TYPES))
def test_it_is_select_and_compact_of_the_whole(tmp_path, profile, mapped, element_type):
    made = [make_tensor(element_type=element_type, layer_index=layer, seed=layer + 3) for layer in range(3)]
    path = write(tmp_path / "s.arrow", made, profile=profile)
    with ha.open_snapshot(path, mapped=mapped) as snapshot:
        found = snapshot.read_sequences([3, 0], layer_index=[2, 0])
    expected = [ops.compact(ops.select(made[layer], [3, 0])) for layer in (0, 2)]
    assert [tensor.equals(other) for tensor, other in zip(found.tensors, expected, strict=True)] == [True, True]
    assert found.unverified == ()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("element_type", ["float32", "int4"])
@pytest.mark.parametrize("tokens", [(0, 5), (5, 11), (3, 9), (100, 200), slice(0, 0)])
def test_ranges_of_positions(tmp_path, profile, tokens, element_type):
    made = make_tensor(element_type=element_type)
    path = write(tmp_path / "s.arrow", [made], profile=profile)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        found = snapshot.read_sequences([2, 0], tokens=tokens).tensors[0]
    assert found.equals(ops.compact(ops.select(made, [2, 0], tokens=tokens)))


@pytest.mark.parametrize("scheme", ["per_block", "per_block_zero_points", "per_channel_heads", "per_tensor"])
def test_parameters_come_along(tmp_path, scheme):
    made = make_tensor(element_type="int8", quantization=scheme)
    path = write(tmp_path / "s.arrow", [made], profile="share")
    with ha.open_snapshot(path, mapped=False) as snapshot:
        found = snapshot.read_sequences(2).tensors[0]
    assert np.array_equal(found.dequantize(0), made.dequantize(2), equal_nan=True)


def test_with_no_gap_only_the_needed_pages_are_fetched(tmp_path):
    pool = np.random.default_rng(1).integers(0, 2**16, (211, 16, 3, 64), dtype=np.uint16)
    tables = [list(range(0, 211, 7)), [5], []]
    tensor = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=tables, seq_lens=[31 * 16, 9, 0], element_type="bfloat16", kv_role="key", layer_index=1
    )
    path = write(tmp_path / "s.arrow", [tensor])
    with ha.open_snapshot(path, mapped=False) as snapshot:
        exact = snapshot.read_sequences(0, gap_bytes=0).fetched
        joined = snapshot.read_sequences(0, gap_bytes=1 << 20).fetched
    page = 16 * 3 * 64 * 2
    assert (exact.needed_pages, exact.needed_bytes) == (31, 31 * page)
    [row] = snapshot._rows._places[0]
    small = row.pages_offset - row.offset
    # The checksums of all 211 pages are among them: the pool is too small for a hash without them.
    assert row.offset < row.checksums_offset <= row.checksums_offset + 8 * 211 <= row.pages_offset
    assert exact.fetched_bytes == small + 31 * page
    assert exact.requests == 31 + 1
    # What lies behind the pages is zeros by its hash.
    assert joined.requests == 1 + 1
    assert joined.fetched_bytes == small + 211 // 7 * 7 * page + page


def many_pages(page_shape, *, num_pages, num_seqs, stride=1, layers=1):
    """Make tensors of many small pages: a sequence's are neighbours, or so far from each other."""
    tables = np.arange(num_pages).reshape(num_seqs, -1) if stride == 1 else np.arange(num_pages).reshape(-1, stride).T
    return [
        ha.BlockPagedTensor.from_arrays(
            np.random.default_rng(layer).integers(0, 2**16, (num_pages, *page_shape), dtype=np.uint16),
            block_tables=tables.tolist(),
            seq_lens=[tables.shape[1] * page_shape[0] - 3] * len(tables),
            element_type="bfloat16",
            kv_role="key",
            layer_index=layer,
        )
        for layer in range(layers)
    ]


@pytest.mark.parametrize(("page_shape", "num_pages"), [((16, 2, 64), 16_000), ((16, 3, 64), 11_000)])
@pytest.mark.parametrize("stride", [1, 100])
def test_with_no_gap_little_more_is_fetched_than_pages_of_a_few_kib(tmp_path, page_shape, num_pages, stride):
    """One sequence in a hundred, of pages of 4 and 6 KiB, in a row and far from each other: at most 1.05 times."""
    made = many_pages(page_shape, num_pages=num_pages, num_seqs=100, stride=stride, layers=2)
    with ha.open_snapshot(write(tmp_path / "s.arrow", made), mapped=False) as snapshot:
        found = snapshot.read_sequences(37, gap_bytes=0)
    assert all(one.equals(ops.compact(ops.select(other, 37))) for one, other in zip(found.tensors, made, strict=True))
    assert found.fetched.needed_bytes == 2 * num_pages // 100 * 2 * np.prod(page_shape)
    # The tables of all sequences are in the first row.
    tables = 4 * (num_pages + 101)
    assert found.fetched.fetched_bytes - tables <= 1.05 * found.fetched.needed_bytes
    if stride == 1:
        assert found.fetched.requests <= 4 * len(made)


def damaged(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_checksums_that_come_one_by_one_are_believed_of_their_page_alone(tmp_path):
    [tensor] = many_pages((16, 1, 72), num_pages=1000, num_seqs=10)
    path = write(tmp_path / "s.arrow", [tensor])
    with ha.open_snapshot(path, mapped=False) as snapshot:
        [row] = snapshot._rows._places[0]
    damaged(path, row.checksums_offset + 8 * 357)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        assert snapshot.read_sequences(4, gap_bytes=0).tensors[0].equals(ops.compact(ops.select(tensor, 4)))
        with pytest.raises(SnapshotCorruptError, match=r"page_pool\[357\].*damaged") as caught:
            snapshot.read_sequences(3, gap_bytes=0)
        assert caught.value.codes == ["page_checksum"]
        with pytest.raises(SnapshotCorruptError, match="head_xxh3"):
            snapshot.read_sequences(4)
        with pytest.raises(SnapshotCorruptError, match="head_xxh3"):
            snapshot.verify()


@pytest.mark.parametrize("where", ["before the checksums", "between them and the pages", "behind the pages"])
def test_everything_else_of_the_row_is_hashed_without_them(tmp_path, where):
    path = write(tmp_path / "s.arrow", many_pages((16, 1, 72), num_pages=1000, num_seqs=10))
    with ha.open_snapshot(path, mapped=False) as snapshot:
        [row] = snapshot._rows._places[0]
    places = (row.checksums_offset - 1, row.pages_offset - 1, row.block.end - 1)
    assert row.checksums_end < row.pages_offset
    place = dict(zip(("before the checksums", "between them and the pages", "behind the pages"), places, strict=True))
    damaged(path, place[where])
    with ha.open_snapshot(path, mapped=False) as snapshot:
        if where == "behind the pages":
            # By its hash it was zeros, and nobody asked.
            assert snapshot.read_sequences(4, gap_bytes=0).unverified == ()
            with pytest.raises(SnapshotCorruptError, match="tail_xxh3"):
                snapshot.verify()
            return
        with pytest.raises(SnapshotCorruptError, match="bare_head_xxh3") as caught:
            snapshot.read_sequences(4, gap_bytes=0)
        assert caught.value.codes == ["row_checksum"]


def forged(path, change):
    forgery = Forgery(path.read_bytes())
    change(forgery)
    path.write_bytes(forgery.content())


def test_files_without_that_hash_are_read_with_all_checksums(tmp_path):
    [tensor] = many_pages((16, 1, 72), num_pages=1000, num_seqs=10)
    path = write(tmp_path / "s.arrow", [tensor])
    forged(path, lambda _: None)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        new = snapshot.read_sequences(3, gap_bytes=0)

    def older(forgery):
        forgery.edit_rows = lambda rows: [row.pop("bare_head_xxh3") for row in rows]

    forged(path, older)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        old = snapshot.read_sequences(3, gap_bytes=0)
        snapshot.verify()
    assert old.tensors[0].equals(new.tensors[0])
    assert old.fetched.fetched_bytes == new.fetched.fetched_bytes + 8 * 900
    assert old.fetched.requests == new.fetched.requests - 2


def test_what_lies_behind_the_pages_is_asked_for_where_it_is_not_zeros(tmp_path):
    [tensor] = many_pages((16, 1, 72), num_pages=1000, num_seqs=10)
    path = write(tmp_path / "s.arrow", [tensor])
    forged(path, lambda _: None)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        zeros = snapshot.read_sequences(3)

    def padded(forgery):
        validity = column_places(forgery.schema)["pool_bytes"][1]

        def patch(row):
            place, size = RowBytes(row).buffer(validity)
            row[place + size] = 7

        forgery.patches[0] = patch

    forged(path, padded)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        other = snapshot.read_sequences(3)
        [row] = snapshot._rows._places[0]
    assert other.tensors[0].equals(zeros.tensors[0])
    assert other.fetched.requests == zeros.fetched.requests + 1
    assert (
        other.fetched.fetched_bytes == zeros.fetched.fetched_bytes + row.block.end - row.pages_offset - row.pages_bytes
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"checksums_offset": lambda at: at - 8}, "row_place"),
        ({"checksums_offset": lambda at: at + 8}, "row_place"),
        ({"checksums_offset": lambda at: at + 2**40}, "row_place"),
        ({"checksums_offset": lambda _: 8}, "row_place"),
        ({"num_pages": lambda _: 2**60}, "row_place"),
        ({"num_pages": lambda _: 999}, "page_checksum"),
    ],
)
def test_places_of_checksums_that_are_none(tmp_path, change, code):
    path = write(tmp_path / "s.arrow", many_pages((16, 1, 72), num_pages=1000, num_seqs=10))

    def elsewhere(forgery):
        [(name, new)] = change.items()
        forgery.edit_rows = lambda rows: rows[0].update({name: new(rows[0][name])})

    forged(path, elsewhere)
    with pytest.raises(SnapshotCorruptError) as caught, ha.open_snapshot(path, mapped=False) as snapshot:
        snapshot.read_sequences(3, gap_bytes=0)
    assert set(caught.value.codes) == {code}


@pytest.mark.parametrize("gap_bytes", [None, 0])
def test_nothing_else_lies_where_checksums_are_left_out(tmp_path, gap_bytes):
    """Who leaves them out would find zeros in its place."""
    path = write(tmp_path / "s.arrow", many_pages((16, 1, 72), num_pages=1000, num_seqs=10))

    def aliased(forgery):
        places = column_places(forgery.schema)

        def patch(row):
            parts = RowBytes(row)
            place, _ = parts.buffer(places["page_checksums.item"][1] + 1)
            parts.set_buffer(places["block_table.item.item"][1] + 1, place - parts.body, 4000)

        forgery.patches[0] = patch

    forged(path, aliased)
    with pytest.raises(SnapshotCorruptError) as caught, ha.open_snapshot(path, mapped=False) as snapshot:
        snapshot.read_sequences(3, gap_bytes=gap_bytes)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("row_place", "tensor 0.page_checksums")
    ]


@pytest.mark.parametrize("checksums", [None, [7] * 999])
def test_checksums_that_are_fewer_than_pages(tmp_path, checksums):
    path = write(tmp_path / "s.arrow", many_pages((16, 1, 72), num_pages=1000, num_seqs=10))

    def fewer(forgery):
        kind = forgery.batches[0].schema.field("page_checksums").type
        forgery.set_column(0, "page_checksums", pa.array([checksums], kind))

    forged(path, fewer)
    with pytest.raises(SnapshotCorruptError), ha.open_snapshot(path, mapped=False) as snapshot:
        snapshot.read_sequences(3, gap_bytes=0)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("gap_bytes", [None, 0])
def test_pages_in_order_take_few_requests(tmp_path, profile, gap_bytes):
    """A restore of one sequence in forty: at most four requests for each row that is touched, and one for 8 MiB."""
    num_pages, num_seqs = 800, 40
    tables = np.arange(num_pages).reshape(num_seqs, -1).tolist()
    pool = np.random.default_rng(4).integers(0, 2**16, (num_pages, 16, 4, 128), dtype=np.uint16)
    tensors = [
        ha.BlockPagedTensor.from_arrays(
            pool[::-1].copy() if role == "key" else pool,
            block_tables=tables,
            seq_lens=[len(table) * 16 - 3 for table in tables],
            element_type="bfloat16",
            kv_role=role,
            layer_index=layer,
        )
        for layer in range(3)
        for role in ("key", "value")
    ]
    with ha.open_snapshot(write(tmp_path / "s.arrow", tensors, profile=profile), mapped=False) as snapshot:
        found = snapshot.read_sequences(num_seqs // 2, gap_bytes=gap_bytes)
        stored = [rows[0] for rows in snapshot._rows._places.values()]
        small = sum((row.pages_offset or row.block.end) - row.offset for row in stored)
    for tensor, whole in zip(found.tensors, tensors, strict=True):
        assert tensor.equals(ops.compact(ops.select(whole, num_seqs // 2)))
    fetched = found.fetched
    assert fetched.needed_pages == 6 * num_pages // num_seqs
    assert fetched.requests <= 4 * len(tensors) + fetched.needed_bytes // (8 << 20)
    if gap_bytes == 0:
        left_out = 8 * (num_pages - num_pages // num_seqs) * len(tensors) * (profile == "share")
        assert fetched.fetched_bytes == fetched.needed_bytes + small - left_out


@pytest.mark.parametrize("profile", PROFILES)
def test_what_came_along_with_the_pages_goes_with_each_tensor(tmp_path, monkeypatch, profile):
    """An archive's rows hold other sequences too: those of a hundred layers would be more than what is asked for."""
    made = [make_tensor(layer_index=layer, num_pages=600, head_dim=512, seed=layer) for layer in range(5)]
    sparse_memory = row_source.sparse_memory
    alive: list[weakref.ref] = []
    most = 0

    def counted(size_bytes, **how):
        nonlocal most
        memory = sparse_memory(size_bytes, **how)
        alive.append(weakref.ref(memory.base))
        most = max(most, sum(ref() is not None for ref in alive))
        return memory

    monkeypatch.setattr(partial, "_TENSORS_AT_ONCE", 2)
    with ha.open_snapshot(write(tmp_path / "s.arrow", made, profile=profile), mapped=False) as snapshot:
        snapshot.group_tables(0)
        monkeypatch.setattr(row_source if profile == "share" else archive_source, "sparse_memory", counted)
        found = snapshot.read_sequences(2).tensors
    assert all(one.equals(ops.compact(ops.select(other, 2))) for one, other in zip(found, made, strict=True))
    assert len(alive) == 5
    assert most <= 2


def test_an_archive_fetches_rows_and_not_the_others(tmp_path):
    pool = np.random.default_rng(1).integers(0, 2**16, (640, 16, 8, 128), dtype=np.uint16)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool,
        block_tables=[list(range(300, 310)), list(range(640))],
        seq_lens=[160, 10240],
        element_type="bfloat16",
        kv_role="key",
        layer_index=1,
    )
    path = write(tmp_path / "s.arrow", [tensor], profile="archive")
    with ha.open_snapshot(path, mapped=False) as snapshot:
        found = snapshot.read_sequences(0)
    assert found.tensors[0].equals(ops.compact(ops.select(tensor, 0)))
    assert found.fetched.needed_pages == 10
    assert 0 < found.fetched.fetched_bytes < 10 << 20


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_damaged_page_is_refused_only_where_it_is_needed(tmp_path, profile, mapped):
    # Rows of 8 MiB, so that the damage lies in one of three.
    pool = np.random.default_rng(1).integers(0, 2**16, (640, 16, 8, 128), dtype=np.uint16)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool,
        block_tables=[[3], [639]],
        seq_lens=[16, 16],
        element_type="bfloat16",
        kv_role="key",
        layer_index=1,
    )
    path = write(tmp_path / "s.arrow", [tensor], profile=profile)
    content = bytearray(path.read_bytes())
    content[len(content) - 20_000] ^= 1
    path.write_bytes(content)
    with ha.open_snapshot(path, mapped=mapped) as snapshot:
        assert snapshot.read_sequences(0).tensors[0].equals(ops.compact(ops.select(tensor, 0)))
        with pytest.raises(SnapshotCorruptError) as refusal:
            snapshot.read_sequences([0, 1])
    assert set(refusal.value.codes) <= {"page_checksum", "row_checksum"}


def test_pages_without_checksums_are_listed(tmp_path):
    path = write(tmp_path / "s.arrow", [make_tensor()], checksums=False)
    with ha.open_snapshot(path, mapped=False) as snapshot:
        assert [str(problem.code) for problem in snapshot.read_sequences(0).unverified] == ["unverified"]


def test_ids_and_places_that_do_not_exist(tmp_path):
    path = write(tmp_path / "s.arrow", [make_tensor()])
    with ha.open_snapshot(path) as snapshot:
        with pytest.raises(IndexError):
            snapshot.read_sequences(len(BLOCK_TABLES))
        with pytest.raises(KeyError):
            snapshot.read_sequences("nobody")


def test_a_recovered_snapshot_says_that_it_has_no_index(tmp_path):
    path = write(tmp_path / "s.arrow", [make_tensor()])
    path.write_bytes(path.read_bytes()[:-20])
    with ha.open_snapshot(path, recover=True) as snapshot, pytest.raises(UnsupportedError):
        snapshot.read_sequences(0)
