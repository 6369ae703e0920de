"""Each row of the table of instructions, and each conversion, on random and edge operands: its numbers are
those of NumPy, or of Python's integers."""

import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines.cpu.frontends.ptx.operations import FUNCTIONS
from numba_deform.engines.cpu.memory.scalars import Undefined

LANES = 224
DTYPES = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "u32": np.uint32,
    "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "f16x2": np.uint32, "bf16x2": np.uint32,
    "pred": np.uint32,
}  # fmt: skip
F32_EDGES = [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 1e-40, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan,
             65520.0, 2**31, -(2**31), 2**32, 2**63, 2**64, 8388609.0, 1 / 3]  # fmt: skip


def numbers(kind, seed):
    """LANES operands of a PTX type: all bits random, small ones, and the edges."""
    random, dtype = np.random.default_rng(seed), np.dtype(DTYPES[kind])
    if kind == "pred":
        return random.integers(0, 2, LANES, dtype=np.uint32)
    bits = 8 * dtype.itemsize
    found = random.integers(0, 1 << bits, LANES, dtype=np.uint64, endpoint=False) if bits < 64 else (
        random.integers(0, 2**64, LANES, dtype=np.uint64))  # fmt: skip
    found = found.astype(f"u{dtype.itemsize}").view(dtype)
    half = LANES // 2
    if kind in ("f16", "bf16", "f32", "f64"):
        found[:half] = (random.standard_normal(half) * 10.0 ** random.integers(-3, 4, half)).astype(dtype)
        with np.errstate(all="ignore"):
            edges = np.array(F32_EDGES, float).astype(dtype)
    else:
        found[:half] = random.integers(0, 40, half).astype(dtype)
        top = 1 << bits - 1
        edges = np.array([0, 1, 2 * top - 1, top, top - 1, 31, 32, 33, 63, 64, 255, 3], np.uint64)
        edges = edges.astype(f"u{dtype.itemsize}").view(dtype)
    places = random.choice(LANES, 3 * len(edges), replace=False)
    found[places] = np.tile(edges, 3)
    return found


def computing(opcode, kinds, result, literals=""):
    """A kernel ``k``: the instruction's operands from arrays, its result as one."""
    lines, names = [], []
    for n, kind in enumerate(kinds):
        size = 8 * np.dtype(DTYPES[kind]).itemsize
        register = "p" if kind == "pred" else f"o{n}"
        lines.append(f".reg .{kind if kind in ('f32', 'f64') else f'b{max(16, size)}'} o{n};")
        lines.append(f"ld.param.u64 x, [a{n}]; mul.wide.u32 y, t, {size // 8}; add.u64 x, x, y;")
        lines.append(f"ld.global.{kind if kind in ('f32', 'f64') else f'b{size}'} o{n}, [x];")
        lines += [f"setp.ne.u32 p, o{n}, 0;"] if kind == "pred" else []
        names.append(register if kind != "pred" or "pred" in result else "p")
    if result == "pred" and len(kinds) == 2 and kinds == ("pred", "pred"):
        lines = [line.replace("setp.ne.u32 p, o1", "setp.ne.u32 r, o1") for line in lines]
        names = ["p", "r"]
    size = 8 * np.dtype(DTYPES[result]).itemsize
    own = result if result in ("f32", "f64") else f"b{max(16, size)}"
    target = "q" if result == "pred" else "d"
    return f"""
.version 8.6 .target sm_90a .address_size 64
.visible .entry k({', '.join(f'.param .u64 a{n}' for n in range(len(kinds)))}, .param .u64 out) {{
.reg .pred p, q, r; .reg .b32 t; .reg .b64 x, y; .reg .{own} d;
mov.u32 t, %tid.x;
{chr(10).join(lines)}
{opcode} {target}, {', '.join([*names, *filter(None, [literals])])};
{"selp.b32 d, 1, 0, q;" if result == "pred" else ""}
ld.param.u64 x, [out]; mul.wide.u32 y, t, {size // 8}; add.u64 x, x, y;
st.global.{result if result in ("f32", "f64") else f"b{size}"} [x], d;
ret; }}
"""


def computed(opcode, kinds, result, *arrays, literals=""):
    """What the engine computes."""
    text = computing(opcode, kinds, result, literals)
    out = np.zeros(LANES, DTYPES[result])
    nd.simulate(nd.from_ptx(text)["k"], 1, LANES, [*arrays, out])
    return out


def check(opcode, kinds, result, expected, literals=""):
    arrays = [numbers(kind, n) for n, kind in enumerate(kinds)]
    got = computed(opcode, kinds, result, *arrays, literals=literals)
    with np.errstate(all="ignore"):
        want = [expected(*map(_python, lane)) for lane in zip(*arrays, strict=True)]
    dtype = np.dtype(DTYPES[result])
    if dtype.kind in "iu":
        want = np.array([int(x) % 2 ** (8 * dtype.itemsize) for x in want], np.uint64)
        got = got.astype(f"u{dtype.itemsize}") if dtype.kind == "u" else got.view(f"u{dtype.itemsize}")
        wrong = np.flatnonzero(got.astype(np.uint64) != want)
    else:
        unsigned = f"u{dtype.itemsize}"
        with np.errstate(all="ignore"):
            want = np.array(want).astype(dtype)
            both = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
        wrong = np.flatnonzero((got.view(unsigned) != want.view(unsigned)) & ~both)
    shown = [([a[i] for a in arrays], got[i], want[i]) for i in wrong[:3]]
    assert not len(wrong), (opcode, len(wrong), shown)


def _python(x):
    return int(x) if isinstance(x, np.integer) else x


def bits(x, n=32):
    return int(x) & (1 << n) - 1


def trunc(x, y):
    q = abs(x) // abs(y) if y else -1
    return q if not y or (x < 0) == (y < 0) else -q


def place(x, n):
    """The document takes the lowest byte of places and lengths. An H200 does so in 32 bits; in 64, where ptxas
    makes shifts of the instruction, all bits count."""
    return x % 256 if n == 32 else min(x, n)


def fields(x, at, count, n, signed):
    """The bits of a field, the lowest first, by hand."""
    at, count = place(at, n), place(count, n)
    digits = [x >> i & 1 for i in range(n)]
    sign = digits[min(at + count - 1, n - 1)] if signed and count else 0
    taken = [digits[at + i] if at + i < n else sign for i in range(min(count, n))]
    taken = taken + [sign] * (n - len(taken))
    return sum(b << i for i, b in enumerate(taken)) if count else 0


def inserted(a, b, at, count, n):
    digits, at = [b >> i & 1 for i in range(n)], place(at, n)
    for i in range(place(count, n)):
        if at + i < n:
            digits[at + i] = a >> i & 1 if i < n else 0
    return sum(d << i for i, d in enumerate(digits))


def permuted(a, b, select):
    content, out = struct.pack("<II", a, b), []
    for i in range(4):
        n = select >> 4 * i & 15
        byte = content[n & 7]
        out.append((255 if byte & 128 else 0) if n & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def pair(function, dtype):
    """``function`` of both halves of words."""

    def apply(*words):
        halves = [np.array([w], np.uint32).view(dtype).astype(np.float64) for w in words]
        return int(_rounded(function(*halves), dtype).view(np.uint32)[0])

    return apply


def _rounded(x, dtype):
    return x.astype(dtype) if dtype is np.float16 else x.astype(np.longdouble).astype(np.float32).astype(dtype)


f32, f64 = np.float32, np.float64
half = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
I32 = [("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64), ("u16", 16), ("s16", 16)]
ORDINARY = {  # instruction -> what Python's integers make of it
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "div": trunc,
    "rem": lambda a, b: a - trunc(a, b) * b if b else a, "min": min, "max": max,
}  # fmt: skip
CASES = [(f"{name}.{k}", (k, k), k, f) for name, f in ORDINARY.items() for k, _ in I32]
CASES += [(f"mul.hi.{k}", (k, k), k, lambda a, b, n=n: a * b >> n) for k, n in I32]
CASES += [(f"mad.hi.{k}", (k, k, k), k, lambda a, b, c, n=n: (a * b >> n) + c) for k, n in I32[:2]]
CASES += [(f"mad.lo.{k}", (k, k, k), k, lambda a, b, c: a * b + c) for k, n in I32]
for small, large in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
    CASES.append((f"mul.wide.{small}", (small, small), large, lambda a, b: a * b))
    CASES.append((f"mad.wide.{small}", (small, small, large), large, lambda a, b, c: a * b + c))
for n in (16, 32, 64):
    k, s = f"b{n}", f"s{n}"
    CASES += [(f"{name}.{k}", (k, k), k, f) for name, f in (
        ("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b))]  # fmt: skip
    CASES += [
        (f"not.{k}", (k,), k, lambda a: ~a), (f"cnot.{k}", (k,), k, lambda a: a == 0),
        (f"abs.{s}", (s,), s, abs), (f"neg.{s}", (s,), s, lambda a: -a),
        (f"shl.{k}", (k, "u32"), k, lambda a, b: a << min(b, 64)),
        (f"shr.u{n}", (f"u{n}", "u32"), k, lambda a, b: a >> min(b, 64)),
        (f"shr.{s}", (s, "u32"), s, lambda a, b: a >> min(b, 64)),
        (f"selp.{k}", (k, k, "pred"), k, lambda a, b, p: a if p else b),
    ]
for n in (32, 64):
    k = f"b{n}"
    CASES += [
        (f"brev.{k}", (k,), k, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2)),
        (f"clz.{k}", (k,), "u32", lambda a, n=n: n - a.bit_length()),
        (f"popc.{k}", (k,), "u32", int.bit_count),
        (f"bfe.u{n}", (f"u{n}", "u32", "u32"), k, lambda a, b, c, n=n: fields(a, b, c, n, False)),
        (f"bfe.s{n}", (f"s{n}", "u32", "u32"), k, lambda a, b, c, n=n: fields(bits(a, n), b, c, n, True)),
        (f"bfi.{k}", (k, k, "u32", "u32"), k, lambda a, b, c, d, n=n: inserted(a, b, c, d, n)),
        (f"bfind.u{n}", (f"u{n}",), "u32", lambda a: a.bit_length() - 1),
        (f"bfind.s{n}", (f"s{n}",), "u32", lambda a: (a if a >= 0 else ~a).bit_length() - 1),
        (f"bfind.shiftamt.u{n}", (f"u{n}",), "u32", lambda a, n=n: n - a.bit_length() if a else -1),
    ]
CASES += [
    ("sad.s32", ("s32", "s32", "u32"), "u32", lambda a, b, c: abs(a - b) + c),
    ("prmt.b32", ("b32", "b32", "b32"), "b32", permuted),
    ("shf.l.wrap.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) << c % 32 >> 32),
    ("shf.l.clamp.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    ("shf.r.wrap.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> c % 32),
    ("shf.r.clamp.b32", ("b32", "b32", "u32"), "b32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("not.pred", ("pred",), "pred", lambda a: not a),
    ("and.pred", ("pred", "pred"), "pred", lambda a, b: a and b),
    ("or.pred", ("pred", "pred"), "pred", lambda a, b: a or b),
    ("xor.pred", ("pred", "pred"), "pred", lambda a, b: a != b),
]


def of_number(function):
    """min or max: of a number and a NaN the number; -0 is less than 0."""

    def apply(a, b):
        if a != a or b != b:
            return b if a != a else a
        return function((a, -int(np.signbit(a))), (b, -int(np.signbit(b))))[0]

    return apply


for k, t in (("f32", f32), ("f64", f64)):
    CASES += [
        (f"add.rn.{k}", (k, k), k, lambda a, b: a + b), (f"sub.{k}", (k, k), k, lambda a, b: a - b),
        (f"mul.rn.{k}", (k, k), k, lambda a, b: a * b), (f"div.rn.{k}", (k, k), k, np.divide),
        (f"min.{k}", (k, k), k, of_number(min)), (f"max.{k}", (k, k), k, of_number(max)),
        (f"abs.{k}", (k,), k, abs), (f"neg.{k}", (k,), k, lambda a: -a),
        (f"sqrt.rn.{k}", (k,), k, np.sqrt), (f"rcp.rn.{k}", (k,), k, lambda a, t=t: np.divide(t(1), a)),
        (f"selp.{k}", (k, k, "pred"), k, lambda a, b, p: a if p else b),
    ]


def upper(x):
    """The upper half of a float64, without subnormals."""
    x = np.frombuffer(b"\0" * 4 + np.float64(x).tobytes()[4:], np.float64)[0]
    return x if not abs(x) < np.finfo(np.float64).tiny else np.copysign(0.0, x)


def flush(x):
    return np.copysign(f32(0), x) if abs(x) < np.finfo(f32).tiny else x


def saturate(x):
    """-0 becomes +0, as on an H200; the document says nothing of it."""
    return np.clip(x, f32(0), f32(1)) + f32(0) if x == x else f32(0)


def fused(a, b, c):
    return (np.longdouble(a) * b + np.longdouble(c)).astype(f32)


CASES += [
    ("fma.rn.f32", ("f32",) * 3, "f32", fused), ("mad.rn.f32", ("f32",) * 3, "f32", fused),
    ("copysign.f32", ("f32",) * 2, "f32", lambda a, b: np.copysign(b, a)),
    ("add.rn.ftz.f32", ("f32",) * 2, "f32", lambda a, b: flush(flush(a) + flush(b))),
    ("mul.sat.f32", ("f32",) * 2, "f32", lambda a, b: saturate(a * b)),
    ("ex2.approx.f32", ("f32",), "f32", lambda a: f32(np.exp2(f64(a)))),
    ("lg2.approx.f32", ("f32",), "f32", lambda a: f32(np.log2(f64(a)))),
    ("rsqrt.approx.f32", ("f32",), "f32", lambda a: f32(1 / np.sqrt(f64(a)))),
    ("rcp.approx.ftz.f64", ("f64",), "f64", lambda a: upper(1 / upper(a))),
    ("sin.approx.f32", ("f32",), "f32", lambda a: f32(np.sin(f64(a)))),
    ("cos.approx.f32", ("f32",), "f32", lambda a: f32(np.cos(f64(a)))),
    ("tanh.approx.f32", ("f32",), "f32", lambda a: f32(np.tanh(f64(a)))),
    ("div.full.f32", ("f32",) * 2, "f32", lambda a, b: np.divide(a, b)),
]


@pytest.mark.parametrize("opcode, kinds, result, expected", CASES, ids=[c[0] for c in CASES])
def test_rows(opcode, kinds, result, expected):
    check(opcode, kinds, result, expected)


def test_fma_of_doubles():
    def exact(a, b, c):
        if not np.isfinite([a, b, c]).all():
            return a * b + c
        total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if abs(total) >= 2**1024:
            return np.inf if total > 0 else -np.inf
        return float(total) if total else a * b + c

    check("fma.rn.f64", ("f64",) * 3, "f64", exact)


@pytest.mark.parametrize("table", [0x80, 0xE8, 0x96, 0x1B])
def test_lop3(table):
    def looked_up(a, b, c):
        return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))

    check("lop3.b32", ("b32",) * 3, "b32", looked_up, literals=str(table))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name, function", [
    ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
    ("neg", lambda a: -a), ("abs", abs),
])  # fmt: skip
def test_halves(kind, name, function):
    """One, and two of them in a word."""
    count, dtype = function.__code__.co_argcount if hasattr(function, "__code__") else 1, half[kind]
    mode = ".rn" if name in ("add", "sub", "mul") and kind == "f16" else ""
    arrays = [numbers(kind, n) for n in range(count)]
    with np.errstate(all="ignore"):
        want = function(*(a.astype(np.float32) for a in arrays)).astype(dtype)
    for own in (kind, f"{kind}x2"):
        opcode, kinds = f"{name}{mode}.{own}", (own,) * count
        given = arrays if kinds[0] == kind else [np.repeat(a, 2).view(np.uint32) for a in arrays]
        got = computed(opcode, kinds, kinds[0], *given).view(dtype)
        got = got if kinds[0] == kind else got[::2]
        nans = np.isnan(got.astype(f32)) & np.isnan(want.astype(f32))
        same = (got.view(np.uint16) == want.view(np.uint16)) | nans
        wrong = np.flatnonzero(~same)[:3]
        assert not len(wrong), (opcode, [(*(a[i] for a in arrays), got[i], want[i]) for i in wrong])


def test_casts_keep_all_bits_and_what_is_undefined():
    undefined = Undefined("a shuffle")
    for name, others in (("f32_of", ()), ("u32_of", ()), ("selected", (1, 2)), ("higher", (1,))):
        assert FUNCTIONS[name](*others, undefined) is undefined
    for name, others in (("nearest", (np.float32,)), ("half_of", ("f16", "rn", ())), ("wide_of", ("f32", "rz")),
                         ("tf32_of", ("rna", ())), ("whole", ("rzi", 0, 9))):  # fmt: skip
        assert FUNCTIONS[name](undefined, *others) is undefined
    assert FUNCTIONS["arithmetic"]("fma", "f32", "rm", 1.0, undefined, 2.0) is undefined
    for bits in (0x7F812345, 0xFFC00001, 0x7F800000, 1, 0x80000000):
        assert FUNCTIONS["u32_of"](FUNCTIONS["f32_of"](bits)) == bits


# --- comparisons and conversions --------------------------------------------------------------------------
ORDER = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "s16", "f32", "f64", "f16"])
def test_comparisons(kind):
    def compare(how, a, b):
        if kind[0] != "f":
            return getattr(a, ORDER[how])(b)
        unordered = bool(np.isnan(a) or np.isnan(b))
        if how in ("num", "nan"):
            return unordered == (how == "nan")
        if unordered:
            return how[2:] == "u"
        return bool(getattr(a, ORDER[how[:2]])(b))

    words = [*ORDER, *(f"{w}u" for w in ORDER), "num", "nan"] if kind[0] == "f" else list(ORDER)
    for how in words:
        check(f"setp.{how}.{kind}", (kind, kind), "pred", lambda a, b, how=how: compare(how, a, b))


CONVERSIONS = """
s32.s8 u32.u8 s64.s32 u64.u32 u32.u64 s16.s32 u16.u32 u8.u32 sat.u8.s32 sat.s16.s32 rn.f32.s32 rn.f32.u32
rn.f32.s64 rn.f32.u64 rn.f64.s64 rn.f64.u32 rzi.s32.f32 rni.s32.f32 rmi.u32.f32 rpi.s64.f32 rzi.u64.f64
rzi.s32.f64 f64.f32 rn.f32.f64 f32.f16 rn.f16.f32 f32.bf16 rn.bf16.f32 rni.f32.f32 rmi.f32.f32
rzi.f64.f64 sat.f32.f32 rn.f16.s32 rz.f16.s32 rm.f16.s32 rp.f16.s32 rm.f16.u64
""".split()
HALVES = np.unique(np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:0x7C01])  # from 0 to infinity


def directed(x, mode):
    """The float16 next to an integer: towards zero, downwards, upwards."""
    up = mode == "rp" if x >= 0 else mode == "rm"
    near = int(np.searchsorted(HALVES.astype(np.float64), abs(x), "left" if up else "right")) - (not up)
    near = min(near, len(HALVES) - 1 - (not up))
    return np.copysign(HALVES[near], np.float16(1 if x >= 0 else -1))


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name):
    *modes, to, of = name.split(".")
    target, mode = np.dtype(DTYPES[to]), next((m for m in modes if m != "sat"), "rn")
    whole = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}.get(mode)

    def convert(x):
        if target.kind in "iu" and of[0] != "f" and "sat" not in modes:
            return x
        if target.kind in "iu":
            low, high = np.iinfo(target).min, np.iinfo(target).max
            x = 0 if x != x else x
            return min(max(int(whole(f64(x))) if whole and np.isfinite(x) else (
                x if of[0] != "f" else high if x > 0 else low), low), high)  # fmt: skip
        if whole:
            return whole(x)
        if mode in ("rz", "rm", "rp"):
            return directed(x, mode)
        if "sat" in modes:
            return saturate(x)
        if isinstance(x, int):
            return np.longdouble(x).astype(f32 if to[-2:] == "16" else target).astype(target)
        return x.astype(target)

    check(f"cvt.{name}", (of,), to, convert)
