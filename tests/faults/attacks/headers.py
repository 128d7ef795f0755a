"""Arrow headers in which many places refer to the same bytes: what was appended, and where an offset leads, changed.

A flatbuffer's offsets may lead anywhere behind them, so what a header is to have more is put at its end. Numbers of
fields are those of Arrow's File.fbs, Schema.fbs and Message.fbs; nothing of the package is used.
"""

from __future__ import annotations

import struct

SCHEMA_IN_FOOTER, SCHEMA_IN_MESSAGE = 1, 2
FIELDS_IN_SCHEMA, PAIRS_IN_SCHEMA = 1, 2
BODY_IN_MESSAGE, PAIRS_IN_MESSAGE, DICTIONARIES_IN_FOOTER = 3, 4, 2
#: Type numbers of Schema.fbs.
NULL, TIMESTAMP, UNION = 1, 10, 14
#: Field: table of name, nullable, type's number, type, dictionary, children, custom metadata; a place each.
_NAME, _TYPE_NUMBER, _TYPE, _CHILDREN, _PAIRS, _FIELD_SIZE = 4, 8, 12, 16, 20, 24


class Header:
    """A flatbuffer to add to."""

    def __init__(self, flatbuffer: bytes) -> None:
        self.data = bytearray(flatbuffer)
        self._end_whole()

    def root(self) -> int:
        return self.target(0)

    def target(self, place: int) -> int:
        return place + struct.unpack_from("<I", self.data, place)[0]

    def place(self, table: int, number: int) -> int:
        """Return where a table keeps its field of this number."""
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        size = struct.unpack_from("<H", self.data, vtable)[0]
        relative = struct.unpack_from("<H", self.data, vtable + 4 + 2 * number)[0] if 4 + 2 * number < size else 0
        assert relative, f"the table has no field {number}"
        return table + relative

    def lead(self, place: int, target: int) -> None:
        """Let the offset at a place lead to a target behind it."""
        struct.pack_into("<I", self.data, place, target - place)

    def string(self, text: bytes) -> int:
        return self._append(struct.pack("<I", len(text)) + text + b"\0")

    def numbers(self, values: list[int]) -> int:
        return self._append(struct.pack(f"<I{len(values)}i", len(values), *values))

    def vector(self, count: int) -> int:
        """Append a vector of offsets that lead nowhere yet."""
        return self._append(struct.pack("<I", count) + bytes(4 * count))

    def lead_all(self, vector: int, target: int) -> None:
        (count,) = struct.unpack_from("<I", self.data, vector)
        for number in range(count):
            self.lead(vector + 4 + 4 * number, target)

    def table(self, size: int, places: dict[int, int]) -> int:
        """Append a table of ``size`` bytes with field number: place."""
        numbers = [places.get(number, 0) for number in range(max(places, default=-1) + 1)]
        vtable = self._append(struct.pack(f"<HH{len(numbers)}H", 4 + 2 * len(numbers), size, *numbers))
        table = self._append(bytes(size))
        struct.pack_into("<i", self.data, table, table - vtable)
        return table

    def field(self, type_number: int = NULL, *, with_children: bool = False, with_pairs: bool = False) -> int:
        """Append a Field whose offsets lead nowhere yet but for its type's."""
        places = {0: _NAME, 2: _TYPE_NUMBER, 3: _TYPE}
        places |= {5: _CHILDREN} if with_children else {}
        places |= {6: _PAIRS} if with_pairs else {}
        field = self.table(_FIELD_SIZE, places)
        self.data[field + _TYPE_NUMBER] = type_number
        self.lead(field + _TYPE, self.table(8, {1: 4} if type_number in (TIMESTAMP, UNION) else {}))
        return field

    def name(self, field: int, string: int) -> None:
        self.lead(field + _NAME, string)

    def children(self, field: int, vector: int) -> None:
        self.lead(field + _CHILDREN, vector)

    def pairs(self, field: int, vector: int) -> None:
        self.lead(field + _PAIRS, vector)

    def type_item(self, field: int, target: int) -> None:
        """Give a time zone or a union's numbers to a field's type."""
        self.lead(self.target(field + _TYPE) + 4, target)

    def key_value(self, key: bytes, value: bytes) -> int:
        pair = self.table(16, {0: 4, 1: 8})
        self.lead(pair + 4, self.string(key))
        self.lead(pair + 8, self.string(value))
        return pair

    def _append(self, data: bytes) -> int:
        self._end_whole()
        place = len(self.data)
        self.data += data
        self._end_whole()
        return place

    def _end_whole(self) -> None:
        self.data += bytes(-len(self.data) % 8)


def repeat_pairs(header: Header, table: int, number: int, *, count: int, size: int) -> None:
    """Let a table's custom metadata be one pair of ``size`` bytes, ``count`` times."""
    vector = header.vector(count)
    header.lead(header.place(table, number), vector)
    header.lead_all(vector, header.key_value(b"k", b"v" * size))


def repeat_fields(header: Header, schema: int, *, count: int, size: int) -> None:
    """Let a schema's fields be one with a name of ``size`` bytes, ``count`` times."""
    vector = header.vector(count)
    header.lead(header.place(schema, FIELDS_IN_SCHEMA), vector)
    field = header.field()
    header.lead_all(vector, field)
    header.name(field, header.string(b"n" * size))


def repeat_children(header: Header, schema: int, *, depth: int, count: int = 2) -> None:
    """Let each field have ``count`` times the same child, which has the next one so, ``depth`` times."""
    vector = header.vector(1)
    header.lead(header.place(schema, FIELDS_IN_SCHEMA), vector)
    for _ in range(depth):
        field = header.field(with_children=True)
        header.lead_all(vector, field)
        header.name(field, header.string(b"c"))
        vector = header.vector(count)
        header.children(field, vector)
    last = header.field()
    header.lead_all(vector, last)
    header.name(last, header.string(b"last"))


def be_ones_own_child(header: Header, schema: int) -> None:
    """Let a field be its own child; offsets lead forward only, so this one would have to wrap."""
    vector = header.vector(1)
    header.lead(header.place(schema, FIELDS_IN_SCHEMA), vector)
    field = header.field(with_children=True)
    header.lead_all(vector, field)
    header.name(field, header.string(b"o"))
    own = header.vector(1)
    header.children(field, own)
    struct.pack_into("<I", header.data, own + 4, (field - own - 4) & 0xFFFFFFFF)


def repeat_time_zones(header: Header, schema: int, *, count: int, size: int, type_number: int = TIMESTAMP) -> None:
    """Let ``count`` fields of one type have one time zone, or one union's numbers, of ``size`` bytes."""
    vector = header.vector(count)
    header.lead(header.place(schema, FIELDS_IN_SCHEMA), vector)
    field = header.field(type_number)
    header.lead_all(vector, field)
    header.name(field, header.string(b"t"))
    item = header.string(b"z" * size) if type_number == TIMESTAMP else header.numbers(list(range(size // 4)))
    header.type_item(field, item)
