"""Operators of Numba's types in LLVM, rounded and wrapped as the interpreter does (``typed_code``). A front
end's expressions call it."""

import operator

from llvmlite import ir
from numba import types

from ..runtime.llvm_types import I1
from .ir_values import SUFFIXES, WIDTHS, NotLowered, signed

INTEGERS = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.and_: "and_",
            operator.or_: "or_", operator.xor: "xor"}  # fmt: skip
FLOATS = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv"}
COMPARISONS = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
               operator.ne: "!="}  # fmt: skip


def wraps(fn):
    """Whether an operator of integers of two types is that of the result's type."""
    return fn in INTEGERS or fn in (operator.lshift, operator.rshift)


def binary(body, fn, left, right, kind):
    """``fn(left, right)`` of two numbers of type ``kind``; ``body`` has the builder, and leaves where the
    interpreter has something to say."""
    builder = body.builder
    if isinstance(kind, types.Float):
        if fn not in FLOATS:
            raise NotLowered(f"{fn.__name__} of floats")
        return getattr(builder, FLOATS[fn])(left, right)
    if fn in INTEGERS:
        return getattr(builder, INTEGERS[fn])(left, right)
    if isinstance(kind, types.Boolean):
        raise NotLowered(f"{fn.__name__} of booleans")
    if fn in (operator.lshift, operator.rshift):
        return shift(builder, fn, left, right, kind)
    if fn in (operator.floordiv, operator.mod):
        return divide(body, fn, left, right, kind)
    raise NotLowered(fn.__name__)


def shift(builder, fn, value, amount, kind):
    """A shift by any amount: the GPU takes 32 bits of it, and beyond the width nothing but the sign is left."""
    width = value.type.width
    low = amount if width <= 32 else builder.and_(amount, ir.Constant(amount.type, 0xFFFFFFFF))
    far = builder.icmp_unsigned(">=", low, ir.Constant(low.type, width))
    near = builder.select(far, ir.Constant(low.type, width - 1), low)
    if fn is operator.rshift and signed(kind):
        return builder.ashr(value, near)
    shifted = (builder.shl if fn is operator.lshift else builder.lshr)(value, near)
    return builder.select(far, ir.Constant(value.type, 0), shifted)


def divide(body, fn, left, right, kind):
    """``//`` and ``%`` as Python rounds them; 0 where it divides by zero."""
    builder, zero = body.builder, ir.Constant(left.type, 0)
    by_zero = builder.icmp_unsigned("==", right, zero)
    right = builder.select(by_zero, ir.Constant(left.type, 1), right)
    left = builder.select(by_zero, zero, left)
    if not signed(kind):
        return (builder.udiv if fn is operator.floordiv else builder.urem)(left, right)
    lowest = ir.Constant(left.type, 1 << (left.type.width - 1))
    minus = builder.icmp_unsigned("==", right, ir.Constant(left.type, -1))
    body.bail_out_if(builder.and_(minus, builder.icmp_unsigned("==", left, lowest)))
    quotient, rest = builder.sdiv(left, right), builder.srem(left, right)
    other = builder.icmp_signed("<", builder.xor(rest, right), zero)
    fix = builder.and_(other, builder.icmp_unsigned("!=", rest, zero))
    if fn is operator.floordiv:
        return builder.select(fix, builder.sub(quotient, ir.Constant(left.type, 1)), quotient)
    return builder.select(fix, builder.add(rest, right), rest)


def compare(builder, fn, left, right, kind):
    """A comparison of two numbers of one type."""
    if isinstance(kind, types.Float):
        if fn is operator.ne:
            return builder.fcmp_unordered("!=", left, right)
        return builder.fcmp_ordered(COMPARISONS[fn], left, right)
    return (builder.icmp_signed if signed(kind) else builder.icmp_unsigned)(COMPARISONS[fn], left, right)


def library(body, name, *values):
    """One of LLVM's own functions of numbers of one type."""
    kind = values[0].type
    suffix = SUFFIXES.get(kind) or f"i{kind.width}"
    more = [I1(0)] if name in ("abs", "ctlz", "cttz") else []
    kinds = [kind] * len(values) + [I1] * len(more)
    return body.builder.call(body.maker.declared(f"llvm.{name}.{suffix}", kind, kinds), [*values, *more])


def extreme(builder, fn, left, right, kind):
    """``min`` or ``max``; of floats the one that is a number."""
    smaller = compare(builder, operator.lt if fn is min else operator.gt, right, left, kind)
    chosen = builder.select(smaller, right, left)
    if isinstance(kind, types.Float):
        chosen = builder.select(builder.fcmp_unordered("!=", left, left), right, chosen)
        # Equal numbers differ at most in the sign of zero.
        bits = [builder.bitcast(v, ir.IntType(WIDTHS[left.type])) for v in (left, right)]
        both = builder.bitcast((builder.or_ if fn is min else builder.and_)(*bits), left.type)
        chosen = builder.select(builder.fcmp_ordered("==", left, right), both, chosen)
    return chosen
