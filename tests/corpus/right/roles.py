"""Warps with roles: who loads, who computes, who stores, and who says what comes next."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_address, shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync, elect_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
)

WARP, TILES = 32, 6
TWO_TILES = 2 * WARP
ALL = 0xFFFFFFFF


@right(
    source="PTX ISA, bar / barrier: the example of a producer that arrives and a consumer that synchronises",
    block=64, args=lambda: [np.arange(TILES * WARP, dtype=np.int32), np.zeros(TILES * WARP, np.int32)],
    expect=lambda data, out: [(out, data.reshape(TILES, WARP)[:, ::-1].reshape(-1))],
)  # fmt: skip
def two_buffers_by_four_named_barriers(data, out):
    """A warp writes two buffers in turn, the other reads them. Each buffer has a barrier for "full", at which
    the writer only arrives, and one for "empty", at which the reader only arrives. The first two fills and the
    last two reads leave out the barrier that nobody would come to."""
    words = cuda.shared.array(TWO_TILES, int32)
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    for t in range(TILES):
        buffer = t % 2
        if thread < 32:
            if t >= 2:
                bar_sync(uint32(3 + buffer), 64)
            words[32 * buffer + lane] = data[32 * t + lane]
            bar_arrive(uint32(1 + buffer), 64)
        else:
            bar_sync(uint32(1 + buffer), 64)
            out[32 * t + lane] = words[32 * buffer + 31 - lane]
            if t + 2 < TILES:
                bar_arrive(uint32(3 + buffer), 64)


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, PipelineAsync",
    block=64, args=lambda: [np.arange(TILES * WARP, dtype=np.int32), np.zeros(WARP, np.int32)],
    expect=lambda data, out: [(out, (data.reshape(TILES, WARP) ** 2).sum(0)[::-1])],
)  # fmt: skip
def ordinary_stores_through_a_pipeline(data, out):
    """There is no copy engine: the lanes of the producing warp write the stage themselves, and each arrives on
    the full barrier, whose count is the number of writers."""
    words = cuda.shared.array(TWO_TILES, int32)
    bars = shared_address(cuda.shared.array(4, uint64))
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    if thread < 4:
        mbarrier_init(bars + uint32(8 * thread), 32)
    cuda.syncthreads()
    total = int32(0)
    for t in range(TILES):
        full, empty = bars + uint32(8 * (t % 2)), bars + uint32(16 + 8 * (t % 2))
        if thread < 32:
            mbarrier_wait(empty, uint32(t // 2 & 1 ^ 1))
            words[32 * (t % 2) + lane] = data[32 * t + lane]
            mbarrier_arrive(full)
        else:
            mbarrier_wait(full, uint32(t // 2 & 1))
            x = words[32 * (t % 2) + 31 - lane]
            mbarrier_arrive(empty)
            total += x * x
    if thread >= 32:
        out[lane] = total


@right(
    source="CUTLASS sm90_gemm_tma_warpspecialized_cooperative.hpp and its epilogue with a load and a store "
           "pipeline",
    block=96, args=lambda: [np.arange(TILES * WARP, dtype=np.float32), np.zeros(TILES * WARP, np.float32)],
    expect=lambda data, out: [(out, 2 * data + 1)],
)  # fmt: skip
def load_compute_store(data, out):
    """Three warps in a chain: one asks for tiles, one computes from stage to stage, one stores. A stored tile's
    place is given back when the store has read it, and the last one waits until all has been written."""
    inside = cuda.shared.array(TWO_TILES, float32, alignment=128)
    outside = cuda.shared.array(TWO_TILES, float32, alignment=128)
    bars = shared_address(cuda.shared.array(8, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if thread < 2:
        mbarrier_init(bars + uint32(8 * thread), 1)  # full
        mbarrier_init(bars + uint32(16 + 8 * thread), 32)  # empty
        mbarrier_init(bars + uint32(32 + 8 * thread), 32)  # computed
        mbarrier_init(bars + uint32(48 + 8 * thread), 1)  # stored
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        stage, parity = t % 2, t // 2 & 1
        full = bars + uint32(8 * stage)
        empty, computed, stored = full + uint32(16), full + uint32(32), full + uint32(48)
        bytes = uint32(128 * stage)
        if warp == 0 and lane == 0:
            mbarrier_wait(empty, uint32(parity ^ 1))
            mbarrier_arrive_expect_tx(full, 128)
            cp_async_bulk_load(
                shared_address(inside) + bytes, global_address(data) + uint64(128 * t), 128, full
            )
        elif warp == 1:
            mbarrier_wait(full, uint32(parity))
            x = inside[32 * stage + lane]
            fence_proxy_async()
            mbarrier_arrive(empty)
            mbarrier_wait(stored, uint32(parity ^ 1))
            outside[32 * stage + lane] = float32(2) * x + float32(1)
            fence_proxy_async()
            mbarrier_arrive(computed)
        elif warp == 2 and lane == 0:
            mbarrier_wait(computed, uint32(parity))
            cp_async_bulk_store(
                global_address(out) + uint64(128 * t), shared_address(outside) + bytes, 128
            )
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(0)
            mbarrier_arrive(stored)
    if warp == 2 and lane == 0:
        cp_async_bulk_wait_group(0)


@right(
    source="FlashAttention hopper/tile_scheduler.hpp, DynamicPersistentTileScheduler",
    grid=2, block=64, args=lambda: [np.zeros(1, np.int32), np.zeros(TILES * WARP, np.int32)],
    expect=lambda counter, out: [(out, np.arange(TILES).repeat(WARP) ** 2), (counter, TILES + 2)],
)  # fmt: skip
def tiles_from_a_counter(counter, out):
    """One lane takes the next tile's number from a counter of the whole grid and hands it to the other warp
    through shared memory. Which block gets which tile differs from run to run, but each is done once. A number
    past the end is the message to stop."""
    slot = cuda.shared.array(1, int32)
    bars = shared_address(cuda.shared.array(2, uint64))
    thread = int32(cuda.threadIdx.x)
    if thread == 0:
        mbarrier_init(bars, 1)
        mbarrier_init(bars + uint32(8), 32)
    cuda.syncthreads()
    parity, tile = uint32(0), int32(0)
    while tile < TILES:
        if thread == 0:
            mbarrier_wait(bars + uint32(8), parity ^ uint32(1))
            tile = int32(cuda.atomic.add(counter, 0, 1))
            slot[0] = tile
            mbarrier_arrive(bars)
        elif thread >= 32:
            mbarrier_wait(bars, parity)
            tile = slot[0]
            mbarrier_arrive(bars + uint32(8))
            if tile < TILES:
                out[32 * tile + thread - 32] = tile * tile
        else:
            tile = int32(TILES)
        parity = uint32(parity ^ uint32(1))


@right(
    source="FlashAttention hopper/flash_fwd_kernel_sm90.h: one warp of the producing warpgroup loads, the "
           "rest return",
    block=128, args=lambda: [np.arange(TWO_TILES, dtype=np.float32), np.zeros(TWO_TILES, np.float32)],
    expect=lambda data, out: [(out, data.reshape(2, WARP)[::-1].reshape(-1))],
)  # fmt: skip
def idle_warps_return_at_once(data, out):
    """Of two producing warps one has nothing to do and returns, and of the other only the elected lane does
    not. The consumers go on to synchronise among themselves: by a named barrier whose count leaves out those
    that have gone, and then by syncthreads, which leaves them out by itself."""
    tile = cuda.shared.array(TWO_TILES, float32, alignment=128)
    back = cuda.shared.array(TWO_TILES, float32)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if thread == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if warp == 3:
        return
    if warp == 2:
        if elect_sync(ALL) == 0:
            return
        mbarrier_arrive_expect_tx(bar, 256)
        cp_async_bulk_load(shared_address(tile), global_address(data), 256, bar)
        return
    mbarrier_wait(bar, 0)
    back[thread] = tile[32 * (1 - warp) + lane]
    bar_sync(1, 64)
    x = back[thread ^ 32]
    cuda.syncthreads()
    back[thread ^ 32] = x
    cuda.syncthreads()
    out[thread] = back[thread]


@right(
    source="triton-lang/triton, Gluon tutorials: tma.async_copy of the next tile by the warp that works on "
           "this one",
    block=32, args=lambda: [np.arange(TILES * WARP, dtype=np.float32), np.zeros(WARP, np.float32)],
    expect=lambda data, out: [(out, data.reshape(TILES, WARP).sum(0))],
)  # fmt: skip
def one_warp_loads_ahead_for_itself(data, out):
    """Producer and consumer are the same warp. The elected lane asks for tile t + 1 before the warp waits for
    tile t; a syncwarp says that tile t - 1 has been read."""
    tiles = cuda.shared.array(TWO_TILES, float32, alignment=128)
    bars = shared_address(cuda.shared.array(2, uint64))
    lane = int32(cuda.threadIdx.x)
    leader = elect_sync(ALL)
    if leader:
        mbarrier_init(bars, 1)
        mbarrier_init(bars + uint32(8), 1)
        fence_mbarrier_init()
    cuda.syncwarp()
    total = float32(0)
    for t in range(-1, TILES):
        ahead = t + 1
        if leader and ahead < TILES:
            bar = bars + uint32(8 * (ahead % 2))
            mbarrier_arrive_expect_tx(bar, 128)
            tile = shared_address(tiles) + uint32(128 * (ahead % 2))
            cp_async_bulk_load(tile, global_address(data) + uint64(128 * ahead), 128, bar)
        if t >= 0:
            mbarrier_wait(bars + uint32(8 * (t % 2)), uint32(t // 2 & 1))
            total += tiles[32 * (t % 2) + lane]
            fence_proxy_async()
            cuda.syncwarp()
    out[lane] = total


@right(
    source="FlashAttention hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp, warp_scheduler_barrier_sync and _arrive",
    block=64, args=lambda: [np.zeros(8, np.int32), np.zeros(2, np.int32)],
    expect=lambda order, rounds: [(order, np.arange(8) % 2), (rounds, [4, 4])],
)  # fmt: skip
def two_warps_take_turns(order, rounds):
    """Two warps do a piece of work in turn, each waiting at a named barrier of its own at which the other
    arrives. The second warp arrives once before the loop, so its last arrival at the first one's barrier is
    never waited for: the kernel ends with a barrier half full."""
    place = cuda.shared.array(1, int32)
    thread = int32(cuda.threadIdx.x)
    warp = thread // 32
    if thread == 0:
        place[0] = 0
    cuda.syncthreads()
    if warp == 1:
        bar_arrive(1, 64)
    turns = int32(0)
    for _ in range(4):
        bar_sync(uint32(1 + warp), 64)
        if thread % 32 == 0:
            order[place[0]] = warp
            place[0] += 1
        turns += 1
        bar_arrive(uint32(2 - warp), 64)
    if thread % 32 == 0:
        rounds[warp] = turns


@right(
    source="FlashAttention hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp, mma_init: QueryEmpty is arrived at "
           "beforehand",
    block=64, args=lambda: [np.arange(4 * WARP, dtype=np.int32), np.zeros(4 * WARP, np.int32)],
    expect=lambda data, out: [(out, data.reshape(4, WARP)[:, ::-1].reshape(-1))],
)  # fmt: skip
def consumers_say_beforehand_that_all_is_empty(data, out):
    """The consumer arrives once at the "empty" barrier before its loop, so the producer's loop has no special
    first turn. After the last tile nobody arrives, and all barriers end as they began."""
    words = cuda.shared.array(WARP, int32)
    thread = int32(cuda.threadIdx.x)
    lane = thread % 32
    if thread >= 32:
        bar_arrive(5, 64)
    for t in range(4):
        if thread < 32:
            bar_sync(5, 64)
            words[lane] = data[32 * t + lane]
            bar_arrive(6, 64)
        else:
            bar_sync(6, 64)
            out[32 * t + lane] = words[31 - lane]
            if t < 3:
                bar_arrive(5, 64)
