from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from hurray_arrow.arrow import schema as schema_module
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.schema import SchemaPlan, page_class_of, page_column_name, schema_xxh3, table_storage_name
from hurray_arrow.arrow.types import BlockTableType, PagePoolType
from hurray_arrow.descriptor import BlockPagedDescriptor, BufferHandle
from hurray_arrow.elements import element_type
from hurray_arrow.errors import UnsupportedError
from hurray_arrow.spec import IndexType, KvRole
from tests.sample import ALL_ELEMENT_TYPES, make_tensor

UINT32, UINT64 = IndexType.UINT32, IndexType.UINT64


def descriptor(*, element="uint8", num_pages, page_shape, index_type=UINT32, entries=0):
    """A descriptor of any size; no buffer of it exists."""
    page_size, heads, dims = page_shape
    kind = element_type(element)
    width = 4 if index_type is UINT32 else 8
    sizes = (kind.size_bytes(num_pages * page_size * heads * dims), entries * width, 2 * width)
    return BlockPagedDescriptor(
        element_type=kind,
        shape=(0, heads, dims),
        page_size=page_size,
        num_pages=num_pages,
        num_seqs=1,
        kv_role=KvRole.KEY,
        index_type=index_type,
        buffers=tuple(BufferHandle(byte_size=size) for size in sizes),
    )


# -- table width ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index_types", "entries", "expected"),
    [
        ([], [], "list<uint32>"),
        ([UINT32], [0], "list<uint32>"),
        ([UINT32, UINT32], [5, 2**31 - 1], "list<uint32>"),
        ([UINT32, UINT32], [5, 2**31], "large_list<uint32>"),
        ([UINT32], [2**32 - 1], "large_list<uint32>"),
        ([UINT32, UINT64], [5, 3], "large_list<uint64>"),
        ([UINT64], [2**40], "large_list<uint64>"),
    ],
)
def test_the_narrowest_table_that_holds_all(index_types, entries, expected):
    assert table_storage_name(index_types, entries) == expected


def test_a_plan_looks_at_every_tensor():
    tensors = [make_tensor(), make_tensor(index_type="uint64"), make_tensor()]
    for order in itertools.permutations(tensors):
        assert SchemaPlan.of(order).table_storage == "large_list<uint64>"
    assert SchemaPlan.of(tensors[::2]).table_storage == "list<uint32>"


# -- page classes -----------------------------------------------------------------------------------------------------


def test_classes_in_order_of_first_use_without_the_uncut():
    tensors = [
        make_tensor(element_type="int4"),  # 165 elements of 4 bits: no column
        make_tensor(element_type="uint8", page_size=3),
        make_tensor(element_type="bfloat16"),
        make_tensor(element_type="uint8", page_size=3, seed=5),
        make_tensor(element_type="int4", page_size=4),
        make_tensor(head_dim=0),
    ]
    plan = SchemaPlan.of(tensors)
    assert plan.page_classes == (
        PageClass("uint8", 8, (3, 3, 11)),
        PageClass("bfloat16", 16, (5, 3, 11)),
        PageClass("int4", 4, (4, 3, 11)),
    )
    columns = [plan.column_of(page_class_of(tensor.descriptor)) for tensor in tensors]
    assert columns == ["pool_bytes", "page_pool", "page_pool_1", "page_pool", "page_pool_2", "pool_bytes"]
    assert SchemaPlan.of(tensor.descriptor for tensor in tensors) == plan


def test_an_undeclared_class_is_refused_and_an_uncut_one_needs_no_declaration():
    plan = SchemaPlan.of([make_tensor()])
    with pytest.raises(UnsupportedError):
        plan.column_of(PageClass("bfloat16", 16, (11, 3, 5)))
    with pytest.raises(UnsupportedError):
        plan.column_of(PageClass("uint16", 16, (5, 3, 11)))
    assert SchemaPlan().column_of(PageClass("int4", 4, (5, 3, 11))) == "pool_bytes"


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_the_class_of_each_element_type(name):
    element = ALL_ELEMENT_TYPES[name]
    found = page_class_of(make_tensor(element_type=name, page_size=4).descriptor)
    assert found == PageClass(name, element.bits, (4, 3, 11))
    assert found.page_bytes == element.page_bytes(132)


@pytest.mark.parametrize(("number", "name"), [(0, "page_pool"), (1, "page_pool_1"), (13, "page_pool_13")])
def test_column_names(number, name):
    assert page_column_name(number) == name


# -- sizes that nobody can allocate here ------------------------------------------------------------------------------


def test_sizes_beyond_32_bits_are_python_integers():
    many = descriptor(num_pages=2**32 + 7, page_shape=(16, 8, 128), element="bfloat16")
    assert many.pool_bytes == (2**32 + 7) * 16 * 8 * 128 * 2
    found = page_class_of(many)
    assert (found.page_elems, found.page_bytes, found.values_per_page) == (16384, 32768, 16384)
    assert SchemaPlan.of([many]).column_of(found) == "page_pool"


@pytest.mark.parametrize(
    ("element", "shape", "column"),
    [
        ("uint8", (2**31 - 1, 1, 1), "page_pool"),
        ("uint8", (2**31, 1, 1), "pool_bytes"),
        ("bfloat16", (2**31 - 1, 1, 1), "page_pool"),
        ("complex64", (2**30, 1, 1), "pool_bytes"),
        ("int4", (2**32 - 2, 1, 1), "page_pool"),
        ("uint8", (2**16, 2**16, 2**16), "pool_bytes"),
    ],
)
def test_a_page_beyond_a_list_size_goes_into_pool_bytes(element, shape, column):
    large = descriptor(num_pages=3, page_shape=shape, element=element)
    assert SchemaPlan.of([large]).column_of(page_class_of(large)) == column


@pytest.mark.parametrize(
    ("entries", "index_type", "storage"),
    [
        (2**31 - 1, UINT32, "list<uint32>"),
        (2**31, UINT32, "large_list<uint32>"),
        (2**32 + 5, UINT64, "large_list<uint64>"),
    ],
)
def test_tables_beyond_32_bits(entries, index_type, storage):
    long = descriptor(num_pages=2**33, page_shape=(1, 1, 8), entries=entries, index_type=index_type)
    assert long.total_logical_pages == entries
    assert SchemaPlan.of([long]).table_storage == storage


# -- the Arrow schema -------------------------------------------------------------------------------------------------

COLUMNS = [
    ("tensor_index", "uint32", False),
    ("layer_index", "uint32", True),
    ("layer_name", "string", True),
    ("kv_role", "string", False),
    ("component", "string", False),
    ("kv_group", "uint32", False),
    ("page_offset", "uint64", False),
    ("block_table", None, True),
    ("sequences", None, True),
    ("quantization_buffers", "list<item: large_binary not null>", True),
    ("descriptor", "large_binary", True),
    ("original_descriptor", "large_binary", True),
    ("page_checksums", "large_list<item: uint64 not null>", True),
    ("page_pool", None, True),
    ("page_pool_1", None, True),
    ("pool_bytes", "large_binary", True),
]


def test_the_columns_are_the_formats():
    plan = SchemaPlan.of([make_tensor(), make_tensor(element_type="uint8"), make_tensor(element_type="int4")])
    found = plan.arrow_schema({b"k": b"v"})
    assert [(field.name, field.nullable) for field in found] == [(name, nullable) for name, _, nullable in COLUMNS]
    for name, kind, _ in COLUMNS:
        assert kind is None or str(found.field(name).type) == kind
    assert found.metadata == {b"k": b"v"}
    for name in ("page_pool", "page_pool_1"):
        kind = found.field(name).type
        assert pa.types.is_large_list(kind)
        assert isinstance(kind.value_type, PagePoolType)
        assert not kind.value_field.nullable
    table = found.field("block_table").type
    assert pa.types.is_list(table)
    assert isinstance(table.value_type, BlockTableType)
    assert not table.value_field.nullable
    assert str(table.value_type.storage_type) == "list<item: uint32 not null>"
    assert not found.field("sequences").type.value_field.nullable


# -- the hash over it -------------------------------------------------------------------------------------------------


def sample_schema():
    plan = SchemaPlan.of([make_tensor(), make_tensor(element_type="private_0xFE", page_size=4)])
    return plan.arrow_schema({b"b": b"2", b"a": b"\xff1"})


def test_the_hash_is_over_the_formats_canonical_json():
    metadata = json.dumps(
        {"element_type": "bfloat16", "encoding": "plain", "page_shape": [5, 3, 11], "version": 1},
        separators=(",", ":"),
    )
    leaf = ["item", False, "uint16", None, None, None, []]
    pages = ["item", False, "fixed_size_list", 165, "hurray.page_pool", metadata, [leaf]]
    place = ["ö", True, "uint8", None, None, None, []]
    expected = [
        [["a", "1"], ["ß", "2"]],
        [
            ["n", False, "uint32", None, None, None, []],
            ["p", True, "large_list", None, None, None, [pages]],
            ["s", True, "struct", None, None, None, [place]],
        ],
    ]
    text = json.dumps(expected, separators=(",", ":"), ensure_ascii=False)
    item = pa.field("item", PagePoolType(PageClass("bfloat16", 16, (5, 3, 11))), nullable=False)
    schema = pa.schema(
        [
            pa.field("n", pa.uint32(), nullable=False),
            pa.field("p", pa.large_list(item)),
            pa.field("s", pa.struct([pa.field("ö", pa.uint8())])),
        ],
        metadata={"ß": "2", "a": "1"},
    )
    assert schema_xxh3(schema) == xxhash.xxh3_64_hexdigest(text.encode())
    assert schema_xxh3(pa.schema([])) == xxhash.xxh3_64_hexdigest(b"[[],[]]")


def test_the_hash_is_the_same_read_back_and_unregistered(tmp_path):
    found = sample_schema()
    path = tmp_path / "schema.arrow"
    with pa.ipc.new_file(str(path), found):
        pass
    assert schema_xxh3(pa.ipc.open_file(str(path)).schema) == schema_xxh3(found)
    program = f"""
import pyarrow as pa, hurray_arrow as ha
from hurray_arrow.arrow.schema import schema_xxh3
ha.unregister()
schema = pa.ipc.open_file({str(path)!r}).schema
assert not isinstance(schema.field("page_pool").type.value_type, pa.ExtensionType)
print(schema_xxh3(schema))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == schema_xxh3(found)


def test_metadata_that_somebody_else_wrote_hashes_alike_registered_or_not(tmp_path):
    spaced = b'{ "page_shape": [5, 3, 11], "version": 1, "encoding": "plain", "element_type": "bfloat16", "x": 1 }'
    metadata = {b"ARROW:extension:name": b"hurray.page_pool", b"ARROW:extension:metadata": spaced}
    storage = PagePoolType(PageClass("bfloat16", 16, (5, 3, 11))).storage_type
    bare = pa.schema([pa.field("p", pa.large_list(pa.field("item", storage, nullable=False, metadata=metadata)))])
    path = tmp_path / "schema.arrow"
    with pa.ipc.new_file(str(path), bare):
        pass
    registered = pa.ipc.open_file(str(path)).schema
    assert isinstance(registered.field("p").type.value_type, PagePoolType)
    assert schema_xxh3(registered) == schema_xxh3(bare)


def changed_schemas():
    base = sample_schema()
    pages = base.field("page_pool")
    yield base.with_metadata({b"b": b"3", b"a": b"\xff1"})
    yield base.with_metadata({b"b": b"2"})
    yield base.remove(0)
    yield base.append(pa.field("later", pa.int8()))
    yield base.set(0, base.field(0).with_name("tensor"))
    yield base.set(0, base.field(0).with_nullable(True))
    yield base.set(0, base.field(0).with_type(pa.int32()))
    yield base.set(1, base.field(0)).set(0, base.field(1))
    for page_class in (PageClass("bfloat16", 16, (3, 5, 11)), PageClass("uint16", 16, (5, 3, 11))):
        item = pa.field("item", PagePoolType(page_class), nullable=False)
        yield base.set(base.get_field_index("page_pool"), pages.with_type(pa.large_list(item)))
    item = pages.type.value_field
    for other in (item.with_name("element"), item.with_nullable(True), item.with_type(item.type.storage_type)):
        yield base.set(base.get_field_index("page_pool"), pages.with_type(pa.large_list(other)))
    yield base.set(base.get_field_index("page_pool"), pages.with_type(pa.list_(item)))


def test_the_hash_tells_schemas_apart():
    hashes = [schema_xxh3(schema) for schema in (sample_schema(), *changed_schemas())]
    assert len(hashes) == 15
    assert len(set(hashes)) == len(hashes)
    again = sample_schema().with_metadata({b"a": b"\xff1", b"b": b"2"})
    assert schema_xxh3(again) == hashes[0]  # metadata pairs are sorted


def test_the_bounds_are_arrows():
    assert np.iinfo(np.int32).max == schema_module.MAX_LIST_ITEMS
    assert schema_module.POOL_BYTES_PIECE == 2**20
