"""Packed 16-bit floats and bit casts (PTX ISA 9.7.4, 9.7.9.21): two numbers in one 32-bit register.

``lo`` is the lower half, the first of the two in memory. All of these run in plain Python too.
"""

import math
import struct

import numpy as np

from .ptx import f32, intrinsic, u32

WORD = 0xFFFFFFFF
_U32 = [struct.Struct(f"<{n}I") for n in range(3)]
_F32 = [struct.Struct(f"<{n}f") for n in range(3)]
_UNPACK_WORD, _PACK_HALVES = _U32[1].unpack, struct.Struct("<2e").pack
_ONE = np.float32(1)

# The number that each 16 bits stand for: as float64, in which halves are computed, and as float32.
_PATTERNS = np.arange(1 << 16, dtype=np.uint32)
_BF16_AS_F32 = list((_PATTERNS << 16).view(np.float32))
_F16 = list(struct.unpack("<65536e", _PATTERNS.astype(np.uint16).tobytes()))
_F16_AS_F32 = list(np.array(_F16, np.float32))
_BF16 = (_PATTERNS << 16).view(np.float32).tolist()


def _pack_f16(lo, hi):
    try:
        return _UNPACK_WORD(_PACK_HALVES(lo, hi))[0]
    except OverflowError:  # struct refuses what the hardware turns into infinity
        with np.errstate(over="ignore"):
            return int(np.array([lo, hi]).astype(np.float16).view(np.uint32)[0])


def _pack_bf16(lo, hi):
    """Two float64 to bf16, by way of float32."""
    halfway = _float_bytes(lo, hi)
    bits, nearest = _U32[2].unpack(halfway), _F32[2].unpack(halfway)
    return _to_bf16(bits[0], nearest[0], lo) | _to_bf16(bits[1], nearest[1], hi) << 16


def _to_bf16(bits, nearest, x):
    """The 16 bits nearest to ``x``, ties to even; ``bits`` and ``nearest`` are ``x`` as a float32."""
    if nearest != x:
        if x != x:
            return 0x7FFF
        if not math.isinf(nearest):
            # Round to odd: a last bit of 1 says that something was cut off, so that the second
            # rounding cannot take it for a tie.
            bits = bits - (abs(nearest) > abs(x)) | 1
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _as_float32(lo, hi):
    """What the instruction is handed: two numbers rounded to float32."""
    if type(lo) is type(hi) is np.float32:
        return float(lo), float(hi)
    return _F32[2].unpack(_float_bytes(float(lo), float(hi)))


def _float_bytes(*values):
    """Numbers as float32 in memory; too large ones are infinite."""
    try:
        return _F32[len(values)].pack(*values)
    except OverflowError:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype("<f4").tobytes()


def _float(word):
    """The float32 of these bits."""
    value = _F32[1].unpack(word.to_bytes(4, "little"))[0]
    if value != value:
        return np.uint32(word).view(np.float32)  # a float64 on the way might change a NaN's bits
    return _ONE * value  # a number of Python's takes on the other's type, in a third of the time


def fused(a, b, c):
    """``a * b + c`` in float64, rounded to odd, where ``a * b`` is exact: to round that once more, to
    less than 52 bits, is the same as to round once."""
    product = a * b
    total = product + c
    if math.isfinite(total):
        rest = total - product
        error = (product - (total - rest)) + (c - rest)
        if error and struct.pack("<d", total)[0] & 1 == 0:
            return math.nextafter(total, math.copysign(math.inf, error))
    return total


# Each half is computed in float64, where a 16-bit product is exact, and rounded once. A sum with an
# fp16 product may be inexact there, but only if the product is too small to matter; bf16 has the
# exponents of float32, and takes ``fused``.


@intrinsic(u32(u32, u32, u32), pure=True)
def fma_rn_f16x2(x, y, z):
    """``fma.rn.f16x2``: ``x * y + z`` for both fp16 halves, rounded once. PTX ISA 9.7.4.4."""
    lo = _F16[x & 0xFFFF] * _F16[y & 0xFFFF] + _F16[z & 0xFFFF]
    hi = _F16[x >> 16 & 0xFFFF] * _F16[y >> 16 & 0xFFFF] + _F16[z >> 16 & 0xFFFF]
    try:  # _pack_f16, without a call: kernels do little else
        return _UNPACK_WORD(_PACK_HALVES(lo, hi))[0]
    except OverflowError:
        return _pack_f16(lo, hi)


@intrinsic(u32(u32, u32), pure=True)
def mul_rn_f16x2(x, y):
    """``mul.rn.f16x2``: ``x * y`` for both fp16 halves. PTX ISA 9.7.4.3."""
    lo, hi = _F16[x & 0xFFFF] * _F16[y & 0xFFFF], _F16[x >> 16 & 0xFFFF] * _F16[y >> 16 & 0xFFFF]
    return _pack_f16(lo, hi)


@intrinsic(u32(u32, u32), pure=True)
def add_rn_f16x2(x, y):
    """``add.rn.f16x2``: ``x + y`` for both fp16 halves. PTX ISA 9.7.4.1."""
    lo, hi = _F16[x & 0xFFFF] + _F16[y & 0xFFFF], _F16[x >> 16 & 0xFFFF] + _F16[y >> 16 & 0xFFFF]
    return _pack_f16(lo, hi)


@intrinsic(u32(f32, f32), pure=True)
def cvt_rn_f16x2_f32(lo, hi):
    """``cvt.rn.f16x2.f32``: two floats rounded and packed. PTX ISA 9.7.9.21."""
    return _pack_f16(*_as_float32(lo, hi))


@intrinsic(u32(u32, u32, u32), pure=True)
def fma_rn_bf16x2(x, y, z):
    """``fma.rn.bf16x2``: ``x * y + z`` for both bf16 halves, rounded once. PTX ISA 9.7.4.4."""
    lo = fused(_BF16[x & 0xFFFF], _BF16[y & 0xFFFF], _BF16[z & 0xFFFF])
    hi = fused(_BF16[x >> 16 & 0xFFFF], _BF16[y >> 16 & 0xFFFF], _BF16[z >> 16 & 0xFFFF])
    return _pack_bf16(lo, hi)


@intrinsic(u32(u32, u32), pure=True)
def mul_rn_bf16x2(x, y):
    """``mul.rn.bf16x2``: ``x * y`` for both bf16 halves. PTX ISA 9.7.4.3."""
    lo, hi = _BF16[x & 0xFFFF] * _BF16[y & 0xFFFF], _BF16[x >> 16 & 0xFFFF] * _BF16[y >> 16 & 0xFFFF]
    return _pack_bf16(lo, hi)


@intrinsic(u32(u32, u32), pure=True)
def add_rn_bf16x2(x, y):
    """``add.rn.bf16x2``: ``x + y`` for both bf16 halves. PTX ISA 9.7.4.1."""
    lo = fused(_BF16[x & 0xFFFF], 1.0, _BF16[y & 0xFFFF])
    return _pack_bf16(lo, fused(_BF16[x >> 16 & 0xFFFF], 1.0, _BF16[y >> 16 & 0xFFFF]))


@intrinsic(u32(f32, f32), pure=True)
def cvt_rn_bf16x2_f32(lo, hi):
    """``cvt.rn.bf16x2.f32``: two floats rounded and packed. PTX ISA 9.7.9.21."""
    return _pack_bf16(*_as_float32(lo, hi))


@intrinsic(f32(u32), pure=True)
def cvt_f32_f16_lo(x):
    """``cvt.f32.f16`` of the lower half. PTX ISA 9.7.9.21."""
    return _F16_AS_F32[x & 0xFFFF]


@intrinsic(f32(u32), pure=True)
def cvt_f32_f16_hi(x):
    """``cvt.f32.f16`` of the upper half. PTX ISA 9.7.9.21."""
    return _F16_AS_F32[x >> 16 & 0xFFFF]


@intrinsic(f32(u32), pure=True)
def cvt_f32_bf16_lo(x):
    """The lower bf16 as a float: a shift by 16 bits. PTX ISA 9.7.8.8."""
    return _BF16_AS_F32[x & 0xFFFF]


@intrinsic(f32(u32), pure=True)
def cvt_f32_bf16_hi(x):
    """The upper bf16 as a float: a mask. PTX ISA 9.7.8.1."""
    return _BF16_AS_F32[x >> 16 & 0xFFFF]


@intrinsic(u32(u32), pure=True)
def dup_lo_b16x2(x):
    """``prmt.b32``: the lower half in both halves. PTX ISA 9.7.9.7."""
    return (x & 0xFFFF) * 0x10001


@intrinsic(u32(u32), pure=True)
def dup_hi_b16x2(x):
    """``prmt.b32``: the upper half in both halves. PTX ISA 9.7.9.7."""
    return ((x >> 16) & 0xFFFF) * 0x10001


@intrinsic(f32(u32), pure=True)
def mov_f32_b32(x):
    """``mov.b32``: the same 32 bits read as a float. PTX ISA 9.7.9.3."""
    return _float(x & WORD)


@intrinsic(u32(f32), pure=True)
def mov_b32_f32(x):
    """``mov.b32``: the bits of a float. PTX ISA 9.7.9.3."""
    if x != x:
        return int(np.float32(x).view(np.uint32))  # as in _float
    return int.from_bytes(_float_bytes(x), "little")
