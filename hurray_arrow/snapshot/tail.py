"""The end of a snapshot file: footer, end batch and index, checked against each other before any row is read.

Spec: snapshot format, section 4, "Order of checks".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hurray_arrow.arrow.ipc_file import custom_metadata_of
from hurray_arrow.arrow.ipc_layout import (
    HEAD_BYTES,
    MAGIC,
    TAIL_BYTES,
    Block,
    IpcLayoutError,
    batch_layout,
    check_footer,
    encapsulated,
    footer_blocks,
    footer_bytes_of,
)
from hurray_arrow.arrow.metadata import check_format_version, parse_schema_metadata
from hurray_arrow.arrow.schema import schema_xxh3
from hurray_arrow.arrow.types import held_types
from hurray_arrow.errors import (
    HurrayArrowError,
    Problem,
    ProblemCode,
    SnapshotCorruptError,
    SnapshotIncompleteError,
)
from hurray_arrow.snapshot.files import Source
from hurray_arrow.snapshot.index import MAX_INDEX_BYTES, NOT_FINISHED, SPEC, Index

#: An end batch has no rows, so nearly no body; another tool's last batch may hold everything.
_MAX_END_BODY_BYTES = 64 << 10
#: How many bytes listing a remote snapshot may take, or a ten thousandth of it.
_LISTING_BYTES = 1 << 20
#: A row takes 24 bytes in the footer, and in the index once to twice as much: a guess with little to spare, and one
#: that long names do not exceed.
_INDEX_PER_FOOTER, _MOST_INDEX_PER_FOOTER = 2.5, 6
#: A damaged footer may say that it is as long as the file.
_MOST_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of a file says: its schema, the snapshot's metadata, and the index.

    ``types`` holds on to the schema's extension types, see :func:`~hurray_arrow.arrow.types.held_types`. ``offset`` is
    where the end batch begins: from there to the end of the file is all that this was made of.
    """

    schema: pa.Schema
    types: tuple[pa.ExtensionType, ...]
    metadata: dict[str, Any]
    index: Index
    offset: int


def read_tail(source: Source) -> Tail:
    """Read and check the end of a snapshot: index_xxh3, then schema_xxh3, then the footer's blocks against the index.

    Raises
    ------
    SnapshotIncompleteError
        No Arrow footer, or no end batch.
    SnapshotCorruptError
        ``index_checksum``, ``index_invalid``, ``schema_checksum``, ``footer_invalid``, ``metadata_invalid``.
    UnsupportedError
        Another version of the format, or a feature that this version does not know.
    """
    url = source.url
    blocks = read_footer(source)
    if blocks[-1].body_bytes <= _MAX_END_BODY_BYTES and blocks[-1].metadata_bytes <= MAX_INDEX_BYTES:
        source.keep_from(blocks[-1].offset)
    try:
        schema, types = held_types(footer_schema(source))
        check_format_version(schema.metadata, url=url)
        # Hashed here, because a damaged name is no UTF-8, which shows when somebody asks for it.
        found = schema_xxh3(schema)
        _check_end_batch(source, blocks[-1], schema)
        end = blocks[-1]
        pairs = custom_metadata_of(source.read(end.offset, end.end - end.offset), schema.serialize())
    except HurrayArrowError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _footer_error(str(error), url) from error
    index = Index.from_custom_metadata(pairs, url=url, file_bytes=source.size)
    if found != index.schema_xxh3:
        message = f"xxh3 {found}, the index says {index.schema_xxh3}"
        raise SnapshotCorruptError(Problem(ProblemCode.SCHEMA_CHECKSUM, "schema", message, SPEC), url=url)
    places = [row.block for row in index.rows]
    if index.kind != "file" or blocks[:-1] != places:
        message = f"{len(blocks) - 1} blocks before the last, the index has {len(places)} rows elsewhere"
        raise _footer_error(message, url)
    return Tail(schema, types, parse_schema_metadata(schema.metadata, url=url), index, blocks[-1].offset)


def _check_end_batch(source: Source, block: Block, schema: pa.Schema) -> None:
    """Look at the last batch's header before Arrow reads the batch: it would decompress whatever is in there."""
    layout = batch_layout(encapsulated(memoryview(source.read(block.offset, block.metadata_bytes))))
    if layout.num_rows and "tensor_index" not in schema.names:
        message = f"an Arrow file with the columns {schema.names!r:.80}, and no snapshot"
        raise SnapshotIncompleteError(message, url=source.url)
    if layout.num_rows:
        raise SnapshotIncompleteError(NOT_FINISHED, url=source.url)
    if layout.compression is not None:
        raise IpcLayoutError(f"an end batch compressed with codec {layout.compression}")


def footer_schema(source: Source) -> pa.Schema:
    """Return the schema that the footer has, once :func:`read_footer` has looked at it.

    Arrow gets bytes and no file object: it reads those in a thread of its own, which may be the last to hold the
    schema's extension types. They are Python's, and to let them go while the interpreter ends aborts the process.
    """
    footer_bytes = footer_bytes_of(source.read(source.size - TAIL_BYTES, TAIL_BYTES).to_pybytes())
    end_bytes = footer_bytes + TAIL_BYTES
    end = memoryview(source.read(source.size - end_bytes, end_bytes))
    return pa.ipc.open_file(pa.py_buffer(b"".join([MAGIC.ljust(HEAD_BYTES, b"\0"), end]))).schema


def read_footer(source: Source) -> list[Block]:
    """Return the footer's blocks; the last of a snapshot is the end batch.

    Raises
    ------
    SnapshotIncompleteError
        The file does not end with a footer.
    SnapshotCorruptError
        ``footer_invalid``: it lists no batch, or one outside the file, or unfolds to more than it is.
    """
    if source.size < HEAD_BYTES + TAIL_BYTES:
        raise SnapshotIncompleteError(f"{source.size} bytes are no Arrow file", url=source.url)
    try:
        size = footer_bytes_of(source.read(source.size - TAIL_BYTES, TAIL_BYTES).to_pybytes())
        start = source.size - TAIL_BYTES - size
        if start < HEAD_BYTES:
            raise IpcLayoutError(f"a footer of {size} bytes in a file of {source.size}")
        source.keep_from(start, spare_bytes=_spare_bytes(source.size, size))
        footer = memoryview(source.read(start, size))
        blocks = footer_blocks(footer)
    except IpcLayoutError as error:
        raise SnapshotIncompleteError(_no_footer(source, error), url=source.url) from error
    try:
        check_footer(footer)
    except IpcLayoutError as error:
        raise _footer_error(str(error), source.url) from error
    if not blocks or any(block.offset < HEAD_BYTES or block.end > start for block in blocks):
        raise _footer_error(f"{len(blocks)} blocks, expected one at least and all before byte {start}", source.url)
    return blocks


def _no_footer(source: Source, error: IpcLayoutError) -> str:
    start = bytes(source.read(0, len(MAGIC)).to_pybytes())
    if start != MAGIC:
        return f"it begins with {start!r} and is no Arrow file, which begins with {MAGIC!r}"
    return f"{error}: {NOT_FINISHED}"


def _spare_bytes(file_bytes: int, footer_bytes: int) -> int:
    """Guess how long the end batch before a long footer is, so that both come at once.

    Within what listing may cost there is room for a generous guess. Where there is none, as for 15,000 tensors and more
    in a few gigabytes, the index itself is longer than that: then a third request would only come on top.
    """
    allowed = max(_LISTING_BYTES, file_bytes // 10_000) - footer_bytes - TAIL_BYTES
    generous = min(_MOST_INDEX_PER_FOOTER * footer_bytes, allowed)
    return min(max(generous, int(_INDEX_PER_FOOTER * footer_bytes)), _MOST_SPARE_BYTES)


def _footer_error(message: str, url: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(Problem(ProblemCode.FOOTER_INVALID, "footer", message, SPEC), url=url)
