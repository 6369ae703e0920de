"""The arithmetic that machine code computes in place, bit for bit as ``operations`` and ``calls`` do. All
functions that are neither here nor in ``memory`` are asked of Python."""

from llvmlite import ir
from numba import types

from ....native.codegen.arithmetic import extreme, library
from ....native.codegen.float_functions import approximated, flushed
from ....native.codegen.ir_values import NotLowered, convert, saturating
from ....native.runtime.llvm_types import F32, F64, I32, I64
from . import numbers
from .expressions import Expressions
from .numbers import BoundedInt, as_int, chosen, compared, constant, resized, unsigned

BUILTINS = Expressions.builtins
NAMES = {  # of LLVM, and of ``approximated``
    "popc": "ctpop", "clz": "ctlz", "brev": "bitreverse", "fma32": "fma", "fma": "fma", "copysign": "copysign",
    "sqrt": "sqrt", "rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil", "ex2": "exp2", "lg2": "log2",
}  # fmt: skip


def builtin(*names):
    """Decorator: how a call of the functions of these names is written, (body, call, values) -> value."""

    def note(write):
        BUILTINS.update(dict.fromkeys(names, write))
        return write

    return note


def _kind(value):
    return types.float32 if value.type == F32 else types.float64


# --- integers ---------------------------------------------------------------------------------------
@builtin("min", "lower", "max", "higher")
def _extreme(body, call, values):
    (a, b), less = map(as_int, values), call.func.id in ("min", "lower")
    made = chosen(body.builder, compared(body.builder, "<" if less else ">", b, a), b, a)
    pick = min if less else max
    return BoundedInt(made.value, pick(a.low, b.low), pick(a.high, b.high))


@builtin("abs")
def _abs(body, call, values):
    if not isinstance(values[0], BoundedInt):
        return library(body, "fabs", *values)
    x, negative = values[0], numbers.calculated(body.builder, "Sub", constant(0), values[0])
    made = chosen(body.builder, compared(body.builder, "<", x, constant(0)), negative, x)
    return BoundedInt(made.value, 0, max(abs(x.low), abs(x.high)))


@builtin("popc", "clz", "brev")
def _of_bits(body, call, values):
    width = as_int(values[1]).constant
    made = library(body, NAMES[call.func.id], resized(body.builder, as_int(values[0]), width))
    return unsigned(made) if call.func.id == "brev" else BoundedInt(made, 0, width)


@builtin("selected")
def _selected(body, call, values):
    return body.choice(body.truth(call.args[2]), *values[:2])


@builtin("int")
def _int(body, call, values):
    return as_int(values[0])


# --- floats -----------------------------------------------------------------------------------------
@builtin("f32_of", "f64_of", "u32_of", "u64_of")
def _bits_of(body, call, values):
    name = call.func.id
    if name[0] == "u":
        return unsigned(body.builder.bitcast(values[0], I32 if name == "u32_of" else I64))
    width = 32 if name == "f32_of" else 64
    return body.builder.bitcast(resized(body.builder, as_int(values[0]), width), F32 if width == 32 else F64)


@builtin("float32", "float")
def _float(body, call, values):
    value, want = values[0], F32 if call.func.id == "float32" else F64
    if isinstance(value, BoundedInt):
        if value.constant is None:
            raise NotLowered("a float of an integer")
        return ir.Constant(want, float(value.constant))
    return convert(body.builder, value, _kind(value), types.float32 if want == F32 else types.float64)


@builtin("least", "greatest")
def _float_extreme(body, call, values):
    return extreme(body.builder, min if call.func.id == "least" else max, *values, _kind(values[0]))


def _doubles(body, *values):
    return [v if v.type == F64 else body.builder.fpext(v, F64) for v in values]


def _as(body, value, kind):
    return value if kind == F64 else body.builder.fptrunc(value, F32)


@builtin("divided")
def _divided(body, call, values):
    return _as(body, body.builder.fdiv(*_doubles(body, *values)), values[0].type)


@builtin("rcp")
def _rcp(body, call, values):
    return _divided(body, call, [ir.Constant(values[0].type, 1.0), *values])


@builtin("fma32", "fma", "copysign")
def _of_library(body, call, values):
    return library(body, NAMES[call.func.id], *values)


@builtin("sqrt", "rni", "rzi", "rmi", "rpi")
def _rounded(body, call, values):
    return _as(body, library(body, NAMES[call.func.id], *_doubles(body, *values)), values[0].type)


@builtin("ex2", "lg2")
def _approximated(body, call, values):
    return approximated(NAMES[call.func.id])(body, values[0])


@builtin("flushed")
def _flushed(body, call, values):
    return flushed(body, values[0])


@builtin("saturated")
def _saturated(body, call, values):
    """``min(max(0, x), 1)`` as Python has them: the first of equal ones; of NaN it is 0."""
    builder, x = body.builder, values[0]
    zero, one = ir.Constant(F32, 0.0), ir.Constant(F32, 1.0)
    above = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
    return builder.select(builder.fcmp_ordered(">", above, one), one, above)


@builtin("whole")
def _whole(body, call, values):
    name, low, high = NAMES[values[1].value], as_int(values[2]).constant, as_int(values[3]).constant
    (x,), width = _doubles(body, values[0]), numbers.width_of(low, high)
    return BoundedInt(saturating(body.builder, library(body, name, x), ir.IntType(width), low < 0), low, high)


@builtin("nearest")
def _nearest(body, call, values):
    x, want = as_int(values[0]), F32 if call.args[1].id == "float32" else F64
    if x.value.type.width > 64:
        raise NotLowered("a float of more than 64 bits")
    return (body.builder.sitofp if x.low < 0 else body.builder.uitofp)(x.value, want)
