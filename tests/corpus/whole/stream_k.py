"""Stream-K: the steps of all output tiles are shared out evenly, so a block may begin or end inside a tile.

Who has the first step of a tile owns it: it adds what the others of the tile leave in a workspace, and waits
for their flags. The blocks are there together, so those waits end.
"""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.engines import faults

BLOCKS, THREADS = 4, 64
TILES, STEPS = 3, 7  # of a row of output tiles; of the sum that makes one tile
TOTAL = TILES * STEPS
SHARE = -(-TOTAL // BLOCKS)


def arguments():
    """a (tiles, steps, threads), b (steps, threads); a workspace and a flag for each block; the tiles."""
    random = np.random.default_rng(2)
    a = random.integers(0, 1 << 16, (TILES, STEPS, THREADS)).astype(np.uint32)
    b = random.integers(0, 1 << 16, (STEPS, THREADS)).astype(np.uint32)
    workspace, flags = np.zeros((BLOCKS, THREADS), np.uint32), np.zeros(BLOCKS, np.uint32)
    return [a, b, workspace, flags, np.zeros((TILES, THREADS), np.uint32)]


def expect(a, b, workspace, flags, out):
    return [(out, (a * b).sum(1, dtype=np.uint32))]


@cuda.jit(device=True, inline="always")
def partial_tile(a, b, tile, first, stop):
    """This thread's element of the tile, summed over steps ``first`` to ``stop``."""
    i, total = int32(cuda.threadIdx.x), uint32(0)
    for k in range(first, stop):
        left = ld_global_b32(global_at(a, (tile * STEPS + k) * THREADS + i, 4))
        total = uint32(total + uint32(left * ld_global_b32(global_at(b, k * THREADS + i, 4))))
    return total


@right(
    source="Osama and others, Stream-K, PPoPP 2023; CUTLASS's stream-K tile scheduler", grid=BLOCKS,
    block=THREADS, args=arguments, expect=expect,
)  # fmt: skip
def stream_k(a: u64, b: u64, workspace: u64, flags: u64, out: u64):
    """All threads write the workspace, a barrier of the block collects that, and one thread's release hands it
    on; the owner's thread acquires, and a barrier passes that on to its block."""
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    step, end = int32(block * SHARE), int32(min((block + 1) * SHARE, TOTAL))
    while step < end:
        tile = int32(step // STEPS)
        first = int32(step - tile * STEPS)
        stop = int32(min(STEPS, end - tile * STEPS))
        total = partial_tile(a, b, tile, first, stop)
        if first > 0:
            st_global_b32(global_at(workspace, block * THREADS + i, 4), total)
            cuda.syncthreads()
            if i == 0:
                st_release_gpu_global_b32(global_at(flags, block, 4), uint32(1))
        else:
            other = int32(block + 1)
            while other * SHARE < (tile + 1) * STEPS:  # the others that have steps of this tile
                if i == 0:
                    while ld_acquire_gpu_global_b32(global_at(flags, other, 4)) == 0:
                        pass
                cuda.syncthreads()
                total = uint32(total + ld_global_b32(global_at(workspace, other * THREADS + i, 4)))
                other = int32(other + 1)
            st_global_b32(global_at(out, tile * THREADS + i, 4), total)
        step = int32(tile * STEPS + stop)


@wrong(
    faults.DataRace, source="the flag of split-K reductions: set by one thread for all", grid=BLOCKS,
    block=THREADS, args=arguments, expect=expect,
)  # fmt: skip
def stream_k_flag_for_one_thread(a: u64, b: u64, workspace: u64, flags: u64, out: u64):
    """The twin whose flag says only that thread 0 is done with its element: no barrier of the block stands
    before it, and the owner's other threads read what others may not have written."""
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    step, end = int32(block * SHARE), int32(min((block + 1) * SHARE, TOTAL))
    while step < end:
        tile = int32(step // STEPS)
        first = int32(step - tile * STEPS)
        stop = int32(min(STEPS, end - tile * STEPS))
        total = partial_tile(a, b, tile, first, stop)
        if first > 0:
            st_global_b32(global_at(workspace, block * THREADS + i, 4), total)
            if i == 0:
                st_release_gpu_global_b32(global_at(flags, block, 4), uint32(1))
        else:
            other = int32(block + 1)
            while other * SHARE < (tile + 1) * STEPS:
                if i == 0:
                    while ld_acquire_gpu_global_b32(global_at(flags, other, 4)) == 0:
                        pass
                cuda.syncthreads()
                more = ld_global_b32(global_at(workspace, other * THREADS + i, 4))  # <- fault
                total = uint32(total + more)
                other = int32(other + 1)
            st_global_b32(global_at(out, tile * THREADS + i, 4), total)
        step = int32(tile * STEPS + stop)
