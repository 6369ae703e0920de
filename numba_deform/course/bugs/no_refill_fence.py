"""No proxy fence between the last read and the refill.

A load asks for a word, and the word comes later. A consumer that has asked for the last words of a stage
arrives on the empty barrier, and the compiler sees no reason to wait for them first: the arrival is behind
the loads for other threads. It is not for the copy engine, which is another proxy and writes the next tile
as soon as the producer asks for it. Some of the words are then those of the next tile. A
``fence.proxy.async`` between the reads and the arrival waits for them.

This project shipped it. Its product on tensor cores was right in every test, and on an H100 that it filled
it was wrong in each of 1,000 launches, in other elements each time (bench/NOTES.md, "A stage that is read
and refilled"). Values that are used before the arrival, as here, have come back and hide it.
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

MET = "this project's product on tensor cores"
FAULTS = {faults.MissingRefillFence: "cp_async_bulk_load(slot, data + uint64(BYTES * i), BYTES, bar)"}
CURE = "Call fence_proxy_async() in each thread that has read, before it arrives on the empty barrier."

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
                total += tile[stage, lane]
                if not BUG:
                    fence_proxy_async()  # the cure: what was asked for has come
                mbarrier_arrive(empty + 8 * stage)
            st_global_b32(out + uint64(4 * lane), uint32(total))

    return ring


arguments = sums_of_tiles(ITEMS, LANES)
