"""Waits for the wrong phase of an mbarrier."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cp_async import cp_async_ca_4, cp_async_mbarrier_arrive_noinc, cp_async_wait_all
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import global_address, ld_global_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import init_barriers, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, STAGES, TILES, BYTES = 32, 2, 4, 128
WORDS = STAGES * WARP


def tiles(count=TILES):
    """Arguments: that many tiles of 32 numbers, and room for one."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(WARP, np.uint32)]


@wrong(
    faults.StaleWait, faults.RefillRace, source="tile-ai/tilelang pull request 3087", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def parity_of_the_first_round(data: u64, out: u64):
    """The barrier completes once a round, and the wait names parity 0 in all of them: from the second round on
    it passes at once, and the tile is read before or while the copy writes it."""
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
        mbarrier_wait(full, 0)
        total += tile[i]  # <- fault
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.FreshBarrierPassed, source="Dao-AILab/flash-attention issue 1317",
    args=tiles(1), hardware="guarded",
)  # fmt: skip
def consumer_starts_with_one(data: u64, out: u64):
    """The consumer's first wait names parity 1, which a fresh barrier passes: nothing has arrived yet.
    If the copy is quick, the wait is for the phase after, and hangs."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_wait(full, 1)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i])  # <- fault


@wrong(
    faults.FreshBarrierPassed, source="PTX ISA 9.7.13.15.16, waits for a phaseParity", block=64, args=tiles(1),
    hardware="guarded",
)  # fmt: skip
def reader_starts_with_one(data: u64, out: u64):
    """The same with ordinary stores, whoever comes first: the reader passes, or hangs behind the phase that it
    wants."""
    tile = cuda.shared.array(WARP, uint32)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)
    if i < WARP:
        tile[i] = 0
    cuda.syncthreads()
    if i < WARP:
        tile[i] = ld_global_b32(data + uint64(4 * i))
        mbarrier_arrive(full)
    else:
        mbarrier_wait(full, 1)  # <- fault
        st_global_b32(out + uint64(4 * (i - WARP)), tile[i - WARP])  # <- fault


@wrong(
    faults.FreshBarrierPassed, source="NVIDIA/Fuser pull request 3155", args=tiles(),
    hardware="guarded",
)  # fmt: skip
def parity_flips_with_the_tile(data: u64, out: u64):
    """With two stages the parity flips every second tile; here it flips with every tile, and the first wait on
    the second barrier passes at once."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        init_barriers(full, STAGES, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        stage = t % STAGES
        bar, slot = full + uint32(8 * stage), shared_address(tile) + uint32(BYTES * stage)
        if i == 0:
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(slot, data + uint64(BYTES * t), BYTES, bar)
        cuda.syncthreads()
        mbarrier_wait(bar, t & 1)  # <- fault
        total += tile[WARP * stage + i]  # <- fault
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(
    faults.StaleWait, faults.MissingArrivals, source="tile-ai/tilelang pull request 2674", args=tiles(6),
    hardware="guarded",
)  # fmt: skip
def phases_start_anew_with_each_tile(data: u64, out: u64):
    """A persistent block does three steps for each of its tiles and counts the parity from 0 each time. The
    barrier has gone on: after an odd number of steps its phases have the other parity."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(2):
        for k in range(3):
            if i == 0:
                mbarrier_arrive_expect_tx(full, BYTES)
                cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * (3 * t + k)), BYTES, full)
            cuda.syncthreads()
            mbarrier_wait(full, k & 1)  # <- fault
            total += tile[i]  # <- fault
            cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.InFlightRead, source="PTX ISA 9.7.9.25.1.2: a copy completes on its barrier", args=tiles(2))
def waits_on_the_first_barrier_only(data: u64, out: u64):
    """Two copies complete on two barriers, and both reads wait on the first."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full = shared_address(cuda.shared.array(STAGES, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(full, STAGES, 1)
        fence_mbarrier_init()
        for s in range(STAGES):
            bar = full + uint32(8 * s)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(shared_address(tile) + uint32(BYTES * s), data + uint64(BYTES * s), BYTES, bar)
    cuda.syncthreads()
    mbarrier_wait(full, 0)
    st_global_b32(out + uint64(4 * i), uint32(tile[i] + tile[WARP + i]))  # <- fault


@wrong(faults.InFlightRead, source="NVIDIA/cccl pull request 7538: a wait's result is dropped", args=tiles(1))
def one_look_is_no_wait(data: u64, out: u64):
    """test_wait never blocks; its answer, that the phase is not complete, is ignored."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_test_wait_parity(full, uint32(0))
    st_global_b32(out + uint64(4 * i), tile[i])  # <- fault
    mbarrier_wait(full, 0)


@wrong(
    faults.MissedPhase, source="triton-lang/triton pull request 10035", block=96, args=tiles(1),
    hardware="guarded",
)  # fmt: skip
def leader_answers_for_two_warps(data: u64, out: u64):
    """One thread of the two consumer warps tells the producer to go on as soon as it has seen the phase itself.
    The other warp may not have looked yet, and then waits for a parity that means the phase after."""
    bars = cuda.shared.array(2, uint64)
    ready = shared_address(bars)
    empty = ready + uint32(8)
    i = int32(cuda.threadIdx.x)
    if i == 0:
        init_barriers(ready, 2, 1)
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            mbarrier_wait(empty, t & 1 ^ 1)
            mbarrier_arrive(ready)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(ready, t & 1)  # <- fault
            if i == WARP:
                mbarrier_arrive(empty)
    if i >= 64:
        st_global_b32(out + uint64(4 * (i - 64)), ld_global_b32(data))


@wrong(
    faults.MissingArrivals, source="NVIDIA/cutlass, make_producer_start_state", block=64,
    args=tiles(), hardware="guarded",
)  # fmt: skip
def producer_starts_with_zero(data: u64, out: u64):
    """The producer waits on a fresh empty barrier for parity 0, that is for a release that comes after its
    first copy: it hangs, and so do the consumers."""
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
            mbarrier_wait(empty, t & 1)  # <- fault
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
    elif i >= WARP:
        for t in range(TILES):
            mbarrier_wait(full, t & 1)  # <- fault
            total += tile[i - WARP]
            mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * (i - WARP)), uint32(total))


@wrong(faults.BadCount, source="flagos-ai/FlagTree pull request 707", args=tiles(1), hardware="guarded")
def count_of_uses_as_parity(data: u64, out: u64):
    """The wait gets the number of the use instead of its lowest bit. A parity is 0 or 1; 2 means nothing."""
    bars = cuda.shared.array(1, uint64)
    bar, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    for use in range(3):
        mbarrier_arrive(bar)
        mbarrier_wait(bar, use)  # <- fault
    st_global_b32(out + uint64(4 * i), ld_global_b32(data + uint64(4 * i)))


@wrong(
    faults.MissedPhase, faults.DataRace, source="triton pull request 10035: who sees every phase",
    block=96, args=tiles(1), hardware="guarded",
)  # fmt: skip
def looks_at_every_second_phase(data: u64, out: u64):
    """One warp needs every second step only, and waits for those alone. Nothing holds the others back for it,
    so it may find the barrier two phases on, where the same parity means another."""
    steps = cuda.shared.array(TILES, uint32)
    bars = cuda.shared.array(2, uint64)
    ready = shared_address(bars)
    empty = ready + uint32(8)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        init_barriers(ready, 2, 1)
    cuda.syncthreads()
    if i == 0:
        for t in range(TILES):
            mbarrier_wait(empty, t & 1 ^ 1)
            steps[t] = ld_global_b32(data + uint64(4 * t))
            mbarrier_arrive(ready)
    elif i == WARP:
        for t in range(TILES):
            mbarrier_wait(ready, t & 1)
            total += steps[t]
            mbarrier_arrive(empty)
        st_global_b32(out, uint32(total))
    elif i == 64:
        for t in range(0, TILES, 2):
            mbarrier_wait(ready, t & 1)  # <- fault
            total += steps[t]  # <- fault
        st_global_b32(out + uint64(4), uint32(total))


@wrong(
    faults.UnobservedPhase, faults.TooManyArrivals, block=64,
    source="PTX ISA 9.7.13.15 (mbarrier): each phase is observed by a wait before an arrival on the next",
    args=lambda: [np.arange(64, dtype=np.float32), np.zeros(WARP, np.float32)],
)  # fmt: skip
def nobody_waits_between_the_copies_arrivals(data, out):
    """Each tile has a full barrier of its own, which copies complete; for each the consumers arrive on one and
    the same barrier, on which nobody waits: which phase the second arrival counts in, nobody knows."""
    tiles = cuda.shared.array(64, float32, alignment=16)
    full, done = (shared_address(cuda.shared.array(2, uint64)), shared_address(cuda.shared.array(1, uint64)))
    thread = int32(cuda.threadIdx.x)
    lane = thread % WARP
    if thread == 0:
        for t in range(2):
            mbarrier_init(full + uint32(8 * t), WARP)
        mbarrier_init(done, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    if thread < WARP:
        for t in range(2):
            slot = shared_address(tiles) + uint32(4 * (WARP * t + lane))
            cp_async_ca_4(slot, global_address(data) + uint64(4 * (WARP * t + lane)), 4)
            cp_async_mbarrier_arrive_noinc(full + uint32(8 * t))
        cp_async_wait_all()
    else:
        total = float32(0)
        for t in range(2):
            mbarrier_wait(full + uint32(8 * t), 0)
            total += tiles[WARP * t + lane]
            mbarrier_arrive(done)  # <- fault
        out[lane] = total
