"""Arrivals on an mbarrier: too few, too many, and in a phase that is not theirs."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_count,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import ld_global_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import init_barriers, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, TILES, BYTES, QUERIES = 32, 4, 128, 48


def tiles(count=TILES):
    """Arguments: that many tiles of 32 numbers, and room for 64."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(2 * WARP, np.uint32)]


@wrong(faults.TooManyArrivals, source="deepseek-ai/DeepEP pull request 293", args=tiles(1), hardware="guarded")
def whole_warp_arrives_for_one(data: u64, out: u64):
    """The barrier expects one arrival, and all lanes of the warp make it: the rest spills into later phases."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 1)
    cuda.syncthreads()
    mbarrier_arrive(bar)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.MissingArrivals, source="NVIDIA/cutlass issue 2404", block=64, args=tiles(1), hardware="guarded")
def count_of_threads_one_arrives(data: u64, out: u64):
    """The full barrier was made for the producer's 32 threads, and the one that issues the copy arrives."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i % WARP])


@wrong(
    faults.MissingArrivals, source="facebookexperimental/triton pull request 104", block=96,
    args=tiles(1), hardware="guarded",
)  # fmt: skip
def count_for_four_warps(data: u64, out: u64):
    """The barrier counts four warps, and the group has three."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 4)
    cuda.syncthreads()
    if i % WARP == 0:
        mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)  # <- fault
    if i < WARP:
        st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.MissingArrivals, source="pytorch/FBGEMM pull request 5857: an early return before a barrier",
    block=64, args=tiles(2), hardware="guarded",
)  # fmt: skip
def idle_threads_return_first(data: u64, out: u64):
    """Threads without a query return before the barrier, which counts all 64. Unlike syncthreads, an mbarrier
    does not know that they have gone."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 2 * WARP)
    cuda.syncthreads()
    if i >= QUERIES:
        return
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.TooManyArrivals, faults.UnobservedPhase, source="triton-lang/triton pull request 8285", block=64,
    args=tiles(1), hardware="guarded",
)  # fmt: skip
def arrives_in_the_branch_and_behind_it(data: u64, out: u64):
    """One branch arrives, and so does the common path after it: that warp counts twice in the phase."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 2 * WARP)
    cuda.syncthreads()
    if i < WARP:
        st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))
        mbarrier_arrive(bar)  # <- fault
    mbarrier_arrive(bar)  # <- fault
    mbarrier_wait(bar, 0)


@wrong(
    faults.UnobservedPhase, source="PTX ISA 9.7.13.15.4, phases of an mbarrier", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def signals_without_waiting(data: u64, out: u64):
    """One thread signals step after step and never waits itself: nothing tells it that the last phase is over,
    and the others may miss it."""
    steps = cuda.shared.array(TILES, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(bar, 1)
    cuda.syncthreads()
    for t in range(TILES):
        if i == 0:
            steps[t] = ld_global_b32(data + uint64(4 * t))
            mbarrier_arrive(bar)  # <- fault
        else:
            mbarrier_wait(bar, t & 1)
            total += steps[t]
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.NobodyLeft, source="PTX ISA 9.7.13.15.14; ogiroux/atomic_wait issue 2", args=tiles(1),
    hardware="guarded",
)  # fmt: skip
def last_one_drops_out(data: u64, out: u64):
    """Both participants leave by arrive_drop, and nobody would be left to complete a phase."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 2)
    cuda.syncthreads()
    if i < 2:
        mbarrier_arrive_drop(bar)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.TooManyArrivals, source="NVIDIA/cccl pull request 1147: arrive and arrive_and_drop", args=tiles(1),
    hardware="guarded",
)  # fmt: skip
def arrives_after_dropping_out(data: u64, out: u64):
    """Half of the warp drops out, and arrives in the next phase all the same."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    if i < 16:
        mbarrier_arrive_drop(bar)  # <- fault
    else:
        mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 1)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.TooManyArrivals, source="PTX ISA 9.7.13.15.13: a count beyond the pending arrivals is undefined",
    args=tiles(1), hardware="guarded",
)  # fmt: skip
def count_beyond_the_pending(data: u64, out: u64):
    """Lane 0 arrives for a warp of 32, and lane 1, which was counted among them, for itself."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    if i == 1:
        mbarrier_arrive(bar)  # <- fault
    if i == 0:
        mbarrier_arrive_count(bar, WARP)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.MissingArrivals, source="vllm-project/vllm pull request 26026: roles without work arrive too",
    block=64, args=tiles(), hardware="guarded",
)  # fmt: skip
def role_without_work_skips_its_arrival(data: u64, out: u64):
    """The consumer skips a tile that is masked out, and with it the release of its stage: the producer waits
    for ever."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    full = shared_address(bars)
    empty = full + uint32(8)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            mbarrier_wait(empty, t & 1 ^ 1)  # <- fault
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)  # <- fault
            if t != 1:
                total += tile[i - WARP]
                mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.MissingArrivals, source="tile-ai/tilelang pull request 1396: arrivals under a condition of one lane",
    block=64, args=tiles(1), hardware="guarded",
)  # fmt: skip
def one_warp_releases_for_two(data: u64, out: u64):
    """Two barriers take turns; each was made for two warps, and only warp 0 knows that it has to arrive."""
    bars = cuda.shared.array(2, uint64)
    first, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(first, 2, 2)
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive(first)
        mbarrier_arrive(first + uint32(8))
    mbarrier_wait(first, 0)  # <- fault
    mbarrier_wait(first + uint32(8), 0)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data))
