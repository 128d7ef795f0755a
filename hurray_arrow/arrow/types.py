"""The two Arrow extension types: ``hurray.page_pool`` and ``hurray.block_table``.

They bind the layout's page pool and block table to Arrow once. Importing :mod:`hurray_arrow.arrow` registers them;
:func:`unregister` and :func:`register` exist for programs that want the bare storage.

Spec: snapshot format, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow import _json
from hurray_arrow.arrow.page_class import (
    BYTE_PLANES,
    MAX_METADATA_BYTES,
    METADATA_VERSION,
    PageClass,
    metadata_problem,
    page_pool_metadata,
    parse_metadata,
    parse_page_pool_metadata,
)
from hurray_arrow.arrow.planes import from_planes
from hurray_arrow.arrow.windows import fixed_size_list_bytes, list_window, primitive_bytes, primitive_values
from hurray_arrow.errors import (
    ExtensionMetadataError,
    HurrayArrowError,
    InvariantError,
    Problem,
    ProblemCode,
    UnsupportedError,
)


class _MetadataType(pa.ExtensionType):
    """An extension type that is its storage and its metadata: compared, hashed and pickled by both."""

    NAME: ClassVar[str]

    _metadata: bytes
    problem: Any

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), *_pickled(self))

    # pyarrow compares extension types without their metadata and so would write the wrong one silently.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _MetadataType) or type(self) is not type(other):
            return NotImplemented
        return _compared(self) == _compared(other)

    # pyarrow's own would be inherited, and compares without the metadata.
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.NAME, str(self.storage_type)))


class PagePoolType(_MetadataType):
    """Arrow type of one physical page; an array of it is a page pool.

    The child buffer of an array *is* buffer 0 of the descriptor. A type whose metadata cannot be read is kept, says
    why in ``problem`` and refuses to be used: an exception here would make the whole file unopenable.

    Parameters
    ----------
    page_class
        Element type, page shape and encoding of the pages.

    Spec: snapshot format, section 1.
    """

    NAME: ClassVar[str] = "hurray.page_pool"

    def __init__(self, page_class: PageClass) -> None:
        self._fill(page_class.storage_type(), page_pool_metadata(page_class), page_class)

    def _fill(self, storage: pa.DataType, serialized: bytes, found: PageClass | HurrayArrowError) -> None:
        self._found = found
        # Before pyarrow's own part: it asks for the metadata at once, and makes the Python object anew from that.
        self._metadata = serialized
        super().__init__(storage, self.NAME)

    @property
    def problem(self) -> Problem | None:
        """Why the type cannot be used; ``None`` where it can."""
        return None if isinstance(self._found, PageClass) else _problem_of(self._found)

    @property
    def page_class(self) -> PageClass:
        """The pages' class.

        Raises
        ------
        ExtensionMetadataError
            ``extension_metadata_invalid``: the metadata could not be read.
        UnsupportedError
            A newer version of the metadata, element type or encoding.
        """
        if isinstance(self._found, PageClass):
            return self._found
        # Anew each time: a raised exception holds on to the frames that it passed.
        raise copy(self._found)

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """``(page_size, num_heads, head_dim)``."""
        return self.page_class.page_shape

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> PagePoolType:
        found: PageClass | HurrayArrowError
        try:
            found = parse_page_pool_metadata(bytes(serialized), storage)
            if not found.fits_a_column or not holds_the_same(found.storage_type(), storage):
                expected = found.storage_type() if found.fits_a_column else "no pages of its own"
                message = f"storage {storage}, metadata says {expected}"
                raise ExtensionMetadataError(metadata_problem(message))
        except (ExtensionMetadataError, UnsupportedError) as error:
            found = error.with_traceback(None)
        made: PagePoolType = cls.__new__(cls)
        made._fill(storage, bytes(serialized), found)
        return made

    def __arrow_ext_class__(self) -> type[PagePoolArray]:
        return PagePoolArray

    def __arrow_ext_scalar_class__(self) -> type[PagePoolScalar]:
        return PagePoolScalar


class BlockTableType(_MetadataType):
    """Arrow type of one sequence's page ids; the offsets of an array are ``seq_ptr``, its values ``block_table``.

    Parameters
    ----------
    storage_type
        ``list<uint32 not null>``, ``large_list<uint32 not null>`` or ``large_list<uint64 not null>``.

    Spec: snapshot format, section 1.
    """

    NAME: ClassVar[str] = "hurray.block_table"

    def __init__(self, storage_type: pa.DataType) -> None:
        self._fill(storage_type, _json.dumps({"version": METADATA_VERSION}).encode(), None)

    def _fill(self, storage_type: pa.DataType, serialized: bytes, problem: Problem | None) -> None:
        self.problem = problem
        self._metadata = serialized
        super().__init__(storage_type, self.NAME)

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> BlockTableType:
        problem = None
        try:
            parse_metadata(bytes(serialized))
            lists = pa.types.is_list(storage) or pa.types.is_large_list(storage)
            if not lists or storage.value_type not in (pa.uint32(), pa.uint64()):
                raise ExtensionMetadataError(metadata_problem(f"storage {storage} is not one of a block table"))
        except (ExtensionMetadataError, UnsupportedError) as error:
            problem = _problem_of(error)
        made: BlockTableType = cls.__new__(cls)
        made._fill(storage, bytes(serialized), problem)
        return made

    def __arrow_ext_class__(self) -> type[BlockTableArray]:
        return BlockTableArray


class PagePoolArray(pa.ExtensionArray):
    """Physical pages; slices keep their window."""

    def to_pages(self) -> npt.NDArray[Any]:
        """Return the pages as numpy values.

        Returns
        -------
        numpy.ndarray
            ``[num_pages, page_size, num_heads, head_dim]`` in the element type's pool dtype; for packed types
            ``uint8 [num_pages, page_bytes]``. A read-only view that keeps the Arrow buffer alive; nothing is copied.
            New memory for byte planes.

        Raises
        ------
        ExtensionMetadataError, UnsupportedError
            As :attr:`PagePoolType.page_class`.
        InvariantError
            ``arrow_null``: a page or a value in it is null.
        """
        page_class = self.type.page_class
        _refuse_nulls(self, PagePoolType.NAME)
        stored = self.storage
        if page_class.encoding == BYTE_PLANES:
            raw = _joined([_plane_bytes(stored.field(k)) for k in range(page_class.num_planes)])
        else:
            raw = _plane_bytes(stored)
        pages: npt.NDArray[Any] = raw.view(page_class.page_dtype)
        return pages.reshape(len(self), *page_class.page_array_shape)


class PagePoolScalar(pa.ExtensionScalar):
    """One page."""

    def as_py(self, *, maps_as_pydicts: str | None = None) -> Any:
        """Return the page as ``[page_size, num_heads, head_dim]`` (packed types: its bytes); ``None`` for null."""
        del maps_as_pydicts
        if not self.is_valid:
            return None
        page_class = self.type.page_class
        if page_class.encoding == BYTE_PLANES:
            raw = _joined([primitive_bytes(self.value[f"b{k}"].values) for k in range(page_class.num_planes)])
        else:
            raw = primitive_bytes(self.value.values)
        return raw.view(page_class.page_dtype).reshape(page_class.page_array_shape)


class BlockTableArray(pa.ExtensionArray):
    """The page ids of each sequence; slices keep their window."""

    @property
    def seq_ptr(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Offsets ``[num_seqs + 1]`` from 0, unsigned, in the offsets' width; a view unless the array is a slice.

        Raises
        ------
        InvariantError
            ``arrow_null``: a sequence is null.
        """
        _refuse_nulls(self, BlockTableType.NAME)
        return list_window(self.storage)[0]

    @property
    def block_table(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Page ids ``[total_logical_pages]``; a read-only view that keeps the Arrow buffer alive.

        Raises
        ------
        InvariantError
            ``arrow_null``: a sequence is null.
        """
        _refuse_nulls(self, BlockTableType.NAME)
        return primitive_values(list_window(self.storage)[1])


def _item(storage: pa.DataType) -> pa.Field:
    return pa.field("item", storage, nullable=False)


#: Storage of a block table by name, narrowest first.
BLOCK_TABLE_STORAGES: Mapping[str, pa.DataType] = {
    "list<uint32>": pa.list_(_item(pa.uint32())),
    "large_list<uint32>": pa.large_list(_item(pa.uint32())),
    "large_list<uint64>": pa.large_list(_item(pa.uint64())),
}


def _compared(kind: _MetadataType) -> tuple[Any, ...]:
    serialized = kind.__arrow_ext_serialize__()
    try:
        metadata = _json.loads(serialized, max_bytes=MAX_METADATA_BYTES)
    except _json.JsonError:
        metadata = serialized
    # 5.0 and 5 are equal in Python, but only one of them is metadata that can be read.
    return kind.storage_type, metadata, kind.problem


def _problem_of(error: HurrayArrowError) -> Problem:
    return error.problems[0] if isinstance(error, ExtensionMetadataError) else metadata_problem(str(error))


def holds_the_same(expected: pa.DataType, found: pa.DataType) -> bool:
    """Say whether two storages differ in names of list items and in "not null" at most, which Polars drops."""
    if pa.types.is_struct(expected) and pa.types.is_struct(found):
        one, two = list(expected), list(found)
        return [field.name for field in one] == [field.name for field in two] and all(
            holds_the_same(a.type, b.type) for a, b in zip(one, two, strict=True)
        )
    if pa.types.is_fixed_size_list(expected) and pa.types.is_fixed_size_list(found):
        return (expected.list_size, expected.value_type) == (found.list_size, found.value_type)
    return False


def _plane_bytes(pages: pa.FixedSizeListArray) -> npt.NDArray[np.uint8]:
    _refuse_nulls(pages, PagePoolType.NAME)
    size = pages.type.list_size
    _refuse_nulls(pages.values.slice(pages.offset * size, len(pages) * size), PagePoolType.NAME)
    return fixed_size_list_bytes(pages)


def _joined(planes: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    raw = np.empty(sum(plane.nbytes for plane in planes), np.uint8)
    from_planes(planes, raw)
    raw.flags.writeable = False
    return raw


def _refuse_nulls(array: pa.Array, where: str) -> None:
    if array.null_count:
        message = f"{array.null_count} nulls where there are none"
        raise InvariantError(Problem(ProblemCode.ARROW_NULL, where, message, spec="snapshot format 1"))


def _pickled(kind: _MetadataType) -> tuple[bytes, bytes]:
    # As a schema: pyarrow 26 forgets "not null" when it pickles a fixed-size list.
    storage = pa.schema([pa.field("storage", kind.storage_type)]).serialize().to_pybytes()
    return storage, kind.__arrow_ext_serialize__()


def _unpickled(kind: type[_MetadataType], storage: bytes, metadata: bytes) -> Any:
    return kind.__arrow_ext_deserialize__(pa.ipc.read_schema(pa.py_buffer(storage)).field(0).type, metadata)


def held_types(schema: pa.Schema) -> tuple[pa.Schema, tuple[pa.ExtensionType, ...]]:
    """Return the same schema over extension types whose Python objects are held, and these.

    pyarrow keeps a type's Python object by a weak reference, and once it is gone makes a new one, metadata parsed, for
    every array that somebody looks at. Who reads many arrays keeps what this gives.
    """
    fields, held = list(schema), []
    for number, field in enumerate(fields):
        if field.type.id in (pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST):
            item = field.type.value_field
            kind = item.type
            if isinstance(kind, (PagePoolType, BlockTableType)):
                make = pa.list_ if field.type.id == pa.lib.Type_LIST else pa.large_list
                fields[number] = field.with_type(make(item.with_type(kind)))
                held.append(kind)
    return pa.schema(fields, metadata=schema.metadata), tuple(held)


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
