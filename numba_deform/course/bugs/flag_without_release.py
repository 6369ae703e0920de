"""A flag set without release.

A producer writes a point's metadata and sets a flag; a consumer spins on the flag and reads the
metadata. The flag is set by an ordinary store. Nothing makes the metadata visible before the flag:
the compiler and the hardware may swap the two stores, and the consumer reads garbage once in a
while.

One pipeline of note 3 has such flags in place of its barrier, and was given up. NVIDIA/cutlass issue 3117
is the other half of it: a spin with a relaxed load in place of an acquire.
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, shared_address, st_global_b32, st_shared_b32
from ...device.pipeline import flag_set, flag_wait
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 3; NVIDIA/cutlass issue 3117"
FAULTS = {faults.DataRace: "flag_wait(flag, 1)"}
CURE = "Set the flag with release (flag_set does), read it with acquire (flag_wait does)."

LANES, POINTS = 32, 4


def build(BUG):
    """Kernel(data, out): thread 0 publishes each point, the lanes of another warp add them up."""

    @kernel(threads=64)
    def flags(data: u64, out: u64):
        metadata = cuda.shared.array(POINTS, uint32)
        ready = cuda.shared.array(POINTS, uint32)
        tid = int32(cuda.threadIdx.x)
        if tid < POINTS:
            ready[tid] = 0
        cuda.syncthreads()
        if tid == 0:  # the producer
            for point in range(POINTS):
                flag = shared_address(ready) + uint32(4 * point)
                metadata[point] = ld_global_b32(data + uint64(4 * point))
                if BUG:
                    st_shared_b32(flag, uint32(1))  # the fault: nothing orders it after the data
                else:
                    flag_set(flag, 1)  # the cure: all before it is visible
        elif tid >= LANES:  # the consumers
            total = uint32(0)
            for point in range(POINTS):
                flag = shared_address(ready) + uint32(4 * point)
                flag_wait(flag, 1)
                total += metadata[point]
            st_global_b32(out + uint64(4 * (tid - LANES)), uint32(total))

    return flags


def arguments(seed):
    """Data of POINTS numbers; out is their sum, the same for every lane."""
    data, out = random_words(POINTS, seed=seed), poison(LANES)
    return Launch((data, out), out, data.sum().repeat(LANES))
