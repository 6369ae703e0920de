"""``cuda.libdevice`` on the CPU engine, by the names and types of Numba's own table.

What the instruction set rounds is rounded as it says, in all four modes. Functions like ``sin`` are NumPy's,
rounded to the type: a GPU's differ in the last bits. What neither NumPy nor ``math`` has is refused by name.
"""

import math
import re
from functools import partial

import numpy as np
from numba import types
from numba.cuda.libdevicefuncs import create_signature, functions
from numba.np.numpy_support import as_dtype

from ...memory.scalars import Unsupported, wrap
from ..math_functions import FUNCTIONS, brev, clz, popc
from ..ptx.operations import prmt
from ..ptx.semantics.integers import low24
from ..rounding import directed, fma, rounded
from .arithmetic import float32

W32, W64 = (1 << 32) - 1, (1 << 64) - 1
SOURCES = {"int": 32, "uint": -32, "ll": 64, "ull": -64}  # bits of the integers in names of conversions


# --- rounding -------------------------------------------------------------------------------------
MODES = {"rn": "rn", "rz": "rz", "rd": "rm", "ru": "rp"}


def _conversion(source, target, mode):
    """``double2int_rz`` and the like."""
    if target in SOURCES:
        bits, whole = SOURCES[target], {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}[mode]
        dtype = np.dtype(f"{'iu'[bits < 0]}{abs(bits) // 8}")

        def convert(x):
            if x != x and (source == "double" or abs(bits) == 64):
                return 1 << abs(bits) - 1
            return wrap(float(whole(x)), dtype)

        return convert
    kind, bits = np.float32 if target == "float" else np.float64, SOURCES.get(source, 0)

    def convert(x):
        exact = float(x) if isinstance(x, float | np.floating) else x & (1 << -bits) - 1 if bits < 0 else x
        return kind(rounded(exact, "f32" if kind is np.float32 else "f64", MODES[mode]))

    return convert


# --- one by one -----------------------------------------------------------------------------------
def _as(kind, other):
    return lambda x: other(np.array(x, kind).view(other)[()])


def _of_pi(function):
    """sinpi and cospi; the argument is brought into one period first, which is exact."""
    return lambda x: function(np.pi * math.fmod(x, 2)) if math.isfinite(x) else np.nan


def _away(x):
    """Rounded to a whole number, ties away from zero."""
    whole = np.trunc(x)
    return whole + np.copysign(1.0, x) if abs(x - whole) >= 0.5 else whole


FLOATS = FUNCTIONS | {  # of float64, or float32 where the name ends in f
    "exp10": lambda x: np.power(10.0, x), "fmin": np.fmin, "fmax": np.fmax,
    "fdim": lambda x, y: np.nan if x != x or y != y else max(x - y, 0.0), "rint": np.rint,
    "nearbyint": np.rint, "round": _away, "rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x),
    "tgamma": FUNCTIONS["gamma"], "sinpi": _of_pi(np.sin), "cospi": _of_pi(np.cos),
    "logb": lambda x: np.floor(np.log2(np.abs(x))) if not np.frexp(x)[0] else np.frexp(x)[1] - 1.0,
    "normcdf": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), "powi": lambda x, n: np.power(x, np.float64(n)),
    "ldexp": np.ldexp, "scalbn": np.ldexp, "fdivide": lambda x, y: x / y, "modf": np.modf,
    "sincos": lambda x: (np.sin(x), np.cos(x)), "sincospi": lambda x: (_of_pi(np.sin)(x), _of_pi(np.cos)(x)),
    "frexp": lambda x: (np.frexp(x)[0], int(np.frexp(x)[1])),
}  # fmt: skip
OTHERS = {
    "abs": abs, "llabs": abs, "brev": brev, "brevll": partial(brev, bits=64),
    "byte_perm": lambda x, y, select: prmt(x & W32, y & W32, select),
    "clz": clz, "clzll": partial(clz, bits=64), "popc": partial(popc, bits=32), "popcll": popc,
    "ffs": lambda x: (x & -x).bit_length(), "ffsll": lambda x: (x & -x).bit_length(),
    "max": max, "min": min, "llmax": max, "llmin": min,
    "umax": lambda x, y: max(x & W32, y & W32), "umin": lambda x, y: min(x & W32, y & W32),
    "ullmax": lambda x, y: max(x & W64, y & W64), "ullmin": lambda x, y: min(x & W64, y & W64),
    "mul24": lambda x, y: low24(x, True) * low24(y, True),
    "umul24": lambda x, y: low24(x, False) * low24(y, False),
    "mulhi": lambda x, y: x * y >> 32, "umulhi": lambda x, y: (x & W32) * (y & W32) >> 32,
    "mul64hi": lambda x, y: x * y >> 64, "umul64hi": lambda x, y: (x & W64) * (y & W64) >> 64,
    "hadd": lambda x, y: x + y >> 1, "uhadd": lambda x, y: (x & W32) + (y & W32) >> 1,
    "rhadd": lambda x, y: x + y + 1 >> 1, "urhadd": lambda x, y: (x & W32) + (y & W32) + 1 >> 1,
    "sad": lambda x, y, z: abs(x - y) + z, "usad": lambda x, y, z: abs((x & W32) - (y & W32)) + z,
    "double_as_longlong": _as(np.float64, np.int64), "longlong_as_double": _as(np.int64, np.float64),
    "float_as_int": _as(np.float32, np.int32), "int_as_float": _as(np.int32, np.float32),
    "double2hiint": lambda x: _as(np.float64, np.int64)(x) >> 32, "double2loint": _as(np.float64, np.int64),
    "hiloint2double": lambda hi, lo: _as(np.uint64, np.float64)((hi & W32) << 32 | lo & W32),
    "float2half_rn": lambda x: _as(np.float16, np.int16)(np.float16(x)),
    "half2float": _as(np.int16, np.float16), "saturatef": lambda x: min(max(x, 0), 1) if x == x else 0,
    "fmaf": fma, "fma": fma, "nextafter": np.nextafter, "nextafterf": np.nextafter,
    "ilogb": lambda x: int(np.frexp(x)[1]) - 1 if np.frexp(x)[0] and math.isfinite(x) else _no_exponent(x),
    "frsqrt_rn": lambda x: np.float32(1 / np.sqrt(np.float64(x))),
}  # fmt: skip
OTHERS["ilogbf"] = OTHERS["ilogb"]
for names, test in (
    (("isnand", "isnanf"), np.isnan), (("isinfd", "isinff"), np.isinf),
    (("isfinited", "finitef"), np.isfinite), (("signbitd", "signbitf"), np.signbit),
):  # fmt: skip
    OTHERS |= dict.fromkeys(names, lambda x, test=test: int(test(x)))
for names, rounding in ((("llrint", "llrintf"), np.rint), (("llround", "llroundf"), _away)):
    OTHERS |= dict.fromkeys(names, lambda x, f=rounding: wrap(float(f(np.float64(x))), np.dtype(np.int64)))


def _no_exponent(x):
    return (1 << 31) - 1 if math.isinf(x) else -(1 << 31)


def _model(name):
    """The Python function for a name; None if there is none."""
    if name in OTHERS:
        return OTHERS[name]
    if found := re.fullmatch(r"(double|float|u?int|u?ll)2(double|float|u?int|u?ll)_(r[nzud])", name):
        return _conversion(*found.groups())
    if found := re.fullmatch(r"(fma)f?_(r[nzud])|[df](add|sub|mul|div|rcp|sqrt)_(r[nzud])", name):
        operation, mode = filter(None, found.groups())
        return directed(operation, MODES[mode])
    base = name.removeprefix("fast_")
    return FLOATS.get(base) or FLOATS.get(base.removesuffix("f"))


class Libdevice:
    """Stands for ``cuda.libdevice``: functions that take and return the types of Numba's table."""

    # Those that kernels call most, without detours.
    fabsf = staticmethod(lambda x: abs(float32(x)))
    floorf = staticmethod(lambda x: np.floor(float32(x)))
    fminf = staticmethod(lambda a, b: np.fmin(float32(a), float32(b)))
    fmaxf = staticmethod(lambda a, b: np.fmax(float32(a), float32(b)))

    def __getattr__(self, name):
        model = _model(name) if f"__nv_{name}" in functions else None
        if model is None:
            raise Unsupported(f"cuda.libdevice.{name} is not modelled by the CPU engine")
        function = self.__dict__[name] = _typed(model, *functions[f"__nv_{name}"])
        return function


def _typed(model, result, parameters):
    signature = create_signature(result, parameters)
    takes = [_caster(kind) for kind in signature.args]
    kind = signature.return_type
    gives = [_caster(k) for k in (kind if isinstance(kind, types.BaseTuple) else [kind])]
    wide = model in FLOATS.values()

    def function(*args):
        args = [take(x) for take, x in zip(takes, args, strict=True)]
        value = model(*[np.float64(x) if wide and isinstance(x, np.floating) else x for x in args])
        if len(gives) == 1:
            return gives[0](value)
        return tuple(give(x) for give, x in zip(gives, value, strict=True))

    return function


def _caster(kind):
    dtype = as_dtype(kind)
    return (lambda x: wrap(x, dtype)) if dtype.kind == "i" else dtype.type
