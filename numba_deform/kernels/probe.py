"""probe: one box through TMA into shared memory and out again. The first thing to run.

The whole life of a load in the order it must have: initialise the barrier, let the copy engine and the other
threads see it, expect the bytes and issue, wait, read.
"""

from numba import cuda, float32, int32

from ..compiler import i32, kernel, u64
from ..device.layout import Array, Shared
from ..device.memory import global_at, ld_shared_b32, shared_at, st_global_b32
from ..device.rings import Ring
from ..device.tma import cp_async_bulk_tensor_3d, fence_proxy_tensormap_acquire_sys

THREADS = 128
shared = Shared(box=Array((2, 2, 32), float32, alignment=128), ring=Ring(1, empty=0))


@kernel(threads=THREADS, shared=shared)
def probe(map: u64, out: u64, x: i32, y: i32):
    """Address of one rank-3 map (32, w, h) of float32 with box (32, 2, 2), address of 128 floats, and
    the box's corner. Thread i writes element i of the box."""
    ring, box, tid = shared.ring, shared.box.at(0), int32(cuda.threadIdx.x)
    state = ring.start()
    shared.init()
    if tid == 0:
        fence_proxy_tensormap_acquire_sys(map)
        ring.expect(state, shared.box.nbytes)
        cp_async_bulk_tensor_3d(box, map, int32(0), x, y, ring.full(state))
    ring.wait(state)
    st_global_b32(global_at(out, tid, 4), ld_shared_b32(shared_at(box, tid, 4)))
