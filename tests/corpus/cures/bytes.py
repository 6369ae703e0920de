"""Bytes that are announced and do not come, and that come and are not announced: what the report has to say of
each, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import (
    cluster_ctarank,
    cluster_sync,
    cp_async_bulk_shared_cluster,
    cp_async_bulk_tensor_1d_multicast,
    mapa_shared_cluster,
)
from numba_deform.device.cluster_async import red_async_add_u32, st_async_b32
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import global_at, ld_global_b32, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load, fence_proxy_tensormap_acquire_sys
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, TILES, BYTES, BOTH = 32, 3, 128, 3
MULTICAST = "CUTLASS: sm90 TMA multicast, PipelineTmaAsync"
SENT = "PTX ISA 9.7.9.12, st.async; CUDA guide, asynchronous stores to distributed shared memory"


def tiles(count, room=64):
    """Arguments: that many tiles of 32 numbers, and room for results."""
    return lambda: [np.arange(WARP * count, dtype=np.uint32), np.zeros(room, np.uint32)]


def mapped(count):
    """Arguments: the map of so many tiles of 32 numbers, and room for one tile of each of two blocks."""

    def make():
        data = np.arange(1, WARP * count + 1, dtype=np.uint32)
        return [TensorMapArray([TensorMap.of(data, (WARP,))]), np.zeros((2, WARP), np.uint32)]

    return make


def sum_of_tiles(data, out):
    """A block's sum of all tiles, by a map or of an array; twice for two blocks."""
    data = getattr(data[0], "array", data)
    return [(out[..., :WARP], data.reshape(-1, WARP).sum(axis=0))]


# --- that do not come -------------------------------------------------------------------------------
@wrong(
    faults.MissingBytes, source="NVIDIA/cutlass, PipelineTmaAsync: the producer's tail", args=tiles(TILES),
    expect=sum_of_tiles, hardware="guarded",
    names=("128 bytes are announced", "nothing has brought any", "mbarrier_arrive(bar)", "the bulk load"),
)  # fmt: skip
def arms_one_stage_more(data: u64, out: u64):
    """There is a tile less than rounds, and the last round announces bytes all the same."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(1, uint64)
    full, i, total = shared_address(bars), int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES + 1):
        if i == 0:
            # cure: if t == TILES:
            # cure:     mbarrier_arrive(full)
            # cure: else:
            # cure:     mbarrier_arrive_expect_tx(full, BYTES)
            mbarrier_arrive_expect_tx(full, BYTES)  # cure:
            if t < TILES:
                cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
        mbarrier_wait(full, t & 1)  # <- fault
        if t < TILES:
            total += tile[i]
        fence_proxy_async()
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), total)


@wrong(
    faults.MissingBytes, source="triton-lang/triton: barrier_expect by one thread", args=tiles(1),
    expect=sum_of_tiles, hardware="guarded",
    names=("4096 bytes", "32 times", "brought 128", "Announce 128 in all"),
)  # fmt: skip
def each_lane_announces_the_tile(data: u64, out: u64):
    """All lanes arrive, each with the bytes of the one copy."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    bars = cuda.shared.array(1, uint64)
    full, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    # cure: mbarrier_arrive_expect_tx(full, BYTES if i == 0 else 0)
    mbarrier_arrive_expect_tx(full, BYTES)  # cure:
    if i == 0:
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(out + uint64(4 * i), tile[i])


@wrong(
    faults.MissingBytes, source=SENT, grid=2, cluster=2, args=tiles(2), hardware="guarded",
    expect=lambda data, out: [(out, np.arange(64) % WARP % 16)],
    names=("128 bytes", "brought 64", "Announce 64", "st.async", "of block"),
)  # fmt: skip
def half_a_warp_sends(data: u64, out: u64):
    """Half a warp sends words to the other block, and that expects those of a warp."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, BYTES)  # cure: mbarrier_arrive_expect_tx(bar, BYTES // 2)
    cluster_sync()
    other = uint32(1 - rank)
    if i < 16:
        place = mapa_shared_cluster(shared_at(shared_address(tile), i, 4), other)
        st_async_b32(place, uint32(i), mapa_shared_cluster(bar, other))
    mbarrier_wait(bar, 0)  # <- fault
    st_global_b32(global_at(out, rank * WARP + i, 4), tile[i % 16])
    cluster_sync()


@wrong(
    faults.MissingBytes, source="PTX ISA 9.7.13.7, red.async", grid=2, cluster=2, args=tiles(2),
    expect=lambda data, out: [(out[:WARP], WARP)], hardware="guarded",
    names=("256 bytes", "brought 128", "Announce 128", "red.async", "of block 1"),
)  # fmt: skip
def counts_both_blocks_reductions(data: u64, out: u64):
    """The lanes of one block add to a word of the other, which expects the bytes of both."""
    word = cuda.shared.array(1, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        word[0] = 0
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 2 * BYTES)  # cure: mbarrier_arrive_expect_tx(bar, BYTES)
    cluster_sync()
    if rank == 1:
        there = mapa_shared_cluster(shared_address(word), uint32(0))
        red_async_add_u32(there, uint32(1), mapa_shared_cluster(bar, uint32(0)))
    else:
        mbarrier_wait(bar, 0)  # <- fault
        st_global_b32(global_at(out, i, 4), word[0])
    cluster_sync()


@wrong(
    faults.MissingBytes, source="PTX ISA 9.7.9.25.4.1: a copy between blocks of a cluster", grid=2, cluster=2,
    args=tiles(2), expect=lambda data, out: [(out[:16], data[:16])], hardware="guarded",
    names=("128 bytes", "brought 64", "bulk copy between blocks", "of block 0"),
)  # fmt: skip
def expects_more_than_the_peer_copies(data: u64, out: u64):
    """One block copies half a tile to the other, which expects a whole one."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    tile[0, i] = ld_global_b32(global_at(data, i, 4))
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, BYTES)  # cure: mbarrier_arrive_expect_tx(bar, 64 if rank else BYTES)
    fence_proxy_async()
    cluster_sync()
    if rank == 0:
        if i == 0:
            there = mapa_shared_cluster(shared_at(shared_address(tile), 1, BYTES), uint32(1))
            cp_async_bulk_shared_cluster(there, shared_address(tile), 64, mapa_shared_cluster(bar, uint32(1)))
    else:
        mbarrier_wait(bar, 0)  # <- fault
        if i < 16:
            st_global_b32(global_at(out, i, 4), tile[1, i])
    cluster_sync()


@wrong(
    faults.MissingBytes, source=MULTICAST, grid=2, cluster=2, args=mapped(2), expect=sum_of_tiles,
    names=("block 1", "256 bytes are announced", "mask"), hardware="guarded",
)  # fmt: skip
def multicasts_to_the_first_alone(maps: u64, out: u64):
    """Each block loads one of two tiles, and the mask of both loads names the first block alone."""
    tile = cuda.shared.array((2, WARP), uint32, alignment=128)
    bars = cuda.shared.array(1, uint64)
    full, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
    cluster_sync()
    if i == 0:
        place = shared_at(shared_address(tile), rank, BYTES)
        # cure: cp_async_bulk_tensor_1d_multicast(place, maps, WARP * rank, full, uint32(BOTH))
        cp_async_bulk_tensor_1d_multicast(place, maps, WARP * rank, full, uint32(1))  # cure:
    mbarrier_wait(full, 0)  # <- fault
    st_global_b32(global_at(out, rank * WARP + i, 4), uint32(tile[0, i] + tile[1, i]))
    cluster_sync()


# --- that are not announced -------------------------------------------------------------------------
@wrong(
    faults.MoreBytesThanExpected, source=MULTICAST, grid=2, cluster=2, args=mapped(3),
    expect=lambda maps, out: [(out, maps[0].array[:64].reshape(2, WARP).sum(axis=0))],
    names=("128 bytes", "256 bytes", "each block announces"),
)  # fmt: skip
def announces_half_of_a_late_multicast(maps: u64, out: u64):
    """Each block sends both one half, and announces that alone; the second block first loads something of its
    own, so that the first may go on before the other half is asked for."""
    tile = cuda.shared.array((3, WARP), uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    full, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    own = full + uint32(8)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(own, 1)
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(maps)
    cluster_sync()
    if i == 0:
        mbarrier_arrive_expect_tx(full, BYTES)  # cure: mbarrier_arrive_expect_tx(full, 2 * BYTES)  # <- fault
        if rank == 1:
            mbarrier_arrive_expect_tx(own, BYTES)
            place = shared_at(shared_address(tile), 2, BYTES)
            cp_async_bulk_tensor_1d_multicast(place, maps, 2 * WARP, own, uint32(2))
            mbarrier_wait(own, 0)
        place = shared_at(shared_address(tile), rank, BYTES)
        cp_async_bulk_tensor_1d_multicast(place, maps, WARP * rank, full, uint32(BOTH))
    mbarrier_wait(full, 0)
    st_global_b32(global_at(out, rank * WARP + i, 4), uint32(tile[0, i] + tile[1, i]))
    cluster_sync()


@wrong(
    faults.MoreBytesThanExpected, source=SENT, grid=2, cluster=2, args=tiles(2),
    expect=lambda data, out: [(out, np.arange(64) % WARP)],
    names=("st.async", "announces 64 bytes", "4 by each st.async"),
)  # fmt: skip
def expects_half_of_what_is_sent(data: u64, out: u64):
    """A warp sends words to the other block, and that expects those of half a warp."""
    tile = cuda.shared.array(WARP, uint32)
    bars = cuda.shared.array(1, uint64)
    bar, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(bar, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 64)  # cure: mbarrier_arrive_expect_tx(bar, 128)  # <- fault
    cluster_sync()
    other = uint32(1 - rank)
    place = mapa_shared_cluster(shared_at(shared_address(tile), i, 4), other)
    st_async_b32(place, uint32(i), mapa_shared_cluster(bar, other))
    mbarrier_wait(bar, 0)
    st_global_b32(global_at(out, rank * WARP + i, 4), tile[i])
    cluster_sync()
