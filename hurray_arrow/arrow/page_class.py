"""What the pages of one column have in common, and the extension metadata that says it.

Spec: snapshot format, section 1. JSON Schema: ``schemas/page_pool.schema.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from hurray_arrow import _json
from hurray_arrow.elements import ELEMENT_TYPES, element_type
from hurray_arrow.errors import ExtensionMetadataError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.spec import PRIVATE_TAGS

METADATA_VERSION = 1
MAX_METADATA_BYTES = 4096
MAX_STORED_VALUES = 2**31 - 1
PLAIN = "plain"
BYTE_PLANES = "byte_planes"
PRIVATE_PREFIX = "private_0x"
_PRIVATE_NAMES = frozenset(f"{PRIVATE_PREFIX}{tag:02X}" for tag in PRIVATE_TAGS)

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

    def encoded(self, encoding: str) -> PageClass:
        """Return the same pages in an encoding; those of element types without planes are stored plain."""
        in_planes = encoding == BYTE_PLANES and self.num_planes
        return replace(self, encoding=BYTE_PLANES if in_planes else PLAIN)

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

    @property
    def num_planes(self) -> int:
        """Byte planes of an element; 0 for types that are stored as they are: one byte, packed and private ones."""
        private = self.element_type.startswith(PRIVATE_PREFIX)
        return 0 if private or self.bits <= 8 or self.bits % 8 else self.bits // 8

    @lru_cache(maxsize=256)  # noqa: B019 - a page class is a small value, and reading a schema asks many times
    def storage_type(self) -> pa.DataType:
        """Arrow storage type of one page.

        ``fixed_size_list<T not null, n>``, or in byte planes ``struct<b0: fixed_size_list<uint8 not null, n>, …>``.

        Raises
        ------
        UnsupportedError
            The encoding is not known to this version or not for this element type, or the pool cannot be cut.
        """
        if not self.fits_a_column:
            raise UnsupportedError(f"pages of {self.page_shape} {self.element_type} cannot be a fixed-size list")
        if self.encoding == PLAIN:
            return pa.list_(pa.field("item", self.value_type, nullable=False), self.values_per_page)
        if self.encoding != BYTE_PLANES or not self.num_planes:
            message = f"page encoding {self.encoding!r:.40} of {self.element_type}"
            raise UnsupportedError(f"{message} is not supported by this version")
        plane = pa.list_(pa.field("item", pa.uint8(), nullable=False), self.page_elems)
        return pa.struct([pa.field(f"b{k}", plane, nullable=False) for k in range(self.num_planes)])


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
    fields = parse_metadata(serialized)
    name, shape, encoding = fields.get("element_type"), fields.get("page_shape"), fields.get("encoding")
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise ExtensionMetadataError(metadata_problem("element_type and encoding must be strings"))
    if not isinstance(shape, list) or len(shape) != 3:
        raise ExtensionMetadataError(metadata_problem(f"page_shape {shape!r:.40}, expected three integers"))
    try:
        page_size, num_heads, head_dim = (_json.as_integer(extent, what="page_shape") for extent in shape)
    except _json.JsonError as error:
        raise ExtensionMetadataError(metadata_problem(str(error))) from error
    page_elems = page_size * num_heads * head_dim
    return PageClass(name, _element_bits(name, storage, page_elems), (page_size, num_heads, head_dim), encoding)


def _element_bits(name: str, storage: pa.DataType, page_elems: int) -> int:
    if name.startswith(PRIVATE_PREFIX):
        stored = storage.list_size if pa.types.is_fixed_size_list(storage) else 0
        bits, rest = divmod(stored * 8, page_elems) if page_elems else (0, 0)
        if rest or not bits or (bits % 8 and bits not in (1, 2, 4)):
            raise ExtensionMetadataError(metadata_problem(f"{stored} bytes are no page of {page_elems} elements"))
        if name not in _PRIVATE_NAMES:
            raise ExtensionMetadataError(metadata_problem(f"element type {name!r:.40} is no private one"))
        return int(bits)
    if name not in ELEMENT_TYPES:
        raise UnsupportedError(f"element type {name!r:.40} is not known to this version")
    return ELEMENT_TYPES[name].bits


@lru_cache(maxsize=256)
def parse_metadata(serialized: bytes) -> Mapping[str, Any]:
    """Read the extension metadata of either type as far as its version.

    Raises
    ------
    ExtensionMetadataError
        ``extension_metadata_invalid``: not the format's JSON.
    UnsupportedError
        A newer version.
    """
    try:
        fields = _json.loads(serialized, max_bytes=MAX_METADATA_BYTES)
    except _json.JsonError as error:
        raise ExtensionMetadataError(metadata_problem(str(error))) from error
    if not isinstance(fields, dict):
        raise ExtensionMetadataError(metadata_problem(f"{fields!r:.40}, expected an object"))
    found = fields.get("version")
    if type(found) is int and found > METADATA_VERSION:
        raise UnsupportedError(f"extension metadata version {found}, this version reads {METADATA_VERSION}")
    if type(found) is not int or found != METADATA_VERSION:
        raise ExtensionMetadataError(metadata_problem(f"version {found!r:.40}, expected {METADATA_VERSION}"))
    return MappingProxyType(fields)


def metadata_problem(message: str) -> Problem:
    """Return the problem of extension metadata that cannot be used."""
    return Problem(ProblemCode.EXTENSION_METADATA_INVALID, "extension metadata", message, spec="snapshot format 1")
