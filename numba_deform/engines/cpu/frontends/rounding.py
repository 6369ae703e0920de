"""Formats of floats, and numbers rounded to them once, by MPFR."""

import functools
import math
from typing import NamedTuple

import gmpy2
import numpy as np


class Format(NamedTuple):
    """``bits`` of a fraction with its leading one, the exponent of the least normal number, and the largest
    number."""

    bits: int
    least: int
    largest: float


FORMATS = {
    "f16": Format(11, -14, 65504.0), "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127),
    "f32": Format(24, -126, float(np.finfo(np.float32).max)),
    "f64": Format(53, -1022, float(np.finfo(np.float64).max)), "e4m3": Format(4, -6, 448.0),
    "e5m2": Format(3, -14, 57344.0), "e2m3": Format(4, 0, 7.5), "e3m2": Format(3, -2, 28.0),
    "e2m1": Format(2, 0, 6.0),
}  # fmt: skip
MODES = {"rn": gmpy2.RoundToNearest, "rz": gmpy2.RoundToZero, "rm": gmpy2.RoundDown, "rp": gmpy2.RoundUp}


@functools.cache
def _context(kind, mode):
    """MPFR's numbers of a format."""
    form = FORMATS[kind]
    least, most = form.least - form.bits + 2, math.frexp(form.largest)[1]
    return gmpy2.context(precision=form.bits, emin=least, emax=most, subnormalize=True, round=MODES[mode])


def rounded(x, kind, mode="rn"):
    """A float or an integer as the nearest of a format that ``mode`` allows: rn, rz, rm, rp."""
    return _within(gmpy2.mpfr(x if isinstance(x, int) else float(x), 0, _context(kind, mode)), kind)


def _within(x, kind):
    """A float; infinite beyond the largest of a format, which has no numbers there for MPFR's."""
    return float(x) * (1 if abs(x) <= FORMATS[kind].largest else math.inf)


def operate(name, kind, mode, *xs):
    """``add``, ``sub``, ``mul``, ``div``, ``fma``, ``sqrt`` or ``rcp`` of floats, rounded once to a format."""
    context, xs = _context(kind, mode), [float(x) for x in xs]
    return _within(context.div(1, *xs) if name == "rcp" else getattr(context, name)(*xs), kind)


def directed(operation, mode="rn"):
    """The function of numbers, all float32 or all float64, that rounds an operation once, to their type."""

    def apply(*args):
        kind, form = (np.float32, "f32") if type(args[0]) is np.float32 else (np.float64, "f64")
        return kind(operate(operation, form, mode, *args))

    return apply


fma = directed("fma")
