"""JSON as the snapshot format writes and reads it: strict, bounded, canonical.

Spec: snapshot format, sections 3 and 6 (values from 2^53 are strings; duplicate keys, NaN and nesting beyond 16 are
refused, and text that has no UTF-8).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from hurray_arrow.spec import UINT64_MAX

MAX_DEPTH = 16
#: The first integer that not every JSON reader keeps exactly.
FIRST_INEXACT_INTEGER = 2**53
#: What characters beyond U+FFFF begin with, in UTF-8 and escaped.
_OF_FOUR_BYTES = re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")
#: What may be half a character, escaped, and what is one.
_SURROGATE, _HALF = re.compile(r"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """A JSON text that the format refuses; the message says why."""


def dumps(value: Any) -> str:
    """Write canonical JSON: sorted keys, no spaces, integers from 2^53 as strings, never NaN.

    Raises
    ------
    JsonError
        The value holds something JSON has no exact form for, or is nested deeper than 16.
    """
    try:
        return json.dumps(_exact(value, 1), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise JsonError(str(error).lstrip(".: ")) from error


def loads(text: str | bytes, *, max_bytes: int, max_parsed_bytes: int | None = None) -> Any:
    """Parse one JSON text.

    Parameters
    ----------
    text
        UTF-8, or decoded.
    max_bytes
        How long it may be.
    max_parsed_bytes
        How much :func:`parsed_bytes` may say of it; ``None`` for any.

    Raises
    ------
    JsonError
        Not UTF-8 or not JSON, larger than allowed, a key given twice, NaN or an infinity, half a surrogate pair, or
        nested deeper than 16.
    """
    if len(text) > max_bytes:
        raise JsonError(f"{len(text)} bytes of JSON, at most {max_bytes} are allowed")
    if max_parsed_bytes is not None and (size := parsed_bytes(text)) > max_parsed_bytes:
        raise JsonError(
            f"{len(text)} bytes of JSON take about {size} once parsed, at most {max_parsed_bytes} are allowed"
        )
    try:
        # Bytes are decoded here: json would guess UTF-16 and UTF-32 too.
        decoded = text if isinstance(text, str) else text.decode()
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise JsonError(f"nested deeper than {MAX_DEPTH}") from error
    except ValueError as error:
        raise JsonError(str(error)) from error
    _check_depth(value)
    if _SURROGATE.search(decoded):
        _check_unicode(value)
    return value


def parsed_bytes(text: str | bytes) -> int:
    """Return about how many bytes a JSON text takes once it is parsed, at most: ``[],`` thirty times its own.

    The text itself and all its strings, 72 bytes a comma, 96 a list and 200 an object.
    """
    encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # One character outside of Latin-1 and all of its text take two bytes, or four.
    width = 4 if _OF_FOUR_BYTES.search(encoded) else 1 if encoded.isascii() and b"\\u" not in encoded else 2
    commas, lists, objects = (encoded.count(mark) for mark in (b",", b"[", b"{"))
    # A wide text is put together of narrow pieces.
    copies = 2 * width + (width > 1)
    return copies * len(encoded) + 72 * commas + 96 * lists + 200 * objects


def as_integer(value: Any, *, what: str) -> int:
    """Return an integer from 0 to 2^64 - 1 that JSON holds as a number or, from 2^53, as a string of digits.

    Raises
    ------
    JsonError
        The value is anything else.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if type(value) is int and 0 <= value <= UINT64_MAX:
        return value
    raise JsonError(f"{what}: expected an integer from 0 to 2^64 - 1, found {value!r:.40}")


def _exact(value: Any, depth: int) -> Any:
    """Give a value as JSON has it exactly; the message of an error grows by its place on the way out."""
    if isinstance(value, (dict, list, tuple)) and depth > MAX_DEPTH:
        raise JsonError(f": nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise JsonError(": keys must be strings")
        return _exact_items(value.items(), depth + 1)
    if isinstance(value, (list, tuple)):
        return list(_exact_items(enumerate(value), depth + 1).values())
    if type(value) is int and abs(value) >= FIRST_INEXACT_INTEGER:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise JsonError(f": {value} is not allowed")
    if value is not None and not isinstance(value, (str, int, float)):
        raise JsonError(f": {type(value).__name__}, expected str, int, float, bool, None, list or dict")
    return value


def _exact_items(items: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
    made = {}
    for key, item in items:
        try:
            made[key] = _exact(item, depth)
        except JsonError as error:
            place = f".{key}" if isinstance(key, str) else f"[{key}]"
            raise JsonError(f"{place:.80}{error}") from error
    return made


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        # A key that was there and is there no more was met before.
        twice = next(key for key, _ in pairs if result.pop(key, pairs) is pairs)
        raise JsonError(f"key {twice!r:.40} is given twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not allowed")


def _check_unicode(value: Any) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if type(item) is dict:
            todo += [*item.keys(), *item.values()]
        elif type(item) is list:
            todo += item
        elif isinstance(item, str) and _HALF.search(item):
            raise JsonError(f"half a surrogate pair in {item!r:.40}")


def _check_depth(value: Any) -> None:
    holders = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        holders = [
            item
            for holder in holders
            for item in (holder.values() if type(holder) is dict else holder)
            if type(item) is dict or type(item) is list
        ]
        if not holders:
            return
    raise JsonError(f"nested deeper than {MAX_DEPTH}")
