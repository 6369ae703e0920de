"""Integers of PTX's Python text in LLVM. Python's have no end: here each value knows between which numbers it
lies, and is as wide as these need, so that the results are the interpreter's."""

import operator
from dataclasses import dataclass

from llvmlite import ir

from ......compiler.inference import combined
from ....native.codegen.arithmetic import COMPARISONS
from ....native.codegen.ir_values import NotLowered
from ....native.runtime.llvm_types import I1

OPERATORS = {sign: function for function, sign in COMPARISONS.items()}
WIDTHS = (1, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BoundedInt:
    """An integer from ``low`` to ``high``. Its LLVM value has a sign only if ``low`` is below 0."""

    value: ir.Value
    low: int
    high: int

    @property
    def constant(self):
        """The number, where it is known; else None."""
        return self.low if self.low == self.high else None


def width_of(low, high):
    """How many bits hold all numbers from ``low`` to ``high``."""
    bits = high.bit_length() if low >= 0 else max((~low).bit_length(), max(high, 0).bit_length()) + 1
    if bits > WIDTHS[-1]:
        raise NotLowered(f"integers of {bits} bits")
    return next(n for n in WIDTHS if bits <= n)


def constant(number):
    """A constant."""
    return BoundedInt(ir.Constant(ir.IntType(width_of(number, number)), number), number, number)


def unsigned(value):
    """All bits of an LLVM integer."""
    return BoundedInt(value, 0, (1 << value.type.width) - 1)


def as_int(value):
    """A number or a truth as a BoundedInt."""
    if isinstance(value, BoundedInt):
        return value
    if isinstance(value, ir.Value) and value.type == I1:
        return BoundedInt(value, 0, 1)
    raise NotLowered("an integer that is none")


def resized(builder, number, width):
    """The LLVM value of a BoundedInt modulo 2 ** ``width``."""
    value, kind = number.value, ir.IntType(width)
    if isinstance(value, ir.Constant) and number.constant is not None:
        return ir.Constant(kind, number.low & (1 << width) - 1)
    if value.type.width >= width:
        return builder.trunc(value, kind) if value.type.width > width else value
    return (builder.sext if number.low < 0 else builder.zext)(value, kind)


def united(builder, *numbers):
    """(LLVM values of one width, whether they have a sign, the lowest, the highest number)"""
    low, high = min(n.low for n in numbers), max(n.high for n in numbers)
    width = width_of(low, high)
    return [resized(builder, n, width) for n in numbers], low < 0, low, high


def compared(builder, sign, left, right):
    """The truth of a comparison."""
    if left.constant is not None and right.constant is not None:
        return I1(OPERATORS[sign](left.constant, right.constant))
    (a, b), signed, _, _ = united(builder, left, right)
    return (builder.icmp_signed if signed else builder.icmp_unsigned)(sign, a, b)


def chosen(builder, condition, left, right):
    """``left`` where the condition holds, else ``right``."""
    (a, b), _, low, high = united(builder, left, right)
    return BoundedInt(builder.select(condition, a, b), low, high)


# --- arithmetic: Python's operators ---------------------------------------------------------------------
RING = {"Add": "add", "Sub": "sub", "Mult": "mul", "BitAnd": "and_", "BitOr": "or_", "BitXor": "xor"}
DIVISION = {"FloorDiv": "udiv", "Mod": "urem"}
OPERATIONS = {name: getattr(operator, word) for name, word in RING.items()} | {
    "FloorDiv": operator.floordiv, "Mod": operator.mod}  # fmt: skip


def calculated(builder, name, left, right):
    """``left + right`` and the like of BoundedInts."""
    low, high = _bounds(OPERATIONS[name], left, right)
    if low == high:
        return constant(low)
    width = width_of(low, high)
    if name in DIVISION:
        width = max(width_of(n.low, n.high) for n in (left, right))
    a, b = (resized(builder, n, width) for n in (left, right))
    return BoundedInt(getattr(builder, {**RING, **DIVISION}[name])(a, b), low, high)


def _bounds(function, a, b):
    if a.constant is not None and b.constant is not None:
        return (function(a.constant, b.constant),) * 2
    if function in (operator.floordiv, operator.mod) and (a.low < 0 or b.low < 1):
        raise NotLowered("a division of numbers with signs, or by 0")
    return combined(function, (a.low, a.high), (b.low, b.high))


def shifted_left(builder, value, amount):
    """An LLVM value by a BoundedInt, modulo its width."""
    width = value.type.width
    far = compared(builder, ">=", amount, constant(width))
    near = builder.select(far, ir.Constant(value.type, 0), resized(builder, amount, width))
    return builder.select(far, ir.Constant(value.type, 0), builder.shl(value, near))


def shifted_right(builder, number, amount):
    """``number >> amount``"""
    width, low = number.value.type.width, amount.low
    near = resized(builder, chosen(builder, compared(builder, "<", amount, constant(width)), amount,
                                   constant(width - 1)), width)  # fmt: skip
    ends = number.low >> (0 if number.low < 0 else amount.high), number.high >> max(low, 0)
    if number.low < 0:
        return BoundedInt(builder.ashr(number.value, near), ends[0], max(ends[1], 0))
    far = compared(builder, ">=", amount, constant(width))
    shifted = builder.select(far, ir.Constant(number.value.type, 0), builder.lshr(number.value, near))
    return BoundedInt(shifted, min(ends), ends[1])
