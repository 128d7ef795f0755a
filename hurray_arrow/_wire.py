"""Bounds-checked little-endian reads of descriptor bytes.

A :class:`Reader` never reads past its end, remembers where each field lay, and collects what is wrong with the
values, so that one error can name every broken field with its offset.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from hurray_arrow.errors import Problem, ProblemCode, WireFormatError

#: struct codes of the wire's scalar types.
_CODES = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "f64": "<d"}


class Reader:
    """Reads fields one after another and raises a typed error where the bytes end.

    Parameters
    ----------
    data
        Contiguous bytes; only borrowed.
    base
        Where the bytes begin in their descriptor: added to the offsets in problems, to nothing else.

    Attributes
    ----------
    position : int
        Offset of the next field in bytes.
    end : int
        Offset that no read passes.
    offsets : dict of str to int
        Where each field that was read begins.
    problems : list of Problem
        What is wrong with the values that were read.
    """

    __slots__ = ("_base", "_data", "end", "offsets", "position", "problems")

    def __init__(self, data: memoryview, *, base: int = 0) -> None:
        self._data = data
        self._base = base
        self.position = 0
        self.end = len(data)
        self.offsets: dict[str, int] = {}
        self.problems: list[Problem] = []

    def take(self, size_bytes: int, field: str) -> bytes:
        """Return a copy of the next ``size_bytes`` bytes.

        Raises
        ------
        WireFormatError
            ``truncated``: the descriptor ends before them.
        """
        start = self.position
        self.offsets[field] = start
        if size_bytes > self.end - start:
            message = f"needs {size_bytes} bytes, the descriptor ends after {self.end - start}"
            self.add(ProblemCode.TRUNCATED, field, message)
            raise self.error()
        self.position = start + size_bytes
        return bytes(self._data[start : self.position])

    def scalar(self, kind: str, field: str) -> Any:
        """Return the next scalar of ``kind`` (``u8``, ``u32``, …) as a Python number; raises as :meth:`take` does."""
        code = _CODES[kind]
        return struct.unpack(code, self.take(struct.calcsize(code), field))[0]

    def zeros(self, size_bytes: int, field: str, *, spec: str) -> None:
        """Read reserved bytes and note a problem (``reserved_not_zero``) where one is not 0."""
        raw = self.take(size_bytes, field)
        if any(raw):
            self.add(ProblemCode.RESERVED_NOT_ZERO, field, f"reserved bytes {raw.hex()}, expected zeros", spec=spec)

    def add(self, code: ProblemCode, field: str, message: str, *, spec: str = "wire format 1") -> None:
        """Note a problem of a field that was read."""
        self.problems.append(self.place(Problem(code, f"descriptor.{field}", message, spec, field=field)))

    def place(self, problem: Problem) -> Problem:
        """Return the problem with the offset of its field."""
        offset = None if problem.field is None else self.offsets.get(problem.field)
        return problem if offset is None else replace(problem, offset_bytes=self._base + offset)

    def error(self) -> WireFormatError:
        """Return the error of every problem noted so far, in the order of the bytes."""
        return WireFormatError(sorted(self.problems, key=lambda problem: problem.offset_bytes or 0))
