"""No fence.proxy.async between ordinary writes and a TMA store.

The lanes write a tile to shared memory, the warp synchronises, and lane 0 stores the tile by the copy
engine. The engine looks at shared memory through another proxy. syncwarp and syncthreads order the
lanes, but not the two proxies: the store may pick up what was there before.

An audit found it in MoonshotAI/FlashKDA (issue 24). In a kernel of sgl-project/sglang, where other
asynchronous instructions read the tile, 86 of 100 results changed without the fence (pull request
39124).
"""

from numba import cuda, int32, uint32, uint64

from ...compiler import kernel, u64
from ...device.memory import ld_global_b32, shared_address
from ...device.sync import fence_proxy_async
from ...device.tma import cp_async_bulk_commit_group, cp_async_bulk_store, cp_async_bulk_wait_group
from ...engines import faults
from .base import Launch, poison, random_words

MET = "MoonshotAI/FlashKDA issue 24; sgl-project/sglang pull request 39124"
FAULTS = {faults.MissingProxyFence: "cp_async_bulk_store(out, shared_address(tile), BYTES)"}
CURE = "Call fence_proxy_async() in every writing thread before the barrier, or in the issuing one behind it."

LANES = 32
BYTES = 4 * LANES


def build(BUG):
    """Kernel(data, out): out is data plus 1, by way of shared memory and one bulk store."""

    @kernel(threads=LANES)
    def add_one(data: u64, out: u64):
        tile = cuda.shared.array(LANES, uint32, alignment=128)
        lane = int32(cuda.threadIdx.x)
        tile[lane] = uint32(ld_global_b32(data + uint64(4 * lane)) + uint32(1))
        if not BUG:
            fence_proxy_async()  # the cure: the copy engine sees this lane's write
        cuda.syncwarp()
        if lane == 0:
            cp_async_bulk_store(out, shared_address(tile), BYTES)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(uint32(0))

    return add_one


def arguments(seed):
    """Data of one tile; out is data plus 1."""
    data, out = random_words(LANES, seed=seed), poison(LANES)
    return Launch((data, out), out, data + 1)
