"""Which buffers of a row hold pages, so that their sizes can be read from the row's header alone.

Spec: Arrow columnar format, "RecordBatch message": buffers lie in pre-order; snapshot format, sections 2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from hurray_arrow.arrow.schema import PAGE_POOL, POOL_BYTES
from hurray_arrow.errors import UnsupportedError


def page_buffers(schema: pa.Schema) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the buffers that hold page values, for each column of pages.

    Parameters
    ----------
    schema
        A snapshot's schema.

    Returns
    -------
    tuple of tuples of int
        One for each page column, ``pool_bytes`` last: a buffer for each byte plane, or the only one.

    Raises
    ------
    UnsupportedError
        A column before the pages is of a type whose buffers this version cannot count.
    """
    columns: list[tuple[int, ...]] = []
    number = 0
    for field in schema:
        buffers = list(_buffers(field.type))
        if field.name == POOL_BYTES or field.name.startswith(PAGE_POOL):
            columns.append(tuple(number + place for place, has_values in enumerate(buffers) if has_values))
        if field.name == POOL_BYTES:
            break
        number += len(buffers)
    return tuple(columns)


def _buffers(kind: pa.DataType) -> Iterator[bool]:
    """Yield for each buffer of a type whether it holds values, and no validity or offsets."""
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from (False, False)
        yield from _buffers(kind.value_type)
    elif pa.types.is_fixed_size_list(kind):
        yield False
        yield from _buffers(kind.value_type)
    elif pa.types.is_struct(kind):
        yield False
        for field in kind:
            yield from _buffers(field.type)
    elif any(test(kind) for test in _WITH_OFFSETS):
        yield from (False, False, True)
    elif pa.types.is_primitive(kind):
        yield from (False, True)
    else:
        raise UnsupportedError(f"the buffers of a column of {kind} cannot be counted by this version")


_WITH_OFFSETS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
