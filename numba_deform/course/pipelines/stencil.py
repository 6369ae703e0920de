"""A stencil: each element becomes the mean of itself and its four neighbours, zero outside the matrix.

One warp asks for tiles with a rim: a row above and below, and on both sides four elements, since a box begins
on a multiple of 16 bytes. Where it reaches over the edge, TMA brings zeros. Other warps compute. Blocks take
tiles in turn, so that a block's next one is on its way while one is computed.
"""

from typing import no_type_check

import numpy as np
from numba import cuda

import numba_deform as nd

SIDE, RIM = 32, 4  # elements of a tile; of the rim on its left and right: 16 bytes


@nd.pipeline
def stencil(stages: int = 3, warps: int = 4, blocks: int = 2, height: int = 64, width: int = 96) -> nd.Launch:
    """The mean of each element and its four neighbours, tile by tile, through a ring of stages."""
    tiles = nd.Array((stages, SIDE + 2, SIDE + 2 * RIM), nd.float32, alignment=128, padding=64)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=32 * warps))

    @nd.kernel(threads=32 * warps + 32, shared=shared)
    @no_type_check
    def stencil(map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        ring, state, across = shared.ring, shared.ring.start(), (out.shape[1] + SIDE - 1) // SIDE
        count = across * ((out.shape[0] + SIDE - 1) // SIDE)
        if nd.warp() < warps:
            for tile in range(cuda.blockIdx.x, count, cuda.gridDim.x):
                ring.wait(state)
                box, y, x = shared.tiles.box_view(state.stage), tile // across * SIDE, tile % across * SIDE
                for row in range(nd.warp(), SIDE, warps):
                    i, j = row + 1, nd.lane() + RIM
                    near = box[i - 1, j] + box[i + 1, j] + box[i, j - 1] + box[i, j + 1]
                    if y + row < out.shape[0] and x + nd.lane() < out.shape[1]:
                        out[y + row, x + nd.lane()] = nd.float32(0.2) * (near + box[i, j])
                ring.release(state)
                state = ring.advance(state)
        elif nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            for tile in range(cuda.blockIdx.x, count, cuda.gridDim.x):
                ring.acquire(state)
                y, x = nd.int32(tile // across * SIDE - 1), nd.int32(tile % across * SIDE - RIM)
                shared.tiles.load(state.stage, map, (x, y), ring.full(state))  # zeros outside count, too
                state = ring.advance(state)

    data = np.random.default_rng(1).standard_normal((height, width)).astype(np.float32)
    rim = np.pad(data, 1)
    near = rim[:-2, 1:-1] + rim[2:, 1:-1] + rim[1:-1, :-2] + rim[1:-1, 2:]
    args = [nd.TensorMapArray([nd.TensorMap.of(data, tiles)]), np.empty_like(data)]
    return nd.Launch(stencil, blocks, args, {"out": np.float32(0.2) * (near + data)}, bytes=2 * data.nbytes)
