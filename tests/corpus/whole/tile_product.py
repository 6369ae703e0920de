"""A tile product on tensor cores, fed by TMA: the roles of ``course/tile_product.py`` on a tiny problem."""

import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint8, uint32

from numba_deform.compiler import i32, static_range, u64
from numba_deform.course.tile_product import ROW, STEP, TileProduct, map_of, parts, place_in_a, place_in_b
from numba_deform.device.half2 import cvt_rn_f16x2_f32
from numba_deform.device.matrix import ldmatrix_x4, mma_m16n8k16_f16, stmatrix_x4
from numba_deform.device.memory import shared_address, shared_at
from numba_deform.device.pipeline import commit, first_state, full_barrier, make_advance, release, wait
from numba_deform.device.sync import fence_proxy_async, lane, warp
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults

# Two consumer warps side by side, which read the same rows of A; a tile of C takes all of a block's columns.
CONFIG = TileProduct(rows=16, columns=128, warp_rows=16, warp_columns=64, stages=2, consumer_registers=0)
ROWS, COLUMNS, DEPTH = 16, 128, 3 * STEP
SHARED, THREADS = CONFIG.shared_bytes, CONFIG.threads
A_BYTES, STAGE, SUMS = CONFIG.rows * ROW, (CONFIG.rows + CONFIG.columns) * ROW, 32
GRID, _, BEHIND = CONFIG.launch(ROWS, COLUMNS, DEPTH)
set_up, produce, multiply, store = parts(CONFIG)
advance = make_advance(CONFIG.stages)


def arguments():
    """Small integers, whose products and sums fp16 has."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, (n, DEPTH)).astype(np.float16) for n in (ROWS, COLUMNS))
    return [CONFIG.maps(a, b, np.full((ROWS, COLUMNS), np.nan, np.float16)), *BEHIND]


def product(maps, *_):
    a, b, c = (tensor.array for tensor in maps)
    return [(c, a.astype(np.float32) @ b.astype(np.float32).T)]


@right(
    source="NVIDIA CUTLASS, pipelines of TMA with mma.sync and ldmatrix; PTX ISA, ldmatrix, stmatrix, mma",
    grid=GRID, block=THREADS, args=arguments, expect=product, explorable=False,
)  # fmt: skip
def tile_product(maps: u64, tiles_across: i32, steps: i32):
    """The ring has two stages for three steps. Each consumer loads the first fragments of a stage while it
    still multiplies those of the one before; C leaves through the ring, by stmatrix and a TMA store."""
    tiles = shared_address(cuda.shared.array(SHARED, uint8, alignment=128))
    ring, row = set_up(tiles), int32(cuda.blockIdx.x) * 16
    if warp() > 0:
        sums = cuda.local.array(SUMS, float32)
        multiply(ring, tiles, maps, steps, sums)
        store(tiles, maps, row, int32(0), sums)
    elif lane() == 0:
        produce(ring, tiles, maps, row, int32(0), steps)


@wrong(
    faults.TooManyArrivals, faults.UnobservedPhase, faults.RefillRace,
    source="NVIDIA CUTLASS, PipelineTmaAsync: producer_acquire before each load",
    grid=GRID, block=THREADS, args=arguments,
)  # fmt: skip
def tile_product_refills_unasked(maps: u64, tiles_across: i32, steps: i32):
    """The producer asks for the third step without having waited until the first one's stage is empty."""
    tiles = shared_address(cuda.shared.array(SHARED, uint8, alignment=128))
    ring, row = set_up(tiles), int32(cuda.blockIdx.x) * 16
    if warp() > 0:
        sums = cuda.local.array(SUMS, float32)
        multiply(ring, tiles, maps, steps, sums)
        store(tiles, maps, row, int32(0), sums)
    elif lane() == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        fence_proxy_tensormap_acquire_sys(map_of(maps, 1))
        state = first_state()
        for step in range(steps):
            commit(ring, state, STAGE)  # <- fault
            stage, bar, k = shared_at(tiles, state.stage, STAGE), full_barrier(ring, state), int32(step * STEP)
            cp_async_bulk_tensor_2d(stage, maps, k, row, bar)  # <- fault
            cp_async_bulk_tensor_2d(uint32(stage + A_BYTES), map_of(maps, 1), k, int32(0), bar)
            state = advance(state)


@wrong(
    faults.InFlightRead, faults.UninitialisedRead,
    source="NVIDIA CUTLASS, sm80 multistage mainloops: fragments are loaded a step ahead, across stages too",
    grid=GRID, block=THREADS, args=arguments,
)  # fmt: skip
def tile_product_reads_ahead(maps: u64, tiles_across: i32, steps: i32):
    """A consumer loads the first fragments of the next stage before it has waited for that one."""
    tiles = shared_address(cuda.shared.array(SHARED, uint8, alignment=128))
    ring, row = set_up(tiles), int32(cuda.blockIdx.x) * 16
    if warp() > 0:
        state, sums = first_state(), cuda.local.array(SUMS, float32)
        a_place, b_place = place_in_a(tiles), place_in_b(tiles)
        b_tiles = shared_at(uint32(tiles + A_BYTES), warp() - 1, 64 * ROW)
        for i in range(SUMS):
            sums[i] = float32(0)
        if cuda.threadIdx.x == 32:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))
        wait(ring, state)
        a = ldmatrix_x4(uint32(tiles + a_place))
        for i in range(4 * steps):
            place = uint32(b_place ^ uint32(32 * (i % 4)))
            for j in range(4):
                block = shared_at(b_tiles, state.stage, STAGE) + 16 * ROW * j
                b = ldmatrix_x4(uint32(block + place))
                for half in static_range(2):
                    c = sums[8 * j + 4 * half : 8 * j + 4 * half + 4]
                    part = mma_m16n8k16_f16(
                        a[0], a[1], a[2], a[3], b[2 * half], b[2 * half + 1], c[0], c[1], c[2], c[3]
                    )
                    c[0], c[1], c[2], c[3] = part
            if i % 4 < 3:
                next = uint32(a_place ^ uint32(32 * (i % 4 + 1)))
                a = ldmatrix_x4(uint32(shared_at(tiles, state.stage, STAGE) + next))
            elif i + 1 < 4 * steps:
                cuda.syncwarp()
                if lane() == 0:
                    release(ring, state)
                state = advance(state)
                a = ldmatrix_x4(uint32(shared_at(tiles, state.stage, STAGE) + a_place))  # <- fault
                wait(ring, state)
        store(tiles, maps, row, int32(0), sums)
    elif lane() == 0:
        produce(ring, tiles, maps, row, int32(0), steps)


@wrong(
    faults.DataRace,
    source="NVIDIA CUTLASS, epilogues that reuse the mainloop's shared memory: the consumers meet first",
    grid=GRID, block=THREADS, args=arguments,
    explorable=False,  # there the consumer that still reads may be the one that is named
)  # fmt: skip
def tile_product_stores_too_early(maps: u64, tiles_across: i32, steps: i32):
    """The first consumer writes its part of C over the rows of A that the second one may still be reading."""
    tiles = shared_address(cuda.shared.array(SHARED, uint8, alignment=128))
    ring, row = set_up(tiles), int32(cuda.blockIdx.x) * 16
    if warp() > 0:
        sums = cuda.local.array(SUMS, float32)
        multiply(ring, tiles, maps, steps, sums)
        number, place = warp() - 1, place_in_a(tiles)
        part = shared_at(tiles, number, 16 * ROW)
        for j in range(4):
            stmatrix_x4(  # <- fault
                uint32(part + uint32(place ^ uint32(32 * j))),
                cvt_rn_f16x2_f32(sums[8 * j], sums[8 * j + 1]),
                cvt_rn_f16x2_f32(sums[8 * j + 2], sums[8 * j + 3]),
                cvt_rn_f16x2_f32(sums[8 * j + 4], sums[8 * j + 5]),
                cvt_rn_f16x2_f32(sums[8 * j + 6], sums[8 * j + 7]),
            )  # fmt: skip
        fence_proxy_async()
        cuda.syncwarp()
        if lane() == 0:
            cp_async_bulk_tensor_2d_store(map_of(maps, 2), int32(64 * number), row, part)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))
    elif lane() == 0:
        produce(ring, tiles, maps, row, int32(0), steps)
