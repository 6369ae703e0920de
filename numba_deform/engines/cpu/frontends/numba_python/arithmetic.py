"""Arithmetic as Numba compiles it for a GPU, for the numbers that ``typed_code`` puts into a kernel's code."""

import functools
import math
import operator

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

from ...memory.scalars import Undefined, passing_on, wrap
from . import narrow_floats
from .math_functions import MATH

TAKES_OPERANDS = True  # see reports.error_origin: what goes wrong here is mostly about what a kernel hands over

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
