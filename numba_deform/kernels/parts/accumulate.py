"""Weighted sums of 16-byte chunks, for each value type and arithmetic.

``packed`` multiplies two channels at a time. fp16 adds them up so as well, and moves the sum to fp32 once a
level: half the instructions, an error of 6e-4 instead of 3e-4. bf16 is too short for sums: tensor cores add
its products in fp32, by a matrix product with a one for each word's place, in which each lane gets back the
sums of its own words. Weights and products are rounded to bf16, as the output is, for an error of 3.1e-3
instead of 1.7e-3; and what is not finite spreads over four lanes. ``fp32`` converts every value first.
Each kind is an :class:`Arithmetic` of device functions with one shape, so that a kernel is written once.
"""

from typing import NamedTuple

from numba import cuda, float32, uint32, uint64

from ...compiler import static_range
from ...device.half2 import (
    cvt_rn_bf16x2_f32,
    cvt_rn_f16x2_f32,
    dup_hi_b16x2,
    dup_lo_b16x2,
    fma_rn_bf16x2,
    fma_rn_f16x2,
    mov_b32_f32,
    mov_f32_b32,
    mul_rn_bf16x2,
)
from ...device.matrix import mma_m16n8k16_bf16
from ...device.memory import st_global_L1_no_allocate_v4
from ...device.sync import lane, shfl_sync_idx_b32
from .sampling import HALVES


class Arithmetic(NamedTuple):
    """Device functions for one (dtype, arithmetic)."""

    words: int  # fp32 sums of a 16-byte chunk
    weight_words: int  # what ``pack`` really fills
    start: object  # (partial): what is in it before the first sum
    pack: object  # (upper, lower) -> a, b: two fp32 weights as the words that travel between lanes
    unpack: object  # (a, b) -> up, down: the two weights, ready for ``add``
    fetch: object  # (a, b, owner) -> up, down: the same from lane ``owner``
    # (sums, partial, k, chunk, weight, other, other_weight): chunk k += both 16 bytes times their weights
    add: object
    flush: object  # (sums, partial, chunks): move what is in ``partial`` to the fp32 ``sums``
    store: object  # (address, sums, k): chunk k of the output, rounded to the value type
    # ``add`` of both lines of a tile at once, (.., one, up, other, later, below, down, beside, rest); None if
    # that saves nothing
    add_lines: object = None


_low, _high = HALVES["float16"]
ALL = 0xFFFFFFFF  # the mask of a whole warp


@cuda.jit(device=True, forceinline=True)
def _start_zeros(partial):
    for i in range(len(partial)):
        partial[i] = uint32(0)


@cuda.jit(device=True, forceinline=True)
def _pack_f16(upper, lower):
    return cvt_rn_f16x2_f32(upper, lower), uint32(0)


@cuda.jit(device=True, forceinline=True)
def _pack_bf16(upper, lower):
    return cvt_rn_bf16x2_f32(upper, lower), uint32(0)


@cuda.jit(device=True, forceinline=True)
def _unpack_packed(a, b):
    return dup_lo_b16x2(a), dup_hi_b16x2(a)


@cuda.jit(device=True, forceinline=True)
def _fetch_packed(a, b, owner):
    return _unpack_packed(shfl_sync_idx_b32(uint32(ALL), a, owner), b)


@cuda.jit(device=True, forceinline=True)
def _pack_f32(upper, lower):
    return mov_b32_f32(upper), mov_b32_f32(lower)


@cuda.jit(device=True, forceinline=True)
def _unpack_f32(a, b):
    return mov_f32_b32(a), mov_f32_b32(b)


@cuda.jit(device=True, forceinline=True)
def _fetch_f32(a, b, owner):
    up = shfl_sync_idx_b32(uint32(ALL), a, owner)
    return _unpack_f32(up, shfl_sync_idx_b32(uint32(ALL), b, owner))


@cuda.jit(device=True, forceinline=True)
def _add_packed(sums, partial, k, chunk, weight, other, other_weight):
    for i in static_range(4):
        partial[4 * k + i] = fma_rn_f16x2(weight, chunk[i], partial[4 * k + i])
        partial[4 * k + i] = fma_rn_f16x2(other_weight, other[i], partial[4 * k + i])


@cuda.jit(device=True, forceinline=True)
def _start_units(partial):
    """The B of a product: two unit matrices, one above the other."""
    row, column = uint32(lane()) >> uint32(2), uint32(lane()) & uint32(3)
    one = uint32(0x3F800000) if row & uint32(1) else uint32(0x3F80)
    partial[0] = one if row >> uint32(1) == column else uint32(0)
    # Through a shuffle: of one register the assembler would make the two that it needs anew for each product.
    partial[1] = shfl_sync_idx_b32(uint32(ALL), partial[0], uint32(lane()))


@cuda.jit(device=True, forceinline=True)
def _add_packed_bf16(sums, partial, k, chunk, weight, other, other_weight):
    """All lanes of a warp come: A is their words, B what ``partial`` starts with."""
    for i in static_range(0, 4, 2):
        n = 8 * k + 2 * i
        sums[n], sums[n + 1], sums[n + 2], sums[n + 3] = mma_m16n8k16_bf16(
            mul_rn_bf16x2(weight, chunk[i]), mul_rn_bf16x2(weight, chunk[i + 1]),
            mul_rn_bf16x2(other_weight, other[i]), mul_rn_bf16x2(other_weight, other[i + 1]),
            partial[0], partial[1], sums[n], sums[n + 1], sums[n + 2], sums[n + 3])  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def _add_lines_bf16(sums, partial, k, one, up, other, later, below, down, beside, rest):
    """Two pixels of a line are added up before, in bf16: half the matrix products, which hold up others."""
    for i in static_range(0, 4, 2):
        n = 8 * k + 2 * i
        sums[n], sums[n + 1], sums[n + 2], sums[n + 3] = mma_m16n8k16_bf16(
            fma_rn_bf16x2(later, other[i], mul_rn_bf16x2(up, one[i])),
            fma_rn_bf16x2(later, other[i + 1], mul_rn_bf16x2(up, one[i + 1])),
            fma_rn_bf16x2(rest, beside[i], mul_rn_bf16x2(down, below[i])),
            fma_rn_bf16x2(rest, beside[i + 1], mul_rn_bf16x2(down, below[i + 1])),
            partial[0], partial[1], sums[n], sums[n + 1], sums[n + 2], sums[n + 3])  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def _flush_packed(sums, partial, chunks):
    for i in range(4 * chunks):
        sums[2 * i] += _low(partial[i])
        sums[2 * i + 1] += _high(partial[i])
        partial[i] = uint32(0)


@cuda.jit(device=True, forceinline=True)
def _no_flush(sums, partial, chunks):
    pass


def _halves(low, high, join):
    """(add, store) of 16-bit numbers, two in a word: ``low`` and ``high`` take them out, ``join`` puts in."""

    @cuda.jit(device=True, forceinline=True)
    def add(sums, partial, k, chunk, weight, other, other_weight):
        for i in static_range(4):
            sums[8 * k + 2 * i] += weight * low(chunk[i])
            sums[8 * k + 2 * i + 1] += weight * high(chunk[i])
            sums[8 * k + 2 * i] += other_weight * low(other[i])
            sums[8 * k + 2 * i + 1] += other_weight * high(other[i])

    @cuda.jit(device=True, forceinline=True)
    def store(address, sums, k):
        st_global_L1_no_allocate_v4(
            uint64(address),
            join(sums[8 * k], sums[8 * k + 1]), join(sums[8 * k + 2], sums[8 * k + 3]),
            join(sums[8 * k + 4], sums[8 * k + 5]), join(sums[8 * k + 6], sums[8 * k + 7]),
        )  # fmt: skip

    return add, store


@cuda.jit(device=True, forceinline=True)
def _add_f32(sums, partial, k, chunk, weight, other, other_weight):
    for i in static_range(4):
        sums[4 * k + i] += weight * mov_f32_b32(chunk[i])
        sums[4 * k + i] += other_weight * mov_f32_b32(other[i])


@cuda.jit(device=True, forceinline=True)
def _store_f32(address, sums, k):
    st_global_L1_no_allocate_v4(
        uint64(address),
        mov_b32_f32(float32(sums[4 * k])), mov_b32_f32(float32(sums[4 * k + 1])),
        mov_b32_f32(float32(sums[4 * k + 2])), mov_b32_f32(float32(sums[4 * k + 3])),
    )  # fmt: skip


_F16, _BF16, _PACKED = (_start_zeros, _pack_f16), (_start_units, _pack_bf16), (_unpack_packed, _fetch_packed)
_FP32 = (2, _start_zeros, _pack_f32, _unpack_f32, _fetch_f32)
_add_f16, _store_f16 = _halves(_low, _high, cvt_rn_f16x2_f32)
_add_bf16, _store_bf16 = _halves(*HALVES["bfloat16"], cvt_rn_bf16x2_f32)
ARITHMETIC = {
    ("float16", "packed"): Arithmetic(8, 1, *_F16, *_PACKED, _add_packed, _flush_packed, _store_f16),
    ("bfloat16", "packed"): Arithmetic(8, 1, *_BF16, *_PACKED, _add_packed_bf16, _no_flush, _store_bf16,
                                       _add_lines_bf16),
    ("float16", "fp32"): Arithmetic(8, *_FP32, _add_f16, _no_flush, _store_f16),
    ("bfloat16", "fp32"): Arithmetic(8, *_FP32, _add_bf16, _no_flush, _store_bf16),
    ("float32", "fp32"): Arithmetic(4, *_FP32, _add_f32, _no_flush, _store_f32),
}
