"""Numbers as a GPU stores them: types by name, integers that wrap, words of a buffer. Used all over the
engine."""

import functools
import struct

import numpy as np
from numba.np.numpy_support import as_dtype

TAKES_OPERANDS = True  # see reports.error_origin: what goes wrong here is mostly about what a kernel hands over

WORD = 0xFFFFFFFF
_FORMATS = {(4, 1): "<I", (8, 2): "<II", (16, 4): "<IIII", (2, 1): "<H"}
_UNPACK = {shape: struct.Struct(text).unpack_from for shape, text in _FORMATS.items()}
_PACK = [struct.Struct(f"<{n}I").pack_into for n in range(5)]


class Unsupported(AttributeError):
    """The kernel uses something that the CPU engine does not model."""


def dtype_of(dtype):
    """The NumPy type for what a kernel names: one of NumPy's, Numba's or the engine's (``fake_cuda.cast``)."""
    try:
        return np.dtype(getattr(dtype, "numpy", dtype))
    except TypeError:
        return as_dtype(dtype)


def start_of(array):
    """The address of a NumPy array's first element."""
    return array.__array_interface__["data"][0]


def bounds_of(array):
    """(address of a NumPy array's first byte, that behind its last one), whatever its strides."""
    first = last = start_of(array)
    if not array.size:
        return first, first
    for n, stride in zip(array.shape, array.strides, strict=True):
        first, last = first + min(0, (n - 1) * stride), last + max(0, (n - 1) * stride)
    return first, last + array.itemsize


def fits(index):
    """Whether the numbers of an index are 64 bits wide; else they are meant modulo 2^64."""
    return all(-(1 << 63) <= i < 1 << 63 for i in index)


def as_int64(i):
    return (i + (1 << 63) & (1 << 64) - 1) - (1 << 63)


@functools.cache
def limits(dtype):
    """(lowest, highest) number of an integer type; (None, None) of another."""
    if dtype.kind not in "iu":
        return None, None
    bits = 8 * dtype.itemsize
    low = -(1 << bits - 1) if dtype.kind == "i" else 0
    return low, low + (1 << bits) - 1


def wrap(value, dtype):
    """A number as an integer ``dtype`` stores it; a float as the GPU converts it: toward zero, clamped,
    NaN to 0."""
    if dtype.kind == "b":
        return bool(value)
    bits = 8 * dtype.itemsize
    if type(value) is not int:
        if type(value) is Undefined:
            return value
        if isinstance(value, (float, np.floating)):
            low, high = limits(dtype)
            value = float(value)
            value = 0 if value != value else min(max(value, low), high)
        value = int(value)
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


class Undefined(int):
    """An integer that is undefined, as is what is computed with it."""


def _passes_on(name):
    plain = getattr(int, name)

    def method(self, *others):
        return Undefined(plain(self, *others)) if all(isinstance(x, int) for x in others) else NotImplemented

    setattr(Undefined, name, method)


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift"):
    _passes_on(f"__{_name}__")
    _passes_on(f"__r{_name}__")
for _name in ("neg", "invert", "abs", "pos"):
    _passes_on(f"__{_name}__")


def undefined(like):
    """What stands for an undefined value of the type of ``like``: all bits set, NaN as a float, which
    arithmetic passes on. To compute with it is no fault: the result may go unused."""
    if isinstance(like, np.floating):
        return np.frombuffer(b"\xff" * like.itemsize, like.dtype)[0]
    if isinstance(like, float):
        return struct.unpack("<d", b"\xff" * 8)[0]
    return Undefined(-1)


def is_undefined(value):
    """Whether ``value`` comes from :func:`undefined`."""
    if isinstance(value, (float, np.floating)):
        return value != value and set(np.asarray(value).tobytes()) == {0xFF}
    return type(value) is Undefined


def unpack(buffer, offset, size, words):
    """The word at ``offset``, or the tuple of words: ``size`` bytes in all."""
    values = _UNPACK[size, words](buffer, offset)
    return values[0] if words == 1 else values


def put(buffer, offset, words):
    """Write up to four 32-bit words to ``offset``."""
    try:
        _PACK[len(words)](buffer, offset, *words)
    except struct.error:  # what is no such word, modulo 2^32
        _PACK[len(words)](buffer, offset, *[int(w) & WORD for w in words])


def put_half(buffer, offset, word):
    """Write the lower 16 bits of a word to ``offset``."""
    buffer[offset : offset + 2] = (int(word) & 0xFFFF).to_bytes(2, "little")
