"""set_maps: put tensor maps into global memory that come as the launch's own arguments.

The driver copies arguments when a kernel is launched, and keeps those of a captured launch with its graph. So
the maps of a call may lie in memory of that call alone, and no memory of the host has to outlive it.
"""

import functools

from numba import cuda, types, uint32, uint64

from ..compiler import kernel, static_range, u64
from ..device.layout import Array, Shared
from ..device.memory import global_at, shared_at, st_shared_v4
from ..device.tensormap import tensormap_cp_fenceproxy

MAP_BYTES = 128
WORDS = MAP_BYTES // 8  # of 64 bits
MOST = 16  # maps of one launch, which take half of the 4 KB that arguments have on any driver


@functools.cache
def build(count):
    """The kernel for ``count`` maps, at most MOST; one block of a warp."""
    COUNT, PAIRS = count, count * WORDS // 2
    shared = Shared(maps=Array((count, MAP_BYTES), types.uint8, alignment=MAP_BYTES))

    @kernel(threads=32, shared=shared)
    def set_maps(target: u64, words: types.UniTuple(types.uint64, count * WORDS)):
        """Writes the maps to ``target``, a multiple of 64. Kernels that use them acquire them first."""
        slots = shared.maps.at(0)
        if cuda.threadIdx.x == 0:
            for i in static_range(PAIRS):
                low, high = words[2 * i], words[2 * i + 1]
                st_shared_v4(
                    shared_at(slots, i, 16), uint32(low), uint32(low >> uint64(32)), uint32(high),
                    uint32(high >> uint64(32)),
                )  # fmt: skip
        cuda.syncwarp()
        for i in range(COUNT):
            tensormap_cp_fenceproxy(global_at(target, i, MAP_BYTES), shared_at(slots, i, MAP_BYTES))

    return set_maps
