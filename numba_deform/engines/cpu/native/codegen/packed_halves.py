"""Packed 16-bit floats in machine code, bit for bit what ``device/half2.py`` and ``float32.py`` say of them.

Where a result of fp16 is not a number, the kernel is left to the interpreter, which knows the bits of it.
"""

from llvmlite import ir

from ..runtime.llvm_types import F32, F64, HALF, I16, I32
from .ir_values import odd, resized


def _parts(body, word):
    """The lower and the upper 16 bits."""
    builder = body.builder
    return builder.trunc(word, I16), builder.trunc(builder.lshr(word, ir.Constant(I32, 16)), I16)


def _joined(body, low, high):
    builder = body.builder
    return builder.or_(builder.zext(low, I32), builder.shl(builder.zext(high, I32), ir.Constant(I32, 16)))


def _as_f32(body, bits):
    wide = body.builder.shl(body.builder.zext(bits, I32), ir.Constant(I32, 16))
    return body.builder.bitcast(wide, F32)


def _to_f16(body, x):
    _leave_if_no_number(body, x)
    return body.builder.bitcast(resized(body.builder, x, HALF), I16)


def _leave_if_no_number(body, x):
    body.bail_out_if(body.builder.fcmp_unordered("!=", x, x))


def _to_bf16(body, x):
    builder, bits = body.builder, odd(body.builder, x)
    last = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
    rounded = builder.add(builder.add(bits, ir.Constant(I32, 0x7FFF)), last)
    nearest = builder.trunc(builder.lshr(rounded, ir.Constant(I32, 16)), I16)
    return builder.select(builder.fcmp_ordered("==", x, x), nearest, ir.Constant(I16, 0x7FFF))


def _packed(compute, from_bits, to_bits):
    """An operation on both halves of some words."""

    def write(body, *words):
        halves = [[from_bits(body, part) for part in _parts(body, word)] for word in words]
        return _joined(body, *[to_bits(body, compute(body, *part)) for part in zip(*halves, strict=True)])

    return write


def _convert(to_bits):
    """Two float32, rounded and packed."""
    return lambda body, *values: _joined(body, *[to_bits(body, body.builder.fpext(v, F64)) for v in values])


def _widened(which):
    """One fp16 half as a float32."""

    def write(body, word):
        value = body.builder.fpext(body.builder.bitcast(_parts(body, word)[which], HALF), F32)
        _leave_if_no_number(body, value)
        return value

    return write


def _duplicated(which):
    def write(body, word):
        part = _parts(body, word)[which]
        return _joined(body, part, part)

    return write


def _add_rm(body, x, y):
    """The sum rounded towards minus infinity: one below the nearest, where that is above the sum of float64
    and what that lacks."""
    builder, zero, sign = body.builder, ir.Constant(F64, 0.0), ir.Constant(I32, 1 << 31)
    signs = builder.and_(builder.or_(builder.bitcast(x, I32), builder.bitcast(y, I32)), sign)
    x, y = builder.fpext(x, F64), builder.fpext(y, F64)
    total = builder.fadd(x, y)
    _leave_if_no_number(body, total)
    rest = builder.fsub(total, x)
    lacks = builder.fadd(builder.fsub(x, builder.fsub(total, rest)), builder.fsub(y, rest))
    nearest = builder.fptrunc(total, F32)
    back, bits = builder.fpext(nearest, F64), builder.bitcast(nearest, I32)
    short = builder.and_(builder.fcmp_ordered("==", back, total), builder.fcmp_ordered("<", lacks, zero))
    above = builder.or_(builder.fcmp_ordered(">", back, total), short)
    negative = builder.icmp_signed("<", bits, ir.Constant(I32, 0))
    below = builder.add(bits, builder.select(negative, ir.Constant(I32, 1), ir.Constant(I32, -1)))
    below = builder.select(builder.fcmp_ordered("==", back, zero), ir.Constant(I32, 0x80000001), below)
    bits = builder.select(above, below, bits)
    return builder.bitcast(builder.select(builder.fcmp_ordered("==", total, zero), signs, bits), F32)


# To float64 and back.
F16 = lambda body, bits: resized(body.builder, body.builder.bitcast(bits, HALF), F64), _to_f16
BF16 = lambda body, bits: body.builder.fpext(_as_f32(body, bits), F64), _to_bf16
# Sums of bf16 are rounded more than once: left to the interpreter.
OPERATIONS = {
    "fma_rn_f16x2": _packed(lambda body, a, b, c: body.builder.fadd(body.builder.fmul(a, b), c), *F16),
    "mul_rn_f16x2": _packed(lambda body, a, b: body.builder.fmul(a, b), *F16),
    "add_rn_f16x2": _packed(lambda body, a, b: body.builder.fadd(a, b), *F16),
    "cvt_rn_f16x2_f32": _convert(_to_f16),
    "mul_rn_bf16x2": _packed(lambda body, a, b: body.builder.fmul(a, b), *BF16),
    "cvt_rn_bf16x2_f32": _convert(_to_bf16),
    "cvt_f32_f16_lo": _widened(0), "cvt_f32_f16_hi": _widened(1),
    "cvt_f32_bf16_lo": lambda body, word: _as_f32(body, _parts(body, word)[0]),
    "cvt_f32_bf16_hi": lambda body, word: _as_f32(body, _parts(body, word)[1]),
    "dup_lo_b16x2": _duplicated(0), "dup_hi_b16x2": _duplicated(1), "add_rm_f32": _add_rm,
    "mov_f32_b32": lambda body, word: body.builder.bitcast(word, F32),
    "mov_b32_f32": lambda body, x: body.builder.bitcast(x, I32),
    "div_u32": lambda body, x, y: _divided(body, "udiv", x, y),
    "rem_u32": lambda body, x, y: _divided(body, "urem", x, y),
}  # fmt: skip


def _divided(body, name, x, y):
    body.bail_out_if(body.builder.icmp_unsigned("==", y, ir.Constant(I32, 0)))
    return getattr(body.builder, name)(x, y)
