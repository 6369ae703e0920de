"""More bytes expected than arrive.

Tiles of 96 bytes lie in slots of 128 bytes, as TMA destinations must. The full barrier is told to
expect the slot, and the copy delivers the tile. 32 bytes are missing for ever, the phase never
completes, and the kernel hangs.

This project's own tile copy keeps the two sizes apart for this reason (kernels/tile_copy.py: BYTES
and SLOT).
"""

from numba import cuda, int32, uint32, uint64
from numba.core import types

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import sums_of_tiles

MET = "this project (kernels/tile_copy.py)"
FAULTS = {faults.MissingBytes: "mbarrier_wait(full, 0)"}
CURE = "Expect the bytes of the copies, not of the slots they go into."
HANGS = True

WORDS, TILES = 24, 2
BYTES, SLOT = 4 * WORDS, 128
SHARED = TILES * SLOT


def build(BUG):
    """Kernel(data, out): two tiles on one barrier; thread i writes word i of their sum."""

    @kernel(threads=WORDS)
    def two_tiles(data: u64, out: u64):
        slots = cuda.shared.array(SHARED, types.uint8, alignment=128)
        bars = cuda.shared.array(1, uint64)
        first, full, tid = shared_address(slots), shared_address(bars), int32(cuda.threadIdx.x)
        if tid == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            if BUG:
                mbarrier_arrive_expect_tx(full, TILES * SLOT)  # the fault: 32 bytes of each are gap
            else:
                mbarrier_arrive_expect_tx(full, TILES * BYTES)  # the cure: what the copies bring
            for i in range(TILES):
                cp_async_bulk_load(first + SLOT * i, data + uint64(BYTES * i), BYTES, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        total = uint32(0)
        for i in range(TILES):
            total += ld_shared_b32(first + SLOT * i + 4 * tid)
        st_global_b32(out + uint64(4 * tid), uint32(total))

    return two_tiles


arguments = sums_of_tiles(TILES, WORDS)
