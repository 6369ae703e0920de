"""What atomics and the copy engine's reductions compute, bit for bit. Threads call ``combine`` for atomics,
``copy_engine`` for its own."""

import ml_dtypes
import numpy as np

FLOATS = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}  # fmt: skip
INTEGERS = {
    "u32": np.dtype(np.uint32), "s32": np.dtype(np.int32), "b32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64), "s64": np.dtype(np.int64), "b64": np.dtype(np.uint64),
}  # fmt: skip
NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
# What tensor maps call them, and which reductions there are for them.
KINDS = {
    "uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float64": "f64",
}  # fmt: skip
WIDE, SHORT = ("u32", "s32", "u64", "s64"), ("f16", "bf16")
TAKEN = {
    "add": (*WIDE, *SHORT, "f32", "f64"), "min": WIDE + SHORT, "max": WIDE + SHORT,
    **dict.fromkeys(BITWISE, WIDE),
}  # fmt: skip


def kind_of(op, dtype):
    """The PTX type of a tensor map's elements for this reduction; None where there is none for them."""
    kind = KINDS.get(dtype)
    return kind if kind in TAKEN.get(op, ()) else None


def types_of(op):
    """The element types of a tensor map that a reduction takes."""
    return [dtype for dtype, kind in KINDS.items() if kind in TAKEN[op]]


def combine(op, kind, old, new, flush=False):
    """The bytes of ``old`` combined with those of ``new`` element by element.

    ``op`` is add, min, max, inc, dec, and, or, xor; ``kind`` a PTX type. Sums round to nearest even; with
    ``flush``, as red and atom have it and the copy engine has not, subnormals of f32 are zeros. Integers wrap;
    of a number and a NaN the number is min and max. A NaN has all its bits but the sign's, in f64 those of the
    operand. Source: PTX ISA 9.7.13.6 and 9.7.9.25.4.2; what they leave open was asked of an H200."""
    if kind in FLOATS:
        dtype = FLOATS[kind]
        old, new = np.frombuffer(old, dtype), np.frombuffer(new, dtype)
        with np.errstate(all="ignore"):
            result = _add(old, new, flush) if op == "add" else _extreme(op, old, new)
        if kind in NANS:
            result.view(f"u{dtype.itemsize}")[np.isnan(result)] = NANS[kind]
        return result.tobytes()
    dtype = INTEGERS[kind]
    old, new = np.frombuffer(old, dtype), np.frombuffer(new, dtype)
    if op in BITWISE:
        result = BITWISE[op](old, new)
    elif op == "inc":
        result = np.where(old >= new, dtype.type(0), old + dtype.type(1))
    elif op == "dec":
        result = np.where((old == 0) | (old > new), new, old - dtype.type(1))
    else:
        result = {"add": np.add, "min": np.minimum, "max": np.maximum}[op](old, new)
    return result.astype(dtype, copy=False).tobytes()


def _add(old, new, flush):
    if old.dtype == np.float64:
        return old + new
    if old.dtype != np.float32:
        # A sum in float32 has more than twice the bits, so that to round it again is to round once.
        return (old.astype(np.float32) + new.astype(np.float32)).astype(old.dtype)
    return _flushed(_flushed(old) + _flushed(new)) if flush else old + new


def _flushed(values):
    """Subnormals as zeros of their sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def _extreme(op, old, new):
    """min or max; -0 is less than +0."""
    wide, other = old.astype(np.float32), new.astype(np.float32)
    wide, other = np.where(np.isnan(wide), other, wide), np.where(np.isnan(other), wide, other)
    result = (np.fmin if op == "min" else np.fmax)(wide, other)
    signs = np.signbit(wide), np.signbit(other)
    negative = signs[0] | signs[1] if op == "min" else signs[0] & signs[1]
    zero = np.where(negative, np.float32(-0.0), np.float32(0))
    return np.where(result == 0, zero, result).astype(old.dtype)
