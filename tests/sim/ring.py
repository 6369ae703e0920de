"""A ring of four stages, filled by TMA and read by 256 threads; and ten ways to get it wrong."""

import numpy as np
from numba import cuda, float32, int32, uint32

from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_tensor_1d, fence_proxy_tensormap_acquire_sys
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

STAGES, THREADS, BYTES = 4, 256, 1024


def ring(bytes=BYTES, empty_count=THREADS, init_twice=False, full_wait="right", empty_wait="right"):
    """The kernel; each option at its default is right.

    ``full_wait``: right, none, never_flips, inverted. ``empty_wait``: right, none, inverted.
    """
    expected = uint32(bytes)
    arrivals = uint32(empty_count)
    stages2 = 2 * STAGES

    @cuda.jit
    def kernel(maps, out, iterations):
        tid = int32(cuda.threadIdx.x)
        tile = cuda.shared.array((STAGES, THREADS), float32, alignment=128)
        bars = cuda.shared.array(stages2, np.uint64)
        tile_at = shared_address(tile)
        full = shared_address(bars)
        empty = full + uint32(8 * STAGES)
        if tid == 0:
            for s in range(STAGES):
                mbarrier_init(full + 8 * s, 1)
                mbarrier_init(empty + 8 * s, arrivals)
            if init_twice:
                mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap_acquire_sys(maps)
        cuda.syncthreads()
        if tid == 0:
            for s in range(STAGES):
                mbarrier_arrive_expect_tx(full + 8 * s, expected)
                cp_async_bulk_tensor_1d(
                    tile_at + uint32(BYTES * s), maps, int32(s * THREADS), full + 8 * s
                )
        total = float32(0)
        for i in range(iterations):
            s = i % STAGES
            parity = (i // STAGES) & 1
            if full_wait == "right":
                mbarrier_wait(full + 8 * s, parity)
            elif full_wait == "never_flips":
                mbarrier_wait(full + 8 * s, 0)
            elif full_wait == "inverted":
                mbarrier_wait(full + 8 * s, parity ^ 1)
            total += tile[s, tid]
            fence_proxy_async()
            mbarrier_arrive(empty + 8 * s)
            if tid == 0 and i + STAGES < iterations:
                if empty_wait == "right":
                    mbarrier_wait(empty + 8 * s, parity)
                elif empty_wait == "inverted":
                    mbarrier_wait(empty + 8 * s, parity ^ 1)
                mbarrier_arrive_expect_tx(full + 8 * s, expected)
                cp_async_bulk_tensor_1d(
                    tile_at + uint32(BYTES * s), maps, int32((i + STAGES) * THREADS), full + 8 * s
                )
        out[tid] = total

    return kernel


def arguments(iterations=32, seed=0):
    data = np.random.default_rng(seed).standard_normal(iterations * THREADS, dtype=np.float32)
    maps = TensorMapArray([TensorMap(data, "float32", [data.size], [], [THREADS])])
    out = np.full(THREADS, np.nan, np.float32)
    expected = data.reshape(iterations, THREADS).sum(axis=0, dtype=np.float64)
    return (maps, out, iterations), expected
