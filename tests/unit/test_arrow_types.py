from __future__ import annotations

import gc
import io
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import hurray_arrow as ha
from hurray_arrow.arrow.convert import to_record_batch
from hurray_arrow.arrow.page_class import PageClass, page_pool_metadata
from hurray_arrow.arrow.types import (
    BLOCK_TABLE_STORAGES,
    BlockTableArray,
    BlockTableType,
    PagePoolArray,
    PagePoolScalar,
    PagePoolType,
    register,
)
from hurray_arrow.arrow.windows import list_window, numpy_dtype, validity
from hurray_arrow.errors import ExtensionMetadataError, InvariantError, ProblemCode, UnsupportedError
from tests.sample import ALL_ELEMENT_TYPES, HEAD_DIM, NUM_HEADS, NUM_PAGES, PAGE_SIZE, codes_of, make_tensor

BFLOAT16 = PageClass("bfloat16", 16, (5, 3, 11))
STORED = {
    # element type: Arrow type of a stored value, stored values of a page of 4 × 3 × 8 = 96 elements
    "float16": ("halffloat", 96),
    "bfloat16": ("uint16", 96),
    "float32": ("float", 96),
    "float64": ("double", 96),
    "int8": ("int8", 96),
    "uint8": ("uint8", 96),
    "int16": ("int16", 96),
    "uint16": ("uint16", 96),
    "int32": ("int32", 96),
    "uint32": ("uint32", 96),
    "int64": ("int64", 96),
    "uint64": ("uint64", 96),
    "bool": ("uint8", 12),
    "float8_e4m3": ("uint8", 96),
    "float8_e5m2": ("uint8", 96),
    "float8_e8m0": ("uint8", 96),
    "float4_e2m1": ("uint8", 48),
    "float6_e2m3": ("uint8", 72),
    "float6_e3m2": ("uint8", 72),
    "float128": ("uint8", 1536),
    "int4": ("uint8", 48),
    "uint4": ("uint8", 48),
    "int2": ("uint8", 24),
    "uint2": ("uint8", 24),
    "complex64": ("float", 192),
    "complex128": ("double", 192),
    "private_0xF0": ("uint8", 12),
    "private_0xF1": ("uint8", 24),
    "private_0xF2": ("uint8", 48),
    "private_0xF7": ("uint8", 96),
    "private_0xFE": ("uint8", 288),
}
WHOLE_PAGES = {"page_size": 4, "num_heads": 3, "head_dim": 8}


def page_class(name, shape=(4, 3, 8)):
    return PageClass(name, ALL_ELEMENT_TYPES[name].bits, shape)


def pools(tensor):
    """The page pool of a tensor as an Arrow array of pages."""
    return to_record_batch(tensor).column("page_pool").values


def page_values(tensor):
    """The pool as [num_pages, …] in the shape that to_pages promises."""
    if tensor.element_type.is_packed:
        return np.asarray(tensor.page_pool).reshape(tensor.num_pages, -1)
    return np.asarray(tensor.page_pool)


def same(found, expected):
    """Bytes, dtype and shape: NaN equals itself, 0.0 differs from -0.0."""
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def through_ipc(table_or_schema):
    sink = io.BytesIO()
    schema = table_or_schema if isinstance(table_or_schema, pa.Schema) else table_or_schema.schema
    with pa.ipc.new_file(sink, schema) as writer:
        if isinstance(table_or_schema, pa.Table):
            writer.write_table(table_or_schema)
    return pa.ipc.open_file(pa.BufferReader(sink.getvalue()))


def schema_with(metadata, *, name="hurray.page_pool", storage=None):
    """Write a schema with this extension metadata, whoever may have made it, and read it back."""
    field_metadata = {b"ARROW:extension:name": name.encode()}
    if metadata is not None:
        field_metadata[b"ARROW:extension:metadata"] = metadata
    storage = BFLOAT16.storage_type() if storage is None else storage
    return through_ipc(pa.schema([pa.field("pages", storage, metadata=field_metadata)])).schema


# -- storage ----------------------------------------------------------------------------------------------------------


def test_every_element_type_is_listed():
    assert set(STORED) == set(ALL_ELEMENT_TYPES)
    assert len(STORED) == 31


@pytest.mark.parametrize("name", STORED)
def test_storage_of_each_element_type(name):
    value_type, per_page = STORED[name]
    storage = PagePoolType(page_class(name)).storage_type
    assert str(storage.value_type) == value_type
    assert storage.list_size == per_page
    assert not storage.value_field.nullable
    assert storage.value_field.name == "item"


@pytest.mark.parametrize("name", STORED)
def test_metadata_is_what_the_format_says(name):
    serialized = PagePoolType(page_class(name)).__arrow_ext_serialize__()
    assert json.loads(serialized) == {
        "version": 1,
        "element_type": name,
        "page_shape": [4, 3, 8],
        "encoding": "plain",
    }


@pytest.mark.parametrize("name", [name for name, element in ALL_ELEMENT_TYPES.items() if element.bits < 8])
def test_a_page_that_is_no_whole_number_of_bytes_is_no_column(name):
    odd = page_class(name, (5, 3, 11))  # 165 elements
    assert odd.page_bytes is None
    assert not odd.fits_a_column
    with pytest.raises(UnsupportedError):
        odd.storage_type()


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((2**31 - 1, 1, 1), True), ((2**31, 1, 1), False), ((2**20, 2**12, 2**9), False), ((5, 0, 11), False)],
)
def test_a_page_of_more_values_than_a_list_size_holds_is_no_column(shape, fits):
    assert PageClass("uint8", 8, shape).fits_a_column is fits


def test_complex_pages_count_two_values_an_element():
    assert PageClass("complex64", 64, (2**30, 1, 1)).fits_a_column is False
    assert PageClass("complex64", 64, (2**30 - 1, 1, 1)).values_per_page == 2**31 - 2


# -- registration -----------------------------------------------------------------------------------------------------


def test_registering_again_changes_nothing():
    register()
    register()
    assert isinstance(through_ipc(pools_table()).schema.field("p").type.value_type, PagePoolType)


def pools_table():
    return pa.table({"p": to_record_batch(make_tensor()).column("page_pool")})


def test_unregistered_files_open_as_bare_storage_and_registering_brings_the_types_back(tmp_path):
    path = tmp_path / "pools.arrow"
    path.write_bytes(ipc_bytes(pools_table()))
    program = f"""
import pyarrow as pa, hurray_arrow as ha
def kind():
    with pa.memory_map({str(path)!r}) as source:
        return pa.ipc.open_file(source).read_all().schema.field("p").type.value_type
assert kind().extension_name == "hurray.page_pool", kind()
ha.unregister(); ha.unregister()
assert kind() == pa.list_(pa.field("item", pa.uint16(), nullable=False), 165), kind()
ha.register(); ha.register()
assert kind().page_shape == (5, 3, 11), kind()
print("fine")
"""
    assert run_python(program) == "fine\n"


def test_a_program_that_never_heard_of_the_package_reads_the_storage(tmp_path):
    path = tmp_path / "pools.arrow"
    path.write_bytes(ipc_bytes(pools_table()))
    program = f"""
import sys, pyarrow as pa
pages = pa.ipc.open_file({str(path)!r}).read_all()["p"].chunk(0).values
assert "hurray_arrow" not in sys.modules
assert pages.type == pa.list_(pa.field("item", pa.uint16(), nullable=False), 165)
print(len(pages), pages.flatten()[164].as_py())
"""
    tensor = make_tensor()
    assert run_python(program) == f"7 {tensor.page_pool.view(np.uint16).reshape(-1)[164]}\n"


def ipc_bytes(table):
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def run_python(program):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "same_storage"),
    [
        (replace(BFLOAT16, page_shape=(5, 11, 3)), True),
        (replace(BFLOAT16, page_shape=(3, 5, 11)), True),
        (PageClass("uint16", 16, (5, 3, 11)), True),
        (PageClass("float16", 16, (5, 3, 11)), False),
        (replace(BFLOAT16, page_shape=(5, 3, 13)), False),
    ],
)
def test_types_of_other_metadata_are_not_equal(other, same_storage):
    one, two = PagePoolType(BFLOAT16), PagePoolType(other)
    assert (one.storage_type == two.storage_type) is same_storage
    assert one != two
    assert two != one
    assert pa.schema([("p", one)]) != pa.schema([("p", two)])
    assert pa.large_list(one) != pa.large_list(two)


def test_equal_types_are_equal_and_hash_alike():
    one, two = PagePoolType(BFLOAT16), PagePoolType(PageClass("bfloat16", 16, (5, 3, 11)))
    assert one == two
    assert hash(one) == hash(two)
    assert one != one.storage_type
    assert one != BlockTableType(BLOCK_TABLE_STORAGES["list<uint32>"])
    assert BlockTableType(BLOCK_TABLE_STORAGES["list<uint32>"]) == BlockTableType(BLOCK_TABLE_STORAGES["list<uint32>"])
    assert len({BlockTableType(storage) for storage in BLOCK_TABLE_STORAGES.values()} | {one, two}) == 4


def test_key_order_and_spaces_in_the_metadata_do_not_matter():
    ours = PagePoolType(BFLOAT16)
    spaced = b' {"page_shape": [5, 3, 11],  "version": 1, "encoding" : "plain", "element_type":"bfloat16"} '
    theirs = schema_with(spaced).field("pages").type
    assert theirs.problem is None
    assert theirs == ours
    assert hash(theirs) == hash(ours)
    assert theirs.__arrow_ext_serialize__() == spaced  # kept by copies


def test_unknown_keys_in_the_metadata_are_kept_and_tell_types_apart():
    more = b'{"version":1,"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"plain","later":true}'
    theirs = schema_with(more).field("pages").type
    assert theirs.problem is None
    assert theirs.page_class == BFLOAT16
    assert theirs != PagePoolType(BFLOAT16)


def test_writing_pages_of_another_class_raises_and_does_not_write_them_silently():
    tensor = make_tensor()
    batch = pa.record_batch({"p": pools(tensor)})
    wrong = pa.schema([("p", PagePoolType(replace(BFLOAT16, page_shape=(11, 3, 5))))])
    for open_writer in (pa.ipc.new_file, pa.ipc.new_stream):
        with open_writer(io.BytesIO(), wrong) as writer:
            with pytest.raises(pa.ArrowInvalid):
                writer.write_batch(batch)
            with pytest.raises((pa.ArrowInvalid, ValueError)):
                writer.write_table(pa.Table.from_batches([batch]))
    with pytest.raises(pa.ArrowInvalid):
        pa.Table.from_batches([batch, pa.record_batch([batch.column(0).storage], names=["p"])])
    with pytest.raises(pa.ArrowInvalid):
        pa.concat_tables([pa.table(batch), wrong.empty_table()])


# -- metadata that cannot be read -------------------------------------------------------------------------------------

UNREADABLE = {
    "nothing": b"",
    "no metadata at all": None,
    "no json": b"{",
    "no utf-8": b'{"version":1,"element_type":"\xff"}',
    "no object": b"[1]",
    "key given twice": b'{"version":1,"version":1,"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"plain"}',
    "not a number": b'{"version":NaN}',
    "version missing": b'{"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"plain"}',
    "element type missing": b'{"version":1,"page_shape":[5,3,11],"encoding":"plain"}',
    "element type no string": b'{"version":1,"element_type":2,"page_shape":[5,3,11],"encoding":"plain"}',
    "encoding missing": b'{"version":1,"element_type":"bfloat16","page_shape":[5,3,11]}',
    "two extents": b'{"version":1,"element_type":"bfloat16","page_shape":[5,33],"encoding":"plain"}',
    "negative extent": b'{"version":1,"element_type":"bfloat16","page_shape":[-5,-3,11],"encoding":"plain"}',
    "extent no integer": b'{"version":1,"element_type":"bfloat16","page_shape":[5.0,3,11],"encoding":"plain"}',
    "extent true": b'{"version":1,"element_type":"bfloat16","page_shape":[true,15,11],"encoding":"plain"}',
    "shape of another storage": b'{"version":1,"element_type":"bfloat16","page_shape":[5,3,13],"encoding":"plain"}',
    "type of another storage": b'{"version":1,"element_type":"float32","page_shape":[5,3,11],"encoding":"plain"}',
    "too long": b'{"version":1,"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"plain","x":"%s"}'
    % (b"x" * 4096),
    "too deep": b'{"version":1,"x":' + b"[" * 2000 + b"]" * 2000 + b"}",
    "page of no elements": b'{"version":1,"element_type":"bfloat16","page_shape":[5,0,11],"encoding":"plain"}',
}
NEWER = {
    "version": b'{"version":2,"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"plain"}',
    "element type": b'{"version":1,"element_type":"float3_e1m1","page_shape":[5,3,11],"encoding":"plain"}',
    "encoding": b'{"version":1,"element_type":"bfloat16","page_shape":[5,3,11],"encoding":"wavelets"}',
}


@pytest.mark.parametrize("metadata", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_metadata_opens_says_why_and_refuses_to_be_used(metadata):
    kind = schema_with(metadata).field("pages").type
    assert isinstance(kind, PagePoolType)
    assert kind.problem.code == ProblemCode.EXTENSION_METADATA_INVALID
    assert kind.problem.message
    assert kind.storage_type == BFLOAT16.storage_type()
    pages = pa.ExtensionArray.from_storage(kind, pa.array([[7] * 165], kind.storage_type))
    for use in (lambda: kind.page_class, lambda: kind.page_shape, pages.to_pages, pages[0].as_py):
        with pytest.raises(ExtensionMetadataError) as caught:
            use()
        assert caught.value.codes == ["extension_metadata_invalid"]
    assert kind.__arrow_ext_serialize__() == (metadata or b"")
    assert kind != PagePoolType(BFLOAT16)


@pytest.mark.parametrize("metadata", NEWER.values(), ids=NEWER)
def test_metadata_of_a_newer_version_opens_and_is_unsupported_when_used(metadata):
    kind = schema_with(metadata).field("pages").type
    assert kind.problem.code == ProblemCode.EXTENSION_METADATA_INVALID
    pages = pa.ExtensionArray.from_storage(kind, pa.array([[7] * 165], kind.storage_type))
    for use in (lambda: kind.page_class, pages.to_pages):
        with pytest.raises(UnsupportedError):
            use()


def test_a_private_type_whose_storage_is_no_whole_number_of_elements_is_unreadable():
    metadata = b'{"version":1,"element_type":"private_0xF7","page_shape":[5,3,11],"encoding":"plain"}'
    bytes_of = lambda count: pa.list_(pa.field("item", pa.uint8(), nullable=False), count)  # noqa: E731
    readable = schema_with(metadata, storage=bytes_of(495)).field("pages").type
    assert readable.page_class == PageClass("private_0xF7", 24, (5, 3, 11))
    assert schema_with(metadata, storage=bytes_of(496)).field("pages").type.problem is not None
    # 66 elements of 12 bits are 99 bytes, and no private type has 12.
    even = metadata.replace(b"[5,3,11]", b"[2,3,11]")
    assert schema_with(even, storage=bytes_of(99)).field("pages").type.problem is not None
    assert schema_with(even, storage=bytes_of(33)).field("pages").type.page_class.bits == 4
    for name in (b"private_0xEF", b"private_0xFF", b"private_0xf7", b"private_0x"):
        unnamed = metadata.replace(b"private_0xF7", name)
        assert schema_with(unnamed, storage=bytes_of(495)).field("pages").type.problem is not None
    assert schema_with(metadata, storage=pa.list_(pa.uint8())).field("pages").type.problem is not None


@pytest.mark.parametrize(
    "storage",
    [pa.uint8(), pa.binary(330), pa.list_(pa.uint8(), 330), pa.list_(pa.uint16()), pa.struct([("b0", pa.uint8())])],
    ids=str,
)
def test_a_storage_that_no_page_has_is_unreadable(storage):
    kind = schema_with(page_pool_metadata(BFLOAT16), storage=storage).field("pages").type
    assert kind.problem.code == ProblemCode.EXTENSION_METADATA_INVALID
    assert kind.storage_type == storage


@pytest.mark.parametrize(
    ("metadata", "storage"),
    [
        (b"", BLOCK_TABLE_STORAGES["list<uint32>"]),
        (b'{"version":2}', BLOCK_TABLE_STORAGES["list<uint32>"]),
        (b'{"version":1}', pa.list_(pa.int32())),
        (b'{"version":1}', pa.uint32()),
    ],
)
def test_an_unreadable_block_table_type_opens_and_says_why(metadata, storage):
    kind = schema_with(metadata, name="hurray.block_table", storage=storage).field("pages").type
    assert isinstance(kind, BlockTableType)
    assert kind.problem.code == ProblemCode.EXTENSION_METADATA_INVALID
    assert kind.__arrow_ext_serialize__() == metadata


def test_storage_that_polars_made_nullable_is_the_same_pages():
    tensor = make_tensor()
    storage = pa.list_(pa.field("element", pa.uint16()), 165)
    kind = schema_with(page_pool_metadata(BFLOAT16), storage=storage).field("pages").type
    assert kind.problem is None
    assert kind.storage_type == storage
    assert kind != PagePoolType(BFLOAT16)
    assert kind.page_class == BFLOAT16
    stored = pools(tensor).storage.cast(storage)
    assert same(pa.ExtensionArray.from_storage(kind, stored).to_pages(), page_values(tensor))
    values = stored.to_pylist()
    values[5][164] = None
    holed = pa.ExtensionArray.from_storage(kind, pa.array(values, storage))
    assert holed.null_count == 0
    with pytest.raises(InvariantError) as caught:
        holed.to_pages()
    assert caught.value.codes == ["arrow_null"]
    assert same(holed.slice(6).to_pages(), page_values(tensor)[6:])


@pytest.mark.parametrize("storage", [pa.list_(pa.uint32()), pa.large_list(pa.uint32()), pa.list_(pa.uint64())], ids=str)
def test_block_tables_that_polars_made_nullable_or_large_are_block_tables(storage):
    kind = schema_with(b'{"version":1}', name="hurray.block_table", storage=storage).field("pages").type
    assert kind.problem is None
    array = pa.ExtensionArray.from_storage(kind, pa.array([[5, 2], [], [3]], storage))
    assert (array.seq_ptr.tolist(), array.block_table.tolist()) == ([0, 2, 2, 3], [5, 2, 3])


# -- byte planes ------------------------------------------------------------------------------------------------------

PLANES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8, "complex128": 16, "float128": 16}


@pytest.mark.parametrize(("name", "count"), PLANES.items())
def test_byte_planes_give_the_same_pages(name, count):
    tensor = make_tensor(element_type=name)
    kind = PagePoolType(PageClass(name, tensor.element_type.bits, (5, 3, 11), "byte_planes"))
    assert kind.storage_type.num_fields == count
    raw = tensor.buffers[0].reshape(7, 165, count)
    planes = [
        pa.FixedSizeListArray.from_arrays(pa.array(raw[:, :, k].reshape(-1)), type=kind.storage_type.field(k).type)
        for k in range(count)
    ]
    fields = [kind.storage_type.field(k) for k in range(count)]
    pages = pa.ExtensionArray.from_storage(kind, pa.StructArray.from_arrays(planes, fields=fields))
    expected = page_values(tensor)
    assert same(pages.to_pages(), expected)
    assert not pages.to_pages().flags.writeable
    assert same(pages.slice(2, 3).to_pages(), expected[2:5])
    assert same(pages.slice(2)[3].as_py(), expected[5])
    assert same(pages.take(pa.array([6, 1])).to_pages(), expected[[6, 1]])
    again = through_ipc(pa.table({"p": pages})).schema.field("p").type
    assert again == kind
    assert again.problem is None
    assert again.page_class.encoding == "byte_planes"


@pytest.mark.parametrize("name", ["int8", "bool", "int4", "float8_e4m3", "private_0xFE", "private_0xF0"])
def test_types_of_one_byte_or_none_of_their_own_have_no_planes(name):
    with pytest.raises(UnsupportedError):
        PageClass(name, ALL_ELEMENT_TYPES[name].bits, (4, 3, 8), "byte_planes").storage_type()


# -- pickling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        PagePoolType(BFLOAT16),
        PagePoolType(page_class("private_0xFE")),
        PagePoolType(page_class("int4")),
        *map(BlockTableType, BLOCK_TABLE_STORAGES.values()),
    ],
    ids=str,
)
def test_types_pickle(kind):
    again = pickle.loads(pickle.dumps(kind))  # noqa: S301  our own bytes
    assert again == kind
    assert hash(again) == hash(kind)
    assert type(again) is type(kind)
    assert again.__arrow_ext_serialize__() == kind.__arrow_ext_serialize__()


def test_an_unreadable_type_and_its_arrays_pickle():
    kind = schema_with(b"{").field("pages").type
    again = pickle.loads(pickle.dumps(kind))  # noqa: S301  our own bytes
    assert again == kind
    assert again.problem == kind.problem


def test_arrays_pickle():
    tensor = make_tensor()
    pages = pickle.loads(pickle.dumps(pools(tensor).slice(2, 3)))  # noqa: S301  our own bytes
    assert pages.type == PagePoolType(BFLOAT16)
    assert same(pages.to_pages(), page_values(tensor)[2:5])


# -- arrays and scalars -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_arrays_give_the_pages_as_numpy_values(name):
    tensor = make_tensor(element_type=name, **WHOLE_PAGES)
    pages, expected = pools(tensor), page_values(tensor)
    assert isinstance(pages, PagePoolArray)
    assert len(pages) == NUM_PAGES
    assert same(pages.to_pages(), expected)
    assert pages.to_pages().ctypes.data == tensor.page_pool.ctypes.data
    assert not pages.to_pages().flags.writeable


@pytest.mark.parametrize("name", STORED)
def test_scalars_give_one_page(name):
    tensor = make_tensor(element_type=name, **WHOLE_PAGES)
    pages, expected = pools(tensor), page_values(tensor)
    scalar = pages[5]
    assert isinstance(scalar, PagePoolScalar)
    assert same(scalar.as_py(), expected[5])
    assert same(pages.slice(2)[3].as_py(), expected[5])
    assert codes_of(scalar.as_py(), 8) == codes_of(expected[5], 8)
    listed = pages.slice(1, 2).to_pylist()
    assert [same(found, page) for found, page in zip(listed, expected[1:3], strict=True)] == [True, True]


@pytest.mark.parametrize(("start", "count"), [(0, 7), (2, 3), (6, 1), (7, 0), (0, 0)])
def test_slices_keep_their_window(start, count):
    tensor = make_tensor()
    pages, expected = pools(tensor), page_values(tensor)
    sliced = pages.slice(start, count)
    assert same(sliced.to_pages(), expected[start : start + count])
    again = pages.slice(1).slice(start, count)
    assert same(again.to_pages(), expected[1:][start : start + count])
    assert sliced.to_pages().shape[1:] == (PAGE_SIZE, NUM_HEADS, HEAD_DIM)


def test_taken_filtered_and_concatenated_arrays_are_right():
    tensor = make_tensor()
    pages, expected = pools(tensor), page_values(tensor)
    assert same(pages.slice(1).take(pa.array([4, 0, 4])).to_pages(), expected[1:][[4, 0, 4]])
    mask = np.array([True, False, True, True, False, False])
    assert same(pages.slice(1).filter(pa.array(mask)).to_pages(), expected[1:][mask])
    joined = pa.concat_arrays([pages.slice(5), pages.slice(2, 2)])
    assert same(joined.to_pages(), expected[[5, 6, 2, 3]])


def test_null_pages_are_none_as_scalars_and_refused_as_numpy():
    tensor = make_tensor()
    pages = pools(tensor).take(pa.array([3, None, 6]))
    assert pages.null_count == 1
    assert pages[1].as_py() is None
    assert same(pages[2].as_py(), page_values(tensor)[6])
    with pytest.raises(ValueError) as caught:
        pages.to_pages()
    assert caught.value.codes == ["arrow_null"]
    assert same(pages.slice(2).to_pages(), page_values(tensor)[6:])


def test_pages_outlive_arrays_and_the_tensor():
    tensor = make_tensor()
    expected = page_values(tensor).copy()
    pages = pools(tensor).slice(1)
    found, page = pages.to_pages(), pages[2].as_py()
    del tensor, pages
    gc.collect()
    assert same(found, expected[1:])
    assert same(page, expected[3])


@pytest.mark.parametrize("name", BLOCK_TABLE_STORAGES)
def test_block_table_arrays_give_seq_ptr_and_block_table(name):
    storage = BLOCK_TABLE_STORAGES[name]
    tables = [[5, 2, 6], [], [5, 0], [2]]
    array = pa.ExtensionArray.from_storage(BlockTableType(storage), pa.array(tables, storage))
    assert isinstance(array, BlockTableArray)
    width = np.uint64 if name.startswith("large_list") else np.uint32
    assert array.seq_ptr.tolist() == [0, 3, 3, 5, 6]
    assert array.seq_ptr.dtype == width
    assert array.block_table.tolist() == [5, 2, 6, 5, 0, 2]
    assert array.block_table.dtype == (np.uint64 if name.endswith("<uint64>") else np.uint32)
    assert array[2].as_py() == [5, 0]
    sliced = array.slice(1, 2)
    assert sliced.seq_ptr.tolist() == [0, 0, 2]
    assert sliced.seq_ptr.dtype == width
    assert sliced.block_table.tolist() == [5, 0]
    empty = array.slice(4)
    assert empty.seq_ptr.tolist() == [0]
    assert empty.block_table.tolist() == []
    shuffled = array.take(pa.array([3, 0]))
    assert (shuffled.seq_ptr.tolist(), shuffled.block_table.tolist()) == ([0, 1, 4], [2, 5, 2, 6])


def test_null_sequences_are_refused_as_numpy():
    storage = BLOCK_TABLE_STORAGES["list<uint32>"]
    array = pa.ExtensionArray.from_storage(BlockTableType(storage), pa.array([[5, 2], None], storage))
    for use in (lambda: array.seq_ptr, lambda: array.block_table):
        with pytest.raises(ValueError) as caught:
            use()
        assert caught.value.codes == ["arrow_null"]


def test_an_array_whose_offsets_arrow_left_out_is_empty():
    storage = pa.list_(pa.uint32())
    array = pa.Array.from_buffers(storage, 0, [None, None], children=[pa.array([], pa.uint32())])
    offsets, values = list_window(array)
    assert (offsets.tolist(), offsets.dtype, len(values)) == ([0], np.uint32, 0)


@pytest.mark.parametrize("start", [0, 1, 7, 8, 13])
def test_validity_through_a_window(start):
    known = [number % 3 != 1 for number in range(29)]
    array = pa.array([number if there else None for number, there in enumerate(known)], pa.uint64())
    assert validity(array.slice(start, 11)).tolist() == known[start : start + 11]


def test_validity_without_nulls_is_none():
    array = pa.array([None, 5, 3])
    assert validity(array.slice(1)) is None
    assert validity(pa.array([1, 2])) is None


def test_types_are_named_in_the_front_door():
    assert {"PagePoolType", "PagePoolArray", "PagePoolScalar", "BlockTableType", "BlockTableArray"} <= set(ha.__all__)


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", [*INTEGERS, "float16", "float32", "float64", "bool_"])
def test_dtypes_are_numpys(name):
    kind = getattr(pa, name)()
    assert numpy_dtype(kind) == pa.array([], kind).to_numpy(zero_copy_only=False).dtype
