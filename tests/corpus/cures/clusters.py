"""Blocks of a cluster: what the report has to say of each, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_ctarank,
    cluster_sync,
    cluster_wait,
    cp_async_bulk_shared_cluster,
    cp_async_bulk_tensor_1d_multicast,
    ld_shared_cluster_b32,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
    mbarrier_wait_cluster,
    st_shared_cluster_b32,
)
from numba_deform.device.cluster_flags import (
    ld_acquire_cluster_shared_cluster_b32,
    ld_relaxed_cluster_shared_cluster_b32,
    st_relaxed_cluster_shared_cluster_b32,
    st_release_cluster_shared_cluster_b32,
)
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_at,
    ld_acquire_cta_shared_b32,
    ld_global_b32,
    shared_address,
    shared_at,
    st_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_acq_rel_cta, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import fence_proxy_tensormap_acquire_sys
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, BYTES, BOTH, TILES = 32, 128, 3, 4
MULTICAST = "CUTLASS: sm90 TMA multicast, PipelineTmaAsync"
BARRIER = "CUTLASS: ClusterBarrier::wait, arrive(cta_id)"
MODEL = "PTX ISA section 8.9.4: a release and an acquire of scopes that include both"
MEMORY = "CUDA guide, Distributed Shared Memory"


def mapped(count):
    """Arguments: the map of so many tiles of 32 numbers, and room for one tile of each of two blocks."""

    def make():
        data = np.arange(1, WARP * count + 1, dtype=np.uint32)
        return [TensorMapArray([TensorMap.of(data, (WARP,))]), np.zeros((2, WARP), np.uint32)]

    return make


def words():
    """Arguments: 32 numbers of each of two blocks, and room for as many."""
    data = np.arange(100, 164, dtype=np.uint32).reshape(2, WARP)
    return [data, np.zeros((2, WARP), np.uint32)]


def exchanged(data, out):
    return [(out, data[::-1])]


def sum_of_tiles(maps, out):
    return [(out, maps[0].array.reshape(-1, WARP).sum(axis=0))]


# --- copies -----------------------------------------------------------------------------------------
@wrong(
    faults.MoreBytesThanExpected, source=MULTICAST, grid=2, cluster=2, args=mapped(2), expect=sum_of_tiles,
    names=("128 bytes", "256 bytes", "each block announces"),
)  # fmt: skip
def announces_its_own_half_of_a_multicast(maps: u64, out: u64):
    """Each block loads one of two tiles for both, and announces the bytes of its own copy alone."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
    cluster_sync()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)  # cure: mbarrier_arrive_expect_tx(full, 2 * BYTES)  # <- fault
        place = shared_at(shared_address(tile), rank, BYTES)
        cp_async_bulk_tensor_1d_multicast(place, maps, WARP * rank, full, uint32(BOTH))
    mbarrier_wait(full, 0)
    st_global_b32(global_at(out, rank * WARP + i, 4), uint32(tile[0, i] + tile[1, i]))
    cluster_sync()


@wrong(
    faults.RefillRace, source=MULTICAST, grid=2, cluster=2, args=mapped(TILES), expect=sum_of_tiles,
    names=("block 1", "mbarrier_arrive_cluster"),
)  # fmt: skip
def refills_both_after_its_own_release(maps: u64, out: u64):
    """The first block loads for both, and waits for its own consumers alone."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    i, rank, total = int32(cuda.threadIdx.x), int32(cluster_ctarank()), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, WARP)  # cure: mbarrier_init(empty, 2 * WARP)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
    cluster_sync()
    for t in range(TILES):
        if i == 0:
            mbarrier_arrive_expect_tx(full, BYTES)
            if rank == 0:
                mbarrier_wait(empty, t & 1 ^ 1)
                place = shared_address(tile)
                cp_async_bulk_tensor_1d_multicast(place, maps, WARP * t, full, uint32(BOTH))  # <- fault
        mbarrier_wait(full, t & 1)
        total += tile[i]
        fence_proxy_async()
        cuda.syncwarp()
        if rank == 0:  # cure: if True:
            mbarrier_arrive(empty)  # cure: mbarrier_arrive_cluster(mapa_shared_cluster(empty, uint32(0)))
    st_global_b32(global_at(out, rank * WARP + i, 4), total)
    cluster_sync()


@wrong(
    faults.CopyCollision, source=MULTICAST, grid=2, cluster=2, args=mapped(2),
    expect=lambda maps, out: [(out[1], maps[0].array.reshape(-1, WARP).sum(axis=0))],
    names=("block 1", "mbarrier_arrive_cluster"),
)  # fmt: skip
def two_tiles_to_one_place_of_the_peer(maps: u64, out: u64):
    """The first block sends two tiles to one place of both, each with a barrier of its own."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(2, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    i, rank, total = int32(cuda.threadIdx.x), int32(cluster_ctarank()), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(full + uint32(8), 1)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
    cluster_sync()
    for t in range(2):
        bar, place = full + uint32(8 * t), shared_address(tile)
        if rank == 0:
            if i == 0:
                # cure: mbarrier_wait(empty, t & 1 ^ 1)
                cp_async_bulk_tensor_1d_multicast(place, maps, WARP * t, bar, uint32(2))  # <- fault
        else:
            if i == 0:
                mbarrier_arrive_expect_tx(bar, BYTES)
            mbarrier_wait(bar, 0)
            total += tile[i]
            fence_proxy_async()
            mbarrier_arrive_cluster(mapa_shared_cluster(empty, uint32(0)))
    cluster_sync()
    st_global_b32(global_at(out, rank * WARP + i, 4), total)


@wrong(
    faults.BlockEnded, faults.CopyOutlivesBlock, source=MULTICAST, grid=2, cluster=2, args=mapped(1),
    names=("block 1", "multicast"),
)  # fmt: skip
def ends_under_a_multicast(maps: u64, out: u64):
    """The second block has nothing to do, and ends while the first one sends it a tile."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
    cluster_sync()
    if rank == 0:
        if i == 0:
            cp_async_bulk_tensor_1d_multicast(shared_address(tile), maps, 0, full, uint32(BOTH))  # <- fault
        mbarrier_wait(full, 0)
        st_global_b32(global_at(out, i, 4), tile[i])
    # cure: else:
    # cure:     mbarrier_wait(full, 0)


@wrong(
    faults.BlockEnded, source=MEMORY, grid=2, cluster=2, args=words,
    expect=lambda data, out: [(out[0], data[1])], names=("block 1", "ended", "reads"),
)  # fmt: skip
def ends_while_the_other_reads(data: u64, out: u64):
    """The second block ends while the first one reads its shared memory."""
    tile = cuda.shared.array(WARP, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    cluster_sync()
    if rank == 0:
        there = mapa_shared_cluster(shared_address(tile), uint32(1))
        st_global_b32(global_at(out, i, 4), ld_shared_cluster_b32(shared_at(there, i, 4)))  # <- fault
    # cure: cluster_sync()


# --- barriers of the peer ---------------------------------------------------------------------------
@wrong(
    faults.NotABarrier, source=BARRIER, grid=2, cluster=2, args=words, expect=exchanged,
    names=("of rank", "mbarrier_arrive_cluster"), hardware="guarded",
)  # fmt: skip
def arrives_locally_at_the_peer(data: u64, out: u64):
    """The arrival on the other block's barrier is that for the block's own."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, WARP)
        fence_mbarrier_init()
    cluster_sync()
    other = uint32(1 - rank)
    word = ld_global_b32(global_at(data, rank * WARP + i, 4))
    st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), other), i, 4), word)
    there = mapa_shared_cluster(bar, other)
    mbarrier_arrive(there)  # cure: mbarrier_arrive_cluster(there)  # <- fault
    mbarrier_wait_cluster(bar, 0)
    st_global_b32(global_at(out, rank * WARP + i, 4), tile[i])
    cluster_sync()


@wrong(
    faults.NotABarrier, source=BARRIER, grid=2, cluster=2, args=words, expect=exchanged,
    names=("rank", "nobody can wait", "mbarrier_arrive_cluster"), hardware="guarded",
)  # fmt: skip
def waits_at_the_peer(data: u64, out: u64):
    """The wait is for the other block's barrier, on which that block counts what comes in there."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, WARP)
        fence_mbarrier_init()
    cluster_sync()
    other = uint32(1 - rank)
    word = ld_global_b32(global_at(data, rank * WARP + i, 4))
    st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), other), i, 4), word)
    mbarrier_arrive_cluster(mapa_shared_cluster(bar, other))
    mbarrier_wait(mapa_shared_cluster(bar, other), 0)  # cure: mbarrier_wait(bar, 0)  # <- fault
    st_global_b32(global_at(out, rank * WARP + i, 4), tile[i])
    cluster_sync()


@wrong(
    faults.MissingArrivals, source=BARRIER, grid=2, cluster=2, args=words, expect=exchanged,
    names=("block 1", "nobody waits"), hardware="guarded",
)  # fmt: skip
def arrives_at_its_own_barrier(data: u64, out: u64):
    """The second block arrives on its own barrier, where the first one's is meant."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, WARP)
        fence_mbarrier_init()
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    cluster_sync()
    if rank == 1:
        word = ld_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), uint32(0)), i, 4))
        st_global_b32(global_at(out, WARP + i, 4), word)
        there = mapa_shared_cluster(shared_address(tile), uint32(0))
        st_shared_cluster_b32(shared_at(there, i, 4), tile[i])
        mbarrier_arrive(bar)  # cure: mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(0)))
    else:
        mbarrier_wait_cluster(bar, 0)  # <- fault
        st_global_b32(global_at(out, i, 4), tile[i])
    cluster_sync()


@wrong(
    faults.InitNotOrdered, source=BARRIER, grid=2, cluster=2, args=words, hardware="guarded",
    expect=lambda data, out: [(out[1], data[0])], names=("fence_mbarrier_init()", "cluster_arrive()"),
)  # fmt: skip
def relaxed_meeting_without_init_fence(data: u64, out: u64):
    """The blocks meet with a relaxed arrival after the init, and no fence says that it is done."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, WARP)
        # cure: fence_mbarrier_init()
    cluster_arrive_relaxed()
    cluster_wait()
    if rank == 0:
        word = ld_global_b32(global_at(data, i, 4))
        st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), uint32(1)), i, 4), word)
        mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(1)))  # <- fault
    else:
        mbarrier_wait_cluster(bar, 0)  # <- fault
        st_global_b32(global_at(out, WARP + i, 4), tile[i])
    cluster_sync()


# --- release and acquire ----------------------------------------------------------------------------
@wrong(
    faults.DataRace, source=MEMORY, grid=2, cluster=2, args=words, expect=exchanged,
    names=("cluster_arrive_relaxed", "hands nothing on", "cluster_arrive()"),
)  # fmt: skip
def relaxed_meeting_after_stores(data: u64, out: u64):
    """The blocks meet with a relaxed arrival, and read each other's stores after that."""
    tile = cuda.shared.array(WARP, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    cluster_arrive_relaxed()  # cure: cluster_arrive()
    cluster_wait()
    there = mapa_shared_cluster(shared_address(tile), uint32(1 - rank))
    st_global_b32(global_at(out, rank * WARP + i, 4), ld_shared_cluster_b32(shared_at(there, i, 4)))  # <- fault
    cluster_sync()


@wrong(
    faults.DataRace, faults.ScopeRace, source=MODEL, grid=2, cluster=2, args=words, expect=exchanged,
    names=("fence_acq_rel_cta", "cluster_arrive()"),
)  # fmt: skip
def fence_of_a_block_before_the_meeting(data: u64, out: u64):
    """A fence of scope cta stands before the relaxed arrival."""
    tile = cuda.shared.array(WARP, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    fence_acq_rel_cta()  # cure: pass
    cluster_arrive_relaxed()  # cure: cluster_arrive()
    cluster_wait()
    there = mapa_shared_cluster(shared_address(tile), uint32(1 - rank))
    st_global_b32(global_at(out, rank * WARP + i, 4), ld_shared_cluster_b32(shared_at(there, i, 4)))  # <- fault
    cluster_sync()


@wrong(
    faults.DataRace, source=MODEL, grid=2, cluster=2, args=words, expect=exchanged,
    names=("fence_mbarrier_init", "cluster_arrive()"),
)  # fmt: skip
def fence_of_inits_before_the_meeting(data: u64, out: u64):
    """The fence before the relaxed arrival is that for mbarrier.init, which covers nothing else."""
    tile = cuda.shared.array(WARP, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    fence_mbarrier_init()
    cluster_arrive_relaxed()  # cure: cluster_arrive()
    cluster_wait()
    there = mapa_shared_cluster(shared_address(tile), uint32(1 - rank))
    st_global_b32(global_at(out, rank * WARP + i, 4), ld_shared_cluster_b32(shared_at(there, i, 4)))  # <- fault
    cluster_sync()


@wrong(
    faults.DataRace, source=MODEL, grid=2, cluster=2, args=words, expect=lambda data, out: [(out[1], data[0])],
    names=("relaxed", "st_release_cluster_shared_cluster_b32"),
)  # fmt: skip
def relaxed_flag_of_the_peer(data: u64, out: u64):
    """The flag in the other block's memory is set without release."""
    tile, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        flag[0] = uint32(0)
    cluster_sync()
    if rank == 0:
        word = ld_global_b32(global_at(data, i, 4))
        st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), uint32(1)), i, 4), word)
        cuda.syncwarp()
        if i == 0:
            there = mapa_shared_cluster(shared_address(flag), uint32(1))
            # cure: st_release_cluster_shared_cluster_b32(there, uint32(1))
            st_relaxed_cluster_shared_cluster_b32(there, uint32(1))  # cure:
    else:
        if i == 0:
            while ld_acquire_cluster_shared_cluster_b32(shared_address(flag)) == 0:
                pass
        cuda.syncwarp()
        st_global_b32(global_at(out, WARP + i, 4), tile[i])  # <- fault
    cluster_sync()


@wrong(
    faults.ScopeRace, source=MODEL, grid=2, cluster=2, args=words, expect=lambda data, out: [(out[1], data[0])],
    names=("ld_acquire_cluster_shared_cluster_b32",),
)  # fmt: skip
def polls_a_cluster_flag_for_its_block(data: u64, out: u64):
    """The flag that the peer sets is polled with the scope of the block."""
    tile, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        flag[0] = uint32(0)
    cluster_sync()
    if rank == 0:
        word = ld_global_b32(global_at(data, i, 4))
        st_shared_cluster_b32(shared_at(mapa_shared_cluster(shared_address(tile), uint32(1)), i, 4), word)
        cuda.syncwarp()
        if i == 0:
            there = mapa_shared_cluster(shared_address(flag), uint32(1))
            st_release_cluster_shared_cluster_b32(there, uint32(1))
    else:
        if i == 0:
            place = shared_address(flag)
            # cure: while ld_acquire_cluster_shared_cluster_b32(place) == 0:
            while ld_acquire_cta_shared_b32(place) == 0:  # cure:  # <- fault
                pass
        cuda.syncwarp()
        st_global_b32(global_at(out, WARP + i, 4), tile[i])
    cluster_sync()


@wrong(
    faults.DataRace, source=MODEL, grid=2, cluster=2, args=words, expect=lambda data, out: [(out[1], data[0])],
    names=("relaxed store, and its fence before that has scope cta", "fence of gpu scope"),
)  # fmt: skip
def fence_of_the_block_before_a_flag(data: u64, out: u64):
    """The fence before a relaxed flag is for the threads of a block, and another block reads."""
    tile, flag = cuda.shared.array(WARP, uint32), cuda.shared.array(1, uint32)
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        flag[0] = uint32(0)
    cluster_sync()
    if rank == 0:
        there = mapa_shared_cluster(shared_address(tile), uint32(1))
        st_shared_cluster_b32(shared_at(there, i, 4), ld_global_b32(global_at(data, i, 4)))
        cuda.syncwarp()
        if i == 0:
            fence_acq_rel_cta()  # cure: cuda.threadfence()
            set_there = mapa_shared_cluster(shared_address(flag), uint32(1))
            st_relaxed_cluster_shared_cluster_b32(set_there, uint32(1))
    else:
        if i == 0:
            while ld_acquire_cluster_shared_cluster_b32(shared_address(flag)) == 0:
                pass
        cuda.syncwarp()
        st_global_b32(global_at(out, WARP + i, 4), tile[i])  # <- fault
    cluster_sync()


# --- what is on its way to a block, or out of it ------------------------------------------------------
@wrong(
    faults.CopyOutlivesBlock, source=MULTICAST, grid=2, cluster=2, args=mapped(1),
    expect=lambda maps, out: [(out[0], maps[0].array)], names=("block 1", "full[0]", "TMA load"),
)  # fmt: skip
def meets_and_ends_under_a_multicast(maps: u64, out: u64):
    """The blocks meet when the multicast has been issued, and the second one ends without a wait for it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, BYTES)
    cluster_sync()
    if rank == 0 and i == 0:
        cp_async_bulk_tensor_1d_multicast(shared_address(tile), maps, 0, full, uint32(BOTH))  # <- fault
    cluster_sync()
    if rank == 0:  # cure: if True:
        mbarrier_wait(full, 0)
    if rank == 0:
        st_global_b32(global_at(out, i, 4), tile[i])


@wrong(
    faults.InFlightRead, source="PTX ISA 9.7.13.15.16: a wait is on a barrier of one's own block", grid=2,
    cluster=2, args=words, expect=lambda data, out: [(out[0], data[0])],
    names=("block 1", "Nobody can wait", "mbarrier_arrive_cluster"),
)  # fmt: skip
def reads_what_it_has_sent_to_the_peer(data: u64, out: u64):
    """Who has sent a copy to the other block reads it there at once."""
    tile, inbox = cuda.shared.array(WARP, uint32, alignment=128), cuda.shared.array(WARP, uint32, alignment=128)
    full = shared_address(cuda.shared.array(1, uint64))
    empty = shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
    tile[i] = ld_global_b32(global_at(data, rank * WARP + i, 4))
    fence_proxy_async()
    cluster_sync()
    there = mapa_shared_cluster(shared_address(inbox), uint32(1))
    if rank == 0:
        if i == 0:
            bar = mapa_shared_cluster(full, uint32(1))
            cp_async_bulk_shared_cluster(there, shared_address(tile), BYTES, bar)
        cuda.syncwarp()
        # cure: mbarrier_wait(empty, 0)
        st_global_b32(global_at(out, i, 4), ld_shared_cluster_b32(shared_at(there, i, 4)))  # <- fault
    else:
        mbarrier_wait(full, 0)
        mbarrier_arrive_cluster(mapa_shared_cluster(empty, uint32(0)))
    cluster_sync()


@wrong(
    faults.DataRace, source=MODEL, grid=2, cluster=2, args=words,
    expect=lambda data, out: [(out[0], data[1])],
    names=("relaxed load", "acquires nothing", "ld_acquire_cluster_shared_cluster_b32"),
)  # fmt: skip
def polls_its_own_flag_relaxed(data: u64, out: u64):
    """The second block writes to the first one and releases; that polls its flag relaxed."""
    tile = cuda.shared.array(WARP, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, i, rank = shared_address(flags), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        flags[0] = 0
    cluster_sync()
    if rank == 1:
        there = mapa_shared_cluster(shared_address(tile), uint32(0))
        word = ld_global_b32(global_at(data, WARP + i, 4))
        st_shared_cluster_b32(shared_at(there, i, 4), word)
        cuda.syncthreads()
        if i == 0:
            st_release_cluster_shared_cluster_b32(mapa_shared_cluster(flag, uint32(0)), uint32(1))
    else:
        if i == 0:
            # cure: while ld_acquire_cluster_shared_cluster_b32(flag) == 0:
            while ld_relaxed_cluster_shared_cluster_b32(flag) == 0:  # cure:
                pass
        cuda.syncthreads()
        st_global_b32(global_at(out, i, 4), tile[i])  # <- fault
    cluster_sync()


@wrong(
    faults.RefillRace, source=f"{MULTICAST}; cluster_arrive_relaxed", grid=2, cluster=2, args=mapped(TILES),
    expect=sum_of_tiles,
    names=("cluster_arrive_relaxed(), at", "Meet by cluster_arrive()"),
)  # fmt: skip
def meets_relaxed_before_the_next_tile(maps: u64, out: u64):
    """Both blocks read a tile before the next one goes to both: they meet, and hand nothing on."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(1, uint64)
    full, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cluster_sync()
    total = uint32(0)
    for t in range(TILES):
        if i == 0:
            mbarrier_arrive_expect_tx(full, BYTES)
            if rank == 0:
                fence_proxy_tensormap_acquire_sys(maps)
                place = shared_address(tile)
                cp_async_bulk_tensor_1d_multicast(place, maps, WARP * t, full, uint32(BOTH))  # <- fault
        mbarrier_wait(full, t & 1)
        total += tile[i]
        fence_proxy_async()
        cluster_arrive_relaxed()  # cure: cluster_arrive()
        cluster_wait()
    st_global_b32(global_at(out, rank * WARP + i, 4), total)
