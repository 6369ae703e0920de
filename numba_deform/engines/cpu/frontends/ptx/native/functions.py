"""The arithmetic that machine code computes in place, bit for bit as ``operations`` and ``calls`` do. All
functions that are neither here nor in ``memory`` are asked of Python."""

from llvmlite import ir
from numba import types

from ....native.codegen.arithmetic import library
from ....native.codegen.ir_values import KINDS, NotLowered, convert, saturating
from ....native.runtime.llvm_types import F32, F64, I32, I64
from . import numbers
from .expressions import BUILTINS
from .numbers import BoundedInt, as_int, chosen, compared, constant, unsigned

builtin = BUILTINS.note
INTEGERS = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}  # names of LLVM's
ROUNDED = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


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
    made = library(body, INTEGERS[name], body.word_of(x, width))
    return unsigned(made) if name == "brev" else BoundedInt(made, 0, width)


builtin("selected")(lambda body, name, a, b, choice: body.choice(body.as_truth(choice), a, b))
builtin("int")(lambda body, name, value: as_int(value))


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
    return convert(body.builder, value, KINDS[value.type], KINDS[want])


@builtin("whole")
def _whole(body, name, x, mode, low, high):
    wide = convert(body.builder, x, KINDS[x.type], types.float64)
    low, high = as_int(low).constant, as_int(high).constant
    made, kind = library(body, ROUNDED[mode.value], wide), ir.IntType(numbers.width_of(low, high))
    return BoundedInt(saturating(body.builder, made, kind, low < 0), low, high)


@builtin("nearest")
def _nearest(body, name, x, to):
    x, want = as_int(x), F32 if to.value == "float32" else F64
    if x.value.type.width > 64:
        raise NotLowered("a float of more than 64 bits")
    return (body.builder.sitofp if x.low < 0 else body.builder.uitofp)(x.value, want)
