"""Private element types: what the extension-type section says of one, its rules and its bytes.

Spec: wire format 4, extension-type section.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass

from hurray_arrow.errors import Problem, ProblemCode
from hurray_arrow.spec import UINT32_MAX

_SPEC = "wire format 4"
_UINT8_MAX = 255
_PRIVATE = struct.Struct("<I6B2xI2B2x")
#: Field of the extension-type section and the largest value it holds.
_PRIVATE_FIELDS = {
    "bit_width": UINT32_MAX,
    "packing_factor": _UINT8_MAX,
    "is_float": _UINT8_MAX,
    "is_signed": _UINT8_MAX,
    "sign_bits": _UINT8_MAX,
    "exponent_bits": _UINT8_MAX,
    "mantissa_bits": _UINT8_MAX,
    "exponent_bias": UINT32_MAX,
    "has_nan": _UINT8_MAX,
    "has_inf": _UINT8_MAX,
}


@dataclass(frozen=True, slots=True)
class PrivateType:
    """What the extension-type section says of a private element type.

    The flags are the section's bytes: a producer's byte that is neither 0 nor 1 is kept, so that encoding gives the
    same section again. ``True`` and ``False`` are fine.

    Parameters
    ----------
    bit_width
        Width of one element in bits: 1, 2, 4, or whole bytes.
    packing_factor
        Elements in a byte: ``8 / bit_width`` below 8 bits, else 1. ``None`` takes the one allowed value.
    is_float, is_signed, has_nan, has_inf
        0 or 1.
    sign_bits, exponent_bits, mantissa_bits, exponent_bias
        Parts of a float.

    Spec: wire format 4, extension-type section.
    """

    bit_width: int
    packing_factor: int | None = None
    is_float: int = 0
    is_signed: int = 0
    sign_bits: int = 0
    exponent_bits: int = 0
    mantissa_bits: int = 0
    exponent_bias: int = 0
    has_nan: int = 0
    has_inf: int = 0

    def __post_init__(self) -> None:
        if self.packing_factor is None:
            factor = 8 // self.bit_width if self.bit_width in (1, 2, 4) else 1
            object.__setattr__(self, "packing_factor", factor)
        for name in _PRIVATE_FIELDS:
            object.__setattr__(self, name, operator.index(getattr(self, name)))

    def encode(self) -> bytes:
        """Return the 20 bytes of the extension-type section."""
        return _PRIVATE.pack(*(getattr(self, name) for name in _PRIVATE_FIELDS))

    def validate(self) -> list[Problem]:
        """Return every rule of the extension-type section that the fields break.

        Returns
        -------
        list of Problem
            Codes ``field_out_of_range`` and ``extension_type_invalid``; ``.field`` is ``extension_type.<name>``.
        """
        problems = [
            _private_problem(name, f"{getattr(self, name)} is not in 0…{largest}", ProblemCode.FIELD_OUT_OF_RANGE)
            for name, largest in _PRIVATE_FIELDS.items()
            if not 0 <= getattr(self, name) <= largest
        ]
        if problems:
            return problems
        sub_byte = self.bit_width in (1, 2, 4)
        if not sub_byte and (self.bit_width == 0 or self.bit_width % 8):
            return [_private_problem("bit_width", f"{self.bit_width} bits, expected 1, 2, 4 or whole bytes")]
        expected = 8 // self.bit_width if sub_byte else 1
        if self.packing_factor != expected:
            message = f"{self.packing_factor}, expected {expected} for {self.bit_width} bits"
            return [_private_problem("packing_factor", message)]
        return []


def _private_problem(name: str, message: str, code: ProblemCode = ProblemCode.EXTENSION_TYPE_INVALID) -> Problem:
    field = f"extension_type.{name}"
    return Problem(code, f"descriptor.{field}", message, _SPEC, field=field)
