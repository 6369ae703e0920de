"""A sum of many slices, split among blocks, which the copy engine adds up: cp.reduce.async.bulk.tensor.

``data`` has SLICES slices of HEIGHT x WIDTH floats. A block has one tile of the result and every SPLITS-th
slice. Its second warp loads that tile of each of these slices by TMA into a ring; the first adds them up in
registers and leaves the sum in shared memory. The copy engine adds it to ``out``, as it does with the sums of
the other splits' blocks.
"""

import numpy as np
from base import right, wrong
from numba import cuda, float32, int32, uint64

from numba_deform.compiler import u64
from numba_deform.device.memory import shared_address, shared_at
from numba_deform.device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from numba_deform.device.reduce import cp_reduce_async_bulk_tensor_2d_add
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_tensor_3d,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

SOURCE = "CUTLASS SM90_TMA_REDUCE_ADD, as a split-K epilogue: the partial tiles are added up by the copy engine"
SLICES, HEIGHT, WIDTH = 5, 12, 24
ROWS, COLUMNS, SPLITS = 8, 16, 2  # of a tile; blocks that share one
ACROSS, DOWN = -(-WIDTH // COLUMNS), -(-HEIGHT // ROWS)
TILES, TILE, TILE_BYTES = ACROSS * DOWN, ROWS * COLUMNS, 4 * ROWS * COLUMNS
WARP, THREADS, EACH = 32, 64, TILE // 32  # each consumer adds up EACH floats
STAGES, BARRIERS, RING = 2, 4, 2 * TILE
advance = make_advance(STAGES)


def arguments():
    """Tensor maps of the slices and of the sum: whole numbers, which add up exactly in any order."""
    random = np.random.default_rng(13)
    data = random.integers(-99, 100, (SLICES, HEIGHT, WIDTH)).astype(np.float32)
    out = random.integers(-99, 100, (HEIGHT, WIDTH)).astype(np.float32)
    maps = TensorMap.of(data, (COLUMNS, ROWS, 1)), TensorMap.of(out, (COLUMNS, ROWS))
    return [TensorMapArray(maps)]


def expected(maps):
    data, before = maps[0].array, arguments()[0][1].array
    return [(maps[1].array, before + data.sum(0))]


@cuda.jit(device=True, inline="always")
def start(maps, bars):
    """The ring; one thread makes its barriers and sees both maps for the block."""
    ring = Ring(shared_address(bars), shared_at(shared_address(bars), STAGES, 8))
    if cuda.threadIdx.x == 0:
        init_barriers(ring.full, STAGES, 1)
        init_barriers(ring.empty, STAGES, WARP)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        fence_proxy_tensormap_acquire_sys(maps + uint64(128))
    cuda.syncthreads()
    return ring


@cuda.jit(device=True, inline="always")
def produce(maps, ring, stages, x, y, split):
    """One lane loads the tile of each slice of this split."""
    state = first_state()
    if cuda.threadIdx.x == WARP:
        for z in range(split, SLICES, SPLITS):
            acquire(ring, state)
            commit(ring, state, TILE_BYTES)
            slot = shared_at(stages, state.stage, TILE_BYTES)
            cp_async_bulk_tensor_3d(slot, maps, x, y, z, full_barrier(ring, state))
            state = advance(state)


@cuda.jit(device=True, inline="always")
def consume(ring, slots, tile, split):
    """A warp adds up what the slices bring, and leaves the sum in ``tile``."""
    lane, state = int32(cuda.threadIdx.x), first_state()
    sums = cuda.local.array(EACH, float32)
    for k in range(EACH):
        sums[k] = float32(0)
    for _ in range(split, SLICES, SPLITS):
        wait(ring, state)
        for k in range(EACH):
            sums[k] += slots[state.stage * TILE + k * WARP + lane]
        release(ring, state)
        state = advance(state)
    for k in range(EACH):
        tile[k * WARP + lane] = sums[k]


@right(source=SOURCE, grid=TILES * SPLITS, block=THREADS, args=arguments, expect=expected, explorable=False)
def tiles_added_up_by_the_copy_engine(maps: u64):
    """Blocks of different splits add to the same tile, and nothing orders them."""
    slots = cuda.shared.array(RING, float32, alignment=128)
    tile = cuda.shared.array(TILE, float32, alignment=128)
    ring = start(maps, cuda.shared.array(BARRIERS, uint64))
    number, split = int32(cuda.blockIdx.x) % TILES, int32(cuda.blockIdx.x) // TILES
    x, y = int32(number % ACROSS * COLUMNS), int32(number // ACROSS * ROWS)
    if cuda.threadIdx.x >= WARP:
        produce(maps, ring, shared_address(slots), x, y, split)
    else:
        consume(ring, slots, tile, split)
        fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cp_reduce_async_bulk_tensor_2d_add(maps + uint64(128), x, y, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@wrong(faults.DataRace, source=SOURCE, grid=TILES * SPLITS, block=THREADS, args=arguments, explorable=False)
def tiles_stored_by_several_blocks(maps: u64):
    """A store in place of the reduction: of the blocks that share a tile, the last one wins."""
    slots = cuda.shared.array(RING, float32, alignment=128)
    tile = cuda.shared.array(TILE, float32, alignment=128)
    ring = start(maps, cuda.shared.array(BARRIERS, uint64))
    number, split = int32(cuda.blockIdx.x) % TILES, int32(cuda.blockIdx.x) // TILES
    x, y = int32(number % ACROSS * COLUMNS), int32(number // ACROSS * ROWS)
    if cuda.threadIdx.x >= WARP:
        produce(maps, ring, shared_address(slots), x, y, split)
    else:
        consume(ring, slots, tile, split)
        fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cp_async_bulk_tensor_2d_store(maps + uint64(128), x, y, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@wrong(
    faults.MissingProxyFence, source=SOURCE, grid=TILES * SPLITS, block=THREADS, args=arguments,
    explorable=False,
)  # fmt: skip
def tiles_added_up_unfenced(maps: u64):
    """The barrier orders the threads, not the copy engine: what it adds may be what the tile held before."""
    slots = cuda.shared.array(RING, float32, alignment=128)
    tile = cuda.shared.array(TILE, float32, alignment=128)
    ring = start(maps, cuda.shared.array(BARRIERS, uint64))
    number, split = int32(cuda.blockIdx.x) % TILES, int32(cuda.blockIdx.x) // TILES
    x, y = int32(number % ACROSS * COLUMNS), int32(number // ACROSS * ROWS)
    if cuda.threadIdx.x >= WARP:
        produce(maps, ring, shared_address(slots), x, y, split)
    else:
        consume(ring, slots, tile, split)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cp_reduce_async_bulk_tensor_2d_add(maps + uint64(128), x, y, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
