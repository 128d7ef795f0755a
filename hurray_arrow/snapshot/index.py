"""The index in a snapshot's end batch: what the rows are, where they lie, and what protects them.

Spec: snapshot format, section 4. JSON Schema: ``schemas/index.schema.json``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import zstandard

from hurray_arrow import _json
from hurray_arrow.arrow.ipc_layout import Block
from hurray_arrow.errors import SHOWN_OF_A_KIND, Problem, ProblemCode, SnapshotCorruptError, SnapshotIncompleteError
from hurray_arrow.snapshot.checksums import xxh3_hex
from hurray_arrow.spec import KV_ROLES, UINT64_MAX

INDEX_KEY = "hurray_arrow.index"
INDEX_ZST_KEY = "hurray_arrow.index.zst"
INDEX_HASH_KEY = "hurray_arrow.index_xxh3"

INDEX_VERSION = 1
MAX_PLAIN_INDEX_BYTES = 16 << 10
MAX_INDEX_BYTES = 256 << 20
#: What an index may take in memory beside what its file's size allows.
FREE_INDEX_BYTES = 16 << 20
_HASH = re.compile("[0-9a-f]{16}")
SPEC = "snapshot format 4"

NOT_FINISHED = "the writer did not finish, or another tool rewrote the file; recover=True reads whole rows"
#: What an index is of.
FILE, STREAM = "file", "stream"
#: What a row of a stream does not have.
_PLACE = ("offset", "metadata_bytes", "body_bytes")

#: Bytes of a page's checksum.
CHECKSUM_BYTES = 8

#: A tensor's key, unique in a snapshot.
TensorKey = tuple[int, int | None, str | None, str, str]


class IndexRow(NamedTuple):
    """One row of the snapshot: what it holds and, in a file, where. Sizes and offsets are bytes from the file's start.

    The share profile adds the place of the pages and the hashes of what lies before and after them, before them also
    without the page checksums (``bare_head_xxh3``), for readers of few pages; the archive profile
    the hash of all of the row's bytes as stored, and ``num_pages`` counts the pages of this row. In a stream there are
    no places (``offset`` and sizes are 0 here, and left out of the JSON), and ``small_xxh3`` covers what is not pages,
    see :mod:`hurray_arrow.arrow.small_columns`.
    """

    tensor_index: int
    layer_index: int | None
    layer_name: str | None
    kv_role: str
    component: str
    kv_group: int
    page_offset: int
    num_pages: int
    num_seqs: int
    element_type: str
    page_shape: tuple[int, int, int]
    encoding: str
    index_type: str
    offset: int = 0
    metadata_bytes: int = 0
    body_bytes: int = 0
    pages_offset: int | None = None
    pages_bytes: int | None = None
    checksums_offset: int | None = None
    head_xxh3: str | None = None
    bare_head_xxh3: str | None = None
    tail_xxh3: str | None = None
    row_xxh3: str | None = None
    small_xxh3: str | None = None

    @property
    def key(self) -> TensorKey:
        """The tensor's key."""
        return (self.kv_group, self.layer_index, self.layer_name, self.kv_role, self.component)

    @property
    def checksums_end(self) -> int:
        """Where the page checksums end, in a row that has ``bare_head_xxh3``: one for each page."""
        return (self.checksums_offset or 0) + CHECKSUM_BYTES * self.num_pages

    @property
    def block(self) -> Block:
        """The row's place in the file."""
        return Block(self.offset, self.metadata_bytes, self.body_bytes)

    def as_json(self, kind: str) -> dict[str, Any]:
        """Return the row as JSON values; what a profile or a stream does not have is left out."""
        return {
            name: value
            for name, value in self._asdict().items()
            if (value is not None or name not in self._field_defaults) and not (kind == STREAM and name in _PLACE)
        }


def _integer(value: Any, what: str) -> int:
    return _json.as_integer(value, what=what)


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _json.JsonError(f"{what}: {value!r:.40}, expected a string")
    return value


def _role(value: Any, what: str) -> str:
    if not isinstance(value, str) or value not in KV_ROLES:
        raise _json.JsonError(f"{what}: {value!r:.40}, expected one of {', '.join(KV_ROLES)}")
    return value


def _hash(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise _json.JsonError(f"{what}: {value!r:.40}, expected 16 lower-case hex digits")
    return value


def _shape(value: Any, what: str) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise _json.JsonError(f"{what}: {value!r:.40}, expected three integers")
    page_size, num_heads, head_dim = (_integer(extent, what) for extent in value)
    # Callers divide by it before they have seen a descriptor.
    if page_size < 1:
        raise _json.JsonError(f"{what}: {value!r:.40}, expected pages of one slot or more")
    return page_size, num_heads, head_dim


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "kv_role": _role,
    **dict.fromkeys(("component", "element_type", "encoding", "index_type", "layer_name"), _string),
    **dict.fromkeys(("head_xxh3", "bare_head_xxh3", "tail_xxh3", "row_xxh3", "small_xxh3"), _hash),
    "page_shape": _shape,
}
#: What is left out where there is none; the other keys are always there, as null where there is none.
_LEFT_OUT = frozenset(IndexRow._field_defaults)
_NULLABLE = {"layer_index", "layer_name", *IndexRow._field_defaults} - {*_PLACE}


def _rows_from_json(rows: list[Any], kind: str) -> tuple[IndexRow, ...]:
    """Read the rows, field by field over all of them: an index may have a hundred thousand."""
    if not all(type(row) is dict for row in rows):
        raise _json.JsonError("rows are not all objects")
    columns = (
        [0] * len(rows) if kind == STREAM and name in _PLACE else _column(rows, name) for name in IndexRow._fields
    )
    return tuple(map(IndexRow._make, zip(*columns, strict=True)))


def _column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    values: list[Any] = [row.get(name) for row in rows]
    kinds = set(map(type, values))
    if type(None) in kinds and any((name in row) == (name in _LEFT_OUT) for row in rows if row.get(name) is None):
        raise _json.JsonError(f"{name} is {'null' if name in _LEFT_OUT else 'missing'} in a row")
    read: Callable[[Any, str], Any] = _READERS.get(name, _integer)
    # What nearly every index holds is recognised at once; everything else is looked at one by one.
    if kinds == {type(None)} and name in _NULLABLE:
        return values
    if read is _integer and kinds == {int} and min(values) >= 0 and max(values) <= UINT64_MAX:
        return values
    if read is _string and kinds == {str}:
        return values
    return [
        None if value is None and name in _NULLABLE else read(value, f"rows[{number}].{name}")
        for number, value in enumerate(values)
    ]


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index.

    Parameters
    ----------
    rows
        In file order.
    schema_xxh3
        Hash of the schema, see :func:`~hurray_arrow.arrow.schema.schema_xxh3`.
    kind
        ``"file"`` or ``"stream"``.
    """

    rows: tuple[IndexRow, ...]
    schema_xxh3: str
    kind: str = FILE

    @property
    def num_tensors(self) -> int:
        """Number of different tensors in the rows."""
        return len({row.tensor_index for row in self.rows})

    def custom_metadata(self) -> dict[str, str]:
        """Return the end batch's custom metadata."""
        text = _json.dumps(
            {
                "version": INDEX_VERSION,
                "kind": self.kind,
                "num_rows": len(self.rows),
                "num_tensors": self.num_tensors,
                "schema_xxh3": self.schema_xxh3,
                "rows": [row.as_json(self.kind) for row in self.rows],
            }
        )
        key, value = INDEX_KEY, text
        if len(text.encode()) > MAX_PLAIN_INDEX_BYTES:
            key = INDEX_ZST_KEY
            value = base64.b64encode(zstandard.ZstdCompressor().compress(text.encode())).decode("ascii")
        return {key: value, INDEX_HASH_KEY: xxh3_hex(value.encode())}

    @classmethod
    def from_custom_metadata(cls, pairs: Mapping[bytes, bytes] | None, *, url: str, file_bytes: int) -> Index:
        """Read the index out of the end batch's custom metadata.

        Parameters
        ----------
        pairs
            The custom metadata.
        url
            What errors call the snapshot.
        file_bytes
            The file's size, or what came of a stream: what the index takes in memory is in proportion to that, because
            no row is shorter than its header.

        Raises
        ------
        SnapshotIncompleteError
            There is none.
        SnapshotCorruptError
            ``index_checksum``: it does not match its hash; ``index_invalid``: it is not an index, or its rows
            contradict each other; ``tensor_key_duplicate``.
        """
        pairs = pairs or {}
        key = INDEX_KEY if INDEX_KEY.encode() in pairs else INDEX_ZST_KEY
        stored = pairs.get(key.encode())
        if stored is None:
            raise SnapshotIncompleteError(NOT_FINISHED, url=url)
        expected = pairs.get(INDEX_HASH_KEY.encode(), b"")
        if xxh3_hex(stored).encode() != expected:
            message = f"xxh3 {xxh3_hex(stored)}, {INDEX_HASH_KEY} says {expected.decode('ascii', 'replace')}"
            raise SnapshotCorruptError(Problem(ProblemCode.INDEX_CHECKSUM, key, message, SPEC), url=url)
        try:
            most = file_bytes + file_bytes // 4 + FREE_INDEX_BYTES
            text = stored if key == INDEX_KEY else _decompressed(stored, max_bytes=min(most, MAX_INDEX_BYTES))
            index = cls._from_json(_json.loads(text, max_bytes=MAX_INDEX_BYTES, max_parsed_bytes=most))
        except _json.JsonError as error:
            raise SnapshotCorruptError(Problem(ProblemCode.INDEX_INVALID, key, str(error), SPEC), url=url) from error
        problems = index_problems(index.rows, kind=index.kind)
        if problems:
            raise SnapshotCorruptError(problems, url=url)
        return index

    @classmethod
    def _from_json(cls, value: Any) -> Index:
        found = value.get("version") if isinstance(value, dict) else value
        if not isinstance(value, dict) or type(found) is not int or found != INDEX_VERSION:
            raise _json.JsonError(f"version {found!r:.40}, expected {INDEX_VERSION}")
        rows, kind, schema_hash = value.get("rows"), value.get("kind"), value.get("schema_xxh3")
        if not isinstance(rows, list) or kind not in (FILE, STREAM):
            raise _json.JsonError(f"kind {kind!r:.40} with rows of {type(rows).__name__}")
        index = cls(_rows_from_json(rows, kind), _hash(schema_hash, "schema_xxh3"), kind)
        for name, counted in (("num_rows", len(rows)), ("num_tensors", index.num_tensors)):
            if _integer(value.get(name), name) != counted:
                raise _json.JsonError(f"{name} is {value.get(name)!r:.40}, the rows are {counted}")
        return index


def _decompressed(stored: bytes, *, max_bytes: int) -> bytes:
    try:
        frame = base64.b64decode(stored, validate=True)
        size = zstandard.get_frame_parameters(frame).content_size
        if not 0 < size <= max_bytes:
            raise _json.JsonError(f"the index states a size of {size} bytes, at most {max_bytes} are read")
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        text = decompressor.decompress(frame)
    except (binascii.Error, zstandard.ZstdError) as error:
        raise _json.JsonError(f"not base64 of a zstd frame: {error}") from error
    if len(text) != size or decompressor.unused_data:
        raise _json.JsonError(f"the zstd frame holds {len(text)} bytes, it states {size}")
    return text


#: What all rows of a tensor have in common.
_OF_A_TENSOR = (
    *("layer_index", "layer_name", "kv_role", "component", "kv_group"),
    *("num_seqs", "element_type", "page_shape", "encoding", "index_type"),
)


def index_problems(rows: Iterable[IndexRow], *, kind: str = FILE) -> list[Problem]:
    """Return what contradicts itself in an index: places that overlap, keys and rows given twice; the first hundred."""
    return list(islice(_problems(rows, kind), SHOWN_OF_A_KIND))


def _problems(rows: Iterable[IndexRow], kind: str) -> Iterator[Problem]:
    keys: dict[TensorKey, int] = {}
    firsts: dict[int, IndexRow] = {}
    seen: set[tuple[int, int, bool]] = set()
    end = 0
    for number, row in enumerate(rows):
        body = row.offset + row.metadata_bytes
        if kind == FILE and (row.offset < end or row.offset % 8 or not row.metadata_bytes):
            message = f"place [{row.offset}, {body + row.body_bytes}) after a row that ends at {end}"
            yield _problem(ProblemCode.ROW_PLACE, number, message)
        end = body + row.body_bytes
        if kind == FILE and row.pages_offset is not None:
            pages_end = row.pages_offset + (row.pages_bytes or 0)
            if not body <= row.pages_offset <= pages_end <= end or (row.checksums_offset or body) < body:
                message = f"pages [{row.pages_offset}, {pages_end}), checksums at {row.checksums_offset}"
                yield _problem(ProblemCode.ROW_PLACE, number, f"{message}, body [{body}, {end})")
        if row.bare_head_xxh3 is not None:
            checksums, pages = row.checksums_offset, row.pages_offset
            if checksums is None or pages is None or not body <= checksums <= row.checksums_end <= pages:
                message = f"{row.num_pages} checksums at {checksums}, expected between {body} and the pages at {pages}"
                yield _problem(ProblemCode.ROW_PLACE, number, message)
        # A tensor's first row in the archive profile has no pages, and the next one starts at page 0.
        place = row.tensor_index, row.page_offset, bool(row.num_pages)
        if place in seen:
            message = f"tensor_index {row.tensor_index}, page_offset {row.page_offset} is given twice"
            yield _problem(ProblemCode.INDEX_INVALID, number, message)
        seen.add(place)
        key = row.key
        if keys.setdefault(key, row.tensor_index) != row.tensor_index:
            message = f"{key!r:.200} is tensor {keys[key]}'s and tensor {row.tensor_index}'s"
            yield _problem(ProblemCode.TENSOR_KEY_DUPLICATE, number, message)
        first = firsts.setdefault(row.tensor_index, row)
        if first is not row:
            other = [name for name in _OF_A_TENSOR if getattr(first, name) != getattr(row, name)]
            if other:
                message = f"{', '.join(other)} other than in another row of tensor {row.tensor_index}"
                yield _problem(ProblemCode.INDEX_INVALID, number, message)


def _problem(code: ProblemCode, number: int, message: str) -> Problem:
    return Problem(code, f"rows[{number}]", message, SPEC)
