"""fp32 arithmetic with a rounding of its own, and what the special function unit approximates (PTX ISA 9.7.3).

An approximation is off by a few units in the last place, which its text says; the CPU engine has none of that
error: it rounds the exact result to nearest. So tolerances are set for the GPU. ``ftz`` takes subnormals, and
leaves them, as zeros of their sign; without it the compiler adds instructions that scale."""

import math

import numpy as np

from .half2 import fused
from .ptx import f32, intrinsic

TINY = np.finfo(np.float32).smallest_normal


@intrinsic(f32(f32, f32), pure=True)
def add_rm_f32(x, y):
    """``add.rm.f32``: ``x + y`` rounded towards minus infinity. PTX ISA 9.7.3.3."""
    x, y = np.float32(x), np.float32(y)
    exact = fused(float(x), 1.0, float(y))
    if exact == 0:
        return np.float32(-0.0) if np.signbit(x) or np.signbit(y) else np.float32(0)
    with np.errstate(over="ignore"):
        nearest = np.float32(exact)
        down = np.nextafter(nearest, np.float32(-np.inf))
    return down if float(nearest) > exact else nearest


def _flushed(x):
    """``x``, or where it is subnormal a zero of its sign."""
    x = np.float32(x)
    return np.copysign(np.float32(0), x) if abs(x) < TINY else x


_exp2 = getattr(math, "exp2", lambda x: 2.0**x)  # Python 3.10 has none


def exp2(x):
    """2 to the power of a float, by C's library, which machine code takes it from as well."""
    return math.inf if x >= 1024 else _exp2(x)


def log2(x):
    """The logarithm of a float, likewise."""
    return math.log2(x) if x > 0 else -math.inf if x == 0 else math.nan


def _approximated(function, x):
    """``function`` of a number, rounded once to float32."""
    with np.errstate(all="ignore"):
        return np.float32(function(np.float64(np.float32(x))))


@intrinsic(f32(f32), pure=True)
def ex2_approx_f32(x):
    """``ex2.approx.f32``: 2 to the power of ``x``, with a relative error of about 2^-22. exp(x) is
    this of x * log2(e). Of -inf it is 0. PTX ISA 9.7.3.21."""
    return _approximated(exp2, x)


@intrinsic(f32(f32), pure=True)
def ex2_approx_ftz_f32(x):
    """``ex2.approx.ftz.f32``: as ``ex2_approx_f32`` in one instruction: subnormal results are 0, those of
    ``x`` below -126. PTX ISA 9.7.3.21."""
    return _flushed(_approximated(exp2, _flushed(x)))


@intrinsic(f32(f32), pure=True)
def lg2_approx_f32(x):
    """``lg2.approx.f32``: the logarithm of ``x`` to base 2, with an absolute error of about 2^-22 near 1, a
    relative one elsewhere. Of 0 it is -inf, of negative numbers NaN. PTX ISA 9.7.3.20."""
    return _approximated(log2, x)


@intrinsic(f32(f32), pure=True)
def rcp_approx_f32(x):
    """``rcp.approx.f32``: 1 / ``x``, off by one unit in the last place at most. Of 0 it is infinite, with the
    sign of ``x``. PTX ISA 9.7.3.13."""
    return _approximated(np.reciprocal, x)


@intrinsic(f32(f32), pure=True)
def rcp_approx_ftz_f32(x):
    """``rcp.approx.ftz.f32``: as ``rcp_approx_f32`` in one instruction: subnormal numbers are zeros.
    PTX ISA 9.7.3.13."""
    return _flushed(_approximated(np.reciprocal, _flushed(x)))


@intrinsic(f32(f32), pure=True)
def tanh_approx_f32(x):
    """``tanh.approx.f32``: the hyperbolic tangent of ``x``, with a relative error of about 2^-11: as good as an
    fp16 number. PTX ISA 9.7.3.22."""
    return _approximated(np.tanh, x)


@intrinsic(f32(f32, f32), pure=True)
def max_f32(x, y):
    """``max.f32``: the larger of two numbers; of a number and a NaN the number; 0 is larger than -0.
    PTX ISA 9.7.3.12."""
    return _extreme(np.fmax, x, y, np.logical_and)


@intrinsic(f32(f32, f32), pure=True)
def min_f32(x, y):
    """``min.f32``: the smaller of two numbers; of a number and a NaN the number; -0 is smaller than 0.
    PTX ISA 9.7.3.11."""
    return _extreme(np.fmin, x, y, np.logical_or)


def _extreme(choose, x, y, signs):
    x, y = np.float32(x), np.float32(y)
    if x == y == 0:
        return np.float32(-0.0) if signs(np.signbit(x), np.signbit(y)) else np.float32(0)
    return choose(x, y)
