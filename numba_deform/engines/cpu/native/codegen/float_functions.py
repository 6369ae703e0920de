"""float32 functions in machine code, bit for bit what ``device/float32.py`` says of them."""

import math

from llvmlite import ir
from numba import types

from ..runtime.llvm_types import F32, F64
from . import packed_halves
from .arithmetic import extreme, library
from .ir_values import halves_converted_here

TINY = 2.0**-126  # the smallest normal number


def flushed(body, x):
    """A float32, or where it is subnormal a zero of its sign."""
    normal = body.builder.fcmp_unordered(">=", library(body, "fabs", x), ir.Constant(F32, TINY))
    return body.builder.select(normal, x, library(body, "copysign", ir.Constant(F32, 0.0), x))


def approximated(name):
    """What writes a function of C's library, of a float32 and rounded once to it."""
    def write(body, x):
        wide = body.builder.fpext(x, F64)
        if name == "reciprocal":
            result = body.builder.fdiv(ir.Constant(F64, 1.0), wide)
        else:
            result = library(body, name, wide)
        if name == "log2":  # C's NaN has a sign
            some = body.builder.fcmp_ordered(">=", wide, ir.Constant(F64, 0.0))
            result = body.builder.select(some, result, ir.Constant(F64, math.nan))
        return body.builder.fptrunc(result, F32)

    return write


def _ftz(name):
    return lambda body, x: flushed(body, approximated(name)(body, flushed(body, x)))


OPERATIONS = {
    "ex2_approx_f32": approximated("exp2"), "ex2_approx_ftz_f32": _ftz("exp2"),
    "lg2_approx_f32": approximated("log2"),
    "rcp_approx_f32": approximated("reciprocal"), "rcp_approx_ftz_f32": _ftz("reciprocal"),
    "max_f32": lambda body, x, y: extreme(body.builder, max, x, y, types.float32),
    "min_f32": lambda body, x, y: extreme(body.builder, min, x, y, types.float32),
}  # fmt: skip


def in_place(name):
    """What writes a call of the intrinsic of that name, (body, *values) -> value; None if Python is asked."""
    halves = packed_halves.OPERATIONS if halves_converted_here() else {}
    return OPERATIONS.get(name) or halves.get(name)
