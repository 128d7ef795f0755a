"""Attacks by text: JSON that takes memory or time, names that harm a terminal, a page or a path."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import zstandard

from hurray_arrow import write_snapshot
from tests.faults.attacks.attack import TAKEN, UNSUPPORTED, attack, forged, forged_stream, one, share, written
from tests.faults.forgery import INDEX, Forgery, zst_frame, zst_pairs
from tests.faults.small import METADATA
from tests.sample import make_tensor

JSON, NAMES = "JSON", "Names"
#: What a terminal, a page, a shell or a path would act on; the escapes as `printable` shows them are asserted.
HARMFUL = {
    "names_of_paths": "../../../../etc/passwd",
    "names_of_terminal_commands": "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\x\x9b31m\r\b",
    "names_of_markup": "[bold red]x[/bold red][link=http://evil]y[/link] :skull: <script>alert(1)</script>",
    "names_that_read_backwards": "\u202elevel\u2066\u200b\ufeff",
    "names_of_100_kb": "n" * 100_000,
}


def _in_index(
    name: str, tries: str, old: str, new: str, *, stopped_by: str = "index_invalid", at: str = "open"
) -> None:
    def change(forgery: Forgery) -> None:
        def edit(text: str) -> str:
            assert old in text
            return text.replace(old, new, 1)

        forgery.edit_text = edit

    change.__name__ = name
    forged(share, JSON, tries, stopped_by=stopped_by, at=at)(change)


def _user(value: str) -> str:
    return f'"user":{value},"kind"'


_in_index("json_a_million_deep", "an array in an array, a million deep", '"kind"', _user("[" * 10**6 + "]" * 10**6))
_in_index("json_seventeen_deep", "… 17 deep", '"kind"', _user("[" * 16 + "]" * 16))
_in_index("json_a_million_lists", "a million empty arrays", '"kind"', _user("[" + "[]," * 10**6 + "0]"))
_in_index("json_a_million_objects", "… objects", '"kind"', _user('[{"a":1}' + ',{"a":1}' * 10**6 + "]"))
_in_index("json_a_key_twice", "a key is given twice", '"kind"', '"kind":"file","kind"')
_in_index(
    *("json_a_key_twice_among_many", "… the last of 300,000"),
    *('"kind"', _user("{" + "".join(f'"{n}":0,' for n in range(300_000)) + '"299999":0}')),
)
_in_index("json_nan", "a number that is none", '"kind"', _user("NaN"))
_in_index("json_infinity", "… infinity", '"kind"', _user("[-Infinity]"))
_in_index("json_minus_zero", "an offset of −0, which is 0", '"page_offset":0', '"page_offset":-0', stopped_by=TAKEN)
_in_index("json_minus_zero_point_zero", "… of −0.0", '"page_offset":0', '"page_offset":-0.0')
_in_index("json_exponent", "… of 1e400", '"page_offset":0', '"page_offset":1e400')
_in_index("json_4300_digits", "… of 4,300 digits, which Python does not print", '"offset":', '"offset":' + "9" * 4290)
_in_index("json_a_million_digits", "… of a million", '"offset":', '"offset":' + "9" * 10**6)
_in_index("json_negative", "a negative size", '"num_pages":', '"num_pages":-')
_in_index("json_true", "true for 1", '"num_seqs":3', '"num_seqs":true')
_in_index("json_surrogate", "half a character in a name", '"l.0"', '"\\ud800"', stopped_by="index_invalid")


@forged(share, JSON, "an index in UTF-16", stopped_by="index_invalid")
def json_utf16(forgery: Forgery) -> None:
    forgery.edit_text = lambda text: text.encode("utf-16")


def _zst(name: str, tries: str, frame: Any) -> None:
    def change(forgery: Forgery) -> None:
        forgery.edit_pairs = lambda pairs: zst_pairs(frame(pairs[INDEX]))

    change.__name__ = name
    forged(one, JSON, tries, stopped_by="index_invalid")(change)


def _spaces(count: int) -> Any:
    """Blanks behind the index, which change nothing in it."""
    return lambda text: zstandard.ZstdCompressor().compress(text + b" " * count)


def lying_frame(stated_bytes: int, blocks: int) -> bytes:
    """Return a zstd frame that states a size, and has so many blocks of 128 KiB in 4 bytes each."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0b1010_0000]) + struct.pack("<I", stated_bytes)
    block = 128 << 10 << 3 | 1 << 1
    body = b"".join(struct.pack("<I", block | (number == blocks - 1))[:3] + b" " for number in range(blocks))
    return head + body


_zst("zstd_of_more_than_is_read", "300 MiB of blanks in a compressed index of 30 KB", _spaces(300 << 20))
_zst("zstd_of_as_much_as_is_read", "… 200 MiB, which a large file's index may have", _spaces(200 << 20))
_zst("zstd_that_lies", "… that states 1 MiB and unfolds to 10 GiB", lambda _text: lying_frame(1 << 20, 80_000))
_zst("zstd_of_lists", "… 8 MiB of empty arrays", lambda text: zst_frame(_with_lists(text, 8 << 20)))


def _with_lists(text: bytes, size: int) -> bytes:
    return text[:-1] + b',"user":[' + b"[]," * (size // 3) + b"0]}"


def _document(name: str, tries: str, text: Any, *, stopped_by: str = "metadata_invalid") -> None:
    def change(forgery: Forgery) -> None:
        pairs = dict(forgery.schema.metadata)
        key = b"hurray_arrow.snapshot"
        pairs[key] = text(json.loads(pairs[key]))
        forgery.set_schema(forgery.schema.with_metadata(pairs))

    change.__name__ = name
    forged(share, JSON, tries, stopped_by=stopped_by)(change)


def _with(**fields: Any) -> Any:
    return lambda document: json.dumps({**document, **fields}).encode()


_document("metadata_a_hundred_thousand_deep", "metadata 100,000 deep", lambda _: b"[" * 10**5 + b"]" * 10**5)
_document("metadata_of_lists", "… with a million empty arrays", _with(user=[[]] * 10**6))
_document("metadata_of_16_mib", "… of 16 MiB", _with(user="x" * (16 << 20)), stopped_by="footer_invalid")
_document("metadata_of_groups", "… with 100,000 groups that are none", _with(groups=[7] * 10**5))
_document("metadata_numbers_as_objects", "… whose objects are numbers", _with(model=7, groups=7, producer=7))
_document(
    *("metadata_requires", "… that requires what nobody knows", _with(requires=["\x1b[2J"])),
    stopped_by=UNSUPPORTED,
)
_OF_ANY_KIND = {
    "model": {"name": [1], "rope": 7, "config_digest": {}},
    "engine": {"name": {}},
    "topology": {"head_range": "x", "tp_rank": []},
    "set": {"id": [7], "member": "x", "members": -1},
    "user": {"\x1b[2J": "\x1b[2J"},
}
_document("metadata_of_any_kind", "… whose inner values are of any kind", _with(**_OF_ANY_KIND), stopped_by=TAKEN)


@forged_stream(JSON, "a stream's index with a million empty arrays", stopped_by="index_invalid")
def json_a_million_lists_in_a_stream(forgery: Forgery) -> None:
    forgery.edit_text = lambda text: text.replace('"kind"', _user("[" + "[]," * 10**6 + "0]"), 1)


# -- names -------------------------------------------------------------------------------------------------------------


def _named(text: str) -> bytes:
    """Return a snapshot whose layers, components, sequences and metadata have a name."""
    facts = {"ids": [text, None, None, None], "adapter": [text] * 4, "tenant": [text] * 4}
    how: dict[str, Any] = {"layer_name": text, "seq_lens": [13, 0, 10, 4], **facts}
    tensors = [make_tensor(**how), make_tensor(component=f"record.{text}", element_type="uint8", **how)]
    metadata = {
        **{key: value for key, value in METADATA.items() if key in ("id", "created")},
        "model": {"name": text, "revision": text, text: text},
        "engine": {"name": text},
        "adapter": text,
        "tenant": text,
        "user": {text: text},
    }
    return written(lambda path: write_snapshot(path, tensors, metadata=metadata))


for _name, _text in HARMFUL.items():
    _tries = f"every name is `{ascii(_text)[1:-1]}`" if len(_text) < 1000 else "every name is 100 KB long"
    attack(NAMES, _tries.replace("|", "\\|"), stopped_by=TAKEN, name=_name)(lambda text=_text: _named(text))


@forged(share, NAMES, "a column with a name of escapes", stopped_by=TAKEN)
def a_column_of_escapes(forgery: Forgery) -> None:
    place = len(forgery.schema) - 3
    fields = list(forgery.schema)
    fields.insert(place, pa.field("\x1b[2J\x07", pa.utf8()))
    forgery.schema = pa.schema(fields, metadata=forgery.schema.metadata)
    for number, batch in enumerate(forgery.batches):
        columns = [*batch.columns[:place], pa.array(["\x1b[2J"]), *batch.columns[place:]]
        forgery.batches[number] = pa.RecordBatch.from_arrays(columns, schema=forgery.schema)
    forgery.end = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in forgery.schema], schema=forgery.schema)


@forged(share, NAMES, "an error that names a role of escapes", stopped_by="index_invalid")
def a_role_of_escapes(forgery: Forgery) -> None:
    forgery.edit_rows = lambda rows: rows[0].update(kv_role="\x1b[2J[red]\x07")
