"""Floating-point arithmetic that is rare: other roundings than to nearest, halves with options, formats of 8
bits and fewer, and tf32."""

import functools
import math

import ml_dtypes
import numpy as np

from ...rounding import FORMATS, operate, rounded
from ..operations import greatest, least, number, u32_of

HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
BYTES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn,
         "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
         "ue8m0": ml_dtypes.float8_e8m0fnu}  # fmt: skip
NAN = 0x7FFF  # of both


@number
def arithmetic(name, kind, mode, *xs):
    """One operation of f32 or f64, rounded by ``mode``."""
    result = operate(name, kind, mode, *xs)
    return np.float32(result) if kind == "f32" else result


# --- halves -------------------------------------------------------------------------------------------
def _unpack(word, kind):
    return [float(x) for x in np.array([int(word) & 0xFFFFFFFF], np.uint32).view(HALVES[kind])]


def _bits(x, kind):
    if x != x:
        return NAN
    with np.errstate(all="ignore"):
        return int(np.array(x, HALVES[kind]).view(np.uint16))


def _limited(x, kind, options):
    """A result within what an instruction's options leave of it."""
    if "satfinite" in options and math.isinf(x):
        x = math.copysign(FORMATS[kind].largest, x)
    if "sat" in options:
        x = min(max(0.0, x), 1.0) if x == x else 0.0
    return max(0.0, x) if "relu" in options and x == x else x


def _flush(x, kind):
    return x if abs(x) >= 2.0 ** FORMATS[kind].least or x != x else math.copysign(0.0, x)


@number
def extreme(name, options, *xs):
    """min or max of floats of one type; ``options``: NaN, abs (of the numbers' sizes), xorsign (with the
    product of their signs)."""
    kind, sign = type(xs[0]), math.prod(math.copysign(1, x) for x in xs)
    if "NaN" in options and any(x != x for x in xs):
        return kind(math.nan)
    xs = map(abs, xs) if "abs" in options else xs
    result = functools.reduce(least if name == "min" else greatest, xs)
    return kind(math.copysign(result, sign)) if "xorsign" in options and result == result else result


ONE = {"neg": lambda x: -x, "abs": abs, "tanh": lambda x: float(np.tanh(x)),
       "ex2": lambda x: float(np.exp2(np.float64(x)))}  # fmt: skip


def _half(name, kind, options, xs):
    if "ftz" in options:
        xs = [_flush(x, kind) for x in xs]
    if name in ONE:
        with np.errstate(all="ignore"):
            result = rounded(ONE[name](*xs), kind)
    elif name in ("min", "max"):
        result = extreme(name, options, *xs)
    else:
        result = operate(name, kind, "rn", *xs)
    if "ftz" in options:
        result = _flush(result, kind)
    return _bits(_limited(result, kind, options), kind)


@number
def of_halves(name, kind, options, *words):
    """An operation of both halves of words, of type f16 or bf16."""
    pairs = zip(*(_unpack(word, kind) for word in words), strict=True)
    low, high = (_half(name, kind, options, xs) for xs in pairs)
    return low | high << 16


@number
def half_of(x, kind, mode, options):
    """The bits of a number as f16 or bf16."""
    return _bits(_limited(rounded(x, kind, mode), kind, options), kind)


@number
def wide_of(x, kind, mode):
    """A number as f32 or f64."""
    result = rounded(x, kind, mode)
    return np.float32(result) if kind == "f32" else result


@number
def tf32_of(x, mode, options):
    """The bits of a float32 as tf32, the lower 13 zero. Under ``rna``, which ptxas makes of integer arithmetic,
    a NaN keeps its upper bits."""
    if x != x:
        return u32_of(x) & 0xFFFFE000 if mode == "rna" else 0x7FFFE000
    away = np.uint32(u32_of(x) + 0x1000 & 0xFFFFE000).view(np.float32)
    result = _limited(away if mode == "rna" else rounded(x, "tf32", mode), "tf32", options)
    return int(np.float32(result).view(np.uint32))


@number
def bytes_of(kind, options, low, high):
    """The bits of two numbers in a format of 8, 6 or 4 bits, which go to the largest where they are too large.
    A NaN is one in 8 bits, and the largest number in fewer."""

    def bits(x):
        if x != x:
            return 0x7F if kind in ("e4m3", "e5m2") else _byte(FORMATS[kind].largest, kind)
        return _byte(_limited(rounded(x, kind), kind, ("satfinite", *options)), kind)

    return bits(low) | bits(high) << (4 if kind == "e2m1" else 8)


def _byte(x, kind):
    return int(np.array(x, BYTES[kind]).view(np.uint8))


@number
def exponents_of(mode, options, low, high):
    """Two numbers as ue8m0: powers of two, up to 2 ** 127 under satfinite. NaN is 0xff; a sign is dropped."""

    def exponent(x):
        bits = u32_of(x) & 0x7FFFFFFF
        up = mode == "rp" and bits & 0x7FFFFF and 0x400000 < bits < 0x7F800000
        found = (bits >> 23) + bool(up)
        return min(found, 0xFE) if "satfinite" in options and x == x else found

    return exponent(low) | exponent(high) << 8


@number
def halves_of_bytes(kind, to, options, word):
    """Two f16 or bf16 of two numbers of 8, 6 or 4 bits, which they hold exactly."""
    pair = (word & 15, word >> 4 & 15) if kind == "e2m1" else (word & 255, word >> 8 & 255)
    numbers = np.array(pair, np.uint8).view(BYTES[kind]).astype(np.float64)
    low, high = (_bits(_limited(float(x), to, options), to) for x in numbers)
    return low | high << 16


@number
def number_in(word, kind, high):
    """One half of a word, as float32."""
    return np.float32(_unpack(word, kind)[high])


@number
def is_kind(what, x, least_normal):
    """testp."""
    if what == "finite":
        return math.isfinite(x)
    if what == "infinite":
        return math.isinf(x)
    if what in ("number", "notanumber"):
        return (x == x) == (what == "number")
    small = abs(x) < least_normal
    return math.isfinite(x) and (not small if what == "normal" else small and x != 0)


def _upper(x):
    """A float64 without its lower 32 bits, and without subnormals."""
    x = (np.float64(x).view(np.uint64) >> np.uint64(32) << np.uint64(32)).view(np.float64)
    return x if abs(x) >= np.finfo(np.float64).tiny or x != x else np.copysign(0.0, x)


@number
def rough_reciprocal(x):
    """1 / x of the upper half of a float64, which has one itself; an H200's is one of its units larger for 7 in
    100."""
    with np.errstate(all="ignore"):
        return float(_upper(1 / _upper(x)))


@number
def reciprocal_root(x):
    """1 / sqrt(x) of a float64."""
    with np.errstate(all="ignore"):
        return float(1 / np.sqrt(np.float64(x)))
