"""A tile product by wgmma, fed by TMA: the roles of ``course/warpgroup_product.py`` on a small problem."""

import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint8, uint32, uint64

from numba_deform.compiler import i32, static_range, u64
from numba_deform.course.tile_product import ROW, STEP, map_of, place_in_a
from numba_deform.course.warpgroup_product import ALIGNMENT, WarpgroupProduct, parts
from numba_deform.device.half2 import cvt_rn_f16x2_f32
from numba_deform.device.matrix import stmatrix_x4
from numba_deform.device.memory import align_up, shared_address, shared_at
from numba_deform.device.pipeline import acquire, commit, first_state, full_barrier, make_advance, release, wait
from numba_deform.device.sync import bar_sync, fence_proxy_async, lane, warp
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.device.wgmma import (
    SWIZZLE_128B,
    wgmma_commit_group,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_m64n64k16_f16,
    wgmma_wait_group,
    wgmma_wait_group_n64,
)
from numba_deform.engines import faults
from numba_deform.kernels.warp_product import EIGHT_ROWS

# Two consumer warpgroups, one below the other, which read the same rows of B.
CONFIG = WarpgroupProduct(rows=128, columns=64, stages=2, consumer_registers=168)
M, N, DEPTH, SUMS = 128, 64, 3 * STEP, 32
SHARED, THREADS = CONFIG.shared_bytes, CONFIG.threads
A_BYTES, HALF, STAGE = M * ROW, 64 * ROW, (M + N) * ROW
GRID, DYNAMIC, BEHIND = CONFIG.launch(M, N, DEPTH)
set_up, produce, multiply, store = parts(CONFIG)
advance = make_advance(CONFIG.stages)
SOURCE = "NVIDIA CUTLASS, sm90 mainloops: TMA, warp specialised, GMMA with both operands in shared memory"


def arguments():
    """Small integers, whose products and sums fp16 has."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, (n, DEPTH)).astype(np.float16) for n in (M, N))
    return [CONFIG.maps(a, b, np.full((M, N), np.nan, np.float16)), *BEHIND]


def product(maps, *_):
    a, b, c = (tensor.array for tensor in maps)
    return [(c, a.astype(np.float32) @ b.astype(np.float32).T)]


@cuda.jit(device=True, forceinline=True)
def multiply_stage(ring, state, tiles, sums, step):
    """Waits for a stage, and issues the consumer's four products of it as one group."""
    a = shared_at(shared_at(tiles, warp() // 4 - 1, HALF), state.stage, STAGE)
    b = shared_at(uint32(tiles + uint32(A_BYTES)), state.stage, STAGE)
    x = wgmma_descriptor(a, uint32(0), uint32(EIGHT_ROWS), uint32(0), uint32(SWIZZLE_128B))
    y = wgmma_descriptor(b, uint32(0), uint32(EIGHT_ROWS), uint32(0), uint32(SWIZZLE_128B))
    wait(ring, state)
    wgmma_fence()
    for k in static_range(4):
        wgmma_m64n64k16_f16(sums, x + uint64(2 * k), y + uint64(2 * k), uint32(step + k), uint32(0), uint32(0))
    wgmma_commit_group()


@right(
    source=SOURCE, grid=GRID, block=THREADS, shared_bytes=DYNAMIC, args=arguments, expect=product,
    explorable=False,
)  # fmt: skip
def warpgroup_product(maps: u64, tiles_across: i32, steps: i32):
    """The ring has two stages for three steps. A consumer issues the products of a step before it waits for
    those of the step before; C leaves through the ring, by stmatrix and a TMA store."""
    tiles = align_up(shared_address(cuda.shared.array(0, uint8, alignment=128)), uint32(ALIGNMENT))
    ring = set_up(tiles)
    if warp() >= 4:
        sums = cuda.local.array(SUMS, float32)
        multiply(ring, tiles, maps, steps, sums)
        store(tiles, maps, int32(0), int32(0), sums)
    elif cuda.threadIdx.x == 0:
        produce(ring, tiles, maps, int32(0), int32(0), steps)


@right(
    source=SOURCE, grid=GRID, block=THREADS, shared_bytes=DYNAMIC, args=arguments, expect=product,
    explorable=False,
)  # fmt: skip
def warpgroup_product_step_by_step(maps: u64, tiles_across: i32, steps: i32):
    """The same, where a consumer waits for each step's products at once, and then gives the stage back."""
    tiles = align_up(shared_address(cuda.shared.array(0, uint8, alignment=128)), uint32(ALIGNMENT))
    ring, state = set_up(tiles), first_state()
    if warp() >= 4:
        sums = cuda.local.array(SUMS, float32)
        for step in range(steps):
            multiply_stage(ring, state, tiles, sums, step)
            wgmma_wait_group(uint32(0))
            if lane() == 0:
                release(ring, state)
            state = advance(state)
        wgmma_wait_group_n64(sums, uint32(0))
        if cuda.threadIdx.x == 128:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))
        store(tiles, maps, int32(0), int32(0), sums)
    elif cuda.threadIdx.x == 0:
        produce(ring, tiles, maps, int32(0), int32(0), steps)


@wrong(
    faults.ReadAfterRelease,
    source="NVIDIA CUTLASS, sm90 mainloops: warpgroup_wait, and only then pipeline.consumer_release",
    grid=GRID, block=THREADS, shared_bytes=DYNAMIC, args=arguments, explorable=False,
)  # fmt: skip
def warpgroup_product_releases_too_early(maps: u64, tiles_across: i32, steps: i32):
    """A consumer leaves the products of a step running, as in the first one, and gives that step's stage back:
    the producer's next box goes where they may still be reading."""
    tiles = align_up(shared_address(cuda.shared.array(0, uint8, alignment=128)), uint32(ALIGNMENT))
    ring, state = set_up(tiles), first_state()
    if warp() >= 4:
        sums = cuda.local.array(SUMS, float32)
        for step in range(steps):
            multiply_stage(ring, state, tiles, sums, step)
            wgmma_wait_group(uint32(1))
            if lane() == 0:
                release(ring, state)  # <- fault
            state = advance(state)
        wgmma_wait_group_n64(sums, uint32(0))
        if cuda.threadIdx.x == 128:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))
        store(tiles, maps, int32(0), int32(0), sums)
    elif cuda.threadIdx.x == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        fence_proxy_tensormap_acquire_sys(map_of(maps, 1))
        for step in range(steps):
            acquire(ring, state)
            commit(ring, state, STAGE)
            stage, bar, k = shared_at(tiles, state.stage, STAGE), full_barrier(ring, state), int32(step * STEP)
            cp_async_bulk_tensor_2d(stage, maps, k, int32(0), bar)
            cp_async_bulk_tensor_2d(uint32(stage + A_BYTES), map_of(maps, 1), k, int32(0), bar)
            state = advance(state)


@wrong(
    faults.AccumulatorInFlight,
    source="NVIDIA CUTLASS, sm90 mainloops: mma_tail waits for all groups before the epilogue",
    grid=GRID, block=THREADS, shared_bytes=DYNAMIC, args=arguments, explorable=False,
)  # fmt: skip
def warpgroup_product_stores_what_is_in_flight(maps: u64, tiles_across: i32, steps: i32):
    """The loop leaves one group open, and nobody waits for it before the epilogue reads the sums."""
    tiles = align_up(shared_address(cuda.shared.array(0, uint8, alignment=128)), uint32(ALIGNMENT))
    ring, state, last = set_up(tiles), first_state(), first_state()
    if warp() >= 4:
        sums = cuda.local.array(SUMS, float32)
        for step in range(steps):
            multiply_stage(ring, state, tiles, sums, step)
            wgmma_wait_group(uint32(1))
            if step > 0 and lane() == 0:
                release(ring, last)
            last, state = state, advance(state)
        bar_sync(uint32(1), uint32(256))
        number, place = warp() - 4, place_in_a(tiles)
        part = shared_at(tiles, number, 16 * ROW)
        for j in static_range(4):
            s = 8 * j
            stmatrix_x4(
                uint32(part + uint32(place ^ uint32(32 * j))),
                cvt_rn_f16x2_f32(sums[s], sums[s + 1]),  # <- fault
                cvt_rn_f16x2_f32(sums[s + 2], sums[s + 3]),
                cvt_rn_f16x2_f32(sums[s + 4], sums[s + 5]),
                cvt_rn_f16x2_f32(sums[s + 6], sums[s + 7]),
            )
        fence_proxy_async()
        cuda.syncwarp()
        if lane() == 0:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))
            cp_async_bulk_tensor_2d_store(map_of(maps, 2), int32(0), int32(16 * number), part)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))
    elif cuda.threadIdx.x == 0:
        produce(ring, tiles, maps, int32(0), int32(0), steps)
