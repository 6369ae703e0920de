"""No warp sync between the last read and the refill.

A warp that loads for itself needs no empty barrier: lane 0 may refill a stage when all lanes have
read it, and one syncwarp says so. Without it the lanes are free to drift apart (since Volta they
do), and lane 0 asks for the next tile while a slower lane still reads this one.

It is the second fault of the two-stage pipeline of notes 1 and 2, silent behind the first one.
mlc-ai/TIRx-kernels pull request 202 joined the warp before an elected lane speaks for it, in
several kernels.
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx
from ...device.memory import shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import sums_of_tiles

MET = "notes 1 and 2; mlc-ai/TIRx-kernels pull request 202"
FAULTS = {faults.RefillRace: "cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)"}
CURE = "Call cuda.syncwarp() after the last read, before any lane asks for the next tile."

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
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)
            stage, parity = i % STAGES, (i // STAGES) & 1
            mbarrier_wait(full + 8 * stage, parity)
            total += tile[stage, lane]
            fence_proxy_async()
            if not BUG:
                cuda.syncwarp()  # the cure: all lanes have read the stage
        st_global_b32(out + uint64(4 * lane), uint32(total))

    return pipeline


arguments = sums_of_tiles(ITEMS, LANES)
