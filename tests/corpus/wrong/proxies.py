"""Ordinary accesses and the copy engine: the fences between the two, and those for tensor maps."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_tensor_2d,
    cp_async_bulk_tensor_2d_store,
    cp_async_bulk_wait_group,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, BYTES, ROUNDS = 32, 128, 2
ROWS, COLUMNS = 4, 8


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


def mapped():
    """Arguments: maps of two matrices of 4 rows of 8 numbers, and the matrices."""
    both = [np.arange(WARP, dtype=np.uint32).reshape(ROWS, COLUMNS) + k for k in range(2)]
    return [TensorMapArray([TensorMap.of(a, (COLUMNS, ROWS)) for a in both]), *both]


# --- shared memory ------------------------------------------------------------------------------------
@wrong(faults.MissingProxyFence, source="NVIDIA/cudnn-frontend pull request 784", block=64, args=mapped)
def named_barrier_before_a_tensor_store(maps: u64, data: u64, out: u64):
    """The epilogue writes its tile, and a named barrier orders its warps. That says nothing to the copy engine,
    which reads through another proxy: 120 of the elements differed between two runs."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        tile[i] = uint32(2 * i)
    bar_sync(1, 64)
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_async_bulk_tensor_2d_store(maps, 0, 0, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.MissingProxyFence, source="facebookexperimental/triton pull request 368", args=words(32, 32))
def fence_behind_the_store(data: u64, out: u64):
    """The fence is there, and stands behind the store that needs it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        fence_proxy_async()
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(
    faults.MissingProxyFence, source="MoonshotAI/FlashKDA issue 24: empty sequences",
    args=words(32, 32),
)  # fmt: skip
def fence_in_a_loop_of_no_rounds(rounds: u64, out: u64):
    """The tile is set to zero before the loop, and the fence stands in the loop: without a single round the
    zeros are stored unfenced."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(0)
    for t in range(ld_global_b32(rounds)):
        tile[i] += uint32(t)
        fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.MissingProxyFence, source="NVIDIA/Fuser pull request 5448; PTX ISA 9.7.13.4", args=words(32, 64))
def fence_of_the_first_round_only(data: u64, out: u64):
    """The writes of the first round are fenced, those of the second are not."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for t in range(ROUNDS):
        tile[i] = uint32(ld_global_b32(data + uint64(4 * i)) + uint32(t))
        if t == 0:
            fence_proxy_async()
        cuda.syncwarp()
        if i == 0:
            cp_async_bulk_store(out + uint64(BYTES * t), shared_address(tile), BYTES)  # <- fault
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)
        cuda.syncwarp()


@wrong(faults.MissingProxyFence, source="tile-ai/tilelang issue 1648: a fill, then a copy", args=words(32, 32))
def copy_over_a_cleared_tile(data: u64, out: u64):
    """The tile is cleared by ordinary writes, and a copy is issued into it: the zeros may arrive later."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    tile[i] = uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingProxyFence, source="PTX ISA 9.7.9.25.2, cp.async: not of the async proxy", args=words(32, 32),
)  # fmt: skip
def bulk_store_of_what_cp_async_brought(data: u64, out: u64):
    """cp.async writes shared memory through the generic proxy, for all its name: the bulk store behind it needs
    the fence."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    if i < 8:
        cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)
        cp_async_commit_group()
        cp_async_wait_group(0)
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


# --- global memory ------------------------------------------------------------------------------------
@wrong(faults.MissingProxyFence, source="PTX ISA 9.7.13.4, fence.proxy.async.global", args=words(32, 32))
def bulk_load_of_what_was_just_stored(data: u64, out: u64):
    """The block writes its input to global memory by ordinary stores and loads it back by a bulk copy, with a
    barrier between and no fence for the proxy."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    st_global_b32(data + uint64(4 * i), uint32(3 * i))
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.MissingProxyFence, source="PTX ISA 9.7.13.4: the shared and the global form", args=words(32, 32))
def fence_for_the_wrong_memory(data: u64, out: u64):
    """The fence names shared memory, and the writes went to global memory."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    st_global_b32(data + uint64(4 * i), uint32(3 * i))
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    fence_proxy_async()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.MissingProxyFence, source="flashinfer-ai/flashinfer pull request 3835", args=mapped)
def tensor_load_of_what_was_just_stored(maps: u64, data: u64, out: u64):
    """As with a bulk copy: the matrix is written through its address and loaded through its map."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    st_global_b32(data + uint64(4 * i), uint32(3 * i))
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingProxyFence, source="deepseek-ai/DeepEP issue 621", grid=2, args=words(32, 1, 32),
    hardware="guarded",
)  # fmt: skip
def polls_the_flag_then_copies(data: u64, flag: u64, out: u64):
    """Block 1 polls a flag by ordinary loads, with acquire, and then copies by the engine what block 0 wrote:
    the flag says that the data are there for ordinary loads only."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(data + uint64(4 * i), uint32(3 * i))
        cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(flag, uint32(1))
    else:
        if i == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        st_global_b32(out + uint64(4 * i), tile[i])


# --- tensor maps --------------------------------------------------------------------------------------
@wrong(faults.MissingTensormapFence, source="triton pull request 4342", args=mapped, hardware="guarded")
def map_without_fence(maps: u64, data: u64, out: u64):
    """The map lies in global memory, where the host has put it, and no block acquires it: an SM may use one
    that lay there before. It hung, or loaded from elsewhere."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(faults.MissingTensormapFence, source="cudnn-frontend pull request 898", args=mapped, hardware="guarded")
def fence_of_the_first_map_only(maps: u64, data: u64, out: u64):
    """A fence covers the 128 bytes of one map. The first of the array is acquired, and the second used."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps + uint64(128), 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingTensormapFence, source="llvm-project pull request 133218", grid=2, args=mapped,
    hardware="guarded",
)  # fmt: skip
def block_0_fences_for_all(maps: u64, data: u64, out: u64):
    """Block 0 acquires the map, and all blocks use it; each needs a fence of its own."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        if cuda.blockIdx.x == 0:
            fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    if cuda.blockIdx.x == 0:
        st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingTensormapFence, source="CUDA guide, tensor maps in global memory", block=64, args=mapped,
    hardware="guarded",
)  # fmt: skip
def fence_by_a_thread_that_nobody_waits_for(maps: u64, data: u64, out: u64):
    """One warp acquires the map, and the other one uses it without a barrier in between."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        fence_proxy_tensormap_acquire_sys(maps)
    if i == 32:
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_tensor_2d(shared_address(tile), maps, 0, 0, full)  # <- fault
    mbarrier_wait(full, 0)
    if i < WARP:
        st_global_b32(out + uint64(4 * i), tile[i])
