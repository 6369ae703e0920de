"""What blocks of a cluster tell each other through shared memory: flags, counters, locks, arrivals."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_ctarank,
    cluster_sync,
    cp_async_bulk_shared_cluster,
    ld_shared_cluster_b32,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
    mbarrier_wait_cluster,
    st_shared_cluster_b32,
)
from numba_deform.device.cluster_flags import (
    atom_add_acq_rel_cluster_shared_cluster_u32,
    atom_add_cluster_shared_cluster_u32,
    atom_cas_acq_rel_cluster_shared_cluster_b32,
    ld_acquire_cluster_shared_cluster_b32,
    ld_relaxed_cluster_shared_cluster_b32,
    red_add_cluster_shared_cluster_u32,
    red_add_release_cluster_shared_cluster_u32,
    st_relaxed_cluster_shared_cluster_b32,
    st_release_cluster_shared_cluster_b32,
)
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_at,
    ld_acquire_cta_shared_b32,
    ld_global_b32,
    shared_address,
    shared_at,
    st_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    fence_acq_rel_gpu,
    fence_mbarrier_init,
    fence_proxy_async,
    fence_proxy_async_cluster,
)
from numba_deform.device.tma import cp_async_bulk_commit_group, cp_async_bulk_store, cp_async_bulk_wait_group
from numba_deform.engines import faults

WARP, CLUSTER = 32, 4
MODEL = "PTX ISA section 8.9.4: a release and an acquire of scopes that include both"
GUIDE = "CUDA guide, Distributed Shared Memory: a histogram over a cluster"
FENCE = "PTX ISA section 8.6: a proxy fence along the base causality path"
BARRIER = "CUTLASS: ClusterBarrier::wait, arrive(cta_id)"


def words(*shape, seed=3):
    """Arguments: random words of each block, and room for as many."""
    random = np.random.default_rng(seed)
    return lambda: [random.integers(0, 1 << 32, shape, np.uint32), np.zeros(shape, np.uint32)]


def from_before(data, out):
    return [(out, np.roll(data, 1, 0)[:, ::-1])]


def sums(data, out):
    return [(out[0], data.sum(0, np.uint32)), (out[1:], 0)]


@cuda.jit(device=True)
def set_first(flag):
    """The flag is 0 before anybody else of the cluster touches it."""
    if cuda.threadIdx.x == 0:
        flag[0] = uint32(0)
    cluster_sync()


@cuda.jit(device=True)
def send(data, inbox, i):
    """Each lane writes a word into the next block's shared memory."""
    word = ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + i, 4))
    after = uint32((cluster_ctarank() + uint32(1)) % uint32(CLUSTER))
    st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(inbox), after), i, 4), word)
    return after


@right(source=MODEL, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=from_before)
def a_flag_in_the_next_block(data: u64, out: u64):
    """Lane 0 sets the next block's flag when its warp has met: what the others have written goes with it."""
    inbox, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(flag)
    after = send(data, inbox, i)
    cuda.syncwarp()
    if i == 0:
        st_release_cluster_shared_cluster_b32(mapa_shared_cluster(shared_address(flag), after), uint32(1))
        while ld_acquire_cluster_shared_cluster_b32(shared_address(flag)) == 0:
            pass
    cuda.syncwarp()
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])
    cluster_sync()


@wrong(faults.DataRace, source=MODEL, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_relaxed_flag_in_the_next_block(data: u64, out: u64):
    """The twin that sets the flag without release: the words may come after it."""
    inbox, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(flag)
    after = send(data, inbox, i)
    cuda.syncwarp()
    if i == 0:
        st_relaxed_cluster_shared_cluster_b32(mapa_shared_cluster(shared_address(flag), after), uint32(1))
        while ld_acquire_cluster_shared_cluster_b32(shared_address(flag)) == 0:
            pass
    cuda.syncwarp()
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])  # <- fault
    cluster_sync()


@wrong(faults.DataRace, source=MODEL, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_relaxed_look_at_a_flag(data: u64, out: u64):
    """The twin that looks without acquire: its reads may come before."""
    inbox, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(flag)
    after = send(data, inbox, i)
    cuda.syncwarp()
    if i == 0:
        st_release_cluster_shared_cluster_b32(mapa_shared_cluster(shared_address(flag), after), uint32(1))
        while ld_relaxed_cluster_shared_cluster_b32(shared_address(flag)) == 0:
            pass
    cuda.syncwarp()
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])  # <- fault
    cluster_sync()


@right(source=MODEL, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=from_before)
def fences_around_a_relaxed_flag(data: u64, out: u64):
    """Neither releases nor acquires by itself: the fences do, of gpu scope, which has the cluster in it."""
    inbox, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(flag)
    after = send(data, inbox, i)
    cuda.syncwarp()
    if i == 0:
        fence_acq_rel_gpu()
        st_relaxed_cluster_shared_cluster_b32(mapa_shared_cluster(shared_address(flag), after), uint32(1))
        while ld_relaxed_cluster_shared_cluster_b32(shared_address(flag)) == 0:
            pass
        fence_acq_rel_gpu()
    cuda.syncwarp()
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])
    cluster_sync()


@wrong(faults.ScopeRace, source=MODEL, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_look_of_scope_cta_at_a_flag(data: u64, out: u64):
    """The twin that looks with the scope of its block, which leaves out who sets the flag."""
    inbox, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(flag)
    after = send(data, inbox, i)
    cuda.syncwarp()
    if i == 0:
        there = mapa_shared_cluster(shared_address(flag), after)
        st_release_cluster_shared_cluster_b32(there, uint32(1))  # <- fault
        while ld_acquire_cta_shared_b32(shared_address(flag)) == 0:  # <- fault
            pass
    cuda.syncwarp()
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])
    cluster_sync()


@cuda.jit(device=True)
def add_up(tile, i):
    """The sum of this lane's word in the tiles of all blocks."""
    total = uint32(0)
    for rank in range(CLUSTER):
        there = mapa_shared_cluster(shared_address(tile), uint32(rank))
        total += ld_shared_cluster_b32(shared_at(there, i, 4))
    return total


@right(source=GUIDE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=sums)
def a_counter_in_the_first_block(data: u64, out: u64):
    """Each warp counts when its tile is written; the first block adds up when it has counted all."""
    tile, count = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(count)
    tile[i] = ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + i, 4))
    first = mapa_shared_cluster(shared_address(count), uint32(0))
    red_add_release_cluster_shared_cluster_u32(first, uint32(1))
    if cluster_ctarank() == 0:
        while ld_acquire_cluster_shared_cluster_b32(first) < CLUSTER * WARP:
            pass
        st_global_b32(global_at(out, i, 4), add_up(tile, i))
    cluster_sync()


@wrong(faults.DataRace, source=GUIDE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_counter_that_releases_nothing(data: u64, out: u64):
    """The twin that counts without release."""
    tile, count = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(count)
    tile[i] = ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + i, 4))
    first = mapa_shared_cluster(shared_address(count), uint32(0))
    red_add_cluster_shared_cluster_u32(first, uint32(1))
    if cluster_ctarank() == 0:
        while ld_acquire_cluster_shared_cluster_b32(first) < CLUSTER * WARP:
            pass
        total = uint32(0)
        for rank in range(CLUSTER):
            there = shared_at(mapa_shared_cluster(shared_address(tile), uint32(rank)), i, 4)
            total += ld_shared_cluster_b32(there)  # <- fault
        st_global_b32(global_at(out, i, 4), total)
    cluster_sync()


@right(source=GUIDE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=sums)
def the_last_block_of_a_cluster(data: u64, out: u64):
    """Who takes the last ticket adds up, whichever block it is."""
    tile, tickets = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    last = cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(tickets)
    tile[i] = ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + i, 4))
    cuda.syncwarp()
    if i == 0:
        first = mapa_shared_cluster(shared_address(tickets), uint32(0))
        last[0] = atom_add_acq_rel_cluster_shared_cluster_u32(first, uint32(1))
    cuda.syncwarp()
    if last[0] == CLUSTER - 1:
        st_global_b32(global_at(out, i, 4), add_up(tile, i))
    cluster_sync()


@wrong(faults.DataRace, source=GUIDE, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_relaxed_ticket_of_a_cluster(data: u64, out: u64):
    """The twin whose tickets order nothing."""
    tile, tickets = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    last = cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    set_first(tickets)
    tile[i] = ld_global_b32(global_at(data, cuda.blockIdx.x * WARP + i, 4))
    cuda.syncwarp()
    if i == 0:
        first = mapa_shared_cluster(shared_address(tickets), uint32(0))
        last[0] = atom_add_cluster_shared_cluster_u32(first, uint32(1))
    cuda.syncwarp()
    if last[0] == CLUSTER - 1:
        total = uint32(0)
        for rank in range(CLUSTER):
            there = shared_at(mapa_shared_cluster(shared_address(tile), uint32(rank)), i, 4)
            total += ld_shared_cluster_b32(there)  # <- fault
        st_global_b32(global_at(out, i, 4), total)
    cluster_sync()


@right(
    source="iGUARD (SOSP 2021): locks by atomicCAS", grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER),
    expect=lambda data, out: [(out[:1], data.sum(dtype=np.uint32))],
)  # fmt: skip
def a_lock_of_a_cluster(data: u64, out: u64):
    """Each block adds to a word of the first one, under a lock that lies there."""
    total, lock = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        total[0] = uint32(0)
    set_first(lock)
    if cuda.threadIdx.x == 0:
        key = mapa_shared_cluster(shared_address(lock), uint32(0))
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
        while atom_cas_acq_rel_cluster_shared_cluster_b32(key, uint32(0), uint32(1)) != 0:
            pass
        st_shared_cluster_b32(there, uint32(ld_shared_cluster_b32(there) + word))
        st_release_cluster_shared_cluster_b32(key, uint32(0))
    cluster_sync()
    if cluster_ctarank() == 0 and cuda.threadIdx.x == 0:
        st_global_b32(out, total[0])


@wrong(
    faults.DataRace, source="iGUARD (SOSP 2021): locks by atomicCAS", grid=CLUSTER, cluster=CLUSTER,
    args=words(CLUSTER),
)  # fmt: skip
def a_lock_that_is_left_open(data: u64, out: u64):
    """The twin that gives the lock back without release."""
    total, lock = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        total[0] = uint32(0)
    set_first(lock)
    if cuda.threadIdx.x == 0:
        key = mapa_shared_cluster(shared_address(lock), uint32(0))
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
        while atom_cas_acq_rel_cluster_shared_cluster_b32(key, uint32(0), uint32(1)) != 0:
            pass
        before = ld_shared_cluster_b32(there)  # <- fault
        st_shared_cluster_b32(there, uint32(before + word))
        st_relaxed_cluster_shared_cluster_b32(key, uint32(0))
    cluster_sync()
    if cluster_ctarank() == 0 and cuda.threadIdx.x == 0:
        st_global_b32(out, total[0])


@right(
    source="iGUARD (SOSP 2021): locks by atomicCAS", grid=2, cluster=2, args=words(2),
    expect=lambda data, out: [(out[:1], data.sum(dtype=np.uint32))],
)  # fmt: skip
def two_locks_of_two_blocks(data: u64, out: u64):
    """Each of two blocks takes the lock of the first and then that of the second."""
    total, locks = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        total[0] = uint32(0)
    set_first(locks)
    if cuda.threadIdx.x == 0:
        first = uint32(0)
        one = mapa_shared_cluster(shared_address(locks), first)
        two = mapa_shared_cluster(shared_address(locks), first ^ uint32(1))
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
        while atom_cas_acq_rel_cluster_shared_cluster_b32(one, uint32(0), uint32(1)) != 0:
            pass
        while atom_cas_acq_rel_cluster_shared_cluster_b32(two, uint32(0), uint32(1)) != 0:
            pass
        st_shared_cluster_b32(there, uint32(ld_shared_cluster_b32(there) + word))
        st_release_cluster_shared_cluster_b32(two, uint32(0))
        st_release_cluster_shared_cluster_b32(one, uint32(0))
    cluster_sync()
    if cluster_ctarank() == 0 and cuda.threadIdx.x == 0:
        st_global_b32(out, total[0])


@wrong(
    faults.Livelock, source="iGUARD (SOSP 2021): locks by atomicCAS", grid=2, cluster=2, args=words(2),
    hardware="no",
)  # fmt: skip
def two_locks_of_two_blocks_crossed(data: u64, out: u64):
    """Each takes its own lock first: now and then each holds one, and waits for the other for ever."""
    total, locks = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        total[0] = uint32(0)
    set_first(locks)
    if cuda.threadIdx.x == 0:
        first = uint32(cluster_ctarank())
        one = mapa_shared_cluster(shared_address(locks), first)
        two = mapa_shared_cluster(shared_address(locks), first ^ uint32(1))
        there = mapa_shared_cluster(shared_address(total), uint32(0))
        word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
        while atom_cas_acq_rel_cluster_shared_cluster_b32(one, uint32(0), uint32(1)) != 0:
            pass
        while atom_cas_acq_rel_cluster_shared_cluster_b32(two, uint32(0), uint32(1)) != 0:  # <- fault
            pass
        st_shared_cluster_b32(there, uint32(ld_shared_cluster_b32(there) + word))
        st_release_cluster_shared_cluster_b32(two, uint32(0))
        st_release_cluster_shared_cluster_b32(one, uint32(0))
    cluster_sync()
    if cluster_ctarank() == 0 and cuda.threadIdx.x == 0:
        st_global_b32(out, total[0])


@right(source=BARRIER, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=from_before)
def a_wait_of_scope_cta_for_shared_memory(data: u64, out: u64):
    """Arrivals of another block hand on what it wrote here, and the wait for them has the default scope."""
    inbox = cuda.shared.array(WARP, uint32)
    bar = shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cluster_sync()
    mbarrier_arrive_cluster(mapa_shared_cluster(bar, send(data, inbox, i)))
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, cuda.blockIdx.x * WARP + i, 4), inbox[WARP - 1 - i])
    cluster_sync()


@right(source=BARRIER, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), expect=from_before)
def a_wait_of_scope_cluster_for_global_memory(data: u64, out: u64):
    """Each block writes into the part of the next, which reverses it there."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cluster_sync()
    after = int32((block + 1) % CLUSTER)
    word = ld_global_b32(global_at(data, block * WARP + i, 4))
    st_global_b32(global_at(out, after * WARP + i, 4), word)
    mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(after)))
    mbarrier_wait_cluster(bar, uint32(0))
    word = ld_global_b32(global_at(out, block * WARP + WARP - 1 - i, 4))
    cuda.syncwarp()
    st_global_b32(global_at(out, block * WARP + i, 4), word)
    cluster_sync()


@wrong(faults.ScopeRace, source=BARRIER, grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP))
def a_wait_of_scope_cta_for_global_memory(data: u64, out: u64):
    """The twin whose wait leaves the L1 cache as it was."""
    bar = shared_address(cuda.shared.array(1, uint64))
    i, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    if i == 0:
        mbarrier_init(bar, WARP)
    cluster_sync()
    after = int32((block + 1) % CLUSTER)
    word = ld_global_b32(global_at(data, block * WARP + i, 4))
    st_global_b32(global_at(out, after * WARP + i, 4), word)
    mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(after)))
    mbarrier_wait(bar, 0)
    word = ld_global_b32(global_at(out, block * WARP + WARP - 1 - i, 4))  # <- fault
    cuda.syncwarp()
    st_global_b32(global_at(out, block * WARP + i, 4), word)
    cluster_sync()


# --- proxies ----------------------------------------------------------------------------------------
@right(
    source=FENCE, grid=2, cluster=2, args=words(2, WARP),
    expect=lambda data, out: [(out[1, :4], data[0, :4]), (out[0, :4], data[1, :4])],
)  # fmt: skip
def one_fence_for_the_writes_of_a_cluster(data: u64, out: u64):
    """Each block writes into the other's tile, the cluster meets, and only then one thread of the reading block
    fences: the fence stands on the way from each of these writes to its copy."""
    tile = cuda.shared.array(4, uint32, alignment=16)
    rank, i = cluster_ctarank(), int32(cuda.threadIdx.x)
    cluster_sync()
    if i < 4:
        there = mapa_shared_cluster(shared_address(tile), rank ^ uint32(1))
        st_shared_cluster_b32(shared_at(there, i, 4), ld_global_b32(global_at(data, rank * WARP + i, 4)))
    cluster_sync()
    if i == 0:
        fence_proxy_async()
        cp_async_bulk_store(global_at(out, rank * WARP, 4), shared_address(tile), uint32(16))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


@wrong(
    faults.MissingProxyFence, source=FENCE, grid=2, cluster=2,
    args=words(2, WARP),
)  # fmt: skip
def no_fence_for_the_writes_of_a_cluster(data: u64, out: u64):
    """The same with a fence before the cluster meets, by a thread that has not written: that does not stand on
    the way."""
    tile = cuda.shared.array(4, uint32, alignment=16)
    rank, i = cluster_ctarank(), int32(cuda.threadIdx.x)
    cluster_sync()
    if i < 4:
        there = mapa_shared_cluster(shared_address(tile), rank ^ uint32(1))
        st_shared_cluster_b32(shared_at(there, i, 4), ld_global_b32(global_at(data, rank * WARP + i, 4)))
    elif i == 4:
        fence_proxy_async()
    cluster_sync()
    if i == 0:
        cp_async_bulk_store(global_at(out, rank * WARP, 4), shared_address(tile), uint32(16))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


@right(
    source=FENCE, grid=2, cluster=2, args=words(2, WARP),
    expect=lambda data, out: [(out[1, :4], data[0, :4])],
)  # fmt: skip
def the_sender_fences_for_the_tile_it_sends_to(data: u64, out: u64):
    """Block 1 has cleared the tile that block 0 sends to, and block 0 fences behind the cluster's barrier, for
    its own writes and for those, by the form for the memory of all of the cluster."""
    tile = cuda.shared.array(4, uint32, alignment=16)
    bars = cuda.shared.array(1, uint64)
    bar, rank, i = shared_address(bars), cluster_ctarank(), int32(cuda.threadIdx.x)
    if i < 4:
        tile[i] = uint32(0) if rank == uint32(1) else ld_global_b32(global_at(data, i, 4))
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
    cluster_sync()
    if rank == uint32(0) and i == 0:
        fence_proxy_async_cluster()
        there = mapa_shared_cluster(shared_address(tile), uint32(1))
        full = mapa_shared_cluster(bar, uint32(1))
        cp_async_bulk_shared_cluster(there, shared_address(tile), uint32(16), full)
    elif rank == uint32(1):
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(16))
        mbarrier_wait(bar, 0)
        if i < 4:
            st_global_b32(global_at(out, WARP + i, 4), tile[i])
    cluster_sync()
