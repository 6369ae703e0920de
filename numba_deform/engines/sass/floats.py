"""What opcodes of floating point are: of one float, of two halves in a word, of a double, and conversions."""

import ml_dtypes
import numpy as np

from .integers import JOINS, ORDERS, word_of
from .operands import F16, F32, F64, I64, U32, U64
from .table import plain, row

BF16 = ml_dtypes.bfloat16
UNORDERED = tuple(name + "U" for name in ORDERS)
TESTS = {**dict.fromkeys(("NUM", "NAN")), **ORDERS, **dict.fromkeys(UNORDERED)}
ROUNDINGS, SCALES, TIE = ("RM", "RP", "RZ", "RN"), ("D2", "D4", "D8", "M2", "M4", "M8"), U64(1 << 28)
HALFWAY = U64((1 << 29) - 1)


def to_single(exact, mode="RN"):
    """float64 rounded to float32."""
    value = exact.astype(F32)
    if mode == "RN":
        return value
    up, down = F32(np.inf), F32(-np.inf)
    toward = {"RM": down, "RP": up, "RZ": F32(0)}[mode]
    past = {"RM": value > exact, "RP": value < exact, "RZ": np.abs(value) > np.abs(exact)}[mode]
    return np.where(past, np.nextafter(value, toward), value)


def fused(a, b, c, mode):
    """a b + c, rounded once: products are exact in float64; where the sum lies on the middle between two
    float32 after rounding, its error says to which side it goes."""
    product, c = a.astype(F64) * b, c.astype(F64)
    total = product + c
    tied = (total.view(U64) & HALFWAY) == TIE
    if tied.any():
        part = total - product
        error = (product - (total - part)) + (c - part)
        beside = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        total = np.where(tied & (error != 0), beside, total)
    return to_single(total, mode)


def rounded(function):
    """Of a function of float64 and the rounding: SAT clips it to 0 .. 1."""

    def make(one):
        mode = word_of(one, ROUNDINGS, "RN")
        if "SAT" not in one.words:
            return lambda *values: function(*values, mode)
        return lambda *values: np.clip(np.nan_to_num(function(*values, mode), nan=0.0), F32(0), F32(1))

    return make


def add(a, b, mode):
    return a + b if mode == "RN" else to_single(a.astype(F64) + b, mode)


def multiply(a, b, mode):
    return a * b if mode == "RN" else to_single(a.astype(F64) * b, mode)


def scaled(one):
    """FMUL.D2, M4: a part of the product, or so often it."""
    word = word_of(one, SCALES, "M1")
    scale = F32(int(word[1])) if word[0] == "M" else F32(1 / int(word[1]))
    return rounded(lambda a, b, mode: multiply(a * scale, b, mode))(one)


def least(a, b, p):
    return np.where(p, np.fmin(a, b), np.fmax(a, b))


def holds(one):
    """The comparison that an instruction names, of two arrays; U: also where one is no number."""
    name = word_of(one, TESTS)
    if name in ("NUM", "NAN"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "NAN")
    order = ORDERS[name.removesuffix("U") if name in UNORDERED else name]
    if name == "NE":
        return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
    return order if name not in UNORDERED else lambda a, b: order(a, b) | np.isnan(a) | np.isnan(b)


def compare(one):
    test, join = holds(one), JOINS[word_of(one, JOINS)]

    def run(a, b, side):
        found = test(a, b)
        return join(found, side), join(~found, side)

    return run


def compare_to_number(one):
    test, join = holds(one), JOINS[word_of(one, JOINS)]
    one_ = F32(1).view(U32) if "BF" in one.words else U32(0xFFFFFFFF)
    return lambda a, b, p: np.where(join(test(a, b), p), one_, U32(0))


def special(one):
    """MUFU: approximations; here as exact as NumPy's."""
    name = word_of(one, FUNCTIONS)
    return lambda a: FUNCTIONS[name](a).astype(F32)


FUNCTIONS = {
    "RCP": lambda x: F32(1) / x, "RSQ": lambda x: 1 / np.sqrt(x.astype(F64)), "SQRT": np.sqrt, "EX2": np.exp2,
    "LG2": np.log2, "SIN": lambda x: np.sin(x * (2 * np.pi)), "COS": lambda x: np.cos(x * (2 * np.pi)),
    "TANH": np.tanh,
}  # fmt: skip
ROUND = {"FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc}


def special_of_double(one):
    """MUFU.RCP64H: of the upper word of a double, which is approximate anyway."""
    function = FUNCTIONS["RSQ" if "RSQ64H" in one.words else "RCP"]
    return lambda a: (function((a.astype(U64) << U64(32)).view(F64)).astype(F64).view(U64) >> U64(32)).astype(
        U32
    )


# --- two halves in a word ----------------------------------------------------------------------------
def numbers(one):
    return BF16 if one.words & {"BF16_V2", "BF16"} else F16


def parts(word, dtype):
    """(.., lanes, 2) of the halves, as float64."""
    return np.ascontiguousarray(word).view(dtype).reshape(*word.shape, 2).astype(F64)


def packed(values, dtype):
    values = values.astype(F32) if dtype is BF16 else values
    return np.ascontiguousarray(values.astype(dtype)).view(U32)[..., 0]


def on_halves(function):
    """Of a function of float64 arrays of halves."""

    def make(one):
        dtype, clip, relu = numbers(one), "SAT" in one.words, "RELU" in one.words

        def run(*words):
            value = function(*(parts(word, dtype) for word in words))
            value = np.clip(np.nan_to_num(value), 0, 1) if clip else value
            return packed(np.maximum(value, 0) if relu else value, dtype)

        return run

    return make


def least_halves(one):
    dtype = numbers(one)
    return lambda a, b, p: packed(least(parts(a, dtype), parts(b, dtype), p[..., None]), dtype)


def float_of_half(one):
    """HADD2.F32 of -RZ and a half: the half as a float."""
    dtype = numbers(one)
    return lambda _, b: parts(b, dtype)[..., 0].astype(F32)


def compare_halves(one):
    test, join, dtype = holds(one), JOINS[word_of(one, JOINS)], numbers(one)

    def run(a, b, side):
        found = test(parts(a, dtype), parts(b, dtype))
        return join(found[..., 0], side), join(found[..., 1], side)

    return run


def pack_pair(one):
    """F2FP: two floats to two halves, the first the upper one."""
    dtype = numbers(one)

    def run(a, b):
        pair = np.stack(np.broadcast_arrays(b, a), -1)
        return packed(np.maximum(pair, 0) if "RELU" in one.words else pair, dtype)

    return run


def pack_bytes(one):
    """F2FP.SATFINITE to E4M3 or E5M2: two floats into the lower half, c the upper one."""
    dtype = ml_dtypes.float8_e4m3fn if "E4M3" in one.words else ml_dtypes.float8_e5m2
    most = float(ml_dtypes.finfo(dtype).max)

    def run(a, b, c):
        first, second = (np.clip(x, -most, most).astype(dtype).view(np.uint8).astype(U32) for x in (a, b))
        return first << U32(8) | second | (c & U32(0xFFFF)) << U32(16)

    return run


def unpack_bytes(one):
    """F2FP.UNPACK_B: the two bytes of a half of a word as two halves."""
    dtype = ml_dtypes.float8_e4m3fn if "E4M3" in one.words else ml_dtypes.float8_e5m2

    def run(a):
        pair = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 4)[..., :2].copy().view(dtype)
        return packed(pair.astype(F32), F16)

    return run


# --- conversions -------------------------------------------------------------------------------------
def to_integer(bits):
    def make(one):
        signed = not one.words & {"U32", "U64", "U16", "U8"}
        step = ROUND.get(word_of(one, ROUND, ""), np.rint)
        small = next((n for n in (8, 16) if one.words & {f"U{n}", f"S{n}"}), bits)
        least, most = (-(1 << small - 1), (1 << small - 1) - 1) if signed else (0, (1 << small) - 1)

        def run(a):
            value = np.nan_to_num(step(a.astype(F64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
            top, bottom = value >= float(most), value <= float(least)
            inside = np.where(top | bottom, 0, value)
            whole = inside.astype(I64).view(U64) if signed else inside.astype(U64)
            mask = (1 << bits) - 1
            value = np.where(top, U64(most & mask), np.where(bottom, U64(least & mask), whole))
            return value if bits == 64 else (value & U64(mask)).astype(U32)

        return run

    return make


def to_float(dtype, bits):
    def make(one):
        letter = "u" if one.words & {"U32", "U64", "U16", "U8"} else "i"
        size = next((n for n in (8, 16) if one.words & {f"U{n}", f"S{n}"}), bits)
        kind, mode = np.dtype(f"{letter}{size // 8}"), word_of(one, ROUNDINGS, "RN")

        def run(a):
            whole = a.astype(kind) if size < bits else a.view(kind)
            if bits == 64 and dtype is F32 and mode == "RN":
                return whole.astype(F32)
            return to_single(whole.astype(F64), mode) if dtype is F32 else whole.astype(dtype)

        return run

    return make


def round_to_whole(one):
    return ROUND.get(word_of(one, ROUND, ""), np.rint)


def fused_double(a, b, c):
    """a b + c of doubles: the product as a sum of two, by Dekker's splitting."""
    product = a * b
    (ah, al), (bh, bl) = (_split(x) for x in (a, b))
    rest = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    return total + np.where(np.isfinite(rest + error), rest + error, 0.0)


def _split(x):
    wide = x * F64((1 << 27) + 1)
    high = wide - (wide - x)
    return high, x - high


ROUNDED, HALF_WORDS = "FTZ RN RM RP RZ SAT", "FTZ F32 MMA BF16_V2 RELU SAT BF16"
row("FADD", "r", "ff", rounded(add), ROUNDED)
row("FMUL", "r", "ff", scaled, " ".join((ROUNDED, *SCALES)))
row("FFMA", "r", "fff", rounded(fused), ROUNDED)
row("FMNMX", "r", "ffp", plain(least), "FTZ")
row("FSETP", "pp", "ffp", compare, " ".join((*TESTS, *JOINS, "FTZ")))
row("FSEL", "r", "ffp", plain(lambda a, b, p: np.where(p, a, b)), "FTZ")
row("FSET", "r", "ffp", compare_to_number, " ".join((*TESTS, *JOINS, "FTZ", "BF")))
row("FCHK", "p", "ff", plain(
    lambda a, b: ~np.isfinite(a / b) | (np.abs(b) < 2.0**-126) | (np.abs(a) < 2.0**-100)), "DIVIDE")
row("MUFU", "r", "f", special, " ".join((*FUNCTIONS, "FTZ")))
row("MUFU.RCP64H|MUFU.RSQ64H", "r", "u", special_of_double)
row("FRND", "r", "f", round_to_whole, "FLOOR CEIL TRUNC FTZ")
row("FRND.F64", "w", "d", round_to_whole, "FLOOR CEIL TRUNC")
row("HADD2|HADD2.BF16_V2", "r", "hh", on_halves(lambda a, b: a + b), "FTZ SAT RELU")
row("HADD2.F32", "r", "hh", float_of_half, "BF16_V2 FTZ")
row("HMUL2", "r", "hh", on_halves(lambda a, b: a * b), HALF_WORDS)
row("HFMA2", "r", "hhh", on_halves(lambda a, b, c: a * b + c), HALF_WORDS)
row("HMNMX2", "r", "hhp", least_halves, "BF16_V2 FTZ")
row("HSETP2", "pp", "hhp", compare_halves, " ".join((*TESTS, *JOINS, "BF16_V2")))
row("F2FP", "r", "ff", pack_pair, "F16 F32 PACK_AB BF16 RELU")
row("F2FP.SATFINITE", "r", "ffu", pack_bytes, "E4M3 E5M2 F32 PACK_AB_MERGE_C")
row("F2FP.UNPACK_B", "r", "b", unpack_bytes, "F16 E4M3 E5M2")
row("F2F.F16.F32|F2F.BF16.F32", "r", "f",
    lambda one: lambda a: a.astype(BF16 if "BF16" in one.words else F16).view(np.uint16).astype(U32))
row("F2F.F64.F32", "w", "f", plain(lambda a: a.astype(F64)))
row("F2F.F32.F64", "r", "d", rounded(to_single), ROUNDED)
row("F2I", "r", "f", to_integer(32), "FTZ U32 S32 U16 S16 U8 S8 TRUNC FLOOR CEIL NTZ")
row("F2I.U64|F2I.S64", "w", "f", to_integer(64), "TRUNC FLOOR CEIL FTZ")
row("F2I.F64", "r", "d", to_integer(32), "U32 S32 TRUNC FLOOR CEIL")
row("F2I.U64.F64|F2I.S64.F64", "w", "d", to_integer(64), "TRUNC FLOOR CEIL")
row("I2F|I2FP", "r", "b", to_float(F32, 32), "F32 U32 S32 U16 S16 U8 S8 RP RM RZ RN")
row("I2F.U64|I2F.S64", "r", "q", to_float(F32, 64), "RP RM RZ RN")
row("I2F.F64", "w", "b", to_float(F64, 32), "U32 S32 U16 S16 U8 S8")
row("I2F.F64.U64|I2F.F64.S64", "w", "q", to_float(F64, 64))
row("DADD", "w", "dd", plain(lambda a, b: a + b))
row("DMUL", "w", "dd", plain(lambda a, b: a * b))
row("DFMA", "w", "ddd", plain(fused_double), "RN RM RP RZ")
row("DMNMX", "w", "ddp", plain(least))
row("DSETP", "pp", "ddp", compare, " ".join((*TESTS, *JOINS)))
