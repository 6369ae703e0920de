"""What numba-cuda's own tests ask of a front end, each in a kernel of a few lines; all of them run in
``tests/numba_tests``."""

import enum
import math
import types as python

import ml_dtypes
import numpy as np
import pytest
from helpers import clean, expect, run
from numba import cuda, float32, float64, int32, types, uint64
from numba.cuda import bf16, bfloat16, config
from numba.cuda.extending import overload, overload_method
from numba.cuda.types import Array

from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.numba_python.native_program import NumbaKernel


class Color(enum.Enum):
    RED, BLUE = 1, 2


def by_literal(x):
    """What Numba runs for it depends on the constant that it is called with."""


@overload(by_literal, prefer_literal=True)
def _(x):
    value = getattr(x, "literal_value", 0)
    return lambda x: value * 10 + x


@overload_method(Array, "twice_at")
def _(array, i, plus=1):
    return lambda array, i, plus=1: 2 * array[i] + plus


def test_functions_that_numba_takes_python_code_for():
    def kernel(a, out):
        out[0], out[1] = by_literal(3), by_literal(4)
        out[2], out[3] = a.twice_at(1), a.twice_at(1, plus=5)
        out[4], out[5] = np.mean(a), np.std(a)
        out[6], out[7] = np.count_nonzero(a), np.nanmax(a)
        out[8], out[9] = np.all(a), np.any(a)
        out[10], out[11] = np.max(a), np.min(a[2:])

    a, out = np.array([0.0, 2.5, 4.5, 1.0]), np.zeros(12)
    run(kernel, a, out, block=1)
    assert out.tolist() == [33, 44, 6, 10, a.mean(), a.std(), 3, 4.5, 0, 1, 4.5, 1]


def test_conditions_that_are_calls_of_a_module():
    """Numba calls bool as well, since Python 3.12 at the place of the call, which was `if x` there."""
    def kernel(a, out):
        for i in range(4):
            if math.isnan(a[i]):
                out[i] = 1
            if not np.isfinite(a[i]):
                out[i] += 2
            out[i] += 4 if math.isinf(a[i]) else 8
        while not math.isnan(a[0]):
            a[0] = math.nan
            out[4] += 1

    out = np.zeros(5)
    run(kernel, np.array([2.5, 0.0, np.nan, np.inf]), out, block=1)
    assert out.tolist() == [8, 8, 11, 6, 1]


def test_minimum_and_maximum_of_nan():
    """Numba's begin with the first element, and pass on a NaN that comes first."""

    def kernel(a, out):
        out[0], out[1], out[2] = np.max(a), np.min(a), np.nanmin(a)

    out = np.zeros(3)
    run(kernel, np.array([np.nan, 1.0, 5.0]), out, block=1)
    assert np.isnan(out[:2]).all() and out[2] == 1


@pytest.mark.parametrize("kind", (np.complex64, np.complex128))
def test_complex_powers(kind):
    def kernel(x, y, out):
        i = cuda.grid(1)
        out[i] = x[i] ** y[i]

    x, y = np.array([1 + 2j, 0, 3j, 2], kind), np.array([2 - 1j, 2, 0, -0.5], kind)
    out = np.zeros(4, kind)
    run(kernel, x, y, out, block=4)
    np.testing.assert_allclose(out, x**y, rtol=1e-5 if kind is np.complex64 else 1e-12)


@pytest.mark.parametrize("x, digits, want", [
    (np.float32(0.3425), 3, np.float32(0.343)), (0.5, 0, 0.0), (1250.0, -2, 1200.0), (math.inf, 3, math.inf),
    (np.finfo(np.float64).max, 300, np.finfo(np.float64).max), (2.5e-25, 25, 2e-25),
])  # fmt: skip
def test_rounding_to_digits(x, digits, want):
    """By way of a product, as Numba has it, and not by the decimal text, as Python has: 0.3425 is less."""

    def kernel(x, out):
        out[0] = round(x[0], digits)

    out = np.zeros(1, np.asarray(x).dtype)
    run(kernel, np.array([x]), out, block=1)
    assert out[0] == want


def test_functions_of_whole_arrays(monkeypatch):
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True, raising=False)

    def kernel(a, b, out, words):
        np.add(a, b, out[0])
        np.maximum(a, 2.5, out[1])
        own = np.sqrt(a)
        own[0] += 1
        other = own.copy()
        own[1] = 9
        for i in range(a.size):
            out[2, i] = other[i]
        words[0] = words[1:].ctypes.data - words.ctypes.data

    a, b = np.array([1.0, 4.0, 9.0], np.float32), np.ones(3, np.float32)
    out, words = np.zeros((3, 3), np.float32), np.zeros(4, np.int32)
    run(kernel, a, b, out, words, block=1)
    np.testing.assert_array_equal(out, [a + b, np.maximum(a, 2.5), [2, 2, 3]])
    assert words.tolist() == [4, 0, 0, 0]


def test_parts_of_complex_arrays_and_indices_that_are_floats():
    def kernel(z, counts):
        i = cuda.grid(1)
        cuda.atomic.add(z.real, 0, 1.0)
        cuda.atomic.add(z.imag, 0, 2.0)
        cuda.atomic.add(counts, (i, uint64(i)), 1)  # Numba makes float64 of both

    z, counts = np.zeros(1, np.complex128), np.zeros((4, 4), np.int32)
    run(kernel, z, counts, block=4)
    assert z[0] == 4 + 8j
    np.testing.assert_array_equal(counts, np.eye(4))


def test_members_of_an_enum_and_dates():
    def kernel(color, day, days, out):
        out[0] = 1 if color == Color.BLUE else 0
        out[1] = 1 if days[0] == day else 0

    days, out = np.array(["2026-01-02"], "datetime64[D]"), np.zeros(2, np.int32)
    run(kernel, Color.BLUE, days[0], days, out, block=1)
    assert out.tolist() == [1, 1]


def test_arithmetic_of_dates():
    """As NumPy has it, NaT and division by zero included."""

    def kernel(start, end, unit, spans, later, parts, whole):
        i = cuda.grid(1)
        span = end[i] - start[i]
        spans[i] = span
        parts[i] = span / unit
        whole[i] = span // unit + 1
        span *= 2
        span -= start[1] - start[0]
        later[i] = start[i] + span

    start = np.array(["2020-01-01", "2021-03-01", "NaT"], "datetime64[D]")
    end = start + np.array([7, -3, 1])
    for unit in (np.timedelta64(2, "D"), np.timedelta64(36, "h"), np.timedelta64(0, "D")):
        out = [np.zeros(3, k) for k in ("m8[D]", "M8[D]", np.float64, np.int64)]
        run(kernel, start, end, unit, *out, block=3)
        span = end - start
        with np.errstate(all="ignore"):
            want = [span, start + (span * 2 - (start[1] - start[0])), span / unit, span // unit + 1]
        for one, other in zip(out, want, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("array", [
    np.array([1, np.nan, 5.0]), np.array([np.nan, 1, 5]), np.array([3.25, -1, 7.5, 0], np.float32),
    np.array([200, 100, 7], np.uint8), np.array([2**62] * 3), np.array([True, False, True]),
    np.array([[1.5, 2], [3, -4]]).T,
], ids=str)  # fmt: skip
def test_reductions(array):
    """Numba's sums have 64 bits; of NaN its results are NumPy's."""

    def kernel(a, out):
        out[0], out[1], out[2], out[3] = a.sum(), np.sum(a), a.min(), a.max()
        out[4], out[5], out[6], out[7] = np.prod(a), np.nanmean(a), np.nansum(a), a.argmax()
        out[8], out[9], out[10] = np.var(a), a.all(), np.count_nonzero(a)

    out, want = np.zeros((2, 11))
    with np.errstate(all="ignore"):
        run(kernel, array, out, block=1)
        kernel(array, want)
    np.testing.assert_array_equal(out, want)


def test_a_race_within_a_reduction():
    def of_mean(out):
        tile = cuda.shared.array(32, float32)
        tile[cuda.threadIdx.x] = 1
        out[cuda.threadIdx.x] = np.mean(tile)

    def of_maximum(out):
        tile = cuda.shared.array(32, float32)
        tile[cuda.threadIdx.x] = 1
        out[cuda.threadIdx.x] = tile.max()

    expect(faults.DataRace, of_mean, np.zeros(32), source="np.mean(tile)")
    expect(faults.DataRace, of_maximum, np.zeros(32), source="tile.max()")


def test_bfloat16():
    def kernel(x, out):
        i = cuda.grid(1)
        a = bfloat16(x[i])
        out[i, 0] = float32(a * a - bfloat16(float32(1)))
        out[i, 1] = float32(bf16.hfma(a, a, bfloat16(float32(-1))))  # rounded once
        out[i, 2] = float32(bf16.float2bfloat16_ru(x[i]))
        out[i, 3] = bf16.bfloat162int_rn(a)

    x = np.array([1.0039, -2.5, 300.7], np.float32)
    out = np.zeros((3, 4), np.float32)
    run(kernel, x, out, block=3)
    a = x.astype(ml_dtypes.bfloat16)
    exact = a.astype(np.float64) ** 2 - 1
    np.testing.assert_array_equal(out[:, 0], (a * a - ml_dtypes.bfloat16(1)).astype(np.float32))
    np.testing.assert_array_equal(out[:, 1], exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert (out[:, 2] >= x).all() and ((out[:, 2] - x) <= abs(x) / 128).all()
    np.testing.assert_array_equal(out[:, 3], np.rint(a.astype(np.float32)))


def test_fp8():
    from numba.cuda._internal.cuda_fp8 import cvt_float_to_fp8, fp8_e5m2, fp8_interpretation_t, saturation_t

    def kernel(x, out):
        i = cuda.grid(1)
        out[i, 0] = cvt_float_to_fp8(x[i], saturation_t.SATFINITE, fp8_interpretation_t.E4M3)
        out[i, 1] = cvt_float_to_fp8(x[i], saturation_t.NOSAT, fp8_interpretation_t.E5M2)
        out[i, 2] = int32(fp8_e5m2(x[i]))

    x, out = np.array([0.3, -17.4, 1e5, 3e-8], np.float32), np.zeros((4, 3), np.int64)
    run(kernel, x, out, block=4)
    want = [x.astype(kind).view(np.uint8) for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
    assert out[[0, 1, 3], 0].tolist() == want[0][[0, 1, 3]].tolist() and out[2, 0] == 0x7E
    assert out[:, 1].tolist() == want[1].tolist()
    assert out[:, 2].tolist() == [0, -16, 57344, 0]


def test_a_kernel_that_lives_in_a_module_of_the_library():
    """Its own lines are what a fault names, as those of ``cuda.reduce``."""

    def kernel(out):
        out[0] = cuda.grid(1)

    kernel = python.FunctionType(kernel.__code__, globals(), "kernel")
    kernel.__module__ = "numba.cuda.kernels.made_up"
    fault = expect(faults.DataRace, kernel, np.zeros(1), block=2)
    assert "out[0] = cuda.grid(1)" in str(fault)


def test_a_tuple_of_constant_arrays():
    tables = np.arange(3.0), np.arange(5.0)

    def kernel(out):
        out[0] = tables[0].sum() + np.mean(tables[1])

    out = np.zeros(1, float64.name)
    run(kernel, out, block=1)
    assert out[0] == 5


def test_a_field_that_is_not_aligned_is_refused():
    """As Numba's lowering for CUDA does; a field that is not used does not matter."""

    def kernel(records, second):
        i = cuda.threadIdx.x
        records[i].first = i
        if second:
            records[i].second = i

    packed = np.zeros(32, [("first", "i1"), ("second", "f8")])
    fault = expect(faults.NotCompiled, kernel, packed, 1, words="field second of")
    assert fault.source == "records[i].second = i"
    aligned = np.zeros(32, np.dtype([("first", "i1"), ("second", "f8")], align=True))
    clean(kernel, aligned, 1)
    np.testing.assert_array_equal(aligned["second"], np.arange(32))


def test_a_whole_float_for_an_integer_is_converted():
    """By a kernel's signature, as Numba does it; a fraction is refused, where Numba would cut it off."""

    def kernel(out, n):
        out[0] = n

    out, signature = np.zeros(1, np.int64), types.void(types.int64[:], types.int32)
    typed = NumbaKernel(kernel, signature)
    clean(typed, out, 12.0, block=1)
    assert out[0] == 12
    with pytest.raises(ValueError, match="argument n=12.7, the kernel says int32: a whole number"):
        clean(typed, out, 12.7, block=1)
