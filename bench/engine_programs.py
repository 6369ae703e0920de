"""Small programs for the CPU engine that are timed by ``compare.py --engine cpu``, in checkouts of any age.

``PROGRAMS`` names a function for each that runs it once and returns its output. Those named ``explore`` try the
orders of threads that poll; the others run one schedule.
"""

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from numba_deform import simulate
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_init, mbarrier_test_wait_parity
from numba_deform.device.memory import (
    global_address,
    ld_acquire_cta_shared_b32,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_release_cta_shared_b32,
)
from numba_deform.device.sync import fence_mbarrier_init

try:
    from numba_deform.engines.cpu import explore
except ImportError:  # where it stood before
    from numba_deform.sim.explore import explore

THREADS, ELEMENTS = 128, 8192
SIDE, STEPS = 128, 32
LANES, ROUNDS, TURNS = 32, 2, 2


def copy_words(data, out):
    """A plain copy, a word at a time, through addresses."""
    source, target = global_address(data), global_address(out)
    for i in range(int32(cuda.threadIdx.x), ELEMENTS, THREADS):
        st_global_b32(target + uint64(4 * i), ld_global_b32(source + uint64(4 * i)))


def copy_elements(data, out):
    """A plain copy of array elements."""
    for i in range(cuda.threadIdx.x, ELEMENTS, THREADS):
        out[i] = data[i]


def multiply_add(data, out):
    """Each thread adds up products of two shared arrays."""
    a, b = cuda.shared.array(SIDE, float32), cuda.shared.array(SIDE, float32)
    tid = cuda.threadIdx.x
    a[tid] = data[tid]
    b[tid] = data[SIDE + tid]
    cuda.syncthreads()
    total = float32(0)
    for _ in range(STEPS):
        for i in range(8):
            total += a[(tid + i) % SIDE] * b[i]
    out[tid] = total


def flags_in_a_ring(out):
    """Three warps hand a number round by a flag in shared memory, which the next one polls."""
    flags = cuda.shared.array(3, uint32)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    at = shared_address(flags)
    if cuda.threadIdx.x < 3:
        flags[cuda.threadIdx.x] = uint32(0)
    cuda.syncthreads()
    if lane == 0:
        for turn in range(TURNS):
            if warp > 0 or turn > 0:
                wanted = uint32(turn + 1 if warp > 0 else turn)
                while ld_acquire_cta_shared_b32(at + uint32(4 * ((warp + 2) % 3))) < wanted:
                    pass
            st_release_cta_shared_b32(at + uint32(4 * warp), uint32(turn + 1))
        out[warp] = TURNS


def tested_barrier(out):
    """Two warps look at two mbarriers in turn, which two others complete, until both are over."""
    bars = cuda.shared.array(2, uint64)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    at = shared_address(bars)
    if cuda.threadIdx.x == 0:
        mbarrier_init(at, uint32(1))
        mbarrier_init(at + uint32(8), uint32(1))
        fence_mbarrier_init()
    cuda.syncthreads()
    if lane == 0:
        if warp < 2:
            mbarrier_arrive(at + uint32(8 * warp))
        else:
            for i in range(2):
                while mbarrier_test_wait_parity(at + uint32(8 * i), uint32(0)) == 0:
                    pass
        out[warp] = 1


def spin_lock(out):
    """Three warps take a lock by compare-and-swap, and count."""
    lock = cuda.shared.array(1, int32)
    count = cuda.shared.array(1, int32)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        lock[0] = 0
        count[0] = 0
    cuda.syncthreads()
    if lane == 0:
        for _ in range(TURNS):
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence_block()
            count[0] += 1
            cuda.threadfence_block()
            cuda.atomic.exch(lock, 0, 0)
        out[warp] = 1


def _run(kernel, threads):
    def once():
        data, out = np.arange(ELEMENTS, dtype=np.float32), np.zeros(ELEMENTS, np.float32)
        simulate(kernel, 1, threads, (data, out))
        return out

    return once


def _explore(kernel, threads):
    def once():
        out = np.zeros(8, np.int32)
        explore(kernel, 1, threads, (out,), limit=400)
        return out

    return once


def _attention(by):
    """FlashAttention's forward of 512 queries and 512 keys."""

    def once():
        from numba_deform.course.pipelines.attention import attention

        launch = attention(by=by, blocks=8, steps=8)
        out = launch.args[3]
        out[:] = np.nan
        simulate(launch, timeout=600)
        return out

    return once


PROGRAMS = {
    "copy-words": _run(copy_words, THREADS), "copy-elements": _run(copy_elements, THREADS),
    "multiply-add": _run(multiply_add, SIDE), "explore-flags": _explore(flags_in_a_ring, 96),
    "explore-barriers": _explore(tested_barrier, 128), "explore-lock": _explore(spin_lock, 96),
    "attention-mma": _attention("mma"), "attention-wgmma": _attention("wgmma"),
}  # fmt: skip
