from __future__ import annotations

import gc
import itertools
import tracemalloc
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hurray_arrow.arrow.convert import from_record_batch, row_batch, tensors_from_batches, to_record_batch
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.errors import CopyRequiredError, InvariantError, SnapshotCorruptError, UnsupportedError
from hurray_arrow.tensor import BlockPagedTensor
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES, make_tensor, sample_facts

MATRIX = list(itertools.product(ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES))


def rows_of(tensors, *, groups=None, plan=None):
    """One batch per tensor with one schema, as a snapshot has them."""
    plan = plan or SchemaPlan.of(tensors)
    schema = plan.arrow_schema()
    groups = groups or [0] * len(tensors)
    return [
        row_batch(
            tensor,
            plan=plan,
            schema=schema,
            tensor_index=number,
            kv_group=group,
            with_tables=group not in groups[:number],
        )
        for number, (tensor, group) in enumerate(zip(tensors, groups, strict=True))
    ]


def three_tensors(**more):
    """Three tensors of one page class with different pages and layers."""
    return [make_tensor(seed=seed, layer_index=layer, **more) for seed, layer in ((3, 2), (5, 7), (7, None))]


def all_equal(found, expected):
    return len(found) == len(expected) and all(map(BlockPagedTensor.equals, found, expected))


def problem_codes(call):
    with pytest.raises(SnapshotCorruptError) as caught:
        call()
    return caught.value.codes


# -- there and back ---------------------------------------------------------------------------------------------------


def test_the_matrix_is_whole():
    assert len(MATRIX) == (26 + 5) * 2 * 9


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_what_comes_back_is_what_went_in(name):
    for element, index_type, quantization in MATRIX:
        if element == name:
            tensor = make_tensor(element_type=element, index_type=index_type, quantization=quantization)
            again = from_record_batch(to_record_batch(tensor))
            assert again.equals(tensor), (index_type, quantization)
            assert again.descriptor == tensor.descriptor
            assert again.page_pool.dtype == tensor.page_pool.dtype
            assert again.page_pool.shape == tensor.page_pool.shape
            assert again.block_table.dtype == again.seq_ptr.dtype == index_type


def test_every_fact_comes_back():
    tensor = make_tensor(**sample_facts(), layer_name="модель.17/k≠v", component="state.ß", kv_group=5)
    again = from_record_batch(to_record_batch(tensor))
    assert again.equals(tensor)
    assert again.sequences.equals(tensor.sequences)
    assert (again.layer_name, again.component, again.kv_group) == ("модель.17/k≠v", "state.ß", 5)


def test_the_producers_descriptor_comes_back():
    made = make_tensor()
    buffers = [bytes(buffer) + b"\0" * 64 for buffer in made.buffers]
    longer = make_tensor(alignment=4096).descriptor.encode()
    with pytest.warns(UserWarning, match="cut"):
        tensor = BlockPagedTensor.from_buffers(longer, buffers, strict=False, sequences=made.sequences)
    again = from_record_batch(to_record_batch(tensor))
    assert again.original_descriptor == tensor.original_descriptor
    assert again.equals(tensor)


@pytest.mark.parametrize("index_type", INDEX_TYPES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"num_pages": 0, "block_tables": [[], []], "seq_lens": [0, 0]},
        {"num_pages": 0, "block_tables": [], "seq_lens": []},
        {"block_tables": [], "seq_lens": []},
        {"block_tables": [[], [], []], "seq_lens": [0, 0, 0]},
        {"seq_lens": [0, 0, 0, 0]},
        {"page_size": 1},
        {"num_heads": 0},
        {"head_dim": 0},
        {"num_pages": 1, "block_tables": [[0]], "seq_lens": [3]},
    ],
    ids=str,
)
@pytest.mark.parametrize("element", ["bfloat16", "int4", "float6_e2m3", "float128", "bool"])
def test_edges_come_back(element, sizes, index_type):
    tensor = make_tensor(element_type=element, index_type=index_type, **sizes)
    again = from_record_batch(to_record_batch(tensor))
    assert again.equals(tensor)
    assert again.page_pool.shape == tensor.page_pool.shape
    assert again.seq_ptr.dtype == index_type


def test_a_batch_of_one_column_class_holds_no_second_pool():
    batch = to_record_batch(make_tensor())
    assert batch.num_rows == 1
    assert batch.schema.names[-2:] == ["page_pool", "pool_bytes"]
    assert batch.column("pool_bytes").null_count == 1
    odd = to_record_batch(make_tensor(element_type="int4"))
    assert odd.schema.names[-1:] == ["pool_bytes"]
    assert "page_pool" not in odd.schema.names
    assert odd.column("pool_bytes")[0].as_buffer().size == make_tensor(element_type="int4").page_pool.nbytes


def test_batches_are_valid_arrow():
    for element, index_type in itertools.product(ALL_ELEMENT_TYPES, INDEX_TYPES):
        to_record_batch(make_tensor(element_type=element, index_type=index_type, **sample_facts())).validate(full=True)


def test_a_tensor_that_breaks_the_specification_is_refused():
    made = make_tensor()
    broken = BlockPagedTensor.from_buffers(
        made.descriptor,
        [made.page_pool, np.full(6, 64, np.uint32), made.seq_ptr],
        sequences=made.sequences,
        permissive=True,
    )
    with pytest.raises(InvariantError) as caught:
        to_record_batch(broken)
    assert set(caught.value.codes) == {"page_id_out_of_range"}


def test_arrays_changed_since_are_looked_at_again():
    table = np.array([5, 2, 6], np.uint32)
    tensor = make_tensor(block_table=table, seq_ptr=np.array([0, 3], np.uint32), seq_lens=[13])
    to_record_batch(tensor)
    table[1] = 7
    with pytest.raises(InvariantError):
        to_record_batch(tensor)


# -- zero copy --------------------------------------------------------------------------------------------------------


def addresses(tensor):
    return [buffer.ctypes.data for buffer in tensor.buffers]


@pytest.mark.parametrize("index_type", INDEX_TYPES)
@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_no_buffer_is_copied_either_way(name, index_type):
    tensor = make_tensor(element_type=name, index_type=index_type)
    batch = to_record_batch(tensor, copy=False)
    again = from_record_batch(batch, copy=False)
    assert addresses(again) == addresses(tensor)
    column = batch.column("page_pool" if "page_pool" in batch.schema.names else "pool_bytes")
    buffers = [buffer for buffer in column.buffers() if buffer is not None]
    assert buffers[-1].address == tensor.page_pool.ctypes.data
    assert not again.page_pool.flags.writeable


def test_page_bytes_are_allocated_nowhere():
    pool = np.zeros((1024, 16, 8, 64), np.float16)  # 16 MiB
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    tensor = BlockPagedTensor.from_arrays(pool, block_tables=[[5, 1023]], seq_lens=[31], kv_role="key")
    again = from_record_batch(to_record_batch(tensor))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again.page_pool.ctypes.data == pool.ctypes.data
    assert peak < pool.nbytes // 16
    assert pa.total_allocated_bytes() - before < pool.nbytes // 16


def test_values_outlive_the_arrays_the_batch_and_the_tensor():
    tensor = make_tensor(**sample_facts())
    twin = make_tensor(**sample_facts())
    batch = to_record_batch(tensor)
    del tensor
    gc.collect()
    again = from_record_batch(batch)
    del batch
    gc.collect()
    assert again.equals(twin)
    pool = again.page_pool
    del again
    gc.collect()
    assert pool.tobytes() == twin.page_pool.tobytes()


def test_nothing_keeps_the_pool_when_all_is_dropped():
    class Watched(np.ndarray):
        pass

    pool = Watched((7, 5, 3, 11), np.float32)
    pool[:] = 0.5
    gone = weakref.ref(pool)
    batch = to_record_batch(make_tensor(element_type="float32", page_pool=pool))
    again = from_record_batch(batch)
    del pool, batch
    gc.collect()
    assert gone() is not None
    del again
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("quantization", ["per_channel_heads", "per_block_zero_points", "nf4"])
def test_quantization_buffers_cannot_be_had_without_a_copy(quantization):
    tensor = make_tensor(quantization=quantization)
    with pytest.raises(CopyRequiredError):
        to_record_batch(tensor, copy=False)
    assert from_record_batch(to_record_batch(tensor), copy=False).equals(tensor)


def test_tables_stored_wider_than_the_descriptor_says_need_a_copy():
    narrow, wide = make_tensor(), make_tensor(index_type="uint64", seed=5, layer_index=3)
    batches = rows_of([narrow, wide], groups=[0, 1])
    assert all_equal(tensors_from_batches(batches), [narrow, wide])
    with pytest.raises(CopyRequiredError):
        tensors_from_batches(batches, copy=False)
    assert all_equal(tensors_from_batches(batches[1:], copy=False), [wide])


def test_rows_of_a_combined_table_need_a_copy_of_their_offsets():
    tensors = three_tensors()
    batches = rows_of(tensors, groups=[0, 1, 2])
    [combined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assert all_equal(tensors_from_batches([combined]), tensors)
    assert from_record_batch(combined.slice(0, 1), copy=False).equals(tensors[0])
    for number in (1, 2):
        with pytest.raises(CopyRequiredError):
            from_record_batch(combined.slice(number, 1), copy=False)


# -- slices and tables ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["bfloat16", "int8", "float128", "int4 pages", "int4 odd", "uint64 tables"])
def tensors(request):
    more = {
        "bfloat16": {},
        "int8": {"element_type": "int8"},
        "float128": {"element_type": "float128"},
        "int4 pages": {"element_type": "int4", "page_size": 4},
        "int4 odd": {"element_type": "int4"},
        "uint64 tables": {"index_type": "uint64"},
    }[request.param]
    return three_tensors(**sample_facts(more.get("page_size", 5)), quantization="per_channel_dims", **more)


@pytest.fixture
def combined(tensors):
    """All rows in one record batch."""
    [batch] = pa.Table.from_batches(rows_of(tensors, groups=[0, 1, 2])).combine_chunks().to_batches()
    assert batch.num_rows == 3
    return batch


def test_rows_of_one_batch(combined, tensors):
    assert all_equal(tensors_from_batches([combined]), tensors)
    for number, tensor in enumerate(tensors):
        assert from_record_batch(combined.slice(number, 1)).equals(tensor)
    assert all_equal(tensors_from_batches([combined.slice(1)]), tensors[1:])
    assert all_equal(tensors_from_batches([combined.slice(1).slice(1)]), tensors[2:])


def test_sliced_tables(combined, tensors):
    table = pa.Table.from_batches([combined])
    assert all_equal(tensors_from_batches(table.slice(1, 1).to_batches()), tensors[1:2])
    assert all_equal(tensors_from_batches(table.slice(1).combine_chunks().to_batches()), tensors[1:])


def test_filtered_and_taken_rows(combined, tensors):
    table = pa.Table.from_batches([combined])
    kept = table.filter(pc.equal(table["layer_index"], 7))
    assert all_equal(tensors_from_batches(kept.to_batches()), tensors[1:2])
    kept = combined.filter(pa.array([True, False, True]))
    assert all_equal(tensors_from_batches([kept]), [tensors[0], tensors[2]])
    shuffled = combined.take(pa.array([2, 0, 1]))
    assert all_equal(tensors_from_batches([shuffled]), tensors)
    assert all_equal(tensors_from_batches([shuffled.slice(1)]), tensors[:2])


def test_concatenated_and_rechunked_tables(combined, tensors):
    pieces = [combined.slice(2, 1), combined.slice(0, 2)]
    table = pa.concat_tables([pa.Table.from_batches([piece]) for piece in pieces])
    assert all_equal(tensors_from_batches(table.to_batches()), tensors)
    assert all_equal(tensors_from_batches(table.to_batches(max_chunksize=1)), tensors)
    assert all_equal(tensors_from_batches(table.combine_chunks().to_batches()), tensors)
    assert all_equal(tensors_from_batches(table.sort_by("layer_index").combine_chunks().to_batches()), tensors)


def test_columns_that_are_slices_of_longer_ones(combined, tensors):
    columns = [pa.concat_arrays([column, column]).slice(2, 3) for column in combined.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=combined.schema)
    assert all_equal(tensors_from_batches([batch]), tensors)


def test_pages_that_are_a_slice_of_a_longer_array():
    tensor = make_tensor()
    batch = to_record_batch(tensor)
    pages = batch.column("page_pool").values
    longer = pa.concat_arrays([pages.slice(3), pages, pages.slice(0, 2)]).slice(4, 7)
    lists = pa.LargeListArray.from_arrays([0, 7], longer, type=batch.schema.field("page_pool").type)
    again = batch.set_column(batch.schema.get_field_index("page_pool"), batch.schema.field("page_pool"), lists)
    assert from_record_batch(again, copy=False).equals(tensor)


def test_group_rows_without_tables_use_the_first_of_the_group(tensors):
    other = make_tensor(
        block_tables=[[1], [2, 3]],
        seq_lens=[1, 4],
        page_size=tensors[0].page_size,
        element_type=tensors[0].element_type,
        index_type=tensors[0].block_table.dtype.name,
        quantization="per_channel_dims",
        layer_index=23,
    )
    batches = rows_of([tensors[0], other, tensors[1], tensors[2]], groups=[5, 3, 5, 5])
    assert [batch.column("block_table").null_count for batch in batches] == [0, 0, 1, 1]
    expected = [tensors[0], other, tensors[1], tensors[2]]
    found = tensors_from_batches(batches)
    assert all_equal(found, expected)
    assert [tensor.kv_group for tensor in found] == [5, 3, 5, 5]
    # In any order, in one batch or in several.
    assert all_equal(tensors_from_batches(batches[::-1]), expected)
    [combined] = pa.Table.from_batches(batches[::-1]).combine_chunks().to_batches()
    assert all_equal(tensors_from_batches([combined]), expected)


def test_a_group_without_its_first_tensor_is_refused():
    batches = rows_of(three_tensors())
    assert problem_codes(lambda: tensors_from_batches(batches[1:])) == ["group_table_missing"]
    assert problem_codes(lambda: from_record_batch(batches[2])) == ["group_table_missing"]


def test_tables_that_differ_within_a_group_are_refused():
    one, two = make_tensor(), make_tensor(block_tables=[[5, 2, 6], [], [5, 1], [2]], layer_index=3)
    batches = rows_of([one, two], groups=[0, 1])
    group = batches[1].schema.get_field_index("kv_group")
    batches[1] = batches[1].set_column(group, batches[1].schema.field(group), pa.array([0], pa.uint32()))
    assert problem_codes(lambda: tensors_from_batches(batches)) == ["column_mismatch"]


# -- pools in several rows --------------------------------------------------------------------------------------------


def cut(tensor, cuts):
    """Cut a tensor's row into rows of pages, as the archive profile will have them."""
    batch = to_record_batch(tensor)
    place = batch.schema.get_field_index("page_pool")
    pages = batch.column(place).values
    rows = []
    for first, last in itertools.pairwise([0, *cuts, tensor.num_pages]):
        columns = list(batch.columns) if not first else [pa.nulls(1, kind) for kind in batch.schema.types]
        for name in ("tensor_index", "kv_role", "component", "kv_group"):
            columns[batch.schema.get_field_index(name)] = batch.column(name)
        columns[batch.schema.get_field_index("page_offset")] = pa.array([first], pa.uint64())
        piece = pages.slice(first, last - first)
        columns[place] = pa.LargeListArray.from_arrays([0, len(piece)], piece, type=batch.schema.types[place])
        rows.append(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    return rows


def test_a_pool_in_several_rows_is_joined_in_page_order():
    tensor = make_tensor(**sample_facts())
    rows = cut(tensor, [2, 5])
    assert tensors_from_batches(rows)[0].equals(tensor)
    assert tensors_from_batches([rows[2], rows[0], rows[1]])[0].equals(tensor)
    [joined] = pa.Table.from_batches([rows[1], rows[2], rows[0]]).combine_chunks().to_batches()
    assert from_record_batch(joined).equals(tensor)
    with pytest.raises(CopyRequiredError):
        tensors_from_batches(rows, copy=False)


@pytest.mark.parametrize(
    ("kept", "code"),
    [
        ([0, 2], "row_missing"),
        ([1, 2], "group_table_missing"),  # the first row has the tables
        ([0, 1], "page_pool_size"),
        ([0, 1, 1, 2], "row_missing"),
    ],
)
def test_missing_and_repeated_rows_are_refused(kept, code):
    rows = cut(make_tensor(), [2, 5])
    assert problem_codes(lambda: tensors_from_batches([rows[number] for number in kept])) == [code]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_batch_of_no_or_several_tensors_is_refused():
    batches = rows_of(three_tensors())
    for batch in (batches[0].slice(1), pa.Table.from_batches(batches).combine_chunks().to_batches()[0]):
        with pytest.raises(ValueError) as caught:
            from_record_batch(batch)
        assert not isinstance(caught.value, SnapshotCorruptError)
    assert tensors_from_batches([]) == []
    assert tensors_from_batches([batches[0].slice(1)]) == []


def test_two_batches_of_the_same_tensor_index_are_refused():
    one, two = make_tensor(), make_tensor(seed=5)
    assert problem_codes(lambda: tensors_from_batches([to_record_batch(one), to_record_batch(two)])) == ["row_missing"]


def test_an_undeclared_page_class_is_refused():
    tensor = make_tensor()
    plan = SchemaPlan.of([make_tensor(element_type="float16")])
    with pytest.raises(UnsupportedError):
        row_batch(tensor, plan=plan, schema=plan.arrow_schema(), tensor_index=0, kv_group=0)


def test_an_undeclared_table_width_is_refused():
    tensor = make_tensor(index_type="uint64")
    plan = SchemaPlan.of([make_tensor()])
    with pytest.raises(UnsupportedError):
        row_batch(tensor, plan=plan, schema=plan.arrow_schema(), tensor_index=0, kv_group=0)


@pytest.mark.parametrize("storage", ["large_list<uint32>", "large_list<uint64>"])
def test_a_narrow_table_fits_every_wider_storage(storage):
    tensor = make_tensor(**sample_facts())
    plan = SchemaPlan(SchemaPlan.of([tensor]).page_classes, storage)
    [batch] = rows_of([tensor], plan=plan)
    again = from_record_batch(batch)
    assert again.equals(tensor)
    assert again.seq_ptr.dtype == again.block_table.dtype == np.uint32
    with pytest.raises(CopyRequiredError):
        from_record_batch(batch, copy=False)


@pytest.mark.parametrize(
    ("entry", "codes"),
    [(2**32, ["column_mismatch"]), (2**63, ["column_mismatch"]), (2**32 - 1, ["page_id_out_of_range"])],
)
def test_a_value_that_the_descriptors_index_type_cannot_hold_is_corruption(entry, codes):
    tensor = make_tensor()
    plan = SchemaPlan(SchemaPlan.of([tensor]).page_classes, "large_list<uint64>")
    [batch] = rows_of([tensor], plan=plan)
    field = batch.schema.field("block_table")
    storage = pa.array([[5, entry, 6], [], [5, 0], [2]], field.type.value_type.storage_type)
    tables = pa.ExtensionArray.from_storage(field.type.value_type, storage)
    column = pa.ListArray.from_arrays([0, 4], tables, type=field.type)
    batch = batch.set_column(batch.schema.get_field_index("block_table"), field, column)
    assert problem_codes(lambda: from_record_batch(batch)) == codes
