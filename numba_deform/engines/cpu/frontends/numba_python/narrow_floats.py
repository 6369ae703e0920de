"""``numba.cuda.fp16``, bf16 and fp8 on the CPU engine: the types, and functions of them as CUDA's headers have
them. Results are rounded once. ``cuda_module`` and ``name_binding`` put them into kernels."""

import functools
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from ...memory.scalars import Unsupported, wrap
from .. import rounding

Number, NAME = ml_dtypes.bfloat16, "__nv_bfloat16"  # NAME: of Numba's type
INTEGERS = {"char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "ll": "q",
            "ull": "Q"}  # fmt: skip
MODES = {"n": "rn", "z": "rz", "d": "rm", "u": "rp"}
TO_WHOLE = {"n": np.rint, "z": np.trunc, "d": np.floor, "u": np.ceil}


def rounded(x, mode="n"):
    """A number as bfloat16: the nearest (``n``, to even), or toward zero, down or up (``z``, ``d``, ``u``)."""
    x = int(x) if isinstance(x, (int, np.integer)) else float(x)
    return Number(rounding.rounded(x, "bf16", MODES[mode]))


def convert(x):
    """``bfloat16(x)``."""
    return x if type(x) is Number else rounded(x)


convert.numpy = np.dtype(Number)


def functions_of(number, form):
    """{name: function} of numbers of a type: those of the module for the format ``form``."""

    def near(x):
        return number(rounding.rounded(x, form))

    def fused(*xs):
        return number(rounding.operate("fma", form, "rn", *xs))

    def saturated(x):
        return number(0) if x != x else min(max(x, number(0)), number(1))

    def of_floats(function):
        return lambda *args: near(function(*[np.float64(float(x)) for x in args]))

    def compared(ufunc, unordered):
        return lambda x, y: unordered if x != x or y != y else bool(ufunc(x, y))

    found = {
        "habs": abs, "hneg": lambda x: -x, "hfma": fused, "hfma_sat": lambda *args: saturated(fused(*args)),
        "hfma_relu": lambda *args: y if (y := fused(*args)) > 0 or y != y else number(0),
        "hisnan": lambda x: bool(x != x), "hisinf": lambda x: int(np.sign(float(x))) if abs(x) == np.inf else 0,
    } | {f"h{name}": of_floats(function) for name, function in OF_FLOATS.items()}  # fmt: skip
    for name in ("add", "sub", "mul", "div"):
        plain = found[f"h{name}_rn"] = found[f"h{name}"]
        found[f"h{name}_sat"] = lambda x, y, plain=plain: saturated(plain(x, y))
    for name, ufunc in COMPARED.items():
        found |= {f"h{name}": compared(ufunc, False), f"h{name}u": compared(ufunc, True)}
    return found


OF_FLOATS = {
    "max": np.fmax, "min": np.fmin, "max_nan": np.maximum, "min_nan": np.minimum, "tanh_approx": np.tanh,
    "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "exp10": lambda x: np.power(10.0, x),
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
} | {name: getattr(np, name) for name in (
    "trunc", "ceil", "floor", "rint", "sqrt", "log", "log2", "log10", "cos", "sin", "exp", "exp2", "tanh",
)}  # fmt: skip
COMPARED = {"eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
            "lt": np.less}  # fmt: skip
FUNCTIONS, _of_halves = functions_of(Number, "bf16"), functions_of(np.float16, "f16")
HALVES = {name: lambda *args, f=f: f(*map(np.float16, args)) for name, f in _of_halves.items()}


def _conversion(name):
    """One of the functions that convert or reinterpret, by its name; None of another."""
    if found := re.fullmatch(r"(float|double|u?char|u?short|u?int|u?ll)2bfloat16(?:_r([nzdu]))?", name):
        return functools.partial(rounded, mode=found[2] or "n")
    if name == "bfloat162float":
        return lambda x: np.float32(x)
    if found := re.fullmatch(r"bfloat162(u?char|u?short|u?int|u?ll)_r([nzdu])", name):
        dtype, whole = np.dtype(INTEGERS[found[1]]), TO_WHOLE[found[2]]
        return lambda x: wrap(float(whole(float(x))), dtype)
    if found := re.fullmatch(r"bfloat16_as_(u?short)", name):
        return lambda x: int(convert(x).view(INTEGERS[found[1]]))
    if found := re.fullmatch(r"(u?short)_as_bfloat16", name):
        return lambda x: np.uint16(x & 0xFFFF).view(Number)
    return None


# --- fp8: cuda_fp8.h ------------------------------------------------------------------------------
E4M3, E5M2 = 0, 1  # of fp8_interpretation_t
FP8 = {E4M3: ("e4m3", ml_dtypes.float8_e4m3fn), E5M2: ("e5m2", ml_dtypes.float8_e5m2)}
NAN, UP = 0x7F, 2  # UP: cudaRoundPosInf


def to_fp8(x, saturates, kind):
    """The byte of a number as fp8, to the nearest. What is too large is the largest if it ``saturates``, else
    infinity, or NaN in E4M3, which has none."""
    name, dtype = FP8[int(kind)]
    near = rounding.rounded(x, name)
    if saturates and np.isinf(near):
        near = np.copysign(rounding.FORMATS[name].largest, near)
    return NAN if near != near else int(dtype(near).view(np.uint8))


def to_e8m0(x, saturates, rounding):
    """The byte of a power of two: that below the magnitude of ``x``, or above it for cudaRoundPosInf."""
    x = abs(float(x))
    if x != x:
        return 0xFF
    if not np.isfinite(x):
        return 0xFE if saturates else 0xFF
    part, exponent = np.frexp(x)
    code = int(exponent) + 126 + (int(rounding) == UP and part != 0.5) if x else 0
    return max(code, 0) if code < 0xFF else 0xFE if saturates else 0xFF


def _raw(code):
    """The bfloat16 of a power of two, as the struct that a header has for its bits."""
    return SimpleNamespace(x=NAN << 8 | 0xFF if code == 0xFF else code << 7 if code else 0x40)


def _of_raw(raw):
    return np.uint16(raw.x).view(Number)


CONVERSIONS = {
    "fp8_e4m3": lambda x: np.uint8(to_fp8(x, True, E4M3)).view(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": lambda x: np.uint8(to_fp8(x, True, E5M2)).view(ml_dtypes.float8_e5m2),
    "fp8_e8m0": lambda x: np.uint8(to_e8m0(x, True, UP)).view(ml_dtypes.float8_e8m0fnu),
    "cvt_float_to_fp8": to_fp8, "cvt_double_to_fp8": to_fp8, "cvt_float_to_e8m0": to_e8m0,
    "cvt_double_to_e8m0": to_e8m0, "cvt_e8m0_to_bf16raw": _raw,
    "cvt_bfloat16raw_to_fp8": lambda raw, *how: to_fp8(_of_raw(raw), *how),
    "cvt_bfloat16raw_to_e8m0": lambda raw, *how: to_e8m0(_of_raw(raw), *how),
}  # fmt: skip


class Functions:
    """A module ``fp16``, ``bf16`` or ``fp8``, as a kernel sees it."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        known = {"fp16": HALVES, "bf16": FUNCTIONS, "fp8": CONVERSIONS}[self._module]
        function = known.get(name) or self._module == "bf16" and _conversion(name)
        if not function:
            raise Unsupported(f"cuda.{self._module}.{name} is not modelled by the CPU engine")
        self.__dict__[name] = function
        return function
