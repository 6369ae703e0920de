"""Weighted sums of 16-byte chunks, for each value type and arithmetic.

``packed`` (fp16 only) multiplies and adds two channels at a time in fp16 and moves the sum to fp32
once a level: half the instructions, an error of 6e-4 instead of 3e-4. ``fp32`` converts
every value first. Each kind is an :class:`Arithmetic` of device functions with one shape, so that a
kernel is written once.
"""

from typing import NamedTuple

from numba import cuda, float32, uint32, uint64

from ...compiler import static_range
from ...device.half2 import (
    cvt_rn_bf16x2_f32,
    cvt_rn_f16x2_f32,
    dup_hi_b16x2,
    dup_lo_b16x2,
    fma_rn_f16x2,
    mov_b32_f32,
    mov_f32_b32,
)
from ...device.memory import st_global_L1_no_allocate_v4
from ...device.sync import shfl_sync_idx_b32
from .sampling import HALVES


class Arithmetic(NamedTuple):
    """Device functions for one (dtype, arithmetic)."""

    words: int  # fp32 sums of a 16-byte chunk
    weight_words: int  # what ``pack`` really fills
    pack: object  # (upper, lower) -> a, b: two fp32 weights as the words that travel between lanes
    unpack: object  # (a, b) -> up, down: the two weights, ready for ``add``
    fetch: object  # (a, b, owner) -> up, down: the same from lane ``owner``
    add: object  # (sums, partial, k, chunk, weight): chunk k += weight * 16 bytes
    flush: object  # (sums, partial, chunks): move what is in ``partial`` to the fp32 ``sums``
    store: object  # (address, sums, k): chunk k of the output, rounded to the value type


_low, _high = HALVES["float16"]
ALL = 0xFFFFFFFF  # the mask of a whole warp


@cuda.jit(device=True, forceinline=True)
def _pack_packed(upper, lower):
    return cvt_rn_f16x2_f32(upper, lower), uint32(0)


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
def _add_packed(sums, partial, k, chunk, weight):
    for i in static_range(4):
        partial[4 * k + i] = fma_rn_f16x2(weight, chunk[i], partial[4 * k + i])


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
    def add(sums, partial, k, chunk, weight):
        for i in static_range(4):
            sums[8 * k + 2 * i] += weight * low(chunk[i])
            sums[8 * k + 2 * i + 1] += weight * high(chunk[i])

    @cuda.jit(device=True, forceinline=True)
    def store(address, sums, k):
        st_global_L1_no_allocate_v4(
            uint64(address),
            join(sums[8 * k], sums[8 * k + 1]), join(sums[8 * k + 2], sums[8 * k + 3]),
            join(sums[8 * k + 4], sums[8 * k + 5]), join(sums[8 * k + 6], sums[8 * k + 7]),
        )  # fmt: skip

    return add, store


@cuda.jit(device=True, forceinline=True)
def _add_f32(sums, partial, k, chunk, weight):
    for i in static_range(4):
        sums[4 * k + i] += weight * mov_f32_b32(chunk[i])


@cuda.jit(device=True, forceinline=True)
def _store_f32(address, sums, k):
    st_global_L1_no_allocate_v4(
        uint64(address),
        mov_b32_f32(float32(sums[4 * k])), mov_b32_f32(float32(sums[4 * k + 1])),
        mov_b32_f32(float32(sums[4 * k + 2])), mov_b32_f32(float32(sums[4 * k + 3])),
    )  # fmt: skip


_PACKED = (1, _pack_packed, _unpack_packed, _fetch_packed)
_FP32 = (2, _pack_f32, _unpack_f32, _fetch_f32)
_add_f16, _store_f16 = _halves(_low, _high, cvt_rn_f16x2_f32)
_add_bf16, _store_bf16 = _halves(*HALVES["bfloat16"], cvt_rn_bf16x2_f32)
ARITHMETIC = {
    ("float16", "packed"): Arithmetic(8, *_PACKED, _add_packed, _flush_packed, _store_f16),
    ("float16", "fp32"): Arithmetic(8, *_FP32, _add_f16, _no_flush, _store_f16),
    ("bfloat16", "fp32"): Arithmetic(8, *_FP32, _add_bf16, _no_flush, _store_bf16),
    ("float32", "fp32"): Arithmetic(4, *_FP32, _add_f32, _no_flush, _store_f32),
}
