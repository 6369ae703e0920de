"""arrive_drop used as a reset.

Before each reuse of a stage its only expected arrival is dropped, in the hope that this takes the
barrier back to its start. arrive_drop is for a thread that leaves for good: it lowers the number
of arrivals that all coming phases expect, here from 1 to 0, which is outside the range a barrier
can hold.

This is the first cure that note 2 tried for its garbage ("arrive_and_drop() reset: CUDA launch
failure").
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_drop, mbarrier_arrive_expect_tx
from ...device.memory import shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import sums_of_tiles

MET = "note 2"
FAULTS = {faults.NobodyLeft: "mbarrier_arrive_drop(bar)"}
CURE = "Leave the barrier alone: its next phase begins by itself, with the other parity."
HANGS = True

LANES, STAGES, ITEMS = 32, 2, 6
BYTES = 4 * LANES


def build(BUG):
    """Kernel(data, out): a warp adds up tiles, and its lane 0 asks for them one ahead."""

    @kernel(threads=LANES)
    def pipeline(data: u64, out: u64):
        tile = cuda.shared.array((STAGES, LANES), uint32, alignment=128)
        bars = cuda.shared.array(STAGES, uint64)
        tiles, full = shared_address(tile), shared_address(bars)
        lane = int32(cuda.threadIdx.x)
        if lane == 0:
            init_barriers(full, STAGES, 1)
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(full, BYTES)  # prologue: the first tile
            cp_async_bulk_load(tiles, data, BYTES, full)
        cuda.syncwarp()
        total = uint32(0)
        for i in range(ITEMS):
            ahead = i + 1
            if lane == 0 and ahead < ITEMS:  # ask for the next tile
                slot, bar = tiles + BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
                if BUG:
                    mbarrier_arrive_drop(bar)  # the fault: no reset; without this line all is right
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)
            stage, parity = i % STAGES, (i // STAGES) & 1
            mbarrier_wait(full + 8 * stage, parity)
            total += tile[stage, lane]
            fence_proxy_async()
            cuda.syncwarp()
        st_global_b32(out + uint64(4 * lane), uint32(total))

    return pipeline


arguments = sums_of_tiles(ITEMS, LANES)
