"""Foreign arrays: taken as they are, or refused with the call that would convert them.

Buffers are never converted or copied: what comes out is a read-only view of the caller's memory, and the caller's own
array stays as writable as it was. Only short lists of integers are taken by value.

Spec: block-paged layout, Buffer Table; wire-format page sections 2 and 4.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow import conversions
from hurray_arrow.elements import ElementType, element_type
from hurray_arrow.errors import InvalidDescriptorError, InvariantError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.sequences import read_only, take_integers
from hurray_arrow.spec import INDEX_TYPE_BYTES, INDEX_TYPES, UINT32_MAX, IndexType

Bytes: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[Any]

#: Little-endian, as all that is written.
INDEX_DTYPES: dict[IndexType, np.dtype[Any]] = {
    index_type: np.dtype(f"<u{size_bytes}") for index_type, size_bytes in INDEX_TYPE_BYTES.items()
}
_SPEC = "Buffer Table"
_POOL_AXES = "[num_pages, page_size, num_heads, head_dim]"


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """Give the read-only uint8 view ``[nbytes]`` of a C-contiguous array."""
    view: Bytes = read_only(array).reshape(-1).view(np.uint8)
    return view


def array_problems(
    array: object,
    *,
    name: str,
    dtypes: Sequence[np.dtype[Any]],
    ndim: int | None,
    axes: str = "",
    of_bytes: bool = False,
) -> list[Problem]:
    """Say why an array cannot be taken as it is, each time with the call that would convert it, if one does.

    Parameters
    ----------
    array
        Anything.
    name
        What the caller calls it.
    dtypes
        The dtypes that are taken, the best one first; empty for all.
    ndim
        Number of dimensions, ``None`` for any.
    axes
        What they are, for the message.
    of_bytes
        What is taken are the bytes of an array and not its numbers.

    Returns
    -------
    list of Problem
        Codes ``buffer_dtype`` (no numpy array, masked, big-endian, another dtype) and ``buffer_layout`` (dimensions,
        not C-contiguous).
    """
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        call = conversions.make_array(array, name=name, dtypes=dtypes)
        message = f"{type(array).__name__}, expected a numpy array{call}"
        return [Problem(ProblemCode.BUFFER_DTYPE, name, message, _SPEC)]
    problems = []
    native = array.dtype.newbyteorder("<") if array.dtype.names is None else array.dtype
    if dtypes and native not in dtypes:
        names = " or ".join(map(conversions.dtype_name, dtypes))
        convert = conversions.view_bytes if of_bytes else partial(conversions.convert_array, dtypes=dtypes)
        found = conversions.dtype_name(array.dtype)
        message = f"dtype {found}, expected {names}{convert(array, name=name)}"
        problems.append(Problem(ProblemCode.BUFFER_DTYPE, name, message, _SPEC))
    elif array.dtype != native:
        message = f"dtype {array.dtype.str} is big-endian, expected little-endian: {name}.astype({native.str!r})"
        problems.append(Problem(ProblemCode.BUFFER_DTYPE, name, message, _SPEC))
    if ndim is not None and array.ndim != ndim:
        message = f"{array.ndim} dimensions {array.shape}, expected {ndim}{f': {axes}' if axes else ''}"
        problems.append(Problem(ProblemCode.BUFFER_LAYOUT, name, message, _SPEC))
    if not array.flags.c_contiguous:
        message = f"strides {array.strides} are not C-contiguous: np.ascontiguousarray({name})"
        problems.append(Problem(ProblemCode.BUFFER_LAYOUT, name, message, _SPEC))
    return problems


def index_type_of(which: IndexType | str | int | None) -> IndexType | None:
    """Read an index type as users write it: ``"uint32"``, ``"uint64"``, a member or its tag.

    Raises
    ------
    InvalidDescriptorError
        ``index_type_invalid``.
    """
    if which is None or which in tuple(IndexType):
        return None if which is None else IndexType(which)
    if isinstance(which, str) and which in INDEX_TYPES:
        return INDEX_TYPES[which]
    message = f"{which!r}, expected one of {', '.join(INDEX_TYPES)}"
    raise InvalidDescriptorError(Problem(ProblemCode.INDEX_TYPE_INVALID, "index_type", message, _SPEC))


def take_names(layer_name: object, component: object, kv_group: Any) -> int | None:
    """Check what a tensor is called, and give its group as a Python integer.

    Raises
    ------
    InvariantError
        ``field_out_of_range``: a group that is no uint32, a component without a name.
    TypeError
        A name that is no str, a group that is no integer.

    Spec: snapshot format section 2, tensor key.
    """
    for name, value in (("layer_name", layer_name), ("component", component)):
        if not (isinstance(value, str) or (value is None and name == "layer_name")):
            raise TypeError(f"{name}: expected str, got {type(value).__name__}")
    if not component:
        message = "'', expected 'values', or the name of a companion such as 'scales'"
        raise InvariantError(Problem(ProblemCode.FIELD_OUT_OF_RANGE, "component", message, "snapshot format 2"))
    group = None if kv_group is None else int(operator.index(kv_group))
    if group is not None and not 0 <= group <= UINT32_MAX:
        message = f"{group} is not in 0…{UINT32_MAX}"
        raise InvariantError(Problem(ProblemCode.FIELD_OUT_OF_RANGE, "kv_group", message, "snapshot format 2"))
    return group


class TakenTables(NamedTuple):
    """Both tables, taken as they are or built, and what they are of."""

    block_table: IndexArray
    seq_ptr: IndexArray
    index_type: IndexType


def take_tables(
    block_table: Any, seq_ptr: Any, *, block_tables: Any, index_type: IndexType | str | int | None
) -> tuple[list[Problem], TakenTables | None]:
    """Take both tables as they are, or build them from one list of page ids per sequence.

    Parameters
    ----------
    block_table, seq_ptr
        uint32 or uint64 ``[total_logical_pages]`` and ``[num_seqs + 1]``; ``None`` with ``block_tables``.
    block_tables
        Per sequence a list of ints or an integer array; ``None`` with the others.
    index_type
        Of both tables; ``None`` takes that of block_table, UINT32 for ``block_tables``.

    Returns
    -------
    problems : list of Problem
        As :func:`array_problems`; ``seq_ptr_size`` where seq_ptr has no entry; ``index_type_invalid`` for a uint32
        that does not hold what the tables have.
    taken : TakenTables or None
        ``None`` where there are problems.

    Raises
    ------
    TypeError
        Neither or both are given.
    InvariantError, InvalidDescriptorError
        As :func:`join_tables` and :func:`index_type_of`.

    Spec: block-paged layout, Buffer Table.
    """
    index = index_type_of(index_type)
    tables = {"block_table": block_table, "seq_ptr": seq_ptr, "block_tables": block_tables}
    given = {name for name, value in tables.items() if value is not None}
    if given not in ({"block_table", "seq_ptr"}, {"block_tables"}):
        raise TypeError("pass either block_table and seq_ptr, or block_tables")
    if block_tables is not None:
        block_table, seq_ptr = join_tables(block_tables, index)
    wide = any(map(conversions.exceeds_uint32, (block_table, seq_ptr)))
    if wide and index == IndexType.UINT32:
        message = f"uint32, and the tables have values above {UINT32_MAX}: index_type='uint64'"
        return [Problem(ProblemCode.INDEX_TYPE_INVALID, "index_type", message, _SPEC)], None
    if index is None:
        wide = wide or getattr(block_table, "dtype", None) == INDEX_DTYPES[IndexType.UINT64]
        index = IndexType.UINT64 if wide else IndexType.UINT32
    dtypes = [INDEX_DTYPES[index]]
    problems = array_problems(block_table, name="block_table", dtypes=dtypes, ndim=1)
    problems += array_problems(seq_ptr, name="seq_ptr", dtypes=dtypes, ndim=1)
    if not problems and seq_ptr.size == 0:
        message = "0 entries, expected num_seqs + 1, which is 1 for an empty batch"
        problems.append(Problem(ProblemCode.SEQ_PTR_SIZE, "seq_ptr", message, _SPEC))
    return problems, None if problems else TakenTables(block_table, seq_ptr, index)


class TakenPool(NamedTuple):
    """A page pool that was taken as it is: the view, and what it says of itself."""

    page_pool: npt.NDArray[Any]
    element_type: ElementType
    num_pages: int
    page_shape: tuple[int, int, int]


def take_pool(
    page_pool: Any, element: ElementType | None, *, page_shape: Sequence[int] | None, num_pages: int | None
) -> tuple[list[Problem], TakenPool | None]:
    """Take a page pool as it is.

    Parameters
    ----------
    page_pool
        ``[num_pages, page_size, num_heads, head_dim]`` of the element type's dtype, or of its bits as unsigned
        integers where numpy itself does not know the type; or, with ``page_shape`` and ``num_pages``, uint8 bytes of
        any shape.
    element
        The element type; ``None`` takes that of the array's dtype.
    page_shape
        ``(page_size, num_heads, head_dim)`` of a pool of bytes.
    num_pages
        Pages of a pool of bytes.

    Returns
    -------
    problems : list of Problem
        Codes ``buffer_dtype``, ``buffer_layout``, ``page_pool_size``.
    taken : TakenPool or None
        A read-only view that keeps the caller's memory alive; ``None`` where there are problems.

    Raises
    ------
    UnsupportedError
        The dtype is no element type, or numpy cannot hold the shape.

    Spec: block-paged layout, Storage Invariants 4; wire-format page section 4.
    """
    if page_shape is not None or num_pages is not None:
        return _take_bytes(page_pool, element, page_shape, num_pages)
    dtypes = () if element is None else _dtypes(element)
    problems = array_problems(page_pool, name="page_pool", dtypes=dtypes, ndim=4, axes=_POOL_AXES)
    if element is None and not problems:
        element = element_type(page_pool.dtype)
    if element is not None and element.is_packed:
        return [_packed_problem(page_pool, element)], None
    if problems or element is None:
        return problems, None
    count, *shape = page_pool.shape
    view = read_only(page_pool).view(element.pool_dtype)
    return [], TakenPool(view, element, count, (shape[0], shape[1], shape[2]))


def _packed_problem(page_pool: object, element: ElementType) -> Problem:
    call = conversions.pack_array(page_pool, element)
    message = f"{element.name} pools are packed bytes of {element.bits} bits an element{call}"
    return Problem(ProblemCode.BUFFER_DTYPE, "page_pool", message, "wire format 4")


def _dtypes(element: ElementType) -> list[np.dtype[Any]]:
    """Give the dtypes of a pool of whole bytes; numpy's own types come as themselves only."""
    dtype = element.pool_dtype
    registered = dtype.isbuiltin == 2
    return [dtype, np.dtype(f"<u{dtype.itemsize}")] if registered else [dtype]


def _take_bytes(
    page_pool: Any, element: ElementType | None, page_shape: Sequence[int] | None, num_pages: int | None
) -> tuple[list[Problem], TakenPool | None]:
    if element is None or page_shape is None or num_pages is None:
        raise TypeError(
            "a pool of bytes needs element_type=, page_shape=(page_size, num_heads, head_dim) and num_pages="
        )
    if len(page_shape) != 3:
        raise TypeError(f"page_shape: {tuple(page_shape)}, expected (page_size, num_heads, head_dim)")
    page_size, num_heads, head_dim = (operator.index(size) for size in page_shape)
    num_pages = operator.index(num_pages)
    elems = num_pages * page_size * num_heads * head_dim
    unpacked = element.is_packed and isinstance(page_pool, np.ndarray) and page_pool.size == elems
    if unpacked and page_pool.dtype != np.uint8:
        return [_packed_problem(page_pool, element)], None
    dtypes = [np.dtype(np.uint8)]
    problems = array_problems(page_pool, name="page_pool", dtypes=dtypes, ndim=None, of_bytes=True)
    if problems:
        return problems, None
    expected = element.size_bytes(elems)
    if page_pool.nbytes != expected:
        message = f"{page_pool.nbytes} bytes, expected {expected}"
        return [Problem(ProblemCode.PAGE_POOL_SIZE, "page_pool", message, "Storage Invariants 4")], None
    shape = (page_size, num_heads, head_dim)
    view = shape_pool(as_bytes(page_pool), element, num_pages=num_pages, page_shape=shape)
    return [], TakenPool(view, element, num_pages, shape)


def shape_pool(
    pool_bytes: Bytes, element: ElementType, *, num_pages: int, page_shape: tuple[int, int, int]
) -> npt.NDArray[Any]:
    """View the bytes of a pool as the array that it is; packed pools stay bytes.

    Raises
    ------
    UnsupportedError
        numpy cannot hold the shape: sizes beyond int64, which only a pool without elements has.
    """
    try:
        # What numbers of any pages are read into has four bytes for each element, even where there are no pages.
        np.empty((0, *page_shape), np.float32)
        if element.is_packed:
            return pool_bytes
        return pool_bytes.view(element.pool_dtype).reshape(num_pages, *page_shape)
    except (ValueError, OverflowError) as exc:
        raise UnsupportedError(f"numpy cannot hold a pool of {num_pages} pages of shape {page_shape}: {exc}") from exc


def join_tables(block_tables: Any, index_type: IndexType | None) -> tuple[IndexArray, IndexArray]:
    """Build block_table and seq_ptr from one list of page ids per sequence.

    Parameters
    ----------
    block_tables
        Per sequence a list of ints or an integer array.
    index_type
        Of both tables, UINT32 when ``None``.

    Returns
    -------
    block_table, seq_ptr : numpy.ndarray
        New arrays.

    Raises
    ------
    InvariantError
        ``page_id_out_of_range`` for an id that the index type cannot hold, such as a padding of -1;
        ``buffer_layout`` for a rectangular table, whose padding cannot be told from pages, and for a flat one, which
        does not say where a sequence ends; ``buffer_dtype``.

    Spec: block-paged layout, Buffer Table.
    """
    if isinstance(block_tables, np.ndarray) and block_tables.ndim > 1:
        call = "[row[:n] for row, n in zip(block_tables, pages_per_sequence)]"
        message = f"shape {block_tables.shape}, expected rows that end where their sequence does: {call}"
        raise InvariantError(Problem(ProblemCode.BUFFER_LAYOUT, "block_tables", message, _SPEC))
    given = list(block_tables)
    flat = next((s for s, row in enumerate(given) if not isinstance(row, Iterable)), None)
    if flat is not None:
        message = "a page id, expected a list of page ids for each sequence; a flat table is block_table= with seq_ptr="
        raise InvariantError(Problem(ProblemCode.BUFFER_LAYOUT, f"block_tables[{flat}]", message, _SPEC))
    dtype = np.uint64 if index_type == IndexType.UINT64 else np.uint32
    code, above = ProblemCode.PAGE_ID_OUT_OF_RANGE, "" if dtype is np.uint64 else ": index_type='uint64'"
    rows: list[IndexArray] = [
        take_integers(row, dtype, where=f"block_tables[{s}]", code=code, above=above) for s, row in enumerate(given)
    ]
    seq_ptr = np.zeros(len(rows) + 1, np.uint64)
    seq_ptr[1:] = np.cumsum([row.size for row in rows])
    if int(seq_ptr[-1]) > np.iinfo(dtype).max:
        message = f"{seq_ptr[-1]} entries, expected <= {np.iinfo(dtype).max}: index_type='uint64'"
        raise InvariantError(Problem(ProblemCode.SEQ_PTR_END, "block_tables", message, _SPEC))
    return np.concatenate([*rows, np.empty(0, dtype)]), seq_ptr.astype(dtype)
