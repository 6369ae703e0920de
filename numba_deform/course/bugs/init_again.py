"""A barrier initialised again to reset it.

Before each reuse of a stage its barrier is initialised again, to be in phase 0 once more. But it
is in use: lanes wait on it and copies are going to signal it, and an init in that state is
undefined. On hardware, arrivals and bytes that the init wipes out are missing for ever.

This is the second cure that note 2 tried for its garbage ("init() re-initialization:
deadlock/hang"). A barrier needs no reset. When a phase completes, the next one begins by itself.
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import sums_of_tiles

MET = "note 2"
FAULTS = {faults.LiveBarrierInit: "mbarrier_init(bar, 1)"}
CURE = "Initialise once; wait for parity 0, 1, 0, 1 ... as the stage is used again and again."
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
                    mbarrier_init(bar, 1)  # the fault: it is in use; without this line all is right
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
