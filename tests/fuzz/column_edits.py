"""Edits of columns and of the schema: values, types, names, what extension types and the schema say."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tests.faults.forgery import Forgery
from tests.faults.hostile import _storage_values, _typed
from tests.fuzz.choices import Choices, json_text
from tests.fuzz.scripts import Script


def column_value(script: Script) -> None:
    row, name = script.row(), script.choices.pick(script.forgery.schema.names)
    array = script.forgery.batches[row].column(name)
    values = _storage_values(array)
    script.forgery.set_column(row, name, _typed([_changed(values[0], script.choices)], array.type))


def _changed(value: Any, choices: Choices) -> Any:
    """Return a value with something in it changed: left out, repeated, null, another number or text."""
    if isinstance(value, list) and value and choices.flag():
        place = choices.below(len(value))
        match choices.below(4):
            case 0:
                return [*value[:place], *value[place + 1 :]]
            case 1:
                return [*value[:place], value[place], *value[place:]]
            case 2:
                return [*value[:place], None, *value[place + 1 :]]
        return [*value[:place], _changed(value[place], choices), *value[place + 1 :]]
    if isinstance(value, dict) and value and choices.flag():
        name = choices.pick(sorted(value))
        return {**value, name: _changed(value[name], choices)}
    if isinstance(value, bytes):
        return choices.splice(value)
    if isinstance(value, str):
        return choices.pick(
            ("", "values", "scales", "key", "fused", "state.x", "page.x", "l.1", value + "x", value[1:])
        )
    if isinstance(value, int):
        return choices.integer(value)
    if isinstance(value, (list, dict)):
        return None if choices.flag() else []
    return choices.pick((None, 0, 1, "", b"", [], [0], [[0]], [[]], "l.0", 2**32 - 1, [None]))


#: What a column may be made of instead.
TYPES = (
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.utf8(), pa.large_utf8()),
    *(pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view(), pa.decimal128(20), pa.date32(), pa.null()),
    *(pa.timestamp("ns", tz="Nowhere/City"), pa.timestamp("us"), pa.duration("s"), pa.time32("s"), pa.float16()),
    *(pa.month_day_nano_interval(), pa.list_(pa.utf8()), pa.struct([("a", pa.int8())]), pa.binary(3)),
)


#: One row of columns that the format does not know.
MORE = (
    *(pa.array([""]), pa.array(["x" * 40]), pa.array([None]), pa.array([True]), pa.array([None], pa.bool_())),
    pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    pa.array([None], pa.list_(pa.int8(), 2)),
    pa.array([[]], pa.list_(pa.list_(pa.utf8()))),
    pa.array([[[]]], pa.large_list(pa.list_(pa.bool_()))),
    pa.array([[("k", 1)]], pa.map_(pa.utf8(), pa.int8())),
    pa.array([{"a": None}], pa.struct([("a", pa.large_utf8())])),
    *(pa.array([b"abc"], pa.binary(3)), pa.array([7], pa.decimal128(5)), pa.array(["view"], pa.string_view())),
    pa.array(["x"]).dictionary_encode(),
)


def retyped(script: Script) -> None:
    """Give a column another type: its values cast where that can be, and nothing where it cannot."""
    forgery = script.forgery
    name, new = script.choices.pick(forgery.schema.names), script.choices.pick(TYPES)
    place = forgery.schema.get_field_index(name)

    def cast(array: pa.Array) -> pa.Array:
        try:
            return array.cast(new)
        except (pa.ArrowException, NotImplementedError):
            return pa.nulls(1, new)

    columns = [cast(batch.column(place)) for batch in forgery.batches]
    _set_fields(
        forgery, [f.with_type(new) if n == place else f for n, f in enumerate(forgery.schema)], {place: columns}
    )


def fields(script: Script) -> None:
    """Leave a column out, give it twice, give it another name or place, or say other things about nulls."""
    forgery, fields = script.forgery, list(script.forgery.schema)
    place, how = script.choices.below(len(fields)), script.choices.below(6)
    columns = [list(batch.columns) for batch in forgery.batches]
    if how == 0:
        del fields[place]
        for each in columns:
            del each[place]
    elif how in (1, 2):
        other = script.choices.below(len(fields))
        copied = (
            fields[place]
            if how == 1
            else fields[place].with_name(script.choices.pick(("page_pool_7", "x", "pool_bytes", "page_pool")))
        )
        fields.insert(other, copied)
        for each in columns:
            each.insert(other, each[place])
    elif how == 3:
        fields[place] = fields[place].with_name(
            script.choices.pick(("x", "page_pool", "descriptor", "kv_role", "page_pool_01"))
        )
    elif how == 4:
        fields[place] = fields[place].with_nullable(not fields[place].nullable)
    else:
        more = script.choices.pick(MORE)
        fields.insert(place, pa.field("more", more.type))
        for each in columns:
            each.insert(place, more)
    _set_batches(forgery, fields, columns)


def moved_pages(script: Script) -> None:
    """Put the pages of a row into another column of the same type, which is null in the other rows."""
    forgery, row = script.forgery, script.row()
    name = script.choices.pick([name for name in forgery.schema.names if name.startswith("page_pool")])
    place = forgery.schema.get_field_index(name)
    field = forgery.schema.field(place)
    columns = [list(batch.columns) for batch in forgery.batches]
    for number, each in enumerate(columns):
        nothing = pa.nulls(len(each[place]), field.type)
        each.insert(place, nothing if number != row else each[place])
        each[place + 1] = nothing if number == row else each[place + 1]
    fields = list(forgery.schema)
    _set_batches(forgery, [*fields[:place], field.with_name("page_pool_7"), *fields[place:]], columns)


def _set_fields(forgery: Forgery, fields: list[pa.Field], columns: dict[int, list[pa.Array]]) -> None:
    whole = [
        [columns[n][row] if n in columns else column for n, column in enumerate(batch.columns)]
        for row, batch in enumerate(forgery.batches)
    ]
    _set_batches(forgery, fields, whole)


def _set_batches(forgery: Forgery, fields: list[pa.Field], columns: list[list[pa.Array]]) -> None:
    forgery.schema = pa.schema(fields, metadata=forgery.schema.metadata)
    forgery.batches = [pa.RecordBatch.from_arrays(each, schema=forgery.schema) for each in columns]
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in fields], schema=forgery.schema)


def extension(script: Script) -> None:
    """Change the metadata of an extension type, or its name, or leave it out."""
    forgery, choices = script.forgery, script.choices
    typed = [f for f in forgery.schema if f.num_flattened() and hasattr(f.type, "value_type")]
    chosen = choices.pick([f for f in typed if isinstance(f.type.value_type, pa.ExtensionType)])
    item = chosen.type.value_type
    stated = json.loads(item.__arrow_ext_serialize__())
    for _ in range(1 + choices.below(2)):
        stated = choices.value(stated)
    text = (
        choices.splice(json_text(stated).encode())
        if choices.below(4) == 3
        else json_text(stated).encode("utf-8", "replace")
    )
    name = choices.pick((item.extension_name, item.extension_name, "hurray.page_pool", "hurray.block_table", "x.y"))
    pairs = None if choices.below(8) == 7 else {"ARROW:extension:name": name, "ARROW:extension:metadata": text}
    bare = pa.field("item", item.storage_type, nullable=choices.below(8) == 7, metadata=pairs)
    made = pa.large_list(bare) if pa.types.is_large_list(chosen.type) else pa.list_(bare)
    fields = [f.with_type(made) if f.name == chosen.name else f for f in forgery.schema]
    schema = pa.schema(fields, metadata=forgery.schema.metadata)
    # Through the wire, as a reader meets it: there the metadata becomes a type.
    forgery.set_schema(pa.ipc.read_schema(schema.serialize()))


def metadata(script: Script) -> None:
    """Change the schema's metadata: the snapshot's document, or the pairs themselves."""
    choices, pairs = script.choices, dict(script.forgery.schema.metadata or {})
    key = choices.pick(sorted(pairs) or [b"x"])
    if key == b"hurray_arrow.snapshot" and choices.flag():
        document = json.loads(pairs[key])
        name = choices.pick(sorted({*document, "groups", "model", "adapter", "partial", "requires"}))
        pairs[key] = json_text({**document, name: choices.value(document.get(name))}).encode("utf-8", "replace")
    elif choices.flag():
        pairs[key] = choices.splice(pairs.get(key, b""))
    else:
        pairs.pop(key, None)
    script.forgery.set_schema(script.forgery.schema.with_metadata(pairs))
