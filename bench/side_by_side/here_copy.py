"""A copy through a ring of three tiles, in numba_deform: one warp asks for tiles, the other stores them."""

import numpy as np

import numba_deform as nd

STAGES, ROWS, COLUMNS = 3, 32, 32
shared = nd.Shared(
    tiles=nd.Array((STAGES, ROWS, COLUMNS), nd.float32, alignment=128),
    ring=nd.Ring(STAGES, empty=32),
)


@nd.kernel(threads=64, shared=shared)
def copy(map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
    shared.init()
    ring, tiles = shared.ring, shared.tiles.view()
    state = ring.start()
    if nd.warp() == 0:
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            for step in range(steps):
                ring.acquire(state)
                ring.expect(state, shared.tiles.stride)
                nd.cp_async_bulk_tensor_2d(shared.tiles.at(state.stage), map, 0, ROWS * step, ring.full(state))
                state = ring.advance(state)
    else:
        for step in range(steps):
            ring.wait(state)
            for row in range(ROWS):
                out[ROWS * step + row, nd.lane()] = tiles[state.stage, row, nd.lane()]
            ring.release(state)
            state = ring.advance(state)


def run(data):
    out = np.full_like(data, np.nan)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, (COLUMNS, ROWS))])
    nd.simulate(copy, 1, args=[maps, out, len(data) // ROWS])
    return out
