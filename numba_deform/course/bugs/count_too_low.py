"""One arrival fewer expected than is made.

The empty barrier expects 31 arrivals and gets 32. The phase is over when the slowest lane has not
arrived yet, and may not have read yet: the producer refills the stage under its hands, and its
late arrival counts in the next phase. No instruction fails; the sums are wrong now and then.

Note 3 varies the numbers of producer and consumer warps (1:7 to 4:4), and with them every such
count. A fork of Triton had to adapt the count of its barriers to warp groups of another size
(facebookexperimental/triton pull request 104).
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

MET = "note 3; facebookexperimental/triton pull request 104"
# Who is last decides: its arrival counts in the next phase, or the refill comes before its read.
FAULTS = {
    faults.TooManyArrivals: "mbarrier_arrive(empty + 8 * stage)",
    faults.RefillRace: "cp_async_bulk_load(slot, data + uint64(BYTES * i), BYTES, bar)",
}
CURE = "Expect the arrivals that are really made in each phase: here one for each consumer lane."

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
                init_barriers(empty, STAGES, LANES - 1)  # the fault: one lane is not counted
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
