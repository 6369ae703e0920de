"""Arithmetic that came with Blackwell: two float32 in a register, sums of halves and float32, minima of three,
redux.sync of float32, formats of 6 and 4 bits and powers of two. Against scalar forms, fractions, NumPy."""

import ml_dtypes
import numpy as np
import pytest
from test_arithmetic import LANES, check, computed, numbers
from test_rare_arithmetic import by_fractions, extreme

import numba_deform as nd

f32 = np.float32
NARROW = {"e2m1x2": ml_dtypes.float4_e2m1fn, "e2m3x2": ml_dtypes.float6_e2m3fn,
          "e3m2x2": ml_dtypes.float6_e3m2fn}  # fmt: skip


def floats(*seeds):
    return [numbers("f32", seed) for seed in seeds]


def packed(low, high):
    return low.view(np.uint32).astype(np.uint64) | high.view(np.uint32).astype(np.uint64) << np.uint64(32)


@pytest.mark.parametrize("opcode", [
    "add", "add.rn", "add.rz.ftz", "sub.rm", "mul.rp", "mul.rn.ftz", "fma.rn", "fma.rz", "fma.rm.ftz",
])  # fmt: skip
def test_two_floats(opcode):
    count = 3 if opcode.startswith("fma") else 2
    low, high = floats(*range(count)), floats(*range(10, 10 + count))
    got = computed(f"{opcode}.f32x2", ("b64",) * count, "b64", *map(packed, low, high))
    with np.errstate(all="ignore"):
        each = [computed(f"{opcode}.f32", ("f32",) * count, "f32", *part) for part in (low, high)]
    for n, want in enumerate(each):
        have = (got >> np.uint64(32 * n)).astype(np.uint32).view(f32)
        np.testing.assert_array_equal(have, want)
        np.testing.assert_array_equal(np.signbit(have[have == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_halves_and_floats(kind, mode):
    def rounded(name, *xs):
        if mode != "rn":
            return by_fractions(name, "f32", mode)(*xs)
        return xs[0] - xs[1] if name == "sub" else xs[0] + xs[1]

    for name in ("add", "sub"):
        check(f"{name}.{mode}.f32.{kind}", (kind, "f32"), "f32", lambda a, c, n=name: rounded(n, f32(a), c))
    if kind == "f16":  # a product of two is exact
        check(f"fma.{mode}.f32.f16", ("f16", "f16", "f32"), "f32",
              lambda a, b, c: rounded("add", f32(a) * f32(b), c) if mode == "rn" else
              by_fractions("fma", "f32", mode)(f32(a), f32(b), c))  # fmt: skip
    check(f"add.{mode}.sat.f32.{kind}", (kind, "f32"), "f32",
          lambda a, c: np.nan_to_num(np.clip(rounded("add", f32(a), c), 0, 1)) + 0.0)  # fmt: skip


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("options", ["", "NaN.", "abs.", "ftz.NaN.abs."])
def test_three(name, options):
    def apply(*xs):
        xs = [np.copysign(0, x) if "ftz" in options and abs(x) < 2.0**-126 else x for x in xs]
        xs = [abs(x) if "abs" in options else x for x in xs]
        first = extreme(name, options, *xs[:2])
        if "NaN" in options and np.isnan(xs[:2]).any():
            return np.nan
        return extreme(name, options, first, xs[2])

    check(f"{name}.{options}f32", ("f32",) * 3, "f32", apply)


@pytest.mark.parametrize("options", ["min", "max", "max.abs", "min.NaN", "max.abs.NaN"])
def test_redux(options):
    data = numbers("f32", 4)[:64].copy()
    data[32:] = np.random.default_rng(0).standard_normal(32)
    text = f""".version 8.6 .target sm_100a .address_size 64
.visible .entry k(.param .u64 data) {{ .reg .b32 t; .reg .f32 f; .reg .b64 x; .reg .pred p;
mov.u32 t, %tid.x; ld.param.u64 x, [data]; mad.wide.u32 x, t, 4, x; and.b32 t, t, 31; setp.gt.u32 p, t, 15;
ld.global.f32 f, [x]; @p bra high; redux.sync.{options}.f32 f, f, 0x0000ffff; bra end;
high: redux.sync.{options}.f32 f, f, 0xffff0000; end: st.global.f32 [x], f; ret; }}
"""
    out = data.copy()
    nd.simulate(nd.from_ptx(text)["k"], 1, 64, [out])
    groups = np.abs(data.reshape(4, 16)) if "abs" in options else data.reshape(4, 16)
    folds = {"min": np.fmin, "max": np.fmax, "min.NaN": np.minimum, "max.NaN": np.maximum}
    fold = folds[options.replace(".abs", "")]
    np.testing.assert_array_equal(out.reshape(4, 16), np.repeat(fold.reduce(groups, 1)[:, None], 16, 1))


def codes(kind):
    """(all numbers of a format by their bits, the mask of one's bits)"""
    width = {"e2m1x2": 4}.get(kind, 6)
    return np.arange(1 << width, dtype=np.uint8).view(NARROW[kind]).astype(float), width


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_to_narrow(kind, relu):
    values, width = codes(kind)
    a, b = floats(0, 1)
    a[:60] = np.random.default_rng(2).uniform(-8, 8, 60)
    a[60:100] = np.random.default_rng(3).integers(-32, 32, 40) / 8  # some lie in the middle
    half = 1 << width - 1

    def nearest(x):
        if np.isnan(x):
            return half - 1
        if relu and x <= 0:
            return 0
        distance = np.abs(values[:half] - min(abs(float(x)), 1e9))
        close = np.flatnonzero(distance == distance.min())
        return int(close[close % 2 == 0][0] if len(close) > 1 else close[0]) | half * bool(np.signbit(x))

    result = "b16" if width == 6 else "u8"
    opcode = f"cvt.rn.satfinite{relu}.{kind}.f32"
    if width == 6:
        got = computed(opcode, ("f32", "f32"), result, a, b)
    else:
        got = by_bytes(opcode, a, b)
    want = [nearest(x) << (8 if width == 6 else 4) | nearest(y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, want)


def by_bytes(opcode, a, b):
    """What goes to a register of 8 bits, as compilers take it out of there."""
    text = f""".version 8.6 .target sm_100a .address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 out) {{
.reg .b32 t, w; .reg .f32 f, g; .reg .b64 x; .reg .b8 k;
mov.u32 t, %tid.x; ld.param.u64 x, [pa]; mad.wide.u32 x, t, 4, x; ld.global.f32 f, [x];
ld.param.u64 x, [pb]; mad.wide.u32 x, t, 4, x; ld.global.f32 g, [x];
{opcode} k, f, g; mov.b32 w, {{k, k, k, k}};
ld.param.u64 x, [out]; mad.wide.u32 x, t, 4, x; st.global.b32 [x], w; ret; }}
"""
    out = np.zeros(LANES, np.uint32)
    nd.simulate(nd.from_ptx(text)["k"], 1, LANES, [a, b, out])
    np.testing.assert_array_equal(out, (out & 255) * 0x01010101)
    return out & 255


@pytest.mark.parametrize("kind", ["e2m3x2", "e3m2x2"])
def test_from_narrow(kind):
    values, _ = codes(kind)
    words = np.resize(np.arange(4096), LANES).astype(np.uint16)
    words = (words & 63 | (words * 37 % 64) << 8).astype(np.uint16)
    got = computed(f"cvt.rn.f16x2.{kind}", ("b16",), "b32", words).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(got, values[words.view(np.uint8).reshape(-1, 2)])


@pytest.mark.parametrize("mode", ["rz", "rp"])
@pytest.mark.parametrize("limit", ["", ".satfinite"])
def test_powers_of_two(mode, limit):
    """The power of two that is the largest not above a number's size, or the least not below it."""
    a, b = floats(0, 1)
    got = computed(f"cvt.{mode}{limit}.ue8m0x2.f32", ("f32", "f32"), "b16", a, b)

    def code(x):
        x = abs(float(x))
        if np.isnan(x):
            return 255
        powers = 2.0 ** np.arange(-127, 128)
        at = np.searchsorted(powers, x, "left") if mode == "rp" else np.searchsorted(powers, x, "right") - 1
        return min(max(int(at), 0) if np.isfinite(x) else 255, 254 if limit else 255)

    np.testing.assert_array_equal(got, [code(x) << 8 | code(y) for x, y in zip(a, b, strict=True)])


def test_from_powers_of_two():
    words = np.resize(np.arange(256), 2 * LANES).astype(np.uint8)
    got = computed("cvt.rn.bf16x2.ue8m0x2", ("b16",), "b32", words.view(np.uint16))
    want = np.where(words == 255, np.nan, 2.0 ** (words.astype(float) - 127))
    np.testing.assert_array_equal(got.view(ml_dtypes.bfloat16).astype(float), want)
