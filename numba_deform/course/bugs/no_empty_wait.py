"""A refill that does not wait for the readers.

Thread 0 asks for the next tile as soon as it has read the last one itself, without a wait on the
empty barrier. The copy engine overwrites the stage while the other threads may still be reading it.
With quick readers this works for a long time, and fails when something slows one of them down.

The pipeline of notes 1 and 2 has full barriers only: what keeps its refills behind its reads is
the order of the instructions, see no_warp_sync. A copy kernel refilled buffers that its own stores
were still reading (deepseek-ai/DeepEP issue 657).
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

MET = "notes 1 and 2; deepseek-ai/DeepEP issue 657"
FAULTS = {faults.RefillRace: "cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)"}
CURE = "Wait on the stage's empty barrier before asking for the next tile."

THREADS, STAGES, ITEMS = 64, 2, 6
BYTES, BARRIERS = 4 * THREADS, 2 * STAGES


def build(BUG):
    """Kernel(data, out): a block adds up tiles, and its thread 0 asks for them as well."""

    @kernel(threads=THREADS)
    def ring(data: u64, out: u64):
        tile = cuda.shared.array((STAGES, THREADS), uint32, alignment=128)
        bars = cuda.shared.array(BARRIERS, uint64)
        tiles, full = shared_address(tile), shared_address(bars)
        empty = full + uint32(8 * STAGES)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            init_barriers(full, STAGES, 1)
            init_barriers(empty, STAGES, THREADS)
            fence_mbarrier_init()
            for i in range(STAGES):
                mbarrier_arrive_expect_tx(full + 8 * i, BYTES)
                cp_async_bulk_load(tiles + BYTES * i, data + uint64(BYTES * i), BYTES, full + 8 * i)
        cuda.syncthreads()
        total = uint32(0)
        for i in range(ITEMS):
            stage, parity, ahead = i % STAGES, (i // STAGES) & 1, i + STAGES
            slot, bar = tiles + BYTES * stage, full + 8 * stage
            mbarrier_wait(bar, parity)
            total += tile[stage, tid]
            fence_proxy_async()
            mbarrier_arrive(empty + 8 * stage)
            if tid == 0 and ahead < ITEMS:
                if not BUG:
                    mbarrier_wait(empty + 8 * stage, parity)  # the cure: all have read the stage
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)
        st_global_b32(out + uint64(4 * tid), uint32(total))

    return ring


arguments = sums_of_tiles(ITEMS, THREADS)
