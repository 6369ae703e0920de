"""Numbers as a GPU stores them: types by name, integers that wrap, words of a buffer. Used all over the
engine."""

import functools
import struct
from typing import NamedTuple

import numpy as np
from numba.np.numpy_support import as_dtype

WORD = 0xFFFFFFFF
_FORMATS = {(4, 1): "<I", (8, 2): "<II", (16, 4): "<IIII", (32, 8): "<8I", (2, 1): "<H", (1, 1): "<B"}
_UNPACK = {shape: struct.Struct(text).unpack_from for shape, text in _FORMATS.items()}
_PACK = [struct.Struct(f"<{n}I").pack_into for n in range(9)]


class Unsupported(AttributeError):
    """The kernel uses something that the CPU engine does not model."""


def dtype_of(dtype):
    """Return the NumPy type for a type of NumPy's, of Numba's or of the engine's (``cuda_module.cast``)."""
    try:
        return np.dtype(getattr(dtype, "numpy", dtype))
    except TypeError:
        return as_dtype(dtype)


def start_of(array):
    """The address of a NumPy array's first element."""
    return array.__array_interface__["data"][0]


def bounds_of(array):
    """(address of a NumPy array's first byte, that behind its last one), whatever its strides."""
    return np.lib.array_utils.byte_bounds(array) if array.size else (start_of(array),) * 2


class Layout(NamedTuple):
    """Where the elements of an array lie, the first at the address ``start``."""

    start: int
    shape: tuple
    strides: tuple

    @classmethod
    def of(cls, array):
        """That of a NumPy array."""
        return cls(start_of(array), array.shape, array.strides)

    def place(self, offset):
        """The index, as ``3, 4``, of the element that begins so many bytes on; "" where none does, and in a row
        of bytes, which may be something else in the source."""
        if self.strides == (1,):
            return ""
        index = [0] * len(self.shape)
        for axis in sorted(range(len(index)), key=lambda axis: -self.strides[axis]):
            if self.shape[axis] > 1 and self.strides[axis] > 0:
                index[axis], offset = divmod(offset, self.strides[axis])
        inside = offset == 0 and all(i < n for i, n in zip(index, self.shape, strict=True))
        return ", ".join(map(str, index)) if inside else ""


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
    """A number as an integer ``dtype`` stores it; of a float, as a GPU does: toward zero, clamped, NaN to 0."""
    if type(value) is Undefined:
        return value
    if dtype.kind == "b":
        return bool(value)
    bits = 8 * dtype.itemsize
    if type(value) is not int:
        if isinstance(value, (float, np.floating)) or type(value).__module__ == "ml_dtypes":
            low, high = limits(dtype)
            value = float(value)
            value = 0 if value != value else min(max(value, low), high)
        value = int(value)
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


class UndefinedUse(Exception):
    """Something depends on an undefined value, the argument."""


class Undefined:
    """An undefined value of any type, and all that is computed with it: that is no fault, as the result may go
    unused. Whoever wants to know a number of it, or decides by it, meets :class:`UndefinedUse`. ``origin`` says
    where it is from, ``kind`` of what (``explain.accesses.UNDEFINED``)."""

    def __init__(self, origin, kind="shuffle"):
        self.origin, self.kind = origin, kind

    def __array_ufunc__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        raise UndefinedUse(self)

    # Every number has room in its type, which typed code asks where it wraps.
    def __ge__(self, other):
        return other in LOWEST or self

    def __le__(self, other):
        return other in HIGHEST or self

    __hash__ = object.__hash__


def _passes_on(self, *_):
    return self


def _needed(self, *_):
    raise UndefinedUse(self)


LOWEST, HIGHEST = {-(1 << 31), -(1 << 63)}, {(1 << 31) - 1, (1 << 63) - 1}
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Undefined, f"__{_name}__", _passes_on)
    setattr(Undefined, f"__r{_name}__", _passes_on)
for _name in ("neg", "invert", "abs", "pos", "round", "lt", "gt", "eq", "ne"):
    setattr(Undefined, f"__{_name}__", _passes_on)
for _name in ("bool", "int", "index", "float", "complex"):
    setattr(Undefined, f"__{_name}__", _needed)


def passing_on(function):
    """``function`` of numbers, which is undefined where it needs one that is."""

    def apply(*args, **named):
        try:
            return function(*args, **named)
        except UndefinedUse as use:
            return use.args[0]

    return apply


class MayHoldUndefined:
    """Memory with a record for each byte in ``written``, ``nothing`` where it holds nothing. ``undefined``:
    {address of a byte: the Undefined that was stored there}; None in memory that must not hold any."""

    base, nothing, undefined = 0, 0, None

    def store_undefined(self, address, size, value):
        """As if nobody had written these bytes; but who reads them may leave what they hold unused."""
        self.undefined |= dict.fromkeys(range(address, address + size), value)
        a = address - self.base
        self.written[a : a + size] = [self.nothing] * size

    def undefined_at(self, address, size):
        """The undefined value that is part of these bytes; None where one of them was never written at all."""
        holes = [a for a in range(address, address + size) if self.written[a - self.base] == self.nothing]
        values = [(self.undefined or {}).get(a) for a in holes]
        return values[0] if values and all(value is not None for value in values) else None


def unpack(buffer, offset, size, words):
    """The word at ``offset``, or the tuple of words: ``size`` bytes in all."""
    values = _UNPACK[size, words](buffer, offset)
    return values[0] if words == 1 else values


def put(buffer, offset, words):
    """Write up to eight 32-bit words to ``offset``."""
    try:
        _PACK[len(words)](buffer, offset, *words)
    except struct.error:  # what is no such word, modulo 2^32
        _PACK[len(words)](buffer, offset, *[int(w) & WORD for w in words])


def put_narrow(buffer, offset, size, word):
    """Write the lower ``size`` bytes of a word to ``offset``."""
    buffer[offset : offset + size] = (int(word) & (1 << 8 * size) - 1).to_bytes(size, "little")
