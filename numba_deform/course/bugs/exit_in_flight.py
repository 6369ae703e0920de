"""The block ends with a copy in flight.

The producer runs one tile ahead of the work and asks for a tile that nobody is going to read. The
consumers finish, the block ends, and its shared memory goes to the next block while the copy is
still on its way: the bytes land in a stranger's tile, and the barrier they complete is the
stranger's too. A prefetch at the end of a loop does this when its bound is forgotten.

Note 1 guards the prefetch of its main loop with `prefetch_p < NUM_POINT`; this is what happens
without the guard. NVIDIA/TransformerEngine pull request 3417 repaired stores whose completion nobody waited
for.
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from ...device.memory import shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 1; NVIDIA/TransformerEngine pull request 3417"
FAULTS = {faults.CopyOutlivesBlock: "cp_async_bulk_load(slot, data + uint64(BYTES * i), BYTES, bar)"}
CURE = "Issue what will be waited for, and wait for everything that was issued."

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
            if BUG:
                last = ITEMS + 1  # the fault: nobody reads the last one
            else:
                last = ITEMS  # the cure: as many tiles as are read
            for i in range(last):
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


def arguments(seed):
    """Data of ITEMS tiles; out is their sum, one number for each lane."""
    data, out = random_words(ITEMS + 1, LANES, seed=seed), poison(LANES)
    return Launch((data, out), out, data[:ITEMS].sum(axis=0))
