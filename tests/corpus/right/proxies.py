"""Proxies: where a fence stands between ordinary accesses and copies, in shared and in global memory."""

import numpy as np
from base import right
from numba import cuda, int32, uint8, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_address,
    ld_acquire_gpu_global_b32,
    ld_shared_b32,
    shared_address,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    fence_mbarrier_init,
    fence_proxy_async,
    fence_proxy_async_full,
    fence_proxy_async_global,
)
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, THREADS = 32, 64
BYTES = 256


def ints(count, *shapes):
    return lambda: [np.arange(count, dtype=np.int32), *(np.zeros(s, np.int32) for s in shapes)]


def behind_a_map(array):
    return [TensorMapArray([TensorMap.of(array, (8, 2))]), array, np.zeros(16, np.uint32)]


@cuda.jit(device=True)
def init_one(bar):
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cuda.syncthreads()


@right(
    source="PTX ISA, fence.proxy.async.global; triton-lang/triton on TMA loads of what the kernel wrote itself",
    block=THREADS, args=ints(THREADS, THREADS, THREADS),
    expect=lambda data, middle, out: [(out, data[::-1] * 3)],
)  # fmt: skip
def written_by_threads_and_fetched_by_a_copy(data, middle, out):
    """The threads write to global memory, each has its fence for that, and after a syncthreads a bulk copy
    reads it."""
    tile = cuda.shared.array(THREADS, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar)
    middle[thread] = data[thread] * 3
    fence_proxy_async_global()
    cuda.syncthreads()
    if thread == 0:
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load(shared_address(tile), global_address(middle), BYTES, bar)
    mbarrier_wait(bar, 0)
    out[thread] = tile[63 - thread]


@right(
    source="PTX ISA, fence.proxy.async.global, with tensor copies",
    args=lambda: behind_a_map(np.full((4, 8), 7, np.uint32)),
    expect=lambda maps, array, out: [(array, np.arange(WARP).reshape(4, 8) + 7), (out, np.arange(8, 24) + 7)],
)  # fmt: skip
def written_by_lanes_and_fetched_by_a_map(maps: u64, array: u64, out: u64):
    """A box is loaded through a map; the lanes write by address to the array behind it, with a fence each, and
    the next box brings what they wrote. The first load was waited for, so the writes come after its reads."""
    tile = cuda.shared.array(BYTES, uint8, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    lane = int32(cuda.threadIdx.x)
    init_one(bar)
    for turn in range(2):
        if lane == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            mbarrier_arrive_expect_tx(bar, 64)
            cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, turn, bar)
        mbarrier_wait(bar, uint32(turn))
        word = ld_shared_b32(shared_address(tile) + uint32(4 * (lane % 16)))
        if turn == 0:
            st_global_b32(array + uint64(4 * lane), uint32(word + uint32(lane)))
            fence_proxy_async_global()
        elif lane < 16:
            st_global_b32(out + uint64(4 * lane), word)
        fence_proxy_async()
        cuda.syncwarp()


@right(
    source="PTX ISA memory consistency model, proxy-preserved base causality order: a fence anywhere on the "
           "path",
    block=THREADS, args=ints(THREADS, THREADS), expect=lambda data, out: [(out, data + 9)],
)  # fmt: skip
def the_thread_that_stores_has_the_fence(data, out):
    """The writers synchronise, and the fence comes after that, in the one thread that issues the store. It
    stands between the writes and the copy for all of them. (pytorch/ao pull request 4278 took that for a race,
    and put the fences before the barrier.)"""
    tile = cuda.shared.array(THREADS, int32, alignment=128)
    thread = int32(cuda.threadIdx.x)
    tile[thread] = data[thread] + 9
    cuda.syncthreads()
    if thread == 0:
        fence_proxy_async()
        cp_async_bulk_store(global_address(out), shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@right(
    source="deepseek-ai/DeepEP csrc/kernels: a TMA store is waited for, then a flag is released",
    grid=2, block=THREADS, args=lambda: [np.arange(THREADS, dtype=np.int32), np.zeros(THREADS, np.int32),
                                         np.zeros(1, np.uint32), np.zeros(THREADS, np.int32)],
    expect=lambda data, middle, flag, out: [(out, data[::-1] + 1)],
)  # fmt: skip
def a_stored_tile_is_announced(data, middle, flag, out):
    """Block 0 stores a tile by a copy, waits for its group to the end and releases a flag; block 1 acquires the
    flag and reads by ordinary loads. The wait for the reads alone would not be enough."""
    tile = cuda.shared.array(THREADS, int32, alignment=128)
    thread = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        tile[thread] = data[thread] + 1
        fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            cp_async_bulk_store(global_address(middle), shared_address(tile), BYTES)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)
            st_release_gpu_global_b32(global_address(flag), 1)
    else:
        if thread == 0:
            while ld_acquire_gpu_global_b32(global_address(flag)) == 0:
                pass
        cuda.syncthreads()
        out[thread] = middle[63 - thread]


@right(
    source="PTX ISA, proxies and causality order, between blocks: release, acquire, then the fence, then the "
           "copy",
    grid=2, block=THREADS, args=lambda: [np.arange(THREADS, dtype=np.int32), np.zeros(THREADS, np.int32),
                                         np.zeros(1, np.uint32), np.zeros(THREADS, np.int32)],
    expect=lambda data, middle, flag, out: [(out, data[::-1] * 2)],
)  # fmt: skip
def another_block_fetches_what_was_written(data, middle, flag, out):
    """Block 0 writes by ordinary stores and releases a flag; block 1 acquires it, fences for global memory, and
    loads by a bulk copy."""
    tile = cuda.shared.array(THREADS, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        middle[thread] = data[thread] * 2
        cuda.syncthreads()
        if thread == 0:
            st_release_gpu_global_b32(global_address(flag), 1)
        return
    init_one(bar)
    if thread == 0:
        while ld_acquire_gpu_global_b32(global_address(flag)) == 0:
            pass
        fence_proxy_async_global()
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load(shared_address(tile), global_address(middle), BYTES, bar)
    mbarrier_wait(bar, 0)
    out[thread] = tile[63 - thread]


@right(
    source="PTX ISA, fence.proxy.async without a space: one for shared and global memory",
    block=THREADS, args=ints(THREADS, 2 * THREADS),
    expect=lambda data, out: [(out, np.r_[data + 1, data + 1] + 1)],
)  # fmt: skip
def one_fence_for_both_memories(data, out):
    """Each thread writes a number to shared memory and one to global memory, and has one fence. Then a copy
    stores the shared ones over the upper half of the output and another brings the lower half."""
    up = cuda.shared.array(THREADS, int32, alignment=128)
    down = cuda.shared.array(THREADS, int32, alignment=128)
    bar = shared_address(cuda.shared.array(1, uint64))
    thread = int32(cuda.threadIdx.x)
    init_one(bar)
    up[thread] = data[thread] + 2
    out[thread] = data[thread] + 1
    fence_proxy_async_full()
    cuda.syncthreads()
    if thread == 0:
        cp_async_bulk_store(global_address(out) + uint64(BYTES), shared_address(up), BYTES)
        cp_async_bulk_commit_group()
        mbarrier_arrive_expect_tx(bar, BYTES)
        cp_async_bulk_load(shared_address(down), global_address(out), BYTES, bar)
        cp_async_bulk_wait_group(0)
    mbarrier_wait(bar, 0)
    out[thread] = down[thread] + 1
