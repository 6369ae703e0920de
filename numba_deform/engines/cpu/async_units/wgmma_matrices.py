"""The matrices of a warpgroup's product: where shared memory and registers hold their elements, and what comes
of them (PTX ISA 9.7.15.5.1). ``wgmma`` issues the products."""

import itertools
import operator
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..memory.scalars import WORD
from .warp_mma import numbers_bf16, numbers_f16, numbers_tf32, places_of

ROWS = 64
ROW_BYTES = 32  # of a row along k, of one product
SHIFTS = (0, 16, 32)  # of a descriptor's start, leading and stride, each of 14 bits in units of 16 bytes
SWIZZLES = ("no swizzle", "swizzle 128B", "swizzle 64B", "swizzle 32B")
SPANS = (0, 128, 64, 32)  # bytes of a row, by the descriptor's swizzle mode

# What a thread's registers hold: rows and columns, by the number of the thread in its warpgroup.
_THREAD = np.arange(128)
_G, _T = _THREAD % 32 // 4, _THREAD % 4
_ROW = 16 * (_THREAD // 32) + _G


class Form(NamedTuple):
    """What one type of product multiplies: bytes of an element of A and B, how words become the numbers of
    each, and the PTX type of the sums."""

    size: int
    a: object
    b: object
    sums: str

    @property
    def depth(self):
        return ROW_BYTES // self.size


BYTES = {"s8": np.int8, "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
# Type of a factor -> (bytes, how words become its numbers).
NUMBERS = {"f16": (2, numbers_f16), "bf16": (2, numbers_bf16), "tf32": (4, numbers_tf32)}
NUMBERS["e2m1"] = 1, lambda x: _halves(np.ascontiguousarray(x).view(np.uint8)).view(ml_dtypes.float4_e2m1fn)
NUMBERS |= {name: (1, operator.methodcaller("view", kind)) for name, kind in BYTES.items()}


def _halves(x):
    """The two numbers of 4 bits in each byte, the lower first."""
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1)


def form_of(sums, a, b):
    return Form(*NUMBERS[a], NUMBERS[b][1], sums)


FORMS = {  # (type of the sums, of A, of B) -> Form
    key: form_of(*key) for sums, factors in (
        (("f32", "f16"), ("f16",)), (("f32",), ("bf16",)), (("f32",), ("tf32",)), (("s32",), ("s8", "u8")),
        (("f32", "f16"), ("e4m3", "e5m2")),
    ) for key in itertools.product(sums, factors, factors)
}  # fmt: skip


def sum_places(columns):
    """(rows, columns) of the sums, arrays (thread, number of the sum)."""
    register = np.arange(columns // 2)
    rows = _ROW[:, None] + 8 * (register // 2 % 2)
    return rows, 8 * (register // 4) + 2 * _T[:, None] + register % 2


def _a_places(size):
    """(rows, columns) of A in registers, arrays (thread, register, element of the word)."""
    (rows, columns), *_ = places_of(8 * size, 16, ROW_BYTES // size)
    return np.concatenate([rows + 16 * warp for warp in range(4)]), np.concatenate([columns] * 4)


A_PLACES = {size: _a_places(size) for size in (1, 2, 4)}


def from_registers(form, words):
    """A of the words that all threads hold: rows of (four words)."""
    places = A_PLACES[form.size]
    words = np.array([[int(w) & WORD for w in lane] for lane in words], np.uint32)
    matrix = np.zeros((ROWS, form.depth), form.a(np.zeros(1, np.uint32)).dtype)
    matrix[places] = form.a(words).reshape(places[0].shape)
    return matrix


def addresses(descriptor, count, transposed, size=2):
    """Where in shared memory the elements of a matrix lie, ``count`` rows along k: an array (count, elements).
    ``size``: bytes of an element; ``transposed``: MN-major, of 2 bytes. The formulas stand in
    ``device/wgmma.py``."""
    (start, leading, stride), span = _fields(descriptor), SPANS[int(descriptor) >> 62]
    row, k = np.ogrid[:count, : ROW_BYTES // size]
    if transposed:
        chunk, rest = row // 8, 2 * (row % 8)
        if span:
            wide = span // 16
            place = chunk % wide * 16 + chunk // wide * leading + k % 8 * span + k // 8 * stride
        else:
            place = chunk * stride + k % 8 * 16 + k // 8 * leading
        place = place + rest
    elif span:
        place = row // 8 * stride + row % 8 * span + size * k
    else:
        place = row // 8 * stride + row % 8 * 16 + size * k // 16 * leading + size * k % 16
    place = start + place
    if span:
        line = (place >> 7) - (int(descriptor) >> 49 & 7)
        place = place ^ (line & span // 16 - 1) << 4
    return place


def _fields(descriptor):
    """Its start, leading and stride in bytes."""
    return [(int(descriptor) >> shift & 0x3FFF) << 4 for shift in SHIFTS]


def described(descriptor):
    """A descriptor in words."""
    start, leading, stride = _fields(descriptor)
    return (f"start {start:#x}, leading {leading} bytes, stride {stride} bytes, "
            f"{SWIZZLES[int(descriptor) >> 62]}")  # fmt: skip


def mend(descriptor, holds):
    """What would mend a descriptor, in words, or "": as little as makes ``holds`` true of it."""
    (start, leading, stride), rest = _fields(descriptor), int(descriptor) >> 46 << 46
    for first, others, exchanged in itertools.product((0, 4), (0, 4), (False, True)):
        fields = start >> first, *(value >> others for value in (leading, stride)[:: -1 if exchanged else 1])
        if not holds(rest | sum(value >> 4 << shift for shift, value in zip(SHIFTS, fields, strict=True))):
            continue
        which = " and ".join(["start"] * (first > 0) + ["leading and stride"] * (others > 0))
        what = f"{which} look like bytes, and the unit is 16: shift right by 4" if which else ""
        what += " and " * bool(which and exchanged) + "exchange leading and stride" * exchanged
        return f"{what[:1].upper()}{what[1:]}: then all of the matrix lies in what has been written."
    return ""


def from_memory(form, numbers, content, places):
    """The matrix whose elements lie at ``places`` of the bytes ``content``."""
    taken = content[places[..., None] + np.arange(form.size)]
    return numbers(np.ascontiguousarray(taken).view(f"u{form.size}")[..., 0])


def product(form, left, right, columns, sums, limit=False):
    """What the threads' registers hold after it: an array (thread, register) of float32, or of words. ``sums``:
    what they held, as words or float32, or None. Floats are added up in float64, and rounded once; integers
    wrap, or with ``limit`` stay at the largest and smallest."""
    wide = np.int64 if form.sums == "s32" else np.float64
    with np.errstate(all="ignore"):
        total = (left.astype(wide) @ right.astype(wide).T)[sum_places(columns)]
        if sums is not None:
            total = total + _unpacked(form, sums)
        if form.sums == "s32":
            total = np.clip(total, -(1 << 31), (1 << 31) - 1) if limit else total
            return (total & WORD).astype(np.uint32)
        if form.sums == "f16":
            return np.ascontiguousarray(total.astype(np.float16)).view(np.uint32)
        return total.astype(np.float32)


def _unpacked(form, sums):
    """The numbers in the registers of all threads."""
    if form.sums == "f32":
        return np.array(sums, np.float64)
    words = np.array([[int(w) & WORD for w in lane] for lane in sums], np.uint32)
    return words.view(np.int32) if form.sums == "s32" else words.view(np.float16)
