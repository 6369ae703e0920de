"""Formats of floats, and numbers rounded to them: each result is exact, and rounded once."""

import math
from fractions import Fraction
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ....device.half2 import fused


class Format(NamedTuple):
    """``bits`` of a fraction with its leading one, the exponent of the least normal number, and the largest
    number."""

    bits: int
    least: int
    largest: float


FORMATS = {
    "f16": Format(11, -14, 65504.0), "bf16": Format(8, -126, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127),
    "f32": Format(24, -126, float(np.finfo(np.float32).max)),
    "f64": Format(53, -1022, float(np.finfo(np.float64).max)), "e4m3": Format(4, -6, 448.0),
    "e5m2": Format(3, -14, 57344.0),
}  # fmt: skip
MIRRORED = {  # the negative of what the opposite numbers make: its zeros have the signs of those of ``rm``
    "add": lambda x, y: -(-x - y), "sub": lambda x, y: -(y - x), "fma": lambda x, y, z: -(-x * y - z),
}  # fmt: skip


def rounded(x, kind, mode="rn", zero=0.0):
    """A number, a float or a Fraction, as the nearest of a format that ``mode`` allows: rn, rna (ties away from
    zero), rz, rm, rp; ``zero``: what 0 is, with its sign."""
    if isinstance(x, float):
        if not math.isfinite(x) or x == 0:
            return x
    elif x == 0:
        return zero
    form, size, negative = FORMATS[kind], abs(Fraction(x)), x < 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, form.least) - form.bits + 1)
    n, rest = divmod(size / step, 1)
    half = Fraction(1, 2)
    up = {"rn": rest > half or rest == half and n % 2, "rna": rest >= half, "rz": False,
          "rm": negative and rest > 0, "rp": not negative and rest > 0}[mode]  # fmt: skip
    size = (n + bool(up)) * step
    if size > Fraction(form.largest):
        away = {"rz": False, "rm": negative, "rp": not negative}.get(mode, True)
        size = math.inf if away else form.largest
    return -float(size) if negative else float(size)


def _root(x):
    """The square root; of a Fraction to 200 bits, odd in the last where it is not exact."""
    if not isinstance(x, Fraction):
        return np.sqrt(x)
    whole = x.numerator * x.denominator << 400
    root = math.isqrt(whole)
    exact = root * root == whole
    return Fraction(2 * root + (not exact), (x.denominator << 200) * 2)


OPERATIONS = {  # of floats of NumPy's, and of Fractions
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z, "rcp": lambda x: 1 / x, "sqrt": _root,
}  # fmt: skip


def exactly(name, mode, xs):
    """(the result of an operation, a float where it is no number or infinite, else a Fraction; the zero that it
    is where it is one)"""
    xs = [float(x) for x in xs]
    with np.errstate(all="ignore"):
        rough = float(OPERATIONS[name](*map(np.float64, xs)))
    special = not all(map(math.isfinite, xs)) or name in ("div", "rcp") and xs[-1] == 0
    if special or name == "sqrt" and xs[0] <= 0:
        return rough, rough
    zero = MIRRORED[name](*xs) if mode == "rm" and name in MIRRORED else rough if rough == 0 else 0.0
    return OPERATIONS[name](*map(Fraction, xs)), zero


def directed(operation, mode="rn"):
    """The function of numbers, all float32 or all float64, that rounds an operation once, to their type."""

    def apply(*args):
        kind, form = (np.float32, "f32") if type(args[0]) is np.float32 else (np.float64, "f64")
        exact, zero = exactly(operation, mode, args)
        return kind(rounded(exact, form, mode, zero))

    return apply


def fmaf(a, b, c):
    return np.float32(fused(float(np.float32(a)), float(np.float32(b)), float(np.float32(c))))


_fma = directed("fma")


def fma(a, b, c):
    return fmaf(a, b, c) if type(a) is np.float32 else _fma(a, b, c)
