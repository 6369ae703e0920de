"""A wait for a parity two phases behind.

Lane 0 takes a barrier through two phases before the other lanes look at it, and they wait for the
first of the two. A parity tells the current phase from the one before it, no more: two phases behind,
the same bit means the phase that has just begun. Nobody is going to complete that one, so the kernel
hangs. Had a third phase come, the lanes would have passed for the wrong reason.

Triton met it where one warp speaks for its group: the leader went on to the next phase while its
partners were still in the wait for the last one, and they slept for ever (triton-lang/triton pull
request 10035).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive, mbarrier_init
from ...device.memory import ld_global_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import shfl_sync_idx_b32
from ...engines import faults
from .base import Launch, poison, random_words

MET = "triton-lang/triton pull request 10035"
FAULTS = {faults.MissedPhase: "mbarrier_wait(bar, 0)"}
CURE = "Let all who wait for a barrier see every phase, or hand the news on with a barrier of the warp."
HANGS = True

LANES, STEPS = 32, 2
ALL_LANES = uint32(0xFFFFFFFF)


def build(BUG):
    """Kernel(data, out): lane 0 publishes two numbers in two phases of one barrier."""

    @kernel(threads=LANES)
    def two_phases(data: u64, out: u64):
        numbers = cuda.shared.array(STEPS, uint32)
        bars = cuda.shared.array(1, uint64)
        bar, lane = shared_address(bars), int32(cuda.threadIdx.x)
        if lane == 0:
            mbarrier_init(bar, 1)
        cuda.syncwarp()
        third = uint32(0)
        if lane == 0:
            for step in range(STEPS):
                numbers[step] = ld_global_b32(data + uint64(4 * step))
                mbarrier_arrive(bar)
                mbarrier_wait(bar, step)
            third = ld_global_b32(data + uint64(4 * STEPS))
        # The shuffle makes the lanes meet; it orders no memory.
        third = shfl_sync_idx_b32(ALL_LANES, third, 0)
        if BUG:
            mbarrier_wait(bar, 0)  # the fault: phase 0 is over, and so is phase 1
        else:
            cuda.syncwarp()  # the cure: what lane 0 knows, all know
        st_global_b32(out + uint64(4 * lane), uint32(numbers[0] + numbers[1] + third))

    return two_phases


def arguments(seed):
    """Data of three numbers; out is their sum, the same for every lane."""
    data, out = random_words(STEPS + 1, seed=seed), poison(LANES)
    return Launch((data, out), out, data.sum().repeat(LANES))
