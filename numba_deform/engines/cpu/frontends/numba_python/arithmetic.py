"""Arithmetic as Numba compiles it for a GPU, for the numbers that ``typed_code`` puts into a kernel's code."""

import functools
import importlib
import math
import operator

import numpy as np
from numba import types
from numba.cuda import compiler
from numba.np.numpy_support import as_dtype, from_dtype

from ...memory.arrays import ArrayView, LocalArray, new_array
from ...memory.scalars import Undefined, as_int64, passing_on, wrap
from ..math_functions import FUNCTIONS, MATH, plain
from . import narrow_floats

ONE = np.float32(1)
SCALARS = {"float32": np.float32, "float16": np.float16, "complex64": np.complex64, "complex128": complex}


@functools.cache
def caster(kind):
    """A function that converts any number, or a tuple of them, to the representation of Numba's type."""
    if isinstance(kind, types.BaseTuple):
        parts = [caster(k) for k in kind.types]
        named = isinstance(kind, types.BaseNamedTuple)

        def convert(values):
            done = (part(value) for part, value in zip(parts, values, strict=True))
            return kind.instance_class(*done) if named else tuple(done)

        return convert
    if isinstance(kind, types.Boolean):
        return passing_on(bool)
    if isinstance(kind, types.Integer):
        dtype = as_dtype(kind)
        return lambda x: wrap(x, dtype)
    if kind == types.float64:
        return float64
    if str(kind) == narrow_floats.NAME:
        return narrow_floats.convert
    scalar = SCALARS.get(str(kind))
    if scalar is np.float32:
        return float32
    return scalar or (lambda x: x)


def float32(x):
    """Rounded once: a large integer does not go through float64."""
    if isinstance(x, int) and not -(1 << 53) <= x <= 1 << 53:
        return np.float32((np.int64 if x < 1 << 63 else np.uint64)(x))
    if type(x) is int or type(x) is float:
        return ONE * x  # which takes on the other's type, in a third of the time
    return x if type(x) is Undefined else np.float32(x)


def float64(x):
    return x if type(x) is Undefined else float(x)


def _quiet(function):
    """``function`` of two float64 where Python's own raises."""
    return lambda x, y: float(function(np.float64(x), y))


@functools.cache
def divide(kind):
    """``/``"""
    return _quiet(operator.truediv)


def _whole(function, kind):
    """``//`` or ``%``. Of integers by zero it is 0, as Numba compiles it."""
    if isinstance(kind, types.Integer):
        convert = caster(kind)
        return lambda x, y: convert(function(x, y)) if y else 0
    return _quiet(function) if kind == types.float64 else function


floor_divide = functools.cache(functools.partial(_whole, operator.floordiv))
remainder = functools.cache(functools.partial(_whole, operator.mod))


@functools.cache
def power(kind):
    """``**``"""
    if isinstance(kind, types.Complex):
        return _complex_power(caster(kind))
    if not isinstance(kind, types.Integer):
        convert = caster(kind)
        return lambda x, y: convert(np.power(np.float64(x), np.float64(y)))
    convert, bits = caster(kind), 1 << kind.bitwidth

    def whole(x, y):
        if y < 0:  # 1 / x ** -y, as an integer
            return 1 if x == 1 else (-1) ** (y & 1) if x == -1 else 0 if x else convert(bits >> 1)
        return convert(pow(x, y, bits))

    return whole


def _complex_power(convert):
    """``**`` of complex numbers by their length and angle, in the precision of their parts."""
    hypot, atan2, pow_, exp, log, cos, sin = (
        MATH[f] for f in (math.hypot, math.atan2, math.pow, math.exp, math.log, math.cos, math.sin)
    )

    def power(x, y):
        x, y = convert(x), convert(y)
        if y == 0:
            return convert(1)
        if x.real == 0 and y.real == 0:
            return convert(0)
        length, angle = hypot(x.real, x.imag), atan2(x.imag, x.real)
        factor, phase = pow_(length, y.real), angle * y.real
        if y.imag != 0:
            factor, phase = factor / exp(angle * y.imag), phase + y.imag * log(length)
        return convert(factor * convert(complex(cos(phase), sin(phase))))

    return power


@functools.cache
def shift_left(kind):
    """``<<`` by any amount: the GPU takes 32 bits of it, and beyond the width nothing is left."""
    convert, width = caster(kind), kind.bitwidth
    return lambda x, n: convert(x << n) if 0 <= (n := n & 0xFFFFFFFF) < width else 0


@functools.cache
def shift_right(kind):
    """``>>`` by any amount."""
    width = kind.bitwidth
    return lambda x, n: x >> min(n & 0xFFFFFFFF, width)


def _extreme(ufunc):
    return lambda *args: functools.reduce(ufunc, args)


FLOAT_BUILTINS = {min: _extreme(np.fmin), max: _extreme(np.fmax)}
WHOLE_BUILTINS = {min: passing_on(min), max: passing_on(max)}


# --- NumPy's universal functions --------------------------------------------------------------------
# In the loop that Numba picks for the types of the arguments, element by element where these are arrays.
_rules = importlib.import_module(f"{compiler.typing.__name__}.npydecl")


def _floor_divide(kind):
    divide, low = floor_divide(kind), kind.minval
    return lambda x, y: 0 if y == -1 and x == low else divide(x, y)


def _lcm(kind):
    product = as_int64 if kind.signed else caster(kind)
    return lambda x, y: abs(product(x // math.gcd(x, y) * y)) if x else 0


def _both(first, second):
    return lambda *args: (first(*args), second(*args))


# Where NumPy's own function of numbers is not Numba's: of integers, by their type, of floats, of truth values.
INTEGERS = {
    np.floor_divide: _floor_divide, np.remainder: remainder, np.power: power,
    np.left_shift: shift_left, np.right_shift: shift_right, np.lcm: _lcm,
    np.divmod: lambda kind: _both(_floor_divide(kind), remainder(kind)),
    np.reciprocal: lambda kind: lambda x: np.float64(1) / x,
    # Numba takes the bits of both as unsigned in fmod, and those of the number as signed in sign.
    np.fmod: lambda kind: lambda x, y: x % 2**kind.bitwidth % (y % 2**kind.bitwidth) if y else 0,
    np.sign: lambda kind: lambda x: -1 if x >> kind.bitwidth - 1 else int(x > 0),
}  # fmt: skip
FLOATS = {f: plain(f) for f in FUNCTIONS.values() if isinstance(f, np.ufunc)}  # as those of ``math``
FLOATS[np.floor_divide] = lambda x, y: np.floor(x / y)
FLOATS[np.divmod] = _both(FLOATS[np.floor_divide], np.remainder)
FLOATS[np.spacing] = lambda x: np.nextafter(x, np.copysign(type(x)(np.inf), x)) - x
FLOATS[np.ldexp] = lambda x, n: np.ldexp(x, np.int64(n).astype(np.int32))
BOOLEANS = {np.subtract: operator.xor, np.negative: operator.not_}


class Elementwise:
    """``function`` in the loop for arguments of Numba's types ``inputs`` and results of ``outputs``. Called, it
    returns what Numba's does: a number, a tuple of them, an array if it is ``of_arrays``."""

    def __init__(self, function, inputs, outputs, of_arrays):
        self.__setstate__((function, inputs, outputs, of_arrays))

    def __getstate__(self):
        return self.function, self.inputs, self.outputs, self.of_arrays

    def __setstate__(self, state):
        self.function, self.inputs, self.outputs, self.of_arrays = state
        self.convert = [caster(kind) for kind in self.inputs]
        self.result = caster(self.outputs[0] if len(self.outputs) == 1 else types.Tuple(self.outputs))
        self.number = _number(self.function, self.inputs)
        self.of_numbers = passing_on(self._of_numbers)

    def __call__(self, *args):
        return self._of_arrays(*args) if self.of_arrays else self.of_numbers(*args)

    def _of_numbers(self, *args):
        given = [convert(x) for convert, x in zip(self.convert, args, strict=True)]
        return self.result(self.number(*given))

    def _of_arrays(self, *args):
        given, out = args[: len(self.inputs)], list(args[len(self.inputs) :])
        shape = np.broadcast_shapes(*[x.shape for x in given if is_array(x)])
        for x in out:  # which may have more elements than that
            if not _reaches(shape, x.shape):
                what = f"np.{self.function.__name__} has a result of {shape}"
                raise ValueError(f"{what}, and gets an array of {x.shape} for it")
            shape = x.shape
        maker = f"np.{self.function.__name__} without an array for the result"
        out += [new_array(shape, as_dtype(kind), maker) for kind in self.outputs[len(out) :]]
        for place in np.ndindex(shape):
            values = self.of_numbers(*[_element(x, place) for x in given])
            for target, value in zip(out, values if len(out) > 1 else (values,), strict=True):
                target[place] = value
        return out[0] if len(out) == 1 else tuple(out)


def elementwise(function, kinds):
    """The :class:`Elementwise` for arguments of Numba's types ``kinds``, given results included."""
    base = _rules.Numpy_rules_ufunc._handle_inputs(function, kinds, {})[0]
    loop = _rules.ufunc_find_matching_loop(function, base)
    of_arrays = any(isinstance(kind, types.ArrayCompatible) for kind in kinds)
    return Elementwise(function, tuple(loop.inputs), tuple(loop.outputs), of_arrays)


def elementwise_by_values(function, args):
    """That for the arguments as they are, where a kernel's types are not known: in the loop of NumPy's."""
    return _by_dtypes(function, tuple(getattr(x, "dtype", type(x)) for x in args[: function.nin]))


@functools.cache
def _by_dtypes(function, dtypes):
    loop = [from_dtype(each) for each in function.resolve_dtypes((*dtypes, *[None] * function.nout))]
    return Elementwise(function, tuple(loop[: function.nin]), tuple(loop[function.nin :]), True)


def _number(function, kinds):
    """``function`` of numbers of Numba's types ``kinds``."""
    kind = kinds[0]
    if isinstance(kind, types.Integer) and function in INTEGERS:
        return INTEGERS[function](kind)
    if isinstance(kind, types.Complex) and function is np.power:
        return power(kind)
    if isinstance(kind, types.Boolean):
        function = BOOLEANS.get(function, function)
    exact = [as_dtype(k).type if isinstance(k, (types.Number, types.Boolean)) else lambda x: x for k in kinds]
    if isinstance(kind, types.Float):
        function = FLOATS.get(function, function)

    def apply(*args):
        return function(*[convert(x) for convert, x in zip(exact, args, strict=True)])

    return apply


def is_array(x):
    return isinstance(x, (ArrayView, LocalArray))


def _reaches(shape, other):
    """Whether an array of ``shape`` can be broadcast to the ``other``."""
    first = len(other) - len(shape)
    return first >= 0 and all(n in (1, m) for n, m in zip(shape, other[first:], strict=True))


def _element(x, place):
    """The element of an array that goes with that at ``place`` of the result; a number is its own."""
    if not is_array(x):
        return x
    first = len(place) - len(x.shape)
    return x[tuple(i if n > 1 else 0 for i, n in zip(place[first:], x.shape, strict=True))]
