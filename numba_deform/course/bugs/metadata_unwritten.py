"""Metadata read before it was written.

Each stage has an entry of metadata, here the weight of its tile. The code that asks for the tile
fills in a copy of the entry, and the entry itself stays what it was: garbage. The tile is right,
the barriers are right, and the result is wrong.

This is the true cause of the garbage of notes 1 and 2: `auto meta = point_meta[s];` copies
by value where `auto& meta` was meant. The notes blamed what they had changed last, the barriers.
They tried resets that are undefined, and gave up two stages.
"""

import numpy as np
from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx
from ...device.memory import ld_global_b32, shared_address, st_global_b32
from ...device.pipeline import init_barriers, mbarrier_wait
from ...device.sync import fence_mbarrier_init, fence_proxy_async
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import Launch, poison, random_words

MET = "notes 1 and 2"
FAULTS = {faults.UninitialisedRead: "total += weights_of[stage] * tile[stage, lane]"}
CURE = "Write to the stage's own entry: in C++ `auto& meta = point_meta[s];`, by reference."

LANES, STAGES, ITEMS = 32, 2, 6
BYTES = 4 * LANES


def build(BUG):
    """Kernel(data, weights, out): a warp adds up tiles, and its lane 0 asks for them one ahead."""

    @kernel(threads=LANES)
    def pipeline(data: u64, weights: u64, out: u64):
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
        weights_of = cuda.local.array(STAGES, uint32)
        weights_of[0] = ld_global_b32(weights)
        total = uint32(0)
        for i in range(ITEMS):
            ahead = i + 1
            if lane == 0 and ahead < ITEMS:  # ask for the next tile
                slot, bar = tiles + BYTES * (ahead % STAGES), full + 8 * (ahead % STAGES)
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)
            if ahead < ITEMS:
                weight = ld_global_b32(weights + uint64(4 * ahead))
                if BUG:
                    entry = cuda.local.array(1, uint32)  # the fault: a copy of the entry,
                    entry[0] = weight  # which nobody reads
                else:
                    weights_of[ahead % STAGES] = weight  # the cure: the entry itself
            stage, parity = i % STAGES, (i // STAGES) & 1
            mbarrier_wait(full + 8 * stage, parity)
            total += weights_of[stage] * tile[stage, lane]
            fence_proxy_async()
            cuda.syncwarp()
        st_global_b32(out + uint64(4 * lane), uint32(total))

    return pipeline


def arguments(seed):
    """Data of ITEMS tiles and their weights; out is the weighted sum, one number for each lane."""
    data, out = random_words(ITEMS, LANES, seed=seed), poison(LANES)
    weights = random_words(ITEMS, seed=seed + 1) & np.uint32(15)
    return Launch((data, weights, out), out, weights @ data)
