"""Groups of copies: cp.async and bulk stores, their commits and their waits."""

import numpy as np
from base import wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    cp_async_cg_16,
    cp_async_commit_group,
    cp_async_wait_group,
    ld_global_b32,
    shared_address,
    st_global_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
)
from numba_deform.engines import faults

WARP, TILES, BYTES = 32, 4, 128
WORDS, ALL = 2 * WARP, TILES * WARP


def words(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


# --- cp.async -----------------------------------------------------------------------------------------
@wrong(faults.InFlightRead, source="NVIDIA/Fuser issue 3428 and pull request 3438", args=words(128, 128))
def barrier_without_wait(data: u64, out: u64):
    """Threads copy by cp.async and meet in a barrier. It waits for the threads, not for their copies."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)
    cp_async_commit_group()
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[4 * i])  # <- fault


@wrong(faults.InFlightRead, source="PTX ISA 9.7.9.25.3.3: of the executing thread", args=words(128, 128))
def wait_without_barrier(data: u64, out: u64):
    """Each thread waits for its own copies, and reads those of its neighbour."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[127 - 4 * i])  # <- fault


@wrong(faults.InFlightRead, source="csarofeen/pytorch pull request 2457", args=words(128, 128))
def commit_behind_the_wait(data: u64, out: u64):
    """The copies are committed after the wait, so it waits for a group that they are not in."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)
    cp_async_wait_group(0)
    cp_async_commit_group()
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[4 * i])  # <- fault
    cp_async_wait_group(0)


@wrong(faults.InFlightRead, source="PTX ISA 9.7.9.25.3.2, cp.async.commit_group", args=words(128, 128))
def never_committed(data: u64, out: u64):
    """Without a commit the copies belong to no group, and wait_group finds nothing to wait for."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)
    cp_async_wait_group(0)
    cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), tile[4 * i])  # <- fault


@wrong(faults.InFlightRead, source="tilelang pull request 2505, tract pull request 2887", args=words(128, 32))
def one_group_too_many_pending(data: u64, out: u64):
    """Two stages are in flight, and wait_group(1) is right for all rounds but the last, where nothing younger
    has been committed."""
    tile = cuda.shared.array(WORDS, uint32, alignment=16)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    first = shared_address(tile)
    if i < 8:
        cp_async_cg_16(first + uint32(16 * i), data + uint64(16 * i), 16)
    cp_async_commit_group()
    for t in range(TILES):
        if t + 1 < TILES:
            if i < 8:
                slot = first + uint32(BYTES * ((t + 1) % 2) + 16 * i)
                cp_async_cg_16(slot, data + uint64(BYTES * (t + 1) + 16 * i), 16)
            cp_async_commit_group()
        cp_async_wait_group(1)
        cuda.syncthreads()
        total += tile[WARP * (t % 2) + i]  # <- fault
        cuda.syncthreads()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.RefillRace, source="ggml-org/llama.cpp pull request 13438", block=64, args=words(128, 64))
def next_copy_into_a_tile_in_use(data: u64, out: u64):
    """The next tile's copy is issued as soon as the own warp has read this one; the other warp reads on."""
    tile = cuda.shared.array(WARP, uint32, alignment=16)
    i, total = int32(cuda.threadIdx.x), uint32(0)
    for t in range(TILES):
        if i < 8:
            part = uint32(16 * i)
            cp_async_cg_16(shared_address(tile) + part, data + uint64(BYTES * t) + uint64(part), 16)  # <- fault
        cp_async_commit_group()
        cp_async_wait_group(0)
        cuda.syncthreads()
        total += tile[i % WARP]
        cuda.syncwarp()
    st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.Misaligned, source="NVIDIA/cutlass issue 1768 and pull request 1790", args=words(132, 128))
def row_of_odd_length(data: u64, out: u64):
    """Rows of 33 numbers are copied 16 bytes at a time: the second row begins at byte 132."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    source = data + uint64(132 * (i // 8) + 16 * (i % 8))
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), source, 16)  # <- fault
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[4 * i])


@wrong(faults.BadSize, source="PTX ISA 9.7.9.25.3.1: src-size is at most cp-size", args=words(128, 128))
def more_than_sixteen_bytes(data: u64, out: u64):
    """The number of bytes that are really there is that of the whole row, and not of one copy."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    left = uint32(4 * (ALL - 4 * i))
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), left)  # <- fault
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[4 * i])


@wrong(faults.OutOfRange, source="PTX ISA 9.7.9.25.3.1, src-size", args=words(126, 128), hardware="no")
def tail_copied_in_full(data: u64, out: u64):
    """The last thread has two numbers left, and copies four."""
    tile = cuda.shared.array(ALL, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    cp_async_cg_16(shared_address(tile) + uint32(16 * i), data + uint64(16 * i), 16)  # <- fault
    cp_async_commit_group()
    cp_async_wait_group(0)
    st_global_b32(out + uint64(4 * i), tile[4 * i])


# --- bulk stores --------------------------------------------------------------------------------------
@wrong(faults.DataRace, source="NVIDIA/TransformerEngine pull request 3417", block=64, args=words(64, 64))
def others_do_not_know_of_the_wait(data: u64, out: u64):
    """Groups belong to the thread that commits them. The leader waits until its store has read the tile, and
    the others write the next one without waiting for the leader."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for t in range(2):
        if i >= WARP:
            tile[i - WARP] = ld_global_b32(data + uint64(4 * (i + 32 * t) % 256))  # <- fault
            fence_proxy_async()
        cuda.syncthreads()
        if i == 0:
            cp_async_bulk_store(out + uint64(BYTES * t), shared_address(tile), BYTES)  # <- fault
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(0)
        else:
            cp_async_bulk_wait_group_read(0)
    if i == 0:
        cp_async_bulk_wait_group(0)


@wrong(faults.RefillRace, source="deepseek-ai/DeepEP issue 657", args=words(128, 128))
def load_into_a_stage_being_stored(data: u64, out: u64):
    """A ring of two stages is loaded, and stored from there. wait_group(1) stands before the next load into the
    stage whose store has just been committed: it allows for exactly that one to be open."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full, i = shared_address(cuda.shared.array(2, uint64)), int32(cuda.threadIdx.x)
    if i == 0:
        for s in range(2):
            mbarrier_init(full + uint32(8 * s), 1)
        fence_mbarrier_init()
        for t in range(2):
            bar, slot = full + uint32(8 * t), shared_address(tile) + uint32(BYTES * t)
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(slot, data + uint64(BYTES * t), BYTES, bar)
        for t in range(TILES):
            stage = t % 2
            bar, slot = full + uint32(8 * stage), shared_address(tile) + uint32(BYTES * stage)
            mbarrier_wait(bar, t // 2 & 1)
            cp_async_bulk_store(out + uint64(BYTES * t), slot, BYTES)
            cp_async_bulk_commit_group()
            if t + 2 < TILES:
                cp_async_bulk_wait_group(1)
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * (t + 2)), BYTES, bar)  # <- fault
        cp_async_bulk_wait_group(0)


@wrong(faults.CopyOutlivesBlock, source="NVIDIA/TransformerEngine pull request 3417", args=words(32, 32))
def ends_with_a_store_in_flight(data: u64, out: u64):
    """The last store is committed and never waited for. The block ends, its shared memory goes to another one,
    and the copy engine may still be reading it."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()


@wrong(faults.CopyOutlivesBlock, source="NVIDIA/Fuser pull request 5448: commit and wait", args=words(32, 32))
def store_in_no_group(data: u64, out: u64):
    """The wait is there, and the commit before it is missing: the store is in no group to wait for."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_wait_group(0)


@wrong(faults.CopyOutlivesBlock, source="PTX ISA 9.7.9.25.6.2: at most N are pending", args=words(32, 64))
def one_store_left_at_the_end(data: u64, out: u64):
    """wait_group(1) before the end leaves the youngest store open."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = tile[WARP + i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        for t in range(2):
            slot = shared_address(tile) + uint32(BYTES * t)
            cp_async_bulk_store(out + uint64(BYTES * t), slot, BYTES)  # <- fault
            cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(1)


@wrong(faults.CopyOutlivesBlock, source="rchardx/hopper-gemm issue 3", block=64, args=words(160, 32))
def prefetch_that_nobody_reads(data: u64, out: u64):
    """The loop loads one tile ahead without asking whether there is one more: the last load is in flight when
    the block ends."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    full, i, total = shared_address(cuda.shared.array(2, uint64)), int32(cuda.threadIdx.x), uint32(0)
    if i == 0:
        for s in range(2):
            mbarrier_init(full + uint32(8 * s), 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(full, BYTES)
        cp_async_bulk_load(shared_address(tile), data, BYTES, full)
    cuda.syncthreads()
    for t in range(TILES):
        if i == 0:
            bar, slot = full + uint32(8 * ((t + 1) % 2)), shared_address(tile) + uint32(BYTES * ((t + 1) % 2))
            mbarrier_arrive_expect_tx(bar, BYTES)
            cp_async_bulk_load(slot, data + uint64(BYTES * (t + 1)), BYTES, bar)  # <- fault
        mbarrier_wait(full + uint32(8 * (t % 2)), t // 2 & 1)
        total += tile[WARP * (t % 2) + i % WARP]
        cuda.syncthreads()
    if i < WARP:
        st_global_b32(out + uint64(4 * i), uint32(total))


@wrong(faults.DataRace, faults.InFlightRead, source="PTX ISA 9.7.9.25.6.2, .read", args=words(32, 32, 32))
def reads_the_result_too_early(data: u64, out: u64, copy: u64):
    """wait_group.read is enough to use the tile again, not to read what the store has written."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
        st_global_b32(copy, ld_global_b32(out))  # <- fault
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, source="PTX ISA 9.7.9.25.6.2: what .read waits for", args=words(32, 32))
def overwrites_the_result_too_early(data: u64, out: u64):
    """After wait_group.read the results in global memory are changed by ordinary stores: the copy engine may
    write later."""
    tile = cuda.shared.array(WARP, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(data + uint64(4 * i))
    fence_proxy_async()
    cuda.syncwarp()
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
    cuda.syncwarp()
    st_global_b32(out + uint64(4 * i), uint32(7))  # <- fault
    if i == 0:
        cp_async_bulk_wait_group(0)
