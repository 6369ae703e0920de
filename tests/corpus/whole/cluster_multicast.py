"""A pipeline of a cluster: each block fetches one part of every tile for all, by multicast.

Both blocks of a cluster need the same tiles. Each loads half of a tile into both, so each tile comes from
global memory once. A stage may be refilled when the consumers of both blocks have left it, so they arrive on
the *empty* barriers of both; the *full* barrier of a block counts the bytes of both halves. The producers wait
for the other block's consumers with the default scope, as CUTLASS does: what is handed on is shared memory.
"""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_arrive_relaxed,
    cluster_ctarank,
    cluster_sync,
    cluster_wait,
    cp_async_bulk_tensor_2d_multicast,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
)
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx
from numba_deform.device.memory import global_at, ld_global_b32, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import init_barriers, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import fence_proxy_tensormap_acquire_sys
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

CLUSTER, BLOCKS, THREADS, WARP = 2, 4, 64, 32
TILES, STAGES = 5, 2
BARRIERS = 2 * STAGES  # full and empty
HALF_ROWS = 2  # of a tile, which each block loads
ROWS = CLUSTER * HALF_ROWS
HALF_BYTES, TILE_BYTES = 4 * WARP * HALF_ROWS, 4 * WARP * ROWS
ALL = (1 << CLUSTER) - 1  # the mask of all blocks


def arguments():
    """The map of the data (tiles x rows, 32), a factor for each block and row, a sum for each block and
    column."""
    random = np.random.default_rng(5)
    data = random.integers(0, 1 << 16, (TILES * ROWS, WARP)).astype(np.uint32)
    factors = random.integers(0, 1 << 16, (BLOCKS, TILES * ROWS)).astype(np.uint32)
    maps = TensorMapArray([TensorMap.of(data, (WARP, HALF_ROWS))])
    return [maps, factors, np.zeros((BLOCKS, WARP), np.uint32)]


def expect(maps, factors, out):
    return [(out, factors @ maps[0].array)]


@cuda.jit(device=True, inline="always")
def produce(map, tiles, full, empty):
    """One thread of each block: waits for empty, arms its own full barrier, loads its half for all."""
    fence_proxy_tensormap_acquire_sys(map)
    rank = int32(cluster_ctarank())
    for t in range(TILES):
        stage, parity = int32(t % STAGES), int32(t // STAGES & 1)
        mbarrier_wait(shared_at(empty, stage, 8), parity ^ 1)
        mbarrier_arrive_expect_tx(shared_at(full, stage, 8), uint32(TILE_BYTES))
        half = shared_at(shared_at(tiles, stage, TILE_BYTES), rank, HALF_BYTES)
        row = int32(t * ROWS + rank * HALF_ROWS)
        cp_async_bulk_tensor_2d_multicast(half, map, int32(0), row, shared_at(full, stage, 8), uint32(ALL))


@cuda.jit(device=True, inline="always")
def weigh(tile, t, total, factors, lane):
    """``total`` with this lane's column of a tile, its rows times the block's factors."""
    for r in range(ROWS):
        factor = ld_global_b32(global_at(factors, (cuda.blockIdx.x * TILES + t) * ROWS + r, 4))
        total = uint32(total + uint32(factor * tile[t % STAGES, r, lane]))
    return total


@right(
    source="CUTLASS: sm90 TMA multicast mainloop, PipelineTmaAsync", grid=BLOCKS, block=THREADS,
    cluster=CLUSTER, args=arguments, expect=expect,
)  # fmt: skip
def multicast_pipeline(map: u64, factors: u64, out: u64):
    """The barriers are known to the cluster by the fence of their init and a relaxed arrival, and nobody leaves
    while others may still arrive on its barriers: the cluster meets once more."""
    tile = cuda.shared.array((STAGES, ROWS, WARP), uint32, alignment=128)
    bars = cuda.shared.array(BARRIERS, uint64)
    full = shared_address(bars)
    empty = shared_at(full, STAGES, 8)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(full, STAGES, 1)
        init_barriers(empty, STAGES, CLUSTER)
        fence_mbarrier_init()
    cluster_arrive_relaxed()
    cluster_wait()
    if i == WARP:
        produce(map, shared_address(tile), full, empty)
    if i < WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(shared_at(full, t % STAGES, 8), t // STAGES & 1)
            total = weigh(tile, t, total, factors, i)
            fence_proxy_async()
            cuda.syncwarp()
            if i < CLUSTER:
                mbarrier_arrive_cluster(mapa_shared_cluster(shared_at(empty, t % STAGES, 8), uint32(i)))
        st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), total)
    cluster_sync()


@wrong(
    faults.RefillRace, faults.CopyCollision,
    source="CUTLASS: PipelineTmaAsync, is_same_row_or_col decides whom a consumer signals",
    grid=BLOCKS, block=THREADS, cluster=CLUSTER, args=arguments, expect=expect,
)  # fmt: skip
def multicast_releases_its_own_block_only(map: u64, factors: u64, out: u64):
    """The twin whose consumers tell only their own producer that they have left a stage: the other block's
    producer, which writes into the same stage, knows nothing of them."""
    tile = cuda.shared.array((STAGES, ROWS, WARP), uint32, alignment=128)
    bars = cuda.shared.array(BARRIERS, uint64)
    full = shared_address(bars)
    empty = shared_at(full, STAGES, 8)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(full, STAGES, 1)
        init_barriers(empty, STAGES, 1)
        fence_mbarrier_init()
    cluster_arrive_relaxed()
    cluster_wait()
    if i == WARP:
        fence_proxy_tensormap_acquire_sys(map)
        rank = int32(cluster_ctarank())
        for t in range(TILES):
            stage, parity = int32(t % STAGES), int32(t // STAGES & 1)
            mbarrier_wait(shared_at(empty, stage, 8), parity ^ 1)
            mbarrier_arrive_expect_tx(shared_at(full, stage, 8), uint32(TILE_BYTES))
            half = shared_at(shared_at(shared_address(tile), stage, TILE_BYTES), rank, HALF_BYTES)
            row, bar = int32(t * ROWS + rank * HALF_ROWS), shared_at(full, stage, 8)
            cp_async_bulk_tensor_2d_multicast(half, map, int32(0), row, bar, uint32(ALL))  # <- fault
    if i < WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(shared_at(full, t % STAGES, 8), t // STAGES & 1)
            total = weigh(tile, t, total, factors, i)
            fence_proxy_async()
            cuda.syncwarp()
            if i == 0:
                mbarrier_arrive_cluster(shared_at(empty, t % STAGES, 8))
        st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), total)
    cluster_sync()


@wrong(
    faults.BlockEnded,
    source="CUTLASS: PipelineTmaAsync::producer_tail, against early exit of blocks in a cluster",
    grid=BLOCKS, block=THREADS, cluster=CLUSTER, args=arguments, expect=expect,
)  # fmt: skip
def multicast_without_the_last_meeting(map: u64, factors: u64, out: u64):
    """The twin that ends when its own work is done: a consumer of the other block may still arrive on the empty
    barriers of a block that is gone."""
    tile = cuda.shared.array((STAGES, ROWS, WARP), uint32, alignment=128)
    bars = cuda.shared.array(BARRIERS, uint64)
    full = shared_address(bars)
    empty = shared_at(full, STAGES, 8)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(full, STAGES, 1)
        init_barriers(empty, STAGES, CLUSTER)
        fence_mbarrier_init()
    cluster_arrive_relaxed()
    cluster_wait()
    if i == WARP:
        produce(map, shared_address(tile), full, empty)
    if i < WARP:
        total = uint32(0)
        for t in range(TILES):
            mbarrier_wait(shared_at(full, t % STAGES, 8), t // STAGES & 1)
            total = weigh(tile, t, total, factors, i)
            fence_proxy_async()
            cuda.syncwarp()
            if i < CLUSTER:
                bar = shared_at(empty, t % STAGES, 8)
                mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(i)))  # <- fault
        st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), total)
