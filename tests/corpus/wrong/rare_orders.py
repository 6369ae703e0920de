"""Programs that are right in most orders of their threads, and wrong in a rare one."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_deform.device.memory import atom_cas_gpu_global_b32, ld_global_b32, shared_address, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    bar_sync,
    elect_sync,
    fence_acq_rel_gpu,
    fence_mbarrier_init,
    fence_proxy_async,
)
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

ALL, WARP, ROUNDS, BYTES = 0xFFFFFFFF, 32, 8, 128
FOUR = 4 * WARP


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


@wrong(
    faults.InFlightRead, source="PTX ISA 9.7.13.15.16; NVIDIA/cccl pull request 7538", args=words(32, 32),
)  # fmt: skip
def try_wait_without_a_loop(data: u64, out: u64):
    """try_wait suspends the thread, and may give up before the phase is complete. It mostly does not."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    mbarrier_try_wait_parity(full, uint32(0))
    st_global_b32(out + uint64(4 * i), tile[i])  # <- fault
    mbarrier_wait(full, 0)


@wrong(
    faults.InFlightRead, source="PTX ISA 9.7.13.15.16, test_wait", block=64, args=words(32, 32),
)  # fmt: skip
def gives_up_after_many_looks(data: u64, out: u64):
    """Who has looked 20 times reads what has not arrived. Mostly it arrives before that."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    elif i >= WARP:
        looks = 0
        while looks < 20 and mbarrier_test_wait_parity(full, uint32(0)) == 0:
            looks += 1
        st_global_b32(out + uint64(4 * (i - WARP)), tile[i - WARP])  # <- fault
    mbarrier_wait(full, 0)


@wrong(
    faults.DataRace, source="PTX ISA 9.7.13.15.16, try_wait", block=64, args=words(32, 32),
)  # fmt: skip
def try_wait_for_the_other_warp(data: u64, out: u64):
    """The same between two warps: when try_wait gives up, the other warp has not written yet."""
    box = cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cuda.syncthreads()
    if i < WARP:
        box[i] = ld_global_b32(data + uint64(4 * i))  # <- fault
        mbarrier_arrive(bar)
    else:
        mbarrier_try_wait_parity(bar, uint32(0))
        st_global_b32(out + uint64(4 * (i - WARP)), box[i - WARP])  # <- fault


@wrong(
    faults.Livelock, faults.Deadlock, source="gpufs issue 1", block=64, args=lambda: [np.zeros(2, np.int32)],
    hardware="guarded",
)  # fmt: skip
def two_locks_in_opposite_orders(out):
    """One warp takes the table's lock and then the pool's, the other one the pool's and then the table's."""
    locks = cuda.shared.array(2, int32)
    i = int32(cuda.threadIdx.x)
    if i < 2:
        locks[i] = 0
    cuda.syncthreads()
    if i % WARP == 0:
        first = i // WARP
        while cuda.atomic.cas(locks, first, 0, 1) != 0:  # <- fault
            pass
        while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:  # <- fault
            pass
        cuda.atomic.add(out, first, 1)
        cuda.atomic.exch(locks, 1 - first, 0)
        cuda.atomic.exch(locks, first, 0)


@wrong(faults.Livelock, faults.Deadlock, source="gpufs issue 1", grid=2, args=words(2, 2), hardware="guarded")
def blocks_lock_in_opposite_orders(out: u64, locks: u64):
    """The same between two blocks, by locks in global memory."""
    if cuda.threadIdx.x == 0:
        first = locks + uint64(4 * cuda.blockIdx.x)
        second = locks + uint64(4 * (1 - cuda.blockIdx.x))
        while atom_cas_gpu_global_b32(first, uint32(0), uint32(1)) != 0:  # <- fault
            pass
        while atom_cas_gpu_global_b32(second, uint32(0), uint32(1)) != 0:  # <- fault
            pass
        fence_acq_rel_gpu()
        st_global_b32(out, uint32(ld_global_b32(out) + 1))
        fence_acq_rel_gpu()
        atom_cas_gpu_global_b32(second, uint32(1), uint32(0))
        atom_cas_gpu_global_b32(first, uint32(1), uint32(0))


@wrong(
    faults.DataRace, faults.NamedBarrierMisuse, faults.Deadlock, source="flashinfer pull request 4533",
    block=128, args=words(128, 128), hardware="guarded",
)  # fmt: skip
def two_pairs_share_a_number(data: u64, out: u64):
    """Two pairs of warps synchronise by barrier 1, two warps at a time. If one of each pair comes first, these
    two complete it, and read what their partners have not written. It wedged once in some 25 requests."""
    tile = cuda.shared.array(FOUR, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    bar_sync(1, 64)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i ^ 32])  # <- fault


@wrong(
    faults.MissedPhase, faults.MissingArrivals, source="NVIDIA/cutlass pull request 3654", block=64,
    args=words(256, 32), hardware="guarded",
)  # fmt: skip
def all_lanes_wait_one_issues(data: u64, out: u64):
    """All lanes of the producer wait for the empty stage, and the elected one goes on to issue the copy. A lane
    that looks late finds a later phase, and waits for a parity that does not come again."""
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
    if i < WARP:
        elected = elect_sync(ALL)
        for t in range(ROUNDS):
            mbarrier_wait(empty, t & 1 ^ 1)  # <- fault
            if elected != 0:
                mbarrier_arrive_expect_tx(full, BYTES)
                cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
    else:
        for t in range(ROUNDS):
            mbarrier_wait(full, t & 1)
            total += tile[i - WARP]
            fence_proxy_async()
            mbarrier_arrive(empty)
        st_global_b32(out + uint64(4 * (i - WARP)), uint32(total))


@wrong(
    faults.Livelock, faults.Deadlock, source="ARM synchronization-benchmarks pull request 62", block=33,
    args=lambda: [np.zeros(2, np.int32)], hardware="guarded",
)  # fmt: skip
def last_one_by_a_second_look(state):
    """A barrier of counters: who finds the count complete resets it and opens the next round. He looks at the
    count again instead of taking his own addition's answer, so both may find it complete and reset it twice."""
    if cuda.threadIdx.x % WARP == 0:
        for t in range(2):
            cuda.atomic.add(state, 0, 1)
            if cuda.atomic.add(state, 0, 0) == 2:
                cuda.atomic.exch(state, 0, 0)
                cuda.atomic.exch(state, 1, t + 1)
            else:
                while cuda.atomic.add(state, 1, 0) <= t:  # <- fault
                    pass


@wrong(
    faults.DataRace, source="NVIDIA/flashdreams pull request 65; moderngpu pull request 36",
    args=lambda: [np.arange(32, dtype=np.int32), np.zeros(32, np.int32)],
)  # fmt: skip
def group_of_those_converged_now(data, out):
    """activemask tells which lanes happen to run together. Those who take the branch may come in several
    groups, and a syncwarp of one group says nothing to the others."""
    box = cuda.shared.array(WARP, int32)
    i = int32(cuda.threadIdx.x)
    box[i] = 0
    cuda.syncwarp()
    if data[i] % 2 == 0:
        mask = cuda.activemask()
        box[i] = data[i]  # <- fault
        cuda.syncwarp(mask)
        out[i] = box[30 - i]  # <- fault
