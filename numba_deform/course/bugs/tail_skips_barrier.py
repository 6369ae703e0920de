"""A block-wide barrier in a loop that the tail's threads never enter.

A barrier for all threads of the block stands in a loop over the sampling points, and the loop stands
behind `query < queries`. In the last block some threads have no query. They never arrive, the barrier
expects them, and the kernel hangs. In all other blocks, and in every test whose queries fill the
blocks, nothing is wrong.

This is the hang of note 3: B=48 and Q=20522 make 15391.5 blocks. "Query count mismatch with grid
size" stood third on its list of possible causes. It was reproduced on an H200 for this project.
"""

import numpy as np
from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive, mbarrier_init
from ...device.memory import ld_global_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 3"
FAULTS = {faults.MissingArrivals: "mbarrier_wait(bar, point & 1)"}
CURE = "Let every thread run the loop and arrive; only the work inside depends on having a query."
HANGS = True

THREADS, POINTS, QUERIES = 64, 4, 96


def build(BUG):
    """Kernel(weights, data, out): thread 0 publishes each point's weight, all threads use it."""

    @kernel(threads=THREADS)
    def points(weights: u64, data: u64, out: u64):
        metadata = cuda.shared.array(POINTS, uint32)
        bars = cuda.shared.array(1, uint64)
        bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
        query = int32(cuda.blockIdx.x * THREADS + tid)
        if tid == 0:
            mbarrier_init(bar, THREADS)
        cuda.syncthreads()
        mine, total = uint32(0), uint32(0)
        if query < QUERIES:
            mine = ld_global_b32(data + uint64(4 * query))
        if BUG:
            rounds = POINTS if query < QUERIES else 0  # the fault: the tail never enters the loop
        else:
            rounds = POINTS  # the cure: all come to the barrier
        for point in range(rounds):
            if tid == 0:
                metadata[point] = ld_global_b32(weights + uint64(4 * point))
            mbarrier_arrive(bar)
            mbarrier_wait(bar, point & 1)
            total += metadata[point] * mine
        if query < QUERIES:
            st_global_b32(out + uint64(4 * query), uint32(total))

    return points


def arguments(seed):
    """Weights below 16 and a number for each query; out is the number times the sum of weights."""
    weights = random_words(POINTS, seed=seed + 1) & np.uint32(15)
    data, out = random_words(QUERIES, seed=seed), poison(QUERIES)
    blocks = -(-QUERIES // THREADS)
    return Launch((weights, data, out), out, data * weights.sum(dtype=np.uint32), grid=blocks)
