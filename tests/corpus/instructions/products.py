"""Products by a warp's tensor cores, mma.sync: bytes and fp8, from fragments that each lane gathers itself."""

import ml_dtypes
import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.half2 import mov_b32_f32, mov_f32_b32
from numba_deform.device.matrix import mma_m16n8k32_e5m2_e4m3, mma_m16n8k32_u8_s8
from numba_deform.device.memory import global_at, ld_global_b32, st_global_b32
from numba_deform.engines import faults

SOURCE = "PTX ISA 9.7.14.5.14: mma, with the fragments of 9.7.14.5.10"
WORDS = 8  # of a row of A, or of a column of B


def matrices(first, second, seed=9):
    """Arguments: A by rows, B by columns, of those types, C, and room for D."""
    random = np.random.default_rng(seed)
    a, b = (random.integers(-8, 9, shape) for shape in ((16, 32), (8, 32)))
    if first is np.uint8:
        a = np.abs(a)
    c = random.integers(-99, 100, (16, 8)).astype(np.int32 if first is np.uint8 else np.float32)
    a, b = a.astype(first).view(np.uint32), b.astype(second).view(np.uint32)
    return lambda: [a, b, c, np.zeros_like(c)]


def product(first, second):
    def want(a, b, c, d):
        a, b = a.view(first).astype(np.float64), b.view(second).astype(np.float64)
        return [(d, a @ b.T + c)]

    return want


BYTES = np.uint8, np.int8
FP8 = ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn


@cuda.jit(device=True)
def word(matrix, row, column):
    """The word of a row whose first element stands in that column."""
    return ld_global_b32(global_at(matrix, row * WORDS + column // 4, 4))


@cuda.jit(device=True)
def place(matrix, i, k):
    """Where element k of a lane's part of C and D lies."""
    return global_at(matrix, (i // 4 + 8 * (k >> 1)) * 8 + 2 * (i % 4) + (k & 1), 4)


@cuda.jit(device=True)
def number(matrix, i, k):
    return mov_f32_b32(ld_global_b32(place(matrix, i, k)))


@right(source=SOURCE, args=matrices(*BYTES), expect=product(*BYTES))
def a_product_of_bytes(a: u64, b: u64, c: u64, d: u64):
    """Unsigned bytes by signed ones; the sums are integers."""
    i = int32(cuda.threadIdx.x)
    g, k = i // 4, 4 * (i % 4)
    part = mma_m16n8k32_u8_s8(
        word(a, g, k), word(a, g + 8, k), word(a, g, k + 16), word(a, g + 8, k + 16), word(b, g, k),
        word(b, g, k + 16), int32(ld_global_b32(place(c, i, 0))), int32(ld_global_b32(place(c, i, 1))),
        int32(ld_global_b32(place(c, i, 2))), int32(ld_global_b32(place(c, i, 3))),
    )  # fmt: skip
    for n in range(4):
        st_global_b32(place(d, i, n), uint32(part[n]))


@right(source=SOURCE, args=matrices(*FP8), expect=product(*FP8))
def a_product_of_fp8(a: u64, b: u64, c: u64, d: u64):
    """Two types of fp8; whole numbers, so that the sums are exact in whatever order."""
    i = int32(cuda.threadIdx.x)
    g, k = i // 4, 4 * (i % 4)
    part = mma_m16n8k32_e5m2_e4m3(
        word(a, g, k), word(a, g + 8, k), word(a, g, k + 16), word(a, g + 8, k + 16), word(b, g, k),
        word(b, g, k + 16), number(c, i, 0), number(c, i, 1), number(c, i, 2), number(c, i, 3),
    )  # fmt: skip
    for n in range(4):
        st_global_b32(place(d, i, n), mov_b32_f32(part[n]))


@wrong(faults.WarpDivergence, source=SOURCE, args=matrices(*FP8), hardware="no")
def a_product_by_half_a_warp(a: u64, b: u64, c: u64, d: u64):
    """Lanes from 16 on have nothing to store, and leave: mma takes the whole warp."""
    i = int32(cuda.threadIdx.x)
    g, k, zero = i // 4, 4 * (i % 4), float32(0)
    if i < 16:
        x, y = word(a, g, k), word(b, g, k)
        part = mma_m16n8k32_e5m2_e4m3(x, x, x, x, y, y, zero, zero, zero, zero)  # <- fault
        st_global_b32(place(d, i, 0), mov_b32_f32(part[0]))
