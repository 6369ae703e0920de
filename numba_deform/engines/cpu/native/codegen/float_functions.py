"""float32 functions in machine code, bit for bit what ``device/float32.py`` says of them."""

import math

from ..runtime.llvm_types import F32, F64
from . import packed_halves
from .arithmetic import extreme, library
from .ir_values import KINDS, halves_converted_here

TINY = 2.0**-126  # the smallest normal number


def flushed(body, x):
    """A float32, or where it is subnormal a zero of its sign."""
    normal = body.builder.fcmp_unordered(">=", library(body, "fabs", x), F32(TINY))
    return body.builder.select(normal, x, library(body, "copysign", F32(0.0), x))


def _of_library(name):
    return lambda body, *values: library(body, name, *values)


def _log2(body, x):
    some = body.builder.fcmp_ordered(">=", x, F64(0.0))
    return body.builder.select(some, library(body, "log2", x), F64(math.nan))  # C's NaN has a sign


def _rounded(compute):
    """What writes a function of float64, whose result is rounded once to the type of its first operand."""

    def write(body, x, *more):
        wide = [v if v.type == F64 else body.builder.fpext(v, F64) for v in (x, *more)]
        made = compute(body, *wide)
        return made if x.type == F64 else body.builder.fptrunc(made, F32)

    return write


def _ftz(write):
    return lambda body, x: flushed(body, write(body, flushed(body, x)))


def _extreme(fn):
    return lambda body, x, y: extreme(body.builder, fn, x, y, KINDS[x.type])


def _saturated(body, x):
    """``min(max(0, x), 1)`` as Python has them: the first of equal ones; of NaN it is 0."""
    above = body.builder.select(body.builder.fcmp_ordered(">", x, F32(0.0)), x, F32(0.0))
    return body.builder.select(body.builder.fcmp_ordered(">", above, F32(1.0)), F32(1.0), above)


EXP2, LOG2 = _rounded(_of_library("exp2")), _rounded(_log2)
RECIPROCAL = _rounded(lambda body, x: body.builder.fdiv(F64(1.0), x))
# By the names of intrinsics, of libdevice's functions, and of those that PTX's Python text calls.
OPERATIONS = {
    "ex2_approx_f32": EXP2, "ex2_approx_ftz_f32": _ftz(EXP2), "ex2": EXP2, "lg2_approx_f32": LOG2, "lg2": LOG2,
    "rcp_approx_f32": RECIPROCAL, "rcp_approx_ftz_f32": _ftz(RECIPROCAL), "rcp": RECIPROCAL,
    **dict.fromkeys(("max_f32", "fmaxf", "greatest"), _extreme(max)),
    **dict.fromkeys(("min_f32", "fminf", "least"), _extreme(min)),
    "floorf": _of_library("floor"), "fabsf": _of_library("fabs"), "copysign": _of_library("copysign"),
    "fma32": _of_library("fma"), "fma": _of_library("fma"), "flushed": flushed, "saturated": _saturated,
    "sqrt": _rounded(_of_library("sqrt")), "rni": _rounded(_of_library("rint")),
    "rzi": _rounded(_of_library("trunc")), "rmi": _rounded(_of_library("floor")),
    "rpi": _rounded(_of_library("ceil")), "divided": _rounded(lambda body, x, y: body.builder.fdiv(x, y)),
}  # fmt: skip


def in_place(name):
    """What writes a call of the function of that name, (body, *values) -> value; None if Python is asked."""
    halves = packed_halves.OPERATIONS if halves_converted_here() else {}
    return OPERATIONS.get(name) or halves.get(name)
