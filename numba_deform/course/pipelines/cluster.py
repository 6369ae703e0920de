"""A cluster shares its loads: each block asks for a part of each tile, and TMA delivers it to all blocks.

A block announces all bytes that come to it, whoever asks for them. A part may be sent when all blocks have
given the stage back, so ``release`` of a ring for a cluster arrives on the *empty* barrier of every block.
"""

from typing import no_type_check

import numpy as np

import numba_deform as nd


@nd.pipeline
def multicast(stages: int = 2, blocks: int = 2, rows: int = 16, steps: int = 5) -> nd.Launch:
    """Each block of a cluster multiplies the same tiles by its own number: they are loaded once for all."""
    if blocks not in (2, 4, 8) or rows % blocks:
        raise nd.ConfigError("blocks", blocks, f"must be 2, 4 or 8, and divide rows={rows}")
    tiles = nd.Array((stages, rows, 32), nd.float32, alignment=128, cluster=blocks)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, cluster=blocks))

    @nd.kernel(threads=64, shared=shared)
    @no_type_check
    def multicast(map: nd.u64, out: nd.float32[:, :, :], steps: nd.i32):
        shared.init()  # from here on all barriers of all blocks are there
        ring, state, rank = shared.ring, shared.ring.start(), nd.int32(nd.cluster_ctarank())
        if nd.warp() == 0:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(map)
                for step in range(steps):
                    ring.acquire(state)
                    shared.tiles.load(state.stage, map, (0, rows * step), ring.full(state))
                    state = ring.advance(state)
        else:
            for step in range(steps):
                ring.wait(state)
                tile = shared.tiles.box_view(state.stage)
                for row in range(rows):
                    out[rank, rows * step + row, nd.lane()] = nd.float32(rank + 1) * tile[row, nd.lane()]
                ring.release(state)  # what was read here may be overwritten, by copies of all blocks
                state = ring.advance(state)
        nd.cluster_sync()  # nobody ends while others still arrive on its barriers

    data = np.random.default_rng(1).standard_normal((rows * steps, 32)).astype(np.float32)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, tiles)])
    right = np.stack([number * data for number in range(1, blocks + 1)])
    args, moved = [maps, np.empty_like(right), steps], data.nbytes + right.nbytes
    return nd.Launch(multicast, blocks, args, {"out": right}, cluster=blocks, bytes=moved)
