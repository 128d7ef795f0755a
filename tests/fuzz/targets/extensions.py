"""Metadata of the two extension types: a type that says why it cannot be used, or one that means what it says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from hurray_arrow.arrow import page_class
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.schema import schema_xxh3
from hurray_arrow.arrow.types import BlockTableType, PagePoolType, held_types
from hurray_arrow.errors import HurrayArrowError
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.limits import bounded, promise, refused
from tests.sample import ALL_ELEMENT_TYPES

NAMES = (PagePoolType.NAME, BlockTableType.NAME)


def _item(kind: pa.DataType) -> pa.Field:
    return pa.field("item", kind, nullable=False)


def _pages(kind: pa.DataType, size: int) -> pa.DataType:
    return pa.list_(_item(kind), size)


def _planes(count: int, size: int) -> pa.DataType:
    return pa.struct([pa.field(f"b{k}", _pages(pa.uint8(), size), nullable=False) for k in range(count)])


#: What metadata may lie on: storages of pages and tables, and what is neither.
STORAGES = (
    *(
        _pages(pa.uint16(), 6),
        _pages(pa.uint8(), 6),
        _pages(pa.float32(), 6),
        _pages(pa.float64(), 12),
        _pages(pa.uint8(), 3),
    ),
    *(_planes(2, 6), _planes(4, 6), _planes(8, 6), _planes(16, 6), _planes(1, 6), pa.struct([])),
    *(pa.list_(_item(pa.uint32())), pa.large_list(_item(pa.uint32())), pa.large_list(_item(pa.uint64()))),
    *(pa.list_(pa.uint32()), pa.list_(pa.int32()), pa.large_list(pa.utf8()), pa.list_(pa.list_(pa.uint32()))),
    *(pa.uint16(), pa.utf8(), pa.null(), pa.large_binary(), pa.list_(pa.field("x", pa.uint16()), 6)),
    *(pa.dictionary(pa.int8(), pa.utf8()), pa.list_(pa.uint16(), 0), pa.list_(pa.bool_(), 6), _pages(pa.float16(), 6)),
)


def seeds() -> Iterator[bytes]:
    """Yield the metadata of every element type on its own storage, and of tables."""
    for name, element in ALL_ELEMENT_TYPES.items():
        for encoding in ("plain", "byte_planes"):
            made = PageClass(name, element.bits, (2, 1, 3), encoding)
            if made.fits_a_column and (encoding == "plain" or made.num_planes):
                storage = made.storage_type()
                place = STORAGES.index(storage) if storage in STORAGES else 0
                yield bytes([0, place]) + page_class.page_pool_metadata(made)
    for storage in range(len(STORAGES)):
        yield bytes([1, storage]) + b'{"version":1}'
        yield bytes([0, storage]) + page_class.page_pool_metadata(PageClass("bfloat16", 16, (2, 1, 3)))
    for text in (
        "{}",
        "[]",
        '{"version":2}',
        '{"version":1,"version":1}',
        '{"version":NaN}',
        "[" * 40,
        "\xff",
        '{"version":"1"}',
    ):
        yield b"\0\0" + text.encode("latin-1")
    for change in (
        {"page_shape": [2**63, 2**63, 3]},
        {"encoding": "x"},
        {"element_type": "private_0xF1"},
        {"version": 3},
    ):
        base = {"version": 1, "element_type": "bfloat16", "page_shape": [2, 1, 3], "encoding": "plain"}
        yield b"\0\0" + json_text(base | change).encode()


def run(data: bytes) -> None:
    """Read the metadata as part of a schema, as a file has it, and look at what comes."""
    choices = Choices(data)
    name, storage = choices.pick(NAMES), choices.pick(STORAGES)
    metadata = choices.rest()
    pairs = {"ARROW:extension:name": name, "ARROW:extension:metadata": metadata}
    bare = pa.schema([pa.field("c", pa.list_(pa.field("item", storage, metadata=pairs)))])
    with bounded(len(data)):
        schema = pa.ipc.read_schema(bare.serialize())
        kind = schema.field(0).type.value_type
        promise(kind.extension_name == name, "another type")
        promise(kind.__arrow_ext_serialize__() == metadata, "other metadata")
        promise(schema_xxh3(schema) == schema_xxh3(bare), "a hash that depends on registration")
        # Types by themselves, in lists of both widths, and in none.
        others = [pa.field("large", pa.large_list(schema.field(0).type.value_field)), pa.field("none", kind)]
        mixed = pa.schema([*schema, *others, pa.field("list", pa.list_(pa.int8()))])
        same, held = held_types(mixed)
        promise(same.equals(mixed) and held == (kind, kind), "other types were held")
        again = pa.ipc.read_schema(schema.serialize()).field(0).type.value_type
        other = pickle.loads(pickle.dumps(kind))  # noqa: S301 - what was dumped here
        promise(kind == again and kind == other and hash(kind) == hash(again) and not (kind != again), "equality")  # noqa: SIM202 - both are ours
        promise(str(kind) and repr(kind), "no text")
        _used(kind, storage)


def _used(kind: pa.ExtensionType, storage: pa.DataType) -> None:
    empty = pa.ExtensionArray.from_storage(kind, pa.nulls(0, storage))
    promise(kind != 3 and kind is not None, "a type is a number")
    if isinstance(kind, BlockTableType):
        if kind.problem is None:
            refused(lambda: pa.ExtensionArray.from_storage(kind, pa.nulls(2, storage)).seq_ptr)
            promise(empty.seq_ptr.tolist() == [0] and not empty.block_table.size, "an empty table is not empty")
        return
    found = refused(lambda: kind.page_class)
    promise((found is None) == (kind.problem is not None), "a problem and a page class, or neither")
    pages = refused(empty.to_pages)
    promise((pages is None) == (found is None), "pages of an unusable type, or none of a usable one")
    if found is not None:
        promise(pages.shape[0] == 0 and kind.page_shape == found.page_shape, "pages of another shape")
        promise(found.storage_type().num_fields == storage.num_fields, "pages of another storage")
        promise(PagePoolType(found).page_class == found, "the class does not come back")
        stated = json.loads(kind.__arrow_ext_serialize__())
        promise(str(stated["element_type"]) == found.element_type, "another element type")
        _one_page(kind, storage)
        wider = (found.page_shape[0] * 3, found.page_shape[1], found.page_shape[2] ** 4)
        for bits in (1, 3, found.bits):
            other = PageClass(found.element_type, bits, wider, found.encoding)
            made = refused(other.storage_type)
            promise(made is None or other.fits_a_column, "a storage of pages that fit no column")
    else:
        promise(_raises(lambda: kind.page_shape), "a shape of an unusable type")


def _one_page(kind: pa.ExtensionType, storage: pa.DataType) -> None:
    """Look at a page of zeros, and at a page that is none."""
    size = storage.field(0).type.list_size if pa.types.is_struct(storage) else storage.list_size
    page = {field.name: [0] * size for field in storage} if pa.types.is_struct(storage) else [0] * size
    both = pa.ExtensionArray.from_storage(kind, pa.array([page, None], storage))
    promise(refused(both.to_pages) is None and both[1].as_py() is None, "a page out of nothing")
    values = both[0].as_py()
    promise(not values.view("u1").any() and np.array_equal(both[:1].to_pages()[0], values), "a page of other values")


def _raises(call: object) -> bool:
    try:
        call()
    except HurrayArrowError:
        return True
    return False
