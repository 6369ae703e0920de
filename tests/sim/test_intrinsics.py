"""Intrinsics: their arithmetic against NumPy, and what every one of them owes its reader."""

import importlib
import inspect
import math
import pkgutil
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from helpers import nans, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_deform as nd
import numba_deform.device
from numba_deform.device import float32, integer, ptx, sections, sync
from numba_deform.device import half2 as h
from numba_deform.device.ptx import Intrinsic, OutsideKernel
from numba_deform.engines import faults

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
u16, u32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
many = settings(max_examples=400, deadline=None)


def intrinsics():
    found = {}
    for module in pkgutil.iter_modules(numba_deform.device.__path__):
        loaded = importlib.import_module(f"numba_deform.device.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, Intrinsic) and value.model.__module__ == loaded.__name__:
                found[value.model.__name__] = value
    return found


INTRINSICS = intrinsics()


# --- packed 16-bit floats -------------------------------------------------------------------------
def of_bits(bits, dtype):
    return np.array([bits], np.uint16).view(dtype)[0]


def rounded(exact, dtype):
    """A Fraction to the nearest number of a 16-bit type, ties to even: by definition, slowly."""
    info = ml_dtypes.finfo(dtype)
    if exact == 0:
        return 0.0
    exponent = 0
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    step = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    multiple = round(exact / step) * step  # Python rounds halves to even
    if abs(multiple) > Fraction(float(info.max)):
        return np.copysign(np.inf, float(exact > 0) - 0.5)
    return float(multiple)


def same(got, expected):
    got, expected = float(got), float(expected)
    return got == expected or (got != got and expected != expected)


OPERATIONS = {  # name -> (intrinsic, dtype, number of operands, exact result)
    "fma_rn_f16x2": (h.fma_rn_f16x2, F16, 3, lambda a, b, c: a * b + c),
    "mul_rn_f16x2": (h.mul_rn_f16x2, F16, 2, lambda a, b: a * b),
    "add_rn_f16x2": (h.add_rn_f16x2, F16, 2, lambda a, b: a + b),
    "fma_rn_bf16x2": (h.fma_rn_bf16x2, BF16, 3, lambda a, b, c: a * b + c),
    "mul_rn_bf16x2": (h.mul_rn_bf16x2, BF16, 2, lambda a, b: a * b),
    "add_rn_bf16x2": (h.add_rn_bf16x2, BF16, 2, lambda a, b: a + b),
}


def check_halves(name, words):
    operation, dtype, count, exact = OPERATIONS[name]
    result = operation(*words[:count])
    assert type(result) is int and 0 <= result < 1 << 32
    for shift in (0, 16):
        values = [float(of_bits(w >> shift & 0xFFFF, dtype)) for w in words[:count]]
        got = of_bits(result >> shift & 0xFFFF, dtype)
        if all(np.isfinite(values)):
            expected = rounded(exact(*map(Fraction, values)), dtype)
        else:
            with np.errstate(all="ignore"):
                expected = exact(*map(np.float64, values))
        assert same(got, expected), (name, [hex(w) for w in words], values, got, expected)


@many
@given(st.sampled_from(sorted(OPERATIONS)), u32, u32, u32)
@example("fma_rn_bf16x2", 0x3FC03FC0, 0x3F813F81, 0x0D808D80)  # a tie, but for the addend
@example("add_rn_bf16x2", 0x3F803F81, 0x00013B80, 0)
@example("mul_rn_f16x2", 0x7BFF0001, 0x40003800, 0)  # overflow; a tie among subnormals
@example("fma_rn_f16x2", 0x7C007E00, 0x00003C00, 0xFC003C00)  # inf * 0, NaN
def test_packed_arithmetic(name, x, y, z):
    check_halves(name, (x, y, z))


@many
@given(
    st.sampled_from(sorted(OPERATIONS)), st.lists(u16, min_size=3, max_size=3), st.integers(0, 15)
)
def test_packed_arithmetic_on_close_exponents(name, bits, shift):
    """Operands of like size, where ties and cancellation are."""
    words = [(b & 0x87FF | 0x3800) << 16 | (b >> shift) for b in bits]
    check_halves(name, words)


floats_of_all_kinds = st.floats(width=32) | u32.map(lambda b: float(np.uint32(b).view(np.float32)))


@many
@given(floats_of_all_kinds, floats_of_all_kinds)
@example(65519.996, 65520.0)
@example(2.0**-25, -(2.0**-24) * 1.5)
@example(float("nan"), float("-inf"))
@example(3.4028234e38, -1e-45)
def test_conversions_to_16_bits(lo, hi):
    lo, hi = np.float32(lo), np.float32(hi)
    for call, dtype in ((h.cvt_rn_f16x2_f32, F16), (h.cvt_rn_bf16x2_f32, BF16)):
        word = call(lo, hi)
        with np.errstate(all="ignore"):
            expected = np.array([lo, hi], np.float32).astype(dtype)
        for shift, value in ((0, expected[0]), (16, expected[1])):
            got = of_bits(word >> shift & 0xFFFF, dtype)
            assert same(got, value), (lo, hi, got, value)
            assert np.isnan(value) or np.signbit(got) == np.signbit(value)


def test_a_double_is_rounded_to_a_float_first():
    tie = 1 + 2.0**-11  # halfway between two fp16; a little above it as a double, not as a float
    assert h.cvt_rn_f16x2_f32(tie + 2.0**-40, 1e39) == 0x7C003C00
    assert h.cvt_rn_bf16x2_f32(1 + 2.0**-8 + 2.0**-40, -1e39) == 0xFF803F80
    assert h.mov_b32_f32(1e39) == 0x7F800000 and h.mov_b32_f32(0.1) == 0x3DCCCCCD


@many
@given(u32)
def test_conversions_to_float(word):
    for shift, half, brain in ((0, h.cvt_f32_f16_lo, h.cvt_f32_bf16_lo),
                               (16, h.cvt_f32_f16_hi, h.cvt_f32_bf16_hi)):  # fmt: skip
        bits = word >> shift & 0xFFFF
        assert same(half(word), of_bits(bits, F16).astype(np.float32))
        assert type(half(word)) is type(brain(word)) is np.float32
        assert brain(word).view(np.uint32) == bits << 16
    assert h.dup_lo_b16x2(word) == (word & 0xFFFF) * 0x10001
    assert h.dup_hi_b16x2(word) == (word >> 16) * 0x10001


@many
@given(u32)
@example(0x7F800001)  # a signalling NaN keeps its bits
@example(0xFFC12345)
@example(0x80000000)
def test_bit_casts(word):
    value = h.mov_f32_b32(word)
    assert type(value) is np.float32 and value.view(np.uint32) == word
    assert h.mov_b32_f32(value) == word


@many
@given(st.floats(width=32), st.floats(width=32))
@example(0.75, 12582912.0)  # a floor
@example(-0.25, 12582912.0)
@example(1.5, -1.5)  # an exact zero is negative in this rounding
@example(0.0, 0.0)
@example(3.4028234663852886e38, 1e30)
@example(-3.4028234663852886e38, -1e30)
@example(1e-45, 1.0)
def test_sums_are_rounded_down(x, y):
    got = float32.add_rm_f32(x, y)
    assert type(got) is np.float32
    if not (np.isfinite(x) and np.isfinite(y)):
        assert same(got, np.float32(x) + np.float32(y))
        return
    exact = Fraction(x) + Fraction(y)
    with np.errstate(over="ignore"):
        above = np.nextafter(got, np.float32(np.inf))
    assert got == -np.inf or Fraction(float(got)) <= exact
    assert above == np.inf or Fraction(float(above)) > exact
    if exact == 0:
        assert np.signbit(got) == (np.signbit(x) or np.signbit(y))


@many
@given(u32, st.integers(1, 0xFFFFFFFF))
def test_unsigned_division(x, y):
    expected = np.uint32(x) // np.uint32(y), np.uint32(x) % np.uint32(y)
    assert (integer.div_u32(x, y), integer.rem_u32(x, y)) == expected
    # An operand is taken as the 32 bits it has in a register.
    signed = x - (1 << 32)
    assert (integer.div_u32(signed, y), integer.rem_u32(x + (1 << 32), y)) == expected


def test_operands_are_taken_as_32_bits():
    assert h.mov_f32_b32(-1 << 31).view(np.uint32) == 1 << 31
    assert h.cvt_f32_bf16_hi((1 << 40) + 0x3F800000) == 1
    assert h.dup_lo_b16x2(-1) == 0xFFFFFFFF
    assert h.fma_rn_f16x2(0x3C00 - (1 << 32), 0x3C00, 0) == 0x3C00


def test_float_functions_in_a_kernel():
    def kernel(a, b, c, out):
        i = cuda.grid(1)
        out[i, 0] = cuda.fma(a[i], b[i], c[i])
        out[i, 1] = cuda.libdevice.fmaf(a[i], b[i], c[i])
        out[i, 2] = cuda.libdevice.floorf(a[i])
        out[i, 3] = cuda.libdevice.fminf(a[i], b[i])
        out[i, 4] = cuda.libdevice.fmaxf(a[i], b[i])
        out[i, 5] = cuda.libdevice.fabsf(a[i])
        out[i, 6] = cuda.libdevice.rsqrtf(b[i])
        out[i, 7] = cuda.libdevice.expf(c[i])

    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(64).astype(np.float32) for _ in range(3))
    # A float64 sum rounded twice would lose the tiny addend of the last but one.
    a[62], b[62], c[62] = 1.5, 1 + 2**-23, 2.0**-60
    a[63], b[63], c[63] = np.nan, 0, 1000
    out = np.zeros((64, 8), np.float32)
    run(kernel, a, b, c, out, grid=2)
    for i in range(63):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        nearest = np.float32(float(exact))
        candidates = [np.nextafter(nearest, np.float32(s)) for s in (-np.inf, np.inf)] + [nearest]
        best = min(abs(Fraction(float(x)) - exact) for x in candidates)
        assert abs(Fraction(float(out[i, 0])) - exact) == best and out[i, 1] == out[i, 0]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out[:, 2:6], np.stack(
            [np.floor(a), np.fmin(a, b), np.fmax(a, b), np.abs(a)], axis=1))  # fmt: skip
        np.testing.assert_allclose(out[:, 6], 1 / np.sqrt(b), rtol=2e-7)
        np.testing.assert_allclose(out[:, 7], np.exp(c), rtol=2e-7)


# --- what needs a thread --------------------------------------------------------------------------
PURE = {
    name
    for name, i in INTRINSICS.items()
    if i.model.__module__.endswith((".float32", ".half2", ".integer"))
}


@pytest.mark.parametrize("name", sorted(INTRINSICS.keys() - PURE))
def test_outside_a_kernel(name):
    intrinsic = INTRINSICS[name]
    count = len(inspect.signature(intrinsic.model).parameters)
    with pytest.raises(OutsideKernel, match=rf"^{name} needs a thread of a kernel.*simulate"):
        intrinsic(*[0] * count)


def test_outside_a_kernel_but_in_a_greenlet():
    from greenlet import greenlet

    def work():
        with pytest.raises(OutsideKernel, match="clock64"):
            sync.clock64()
        return "done"

    assert greenlet(work).switch() == "done"


def test_pure_ones_need_no_thread():
    assert len(PURE) >= 18
    for name in PURE:
        count = len(inspect.signature(INTRINSICS[name].model).parameters)
        INTRINSICS[name](*[1] * count)


def test_clocks_go_forward():
    def kernel(out):
        out[0] = sync.clock64()
        cuda.syncthreads()
        out[1] = sync.clock64()
        out[2] = sync.globaltimer()

    out = nans(3)
    run(kernel, out, block=1)
    assert out[0] < out[1] <= out[2]


# --- what the special function unit approximates ---------------------------------------------------
APPROXIMATED = {  # name -> the function, by Python's own mathematics
    "ex2_approx_f32": lambda x: 2.0**x, "lg2_approx_f32": math.log2, "rcp_approx_f32": lambda x: 1 / x,
    "tanh_approx_f32": math.tanh,
}


@many
@given(st.sampled_from(sorted(APPROXIMATED)), st.floats(2.0**-20, 100, width=32))
def test_approximations(name, x):
    got = getattr(float32, name)(x)
    assert type(got) is np.float32
    assert float(got) == pytest.approx(APPROXIMATED[name](x), rel=2**-23, abs=2**-30)


def test_approximations_at_the_edges():
    inf, f = np.inf, float32
    assert f.ex2_approx_f32(-inf) == 0 and f.ex2_approx_f32(128) == inf and f.ex2_approx_f32(-149) == 2.0**-149
    assert f.ex2_approx_ftz_f32(-127) == 0 and f.ex2_approx_ftz_f32(-126) == 2.0**-126
    assert f.rcp_approx_f32(-0.0) == -inf and f.rcp_approx_f32(2.0**127) == 2.0**-127
    assert f.rcp_approx_ftz_f32(2.0**-130) == inf and f.rcp_approx_ftz_f32(2.0**127) == 0
    assert f.lg2_approx_f32(0) == -inf and np.isnan(f.lg2_approx_f32(-1)) and f.tanh_approx_f32(-inf) == -1


def test_extremes():
    for a, b, low, high in ((1, 2, 1, 2), (np.nan, 3, 3, 3), (3, np.nan, 3, 3), (-np.inf, 0, -np.inf, 0)):
        assert (float32.min_f32(a, b), float32.max_f32(a, b)) == (low, high)
    zeros = [(f, a, b) for f in (float32.min_f32, float32.max_f32) for a, b in ((-0.0, 0.0), (0.0, -0.0))]
    assert [bool(np.signbit(f(a, b))) for f, a, b in zeros] == [True, True, False, False]


def test_reductions_in_shared_memory():
    def kernel(out):
        sums = cuda.shared.array(6, np.uint32)
        i, first = cuda.threadIdx.x, nd.shared_address(sums)
        if i < 6:
            sums[i] = nd.uint32(i == 2) * nd.uint32(0xFFFFFFFF)
        cuda.syncthreads()
        nd.red_add_cta_shared_u32(first, i + 1)
        nd.red_max_cta_shared_u32(first + 4, 7 * i)
        nd.red_min_cta_shared_u32(first + 8, i + 5)
        nd.red_max_cta_shared_s32(first + 12, nd.int32(i) - 100)
        nd.red_min_cta_shared_s32(first + 16, 10 - nd.int32(i))
        nd.red_add_cta_shared_f32(first + 20, nd.float32(0.25) * i)
        cuda.syncthreads()
        if i < 6:
            out[i] = sums[i]

    out = np.zeros(6, np.uint32)
    run(kernel, out, block=64)
    assert out[:3].tolist() == [65 * 32, 7 * 63, 5]
    assert out[3:5].view(np.int32).tolist() == [0, -53] and out.view(np.float32)[5] == 504


def test_a_reduction_in_shared_memory_races_with_a_read():
    def kernel(out):
        sums = cuda.shared.array(1, np.float32)
        if cuda.threadIdx.x == 0:
            sums[0] = 0
        cuda.syncthreads()
        nd.red_add_cta_shared_f32(nd.shared_address(sums), nd.float32(1))
        out[cuda.threadIdx.x] = sums[0]

    with pytest.raises(faults.DataRace):
        run(kernel, nans(32), block=32)


# --- the papers of every intrinsic ----------------------------------------------------------------
def test_all_are_found():
    assert len(INTRINSICS) >= 75
    modules = {i.model.__module__.rpartition(".")[2] for i in INTRINSICS.values()}
    assert modules == {path.stem for path in ptx.ptx_directory().glob("*.ptx")}


SECTIONS_OF = {}  # {instruction: the sections that are about it}
for number in sections.TITLES:
    for name in re.split(", | / ", sections.short(number)):
        SECTIONS_OF.setdefault(name, []).append(number)
HELPERS = {"dynamic_start", "shared_array"}  # no instructions: they are for device/layout.py


@pytest.mark.parametrize("name", sorted(INTRINSICS.keys() - HELPERS))
def test_docstring_and_ptx(name):
    intrinsic = INTRINSICS[name]
    document = inspect.getdoc(intrinsic.model)
    [number] = sections.cited(document)
    assert sections.TITLES[number] in intrinsic.__doc__
    if named := re.match(r"``(\S+)``", document):
        about = [n for n in SECTIONS_OF if (named[1].replace("::", ".") + ".").startswith(n + ".")]
        assert number in SECTIONS_OF[max(about, key=len)], f"{named[1]}: {sections.TITLES[number]}"
    assert intrinsic.__doc__ and intrinsic.__name__ == name
    parameters = list(inspect.signature(intrinsic.model).parameters)
    if intrinsic.ptx is None:  # the two that take an array are made in Python
        assert name in ("shared_address", "global_address") and parameters == ["array"]
        return
    assert [parameter for _, parameter in intrinsic.ptx.parameters] == parameters
    assert intrinsic.ptx.name == name
    assert intrinsic.ptx.file.stem == intrinsic.model.__module__.rpartition(".")[2]
    assert len(intrinsic.signature.args) == len(parameters)


def test_what_help_shows_of_one():
    shown = {name: repr(INTRINSICS[name]) for name in INTRINSICS}
    operands = "mask: u32, value: f32, lanes: u32"
    assert shown["shfl_sync_bfly_f32"] == f"<intrinsic shfl_sync_bfly_f32({operands}) -> f32>"
    assert shown["ld_shared_v2"].endswith("(address: u32) -> u32 x 2>")
    assert "(sums: local f32 x 64, pending: u32)>" in shown["wgmma_wait_group_n128"]
    assert shown["shared_address"] == "<intrinsic shared_address(array)>"


def test_every_ptx_function_has_a_name_in_python():
    for path in ptx.ptx_directory().glob("*.ptx"):
        functions = ptx.read_ptx(path)
        assert functions and set(functions) <= set(INTRINSICS), path.name
