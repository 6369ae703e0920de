"""No block barrier between a barrier's init and its use by others.

Thread 0 initialises the barrier, and all threads arrive on it at once. Nothing makes the init come
first: a warp that is ahead arrives on garbage, and its arrival is lost when the init follows.

NVIDIA/TransformerEngine pull request 3417 adds missing synchronization around the init and the
invalidation of TMA barriers to a whole family of kernels.
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive, mbarrier_init
from ...device.memory import ld_global_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...engines import faults
from .base import Launch, poison, random_words

MET = "NVIDIA/TransformerEngine pull request 3417"
FAULTS = {faults.InitNotOrdered: "mbarrier_arrive(bar)"}
CURE = "Call cuda.syncthreads() after mbarrier_init(), before any other thread uses the barrier."
HANGS = True

THREADS = 64


def build(BUG):
    """Kernel(data, out): the threads write data to shared memory, meet, and read it in reverse."""

    @kernel(threads=THREADS)
    def reverse(data: u64, out: u64):
        words = cuda.shared.array(THREADS, uint32)
        bars = cuda.shared.array(1, uint64)
        bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier_init(bar, THREADS)
        if not BUG:
            cuda.syncthreads()  # the cure: now it is a barrier for all
        words[tid] = ld_global_b32(data + uint64(4 * tid))
        mbarrier_arrive(bar)
        mbarrier_wait(bar, 0)
        st_global_b32(out + uint64(4 * tid), words[THREADS - 1 - tid])

    return reverse


def arguments(seed):
    """Data of one number for each thread; out is the same in reverse."""
    data, out = random_words(THREADS, seed=seed), poison(THREADS)
    return Launch((data, out), out, data[::-1].copy())
