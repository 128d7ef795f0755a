"""The two Arrow extension types: ``hurray.page_pool`` and ``hurray.block_table``.

They bind the layout's page pool and block table to Arrow once. Importing :mod:`hurray_arrow.arrow` registers them;
:func:`unregister` and :func:`register` exist for programs that want the bare storage.

Spec: snapshot format, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow import _json
from hurray_arrow.elements import ELEMENT_TYPES, element_type
from hurray_arrow.errors import ExtensionMetadataError, Problem, ProblemCode, UnsupportedError

METADATA_VERSION = 1
MAX_METADATA_BYTES = 4096
MAX_STORED_VALUES = 2**31 - 1
PLAIN = "plain"
BYTE_PLANES = "byte_planes"
PRIVATE_PREFIX = "private_0x"

#: Arrow's storage of one element: its type, and how many of them an element takes.
_NATIVE = {
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bfloat16": pa.uint16(),
    "complex64": pa.float32(),
    "complex128": pa.float64(),
}


@dataclass(frozen=True, slots=True)
class PageClass:
    """What the pages of one column have in common.

    Parameters
    ----------
    element_type
        The element type's name, such as ``bfloat16`` or ``private_0xF3``.
    bits
        Bits of one element.
    page_shape
        ``(page_size, num_heads, head_dim)``.
    encoding
        ``"plain"`` or ``"byte_planes"``.
    """

    element_type: str
    bits: int
    page_shape: tuple[int, int, int]
    encoding: str = PLAIN

    @property
    def page_elems(self) -> int:
        """Elements of a page."""
        page_size, num_heads, head_dim = self.page_shape
        return page_size * num_heads * head_dim

    @property
    def page_bytes(self) -> int | None:
        """Bytes of a page; ``None`` where a page is not a whole number of bytes."""
        whole, rest = divmod(self.page_elems * self.bits, 8)
        return None if rest else whole

    @property
    def value_type(self) -> pa.DataType:
        """Arrow type of one stored value (uint8 where Arrow has no such number)."""
        return _NATIVE.get(self.element_type, pa.uint8())

    @property
    def values_per_page(self) -> int | None:
        """Stored values of a page: the fixed list size; ``None`` where a page is not a whole number of bytes."""
        return None if self.page_bytes is None else self.page_bytes * 8 // int(self.value_type.bit_width)

    @property
    def fits_a_column(self) -> bool:
        """Whether pools of this class can be cut into pages; the others go into ``pool_bytes``."""
        stored = self.values_per_page
        return stored is not None and 0 < stored <= MAX_STORED_VALUES

    @property
    def page_array_shape(self) -> tuple[int, ...]:
        """Shape of one page as numpy sees it: the page shape, or for packed types its bytes."""
        packed = self.bits < 8
        return (self.page_bytes or 0,) if packed else self.page_shape

    @property
    def page_dtype(self) -> np.dtype[Any]:
        """Numpy dtype of the pages: the element type's, ``uint8`` for packed, ``V{n}`` for opaque whole-byte types."""
        if self.element_type.startswith(PRIVATE_PREFIX):
            return np.dtype(np.uint8) if self.bits < 8 else np.dtype(f"V{self.bits // 8}")
        return element_type(self.element_type).pool_dtype

    @lru_cache(maxsize=256)  # noqa: B019 - a page class is a small value, and reading a schema asks many times
    def storage_type(self) -> pa.DataType:
        """Arrow storage type of one page: ``fixed_size_list<T not null, n>``.

        Raises
        ------
        UnsupportedError
            The encoding is not known to this version, or the pool cannot be cut into pages.
        """
        if self.encoding != PLAIN:
            raise UnsupportedError(f"page encoding {self.encoding!r:.40} is not supported by this version")
        if not self.fits_a_column:
            raise UnsupportedError(f"pages of {self.page_shape} {self.element_type} cannot be a fixed-size list")
        return pa.list_(pa.field("item", self.value_type, nullable=False), self.values_per_page)


class PagePoolType(pa.ExtensionType):
    """Arrow type of one physical page; an array of it is a page pool.

    The child buffer of an array *is* buffer 0 of the descriptor. A type whose metadata cannot be read is kept, says
    why in ``problem`` and refuses to be used: an exception here would make the whole file unopenable.

    Parameters
    ----------
    page_class
        Element type, page shape and encoding of the pages.

    Notes
    -----
    Spec: snapshot format, section 1.
    """

    NAME: ClassVar[str] = "hurray.page_pool"

    def __init__(self, page_class: PageClass) -> None:
        self._page_class: PageClass | None = page_class
        self.problem: Problem | None = None
        self._metadata = page_pool_metadata(page_class)
        super().__init__(page_class.storage_type(), self.NAME)

    @classmethod
    def _unreadable(cls, storage: pa.DataType, serialized: bytes, problem: Problem) -> PagePoolType:
        made: PagePoolType = cls.__new__(cls)
        made._keep(storage, serialized, problem)
        return made

    def _keep(self, storage: pa.DataType, serialized: bytes, problem: Problem) -> None:
        self._page_class, self.problem, self._metadata = None, problem, serialized
        pa.ExtensionType.__init__(self, storage, self.NAME)

    @property
    def page_class(self) -> PageClass:
        """The pages' class; :class:`ExtensionMetadataError` for a type whose metadata could not be read."""
        if self._page_class is None:
            raise ExtensionMetadataError(self.problem or _metadata_problem("unreadable"))
        return self._page_class

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """``(page_size, num_heads, head_dim)``."""
        return self.page_class.page_shape

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> PagePoolType:
        try:
            page_class = parse_page_pool_metadata(bytes(serialized), storage)
            made = cls(page_class)
            if made.storage_type != storage:
                raise ExtensionMetadataError(_metadata_problem(f"storage {storage}, metadata says {made.storage_type}"))
            made._metadata = bytes(serialized)
        except ExtensionMetadataError as error:
            return cls._unreadable(storage, bytes(serialized), error.problems[0])
        except UnsupportedError as error:
            return cls._unreadable(storage, bytes(serialized), _metadata_problem(str(error)))
        return made

    def __arrow_ext_class__(self) -> type[PagePoolArray]:
        return PagePoolArray

    def __arrow_ext_scalar_class__(self) -> type[PagePoolScalar]:
        return PagePoolScalar

    # pyarrow compares extension types without their metadata and so would write the wrong one silently.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PagePoolType):
            return NotImplemented
        return (self.storage_type, _parsed(self._metadata)) == (other.storage_type, _parsed(other._metadata))

    def __hash__(self) -> int:
        return hash((self.NAME, str(self.storage_type), self._page_class))


class BlockTableType(pa.ExtensionType):
    """Arrow type of one sequence's page ids; the offsets of an array are ``seq_ptr``, its values ``block_table``.

    Parameters
    ----------
    storage_type
        ``list<uint32 not null>``, ``large_list<uint32 not null>`` or ``large_list<uint64 not null>``.

    Notes
    -----
    Spec: snapshot format, section 1.
    """

    NAME: ClassVar[str] = "hurray.block_table"

    def __init__(self, storage_type: pa.DataType) -> None:
        self.problem: Problem | None = None
        self._metadata = _json.dumps({"version": METADATA_VERSION}).encode()
        super().__init__(storage_type, self.NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> BlockTableType:
        made = cls(storage)
        made._metadata = bytes(serialized)
        try:
            _parse_metadata(bytes(serialized))
            if storage not in BLOCK_TABLE_STORAGES.values():
                raise ExtensionMetadataError(_metadata_problem(f"storage {storage} is not one of a block table"))
        except ExtensionMetadataError as error:
            made.problem = error.problems[0]
        return made

    def __arrow_ext_class__(self) -> type[BlockTableArray]:
        return BlockTableArray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockTableType):
            return NotImplemented
        return (self.storage_type, _parsed(self._metadata)) == (other.storage_type, _parsed(other._metadata))

    def __hash__(self) -> int:
        return hash((self.NAME, str(self.storage_type)))


class PagePoolArray(pa.ExtensionArray):
    """Physical pages; slices keep their window."""

    def to_pages(self) -> npt.NDArray[Any]:
        """Return the pages as numpy values.

        Returns
        -------
        numpy.ndarray
            ``[num_pages, page_size, num_heads, head_dim]`` in the element type's pool dtype; for packed types
            ``uint8 [num_pages, page_bytes]``. A read-only view that keeps the Arrow buffer alive; nothing is copied.

        Raises
        ------
        ExtensionMetadataError
            ``extension_metadata_invalid``: the type's metadata could not be read.
        """
        page_class = self.type.page_class
        pages: npt.NDArray[Any] = fixed_size_list_bytes(self.storage).view(page_class.page_dtype)
        return pages.reshape(len(self), *page_class.page_array_shape)


class PagePoolScalar(pa.ExtensionScalar):
    """One page."""

    def as_py(self, *, maps_as_pydicts: str | None = None) -> Any:
        """Return the page as ``[page_size, num_heads, head_dim]`` (packed types: its bytes); ``None`` for null."""
        del maps_as_pydicts
        if not self.is_valid:
            return None
        page_class = self.type.page_class
        raw = primitive_bytes(self.value.values)
        return raw.view(page_class.page_dtype).reshape(page_class.page_array_shape)


class BlockTableArray(pa.ExtensionArray):
    """The page ids of each sequence; slices keep their window."""

    @property
    def seq_ptr(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Offsets ``[num_seqs + 1]`` from 0, unsigned, in the offsets' width; a view unless the array is a slice."""
        return list_window(self.storage)[0]

    @property
    def block_table(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Page ids ``[total_logical_pages]``; a read-only view that keeps the Arrow buffer alive."""
        return primitive_values(list_window(self.storage)[1])


def _item(storage: pa.DataType) -> pa.Field:
    return pa.field("item", storage, nullable=False)


#: Storage of a block table by name, narrowest first.
BLOCK_TABLE_STORAGES: Mapping[str, pa.DataType] = {
    "list<uint32>": pa.list_(_item(pa.uint32())),
    "large_list<uint32>": pa.large_list(_item(pa.uint32())),
    "large_list<uint64>": pa.large_list(_item(pa.uint64())),
}


@lru_cache(maxsize=256)
def page_pool_metadata(page_class: PageClass) -> bytes:
    """Write the extension metadata of a page pool (JSON, at most 4 KiB)."""
    fields = {
        "version": METADATA_VERSION,
        "element_type": page_class.element_type,
        "page_shape": list(page_class.page_shape),
        "encoding": page_class.encoding,
    }
    return _json.dumps(fields).encode()


@lru_cache(maxsize=256)
def parse_page_pool_metadata(serialized: bytes, storage: pa.DataType) -> PageClass:
    """Read the extension metadata of a page pool; ``storage`` tells the width of a private element type.

    Raises
    ------
    ExtensionMetadataError
        ``extension_metadata_invalid``: not the format's JSON.
    UnsupportedError
        A newer element type.
    """
    fields = _parse_metadata(serialized)
    name, shape, encoding = fields.get("element_type"), fields.get("page_shape"), fields.get("encoding")
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise ExtensionMetadataError(_metadata_problem("element_type and encoding must be strings"))
    if not isinstance(shape, list) or len(shape) != 3:
        raise ExtensionMetadataError(_metadata_problem(f"page_shape {shape!r:.40}, expected three integers"))
    try:
        page_size, num_heads, head_dim = (_json.as_integer(extent, what="page_shape") for extent in shape)
    except _json.JsonError as error:
        raise ExtensionMetadataError(_metadata_problem(str(error))) from error
    page_elems = page_size * num_heads * head_dim
    return PageClass(name, _element_bits(name, storage, page_elems), (page_size, num_heads, head_dim), encoding)


def _element_bits(name: str, storage: pa.DataType, page_elems: int) -> int:
    if name.startswith(PRIVATE_PREFIX):
        stored = storage.list_size if pa.types.is_fixed_size_list(storage) else 0
        if not page_elems or stored * 8 % page_elems:
            raise ExtensionMetadataError(_metadata_problem(f"{stored} bytes are no page of {page_elems} elements"))
        return int(stored * 8 // page_elems)
    if name not in ELEMENT_TYPES:
        raise UnsupportedError(f"element type {name!r:.40} is not known to this version")
    return ELEMENT_TYPES[name].bits


@lru_cache(maxsize=256)
def _parse_metadata(serialized: bytes) -> Mapping[str, Any]:
    try:
        fields = _json.loads(serialized, max_bytes=MAX_METADATA_BYTES)
    except _json.JsonError as error:
        raise ExtensionMetadataError(_metadata_problem(str(error))) from error
    if not isinstance(fields, dict) or fields.get("version") != METADATA_VERSION:
        found = fields.get("version") if isinstance(fields, dict) else fields
        raise ExtensionMetadataError(_metadata_problem(f"version {found!r:.40}, expected {METADATA_VERSION}"))
    return MappingProxyType(fields)


def _parsed(serialized: bytes) -> Any:
    try:
        return _json.loads(serialized, max_bytes=MAX_METADATA_BYTES)
    except _json.JsonError:
        return serialized


def _metadata_problem(message: str) -> Problem:
    return Problem(ProblemCode.EXTENSION_METADATA_INVALID, "extension metadata", message, spec="snapshot format 1")


def fixed_size_list_bytes(array: pa.FixedSizeListArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of a fixed-size list's values, its window only.

    Returns
    -------
    numpy.ndarray
        uint8 ``[len(array) * list_size * width]``; a read-only view that keeps the Arrow buffer alive.
    """
    size = array.type.list_size
    return primitive_bytes(array.values.slice(array.offset * size, len(array) * size))


def primitive_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a primitive array's window; a read-only view that keeps the buffer alive."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8, len(array) * width, array.offset * width)


def primitive_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return a primitive array's values in their own dtype; a read-only view that keeps the buffer alive."""
    values: npt.NDArray[Any] = primitive_bytes(array).view(array.type.to_pandas_dtype())
    return values


def list_window(array: pa.ListArray | pa.LargeListArray) -> tuple[npt.NDArray[Any], pa.Array]:
    """Return a list array's offsets rebased to 0, unsigned, and the window of its values.

    Arrow may leave the offsets of an empty array out; then ``[0]`` is given back.
    """
    unsigned = np.uint64 if pa.types.is_large_list(array.type) else np.uint32
    if not len(array):
        return np.zeros(1, unsigned), array.values.slice(0, 0)
    offsets = primitive_values(array.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    rebased = offsets.view(unsigned) if first == 0 else (offsets - first).view(unsigned)
    return rebased, array.values.slice(first, last - first)


def validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which elements are not null, ``None`` where all are.

    pyarrow's own ``is_valid`` loads its compute module, which takes longer than opening a snapshot.
    """
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return None
    first = array.offset // 8
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8)[first:], bitorder="little")
    start = array.offset - 8 * first
    return unpacked[start : start + len(array)].view(np.bool_)


def extension_types(schema: pa.Schema) -> tuple[pa.ExtensionType, ...]:
    """Return the extension types of a schema's items.

    pyarrow keeps a type's Python object by a weak reference and makes it anew, metadata parsed, each time it is asked
    for and gone: who reads many arrays of a schema holds on to these.
    """
    lists = (field.type for field in schema if field.type.id in (pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST))
    return tuple(item for kind in lists if isinstance(item := kind.value_type, pa.ExtensionType))


_REGISTERED: list[str] = []


def register() -> None:
    """Register the two extension types with pyarrow; a second call changes nothing."""
    examples: Sequence[pa.ExtensionType] = (
        PagePoolType(PageClass("float32", 32, (1, 1, 1))),
        BlockTableType(BLOCK_TABLE_STORAGES["list<uint32>"]),
    )
    for example in examples:
        if example.NAME not in _REGISTERED:
            pa.register_extension_type(example)
            _REGISTERED.append(example.NAME)


def unregister() -> None:
    """Take the two extension types out of pyarrow's registry; files then open as their bare storage."""
    while _REGISTERED:
        pa.unregister_extension_type(_REGISTERED.pop())
