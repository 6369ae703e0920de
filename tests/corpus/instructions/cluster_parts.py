"""Blocks of a cluster: a load for several of them, accesses of several words, arrivals, fences, and sixteen
blocks."""

import numpy as np
from base import right, wrong
from instructions.cluster_async import CLUSTER, PROXY, TILE, WARP, after, give, own_word, ready, words
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_arrive_relaxed,
    cluster_ctarank,
    cluster_sync,
    cluster_wait,
    cp_async_bulk_load_multicast,
    ld_shared_cluster_b32,
    ld_shared_cluster_v2,
    ld_shared_cluster_v4,
    mapa_shared_cluster,
    mbarrier_arrive_cluster,
    mbarrier_arrive_count_cluster,
    mbarrier_arrive_drop_cluster,
    mbarrier_wait_cluster,
    st_shared_cluster_b32,
    st_shared_cluster_v2,
    st_shared_cluster_v4,
)
from numba_deform.device.cluster_flags import (
    ld_relaxed_cluster_shared_cluster_b32,
    st_relaxed_cluster_shared_cluster_b32,
)
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from numba_deform.device.memory import (
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_relaxed_gpu_global_b32,
    shared_address,
    shared_at,
    st_global_b32,
    st_relaxed_gpu_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import (
    fence_acq_rel_cluster,
    fence_acq_rel_gpu,
    fence_proxy_async,
    fence_proxy_async_cluster,
)
from numba_deform.device.tma import cp_async_bulk_commit_group, cp_async_bulk_store, cp_async_bulk_wait_group
from numba_deform.engines import faults

LOAD = "PTX ISA 9.7.9.25.4.1: cp.async.bulk with multicast::cluster"
MODEL = "PTX ISA section 8.5: scopes"
SIXTEEN = "CUDA guide, Thread Block Clusters: clusters of 16 by opting in"


def sum_of_all(data, out):
    return [(out[0], data.sum(0, np.uint32))]


# --- a load for several blocks ---------------------------------------------------------------------------
@right(
    source=LOAD, grid=CLUSTER, cluster=CLUSTER,
    args=words(CLUSTER, WARP), expect=lambda data, out: [(out, [data[0], data[1], data[0], data[1]])],
)  # fmt: skip
def two_tiles_for_two_blocks_each(data: u64, out: u64):
    """Blocks 0 and 1 load a tile for themselves and the block two on; each expects the bytes itself."""
    tile, bar = cuda.shared.array(WARP, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), cluster_ctarank()
    ready(bar, 1)
    if i == 0:
        mbarrier_arrive_expect_tx(bar, uint32(TILE))
        if rank < 2:
            mask = uint32(uint32(0b101) << rank)
            cp_async_bulk_load_multicast(
                shared_address(tile), global_at(data, rank, TILE), uint32(TILE), bar, mask
            )
    mbarrier_wait(bar, 0)
    give(out, tile[i])
    cluster_sync()


@wrong(
    faults.MoreBytesThanExpected, source=LOAD,
    grid=CLUSTER, cluster=CLUSTER, args=words(CLUSTER, WARP), hardware="no",
)  # fmt: skip
def a_tile_for_a_block_that_knows_nothing_of_it(data: u64, out: u64):
    """The twin whose last block takes no part, and yet stands in the mask."""
    tile, bar = cuda.shared.array(WARP, uint32, alignment=16), shared_address(cuda.shared.array(1, uint64))
    i, rank = int32(cuda.threadIdx.x), cluster_ctarank()
    ready(bar, 1)
    if rank == 0:
        if i == 0:
            mbarrier_arrive_expect_tx(bar, uint32(TILE))
            place, mask = shared_address(tile), uint32(0b1001)
            cp_async_bulk_load_multicast(place, data, uint32(TILE), bar, mask)  # <- fault
        mbarrier_wait(bar, 0)
        give(out, tile[i])
    cluster_sync()


# --- accesses of several words -----------------------------------------------------------------------------
@right(
    source="PTX ISA 9.7.9.8, 9.7.9.11: ld and st of vectors", grid=CLUSTER, cluster=CLUSTER,
    args=words(CLUSTER, WARP), expect=lambda data, out: [(out, np.roll(data, 2, 0))],
)  # fmt: skip
def wide_accesses_to_other_blocks(data: u64, out: u64):
    """Tiles go to the next block by stores of 8 and 16 bytes, and its next reads them by loads of both."""
    inbox = cuda.shared.array(WARP, uint32, alignment=16)
    i, start = int32(cuda.threadIdx.x), global_at(data, cuda.blockIdx.x, TILE)
    cluster_sync()
    there = mapa_shared_cluster(shared_address(inbox), after())
    if i < 4:
        a, b = ld_global_b32(global_at(start, 4 * i, 4)), ld_global_b32(global_at(start, 4 * i + 1, 4))
        c, d = ld_global_b32(global_at(start, 4 * i + 2, 4)), ld_global_b32(global_at(start, 4 * i + 3, 4))
        st_shared_cluster_v4(shared_at(there, i, 16), a, b, c, d)
    elif i >= 8 and i < 16:
        a, b = ld_global_b32(global_at(start, 2 * i, 4)), ld_global_b32(global_at(start, 2 * i + 1, 4))
        st_shared_cluster_v2(shared_at(there, i, 8), a, b)
    cluster_sync()
    before = uint32((cluster_ctarank() + uint32(CLUSTER - 1)) % uint32(CLUSTER))
    there = mapa_shared_cluster(shared_address(inbox), before)
    if i < 8:
        pair = ld_shared_cluster_v2(shared_at(there, i, 8))
        for k in range(2):
            st_global_b32(global_at(out, cuda.blockIdx.x * WARP + 2 * i + k, 4), pair[k])
    elif i >= 16 and i < 20:
        four = ld_shared_cluster_v4(shared_at(there, i - 12, 16))
        for k in range(4):
            st_global_b32(global_at(out, cuda.blockIdx.x * WARP + 4 * (i - 12) + k, 4), four[k])
    cluster_sync()


@wrong(
    faults.DataRace, source="PTX ISA 9.7.9.8, 9.7.9.11: ld and st of vectors", grid=CLUSTER, cluster=CLUSTER,
    args=words(CLUSTER, WARP),
)  # fmt: skip
def wide_accesses_that_overlap(data: u64, out: u64):
    """Lanes 0 and 1 of each block store 16 bytes, 8 bytes apart."""
    inbox = cuda.shared.array(WARP, uint32, alignment=16)
    i, word = int32(cuda.threadIdx.x), own_word(data)
    cluster_sync()
    there = mapa_shared_cluster(shared_address(inbox), after())
    if i == 0:
        st_shared_cluster_v4(there, word, word, word, word)  # <- fault
    elif i == 1:
        st_shared_cluster_v2(there + uint32(8), word, word)  # <- fault
    cluster_sync()
    if i < 4:
        give(out, inbox[i])


# --- arrivals -----------------------------------------------------------------------------------------------
@right(
    source="CUTLASS: ClusterBarrier::arrive(cta_id), for a whole warp", grid=CLUSTER, cluster=CLUSTER,
    args=words(CLUSTER, WARP), expect=sum_of_all,
)  # fmt: skip
def one_arrival_for_a_warp(data: u64, out: u64):
    """The first block's barrier expects all lanes of all blocks; one of each arrives for its warp."""
    tile, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, CLUSTER * WARP)
    tile[i] = own_word(data)
    cuda.syncwarp()
    if i == 0:
        mbarrier_arrive_count_cluster(mapa_shared_cluster(bar, uint32(0)), uint32(WARP))
    if cluster_ctarank() == 0:
        mbarrier_wait_cluster(bar, uint32(0))
        total = uint32(0)
        for rank in range(CLUSTER):
            there = mapa_shared_cluster(shared_address(tile), uint32(rank))
            total += ld_shared_cluster_b32(shared_at(there, i, 4))
        give(out, total)
    cluster_sync()


@wrong(
    faults.TooManyArrivals, source="CUTLASS: ClusterBarrier::arrive(cta_id), for a whole warp", grid=CLUSTER,
    cluster=CLUSTER, args=words(CLUSTER, WARP), hardware="no",
)  # fmt: skip
def more_arrivals_than_expected(data: u64, out: u64):
    """The twin whose count is too high by one."""
    tile, bar = cuda.shared.array(WARP, uint32), shared_address(cuda.shared.array(1, uint64))
    i = int32(cuda.threadIdx.x)
    ready(bar, CLUSTER * WARP)
    tile[i] = own_word(data)
    cuda.syncwarp()
    if i == 0:
        mbarrier_arrive_count_cluster(mapa_shared_cluster(bar, uint32(0)), uint32(WARP + 1))  # <- fault
    if cluster_ctarank() == 0:
        mbarrier_wait_cluster(bar, uint32(0))
        give(out, tile[i])
    cluster_sync()


@right(
    source="PTX ISA 9.7.13.15.14: arrive_drop on a barrier of another block", grid=2, cluster=2, block=1,
    args=words(2, 2), expect=lambda data, out: [(out[0], [data[0, 0], data[1, 0]])],
)  # fmt: skip
def the_other_block_drops_out(data: u64, out: u64):
    """Block 1 brings one word and leaves for good; the barrier's later phases are block 0's alone."""
    inbox, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    ready(bar, 2)
    if cluster_ctarank() == 1:
        there = mapa_shared_cluster(shared_address(inbox), uint32(0))
        st_shared_cluster_b32(there, ld_global_b32(global_at(data, 2, 4)))
        mbarrier_arrive_drop_cluster(mapa_shared_cluster(bar, uint32(0)))
    else:
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        st_global_b32(global_at(out, 1, 4), inbox[0])
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 1)
        st_global_b32(out, ld_global_b32(data))


@wrong(
    faults.MissingArrivals, source="PTX ISA 9.7.13.15.14: arrive_drop on a barrier of another block", grid=2,
    cluster=2, block=1, args=words(2, 2), hardware="no",
)  # fmt: skip
def the_other_block_leaves_without_dropping_out(data: u64, out: u64):
    """The twin that only arrives: the second phase waits for it."""
    inbox, bar = cuda.shared.array(1, uint32), shared_address(cuda.shared.array(1, uint64))
    ready(bar, 2)
    if cluster_ctarank() == 1:
        there = mapa_shared_cluster(shared_address(inbox), uint32(0))
        st_shared_cluster_b32(there, ld_global_b32(global_at(data, 2, 4)))
        mbarrier_arrive_cluster(mapa_shared_cluster(bar, uint32(0)))
    else:
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        st_global_b32(global_at(out, 1, 4), inbox[0])
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 1)  # <- fault
        st_global_b32(out, ld_global_b32(data))


# --- fences -------------------------------------------------------------------------------------------------
@right(source=MODEL, grid=2, cluster=2, block=1, args=words(2, 2),
       expect=lambda data, out: [(out[0], data[0, ::-1])])  # fmt: skip
def fences_of_scope_cluster(data: u64, out: u64):
    """Fences of the cluster's scope around a relaxed flag hand on global and shared memory in the cluster."""
    inbox, flag = cuda.shared.array(1, uint32), cuda.shared.array(1, uint32)
    flag[0] = uint32(0)
    cluster_sync()
    if cluster_ctarank() == 0:
        st_global_b32(out, ld_global_b32(global_at(data, 1, 4)))
        there = mapa_shared_cluster(shared_address(inbox), uint32(1))
        st_shared_cluster_b32(there, ld_global_b32(data))
        fence_acq_rel_cluster()
        st_relaxed_cluster_shared_cluster_b32(mapa_shared_cluster(shared_address(flag), uint32(1)), uint32(1))
    else:
        while ld_relaxed_cluster_shared_cluster_b32(shared_address(flag)) == 0:
            pass
        fence_acq_rel_cluster()
        word = ld_global_b32(out)
        st_global_b32(global_at(out, 1, 4), inbox[0])
        st_global_b32(out, word)
    cluster_sync()


@wrong(faults.ScopeRace, source=MODEL, grid=4, cluster=2, block=1, args=words(4, 2))
def a_fence_of_scope_cluster_for_all(data: u64, out: u64):
    """A block of the next cluster waits for the flag: the fence's scope leaves it out."""
    flag = global_at(out, 7, 4)
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        fence_acq_rel_cluster()
        st_relaxed_gpu_global_b32(flag, uint32(1))
    elif cuda.blockIdx.x == 2:
        while ld_acquire_gpu_global_b32(flag) == 0:
            pass
        word = ld_global_b32(out)  # <- fault
        st_global_b32(global_at(out, 1, 4), word)


@wrong(faults.ScopeRace, source=MODEL, grid=4, cluster=2, block=1, args=words(4, 2))
def a_look_that_only_a_fence_of_scope_cluster_follows(data: u64, out: u64):
    """The other way round: the release is for all, and the reader's fence leaves the writer's cluster out."""
    flag = global_at(out, 7, 4)
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        fence_acq_rel_gpu()
        st_relaxed_gpu_global_b32(flag, uint32(1))
    elif cuda.blockIdx.x == 2:
        while ld_relaxed_gpu_global_b32(flag) == 0:
            pass
        fence_acq_rel_cluster()
        word = ld_global_b32(out)  # <- fault
        st_global_b32(global_at(out, 1, 4), word)


@right(source=MODEL, grid=4, cluster=2, block=1, args=words(4, 2),
       expect=lambda data, out: [(out[0, 1], data[0, 0])])  # fmt: skip
def a_fence_of_scope_gpu_for_all(data: u64, out: u64):
    """The twin with the wider fence; in the reader's cluster one of scope cluster passes it on."""
    flag, second = global_at(out, 7, 4), global_at(out, 6, 4)
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        fence_acq_rel_gpu()
        st_relaxed_gpu_global_b32(flag, uint32(1))
    elif cuda.blockIdx.x == 2:
        while ld_acquire_gpu_global_b32(flag) == 0:
            pass
        fence_acq_rel_cluster()
        st_relaxed_gpu_global_b32(second, uint32(1))
    elif cuda.blockIdx.x == 3:
        while ld_acquire_gpu_global_b32(second) == 0:
            pass
        st_global_b32(global_at(out, 1, 4), ld_global_b32(out))


@right(source=PROXY, grid=2, cluster=2, args=words(2, WARP),
       expect=lambda data, out: [(out, data[::-1])])  # fmt: skip
def a_tile_for_the_others_copy(data: u64, out: u64):
    """Each block writes the other's tile, which that one stores in bulk: the writer's fence is for both."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cluster_sync()
    there = mapa_shared_cluster(shared_address(tile), uint32(cluster_ctarank() ^ uint32(1)))
    st_shared_cluster_b32(shared_at(there, i, 4), own_word(data))
    fence_proxy_async_cluster()
    cluster_sync()
    if i == 0:
        cp_async_bulk_store(global_at(out, cuda.blockIdx.x, TILE), shared_address(tile), uint32(TILE))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


@wrong(faults.MissingProxyFence, source=PROXY, grid=2, cluster=2, args=words(2, WARP))
def a_tile_for_the_others_copy_fenced_at_home(data: u64, out: u64):
    """The twin whose fence is for shared::cta, which is another block's memory."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cluster_sync()
    there = mapa_shared_cluster(shared_address(tile), uint32(cluster_ctarank() ^ uint32(1)))
    st_shared_cluster_b32(shared_at(there, i, 4), own_word(data))
    fence_proxy_async()
    cluster_sync()
    if i == 0:
        place = global_at(out, cuda.blockIdx.x, TILE)
        cp_async_bulk_store(place, shared_address(tile), uint32(TILE))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(uint32(0))


@right(
    source=SIXTEEN, grid=16, cluster=16,
    args=words(16, WARP), expect=lambda data, out: [(out, np.cumsum(data, 0, np.uint32))],
)  # fmt: skip
def a_cluster_of_sixteen(data: u64, out: u64):
    """Each block adds up its tile and those of all blocks before it."""
    tile = cuda.shared.array(WARP, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = own_word(data)
    cluster_sync()
    total = uint32(0)
    for rank in range(int32(cluster_ctarank()) + 1):
        there = mapa_shared_cluster(shared_address(tile), uint32(rank))
        total += ld_shared_cluster_b32(shared_at(there, i, 4))
    give(out, total)
    cluster_sync()


@wrong(
    faults.BlockNotStarted, faults.DataRace, source=SIXTEEN,
    grid=16, cluster=16, args=words(16, WARP),
)  # fmt: skip
def a_cluster_of_sixteen_that_meets_relaxed(data: u64, out: u64):
    """The twin whose meeting hands nothing on."""
    tile = cuda.shared.array(WARP, uint32)
    i = int32(cuda.threadIdx.x)
    tile[i] = own_word(data)
    cluster_arrive_relaxed()
    cluster_wait()
    total = uint32(0)
    for rank in range(int32(cluster_ctarank()) + 1):
        there = mapa_shared_cluster(shared_address(tile), uint32(rank))
        total += ld_shared_cluster_b32(shared_at(there, i, 4))  # <- fault
    give(out, total)
    cluster_sync()
