"""Functions of numbers as a GPU has them: those of ``math``, float32 of float32, with NaN or infinity where
Python raises; and those of an integer's bits, which has as many as its type says. Both
languages' kernels have them."""

import math

import numpy as np

from ..memory.scalars import passing_on


def plain(function):
    """``function`` of numbers as Numba types it: float32 of float32, else float64."""

    @passing_on
    def apply(*args):
        kinds = {type(x) for x in args}
        kind = kinds.pop() if kinds in ({np.float32}, {np.float16}) else np.float64
        return kind(function(*[np.float64(x) for x in args]))

    return apply


def _total(function, otherwise):
    """``function`` of ``math``, and what it is where that one raises."""

    def apply(*args):
        try:
            return function(*args)
        except (ValueError, OverflowError):
            return otherwise(*args)

    return apply


gamma = _total(math.gamma, lambda x: np.copysign(np.inf, x) if x >= 0 else np.nan)
lgamma = _total(math.lgamma, lambda x: np.inf)
remainder = _total(math.remainder, lambda x, y: np.nan)


def modf(x):
    return tuple(map(type(x), np.modf(x)))


def frexp(x):
    part, exponent = np.frexp(x)
    return type(x)(part), int(exponent)


def ldexp(x, n):
    kind = np.float32 if type(x) is np.float32 else np.float64
    return kind(np.ldexp(np.float64(x), int(n)))


FUNCTIONS = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "fabs": np.abs, "erf": math.erf,
    "erfc": math.erfc, "cbrt": np.cbrt, "gamma": gamma, "lgamma": lgamma, "remainder": remainder,
} | {
    name: getattr(np, name) for name in (
        "cos", "sin", "tan", "cosh", "sinh", "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
        "sqrt", "ceil", "floor", "trunc", "hypot", "copysign", "fmod", "degrees", "radians",
    )
}  # fmt: skip
LARGEST = 22  # the power of ten that is the last one a float64 holds exactly


def rounded(x, digits=None):
    """``round``: half to even to an int64, or to so many decimal digits, by way of that int64."""
    if digits is None:
        return int(np.clip(np.rint(np.float64(x)), -(2.0**63), 2.0**63 - 1024))
    if not np.isfinite(x):
        return x
    ten = np.float64(10)
    if digits < 0:
        return _half_even(x / ten**-digits) * ten**-digits
    # in two steps, each of which has room
    first, second = ten ** (digits - LARGEST if digits > LARGEST else digits), ten**LARGEST
    second = second if digits > LARGEST else np.float64(1)
    scaled = x * first * second
    return x if np.isinf(scaled) else _half_even(scaled) / second / first


def _half_even(x):
    near = rounded(x)
    return 2.0 * rounded(x / 2.0) if abs(x - near) == 0.5 else near


MATH = {getattr(math, name): plain(function) for name, function in FUNCTIONS.items() if hasattr(math, name)}
MATH |= {getattr(math, name): getattr(np, name) for name in ("isnan", "isinf", "isfinite", "nextafter")}
MATH[round] = rounded
MATH |= {math.modf: modf, math.frexp: frexp, math.ldexp: ldexp}


# --- of an integer's lowest ``bits``, which a Python number does not know -----------------------------
@passing_on
def popc(x, bits=64):
    return (x & (1 << bits) - 1).bit_count()


@passing_on
def clz(x, bits=32):
    return bits - (x & (1 << bits) - 1).bit_length()


@passing_on
def brev(x, bits=32):
    return int(f"{x & (1 << bits) - 1:0{bits}b}"[::-1], 2)
