"""A wait whose parity never flips.

Every stage of a ring is used again and again, so its full barrier goes through phase after phase.
A wait names the phase by one bit only, and that bit has to flip whenever the ring wraps. Here it
stays 0. The first round is right. In the second a wait passes at once, because phase 0 is over,
and the lanes add up what is arriving; or the tile was quick, both phases are over, and the wait is
for a third that never comes.

Note 2 saw garbage from two stages on and took this for the reason ("barrier phase mismatch").
Its token-based waits did follow the phases; the reason was another one, see metadata_unwritten.
The TileLang compiler did generate waits for a parity that was over (tile-ai/tilelang pull request
3087).
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

MET = "note 2; tile-ai/tilelang pull request 3087"
# Whether the tile has arrived decides: the stale wait passes, or it is for a phase that never ends.
FAULTS = {
    faults.StaleWait: "total += tile[stage, lane]",
    faults.MissingArrivals: "mbarrier_wait(full + 8 * stage, 0)",
}
CURE = "Flip the parity whenever the stage index wraps: (i // STAGES) & 1."
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
                mbarrier_arrive_expect_tx(bar, BYTES)
                cp_async_bulk_load(slot, data + uint64(BYTES * ahead), BYTES, bar)
            stage, parity = i % STAGES, (i // STAGES) & 1
            if BUG:
                mbarrier_wait(full + 8 * stage, 0)  # the fault: phase 0 for ever
            else:
                mbarrier_wait(full + 8 * stage, parity)  # the cure: the bit flips each round
            total += tile[stage, lane]
            fence_proxy_async()
            cuda.syncwarp()
        st_global_b32(out + uint64(4 * lane), uint32(total))

    return pipeline


arguments = sums_of_tiles(ITEMS, LANES)
