"""A named barrier called by one lane.

One elected lane of each consumer warp calls the named barrier, the way one lane is enough to arrive
on an mbarrier, and the warp meets behind it. But bar.sync counts whole warps and is meant for all lanes
of each: from one lane it is undefined. The hardware counts one call as 32 arrivals, or waits for the
lanes that never come.

In a fork of Triton the compiler split the warps before their named barrier, so that only a part of
each came to it at a time, and the kernel hung (facebookexperimental/triton pull request 1040).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, st_global_b32
from ...device.sync import bar_sync
from ...engines import faults
from .base import Launch, poison, random_words

MET = "facebookexperimental/triton pull request 1040"
FAULTS = {faults.NamedBarrierMisuse: "bar_sync(1, 64)"}
CURE = "Call it from every lane of the warps that take part; to speak for a warp, use an mbarrier."
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
                elected = lane == 0  # the fault: a barrier of warps, called by one lane
            else:
                elected = True  # the cure: all lanes come
            if elected:
                bar_sync(1, 64)
            cuda.syncwarp()
            other = words[32 * (1 - warp) + lane]
            st_global_b32(out + uint64(4 * tid), other)

    return exchange


def arguments(seed):
    """A number for each of 64 threads; out is what the same lane of the other warp holds."""
    data, out = random_words(CONSUMERS, seed=seed), poison(CONSUMERS)
    return Launch((data, out), out, data.reshape(2, 32)[::-1].reshape(-1).copy())
