"""A copy through a ring: one warp asks for tiles, another stores them. More: help(nd.Ring), help(nd.Launch)."""

from typing import no_type_check

import numpy as np

import numba_deform as nd


@nd.pipeline
def copy(stages: int = 3, rows: int = 32, steps: int = 8) -> nd.Launch:
    """A copy of a matrix, tile by tile, through a ring of stages."""
    shared = nd.Shared(
        tiles=nd.Array((stages, rows, 32), nd.float32, alignment=128),
        ring=nd.Ring(stages, empty=32),  # 32 threads say that they have read a stage
    )

    @nd.kernel(threads=64, shared=shared)
    @no_type_check
    def copy(map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ring, tiles, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 0:  # the producer
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(map)
                for step in range(steps):
                    ring.acquire(state)
                    shared.tiles.load(state.stage, map, (0, rows * step), ring.full(state))
                    state = ring.advance(state)
        else:  # the consumer
            for step in range(steps):
                ring.wait(state)
                for row in range(rows):
                    out[rows * step + row, nd.lane()] = tiles[state.stage, row, nd.lane()]
                ring.release(state)
                state = ring.advance(state)

    data = np.random.default_rng(1).standard_normal((rows * steps, 32)).astype(np.float32)
    args = [nd.TensorMapArray([nd.TensorMap.of(data, (32, rows))]), np.empty_like(data), steps]
    return nd.Launch(copy, 1, args, expected={"out": data}, bytes=2 * data.nbytes)
