"""Accesses that nothing orders, addresses and types: what the report has to say, and the mend beside it."""
# ruff: noqa: F401  some names are for the mends alone

import numpy as np
from base import wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.matrix import ldmatrix_x1
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    dynamic_start,
    global_address,
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_relaxed_gpu_global_b32,
    shared_address,
    shared_array,
    shared_at,
    st_global_b32,
    st_relaxed_gpu_global_b32,
    st_release_gpu_global_b32,
)
from numba_deform.device.sync import fence_acq_rel_gpu
from numba_deform.engines import faults

WARP, ROWS = 32, 36


def ints(*counts):
    """Arguments: the first array counts up, the others are zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


def words(*counts):
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


# --- locks ----------------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; public lock and unlock by atomicCAS", grid=4,
    args=ints(4, 2), expect=lambda data, out: [(out, [0, 4])],
    names=("cuda.threadfence()", "right before the atomic", "and right behind the atomic", "or its loop"),
)  # fmt: skip
def lock_that_hands_nothing_on(data, out):
    """A lock by compare and swap, and no fence that hands on what was done under it."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(out, 0, 0, 1) != 0:
            pass
        # cure: cuda.threadfence()
        out[1] += 1  # <- fault
        # cure: cuda.threadfence()
        cuda.atomic.exch(out, 0, 0)


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; public lock and unlock by atomicCAS", grid=4,
    args=ints(4, 2), expect=lambda data, out: [(out, [0, 4])],
    names=("Call cuda.threadfence(), of gpu scope, right before the atomic",),
)  # fmt: skip
def lock_given_back_without_fence(data, out):
    """The same with a fence where the lock is taken, and none where it is given back."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(out, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[1] += 1  # <- fault
        # cure: cuda.threadfence()
        cuda.atomic.exch(out, 0, 0)


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; public lock and unlock by atomicCAS", grid=4,
    args=ints(4, 2), expect=lambda data, out: [(out, [0, 4])],
    names=("an atomic, too", "cuda.atomic.exch or st_release_gpu_.. writes"),
)  # fmt: skip
def lock_given_back_by_a_plain_store(data, out):
    """The same with all fences, and a store for who waits by an atomic."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(out, 0, 0, 1) != 0:  # <- fault
            pass
        cuda.threadfence()
        out[1] += 1
        cuda.threadfence()
        out[0] = 0  # cure: cuda.atomic.exch(out, 0, 0)  # <- fault


@wrong(
    faults.DataRace, source="NVIDIA cuda-samples: threadFenceReduction, without its fences", grid=4,
    args=ints(128, 6), expect=lambda data, out: [(out[:2], [4, data.sum()])],
    names=("Call cuda.threadfence(), of gpu scope, right before the atomic", "and right behind the atomic"),
)  # fmt: skip
def last_block_adds_up_without_fences(data, out):
    """Who is the last to count adds up what all blocks have left, and nothing hands that on."""
    last = cuda.shared.array(1, int32)
    i, block = cuda.threadIdx.x, cuda.blockIdx.x
    if i == 0:
        total = int32(0)
        for k in range(32):
            total += data[block * 32 + k]
        out[2 + block] = total
        # cure: cuda.threadfence()
        last[0] = cuda.atomic.add(out, 0, 1)
        # cure: cuda.threadfence()
    cuda.syncthreads()
    if last[0] == cuda.gridDim.x - 1 and i == 0:
        total = int32(0)
        for k in range(cuda.gridDim.x):
            total += out[2 + k]  # <- fault
        out[1] = total


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions: causality by way of a third thread", grid=3,
    args=ints(4, 4), expect=lambda data, out: [(out, [7, 1, 1, 7])],
    names=("thread 0 of block 1 has read out[1]", "Call cuda.threadfence() behind the atomic"),
)  # fmt: skip
def middle_man_without_fence(data, out):
    """Block 1 has seen what block 0 handed on and tells block 2, without a fence between."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            out[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(out, 1, 1)
        elif cuda.blockIdx.x == 1:
            while cuda.atomic.add(out, 1, 0) == 0:
                pass
            # cure: cuda.threadfence()
            cuda.atomic.exch(out, 2, 1)
        else:
            while cuda.atomic.add(out, 2, 0) == 0:
                pass
            cuda.threadfence()
            out[3] = out[0]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; public lock and unlock by atomicCAS", block=64,
    args=ints(4, 1), expect=lambda data, out: [(out, [2])],
    names=("cuda.threadfence_block()", "right before the atomic", "and right behind the atomic"),
)  # fmt: skip
def lock_of_two_warps(data, out):
    """The same in shared memory, between two warps of a block."""
    lock, i = cuda.shared.array(2, int32), cuda.threadIdx.x
    if i < 2:
        lock[i] = 0
    cuda.syncthreads()
    if i % WARP == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        # cure: cuda.threadfence_block()
        lock[1] += 1  # <- fault
        # cure: cuda.threadfence_block()
        cuda.atomic.exch(lock, 0, 0)
    cuda.syncthreads()
    if i == 0:
        out[0] = lock[1]


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions; public lock and unlock by atomicCAS", grid=4,
    args=ints(4, 6), expect=lambda data, out: [(out, [0, 0, 4, 4, 4, 4])],
    names=("Call cuda.threadfence(), of gpu scope, right before the atomic", "by an atomic after that"),
)  # fmt: skip
def lock_for_a_whole_block(data, out):
    """Thread 0 takes the lock for all, who meet it at barriers, and gives it back with no fence."""
    i = cuda.threadIdx.x
    if i == 0:
        while cuda.atomic.cas(out, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
    cuda.syncthreads()
    if i < 4:
        out[2 + i] += 1  # <- fault
    cuda.syncthreads()
    if i == 0:
        # cure: cuda.threadfence()
        cuda.atomic.exch(out, 0, 0)


# --- shared memory ----------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="CUDA guide, dynamic shared memory: all arrays start at one address", block=64,
    shared_bytes=512, args=ints(64, 64), expect=lambda data, out: [(out, data + 2 * data[::-1])],
    names=("`a` and `b`", "same byte", "[n:]"),
)  # fmt: skip
def two_dynamic_arrays(data, out):
    """The kernel asks twice for the dynamic part, and gets the same bytes twice."""
    i = cuda.threadIdx.x
    a = cuda.shared.array(0, int32)
    b = cuda.shared.array(0, int32)  # cure: b = a[64:]
    a[i] = data[i]  # <- fault
    b[63 - i] = 2 * data[i]  # <- fault
    cuda.syncthreads()
    out[i] = a[i] + b[i]


@wrong(
    faults.DataRace, source="CUDA guide, dynamic shared memory: arrays at offsets of one's own", block=64,
    shared_bytes=1024, args=words(128, 128),
    expect=lambda data, out: [(out[:64], data[63::-1]), (out[64:], data[:63:-1])],
    names=("the array of 256 bytes", "reaches 64 bytes into", "64 bytes on", "in bytes"),
)  # fmt: skip
def second_array_begins_too_early(data, out):
    """Two arrays are carved out of the dynamic part, and the second begins inside the first."""
    i, start = cuda.threadIdx.x, dynamic_start(128)
    a = shared_array(start, 64, uint32)
    b = shared_array(start + uint32(192), 64, uint32)  # cure: b = shared_array(start + uint32(256), 64, uint32)
    a[i] = data[i]  # <- fault
    b[i] = data[64 + i]  # <- fault
    cuda.syncthreads()
    out[i] = a[63 - i]
    out[64 + i] = b[63 - i]


@wrong(
    faults.OutOfRange, source="numba/numba issue 4709; NVIDIA forums: a third number in the brackets",
    args=ints(32, 32), mend={"shared_bytes": 128}, expect=lambda data, out: [(out, data[::-1])], hardware="no",
    names=("0 bytes", "shared_bytes=", "kernel[grid, block, stream, bytes]"),
)  # fmt: skip
def no_dynamic_bytes_at_the_launch(data, out):
    """The kernel uses dynamic shared memory, and its launch gives none."""
    i = cuda.threadIdx.x
    s = cuda.shared.array(0, int32)
    s[i] = data[i]  # <- fault
    cuda.syncthreads()
    out[i] = s[31 - i]


@wrong(
    faults.Misaligned, source="PTX ISA 9.7.14.5.15, ldmatrix: rows are aligned to 16 bytes",
    args=words(WARP, WARP), names=("lane 5", "byte 88", "16"), hardware="no",
)  # fmt: skip
def one_row_of_a_matrix_is_off(data: u64, out: u64):
    """Eight lanes give the rows of a matrix, and one of them adds 8 bytes."""
    tile = cuda.shared.array(ROWS, uint32, alignment=16)
    i = int32(cuda.threadIdx.x)
    tile[i] = ld_global_b32(global_at(data, i, 4))
    if i < 4:
        tile[WARP + i] = uint32(0)
    cuda.syncwarp()
    row = shared_at(shared_address(tile), i % 8, 16)
    if i == 5:
        row = row + uint32(8)  # cure: pass
    st_global_b32(global_at(out, i, 4), ldmatrix_x1(row))  # <- fault


# --- unordered accesses -----------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="picongpu pull request 2231: histograms without atomics", block=64,
    args=ints(64, 4), expect=lambda data, out: [(out, 16)], names=("cuda.atomic.add",),
)  # fmt: skip
def histogram_by_plain_sums(data, out):
    """Threads add to a few counters, each by a read and a write."""
    i = cuda.threadIdx.x
    out[data[i] % 4] += 1  # cure: cuda.atomic.add(out, data[i] % 4, 1)  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions", grid=4, args=ints(128, 1),
    expect=lambda data, out: [(out, data.sum())], names=("cuda.atomic.add",),
)  # fmt: skip
def total_of_all_blocks(data, out):
    """One thread of each block adds to one sum."""
    if cuda.threadIdx.x == 0:
        total = int32(0)
        for j in range(WARP):
            total += data[cuda.blockIdx.x * WARP + j]
        out[0] += total  # cure: cuda.atomic.add(out, 0, total)  # <- fault


@wrong(
    faults.DataRace, source="numba/numba issue 8249: scratch indexed by too little", block=64,
    args=ints(64, 64), expect=lambda data, out: [(out, data)],
    names=("out[0]", "an element of its own", "index"),
)  # fmt: skip
def all_write_one_element(data, out):
    """Each thread writes its result to the same element."""
    i = cuda.threadIdx.x
    out[0] = data[i]  # cure: out[i] = data[i]  # <- fault


@wrong(
    faults.DataRace, source="numba/numba issue 8249: threadIdx for the number in the grid", grid=2,
    args=ints(64, 64), expect=lambda data, out: [(out, data)], names=("cuda.threadIdx.x", "cuda.grid(..)"),
)  # fmt: skip
def every_block_writes_the_same(data, out):
    """The index is the thread's number in its block, so the blocks write the same elements."""
    i = cuda.threadIdx.x  # cure: i = cuda.grid(1)
    out[i] = data[i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions", grid=2, args=words(WARP, WARP, 1),
    expect=lambda data, out, flag: [(out, data + 1)],
    names=("st_release_gpu_global_b32", "ld_acquire_gpu_global_b32"),
)  # fmt: skip
def block_1_takes_what_block_0_wrote(data: u64, out: u64, flag: u64):
    """One block writes, and another goes on with that."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(data, i, 4), uint32(i))
        # cure: cuda.syncwarp()
        # cure: if i == 0:
        # cure:     st_release_gpu_global_b32(flag, uint32(1))
    else:
        # cure: if i == 0:
        # cure:     while ld_acquire_gpu_global_b32(flag) == 0:
        # cure:         pass
        # cure: cuda.syncwarp()
        word = ld_global_b32(global_at(data, i, 4))  # <- fault
        st_global_b32(global_at(out, i, 4), uint32(word + uint32(1)))


@wrong(
    faults.DataRace, source="gunrock issue 829", grid=2, args=ints(32, 64, 1),
    expect=lambda data, out, best: [(best, 31)], names=("atomic", "an atomic, too"),
)  # fmt: skip
def looks_before_the_atomic(data, out, best):
    """A plain look at what others change by atomics, so as to spare one of its own."""
    i = cuda.threadIdx.x
    if best[0] < data[i]:  # cure: if cuda.atomic.max(best, 0, 0) < data[i]:  # <- fault
        cuda.atomic.max(best, 0, data[i])  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions: max by hand", grid=2, args=ints(64, 1),
    expect=lambda data, best: [(best, 63)], names=("cuda.atomic.max",),
)  # fmt: skip
def largest_by_hand(data, best):
    """The largest number by a comparison and an assignment."""
    i = cuda.grid(1)
    if data[i] > best[0]:  # cure: cuda.atomic.max(best, 0, data[i])  # <- fault
        best[0] = data[i]  # cure:  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.8: what a release hands on", grid=2, block=64,
    args=words(64, 64, 1),
    expect=lambda data, out, flag: [(out, np.arange(64))],
    names=("thread 0", "cuda.syncthreads()", "before"), hardware="plain",
)  # fmt: skip
def releases_without_its_block(data: u64, out: u64, flag: u64):
    """All threads write, and thread 0 releases, with no barrier in between."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(data, i, 4), uint32(i))
        # cure: cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(flag, uint32(1))
    else:
        if i == 0:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
        cuda.syncthreads()
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.8: what an acquire takes over", grid=2, block=64,
    args=words(64, 64, 1),
    expect=lambda data, out, flag: [(out, np.arange(64))],
    names=("thread 0", "cuda.syncthreads()", "after"), hardware="plain",
)  # fmt: skip
def acquires_without_its_block(data: u64, out: u64, flag: u64):
    """Thread 0 acquires, and the others read with no barrier after that."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(data, i, 4), uint32(i))
        cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(flag, uint32(1))
    else:
        if i == 0:
            while ld_acquire_gpu_global_b32(flag) == 0:
                pass
        # cure: cuda.syncthreads()
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.8: an acquire, or a fence behind the read", grid=2,
    block=64, args=words(64, 64, 1), expect=lambda data, out, flag: [(out, np.arange(64))],
    names=("flag[", "relaxed load", "acquires nothing", "cuda.threadfence()", "ld_acquire_gpu_global_b32"),
)  # fmt: skip
def polls_relaxed(data: u64, out: u64, flag: u64):
    """The writer does all that it has to, and the reader's poll is relaxed."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(data, i, 4), uint32(i))
        cuda.syncthreads()
        if i == 0:
            cuda.threadfence()
            st_relaxed_gpu_global_b32(flag, uint32(1))
    else:
        if i == 40:
            while ld_relaxed_gpu_global_b32(flag) == 0:  # cure: while ld_acquire_gpu_global_b32(flag) == 0:
                pass
        cuda.syncthreads()
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.9.3: a fence before a barrier", grid=2,
    block=64, args=words(64, 64, 1), expect=lambda data, out, flag: [(out, np.arange(64))],
    names=("flag[", "relaxed load", "acquires nothing", "cuda.threadfence() behind"),
)  # fmt: skip
def polls_relaxed_behind_fences_of_all(data: u64, out: u64, flag: u64):
    """Each thread fences what it has written, one sets the flag, and none of the readers fences."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(data, i, 4), uint32(i))
        cuda.threadfence()
        cuda.syncthreads()
        if i == 0:
            st_relaxed_gpu_global_b32(flag, uint32(1))
    else:
        while ld_relaxed_gpu_global_b32(flag) == 0:
            pass
        # cure: cuda.threadfence()
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8.8: release and acquire patterns", grid=2, block=64,
    args=lambda: [*words(64, 64, 64)(), np.zeros(1, np.uint32)],
    expect=lambda data, buffer, out, flag: [(out, data)],
    names=("flag[0]", "st_release_gpu_global_b32", "cuda.threadfence() behind", "ld_acquire_gpu_global_b32"),
)  # fmt: skip
def flag_without_release_and_acquire(data, buffer, out, flag):
    """Neither side of a flag orders anything."""
    i, word = cuda.threadIdx.x, global_address(flag)
    if cuda.blockIdx.x == 0:
        buffer[i] = data[i]
        cuda.syncthreads()
        if i == 0:
            st_relaxed_gpu_global_b32(word, uint32(1))  # cure: st_release_gpu_global_b32(word, uint32(1))
    else:
        while ld_relaxed_gpu_global_b32(word) == 0:  # cure: while ld_acquire_gpu_global_b32(word) == 0:
            pass
        out[i] = buffer[i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions", block=64, args=ints(64, 64),
    expect=lambda data, out: [(out[WARP:], data[:WARP])],
    names=("flag[0]", "by an atomic", "cuda.threadfence_block() right behind the atomic"),
)  # fmt: skip
def takes_a_flag_without_fence(data, out):
    """A warp hands a tile on by a fence and an atomic, and the other has the atomic and no fence."""
    tile = cuda.shared.array(WARP, int32)
    flag = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        flag[0] = 0
    cuda.syncthreads()
    if i < WARP:
        tile[i] = data[i]
        cuda.syncwarp()
        if i == 0:
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        # cure: cuda.threadfence_block()
        out[i] = tile[i - WARP]  # <- fault


# --- numbers and names --------------------------------------------------------------------------------
@wrong(
    faults.NotCompiled, source="Numba documentation, shared memory: shapes are constants", args=ints(32, 32),
    expect=lambda data, out: [(out, data)], names=("shape", "constant"), hardware="no",
)  # fmt: skip
def shape_known_at_run_time(data, out):
    """A local array as long as an argument."""
    i = cuda.threadIdx.x
    local = cuda.local.array(len(data), int32)  # cure: local = cuda.local.array(32, int32)  # <- fault
    local[i] = data[i]
    out[i] = local[i]


@wrong(
    faults.UninitialisedRead, source="numba/numba issue 6549: undefined on some paths",
    args=ints(32, 32), expect=lambda data, out: [(out, np.where(data > 3, data, 0))],
    names=("x has no value", "every path"), hardware="no",
)  # fmt: skip
def set_in_one_branch_alone(data, out):
    """A variable that only one branch sets."""
    i = cuda.threadIdx.x
    # cure: x = int32(0)
    if data[i] > 3:
        x = data[i]
    out[i] = x  # <- fault


@wrong(
    faults.OutOfRange, source="PTX ISA 9.7.14.5.15, ldmatrix: each lane gives the address of a row",
    args=words(WARP, WARP), names=("lane 7", "byte 112", "16 bytes"), hardware="no",
)  # fmt: skip
def last_row_of_a_matrix_is_missing(data: u64, out: u64):
    """The tile has seven rows and a half, and lane 7 gives the address of the eighth."""
    # cure: tile = cuda.shared.array(32, uint32, alignment=16)
    tile = cuda.shared.array(30, uint32, alignment=16)  # cure:
    i = int32(cuda.threadIdx.x)
    if i < 30:  # cure: if True:
        tile[i] = ld_global_b32(global_at(data, i, 4))
    cuda.syncwarp()
    row = shared_at(shared_address(tile), i % 8, 16)
    st_global_b32(global_at(out, i, 4), ldmatrix_x1(row))  # <- fault


# --- flags among blocks ---------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="CUDA guide, memory fence functions: the sum of all blocks by the last one", grid=3,
    args=words(1, 96, 32), expect=lambda ticket, note, out: [(out, 3 + 3 * np.arange(32))],
    names=("of gpu scope, behind the barrier, right before the atomic", "changed ticket[0]"),
)  # fmt: skip
def ticket_whose_fence_is_before_the_barrier(ticket, note, out):
    """All threads call a fence and meet; the one that takes the ticket has called it before it knew of them."""
    last, b, i = cuda.shared.array(1, uint32), cuda.blockIdx.x, cuda.threadIdx.x
    note[32 * b + i] = b + i
    fence_acq_rel_gpu()
    cuda.syncthreads()
    if i == 0:
        # cure: cuda.threadfence()
        last[0] = atom_add_gpu_global_u32(global_address(ticket), 1)
        fence_acq_rel_gpu()
    cuda.syncthreads()
    if last[0] == 2:
        for k in range(3):
            out[i] += note[32 * k + i]  # <- fault


@wrong(
    faults.DataRace, source="PTX ISA section 8: a release covers what its thread knew", grid=3,
    args=words(2, 32, 32), expect=lambda flags, data, out: [(out, 3 * np.arange(32))],
    names=("Put cuda.syncthreads() before the release of thread 0", "released flags[0]"),
)  # fmt: skip
def released_without_its_block_and_relayed(flags, data, out):
    """The first block sets a flag before its threads have met, the second hands on what it has acquired."""
    flag, b, i = global_address(flags), cuda.blockIdx.x, cuda.threadIdx.x
    if b == 0:
        data[i] = 3 * i
        # cure: cuda.syncthreads()
        if i == 0:
            st_release_gpu_global_b32(flag, 1)
    else:
        while i == 0 and ld_acquire_gpu_global_b32(flag + 4 * (b - 1)) != b:
            pass
        if i == 0 and b == 1:
            st_release_gpu_global_b32(flag + 4, 2)
        cuda.syncthreads()
        if b == 2:
            out[i] = data[i]  # <- fault
