"""A release before the last read.

The consumers arrive on the empty barrier and read the stage after that. The arrival says that the
stage may be overwritten, so the producer refills it while they read. It is easily done when code
is moved: the release stands at the end of the loop, and the last read moves below it to overlap
with something else.

nvFuser gave stages back while asynchronous matrix instructions were still reading them, and now
waits for these before the arrival (NVIDIA/Fuser pull request 3863). In mlc-ai/TIRx-kernels slots
were used again before every reader had released them (pull request 202).
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

MET = "NVIDIA/Fuser pull request 3863; mlc-ai/TIRx-kernels pull request 202"
FAULTS = {faults.ReadAfterRelease: "total += tile[stage, lane]"}
CURE = "Arrive on the empty barrier after the last read of the stage."

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
                mbarrier_wait(full + 8 * stage, parity)
                if BUG:
                    fence_proxy_async()
                    mbarrier_arrive(empty + 8 * stage)
                    total += tile[stage, lane]  # the fault: it is ours no more
                else:
                    total += tile[stage, lane]
                    fence_proxy_async()
                    mbarrier_arrive(empty + 8 * stage)  # the cure: read, then release
            st_global_b32(out + uint64(4 * lane), uint32(total))

    return ring


arguments = sums_of_tiles(ITEMS, LANES)
