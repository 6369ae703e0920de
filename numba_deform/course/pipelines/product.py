"""C = A B^T in fp16 with float32 sums: four warps multiply tiles on tensor cores, a fifth asks for them."""

from typing import no_type_check

import numpy as np
from numba import cuda

import numba_deform as nd

SIDE, WARPS = 64, 4  # tiles of 64 x 64; each warp has 16 rows of C
warp_product = nd.WarpProduct(SIDE).functions()


@nd.pipeline
def product(stages: int = 3, steps: int = 4, tiles: int = 1) -> nd.Launch:
    """C = A B^T on tensor cores, with tiles x tiles blocks of 64 x 64, through a ring of stages."""
    tile = nd.Array((stages, SIDE, SIDE), nd.float16, swizzle="128B")
    shared = nd.Shared(a=tile, b=tile, ring=nd.Ring(stages, empty=32 * WARPS))

    @nd.kernel(threads=32 * WARPS + 32, shared=shared)
    @no_type_check
    def product(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ring, state, y, x = shared.ring, shared.ring.start(), SIDE * cuda.blockIdx.y, SIDE * cuda.blockIdx.x
        if nd.warp() < WARPS:
            sums = warp_product.zeros()
            for _ in range(steps):
                ring.wait(state)
                warp_product.add(sums, shared.a.at(state.stage), 16 * nd.warp(), shared.b.at(state.stage))
                ring.release(state)
                state = ring.advance(state)
            warp_product.store(out, y + 16 * nd.warp(), x, sums)
        elif nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, 2 * shared.a.stride)
                nd.cp_async_bulk_tensor_2d(shared.a.at(state.stage), a_map, SIDE * step, y, ring.full(state))
                nd.cp_async_bulk_tensor_2d(shared.b.at(state.stage), b_map, SIDE * step, x, ring.full(state))
                state = ring.advance(state)

    a, b = np.random.default_rng(1).integers(-4, 4, (2, SIDE * tiles, SIDE * steps)).astype(np.float16)
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, tile)]) for m in (a, b)]
    c = a.astype(np.float32) @ b.T.astype(np.float32)
    args, bytes = [*maps, np.empty_like(c), steps], a.nbytes + b.nbytes + c.nbytes
    return nd.Launch(product, (tiles, tiles), args, {"out": c}, bytes=bytes, flops=2 * c.size * SIDE * steps)
