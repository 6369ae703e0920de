"""A spin on a flag that nobody sets.

Consumers wait for a flag for every point. The producer skips the points that lie outside the image,
since there is nothing to load for them, and their flags with them. A spin has nothing to time out:
one sample outside the image, and the kernel hangs.

One pipeline of note 3 has per-point flags and spins in place of its barrier, and was abandoned as a
deadlock; it keeps a `within_range` for every point. In a barrier the missing arrival would at least be
a number that one can look at: a barrier counts what it waits for, a flag only holds what somebody has
written.
"""

import numpy as np
from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, shared_address, st_global_b32
from ...device.pipeline import flag_set, flag_wait
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 3"
FAULTS = {faults.Livelock: "flag_wait(flag, 1)"}
CURE = ("Set the flag for every point that is waited for; say in the data that there is nothing to do.")
HANGS = True

LANES, POINTS, WIDTH = 32, 4, 100


def build(BUG):
    """Kernel(columns, out): thread 0 publishes each point, the lanes add up those in the image."""

    @kernel(threads=64)
    def flags(columns: u64, out: u64):
        metadata = cuda.shared.array(POINTS, uint32)
        ready = cuda.shared.array(POINTS, uint32)
        tid = int32(cuda.threadIdx.x)
        if tid < POINTS:
            ready[tid] = 0
        cuda.syncthreads()
        if tid == 0:  # the producer
            for point in range(POINTS):
                column = ld_global_b32(columns + uint64(4 * point))
                inside = column < WIDTH
                metadata[point] = column if inside else uint32(0)
                if BUG:
                    published = inside  # the fault: consumers wait for the others as well
                else:
                    published = True  # the cure: every point has its flag
                if published:
                    flag_set(shared_address(ready) + uint32(4 * point), 1)
        elif tid >= LANES:  # the consumers
            total = uint32(0)
            for point in range(POINTS):
                flag = shared_address(ready) + uint32(4 * point)
                flag_wait(flag, 1)
                total += metadata[point]
            st_global_b32(out + uint64(4 * (tid - LANES)), uint32(total))

    return flags


def arguments(seed):
    """Columns, one of them outside; out is the sum of those inside, the same for every lane."""
    columns, out = random_words(POINTS, seed=seed) % np.uint32(WIDTH), poison(LANES)
    columns[seed % POINTS] += np.uint32(WIDTH)
    return Launch((columns, out), out, columns[columns < WIDTH].sum().repeat(LANES))
