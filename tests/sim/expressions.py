"""240 random arithmetic expressions, the same for every run, as functions for the CPU engine, Numba and a GPU.

``write(folder)`` makes a module of functions, each of which has ``SIZE`` expressions: the functions of
``NUMBERS`` on integers and floats, those of ``PACKED`` on packed halves (device/half2.py), which need
intrinsics, those of ``HALVES`` on g and h, the float16 of x and y, as well. The function of a group is called
with the values of VARIABLES, the arrays that take the results, and the number of the element:
``ints[e, t] = <an expression>`` or ``floats[e, t] = <an expression>``. A float32 result is kept as a float64 of
the same value, so its bits tell in what type it was computed.
"""

import importlib.util
import random

import numpy as np
from numba import cuda

SIZE, NUMBERS, PACKED, HALVES = 10, range(18), range(18, 20), range(20, 24)
# Variables of each type: two of each.
VARIABLES = {"i": np.int32, "j": np.int32, "u": np.uint32, "v": np.uint32, "k": np.int64, "n": np.int64,
             "x": np.float32, "y": np.float32, "a": np.float64, "b": np.float64,
             "p": np.uint32, "q": np.uint32, "r": np.uint32}  # fmt: skip
ELEMENTS = 64
_HEAD = """
from numba import float32, float64, int32, int64, uint32
from numba.types import float16
from numba_deform.device.half2 import add_rn_f16x2, cvt_f32_f16_hi, cvt_f32_f16_lo, cvt_rn_f16x2_f32
from numba_deform.device.half2 import dup_hi_b16x2, dup_lo_b16x2, fma_rn_f16x2, mul_rn_f16x2
"""


class _Maker:
    """Random expressions. None divides by zero, shifts by more than 31 or converts a float to an integer that
    does not hold it: there compilers may do what they like."""

    def __init__(self, seed, floats="xxxyyyaabb", casts=("float32", "float32", "float64")):
        self.random, self.floats, self.casts = random.Random(seed), floats, casts

    def integer(self, depth):
        pick = self.random.choice
        if depth == 0:
            literal = str(pick((1, 2, 3, 7, 100, 2**31, 255)))
            return pick("iijjuuvvkknn") if self.random.random() < 0.7 else literal
        left = self.integer(depth - 1)
        form = pick(("binary", "binary", "binary", "divide", "shift", "unary", "cast", "choose", "extreme"))
        if form == "binary":
            return f"({left} {pick(('+', '-', '*', '&', '|', '^', '+', '*'))} {self.integer(depth - 1)})"
        if form == "divide":
            return f"({left} {pick(('//', '%'))} {pick((3, 7, -5, 64, 1000))})"
        if form == "shift":
            return f"({left} {pick(('<<', '>>'))} {self.random.randrange(32)})"
        if form == "unary":
            return f"({pick('-~')}{left})"
        if form == "cast":
            return f"{pick(('int32', 'uint32', 'int64'))}({left})"
        if form == "extreme":
            return f"{pick(('min', 'max'))}({pick('ijkn')}, {pick('ijkn')})"
        # Numba makes a float64 of int64 or uint64.
        return f"(int64({left}) if {self.condition(depth - 1)} else int64({self.integer(depth - 1)}))"

    def condition(self, depth):
        make = self.random.choice((self.integer, self.floating))
        return f"{make(depth)} {self.random.choice(('<', '<=', '==', '!=', '>', '>='))} {make(depth)}"

    def floating(self, depth):
        pick = self.random.choice
        if depth == 0:
            literal = pick(("0.5", "0.1", "3.0", "1e-3", "7.25"))
            return pick(self.floats) if self.random.random() < 0.7 else literal
        left = self.floating(depth - 1)
        form = pick(("binary", "binary", "binary", "binary", "mixed", "divide", "unary", "cast", "choose"))
        if form == "binary":
            return f"({left} {pick('+-*')} {self.floating(depth - 1)})"
        if form == "mixed":
            pair = [left, self.integer(depth - 1)]
            self.random.shuffle(pair)
            return f"({pair[0]} {pick('+-*')} {pair[1]})"
        if form == "divide":
            return f"({left} / {pick((self.floating(depth - 1), self.integer(0), '3', '0.3'))})"
        if form == "unary":
            return f"{pick(('-', 'abs'))}({left})"
        if form == "cast":
            return f"{pick(self.casts)}({pick((left, self.integer(depth - 1)))})"
        return f"({left} if {self.condition(depth - 1)} else {pick((self.floating, self.integer))(depth - 1)})"

    def packed(self, depth):
        pick = self.random.choice
        if depth == 0:
            return pick("pqr")
        one, two = self.packed(depth - 1), self.packed(depth - 1)
        return pick((
            f"fma_rn_f16x2({one}, {two}, {pick('pqr')})", f"mul_rn_f16x2({one}, {two})",
            f"add_rn_f16x2({one}, {two})", f"{pick(('dup_lo_b16x2', 'dup_hi_b16x2'))}({one})",
            f"cvt_rn_f16x2_f32(cvt_f32_f16_lo({one}), float32(cvt_f32_f16_hi({two}) * {pick((3, 0.1, 'x'))}))",
        ))  # fmt: skip


def expressions(group):
    """The expressions of one function: pairs (``ints`` or ``floats``, text)."""
    halves = ("ggghhhggghhhxa", ("float16", "float16", "float32", "float64")) if group in HALVES else ()
    maker, made = _Maker(1000 + group, *halves), []
    for _ in range(SIZE):
        depth = maker.random.choice((1, 2, 2, 3))
        if group in PACKED:
            made.append(("ints", maker.packed(depth)))
        else:
            kind = maker.random.choice(("ints", "floats"))
            made.append((kind, maker.integer(depth) if kind == "ints" else maker.floating(depth)))
    return made


def write(folder):
    """The module with the functions ``group_0`` and so on, written to a file of ``folder``."""
    lines = [_HEAD]
    for group in (*NUMBERS, *PACKED, *HALVES):
        lines.append(f"\n\ndef group_{group}({', '.join(VARIABLES)}, ints, floats, t):")
        lines += ["    g, h = float16(x), float16(y)"] if group in HALVES else []
        lines += [f"    {kind}[{e}, t] = {text}" for e, (kind, text) in enumerate(expressions(group))]
    path = folder / "random_expressions.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location("random_expressions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(group):
    """An array of ELEMENTS values for each variable: small ones, large ones, and the ends of the types."""
    made, rng = {}, np.random.default_rng(group)
    for name, dtype in VARIABLES.items():
        if np.dtype(dtype).kind == "f":
            values = rng.standard_normal(ELEMENTS) * 10.0 ** rng.integers(-3, 4, ELEMENTS)
            values[:4] = 0, -0.0, 1, -1
        elif name in "pqr":
            halves = (rng.standard_normal((ELEMENTS, 2)) * 10.0 ** rng.integers(-2, 3, (ELEMENTS, 1)))
            values = halves.astype(np.float16).view(np.uint32).ravel()
        else:
            limits = np.iinfo(dtype)
            values = rng.integers(limits.min, limits.max, ELEMENTS, dtype, endpoint=True)
            small = rng.integers(0 if limits.min == 0 else -100, 100, ELEMENTS)
            values = np.where(rng.random(ELEMENTS) < 0.5, small.astype(dtype), values)
            values[:2] = limits.min, limits.max
        made[name] = rng.permutation(values.astype(dtype))
    return made


def results():
    """Arrays for the results of one function."""
    return np.zeros((SIZE, ELEMENTS), np.int64), np.zeros((SIZE, ELEMENTS), np.float64)


def kernel_of(device_function):
    """A kernel in which thread t computes element t of one function; its arguments: inputs and results."""

    def kernel(i, j, u, v, k, n, x, y, a, b, p, q, r, ints, floats):
        t = cuda.threadIdx.x
        device_function(
            i[t], j[t], u[t], v[t], k[t], n[t], x[t], y[t], a[t], b[t], p[t], q[t], r[t], ints, floats, t
        )

    return kernel


def differ(one, other):
    """Which expressions of a function have another result in any bit; all NaN are alike."""
    different = np.zeros(SIZE, bool)
    for left, right in zip(one, other, strict=True):
        same = left.view(np.int64) == right.view(np.int64)
        if left.dtype.kind == "f":
            same |= np.isnan(left) & np.isnan(right)
        different |= ~same.all(axis=1)
    return np.flatnonzero(different)
