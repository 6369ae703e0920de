"""A named barrier with the wrong count.

Two consumer warps of a block of four synchronise among themselves by a named barrier, and say that 96
threads take part. 64 come. The count is not a limit but a demand: the barrier waits for the third
warp for ever.

Note 3 divides a block of 256 threads into producers and consumers in several ways, and each way
needs another count for every barrier between them. Whether 256 is right on a path that 128
threads take was asked about deepseek-ai/FlashMLA (issue 41).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, st_global_b32
from ...device.sync import bar_sync
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 3; deepseek-ai/FlashMLA issue 41"
FAULTS = {faults.Deadlock: "bar_sync(1, 96)"}
CURE = "Count the threads of the warps that really come, 32 for each."
HANGS = True

WARPS, CONSUMERS = 4, 64
THREADS = 32 * WARPS


def build(BUG):
    """Kernel(data, out): two warps exchange numbers, the other two have no part in it."""

    @kernel(threads=THREADS)
    def exchange(data: u64, out: u64):
        words = cuda.shared.array(CONSUMERS, uint32)
        tid = int32(cuda.threadIdx.x)
        warp, lane = tid >> 5, tid & 31
        if tid < CONSUMERS:
            words[tid] = ld_global_b32(data + uint64(4 * tid))
            if BUG:
                bar_sync(1, 96)  # the fault: three warps, and two come
            else:
                bar_sync(1, 64)  # the cure: the two consumer warps
            other = words[32 * (1 - warp) + lane]
            st_global_b32(out + uint64(4 * tid), other)

    return exchange


def arguments(seed):
    """A number for each of 64 threads; out is what the same lane of the other warp holds."""
    data, out = random_words(CONSUMERS, seed=seed), poison(CONSUMERS)
    return Launch((data, out), out, data.reshape(2, 32)[::-1].reshape(-1).copy())
