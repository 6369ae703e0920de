"""probe: one box through TMA into shared memory and out again. The first thing to run.

The whole life of a load in the order it must have: initialise the barrier, let the copy engine see it,
let the other threads see it, expect the bytes and issue, wait, read.
"""

from numba import cuda, int32, types, uint32

from ..compiler import i32, kernel, u64
from ..device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ..device.memory import global_at, ld_shared_b32, shared_address, shared_at, st_global_b32
from ..device.pipeline import mbarrier_wait
from ..device.sync import fence_mbarrier_init
from ..device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys

THREADS = 128
BOX_BYTES = 2 * 2 * 32 * 4  # a 2x2x32 box of float32


@kernel(threads=THREADS)
def probe(map: u64, out: u64, x: i32, y: i32):
    """Address of one rank-3 map (32, w, h) of float32 with box (32, 2, 2), address of 128 floats, and
    the box's corner. Thread i writes element i of the box."""
    tile = cuda.shared.array(BOX_BYTES, types.uint8, alignment=128)
    barrier = cuda.shared.array(1, types.uint64)
    tile_at, full = shared_address(tile), shared_address(barrier)
    tid = int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(full, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap_acquire_sys(map)
    cuda.syncthreads()
    if tid == 0:
        mbarrier_arrive_expect_tx(full, uint32(BOX_BYTES))
        cp_async_bulk_tensor_3d(tile_at, map, int32(0), x, y, full)
    mbarrier_wait(full, int32(0))
    st_global_b32(global_at(out, tid, 4), ld_shared_b32(shared_at(tile_at, tid, 4)))
