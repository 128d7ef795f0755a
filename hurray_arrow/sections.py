"""The parts of a descriptor that repeat or come and go: buffer handles, statistics, the extension-type section.

Spec: wire format 1.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from hurray_arrow._wire import Reader
from hurray_arrow.elements import PrivateType
from hurray_arrow.errors import InvalidDescriptorError, Problem, ProblemCode
from hurray_arrow.spec import (
    CPU_DEVICE_TAG,
    DEVICE_NAMES,
    MEMORY_CLASS_NAMES,
    MIN_ALIGNMENT_BYTES,
    PEER_MEMORY_CLASS,
    PRIVATE_TAGS,
    SYNC_MODE_NAMES,
    UINT32_MAX,
    UINT64_MAX,
)

_SPEC = "wire format 1"
_HANDLE = struct.Struct("<QIBBBx")
_STATISTICS = struct.Struct("<I4xQ6dBBBB4x")
_UINT8_MAX = 255
#: Every assigned bit of computed_mask.
_KNOWN_STATISTICS = 0x3F
#: The statistics that one bit of computed_mask covers, by bit.
_STATISTICS_GROUPS = (
    ("nnz",),
    ("sparsity_ratio",),
    ("value_min", "value_max", "value_abs_max"),
    ("value_mean", "value_stddev"),
    ("nm_n", "nm_m"),
    ("has_nan", "has_inf"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHandle:
    """Size, alignment and place of one buffer.

    Parameters
    ----------
    byte_size
        Size in bytes.
    alignment
        In bytes: a power of two, at least 64 unless the buffer is empty.
    device_tag
        0 CPU, 1 CUDA, …; 0xF0 to 0xFE private.
    sync_mode
        0 producer-synced, 1 event, 2 consumer-stream; always 0 for the CPU.
    memory_class
        0 standard, 1 host-pinned, 2 unified, 3 peer; 0xF0 to 0xFE private.

    Spec: wire format 1, buffer handle; Alignment.
    """

    byte_size: int
    alignment: int = MIN_ALIGNMENT_BYTES
    device_tag: int = CPU_DEVICE_TAG
    sync_mode: int = 0
    memory_class: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, operator.index(getattr(self, each.name)))

    def encode(self) -> bytes:
        """Return the 16 bytes of the handle."""
        return _HANDLE.pack(self.byte_size, self.alignment, self.device_tag, self.sync_mode, self.memory_class)

    def broken_rules(self) -> Iterator[tuple[ProblemCode, str, str]]:
        """Yield the code, the field and the message of each broken rule."""
        if not 0 <= self.byte_size <= UINT64_MAX:
            yield ProblemCode.FIELD_OUT_OF_RANGE, "byte_size", f"{self.byte_size} is no uint64"
        least = MIN_ALIGNMENT_BYTES if self.byte_size else 1
        if not least <= self.alignment <= UINT32_MAX or self.alignment & (self.alignment - 1):
            message = f"{self.alignment}, expected a power of two, at least {least}"
            yield ProblemCode.BUFFER_ALIGNMENT_INVALID, "alignment", message
        private_device = self.device_tag in PRIVATE_TAGS
        if self.device_tag not in DEVICE_NAMES and not private_device:
            yield ProblemCode.DEVICE_TAG_INVALID, "device_tag", f"0x{self.device_tag:02X} is no device"
        if self.sync_mode not in SYNC_MODE_NAMES:
            yield ProblemCode.SYNC_MODE_INVALID, "sync_mode", f"{self.sync_mode}, expected 0, 1 or 2"
        elif self.sync_mode and self.device_tag == CPU_DEVICE_TAG:
            yield ProblemCode.SYNC_MODE_INVALID, "sync_mode", f"{self.sync_mode}, expected 0 for a CPU buffer"
        if self.memory_class in PRIVATE_TAGS:
            if not private_device:
                message = f"private class 0x{self.memory_class:02X} on device 0x{self.device_tag:02X}"
                yield ProblemCode.MEMORY_CLASS_INVALID, "memory_class", message
        elif self.memory_class not in MEMORY_CLASS_NAMES:
            yield ProblemCode.MEMORY_CLASS_INVALID, "memory_class", f"0x{self.memory_class:02X} is no memory class"
        elif self.memory_class == PEER_MEMORY_CLASS and self.device_tag == CPU_DEVICE_TAG:
            yield ProblemCode.MEMORY_CLASS_INVALID, "memory_class", "peer memory on the CPU"


def validate_handles(buffers: Sequence[BufferHandle]) -> list[Problem]:
    """Return the rules that the handles break, each alone and all together.

    Returns
    -------
    list of Problem
        Codes ``field_out_of_range``, ``buffer_alignment_invalid``, ``device_tag_invalid``, ``sync_mode_invalid``,
        ``memory_class_invalid``, ``buffer_device_mismatch``; ``.field`` is ``buffers[i].<name>``.

    Spec: wire format 1, buffer handle; Alignment.
    """
    problems = []
    for index, handle in enumerate(buffers):
        problems += [_handle_problem(code, index, name, text) for code, name, text in handle.broken_rules()]
        for name in ("device_tag", "memory_class"):
            expected, found = getattr(buffers[0], name), getattr(handle, name)
            if found != expected:
                text = f"0x{found:02X}, buffers[0] has 0x{expected:02X}: all buffers share it"
                problems.append(_handle_problem(ProblemCode.BUFFER_DEVICE_MISMATCH, index, name, text))
    return problems


def _handle_problem(code: ProblemCode, index: int, name: str, message: str) -> Problem:
    field = f"buffers[{index}].{name}"
    return Problem(code, f"descriptor.{field}", message, _SPEC, field=field)


def read_handle(reader: Reader, index: int) -> BufferHandle:
    """Read one buffer handle and note a reserved byte that is not 0."""
    prefix = f"buffers[{index}]"
    handle = BufferHandle(
        byte_size=reader.scalar("u64", f"{prefix}.byte_size"),
        alignment=reader.scalar("u32", f"{prefix}.alignment"),
        device_tag=reader.scalar("u8", f"{prefix}.device_tag"),
        sync_mode=reader.scalar("u8", f"{prefix}.sync_mode"),
        memory_class=reader.scalar("u8", f"{prefix}.memory_class"),
    )
    reader.zeros(1, f"{prefix}._reserved", spec=_SPEC)
    return handle


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What a producer computed of a tensor's values: advisory, and kept bit for bit.

    Two statistics are equal when their bytes are, so that NaN equals the same NaN and 0.0 differs from −0.0.

    Parameters
    ----------
    computed_mask
        Which of the following hold: bit 0 nnz; 1 sparsity_ratio; 2 value_min, value_max, value_abs_max;
        3 value_mean, value_stddev; 4 nm_n, nm_m; 5 has_nan, has_inf. Fields without their bit are unknown.
    nnz
        Elements that are not zero.
    sparsity_ratio
        Share of zeros, 0 to 1.
    value_min, value_max, value_abs_max, value_mean, value_stddev
        Of the dequantized values.
    nm_n, nm_m
        N:M sparsity.
    has_nan, has_inf
        0 or 1; the byte that a producer wrote is kept.

    Spec: wire format 1, statistics.
    """

    computed_mask: int = 0
    nnz: int = 0
    sparsity_ratio: float = 0.0
    value_min: float = 0.0
    value_max: float = 0.0
    value_abs_max: float = 0.0
    value_mean: float = 0.0
    value_stddev: float = 0.0
    nm_n: int = 0
    nm_m: int = 0
    has_nan: int = 0
    has_inf: int = 0

    def __post_init__(self) -> None:
        for name in ("computed_mask", "nnz", "nm_n", "nm_m", "has_nan", "has_inf"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        # An integer would not be equal to what its bytes are decoded to.
        for each in fields(self)[2:8]:
            object.__setattr__(self, each.name, float(getattr(self, each.name)))

    @classmethod
    def known(cls, **values: float) -> Statistics:
        """Return statistics of the given values, with the mask that says so.

        Parameters
        ----------
        **values
            The statistics by name, as of the class.

        Returns
        -------
        Statistics
            What is not given is absent.

        Raises
        ------
        InvalidDescriptorError
            ``statistics_invalid``: values that share a bit of the mask are given in part.
        TypeError
            There is no such statistic.
        """
        mask = 0
        for bit, group in enumerate(_STATISTICS_GROUPS):
            given = [name for name in group if name in values]
            if given and len(given) < len(group):
                message = f"{', '.join(given)} given, {', '.join(group)} belong together"
                raise InvalidDescriptorError(_statistics_problem(ProblemCode.STATISTICS_INVALID, group[0], message))
            mask |= bool(given) << bit
        return cls(mask, **values)  # type: ignore[arg-type]  # int fields are checked by operator.index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[int | bytes, ...]:
        # Floats as bytes: NaN is not equal to itself. Not encode(), which invalid values would break.
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(struct.pack("<d", value) if isinstance(value, float) else value for value in values)

    def encode(self) -> bytes:
        """Return the 72 bytes of the section."""
        return _STATISTICS.pack(*(getattr(self, each.name) for each in fields(self)))

    def validate(self) -> list[Problem]:
        """Return the rules that the fields break: ``statistics_invalid`` and ``field_out_of_range``."""
        limits = {"computed_mask": UINT32_MAX, "nnz": UINT64_MAX}
        limits |= dict.fromkeys(("nm_n", "nm_m", "has_nan", "has_inf"), _UINT8_MAX)
        problems = [
            _statistics_problem(ProblemCode.FIELD_OUT_OF_RANGE, name, f"{getattr(self, name)} is not in 0…{largest}")
            for name, largest in limits.items()
            if not 0 <= getattr(self, name) <= largest
        ]
        if self.computed_mask & ~_KNOWN_STATISTICS and not problems:
            message = f"0x{self.computed_mask:08X} has reserved bits"
            problems.append(_statistics_problem(ProblemCode.STATISTICS_INVALID, "computed_mask", message))
        return problems


def _statistics_problem(code: ProblemCode, name: str, message: str) -> Problem:
    field = f"statistics.{name}"
    return Problem(code, f"descriptor.{field}", message, _SPEC, field=field)


def read_statistics(reader: Reader) -> Statistics:
    """Read the 72 bytes of the section and note reserved bytes that are not 0."""
    mask = reader.scalar("u32", "statistics.computed_mask")
    reader.zeros(4, "statistics._reserved", spec=_SPEC)
    nnz = reader.scalar("u64", "statistics.nnz")
    floats = [reader.scalar("f64", f"statistics.{each.name}") for each in fields(Statistics)[2:8]]
    small = [reader.scalar("u8", f"statistics.{each.name}") for each in fields(Statistics)[8:]]
    reader.zeros(4, "statistics._reserved2", spec=_SPEC)
    return Statistics(mask, nnz, *floats, *small)


def read_private_type(reader: Reader) -> PrivateType:
    """Read the 20 bytes of the extension-type section and note reserved bytes that are not 0."""
    values = {}
    for each in fields(PrivateType):
        if each.name == "exponent_bias":
            reader.zeros(2, "extension_type._reserved", spec="wire format 4")
        kind = "u32" if each.name in ("bit_width", "exponent_bias") else "u8"
        values[each.name] = reader.scalar(kind, f"extension_type.{each.name}")
    reader.zeros(2, "extension_type._reserved2", spec="wire format 4")
    return PrivateType(**values)
