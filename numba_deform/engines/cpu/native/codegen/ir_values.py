"""What variables of a kernel are while its machine code is written, and numbers of Numba's types in LLVM. All
that writes machine code deals in these."""

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from ..runtime.llvm_types import F32, F64, HALF, I1, I32, I64

FLOATS = {types.float16: HALF, types.float32: F32, types.float64: F64}
KINDS = {I1: types.boolean} | {lowered: kind for kind, lowered in FLOATS.items()}
SUFFIXES, WIDTHS = {HALF: "f16", F32: "f32", F64: "f64"}, {HALF: 16, F32: 32, F64: 64}


class NotLowered(Exception):
    """The kernel uses something of which no machine code is made: it is interpreted."""


@dataclass(frozen=True, eq=False)
class Static:
    """A value that is known when machine code is made: a function, a module, a type, a named tuple of these."""

    value: object

    def __eq__(self, other):
        return isinstance(other, Static) and other.value is self.value

    def __hash__(self):
        return id(self.value)


@dataclass(frozen=True, eq=False)
class Tuple:
    """A tuple of values."""

    parts: list


@dataclass(frozen=True, eq=False)
class Local:
    """An array of one thread: its elements, and of each whether it has been written."""

    data: object
    written: object
    shape: tuple
    kind: object


@dataclass(frozen=True, eq=False)
class View:
    """A shared or global array: its address, the row of its region, its number among the thread's arrays, the
    sizes and strides of its dimensions, and Numba's type of its elements."""

    address: object
    region: object
    handle: object
    shape: list
    strides: list
    kind: object


@dataclass(frozen=True, eq=False)
class Element:
    """An element of a shared or global array, or a field of one that is a record: the array, the indices, the
    row of its region or 0, its address, Numba's type of it and the field's name."""

    view: View
    indices: list
    region: object
    address: object
    kind: object
    field: str | None = None


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop over a range: where the next value, the last one and the step are kept, and the type of them."""

    next: object
    stop: object
    step: object
    kind: object


VARIABLE = Tuple, View, Element  # what has numbers that change from one execution of a statement to another


def leaves(value, opened=VARIABLE):
    """The numbers, in order, that a value consists of, or of those classes alone."""
    if isinstance(value, ir.Value):
        return [value]
    parts = vars(value).values() if isinstance(value, opened) else value if isinstance(value, list) else ()
    return [leaf for part in parts for leaf in leaves(part, opened)]


def rebuilt(value, new, opened=VARIABLE):
    """The same value with numbers from the iterator ``new``."""
    if isinstance(value, list):
        return [rebuilt(part, new, opened) for part in value]
    if isinstance(value, opened):
        return type(value)(*rebuilt(list(vars(value).values()), new, opened))
    return next(new) if isinstance(value, ir.Value) else value


def structure(value, of_array=lambda array: array):
    """What of a value is known when machine code is made; two that have the same differ in their numbers only.
    Of a local array that is ``of_array``."""
    if isinstance(value, list):
        return tuple(structure(part, of_array) for part in value)
    if isinstance(value, VARIABLE):
        return type(value), structure(list(vars(value).values()), of_array)
    if isinstance(value, Local):
        return of_array(value)
    return value.type if isinstance(value, ir.Value) else value


@functools.cache
def halves_converted_here():
    """Whether this processor converts 16-bit floats by itself, as all but old x86 do."""
    return llvm.get_host_cpu_features().get("f16c", True)


def is_number(kind):
    """Whether a value of Numba's type is one number, of a kind that machine code computes with."""
    whole = types.Boolean, types.BooleanLiteral, types.Integer, types.IntegerLiteral
    if kind == types.float16:
        return halves_converted_here()
    return isinstance(kind, whole) or kind in FLOATS


def lowered(kind):
    """The LLVM type of a number."""
    kind = types.unliteral(kind)
    if isinstance(kind, types.Boolean):
        return I1
    if isinstance(kind, types.Integer):
        return ir.IntType(kind.bitwidth)
    if kind in FLOATS:
        return FLOATS[kind]
    raise NotLowered(f"a number of type {kind}")


def size_of(number):
    """How many bytes a number of an LLVM type takes."""
    return (WIDTHS.get(number) or number.width + 7) // 8


def is_not_zero(builder, value):
    return builder.icmp_unsigned("!=", value, value.type(0))


def signed(kind):
    return isinstance(kind, types.Integer) and kind.signed


def constant(number, kind):
    """A number that is known, as a value of a type."""
    kind = types.unliteral(kind)
    if isinstance(kind, types.Float):
        return ir.Constant(lowered(kind), float(number))
    return ir.Constant(lowered(kind), int(number) & ((1 << lowered(kind).width) - 1))


def saturating(builder, value, want, is_signed):
    """A float as an integer: toward zero, clamped, NaN to 0."""
    name = f"llvm.fpto{'s' if is_signed else 'u'}i.sat.i{want.width}.{SUFFIXES[value.type]}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(want, [value.type]), name)
    return builder.call(function, [value])


def odd(builder, x):
    """A float64 as the bits of a float32 whose last one says whether something was cut off, so that the next
    rounding cannot take it for a tie."""
    near = builder.fptrunc(x, F32)
    back, bits = builder.fpext(near, F64), builder.bitcast(near, I32)
    size = [builder.and_(builder.bitcast(v, I64), ir.Constant(I64, (1 << 63) - 1)) for v in (back, x)]
    below = builder.sub(bits, builder.zext(builder.icmp_unsigned(">", *size), I32))
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.select(inexact, builder.or_(below, ir.Constant(I32, 1)), bits)


def resized(builder, value, target):
    """A float of another LLVM type, rounded once; half and float64 by way of float32, as processors do."""
    if value.type == F64 and target == HALF:
        return builder.fptrunc(builder.bitcast(odd(builder, value), F32), HALF)
    if value.type == HALF and target == F64:
        value = builder.fpext(value, F32)
    return (builder.fpext if WIDTHS[target] > WIDTHS[value.type] else builder.fptrunc)(value, target)


def convert(builder, value, kind, want):
    """A number of type ``kind`` as one of type ``want``."""
    kind, want = types.unliteral(kind), types.unliteral(want)
    if kind == want:
        return value
    source, target = lowered(kind), lowered(want)
    if isinstance(want, types.Boolean):
        if isinstance(kind, types.Float):
            return builder.fcmp_unordered("!=", value, ir.Constant(source, 0.0))
        return builder.icmp_unsigned("!=", value, ir.Constant(source, 0))
    if isinstance(kind, types.Float):
        if isinstance(want, types.Float):
            return resized(builder, value, target)
        value = resized(builder, value, F32) if source == HALF else value
        return saturating(builder, value, target, signed(want))
    if target == HALF:
        return convert(builder, convert(builder, value, kind, types.float64), types.float64, want)
    if isinstance(want, types.Float):
        return (builder.sitofp if signed(kind) else builder.uitofp)(value, target)
    if source.width >= target.width:
        return builder.trunc(value, target) if source.width > target.width else value
    return (builder.sext if signed(kind) else builder.zext)(value, target)
