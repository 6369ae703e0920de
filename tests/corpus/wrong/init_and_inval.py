"""The life of an mbarrier: its init, its memory, and its end."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
)
from numba_deform.device.memory import ld_global_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import init_barriers, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 3, 128
WORDS = TILES * WARP


def tiles(count=TILES):
    """Arguments: that many tiles of 32 numbers, and room for 64."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(2 * WARP, np.uint32)]


@wrong(
    faults.InitNotOrdered, faults.NotABarrier, source="NVIDIA/Fuser issue 1552 and pull request 1769", block=64,
    args=tiles(), hardware="guarded",
)  # fmt: skip
def no_barrier_after_init(data: u64, out: u64):
    """Thread 0 initialises the barrier, and the other warp may arrive before that: it hung on H100s."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 64)
    mbarrier_arrive(bar)  # <- fault
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.LiveBarrierInit, source="NVIDIA/Fuser pull request 1990", args=tiles(), hardware="guarded")
def everybody_initialises(data: u64, out: u64):
    """No condition stands before the init, so all threads do it: undefined once the first has."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    mbarrier_init(bar, WARP)  # <- fault
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.LiveBarrierInit, source="PTX ISA 9.7.13.15.9", args=tiles(), hardware="guarded")
def fresh_barrier_for_every_tile(data: u64, out: u64):
    """A persistent block initialises its barrier anew for each tile, so that the parity starts at 0, and does
    not end the last one's life."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    for t in range(TILES):
        if i == 0:
            mbarrier_init(full, 1)  # <- fault
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        total += tile[i]
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.NotABarrier, source="NVIDIA/cutlass issue 2364", block=128, args=tiles())
def expect_instead_of_init(data: u64, out: u64):
    """An operation that sounds like an init expects bytes on a barrier that there is not: the kernel fails."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_expect_tx(bar, 1)  # <- fault
        fence_mbarrier_init()
    cuda.syncthreads()
    if i < 64:
        st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.NotABarrier, source="PTX ISA 9.7.13.15.9: operations on what was not initialised", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def one_barrier_too_few(data: u64, out: u64):
    """A ring of three stages, and the loop that initialises their barriers makes two."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(TILES, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        init_barriers(full, TILES - 1, 1)
        fence_mbarrier_init()
        for s in range(TILES):
            bar, slot = full + uint32(8 * s), shared_address(tile) + uint32(BYTES * s)
            mbarrier_arrive_expect_tx(bar, BYTES)  # <- fault
            cp_async_bulk_load(slot, data + uint64(BYTES * s), BYTES, bar)
    cuda.syncthreads()
    for s in range(TILES):
        mbarrier_wait(full + uint32(8 * s), 0)
        total += tile[WARP * s + i]
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.BadCount, source="PTX ISA 9.7.13.15.9, the range of the count", args=tiles())
def count_of_nobody(data: u64, out: u64):
    """The number of consumers is a quotient that comes out as zero."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, cuda.blockDim.x // 64)  # <- fault
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.LiveBarrierAccess, source="triton-lang/triton pull request 3858", args=tiles())
def memory_reused_without_inval(data: u64, out: u64):
    """The barrier has done its work, and its bytes are used for numbers. Without inval that is undefined, and
    was suspected of sporadic corruption."""
    bars = cuda.shared.array(WARP, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    cuda.syncthreads()
    bars[i] = ld_global_b32(data + uint64(4 * i))  # <- fault
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(bars[31 - i]))


@wrong(
    faults.LiveBarrierAccess, source="PTX ISA 9.7.13.15.2: an mbarrier object is opaque", args=tiles(),
)  # fmt: skip
def looks_into_the_barrier(data: u64, out: u64):
    """The phase is read from the barrier's own bytes, for debugging. They are opaque, and no ordinary access
    may touch them."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    st_global_b32(out + uint64(4 * i), uint32(bars[0] >> uint64(63)))  # <- fault


@wrong(
    faults.InvalNotOrdered, source="NVIDIA/TransformerEngine pull request 3417", block=64,
    args=tiles(), hardware="guarded",
)  # fmt: skip
def ends_it_while_others_wait(data: u64, out: u64):
    """Thread 0 is through its wait and ends the barrier's life; the other warp may still be waiting."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, 64)
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    if i == 0:
        mbarrier_inval(bar)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.NotABarrier, source="NVIDIA/Fuser pull request 1663: how long a barrier lives", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def used_after_its_end(data: u64, out: u64):
    """The barrier is ended after the first loop, and the second one uses it again."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    for t in range(2):
        if i == 0 and t == 0:
            mbarrier_init(bar, WARP)
        cuda.syncthreads()
        mbarrier_arrive(bar)  # <- fault
        mbarrier_wait(bar, 0)
        cuda.syncthreads()
        if i == 0:
            mbarrier_inval(bar)
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.UninitialisedRead, source="PTX ISA 9.7.13.15.10: the memory after inval", args=tiles(),
)  # fmt: skip
def reads_what_the_barrier_left(data: u64, out: u64):
    """After inval the bytes are free, and hold nothing: they are read as if they were zero."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    cuda.syncthreads()
    if i == 0:
        mbarrier_inval(bar)
        bars[0] += uint64(1)  # <- fault
        st_global_b32(out, uint32(bars[0]))


@wrong(
    faults.Misaligned, source="PTX ISA 9.7.13.15.1, size and alignment", shared_bytes=64, args=tiles(),
)  # fmt: skip
def barrier_behind_three_words(data: u64, out: u64):
    """Dynamic shared memory is handed out word by word, and the barrier comes after three: it needs 8 bytes."""
    area = cuda.shared.array(0, uint32)
    bar, i = shared_address(area) + uint32(12), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)  # <- fault
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(faults.MissingInitFence, source="MoonshotAI/FlashKDA issue 24", args=tiles(), hardware="guarded")
def fence_before_the_last_init(data: u64, out: u64):
    """The fence stands between the inits: the copy engine need not see the second barrier."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    first, i = shared_address(bars), int32(cuda.threadIdx.x)
    second = first + uint32(8)
    if i == 0:
        mbarrier_init(first, WARP)
        fence_mbarrier_init()
        mbarrier_init(second, 1)
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(second, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, second)  # <- fault
    mbarrier_wait(second, 0)
    st_global_b32(out + uint64(4 * i), tile[i])
