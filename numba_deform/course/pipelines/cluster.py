"""A cluster shares its loads: each block asks for a part of each tile, and TMA delivers it to all blocks.

A block says with ``expect`` how many bytes come to it, whoever asks for them. A part may be sent when all
blocks have given the stage back, so a consumer arrives on the *empty* barrier of every block, a lane for each.
"""

import numpy as np
from numba import cuda

import numba_deform as nd


@nd.pipeline
def multicast(stages=2, blocks=2, rows=16, steps=5):
    """Each block of a cluster multiplies the same tiles by its own number: they are loaded once for all."""
    if blocks not in (2, 4, 8) or rows % blocks:
        raise nd.ConfigError("blocks", blocks, f"must be 2, 4 or 8, and divide rows={rows}")
    part, everybody = rows // blocks, 2**blocks - 1
    tiles = nd.Array((stages, rows, 32), nd.float32, alignment=128)
    shared = nd.Shared(tiles=tiles, ring=nd.Ring(stages, empty=blocks))

    @nd.kernel(threads=64, shared=shared)
    def multicast(map: nd.u64, out: nd.float32[:, :, :], steps: nd.i32):
        shared.init()
        nd.cluster_sync()  # from here on all barriers of all blocks are there
        ring, state, rank = shared.ring, shared.ring.start(), nd.int32(nd.cluster_ctarank())
        if nd.warp() == 0:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(map)
                for step in range(steps):
                    ring.acquire(state)
                    ring.expect(state, shared.tiles.box_bytes)  # the parts of all blocks
                    place, row = shared.tiles.at(state.stage, part * rank, 0), rows * step + part * rank
                    nd.cp_async_bulk_tensor_2d_multicast(place, map, 0, row, ring.full(state), everybody)
                    state = ring.advance(state)
        else:
            for step in range(steps):
                ring.wait(state)
                tile = shared.tiles.box_view(state.stage)
                for row in range(rows):
                    out[rank, rows * step + row, nd.lane()] = nd.float32(rank + 1) * tile[row, nd.lane()]
                nd.fence_proxy_async()  # what was read here may be overwritten, by copies of all blocks
                cuda.syncwarp()
                if nd.lane() < blocks:
                    nd.mbarrier_arrive_cluster(nd.mapa_shared_cluster(ring.empty(state), nd.lane()))
                state = ring.advance(state)
        nd.cluster_sync()  # nobody ends while others still arrive on its barriers

    data = np.random.default_rng(1).standard_normal((rows * steps, 32)).astype(np.float32)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, (32, part))])
    right = np.stack([number * data for number in range(1, blocks + 1)])
    args, moved = [maps, np.empty_like(right), steps], data.nbytes + right.nbytes
    return nd.Launch(multicast, blocks, args, {"out": right}, cluster=blocks, bytes=moved)
