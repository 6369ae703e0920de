"""A consumer that starts with the producer's parity.

A fresh barrier is in phase 0, and a wait for parity 1 passes at once. Producers use this: they
start with parity 1 on empty barriers, since at first there is nothing to wait for. A consumer that
copies the producer's line starts with parity 1 on full barriers, passes before anything has
arrived, and is one phase behind from then on.

Note 2 lists software phase tracking as one of its ways out and never got to it; this is the
first mistake one makes there. Triton's own sanitizer had the convention wrong for a while
and refused right waits (triton-lang/triton pull request 11303).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from ...device.memory import shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import sums_of_tiles

MET = "note 2; triton-lang/triton pull request 11303"
FAULTS = {faults.FreshBarrierPassed: "total += tile[stage, lane]"}
CURE = "Consumers start with parity 0 on full barriers, producers with 1 on empty ones."
HANGS = True

LANES, STAGES, ITEMS = 32, 2, 6
BYTES, BARRIERS = 4 * LANES, 2 * STAGES


def build(BUG):
    """Kernel(data, out): a ring of two stages; one thread fills it, a warp reads it."""

    @kernel(threads=64)
    def ring(data: u64, out: u64):
        tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
        bars = cuda.shared.array(BARRIERS, uint64)
        tiles, full = shared_address(tile), shared_address(bars)
        empty = full + uint32(8 * STAGES)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            init_barriers(full, STAGES, 1)
            init_barriers(empty, STAGES, LANES)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:  # the producer
            for i in range(ITEMS):
                stage, parity = i % STAGES, (i // STAGES) & 1
                bar, slot = full + 8 * stage, tiles + BYTES * stage
                mbarrier_wait(empty + 8 * stage, parity ^ 1)
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * i), BYTES, bar)
        elif tid >= LANES:  # the consumers, one warp
            lane, total = int32(tid - LANES), uint32(0)
            for i in range(ITEMS):
                stage, parity = i % STAGES, (i // STAGES) & 1
                if BUG:
                    mbarrier_wait(full + 8 * stage, parity ^ 1)  # the fault: passes at once
                else:
                    mbarrier_wait(full + 8 * stage, parity)  # the cure: consumers start with 0
                total += tile[stage, lane]
                fence_proxy_async()
                mbarrier_arrive(empty + 8 * stage)
            st_global_b32(out + uint64(4 * lane), uint32(total))

    return ring


arguments = sums_of_tiles(ITEMS, LANES)
