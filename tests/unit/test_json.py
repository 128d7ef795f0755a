"""JSON as the format reads and writes it: strict, bounded, canonical."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hurray_arrow import _json
from hurray_arrow._json import JsonError


def nested(depth, leaf="1"):
    return "[" * depth + leaf + "]" * depth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"b":[1,2.5,null],"a":"ß"}', {"a": "ß", "b": [1, 2.5, None]}),
        ("7", 7),
        ('"x"', "x"),
        (" [ ] ", []),
        (b"{}", {}),
        ('{"é":1}'.encode(), {"é": 1}),
        (nested(16), [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]),
        ('{"a":{"a":1}}', {"a": {"a": 1}}),
    ],
)
def test_what_is_read(text, value):
    assert _json.loads(text, max_bytes=99) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        b"",
        "{",
        "[1]]",
        "{'a':1}",
        "[1,]",
        '{"a":1,"a":1}',
        '[{"b":{"a":1,"a":2}}]',
        "NaN",
        '{"a":NaN}',
        "[Infinity]",
        "[-Infinity]",
        nested(17),
        nested(17, ""),
        nested(2000),
        nested(200_000),
        '{"a":' * 200_000,
        "9" * 5000,
        b"\xff",
        b'"\xff"',
        "﻿{}",
        "﻿{}".encode(),
        "{}".encode("utf-16"),
        "[1]".encode("utf-32-le"),
        '"\n"',
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_refused(text):
    with pytest.raises(JsonError):
        _json.loads(text, max_bytes=2_000_000)


def test_longer_texts_than_allowed_are_not_looked_at():
    assert _json.loads("[1234]", max_bytes=6) == [1234]
    for text in ("[1234]", b"[1234]", "not JSON"):
        with pytest.raises(JsonError):
            _json.loads(text, max_bytes=5)


def test_a_key_given_twice_is_found_among_many():
    # Comparing each with each would take an hour.
    text = "{" + "".join(f'"{number}":0,' for number in range(300_000)) + '"299999":1}'
    with pytest.raises(JsonError, match="'299999'"):
        _json.loads(text, max_bytes=len(text))


@pytest.mark.parametrize(
    "value",
    [
        *("[]", "{}", "[0]", '{"a":1}', '{"a":[]}', "[" * 15 + "]" * 15, '{"b":' * 14 + "1" + "}" * 14),
        f'"{"x" * 200_000}\\ud83d\\ude00"',
        f'"{"x" * 200_000}\\u0100"',
        f'"{"x" * 200_000}😀"',
        *('"ab"', '""', "1.5", "12345", "null", '"éé"', '"😀"', '"\\ud83d\\ude00"'),
    ],
    ids=lambda text: ascii(text[:10] + text[-7:]),
)
def test_what_parsing_takes_is_known_before(value):
    """Small texts make large objects; what the estimate says is enough, and not ten times too much."""
    text = ("[" + ",".join([value] * (300_000 // len(value))) + "]").encode()
    tracemalloc.start()
    try:
        _json.loads(text, max_bytes=len(text), max_parsed_bytes=_json.parsed_bytes(text))
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken <= 1.1 * _json.parsed_bytes(text) <= 11 * taken
    with pytest.raises(JsonError):
        _json.loads(text, max_bytes=len(text), max_parsed_bytes=_json.parsed_bytes(text) - 1)


def test_a_decoded_text_is_taken_for_as_much_as_its_bytes():
    for text in ("[1,2]", '["é"]', '{"a":"😀"}'):
        assert _json.parsed_bytes(text) == _json.parsed_bytes(text.encode())


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\uDFFF":1}', r'["\ud83d\ud83d\ude00"]', r'[[["x\udc00\ud800"]]]'])
def test_half_a_character_has_no_utf8(text):
    for each in (text, text.encode()):
        with pytest.raises(JsonError):
            _json.loads(each, max_bytes=99)


@pytest.mark.parametrize(("text", "value"), [(r'"\ud83d\ude00"', "😀"), (r'"\\ud800"', "\\ud800"), (r'"\u00df"', "ß")])
def test_whole_characters_may_be_escaped(text, value):
    assert _json.loads(text.encode(), max_bytes=99) == value


def test_what_is_written_is_canonical():
    value = {"b": [2**53 - 1, 2**53, -(2**53), 2**64], "a": {"ß": None, "Z": True}, "c": (1.5, "x")}
    text = _json.dumps(value)
    assert (
        text == '{"a":{"Z":true,"ß":null},"b":[9007199254740991,"9007199254740992","-9007199254740992",'
        '"18446744073709551616"],"c":[1.5,"x"]}'
    )
    assert _json.dumps(_json.loads(text, max_bytes=999)) == text
    assert _json.dumps(dict(reversed(list(value.items())))) == text


@pytest.mark.parametrize(
    "value", [math.nan, {"a": [math.inf]}, {1: 2}, {"a": {None: 1}}, {"a": b"x"}, {3, 5}, object()]
)
def test_what_cannot_be_written(value):
    with pytest.raises(JsonError):
        _json.dumps(value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"topology": {"tp_rank": np.int64(1)}}, "topology.tp_rank: int64"),
        ({"user": [{}, {"a": [0, math.nan]}]}, r"user\[1\].a\[1\]: nan"),
        ({"user": {"a": {3: 4}}}, "user.a: keys"),
    ],
)
def test_the_place_is_named(value, place):
    """A number of numpy's deep in a metadata is found by nobody otherwise."""
    with pytest.raises(JsonError, match=f"^{place}"):
        _json.dumps(value)


def test_what_is_written_can_be_read():
    value = "leaf"
    for _ in range(16):
        value = [value]
    assert _json.loads(_json.dumps(value), max_bytes=999) == value
    with pytest.raises(JsonError):
        _json.dumps([value])


@pytest.mark.parametrize(
    ("value", "integer"),
    [(0, 0), (7, 7), (2**53 - 1, 2**53 - 1), ("7", 7), ("18446744073709551615", 2**64 - 1), (2**60, 2**60)],
)
def test_integers(value, integer):
    assert _json.as_integer(value, what="x") == integer


@pytest.mark.parametrize(
    "value",
    [-1, "-1", 1.0, True, None, "", " 7", "7 ", "٧", "1e3", "0x7", "9" * 21, [7], "²", 2**64, str(2**64), 10**4299],
)
def test_what_is_no_integer(value):
    with pytest.raises(JsonError):
        _json.as_integer(value, what="x")
