"""Kernels as programs have them, with arrays by index: what the report says of where their barriers stand, and
of what their indices are made of, and the mend beside it."""
# ruff: noqa: E701  a branch on one line is what one is about

import numpy as np
from base import wrong
from numba import cuda, int32

from numba_deform.engines import faults

FULL_MASK, THREADS = 0xFFFFFFFF, 64


def ints(*counts):
    """Arguments: the first array counts up, the others are zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


def summed(data):
    """What each thread adds up over the rounds."""
    return data.reshape(4, 64)[:, ::-1].sum(axis=0)


def sums_of_rounds(data, out, rounds):
    return [(out, summed(data))]


@cuda.jit(device=True)
def all_meet():
    cuda.syncthreads()


# --- barriers of a block ------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a barrier in conditional code",
    block=THREADS, args=ints(64, 64), expect=lambda data, out: [(out, data[::-1])],
    names=("past the barrier between them, at programs.py:", "out of its branch"),
)  # fmt: skip
def barrier_for_the_first_warp(data, out):
    """Only the threads of one warp come to the barrier between the writes and the reads."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    if i < 32:  # cure: if True:
        cuda.syncthreads()
    out[i] = tile[63 - i]  # <- fault


@wrong(
    faults.WarpDivergence, source="CUDA guide, warp shuffle functions: all lanes of the mask take part",
    block=THREADS, args=ints(64, 64), expect=lambda data, out: [(out[:31], data[1:32])],
    names=("shfl", "lanes 16-31 never come", "branch"), hardware="no",
)  # fmt: skip
def shuffle_behind_a_condition_of_one_line(data, out):
    """The branch stands on the line of the shuffle, as far to the left as the barrier after it."""
    i = cuda.threadIdx.x
    value = data[i]
    # cure: value = cuda.shfl_down_sync(FULL_MASK, value, 1)
    if i < 48: value = cuda.shfl_down_sync(FULL_MASK, value, 1)  # cure: pass  # <- fault
    cuda.syncthreads()
    out[i] = value


@wrong(
    faults.DataRace, source="CUDA guide, shared memory: the product of two matrices by tiles", block=THREADS,
    args=ints(256, 64), expect=lambda data, out: [(out, data.reshape(4, 64)[:, ::-1].sum(axis=0))],
    names=("two rounds of the loop", "at the end of each round", "cuda.syncthreads()"),
)  # fmt: skip
def no_barrier_at_the_end_of_a_round(data, out):
    """A thread that is a round ahead writes what others still read."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(4):
        tile[i] = data[THREADS * k + i]  # <- fault
        cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        # cure: cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="Hillis and Steele's sum of all before: one buffer in place of two", block=THREADS,
    args=ints(64, 64), expect=lambda data, out: [(out, np.cumsum(data))],
    names=("before any writes", "in a variable", "cuda.syncthreads()", "second array"),
)  # fmt: skip
def adds_what_others_change(data, out):
    """One statement reads the element of another thread and writes its own."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        # cure: other = tile[i - step] if i >= step else int32(0)
        # cure: cuda.syncthreads()
        if i >= step:  # cure: if True:
            tile[i] += tile[i - step]  # cure: tile[i] += other  # <- fault
        cuda.syncthreads()
        step *= 2
    out[i] = tile[i]


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions; reductions by halves", block=THREADS,
    args=ints(64, 1), expect=lambda data, out: [(out, data.sum())],
    names=("cuda.syncthreads() at the end of each round",),
)  # fmt: skip
def halves_without_a_barrier(data, out):
    """A sum by halves whose rounds are not kept apart."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if i < half:
            tile[i] += tile[i + half]  # <- fault
        # cure: cuda.syncthreads()
        half //= 2
    if i == 0:
        out[0] = tile[0]


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a condition that is the same for all",
    block=THREADS, args=lambda: [*ints(256, 64)(), 4], expect=sums_of_rounds,
    names=("two rounds of the loop", "cuda.syncthreads() at the end of each round"),
)  # fmt: skip
def barrier_if_there_is_more_than_one_warp(data, out, rounds):
    """All threads take the branch in each round, and the barrier at the end of a round is missing."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(rounds):
        tile[i] = data[THREADS * k + i]  # <- fault
        if cuda.blockDim.x > 32:
            cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        # cure: cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, shared memory: the product of two matrices, with a bound",
    block=THREADS, args=lambda: [*ints(256, 64)(), 4], expect=sums_of_rounds,
    names=("two rounds of the loop", "cuda.syncthreads() at the end of each round"),
)  # fmt: skip
def reads_behind_the_barrier_in_its_branch(data, out, rounds):
    """The barrier and the read are in one branch, and the write before it."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total, k = int32(0), 0
    while k < 4:
        tile[i] = data[THREADS * k + i]  # <- fault
        if k < rounds:
            cuda.syncthreads()
            total += tile[63 - i]  # <- fault
        k += 1
        # cure: cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a condition that is the same for all",
    block=THREADS, args=lambda: [*ints(256, 64)(), 4], expect=sums_of_rounds,
    names=("out of its branch", "cuda.syncthreads() at the end of each round"),
)  # fmt: skip
def barrier_in_every_other_round(data, out, rounds):
    """All threads take the branch, in even rounds, and no barrier ends a round."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(rounds):
        tile[i] = data[THREADS * k + i]  # <- fault
        if k % 2 == 0:  # cure: if True:
            cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        # cure: cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a condition that is the same for all",
    block=THREADS, args=lambda: [*ints(256, 64)(), 4], expect=sums_of_rounds,
    names=("two rounds of the loop", "Move the barrier at", "so that each round has it"),
)  # fmt: skip
def only_some_rounds_end_with_a_barrier(data, out, rounds):
    """The barrier in the middle of a round is for all, and the one at its end for even rounds."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(rounds):
        tile[i] = data[THREADS * k + i]  # <- fault
        cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        if k % 2 == 0:  # cure: if True:
            cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: no barrier after the last round",
    block=THREADS, args=lambda: [*ints(256, 64)(), 4], expect=sums_of_rounds,
    names=("Put cuda.syncthreads() between",),
)  # fmt: skip
def barrier_at_the_end_of_rounds_alone(data, out, rounds):
    """Each round but the last ends with a barrier, as it should, and none stands between write and read."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(rounds):
        tile[i] = data[THREADS * k + i]  # <- fault
        # cure: cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        if k < rounds - 1:
            cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, reductions: the last warp without barriers", block=THREADS,
    args=ints(64, 1), expect=lambda data, out: [(out, data.sum())],
    names=("Move the barrier at", "so that each round has it"),
)  # fmt: skip
def halves_of_the_last_warp(data, out):
    """A sum by halves that has barriers as long as more than a warp adds."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if i < half:
            tile[i] += tile[i + half]  # <- fault
        if half > 16:  # cure: if True:
            cuda.syncthreads()
        half //= 2
    if i == 0:
        out[0] = tile[0]


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a barrier in one arm", block=THREADS,
    args=ints(64, 64), expect=lambda data, out: [(out[32:], data[:32])],
    names=("has gone past the barrier between them", "Have all threads of the block come to the barrier"),
)  # fmt: skip
def barrier_in_one_arm(data, out):
    """One warp writes and comes to the barrier, and the other reads in the other arm."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i] = data[i]
        cuda.syncthreads()  # cure: pass
    # cure: cuda.syncthreads()
    else:  # cure: if i >= 32:
        out[i] = tile[i - 32]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: threads without work", block=THREADS,
    args=ints(64, 64), expect=lambda data, out: [(out[:48], data[:15:-1])],
    names=("has gone past the barrier between them", "no return, break or continue"),
)  # fmt: skip
def returns_before_the_barrier(data, out):
    """Some threads write, and have nothing to do after that."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    if i >= 48:  # cure: if i >= 64:
        return
    cuda.syncthreads()
    out[i] = tile[63 - i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: threads without work", block=THREADS,
    args=lambda: [*ints(256, 64)(), 4], expect=lambda data, out, rounds: [(out[:48], summed(data)[:48])],
    names=("has gone past the barrier between them", "no return, break or continue"),
)  # fmt: skip
def skips_the_barriers_of_a_round(data, out, rounds):
    """Some threads only write, and leave the rest of each round, with its barriers, to the others."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    total = int32(0)
    for k in range(rounds):
        tile[i] = data[THREADS * k + i]
        if i >= 48:  # cure: if i >= 64:
            continue
        cuda.syncthreads()
        total += tile[63 - i]  # <- fault
        cuda.syncthreads()
    out[i] = total


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: loops of different lengths", block=THREADS,
    args=ints(64, 64), expect=lambda data, out: [(out, (np.arange(64) // 32 + 1)[::-1] * data[::-1])],
    names=("Have all threads of the block come to the barrier at", "and as often", "or loop"),
)  # fmt: skip
def rounds_that_differ_between_warps(data, out):
    """The barrier is in a loop that one warp leaves a round earlier."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = 0
    k = 0
    while k < 1 + i // 32:
        tile[i] += data[i]  # <- fault
        cuda.syncthreads()  # cure: pass
        k += 1
    # cure: cuda.syncthreads()
    out[i] = tile[63 - i]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, synchronization functions: a barrier in a function", block=THREADS,
    args=ints(64, 64), expect=lambda data, out: [(out, data[::-1])],
    names=("has gone past the barrier between them", "called at"),
)  # fmt: skip
def calls_a_barrier_in_a_branch(data, out):
    """The barrier is in a function that only one warp calls."""
    tile = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    tile[i] = data[i]
    if i < 32:  # cure: if True:
        all_meet()
    out[i] = tile[63 - i]  # <- fault


# --- the whole grid -----------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="Numba documentation, examples: the heat equation has two buffers", grid=4,
    block=32, args=ints(128, 128), expect=lambda data, out: [(out[1:-1], 3 * np.arange(1, 127))],
    names=("second array", "`data`"),
)  # fmt: skip
def stencil_in_place(data, out):
    """Each thread writes where its neighbours read."""
    i = cuda.grid(1)
    if 0 < i < 127:
        # cure: out[i] = data[i - 1] + data[i] + data[i + 1]
        data[i] = data[i - 1] + data[i] + data[i + 1]  # cure: pass  # <- fault


@wrong(
    faults.DataRace, source="Numba documentation, cooperative groups", grid=2, block=32, args=ints(64, 64),
    expect=lambda data, out: [(data, np.roll(np.arange(64) * 2, -1))],
    names=("cuda.cg.this_grid().sync() between",),
)  # fmt: skip
def half_a_round_without_the_grid(data, out):
    """A barrier of the grid at the end of the round, and none between its halves."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for _ in range(1):
        out[i] = 2 * data[i]  # <- fault
        # cure: grid.sync()
        data[i] = out[(i + 1) % 64]  # <- fault
        grid.sync()


@wrong(
    faults.DataRace, source="CUDA guide, cooperative groups: a barrier of a block is none of the grid", grid=2,
    block=32, args=ints(64, 64), expect=lambda data, out: [(data, np.roll(np.arange(64) * 2, -1))],
    names=("for the threads of one block", "cuda.cg.this_grid().sync()"),
)  # fmt: skip
def a_barrier_of_the_block_for_the_grid(data, out):
    """Threads of two blocks exchange numbers, and meet the threads of their own block alone."""
    i = cuda.grid(1)
    out[i] = 2 * data[i]  # <- fault
    cuda.syncthreads()  # cure: cuda.cg.this_grid().sync()
    data[i] = out[(i + 1) % 64]  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions: a counter that the kernel itself clears", grid=4,
    block=32, args=ints(128, 1), expect=lambda data, out: [(out, data.sum())],
    names=("syncthreads stops at its block", "is for the threads of one block", "cuda.cg.this_grid().sync()"),
)  # fmt: skip
def clears_the_sum_for_its_own_block(data, out):
    """Block 0 clears what all blocks add to, and a barrier of each block comes after."""
    i = cuda.grid(1)
    if i == 0:
        out[0] = 0  # <- fault
    cuda.syncthreads()  # cure: cuda.cg.this_grid().sync()
    cuda.atomic.add(out, 0, data[i])  # <- fault


@wrong(
    faults.DataRace, source="numba/numba issue 8249: blocks exchange numbers by a global array", grid=4,
    block=32, args=ints(128, 128), expect=lambda data, out: [(out, np.arange(128)[::-1] + 3)],
    names=("syncthreads stops at its block", "cuda.cg.this_grid().sync()", "an atomic", "launch"),
)  # fmt: skip
def blocks_exchange_without_any_barrier(data, out):
    """Each thread reads what one of another block has just written."""
    i = cuda.grid(1)
    data[i] += 3  # <- fault
    # cure: cuda.cg.this_grid().sync()
    out[i] = data[127 - i]  # <- fault


@wrong(
    faults.DataRace, source="Numba documentation, examples: the heat equation in one launch", grid=4, block=32,
    args=ints(128, 128), expect=lambda data, out: [(data, np.roll(np.arange(128), -2))],
    names=("second array", "syncthreads stops at its block", "cuda.cg.this_grid().sync()"),
)  # fmt: skip
def steps_in_place_in_a_loop(data, out):
    """Each round writes where other threads read, also those of other blocks."""
    i = cuda.grid(1)
    for _ in range(2):
        # cure: out[i] = data[(i + 1) % 128]
        # cure: cuda.cg.this_grid().sync()
        # cure: data[i] = out[i]
        # cure: cuda.cg.this_grid().sync()
        data[i] = data[(i + 1) % 128]  # cure: pass  # <- fault


@wrong(
    faults.DataRace, source="numba/numba issue 8249: scratch indexed by too little", grid=4, block=32,
    args=ints(128, 128), expect=lambda data, out: [(out, data)],
    names=("out[0]", "an element of its own", "cuda.grid(1)"),
)  # fmt: skip
def all_of_the_grid_write_one_element(data, out):
    """Each thread of the grid writes its result to the same element."""
    i = cuda.grid(1)
    out[0] = data[i]  # cure: out[i] = data[i]  # <- fault


@wrong(
    faults.DataRace, source="Numba documentation, cooperative groups", grid=2, block=32,
    args=lambda: [np.arange(64, dtype=np.int32), np.zeros(64, np.int32), 4],
    expect=lambda data, out, rounds: [(data, np.arange(64) + 6)],
    names=("cuda.cg.this_grid().sync() at the end of each round", "Where some pass by the one at"),
)  # fmt: skip
def barrier_of_the_grid_in_a_branch_of_all(data, out, rounds):
    """All threads of the grid take the branch in each round, and no barrier ends a round."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for k in range(4):
        out[i] = k  # <- fault
        if rounds > 0:
            grid.sync()
        data[i] += out[63 - i]  # <- fault
        # cure: grid.sync()


@wrong(
    faults.DataRace, source="Numba documentation, cooperative groups: each row from the one before", grid=2,
    block=32, args=lambda: [np.zeros((4, 64), np.int32)], expect=lambda table: [(table[3], 3)],
    names=("cuda.cg.this_grid().sync() at the end of each round",),
)  # fmt: skip
def rows_without_a_barrier_of_the_grid(table):
    """Each round reads the row that other threads wrote in the round before."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    grid.sync()
    for row in range(1, 4):
        table[row, i] = table[row - 1, 63 - i] + 1  # <- fault
        # cure: grid.sync()


# --- indices ------------------------------------------------------------------------------------------
@wrong(
    faults.DataRace, source="numba/numba issue 8249: threadIdx for the number in the grid", grid=4, block=32,
    args=ints(128), expect=lambda data: [(data, 2 * np.arange(128))],
    names=("cuda.threadIdx.x", "cuda.grid(..)"),
)  # fmt: skip
def each_block_doubles_the_first_elements(data):
    """All blocks change the first 32 elements of 128, each thread by a read and a write."""
    i = cuda.threadIdx.x  # cure: i = cuda.grid(1)
    data[i] *= 2  # <- fault


@wrong(
    faults.DataRace, source="CUDA guide, atomic functions: the counts of all blocks are added up", grid=4,
    block=32, args=ints(128, 32), expect=lambda data, out: [(out, data.reshape(4, 32).sum(axis=0))],
    names=("cuda.atomic.add",),
)  # fmt: skip
def sums_of_all_blocks_without_an_atomic(data, out):
    """As many elements as a block has threads: here the index is meant."""
    i = cuda.threadIdx.x
    value = data[cuda.grid(1)]
    out[i] += value  # cure: cuda.atomic.add(out, i, value)  # <- fault
