"""More arrivals than a barrier expects, and stores of two senders to one place: what the report has to say of
each, and the mend beside it."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.cluster import cluster_ctarank, cluster_sync, mapa_shared_cluster
from numba_deform.device.cluster_async import st_async_b32
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
)
from numba_deform.device.memory import global_at, ld_global_b32, shared_address, shared_at, st_global_b32
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 4, 128
PIPELINE = "CUTLASS: PipelineTmaAsync, consumer_release on the empty barrier"


def numbers():
    return [np.arange(TILES * WARP, dtype=np.uint32), np.zeros(TILES * WARP, np.uint32)]


def copied(data, out):
    return [(out, data)]


# --- arrivals ---------------------------------------------------------------------------------------
@wrong(
    faults.TooManyArrivals, source=PIPELINE, block=64, args=numbers, expect=copied,
    names=("for which it waits at", "expects 1: thread 0", "Take this arrival away"), hardware="guarded",
)  # fmt: skip
def reader_arrives_on_full_as_well(data: u64, out: u64):
    """One lane of the readers arrives on the barrier that it waits for: that ends the next phase before the
    tile of it is there."""
    tile, bars = cuda.shared.array(WARP, uint32, alignment=128), cuda.shared.array(2, uint64)
    full, i = shared_address(bars), uint32(cuda.threadIdx.x)
    empty = full + uint32(8)
    if i == 0:
        mbarrier_init(full, 1)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i == 0:
            mbarrier_wait(empty, t & 1 ^ 1)
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
        elif i >= WARP:
            mbarrier_wait(full, t & 1)
            st_global_b32(out + uint64(BYTES * t + 4 * (i - WARP)), tile[i - WARP])
            fence_proxy_async()
            if i == WARP:
                mbarrier_arrive(full)  # cure: pass  # <- fault
            mbarrier_arrive(empty)


@wrong(
    faults.TooManyArrivals, source=PIPELINE, block=64, args=numbers, expect=copied,
    names=("for which it waits at", "expects 32: threads 0-31 arrive", "Take this arrival away"),
    hardware="guarded",
)  # fmt: skip
def the_33rd_arrival_is_a_readers(data: u64, out: u64):
    """The same beside a whole warp that arrives, whose first lane announces the bytes."""
    tile, bars = cuda.shared.array(WARP, uint32, alignment=128), cuda.shared.array(2, uint64)
    full, i = shared_address(bars), uint32(cuda.threadIdx.x)
    empty = full + uint32(8)
    if i == 0:
        mbarrier_init(full, WARP)
        mbarrier_init(empty, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        if i < WARP:
            mbarrier_wait(empty, t & 1 ^ 1)
            if i == 0:
                mbarrier_expect_tx(full, BYTES)
                cp_async_bulk_load(shared_address(tile), data + uint64(BYTES * t), BYTES, full)
            mbarrier_arrive(full)
        else:
            mbarrier_wait(full, t & 1)
            st_global_b32(out + uint64(BYTES * t + 4 * (i - WARP)), tile[i - WARP])
            fence_proxy_async()
            mbarrier_arrive(empty)
            if i == WARP:
                mbarrier_arrive(full)  # cure: pass  # <- fault


@wrong(
    faults.TooManyArrivals, source="PTX ISA 9.7.13.15.9: the expected arrival count", block=96, args=numbers,
    expect=lambda data, out: [(out[:WARP], data[WARP : 2 * WARP])],
    names=("32 expected", "threads 0-32 arrive", "33 if no others do"), hardware="guarded",
)  # fmt: skip
def one_thread_more_than_expected(data, out):
    """33 threads write, and the barrier is for 32 of them."""
    tile, bars = cuda.shared.array(64, uint32), cuda.shared.array(1, uint64)
    full, i = shared_address(bars), int32(cuda.threadIdx.x)
    if i == 0:
        mbarrier_init(full, WARP)  # cure: mbarrier_init(full, WARP + 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if i <= WARP:
        tile[i] = data[i + WARP]
        mbarrier_arrive(full)  # <- fault
    elif i >= 64:
        mbarrier_wait(full, 0)
        out[i - 64] = tile[i - 64]


# --- stores of several senders -------------------------------------------------------------------------
def two_words():
    data = np.arange(100, 164, dtype=np.uint32).reshape(2, WARP)
    return [data, np.zeros((2, WARP), np.uint32)]


@wrong(
    faults.CopyCollision, source="CUDA guide, Distributed Shared Memory; st.async of two blocks", grid=3,
    cluster=3, args=two_words, expect=lambda data, out: [(out[0], data[1])], names=("senders", "order"),
)  # fmt: skip
def two_blocks_send_to_one_place(data: u64, out: u64):
    """Two blocks send their words to the same place of a third, which waits for the bytes of both."""
    tile, bars = cuda.shared.array((2, WARP), uint32), cuda.shared.array(1, uint64)
    full, i, rank = shared_address(bars), int32(cuda.threadIdx.x), int32(cluster_ctarank())
    if i == 0:
        mbarrier_init(full, 1)
        fence_mbarrier_init()
    cluster_sync()
    if rank == 2 and i == 0:
        mbarrier_arrive_expect_tx(full, 2 * BYTES)
    if rank < 2:
        word = ld_global_b32(global_at(data, rank * WARP + i, 4))
        row = shared_address(tile)  # cure: row = shared_address(tile) + uint32(BYTES * rank)
        there = mapa_shared_cluster(row, uint32(2))
        st_async_b32(shared_at(there, i, 4), word, mapa_shared_cluster(full, uint32(2)))  # <- fault
    else:
        mbarrier_wait(full, 0)
        st_global_b32(global_at(out, i, 4), tile[1, i])
    cluster_sync()
