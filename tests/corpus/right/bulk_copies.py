"""Bulk copies without a tensor map: loads, stores, groups, proxies."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint8, uint32, uint64

from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import global_address, ld_shared_b32, ld_shared_v4, shared_address, st_shared_v4
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
)

WARP, THREADS, TILES = 32, 64, 5
FOUR_WARPS = 4 * WARP
TWO_TILES, FOUR_TILES = 2 * THREADS, 4 * THREADS


def floats(count, *out):
    return lambda: [np.arange(count, dtype=np.float32), np.zeros(out, np.float32)]


def ints(count, *out):
    return lambda: [np.arange(count, dtype=np.int32), np.zeros(out, np.int32)]


@cuda.jit(device=True)
def init_one(bar, count):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, count)
        fence_mbarrier_init()
    cuda.syncthreads()


@right(
    source="CUTLASS sm90 mainloops: the tiles of A and of B complete on one barrier, armed once for both",
    block=THREADS, args=lambda: [np.arange(n, dtype=np.float32) for n in (WARP, TWO_TILES, THREADS)],
    expect=lambda a, b, out: [(out, np.tile(a, 2) + b[:THREADS] * b[THREADS:])],
)  # fmt: skip
def two_operands_on_one_barrier(a, b, out):
    """Two copies of different sizes from different arrays signal one barrier, which expects the sum of their
    bytes."""
    left = cuda.shared.array(WARP, float32, alignment=128)
    right_ = cuda.shared.array(TWO_TILES, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    if thread == 0:
        mbarrier_arrive_expect_tx(bar, 128 + 512)
        cp_async_bulk_load(shared_address(right_), global_address(b), 512, bar)
        cp_async_bulk_load(shared_address(left), global_address(a), 128, bar)
    mbarrier_wait(bar, 0)
    out[thread] = left[thread % 32] + right_[thread] * right_[thread + THREADS]


@right(
    source="PTX ISA, mbarrier tx-count: a complete-tx may come before its expect-tx within a phase",
    block=THREADS, args=floats(THREADS, THREADS), expect=lambda data, out: [(out, data + 1)],
)  # fmt: skip
def the_copy_before_the_expectation(data, out):
    """The copy is asked for first, and its bytes may land before anybody has said that they are coming: the
    count of bytes is below zero for a while, and the pending arrival holds the phase open."""
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    if thread == 0:
        cp_async_bulk_load(shared_address(tile), global_address(data), 4 * THREADS, bar)
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
    mbarrier_wait(bar, 0)
    out[thread] = tile[thread] + float32(1)


@right(
    source="PTX ISA, mbarrier: arrive, expect_tx and complete_tx in any order while arrivals are pending",
    block=THREADS, args=floats(THREADS, THREADS), expect=lambda data, out: [(out, data[::-1])],
)  # fmt: skip
def the_expectation_after_an_arrival(data, out):
    """The barrier counts two arrivals of the issuing thread: one at once, the other when it has expected the
    bytes of two copies one after the other."""
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, 2)
    if thread == 0:
        mbarrier_arrive(bar)
        for half in range(2):
            mbarrier_expect_tx(bar, 128)
            offset = uint32(128 * half)
            cp_async_bulk_load(shared_address(tile) + offset, global_address(data) + uint64(offset), 128, bar)
        mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    out[thread] = tile[THREADS - 1 - thread]


@right(
    source="deepseek-ai/DeepEP csrc/kernels: each lane copies a part of its own with TMA",
    block=WARP, args=ints(4 * WARP, 4 * WARP),
    expect=lambda data, out: [(out, data.reshape(WARP, 4)[::-1].reshape(-1))],
)  # fmt: skip
def every_lane_has_a_copy(data, out):
    """Each lane arrives, expects 16 bytes and asks for 16 bytes; the phase is complete with the last of
    both."""
    tile = cuda.shared.array(FOUR_WARPS, int32, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    init_one(bar, WARP)
    mbarrier_arrive_expect_tx(bar, 16)
    cp_async_bulk_load(
        shared_address(tile) + uint32(16 * (31 - lane)), global_address(data) + uint64(16 * lane), 16, bar
    )
    mbarrier_wait(bar, 0)
    for i in range(4):
        out[4 * lane + i] = tile[4 * lane + i]


@right(
    source="CUDA C++ Programming Guide, Asynchronous Data Copies: the example that adds one to an array "
           "by bulk copies to and fro",
    block=THREADS, args=floats(THREADS, THREADS),
    expect=lambda data, out: [(out, data + 1)],
)  # fmt: skip
def there_and_back_in_place(data, out):
    """The tile that a copy brought is changed where it lies and stored from there: every writer has its fence,
    then a barrier, then the store."""
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, THREADS)
    if thread == 0:
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
        cp_async_bulk_load(shared_address(tile), global_address(data), 4 * THREADS, bar)
    else:
        mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    tile[thread] += float32(1)
    fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        cp_async_bulk_store(global_address(out), shared_address(tile), 4 * THREADS)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
        cp_async_bulk_wait_group(0)


@right(
    source="CUTLASS sm90 epilogue, TMA store pipeline: tma_store_arrive and tma_store_wait<StagesD - 1>",
    block=THREADS, args=floats(TILES * THREADS, TILES * THREADS),
    expect=lambda data, out: [(out, 3 * data)],
)  # fmt: skip
def two_buffers_of_stores(data, out):
    """Thread 0 stores, and lets one group be open while it waits for the reads of those before. The barrier
    after that tells all that the other buffer is free; the one before the store, that it is full."""
    tiles = cuda.shared.array(TWO_TILES, float32, alignment=128)
    thread = int32(cuda.threadIdx.x)
    for t in range(TILES):
        place = THREADS * (t % 2)
        tiles[place + thread] = float32(3) * data[THREADS * t + thread]
        fence_proxy_async()
        bar_sync(1, THREADS)
        if thread == 0:
            cp_async_bulk_store(
                global_address(out) + uint64(256 * t), shared_address(tiles) + uint32(4 * place), 256
            )
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(1)
        bar_sync(1, THREADS)
    if thread == 0:
        cp_async_bulk_wait_group(0)


@right(
    source="PTX ISA, cp.async.bulk.commit_group: without any operations it makes an empty group",
    block=THREADS, args=floats(THREADS, THREADS),
    expect=lambda data, out: [(out[:WARP], data[WARP:]), (out[WARP:], 0)],
)  # fmt: skip
def groups_with_nothing_in_them(data, out):
    """Every thread commits a group, though only one has stored anything, and ends without a wait. That one
    commits an empty group last, so its store is complete when at most one group is open."""
    tile = cuda.shared.array(WARP, float32, alignment=128)
    thread = int32(cuda.threadIdx.x)
    if thread < 32:
        tile[thread] = data[32 + thread]
        fence_proxy_async()
    cuda.syncthreads()
    if thread == 40:
        cp_async_bulk_store(global_address(out), shared_address(tile), 128)
    cp_async_bulk_commit_group()
    cp_async_bulk_commit_group()
    if thread == 40:
        cp_async_bulk_wait_group(1)


@right(
    source="PTX ISA, cp.async.bulk.wait_group: N pending groups, and what .read leaves out",
    block=WARP, args=floats(4 * THREADS, 4 * THREADS),
    expect=lambda data, out: [(out[: 3 * THREADS], data[: 3 * THREADS]), (out[3 * THREADS :], data[:THREADS])],
)  # fmt: skip
def three_groups_are_waited_for_in_parts(data, out):
    """Lane 0 has three stores in three groups. With at most two open, the first one's bytes may be overwritten,
    which the lane does at once by a load; the load is stored in turn while two older stores may still be under
    way."""
    tiles = cuda.shared.array(FOUR_TILES, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    if lane == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 12 * THREADS)
        cp_async_bulk_load(shared_address(tiles), global_address(data), 12 * THREADS, bar)
        mbarrier_wait(bar, 0)
        for t in range(3):
            bytes = uint32(4 * THREADS * t)
            cp_async_bulk_store(global_address(out) + uint64(bytes), shared_address(tiles) + bytes, 4 * THREADS)
            cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(2)
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
        cp_async_bulk_load(shared_address(tiles), global_address(data), 4 * THREADS, bar)
        mbarrier_wait(bar, 1)
        cp_async_bulk_store(global_address(out) + uint64(12 * THREADS), shared_address(tiles), 4 * THREADS)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(1)
        cp_async_bulk_wait_group(0)


@right(
    source="PTX ISA, asynchronous operations: the completion of a bulk copy brings an implicit proxy fence; "
           "NVIDIA/Fuser pull request 3136",
    block=THREADS, args=floats(THREADS, 2, THREADS),
    expect=lambda data, out: [(out[0], data), (out[1], data[::-1])],
)  # fmt: skip
def what_was_stored_is_read_again(data, out):
    """When the store's group is complete, the same thread reads the array with an ordinary load and all others
    do so after a syncthreads; nobody needs a fence."""
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    thread = int32(cuda.threadIdx.x)
    tile[thread] = data[thread]
    fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        cp_async_bulk_store(global_address(out), shared_address(tile), 4 * THREADS)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
        tile[0] = out[0, THREADS - 1]
    cuda.syncthreads()
    out[1, thread] = tile[0] if thread == 0 else out[0, THREADS - 1 - thread]


@right(
    source="PTX ISA, cp.async.bulk.wait_group: the writes of a complete group are visible to the executing "
           "thread",
    block=THREADS, args=floats(THREADS, THREADS), expect=lambda data, out: [(out, data)],
)  # fmt: skip
def a_tile_goes_out_and_comes_back(data, out):
    """A tile is stored, and when its group is complete the same thread loads it from there to another place."""
    first = cuda.shared.array(THREADS, float32, alignment=128)
    second = cuda.shared.array(THREADS, float32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    first[thread] = data[thread]
    fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        cp_async_bulk_store(global_address(out), shared_address(first), 4 * THREADS)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
        mbarrier_arrive_expect_tx(bar, 4 * THREADS)
        cp_async_bulk_load(shared_address(second), global_address(out), 4 * THREADS, bar)
    mbarrier_wait(bar, 0)
    back = second[thread]
    first[thread] = float32(0)
    cuda.syncthreads()
    out[thread] = back


@right(
    source="deepseek-ai/DeepEP csrc/kernels: tma_store_fence and tma_store_1d by one lane",
    block=WARP, args=ints(WARP, WARP), expect=lambda data, out: [(out, data * 2)],
)  # fmt: skip
def one_lane_writes_fences_and_stores(data, out):
    """One lane writes the tile by vectors, fences and stores it: no barrier is needed, since nobody else has
    any part in it. The others have returned."""
    tile = cuda.shared.array(WARP, int32, alignment=128)
    if cuda.threadIdx.x != 9:
        return
    address = shared_address(tile)
    for i in range(0, WARP, 4):
        st_shared_v4(
            address + uint32(4 * i), uint32(data[i] * 2), uint32(data[i + 1] * 2), uint32(data[i + 2] * 2),
            uint32(data[i + 3] * 2)
        )
    fence_proxy_async()
    cp_async_bulk_store(global_address(out), address, 128)
    cp_async_bulk_commit_group()
    cp_async_bulk_wait_group(0)


@right(
    source="CUDA C++ Programming Guide, Asynchronous Data Copies: 16-byte alignment is enough for plain bulk "
           "copies",
    block=WARP, args=lambda: [np.arange(256, dtype=np.uint8), np.zeros(WARP, np.uint32)],
    expect=lambda data, out: [(out[:24], data[80:176].view(np.uint32)),
                              (out[24:], data[:16].view(np.uint32).repeat(2))],
)  # fmt: skip
def sixteen_bytes_are_enough(data, out):
    """Copies of 96 and 16 bytes start at any multiple of 16, in global and in shared memory, next to each
    other."""
    bytes = cuda.shared.array(128, uint8, alignment=16)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    init_one(bar, 1)
    place = shared_address(bytes)
    if lane == 0:
        mbarrier_arrive_expect_tx(bar, 112)
        cp_async_bulk_load(place + uint32(16), global_address(data) + uint64(80), 96, bar)
        cp_async_bulk_load(place, global_address(data), 16, bar)
    mbarrier_wait(bar, 0)
    if lane < 24:
        out[lane] = ld_shared_b32(place + uint32(16 + 4 * lane))
    else:
        x, y, z, w = ld_shared_v4(place)
        half = (lane - 24) // 2
        out[lane] = x if half == 0 else y if half == 1 else z if half == 2 else w
