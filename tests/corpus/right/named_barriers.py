"""Named barriers among some of a block's warps."""

import numpy as np
from base import right
from numba import cuda, int32, uint32, uint64

from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_init
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync, fence_mbarrier_init

WARP, THREADS = 32, 128


def ints(count, *shapes):
    return lambda: [np.arange(count, dtype=np.int32), *(np.zeros(s, np.int32) for s in shapes)]


@right(
    source="PTX ISA, barrier: sixteen barriers, each for any of the warps; CUTLASS NamedBarrier",
    block=THREADS, args=ints(THREADS, (2, THREADS)),
    expect=lambda data, out: [(out[0], data.reshape(2, 64)[:, ::-1].reshape(-1)),
                              (out[1], data ^ 65)],
)  # fmt: skip
def pairs_of_warps_and_other_pairs(data, out):
    """Warps exchange numbers in pairs, each pair by a barrier of its own; after a syncthreads of all the same
    two barriers serve other pairs."""
    words = cuda.shared.array(THREADS, int32)
    thread = int32(cuda.threadIdx.x)
    warp = thread // 32
    words[thread] = data[thread]
    bar_sync(uint32(1 + warp // 2), 64)
    out[0, thread] = words[thread ^ 63]
    cuda.syncthreads()
    words[thread] = data[thread] ^ 1
    bar_sync(uint32(1 + warp % 2), 64)
    out[1, thread] = words[thread ^ 64]


@right(
    source="FlashAttention hopper/named_barrier.hpp: several warps arrive, one waits",
    block=THREADS, args=ints(96, WARP), expect=lambda data, out: [(out, data.reshape(3, WARP).sum(0))],
)  # fmt: skip
def three_warps_arrive_and_one_waits(data, out):
    """The warps that write do not wait, and have returned before the last one reads what they wrote."""
    words = cuda.shared.array(THREADS, int32)
    thread = int32(cuda.threadIdx.x)
    if thread < 96:
        words[thread] = data[thread]
        bar_arrive(7, THREADS)
        return
    bar_sync(7, THREADS)
    lane = thread - 96
    out[lane] = words[lane] + words[lane + 32] + words[lane + 64]


@right(
    source="NVIDIA/cutlass: NamedBarrier::arrive by one role, sync by another, and a pipeline between them",
    block=64, args=ints(128, 128), expect=lambda data, out: [(out, data)],
)  # fmt: skip
def rounds_that_an_mbarrier_orders(data, out):
    """A warp arrives at a named barrier in each round, and waits for the other by an mbarrier."""
    words, bars = cuda.shared.array(WARP, int32), cuda.shared.array(1, uint64)
    done, thread = shared_address(bars), int32(cuda.threadIdx.x)
    if thread == 0:
        mbarrier_init(done, WARP)
        fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(4):
        if thread < WARP:
            if t:
                mbarrier_wait(done, (t - 1) & 1)
            words[thread] = data[WARP * t + thread]
            bar_arrive(1, 64)
        else:
            bar_sync(1, 64)
            out[WARP * t + thread - WARP] = words[thread - WARP]
            mbarrier_arrive(done)


@right(
    source="PTX ISA, barrier: bar.sync 0 is what __syncthreads becomes; kernels that use both",
    block=64, args=ints(64, 64), expect=lambda data, out: [(out, data ^ 0b11111)],
)  # fmt: skip
def barrier_zero_by_both_names(data, out):
    """Barrier 0 is used by number, with the count of the whole block, and as syncthreads, in turn."""
    words = cuda.shared.array(64, int32)
    thread = int32(cuda.threadIdx.x)
    words[thread] = data[thread]
    for step in range(5):
        if step % 2 == 0:
            bar_sync(0, 64)
        else:
            cuda.syncthreads()
        x = words[thread ^ (1 << step)]
        if step % 2 == 0:
            cuda.syncthreads()
        else:
            bar_sync(0, 64)
        words[thread] = x
    out[thread] = words[thread]


@right(
    source="CUTLASS include/cutlass/pipeline/sm90_pipeline.hpp, OrderedSequenceBarrier, here by named barriers",
    block=THREADS, args=ints(THREADS, THREADS),
    expect=lambda data, out: [(out, data.reshape(4, WARP).cumsum(0).reshape(-1))],
)  # fmt: skip
def a_chain_of_warps(data, out):
    """Each warp waits for the one before it, adds its numbers to a running sum and arrives for the next. The
    first waits for nobody and the last arrives for nobody; every barrier has two warps, at different times."""
    sums = cuda.shared.array(WARP, int32)
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    if warp > 0:
        bar_sync(uint32(warp), 64)
        sums[lane] += data[thread]
    else:
        sums[lane] = data[thread]
    out[thread] = sums[lane]
    if warp < 3:
        bar_arrive(uint32(warp + 1), 64)


@right(
    source="PTX ISA, barrier.arrive for those that only hand something over; a reduction by a tree",
    block=THREADS, args=ints(THREADS, WARP), expect=lambda data, out: [(out, data.reshape(4, WARP).sum(0))],
)  # fmt: skip
def a_tree_of_warps(data, out):
    """In each round half of the warps hand their sums to a partner and return; the barrier's number is that of
    the node of the tree."""
    words = cuda.shared.array(THREADS, int32)
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    total = data[thread]
    distance, node = 1, 1
    while distance < 4:
        if warp % (2 * distance):
            words[thread] = total
            bar_arrive(uint32(node + warp // (2 * distance)), 64)
            return
        bar_sync(uint32(node + warp // (2 * distance)), 64)
        total += words[thread + 32 * distance]
        distance, node = 2 * distance, node + 2
    out[lane] = total


@right(
    source="PTX ISA 9.7.13.1; CUDA guide: threads that have exited do not hold up a barrier", block=64,
    args=ints(50, 64), expect=lambda data, out: [(out[:50], data[::-1]), (out[50:], 0)],
)  # fmt: skip
def lanes_past_the_end_of_a_named_barrier(data, out):
    """Lanes without an element return, and the rest of their warp comes to a barrier for two whole warps, in
    each round of a loop that is left by a return as well."""
    words = cuda.shared.array(64, int32)
    i = int32(cuda.threadIdx.x)
    if i >= data.size:
        return
    for turn in range(3):
        words[i] = data[i]
        bar_sync(1, 64)
        if turn == 2:
            out[i] = words[49 - i]
            return
        bar_sync(2, 64)
