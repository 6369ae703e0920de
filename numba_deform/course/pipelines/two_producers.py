"""A copy by two producers in turn: tile n is asked for by warp n % 2. The third warp stores them all."""

import numpy as np

import numba_deform as nd


@nd.pipeline
def two_producers(stages=3, producers=2, rows=32, steps=8):
    """A copy of a matrix, tile by tile: producers take turns to fill a ring of stages."""
    shared = nd.Shared(
        tiles=nd.Array((stages, rows, 32), nd.float32, alignment=128), ring=nd.Ring(stages, empty=32)
    )

    @nd.kernel(threads=32 * producers + 32, shared=shared)
    def two_producers(map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ring, tiles = shared.ring, shared.tiles.view()
        if nd.warp() < producers and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            state = ring.start(nd.warp())  # the first step of this producer
            for step in range(nd.warp(), steps, producers):
                ring.acquire(state)
                shared.tiles.load(state.stage, map, (0, rows * step), ring.full(state))
                state = ring.advance(state, producers)
        elif nd.warp() == producers:
            state = ring.start()
            for step in range(steps):
                ring.wait(state)
                for row in range(rows):
                    out[rows * step + row, nd.lane()] = tiles[state.stage, row, nd.lane()]
                ring.release(state)
                state = ring.advance(state)

    data = np.random.default_rng(1).standard_normal((rows * steps, 32)).astype(np.float32)
    args = [nd.TensorMapArray([nd.TensorMap.of(data, (32, rows))]), np.empty_like(data), steps]
    return nd.Launch(two_producers, 1, args, expected={"out": data}, bytes=2 * data.nbytes)
