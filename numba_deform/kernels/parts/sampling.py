"""Where a sample lies, and what its four neighbours weigh (Deformable DETR, equations 2 and 3).

A location (x, y) is normalised; the pixel coordinate is ``x * W - 0.5`` in fp32, whatever the type it
is stored in: in fp16 it would pick the wrong tile for one sample in 25. A neighbour outside the level
weighs nothing, and a sample that has no neighbour inside, or is not a number, contributes nothing.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint64

from ...compiler import static_range
from ...device.half2 import cvt_f32_bf16_hi, cvt_f32_bf16_lo, cvt_f32_f16_hi, cvt_f32_f16_lo, mov_f32_b32
from ...device.integer import quotient
from ...device.memory import (
    global_at,
    ld_global_nc_b32,
    ld_global_nc_L1_no_allocate_v4,
    ld_global_nc_u16,
    ld_global_nc_v2,
    ld_global_nc_v4,
)
from ..problem import ITEMSIZE

HALVES = {
    "float16": (cvt_f32_f16_lo, cvt_f32_f16_hi),
    "bfloat16": (cvt_f32_bf16_lo, cvt_f32_bf16_hi),
    "float32": (mov_f32_b32, None),  # one number fills a word
}


class NumberLoader(NamedTuple):
    """Reading neighbouring numbers in two halves, so that other work can go on in between: a conversion
    waits for the load."""

    words: int  # 32-bit registers of what was loaded
    load: object  # (address, words): few loads; the address is aligned to all of them
    convert: object  # (words, numbers): to fp32


@functools.cache
def number_loader(dtype, count):
    """The :class:`NumberLoader` for ``count`` (1, 2, 4, ..) numbers of ``dtype``."""
    low, high = HALVES[dtype]
    BYTES = count * ITEMSIZE[dtype]
    WORDS = -(-BYTES // 4)

    @cuda.jit(device=True, forceinline=True)
    def load(address, words):
        if BYTES == 2:
            words[0] = ld_global_nc_u16(address)
        elif WORDS == 1:
            words[0] = ld_global_nc_b32(address)
        elif WORDS == 2:
            pair = ld_global_nc_v2(address)
            words[0], words[1] = pair[0], pair[1]
        else:
            for i in range(0, WORDS, 4):
                four = ld_global_nc_L1_no_allocate_v4(address + uint64(4 * i))
                words[i], words[i + 1] = four[0], four[1]
                words[i + 2], words[i + 3] = four[2], four[3]

    @cuda.jit(device=True, forceinline=True)
    def convert_words(words, numbers):
        for i in range(count):
            numbers[i] = low(words[i])

    @cuda.jit(device=True, forceinline=True)
    def convert_halves(words, numbers):
        for i in range(WORDS):
            numbers[2 * i] = low(words[i])
            numbers[2 * i + 1] = high(words[i])

    return NumberLoader(WORDS, load, convert_words if count == WORDS else convert_halves)


@cuda.jit(device=True, forceinline=True)
def load_level(levels, level):
    """(height, width, start, row stride) of a level, in pixels; see ``kernels.problem.Level``."""
    words = ld_global_nc_v4(global_at(levels, level, 16))
    return int32(words[0]), int32(words[1]), int32(words[2]), int32(words[3])


@cuda.jit(device=True, forceinline=True)
def locate(location, size):
    """Along one axis: (index of the lower neighbour, weight of the upper one, whether any is inside).

    The index is clamped to -2 .. ``size``, so that a NaN or a far-off location is an integer too.
    """
    pixel = float32(float32(location) * float32(size) - float32(0.5))
    inside = pixel > float32(-1) and pixel < float32(size)
    clamped = cuda.libdevice.fminf(cuda.libdevice.fmaxf(pixel, float32(-2)), float32(size))
    lower = cuda.libdevice.floorf(clamped)
    return int32(lower), float32(clamped - lower), inside


@cuda.jit(device=True, forceinline=True)
def locate_discrete(location, size):
    """As :func:`locate` for ``method="discrete"``: a pixel of the level, and a weight of 0 for the next one."""
    pixel = float32(float32(location) * float32(size) + float32(0.5))
    clamped = cuda.libdevice.fminf(cuda.libdevice.fmaxf(pixel, float32(0)), float32(size - 1))
    return int32(cuda.libdevice.floorf(clamped)), float32(0), True


LOCATE = {"default": locate, "discrete": locate_discrete}


def level_finder(constants):
    """A device function: the level of a row's sample ``k``."""
    LEVELS, POINTS = constants.levels, constants.points
    STARTS = tuple(np.cumsum((0, *constants.point_counts)).tolist())

    @cuda.jit(device=True, forceinline=True)
    def by_division(k):
        return quotient(k, POINTS)

    @cuda.jit(device=True, forceinline=True)
    def by_starts(k):
        level = int32(0)
        for i in static_range(1, LEVELS):
            if k >= STARTS[i]:
                level = int32(i)
        return level

    return by_starts if isinstance(constants.points, tuple) else by_division


@cuda.jit(device=True, forceinline=True)
def corner_weights(attention, fx, fy, side):
    """Weights of the upper and the lower pixel in column ``side`` (0 left, 1 right) of a tile."""
    across = fx if side == 1 else float32(float32(1) - fx)
    column = float32(attention * across)
    lower = float32(column * fy)
    return float32(column - lower), lower


@cuda.jit(device=True, forceinline=True)
def clamp(x, low, high):
    return int32(min(max(int32(x), int32(low)), int32(high)))
