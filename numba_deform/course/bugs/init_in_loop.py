"""A barrier initialised at the top of a persistent loop.

A persistent block works through many items, and the code of one item was moved into a loop as it
stood, with the init of its barriers. From the second item on they are initialised while they are in
use, which is undefined: on hardware their phase is set back to 0 while other threads may still look
at them.

The persistent kernel of note 3 does so at the top of its loop. The opposite slip is as bad: a
compiler kept the barriers but started every item with parity 0, which is right only where the rounds
of one item bring the parity back (tile-ai/tilelang pull request 2674).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import Launch, poison, random_words

MET = "note 3; tile-ai/tilelang pull request 2674"
FAULTS = {faults.LiveBarrierInit: "mbarrier_init(full, 1)"}
CURE = "Initialise once, before the loop, and carry the parity on from item to item."

THREADS, BLOCKS, ITEMS = 32, 2, 6
BYTES = 4 * THREADS


def build(BUG):
    """Kernel(data, out): two persistent blocks copy the tiles one by one."""

    @kernel(threads=THREADS)
    def persistent(data: u64, out: u64):
        tile = cuda.shared.array(THREADS, uint32, alignment=128)
        bars = cuda.shared.array(1, uint64)
        slot, full, tid = shared_address(tile), shared_address(bars), int32(cuda.threadIdx.x)
        use = 0  # how often the barrier was used
        for item in range(cuda.blockIdx.x, ITEMS, BLOCKS):
            if BUG:
                fresh = True  # the fault: initialised for every item
            else:
                fresh = use == 0  # the cure: once
            if tid == 0 and fresh:
                mbarrier_init(full, 1)
                fence_mbarrier_init()
            cuda.syncthreads()
            if tid == 0:
                mbarrier_arrive_expect_tx(full, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * item), BYTES, full)
            mbarrier_wait(full, use & 1)
            word = ld_shared_b32(slot + uint32(4 * tid))
            st_global_b32(out + uint64(BYTES * item + 4 * tid), word)
            fence_proxy_async()
            cuda.syncthreads()  # all have read the tile
            use += 1

    return persistent


def arguments(seed):
    """Data of ITEMS tiles, to be copied to out."""
    data, out = random_words(ITEMS, THREADS, seed=seed), poison(ITEMS, THREADS)
    return Launch((data, out), out, data.copy(), grid=BLOCKS)
