"""Digests are what RFC 7693 says they are, and differ in everything that keys and values depend on."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

import hurray_arrow as ha
from hurray_arrow.catalog import read_key
from hurray_arrow.catalog.digests import PrefixHasher
from tests.unit.catalog.samples import KEY, PROMPT

CAT, DOG = ha.MediaSpan(9, 3, "sha256:cat"), ha.MediaSpan(9, 3, "sha256:dög")
WHOSE = {"adapter": None, "tenant": None, "media": ()}


def digests(lengths, *, tokens=PROMPT, key=KEY, step_tokens=4, **whose):
    hasher = PrefixHasher(key, step_tokens=step_tokens)
    return hasher.digests(tokens, lengths, **{**WHOSE, **whose}).tolist()


def test_digests_by_hand():
    """The chain in a plain loop over bytes, with hashlib alone."""

    def blake2b(person, message):
        return hashlib.blake2b(message, digest_size=16, key=KEY, person=person).digest()

    chained = blake2b(b"hurray.owner.1", '{"adapter":"ä","step_tokens":4,"tenant":null}'.encode())
    expected = []
    for start in range(0, 12, 4):
        some = PROMPT[start : start + 4].tolist()
        if start == 8:
            tail = struct.pack("<QQ3I", 12, 0, *some[:3])
            whole = struct.pack("<QQ4I", 16, 1, *some) + struct.pack("<QQQ", 11, 3, 11) + "sha256:dög".encode()
            expected += [blake2b(b"hurray.prefix.1", chained + tail), blake2b(b"hurray.prefix.1", chained + whole)]
        else:
            chained = blake2b(b"hurray.prefix.1", chained + struct.pack("<QQ4I", 16, 0, *some))
            expected.append(chained)
    found = digests([4, 8, 11, 12], adapter="ä", media=[ha.MediaSpan(11, 3, "sha256:dög")])
    assert found == [list(struct.unpack(">QQ", each)) for each in expected]
    assert PrefixHasher(KEY).check == blake2b(b"hurray.check.1", b"").hex()


def test_lengths_may_be_left_out():
    every = digests(range(1, 31))
    assert digests([3, 4, 17, 28]) == [every[n - 1] for n in (3, 4, 17, 28)]
    assert digests([]) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"key": KEY[:-1]},
        {"step_tokens": 5},
        {"adapter": ""},
        {"adapter": "a"},
        {"tenant": "a"},
        {"tokens": np.append(PROMPT[:2] ^ 1, PROMPT[2:])},
        {"media": [ha.MediaSpan(0, 0, "x")]},
        {"media": [ha.MediaSpan(2, 1, "x")]},
    ],
    ids="-".join,
)
def test_everything_before_counts_in_every_digest_after(changed):
    lengths = [3, 4, 9, 20]
    assert not set(map(tuple, digests(lengths))) & set(map(tuple, digests(lengths, **changed)))


def test_whose_is_not_mixed_up():
    found = [
        digests([4], adapter=adapter, tenant=tenant)[0] for adapter in (None, "a", "b") for tenant in (None, "a", "b")
    ]
    assert len(set(map(tuple, found))) == 9


def test_media_count_from_where_they_begin():
    lengths = [8, 9, 12, 13]
    plain, cat, dog = (digests(lengths, media=media) for media in ((), [CAT], [DOG]))
    assert plain[:2] == cat[:2] == dog[:2]
    assert len({tuple(each[n]) for each in (plain, cat, dog) for n in (2, 3)}) == 6
    other = ha.MediaSpan(1, 2, "x")
    assert digests(lengths, media=[CAT, other]) == digests(lengths, media=[other, CAT, CAT])


def test_tokens_are_not_taken_for_media():
    """A prefix whose last tokens have the bytes of a span is another than one with that span."""
    said = np.frombuffer(struct.pack("<QQQ", 1, 1, 4) + b"abcd", np.uint32)
    tokens = np.concatenate([PROMPT[:2], said])
    one = digests([2], tokens=tokens, media=[ha.MediaSpan(1, 1, "abcd")], step_tokens=50)
    assert one != digests([tokens.size], tokens=tokens, step_tokens=50)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_keys_that_are_none(size, tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"k" * size)
    with pytest.raises(ValueError):
        PrefixHasher(b"k" * size)
    with pytest.raises(ValueError):
        read_key(path)


def test_a_key_is_bytes_and_is_not_shown():
    with pytest.raises(TypeError):
        PrefixHasher("k" * 20)
    with pytest.raises(ValueError):
        PrefixHasher(KEY, step_tokens=0)
    assert "31" not in repr(PrefixHasher(KEY))


@pytest.mark.parametrize(("end", "expected"), [(b"", KEY), (b"\n", KEY), (b"\r\n", KEY), (b"\n\n", KEY + b"\n")])
def test_a_key_file_may_end_like_a_line(tmp_path, end, expected):
    path = tmp_path / "key"
    path.write_bytes(KEY + end)
    assert read_key(path) == expected
