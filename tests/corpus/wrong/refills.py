"""Stages of a ring that are filled again while somebody still reads them, and reads at the wrong time."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.matrix import ldmatrix_x1
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async  # noqa: F401  in cures
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 4, 128
WORDS, BOTH = TILES * WARP, 2 * WARP


def tiles(count=TILES):
    """Arguments: that many tiles of 32 numbers, and room for 96."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(3 * WARP, np.uint32)]


def of_the_first_warp(data, out):
    return [(out[:WARP], data.reshape(-1, WARP).sum(0))]


def of_the_second_warp(data, out):
    return [(out[WARP : 2 * WARP], data.reshape(-1, WARP).sum(0))]


def of_both_warps(data, out):
    return [(out[: 2 * WARP], data.reshape(-1, 2 * WARP).sum(0))]


@wrong(
    faults.RefillRace, source="NVIDIA/TransformerEngine pull request 3417", block=64, args=tiles(),
    hardware="guarded",
)  # fmt: skip
def refills_after_its_own_wait(data: u64, out: u64):
    """The thread that issues has waited and read itself, and refills the tile while the other warp reads it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i == 0:
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
        mbarrier_wait(full, t & 1)
        total += tile[i % WARP]
        cuda.syncwarp()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.RefillRace, source="tile-ai/tilelang issue 2613", block=64, args=tiles())
def loop_back_barrier_missing(data: u64, out: u64):
    """All wait for the tile at the head of the loop. At its end a barrier is missing, which the next refill
    needs."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    for t in range(2):
        if i == 0:
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
            mbarrier_wait(full, t & 1)
        cuda.syncthreads()
        total += tile[i % WARP]
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.RefillRace, faults.StaleRefill, source="NVIDIA/cutlass issue 2404: group sizes", block=96,
    args=tiles(), hardware="guarded",
)  # fmt: skip
def one_of_two_readers_releases(data: u64, out: u64):
    """Two warps read a stage, and the empty barrier counts the arrivals of one: the tile is replaced while the
    other one reads it."""
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
            mbarrier_wait(empty, t & 1 ^ 1)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)
            total += tile[i % WARP]
            if i < 64:
                mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.ReadAfterRelease, source="Dao-AILab/flash-attention pull request 2033: early releases",
    block=64, args=tiles(),
)  # fmt: skip
def releases_before_the_last_read(data: u64, out: u64):
    """The consumer gives the stage back and reads one more number of it."""
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
            mbarrier_wait(empty, t & 1 ^ 1)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)
            total += tile[i - WARP]
            mbarrier_arrive(empty)
            total += tile[63 - i]  # <- fault
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.StaleRefill, faults.RefillRace, source="tilelang pull request 3087", block=64, args=tiles(),
    hardware="guarded",
)  # fmt: skip
def producer_parity_never_flips(data: u64, out: u64):
    """The producer waits on the empty barrier for parity 1 each time. From the second time on that is a phase
    which is long over."""
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
            mbarrier_wait(empty, 1)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
            mbarrier_wait(full, t & 1)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)
            total += tile[i - WARP]
            mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.CopyCollision, source="triton-lang/triton pull request 11162", args=tiles())
def two_copies_into_one_stage(data: u64, out: u64):
    """A second load goes into the stage of a first one, each with a barrier of its own; the copies are not
    ordered, so the tile may hold rows of both."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    full, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(full + uint32(8), 1)
        fence_mbarrier_init()
        for t in range(2):
            bar = full + uint32(8 * t)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, bar)  # <- fault
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    mbarrier_wait(full + uint32(8), 0)
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.CopyCollision, faults.TooManyArrivals, faults.UnobservedPhase, source="tilelang issue 2668",
    block=64, args=tiles(), hardware="guarded",
)  # fmt: skip
def prefetch_one_stage_too_far(data: u64, out: u64):
    """A ring of three stages is filled four tiles ahead: the fourth goes into the first one's stage."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    full, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        for s in range(3):
            mbarrier_init(full + uint32(8 * s), 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            stage = t % 3
            bar, slot = full + uint32(8 * stage), shared_address(tile) + uint32(BYTES * stage)
            mbarrier_arrive_expect_tx(bar, BYTES)  # <- fault
            cp_async_bulk_load(slot, data + uint64(BYTES * t), BYTES, bar)  # <- fault
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), tile[i % WARP])


@wrong(
    faults.DataRace, source="NVIDIA/cudnn-frontend pull request 426: a hand-over in shared memory", block=64,
    args=tiles(),
)  # fmt: skip
def scratch_written_over_a_copy(data: u64, out: u64):
    """A tile is used as scratch space while a copy into it is on its way."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)  # <- fault
    cuda.syncthreads()
    if i >= WARP:
        tile[i - WARP] = i  # <- fault
    mbarrier_wait(full, 0)
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[i % WARP])


@wrong(faults.InFlightRead, source="PTX ISA 9.7.9.25.1.2; CUDA guide, asynchronous data copies", args=tiles())
def syncthreads_is_no_wait(data: u64, out: u64):
    """syncthreads orders the block's threads, and the copy is none of them: its bytes may still be missing."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[i])  # <- fault
    mbarrier_wait(full, 0)


@wrong(
    faults.MissingRefillFence, source="deepseek-ai/DeepEP pull request 642, before it", block=64, args=tiles(),
    expect=of_the_second_warp, names=("fence_proxy_async()", "in the thread that issues the copy"),
)  # fmt: skip
def refills_behind_the_wait_without_a_fence(data: u64, out: u64):
    """A warp adds up tiles and arrives; the other one waits for that and has TMA load the next. Loads that are
    under way may return it: an arrival orders them before ordinary writes, and the copy engine's are none."""
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
            mbarrier_wait(empty, t & 1 ^ 1)
            # cure: fence_proxy_async()
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)
            total += tile[i - WARP]
            mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.MissingRefillFence, source="NVIDIA/TransformerEngine pull request 2695, before it", block=64,
    args=tiles(), expect=of_the_second_warp, names=("fence_proxy_async()", "in each thread that has read"),
)  # fmt: skip
def matrices_are_given_back_without_a_fence(data: u64, out: u64):
    """A warp takes matrices to its registers by ldmatrix, gives the stage back at once, and multiplies later.
    So the arrival is made while the loads are under way, and some of them return the next tile."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    full = shared_address(bars)
    empty = full + uint32(8)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            mbarrier_wait(empty, t & 1 ^ 1)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)  # <- fault
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)
            word = ldmatrix_x1(shared_address(tile) + uint32(16 * (i % 8)))
            # cure: fence_proxy_async()
            cuda.syncwarp()
            if i == WARP:
                mbarrier_arrive(empty)
            total += word
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.MissingRefillFence, source="deepseek-ai/DeepGEMM pull request 389, before it", block=WARP,
    args=tiles(), expect=of_the_first_warp, names=("fence_proxy_async()", "in each thread that has read"),
)  # fmt: skip
def a_warp_refills_what_it_has_read_without_a_fence(data: u64, out: u64):
    """A warp adds up two stages in turn; its lanes meet, and its first one has TMA fill the stage again. What
    they order among themselves the copy engine does not see."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = shared_address(cuda.shared.array(2, uint64))
    lane, total = int32(cuda.threadIdx.x), uint32(0)
    if lane == 0:
        mbarrier_init(full, 1)
        mbarrier_init(full + uint32(8), 1)
        fence_mbarrier_init()
    cuda.syncwarp()
    for t in range(-1, TILES):
        if lane == 0 and t + 1 < TILES:
            bar, slot = full + 8 * (t + 1 & 1), shared_address(tile) + BYTES * (t + 1 & 1)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(slot, data + uint64(BYTES * (t + 1)), BYTES, bar)  # <- fault
        if t >= 0:
            mbarrier_wait(full + 8 * (t & 1), t >> 1 & 1)
            total += tile[t & 1, lane]
            # cure: fence_proxy_async()
            cuda.syncwarp()
    st_global_b32(out + uint64(4 * lane), uint32(total))


@wrong(
    faults.MissingRefillFence, source="an H100, bench/NOTES.md: syncthreads in place of an empty barrier",
    block=64, args=tiles(), expect=of_both_warps, names=("fence_proxy_async()", "in each thread that has read"),
)  # fmt: skip
def syncthreads_is_no_fence_for_the_refill(data: u64, out: u64):
    """All threads read the tile and meet at syncthreads, behind which the next one is asked for. The barrier
    does not wait until loads have returned, and the copy engine does not wait behind them either."""
    tile = cuda.shared.array(BOTH, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(2):
        if i == 0:
            mbarrier_arrive_expect_tx(full, 2 * BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(2 * BYTES * t), 2 * BYTES, full)  # <- fault
        mbarrier_wait(full, t)
        total += tile[i]
        # cure: fence_proxy_async()
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))
