"""One arrival more expected than is ever made.

The empty barrier expects 33 arrivals, the 32 lanes that read and the thread that fills, but only
the lanes arrive. The first round needs no empty stage and runs; then the producer waits for an
arrival that nobody makes, and the consumers wait for the producer. On hardware the kernel hangs
and says nothing.

Note 3 initialises its barrier with blockDim.x and hangs when a part of the block does not come.
The same question, which count for which role, hung a producer and consumer loop in NVIDIA/cutlass
issue 2404.
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

MET = "note 3; NVIDIA/cutlass issue 2404"
FAULTS = {faults.MissingArrivals: "mbarrier_wait(empty + 8 * stage, parity ^ 1)"}
CURE = "Expect the arrivals that are really made in each phase: here one for each consumer lane."
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
            if BUG:
                init_barriers(empty, STAGES, LANES + 1)  # the fault: nobody is number 33
            else:
                init_barriers(empty, STAGES, LANES)  # the cure: one for each lane that reads
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
                mbarrier_wait(full + 8 * stage, parity)
                total += tile[stage, lane]
                fence_proxy_async()
                mbarrier_arrive(empty + 8 * stage)
            st_global_b32(out + uint64(4 * lane), uint32(total))

    return ring


arguments = sums_of_tiles(ITEMS, LANES)
