"""A barrier index past the array.

The full and the empty barriers of all stages lie in one array. `empty` points behind the full ones
already, and the index skips them once more. Whatever lies behind the array is taken for a barrier:
on hardware the wait reads some other variable, and passes or hangs; nothing checks it.

Note 1 lists "barrier array out of bounds" among its solved problems, with an array of the
dimensions [STAGES][MAX_WARPS] as the cure.
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

MET = "note 1"
FAULTS = {faults.NotABarrier: "mbarrier_wait(empty + 8 * (STAGES + stage), parity ^ 1)"}
CURE = "Count from where the address points to, and within the dimensions the array was made with."
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
                if BUG:
                    mbarrier_wait(empty + 8 * (STAGES + stage), parity ^ 1)  # the fault
                else:
                    mbarrier_wait(empty + 8 * stage, parity ^ 1)  # the cure: full ones not again
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
