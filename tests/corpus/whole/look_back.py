"""A prefix sum in one pass over the data: a block finds what stands before its tile by looking back at others.

A tile's word says how far it is: nothing yet, the sum of the tile alone, or the sum of all up to its end.
"""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    red_add_gpu_global_u32,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.sync import lane, shfl_sync_idx_b32
from numba_deform.engines import faults

TILES, WARP = 7, 32
COUNT = TILES * WARP - 5
FULL = 0xFFFFFFFF
NOTHING, OWN, ALL = 0, 1, 2  # what the word of a tile says


def arguments():
    """Data; the counter of tiles; for each tile its word, its own sum, the sum up to its end; the result."""
    data = np.random.default_rng(3).integers(0, 1000, COUNT).astype(np.uint32)
    words, own, all = (np.zeros(TILES, np.uint32) for _ in range(3))
    return [data, np.zeros(1, np.uint32), words, own, all, np.zeros(COUNT, np.uint32)]


def expect(data, counter, words, own, all, out):
    return [(out, data.cumsum(dtype=np.uint32))]


@cuda.jit(device=True, inline="always")
def take_tile(counter):
    """The number of this block's tile, in the order in which blocks really start; in all lanes."""
    tile = uint32(0)
    if lane() == 0:
        tile = atom_add_gpu_global_u32(counter, uint32(1))
    return int32(shfl_sync_idx_b32(FULL, tile, 0))


@cuda.jit(device=True, inline="always")
def warp_scan(value):
    """The sum of the lanes up to this one."""
    distance = int32(1)
    while distance < WARP:
        other = shfl_sync_idx_b32(FULL, value, uint32(max(int32(0), lane() - distance)))
        if lane() >= distance:
            value = uint32(value + other)
        distance = int32(2 * distance)
    return value


@right(
    source="Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back", grid=TILES,
    args=arguments, expect=expect,
)  # fmt: skip
def look_back_scan(data: u64, counter: u64, words: u64, own: u64, all: u64, out: u64):
    """Tiles are taken by a counter, so that those before have started, whatever order the blocks come in. Lane
    0 publishes with release and looks back with acquire; a value is read only when its word has said so."""
    tile = take_tile(counter)
    i = int32(tile * WARP + lane())
    value = uint32(0)
    if i < COUNT:
        value = ld_global_b32(global_at(data, i, 4))
    value = warp_scan(value)
    total = shfl_sync_idx_b32(FULL, value, 31)
    before = uint32(0)
    if lane() == 0:
        if tile > 0:
            st_global_b32(global_at(own, tile, 4), total)
            st_release_gpu_global_b32(global_at(words, tile, 4), uint32(OWN))
        other, word = int32(tile - 1), uint32(OWN)
        while other >= 0 and word != ALL:
            word = ld_acquire_gpu_global_b32(global_at(words, other, 4))
            if word == OWN:
                before = uint32(before + ld_global_b32(global_at(own, other, 4)))
                other = int32(other - 1)
            elif word == ALL:
                before = uint32(before + ld_global_b32(global_at(all, other, 4)))
        st_global_b32(global_at(all, tile, 4), uint32(before + total))
        st_release_gpu_global_b32(global_at(words, tile, 4), uint32(ALL))
    before = shfl_sync_idx_b32(FULL, before, 0)
    if i < COUNT:
        st_global_b32(global_at(out, i, 4), uint32(before + value))


@wrong(
    faults.DataRace, source="scans whose flag and value are two words, without a release between", grid=TILES,
    args=arguments, expect=expect,
)  # fmt: skip
def look_back_that_hands_on_nothing(data: u64, counter: u64, words: u64, own: u64, all: u64, out: u64):
    """The twin that publishes the last sum by a relaxed add to the word: who acquires that word may read a sum
    that is not there yet."""
    tile = take_tile(counter)
    i = int32(tile * WARP + lane())
    value = uint32(0)
    if i < COUNT:
        value = ld_global_b32(global_at(data, i, 4))
    value = warp_scan(value)
    total = shfl_sync_idx_b32(FULL, value, 31)
    before = uint32(0)
    if lane() == 0:
        st_global_b32(global_at(own, tile, 4), total)
        st_release_gpu_global_b32(global_at(words, tile, 4), uint32(OWN))
        other, word = int32(tile - 1), uint32(OWN)
        while other >= 0 and word != ALL:
            word = ld_acquire_gpu_global_b32(global_at(words, other, 4))
            if word == OWN:
                before = uint32(before + ld_global_b32(global_at(own, other, 4)))
                other = int32(other - 1)
            elif word == ALL:
                before = uint32(before + ld_global_b32(global_at(all, other, 4)))  # <- fault
        st_global_b32(global_at(all, tile, 4), uint32(before + total))
        red_add_gpu_global_u32(global_at(words, tile, 4), uint32(ALL - OWN))
    before = shfl_sync_idx_b32(FULL, before, 0)
    if i < COUNT:
        st_global_b32(global_at(out, i, 4), uint32(before + value))
