"""Packed 16-bit floats in machine code, bit for bit what ``device/half2.py`` says of them.

Where a result is not a number the interpreter is asked, which knows the bits of it.
"""

import functools
import math
import operator

import llvmlite.binding as llvm
from llvmlite import ir

from .values import F32, F64, I1, I32, I64

I16, HALF = ir.IntType(16), ir.HalfType()


@functools.cache
def converted_here():
    """Whether this processor converts 16-bit floats by itself, as all but old x86 do."""
    return llvm.get_host_cpu_features().get("f16c", True)


def _parts(body, word):
    """The lower and the upper 16 bits."""
    builder = body.builder
    return builder.trunc(word, I16), builder.trunc(builder.lshr(word, ir.Constant(I32, 16)), I16)


def _joined(body, low, high):
    builder = body.builder
    return builder.or_(builder.zext(low, I32), builder.shl(builder.zext(high, I32), ir.Constant(I32, 16)))


def _from_f16(body, bits):
    return body.builder.fpext(body.builder.fpext(body.builder.bitcast(bits, HALF), F32), F64)


def _from_bf16(body, bits):
    wide = body.builder.shl(body.builder.zext(bits, I32), ir.Constant(I32, 16))
    return body.builder.fpext(body.builder.bitcast(wide, F32), F64)


def _odd(body, x):
    """A float64 as the bits of a float32 whose last one says whether something was cut off, so that the next
    rounding cannot take it for a tie."""
    builder = body.builder
    near = builder.fptrunc(x, F32)
    back, bits = builder.fpext(near, F64), builder.bitcast(near, I32)
    size = [builder.and_(builder.bitcast(v, I64), ir.Constant(I64, (1 << 63) - 1)) for v in (back, x)]
    below = builder.sub(bits, builder.zext(builder.icmp_unsigned(">", *size), I32))
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.select(inexact, builder.or_(below, ir.Constant(I32, 1)), bits)


def _to_f16(body, x):
    builder = body.builder
    return builder.bitcast(builder.fptrunc(builder.bitcast(_odd(body, x), F32), HALF), I16)


def _to_bf16(body, x):
    builder, bits = body.builder, _odd(body, x)
    last = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
    rounded = builder.add(builder.add(bits, ir.Constant(I32, 0x7FFF)), last)
    return builder.trunc(builder.lshr(rounded, ir.Constant(I32, 16)), I16)


def _below(body, limit, *values):
    """Whether all of these float64 are numbers between ``-limit`` and ``limit``."""
    builder, fine = body.builder, ir.Constant(I1, 1)
    for value in values:
        bits = builder.and_(builder.bitcast(value, I64), ir.Constant(I64, (1 << 63) - 1))
        size = builder.bitcast(bits, F64)
        fine = builder.and_(fine, builder.fcmp_ordered("<", size, ir.Constant(F64, limit)))
    return fine


def _packed(compute, from_bits, to_bits, limit):
    """An operation on both halves of some words. Results beyond ``limit`` are the interpreter's."""

    def write(body, ask, *words):
        halves = [[from_bits(body, part) for part in _parts(body, word)] for word in words]
        results = [compute(body, *part) for part in zip(*halves, strict=True)]
        quick = lambda: _joined(body, *[to_bits(body, r) for r in results])  # noqa: E731
        return body.maker.either(_below(body, limit, *results), quick, ask)

    return write


def _fused(body, a, b, c):
    return body.builder.fadd(body.builder.fmul(a, b), c)


def _of(fn):
    name = {operator.mul: "fmul", operator.add: "fadd"}[fn]
    return lambda body, a, b: getattr(body.builder, name)(a, b)


def _convert(to_bits, limit):
    """Two float32, rounded and packed."""

    def write(body, ask, low, high):
        builder = body.builder
        values = [builder.fpext(v, F64) for v in (low, high)]
        quick = lambda: _joined(body, *[to_bits(body, v) for v in values])  # noqa: E731
        return body.maker.either(_below(body, limit, *values), quick, ask)

    return write


def _widened(from_bits, which):
    """One half as a float32."""

    def write(body, ask, word):
        builder = body.builder
        value = from_bits(body, _parts(body, word)[which])
        return body.maker.either(_below(body, math.inf, value), lambda: builder.fptrunc(value, F32), ask)

    return write


def _duplicated(which):
    def write(body, ask, word):
        part = _parts(body, word)[which]
        return _joined(body, part, part)

    return write


F16, BF16 = (_from_f16, _to_f16), (_from_bf16, _to_bf16)
F16_LIMIT, BF16_LIMIT = 65504.0, 3.3e38  # sums of bf16 are rounded more than once: left to the interpreter
OPERATIONS = {
    "fma_rn_f16x2": _packed(_fused, *F16, F16_LIMIT),
    "mul_rn_f16x2": _packed(_of(operator.mul), *F16, F16_LIMIT),
    "add_rn_f16x2": _packed(_of(operator.add), *F16, F16_LIMIT),
    "cvt_rn_f16x2_f32": _convert(_to_f16, F16_LIMIT),
    "mul_rn_bf16x2": _packed(_of(operator.mul), *BF16, BF16_LIMIT),
    "cvt_rn_bf16x2_f32": _convert(_to_bf16, BF16_LIMIT),
    "cvt_f32_f16_lo": _widened(_from_f16, 0), "cvt_f32_f16_hi": _widened(_from_f16, 1),
    "cvt_f32_bf16_lo": _widened(_from_bf16, 0), "cvt_f32_bf16_hi": _widened(_from_bf16, 1),
    "dup_lo_b16x2": _duplicated(0), "dup_hi_b16x2": _duplicated(1),
    "mov_f32_b32": lambda body, ask, word: body.builder.bitcast(word, F32),
    "mov_b32_f32": lambda body, ask, x: body.builder.bitcast(x, I32),
    "div_u32": lambda body, ask, x, y: _divided(body, "udiv", x, y),
    "rem_u32": lambda body, ask, x, y: _divided(body, "urem", x, y),
}  # fmt: skip


def _divided(body, name, x, y):
    body.leave_if(body.builder.icmp_unsigned("==", y, ir.Constant(I32, 0)))
    return getattr(body.builder, name)(x, y)
