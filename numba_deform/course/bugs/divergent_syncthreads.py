"""A syncthreads that not all threads of the block reach.

Each thread loops over its own number of points, with a syncthreads in every round. Threads with few
points leave the loop and come to the syncthreads behind it while the others are still in the one
inside. The hardware takes the two for one and lets everybody through, or waits for ever; the rounds
no longer belong together.

In flashinfer-ai/flashinfer only 4 of 12 warps came to one: it worked on some H100s and hung on
others (pull request 2996). Note 3 has "check thread divergence patterns" on its list.
"""

import numpy as np
from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, st_global_b32
from ...engines import faults
from .base import Launch, poison, random_words

MET = "flashinfer-ai/flashinfer pull request 2996; note 3"
# Two groups of threads wait in two places; the one that comes second is named.
FAULTS = {faults.DivergentBarrier: "cuda.syncthreads()"}
CURE = "Run the loop as often as the thread with most rounds needs, and guard the work inside."
HANGS = True

THREADS, MOST = 64, 4


def build(BUG):
    """Kernel(counts, data, out): each thread adds up what its right neighbour holds in each round."""

    @kernel(threads=THREADS)
    def neighbours(counts: u64, data: u64, out: u64):
        words = cuda.shared.array((MOST, THREADS), uint32)
        tid = int32(cuda.threadIdx.x)
        count = ld_global_b32(counts + uint64(4 * tid))
        for i in range(MOST):
            words[i, tid] = 0
        if BUG:
            rounds = int32(count)  # the fault: everyone has a number of their own
        else:
            rounds = int32(MOST)  # the cure: the same number for all
        for i in range(rounds):
            if i < count:
                words[i, tid] = ld_global_b32(data + uint64(4 * (i * THREADS + tid)))
            cuda.syncthreads()  # every round
        cuda.syncthreads()  # behind the loop
        total = uint32(0)
        for i in range(MOST):
            total += words[i, (tid + 1) % THREADS]
        st_global_b32(out + uint64(4 * tid), uint32(total))

    return neighbours


def arguments(seed):
    """Between 1 and MOST words for each thread; out is the sum of the next thread's words."""
    counts = np.random.default_rng(seed).integers(1, MOST + 1, THREADS, dtype=np.uint32)
    counts[0], counts[1] = 1, MOST
    data, out = random_words(MOST, THREADS, seed=seed), poison(THREADS)
    held = np.where(np.arange(MOST)[:, None] < counts, data, 0)
    return Launch((counts, data, out), out, np.roll(held.sum(axis=0), -1))
