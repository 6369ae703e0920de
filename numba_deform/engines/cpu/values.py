"""Numbers as a GPU stores them: types by name, integers that wrap, words of a buffer."""

import struct

import numpy as np
from numba.np.numpy_support import as_dtype

WORD = 0xFFFFFFFF
_FORMATS = {(4, 1): "<I", (8, 2): "<II", (16, 4): "<IIII", (2, 1): "<H"}


def dtype_of(dtype):
    """The NumPy type for what a kernel names: one of NumPy's, Numba's or the engine's (``fake_cuda.cast``)."""
    try:
        return np.dtype(getattr(dtype, "numpy", dtype))
    except TypeError:
        return as_dtype(dtype)


def start_of(array):
    """The address of a NumPy array's first element."""
    return array.__array_interface__["data"][0]


def wrap(value, dtype):
    """A number as an integer ``dtype`` stores it; a float as the GPU converts it: toward zero, clamped,
    NaN to 0."""
    if dtype.kind == "b":
        return bool(value)
    bits = 8 * dtype.itemsize
    if type(value) is not int:
        if isinstance(value, (float, np.floating)):
            low = -(1 << (bits - 1)) if dtype.kind == "i" else 0
            value = 0 if value != value else min(max(value, low), low + (1 << bits) - 1)
        value = int(value)
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def unpack(buffer, offset, size, words):
    """The word at ``offset``, or the tuple of words: ``size`` bytes in all."""
    values = struct.unpack_from(_FORMATS[size, words], buffer, offset)
    return values[0] if words == 1 else values


def pack(words):
    """32-bit words as bytes."""
    return b"".join((int(w) & WORD).to_bytes(4, "little") for w in words)
