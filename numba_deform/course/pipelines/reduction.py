"""The sums of a matrix's columns by two roles: four warps add up the tiles that a fifth has asked for."""

from typing import no_type_check

import numpy as np

import numba_deform as nd


@nd.pipeline
def column_sums(stages: int = 4, rows: int = 16, warps: int = 4, steps: int = 9) -> nd.Launch:
    """Sums of columns: one warp asks for tiles, the others add them up."""
    shared = nd.Shared(
        tiles=nd.Array((stages, rows, 32), nd.float32, alignment=128), ring=nd.Ring(stages, empty=32 * warps),
        sums=nd.Array((warps, 32), nd.float32), consumers=nd.NamedBarrier(32 * warps),
    )  # fmt: skip

    @nd.kernel(threads=32 * warps + 32, shared=shared)
    @no_type_check
    def column_sums(map: nd.u64, out: nd.float32[:], steps: nd.i32):
        shared.init()
        ring, state, tiles, sums = shared.ring, shared.ring.start(), shared.tiles.view(), shared.sums.view()
        if nd.warp() < warps:
            total = nd.float32(0)
            for _ in range(steps):
                ring.wait(state)
                for row in range(nd.warp(), rows, warps):
                    total += tiles[state.stage, row, nd.lane()]
                ring.release(state)
                state = ring.advance(state)
            sums[nd.warp(), nd.lane()] = total
            shared.consumers.sync()
            if nd.warp() == 0:
                for other in range(1, warps):
                    total += sums[other, nd.lane()]
                out[nd.lane()] = total
        elif nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            for step in range(steps):
                ring.acquire(state)
                shared.tiles.load(state.stage, map, (0, rows * step), ring.full(state))
                state = ring.advance(state)

    data = np.random.default_rng(1).integers(-9, 9, (rows * steps, 32)).astype(np.float32)
    args = [nd.TensorMapArray([nd.TensorMap.of(data, (32, rows))]), np.empty(32, np.float32), steps]
    return nd.Launch(column_sums, 1, args, expected={"out": data.sum(0)}, bytes=data.nbytes)
