"""The arithmetic that machine code computes in place, bit for bit as ``operations`` and ``calls`` do. All
functions that are neither here nor in ``memory`` are asked of Python."""

from llvmlite import ir
from numba import types

from ....native.codegen.arithmetic import extreme, library
from ....native.codegen.float_functions import approximated, flushed
from ....native.codegen.ir_values import NotLowered, convert, saturating
from ....native.runtime.llvm_types import F32, F64, I32, I64
from . import numbers
from .expressions import BUILTINS
from .numbers import BoundedInt, as_int, chosen, compared, constant, unsigned

builtin = BUILTINS.note
NAMES = {  # of LLVM, and of ``approximated``
    "popc": "ctpop", "clz": "ctlz", "brev": "bitreverse", "fma32": "fma", "fma": "fma", "copysign": "copysign",
    "sqrt": "sqrt", "rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil", "ex2": "exp2", "lg2": "log2",
}  # fmt: skip


def _kind(value):
    return types.float32 if value.type == F32 else types.float64


# --- integers ---------------------------------------------------------------------------------------
@builtin("min", "lower", "max", "higher")
def _extreme(body, name, *values):
    (a, b), less = map(as_int, values), name in ("min", "lower")
    made = chosen(body.builder, compared(body.builder, "<" if less else ">", b, a), b, a)
    pick = min if less else max
    return BoundedInt(made.value, pick(a.low, b.low), pick(a.high, b.high))


@builtin("abs")
def _abs(body, name, x):
    if not isinstance(x, BoundedInt):
        return library(body, "fabs", x)
    negative = numbers.calculated(body.builder, "Sub", constant(0), x)
    made = chosen(body.builder, compared(body.builder, "<", x, constant(0)), negative, x)
    return BoundedInt(made.value, 0, max(abs(x.low), abs(x.high)))


@builtin("popc", "clz", "brev")
def _of_bits(body, name, x, bits):
    width = as_int(bits).constant
    made = library(body, NAMES[name], body.word_of(x, width))
    return unsigned(made) if name == "brev" else BoundedInt(made, 0, width)


@builtin("selected")
def _selected(body, name, a, b, choice):
    return body.choice(body.as_truth(choice), a, b)


@builtin("int")
def _int(body, name, value):
    return as_int(value)


# --- floats -----------------------------------------------------------------------------------------
@builtin("f32_of", "f64_of", "u32_of", "u64_of")
def _bits_of(body, name, value):
    if name[0] == "u":
        return unsigned(body.builder.bitcast(value, I32 if name == "u32_of" else I64))
    width, want = (32, F32) if name == "f32_of" else (64, F64)
    return body.builder.bitcast(body.word_of(value, width), want)


@builtin("float32", "float")
def _float(body, name, value):
    want = F32 if name == "float32" else F64
    if isinstance(value, BoundedInt):
        if value.constant is None:
            raise NotLowered("a float of an integer")
        return ir.Constant(want, float(value.constant))
    return convert(body.builder, value, _kind(value), types.float32 if want == F32 else types.float64)


@builtin("least", "greatest")
def _float_extreme(body, name, x, y):
    return extreme(body.builder, min if name == "least" else max, x, y, _kind(x))


def _doubles(body, *values):
    return [v if v.type == F64 else body.builder.fpext(v, F64) for v in values]


def _as(body, value, kind):
    return value if kind == F64 else body.builder.fptrunc(value, F32)


@builtin("divided")
def _divided(body, name, x, y):
    return _as(body, body.builder.fdiv(*_doubles(body, x, y)), x.type)


@builtin("rcp")
def _rcp(body, name, x):
    return _divided(body, name, x.type(1.0), x)


@builtin("fma32", "fma", "copysign")
def _of_library(body, name, *values):
    return library(body, NAMES[name], *values)


@builtin("sqrt", "rni", "rzi", "rmi", "rpi")
def _rounded(body, name, x):
    return _as(body, library(body, NAMES[name], *_doubles(body, x)), x.type)


@builtin("ex2", "lg2")
def _approximated(body, name, x):
    return approximated(NAMES[name])(body, x)


@builtin("flushed")
def _flushed(body, name, x):
    return flushed(body, x)


@builtin("saturated")
def _saturated(body, name, x):
    """``min(max(0, x), 1)`` as Python has them: the first of equal ones; of NaN it is 0."""
    builder = body.builder
    zero, one = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)
    above = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
    return builder.select(builder.fcmp_ordered(">", above, one), one, above)


@builtin("whole")
def _whole(body, name, x, mode, low, high):
    (x,), low, high = _doubles(body, x), as_int(low).constant, as_int(high).constant
    made, kind = library(body, NAMES[mode.value], x), ir.IntType(numbers.width_of(low, high))
    return BoundedInt(saturating(body.builder, made, kind, low < 0), low, high)


@builtin("nearest")
def _nearest(body, name, x, to):
    x, want = as_int(x), F32 if to.value == "float32" else F64
    if x.value.type.width > 64:
        raise NotLowered("a float of more than 64 bits")
    return (body.builder.sitofp if x.low < 0 else body.builder.uitofp)(x.value, want)
