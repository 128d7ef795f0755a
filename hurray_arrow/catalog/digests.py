"""Keyed digests of token prefixes: who has the key can recognise a prompt, and nobody can read one.

A digest is BLAKE2b with a key, chained from step to step, so that the digest of a prefix covers every token before it,
the adapter and the tenant, and the media that begin in it. Spec: RFC 7693; snapshot format, section 2 (``sequences``).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hurray_arrow import _json
from hurray_arrow.sequences import MediaSpan, UInt32Array

#: uint64 ``[digests, 2]``, the first and the second half of each.
Digests: TypeAlias = npt.NDArray[np.uint64]

DIGEST_BYTES = 16
#: A shorter key can be guessed; BLAKE2b takes none that is longer.
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, hashlib.blake2b.MAX_KEY_SIZE
STEP_TOKENS = 16

# What a digest is for, at most 16 bytes each: one for one purpose is never taken for one for another.
_OWNER, _PREFIX, _CHECK = b"hurray.owner.1", b"hurray.prefix.1", b"hurray.check.1"


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a key from a file, without the line's end that editors and ``echo`` leave.

    Raises
    ------
    OSError
        As the system says.
    ValueError
        As :class:`PrefixHasher`.
    """
    return check_key(Path(path).read_bytes().removesuffix(b"\n").removesuffix(b"\r"))


def check_key(key: bytes) -> bytes:
    """Return a key, or raise ValueError where it is shorter than 16 bytes or longer than 64."""
    if not isinstance(key, bytes | bytearray | memoryview):
        raise TypeError(f"key: expected bytes, got {type(key).__name__}")
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, expected {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return bytes(key)


class PrefixHasher:
    """Digests of prefixes under one key.

    Parameters
    ----------
    key
        16 to 64 random bytes. It is held here and written nowhere.
    step_tokens
        Tokens of a step; digests of one step size never equal those of another.

    Raises
    ------
    TypeError, ValueError
        A key that is none; no step.
    """

    def __init__(self, key: bytes, *, step_tokens: int = STEP_TOKENS) -> None:
        self._key = check_key(key)
        if step_tokens < 1:
            raise ValueError(f"steps of {step_tokens} tokens, expected at least 1")
        self.step_tokens = step_tokens

    def __repr__(self) -> str:
        return f"PrefixHasher(step_tokens={self.step_tokens})"

    @property
    def check(self) -> str:
        """What tells one key from another: a digest under it, 32 hex digits."""
        return self._digest(_CHECK, b"").hex()

    def digests(
        self,
        token_ids: UInt32Array,
        lengths: Iterable[int],
        *,
        adapter: str | None,
        tenant: str | None,
        media: Iterable[MediaSpan],
    ) -> Digests:
        """Compute the digests of some prefixes of a sequence.

        Parameters
        ----------
        token_ids
            uint32 ``[tokens]``.
        lengths
            Which prefixes, in tokens, ascending and each at least 1.
        adapter, tenant
            Whose the sequence is.
        media
            The media in it. The digest of a prefix covers those that begin in it.

        Returns
        -------
        numpy.ndarray
            New uint64 ``[lengths, 2]``.
        """
        owner = _json.dumps({"adapter": adapter, "step_tokens": self.step_tokens, "tenant": tenant})
        chained = self._digest(_OWNER, owner.encode("utf-8", "surrogatepass"))
        found = b"".join(self._chain(chained, token_ids, lengths, _by_position(media)))
        return np.frombuffer(found, ">u8").astype(np.uint64).reshape(-1, 2)

    def _chain(
        self, chained: bytes, token_ids: UInt32Array, lengths: Iterable[int], spans: list[MediaSpan]
    ) -> Iterator[bytes]:
        tokens = memoryview(token_ids.astype("<u4", copy=False).tobytes())
        step, start, used = self.step_tokens, 0, 0
        for length in lengths:
            while length - start >= step:
                begun, used = _begun(spans, used, start + step)
                chained = self._link(chained, tokens[4 * start : 4 * (start + step)], begun)
                start += step
            rest = tokens[4 * start : 4 * length]
            yield self._link(chained, rest, _begun(spans, used, length)[0]) if rest else chained

    def _link(self, chained: bytes, tokens: memoryview, spans: list[MediaSpan]) -> bytes:
        said = b"".join(_stated(span) for span in spans)
        return self._digest(_PREFIX, b"".join((chained, struct.pack("<QQ", len(tokens), len(spans)), tokens, said)))

    def _digest(self, purpose: bytes, message: bytes) -> bytes:
        return hashlib.blake2b(message, digest_size=DIGEST_BYTES, key=self._key, person=purpose).digest()


def _by_position(media: Iterable[MediaSpan]) -> list[MediaSpan]:
    """Return media in one order, whatever order they were given in, each once."""
    return sorted(set(media), key=lambda span: (span.first_token, span.num_tokens, span.digest))


def _begun(spans: list[MediaSpan], used: int, length: int) -> tuple[list[MediaSpan], int]:
    """Return the spans after the first ``used`` that begin before ``length``, and how many are used then."""
    stop = used
    while stop < len(spans) and spans[stop].first_token < length:
        stop += 1
    return spans[used:stop], stop


def _stated(span: MediaSpan) -> bytes:
    digest = span.digest.encode("utf-8", "surrogatepass")
    return struct.pack("<QQQ", span.first_token, span.num_tokens, len(digest)) + digest
